#!/usr/bin/env python3
"""Claims, the runs that show them, and the page that tells both: docs/evidence.md.

docs/evidence/claims.toml has the claims, docs/evidence/results.jsonl one line for each run, and this program makes the page of them. A result
carries a fingerprint of the product's files at the commit of the program that ran. The page compares it with the fingerprint of the files at
hand. So it needs no history, and it changes when the product changes, not with every commit. Lines of Rust that are only a comment do not
count.
"""

import sys

if sys.version_info < (3, 11):
    sys.exit(f".ci/evidence.py wants Python 3.11 or newer, for its reader of TOML; this is {sys.version.split()[0]}")

import argparse
import collections
import datetime
import difflib
import functools
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLAIMS = "docs/evidence/claims.toml"
RESULTS = "docs/evidence/results.jsonl"
PAGE = "docs/evidence.md"

# What a run came to. Missed: all is right but a promise about time or size. Ended: by hand, before it was over.
OUTCOMES = ("holds", "failed", "missed", "ended", "not-run")
DECIDED = ("holds", "failed", "missed")
FORMS = ("whole", "quick")
# Field of a result: its type, and whether each line has it.
FIELDS = {
    "claim": (str, True),
    "date": (str, True),
    "commit": (str, False),
    "product": (str, False),
    "outcome": (str, True),
    "form": (str, True),
    "command": (str, False),
    "conditions": (str, False),
    "seconds": ((int, float), False),
    "words": (str, False),
    "details": (str, False),
    "printed": (dict, False),
}
# A longer last result is cut in the table; the list of all results has the rest.
CELL = 240


class Wrong(Exception):
    """Bad input, in words for whoever gave it."""


# The files that a claim depends on.


def matcher(patterns):
    """Whether a path is one of those that patterns name: the last pattern that fits decides, `!` takes out, `**` goes over folders."""
    rules = []
    for pattern in patterns:
        text = re.escape(pattern.removeprefix("!")).replace(r"\*\*/", "(?:.*/)?").replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
        rules.append((re.compile(text), not pattern.startswith("!")))

    def fits(path):
        return next((keep for rule, keep in reversed(rules) if rule.fullmatch(path)), False)

    return fits


def fingerprint(files, patterns):
    """One number for the paths and contents of the files that the patterns name; `files` is path -> `hash_of` it."""
    fits, total = matcher(patterns), hashlib.sha256()
    for path in sorted(filter(fits, files)):
        total.update(f"{path}\0{files[path]}\n".encode())
    return total.hexdigest()[:16]


# A line of Rust that is a comment and nothing else.
COMMENT = re.compile(rb"^[ \t]*//.*\n?", re.MULTILINE)


def hash_of(path, content):
    """The hash of a file without the lines that only people read. The help of the program is made of such lines: no claim depends on it."""
    return hashlib.sha1(COMMENT.sub(b"", content) if path.endswith(".rs") else content).hexdigest()


class Tree:
    """The files at hand, and the commits of which this clone has the files."""

    def __init__(self, root):
        self.root = root
        self.hashes = {}

    def git(self, *args):
        """What git prints, or None where it fails: there is no git, no repository, no such commit."""
        try:
            done = subprocess.run(["git", *args], cwd=self.root, capture_output=True, check=False)
        except FileNotFoundError:
            return None
        return done.stdout.decode("utf-8", "surrogateescape") if done.returncode == 0 else None

    def resolve(self, commit):
        """The short name of a commit, or None where this clone does not have it."""
        found = self.git("rev-parse", "--verify", "--quiet", "--short=7", f"{commit}^{{commit}}")
        return found.strip() if found else None

    @functools.cache
    def of_commit(self, commit):
        listed = self.git("ls-tree", "-r", "-z", commit)
        if listed is None:
            return None
        entries = (line.split("\t", 1) for line in listed.split("\0") if line)
        blobs = {path: about.split()[2] for about, path in entries if about.split()[1] == "blob"}
        self.read_hashes(blobs)
        return {path: self.hashes[path.endswith(".rs"), blob] for path, blob in blobs.items()}

    def read_hashes(self, blobs):
        """Computes the hashes of the given contents, path -> name in git, that are not known yet: most files of a commit are those of another."""
        new = {(path.endswith(".rs"), blob): path for path, blob in blobs.items()}
        new = {key: path for key, path in new.items() if key not in self.hashes}
        asked = "".join(f"{blob}\n" for _, blob in new).encode()
        printed = subprocess.run(["git", "cat-file", "--batch"], cwd=self.root, input=asked, capture_output=True, check=True).stdout
        printed = io.BytesIO(printed)
        for key, path in new.items():
            size = int(printed.readline().split()[2])
            self.hashes[key] = hash_of(path, printed.read(size))
            printed.read(1)

    @functools.cached_property
    def names(self):
        """Of the files at hand. New ones count before they are added: the program that is built has them."""
        listed = self.git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        if listed is not None:
            return sorted(set(filter(None, listed.split("\0"))))
        # A tree without its repository.
        names = []
        for folder, folders, files in os.walk(self.root):
            if folder == str(self.root):
                folders[:] = [f for f in folders if f != ".git" and not re.fullmatch("target(-.*)?", f)]
            names += [pathlib.Path(folder, f).relative_to(self.root).as_posix() for f in files]
        return sorted(names)

    def at_hand(self, patterns):
        fits, files = matcher(patterns), {}
        for path in filter(fits, self.names):
            if (self.root / path).is_file():
                files[path] = hash_of(path, (self.root / path).read_bytes())
        return files


# The claims.


class Claim:
    """One entry of the claims."""

    KEYS = {"id", "group", "claim", "commands", "depends", "part_of", "see"}

    def __init__(self, entry, sets, where):
        if not isinstance(entry.get("id"), str) or not re.fullmatch(r"[a-z0-9_-]+", entry["id"]):
            raise Wrong(f"{where}: a claim without an id of small letters, digits, _ and -: {entry.get('id')!r}")
        self.id = entry["id"]
        where = f"{where}, claim {self.id}"
        if unknown := set(entry) - self.KEYS:
            raise Wrong(f"{where}: unknown keys: {', '.join(sorted(unknown))}")
        for key in ("group", "claim"):
            if not isinstance(entry.get(key), str) or not entry[key]:
                raise Wrong(f"{where}: has no {key}")
        commands = entry.get("commands")
        if not isinstance(commands, list) or not commands or not all(isinstance(c, str) and c for c in commands):
            raise Wrong(f"{where}: commands is a list of texts, at least one")
        depends = entry.get("depends", "product")
        if depends not in sets:
            raise Wrong(f"{where}: depends on {depends!r}; there are: {', '.join(sets)}")
        self.group, self.text, self.commands = entry["group"], entry["claim"], commands
        self.patterns = sets[depends]
        # Another claim whose command runs this one's, and a document that has further results.
        self.part_of, self.see = entry.get("part_of"), entry.get("see")


def read_sets(table):
    """Name -> patterns. A set may begin with the name of one that stands before it: it has that one's patterns first."""
    sets = {}
    for name, patterns in table.items():
        if not isinstance(patterns, list) or not all(isinstance(p, str) for p in patterns):
            raise Wrong(f"{CLAIMS}: depends.{name} is a list of patterns")
        sets[name] = [p for pattern in patterns for p in sets.get(pattern, [pattern])]
    if "product" not in sets:
        raise Wrong(f"{CLAIMS}: depends.product is missing")
    return sets


def read_claims(root):
    """The claims by their id, in the order of the file."""
    try:
        read = tomllib.loads((root / CLAIMS).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Wrong(f"{CLAIMS}: {error}") from error
    sets, claims = read_sets(read.get("depends", {})), {}
    for entry in read.get("claim", []):
        claim = Claim(entry, sets, CLAIMS)
        if claim.id in claims:
            raise Wrong(f"{CLAIMS}: two claims have the id {claim.id}")
        claims[claim.id] = claim
    for claim in claims.values():
        if claim.part_of is not None and (claim.part_of not in claims or claims[claim.part_of].part_of):
            raise Wrong(f"{CLAIMS}, claim {claim.id}: part_of names {claim.part_of!r}, which is no claim, or itself a part")
        if claim.see is not None and not (root / "docs" / claim.see.split("#")[0]).is_file():
            raise Wrong(f"{CLAIMS}, claim {claim.id}: see names {claim.see}, which is not in docs")
    return claims


# The results.


def faults(result, claims):
    """What is wrong with one result, in words."""
    if not isinstance(result, dict):
        return ["is no object"]
    found = [f"unknown field {key}" for key in result if key not in FIELDS]
    for key, (kind, always) in FIELDS.items():
        if key not in result:
            found += [f"has no {key}"] if always else []
        elif not isinstance(result[key], kind) or isinstance(result[key], bool):
            found.append(f"{key} is {result[key]!r}")
        elif isinstance(result[key], str) and (not result[key].strip() or re.search(r"[\r\n]", result[key])):
            found.append(f"{key} is empty, or more than one line")
    if found:
        return found
    if result["claim"] not in claims:
        near = difflib.get_close_matches(result["claim"], claims, 1)
        found.append(f"unknown claim {result['claim']}" + (f"; is it {near[0]}?" if near else ""))
    try:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"]):
            raise ValueError
        datetime.date.fromisoformat(result["date"])
    except ValueError:
        found.append(f"date is {result['date']!r}; YYYY-MM-DD is wanted")
    for key, pattern in (("commit", r"[0-9a-f]{7,40}"), ("product", r"[0-9a-f]{16}")):
        if key in result and not re.fullmatch(pattern, result[key]):
            found.append(f"{key} is {result[key]!r}")
    if "product" in result and "commit" not in result:
        found.append("a fingerprint without a commit")
    for key, known in (("outcome", OUTCOMES), ("form", FORMS)):
        if result[key] not in known:
            found.append(f"{key} is {result[key]!r}; there are: {', '.join(known)}")
    if "words" not in result and "printed" not in result:
        found.append("says neither words nor what was printed")
    return found


def read_results(root, claims):
    """All results, in the order of the file; raises with every finding at once."""
    results, found, seen = [], [], {}
    try:
        lines = (root / RESULTS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        lines = []
    except (OSError, UnicodeDecodeError) as error:
        raise Wrong(f"{RESULTS}: {error}") from error
    for at, line in enumerate(lines, 1):
        try:
            result = json.loads(line)
        except ValueError as error:
            found.append(f"{RESULTS}:{at}: no JSON: {error}")
            continue
        found += [f"{RESULTS}:{at}: {words}" for words in faults(result, claims)]
        if line in seen:
            found.append(f"{RESULTS}:{at}: the same as line {seen[line]}")
        seen[line] = at
        results.append(result)
    if found:
        raise Wrong("\n".join(found))
    return results


def wrong_fingerprints(tree, claims, results):
    """Results whose fingerprint is not that of their commit: (line, what it should be). Commits that this clone does not have cannot be judged."""
    found = []
    for at, result in enumerate(results, 1):
        files = tree.of_commit(result["commit"]) if "commit" in result else None
        if files is not None:
            right = fingerprint(files, claims[result["claim"]].patterns)
            if right != result.get("product"):
                found.append((at, right))
    return found


# The page.


def in_words(printed):
    """The last line of a drill, an object, as text."""

    def value(of):
        if isinstance(of, bool) or of is None:
            return json.dumps(of)
        if isinstance(of, (int, float)):
            return f"{of:,}"
        if isinstance(of, dict):
            return "(" + ", ".join(f"{key} {value(item)}" for key, item in of.items()) + ")"
        if isinstance(of, list):
            return ", ".join(map(value, of))
        return str(of)

    told = {key: item for key, item in printed.items() if key not in ("drill", "quick", "outcome", "seconds", "seed", "missed")}
    return ", ".join(f"{key.replace('_', ' ')} {value(item)}" for key, item in told.items()) or "nothing else was printed"


def words_of(result):
    return result.get("words") or in_words(result["printed"])


def newest(results):
    """By date; of one day, the later line."""
    return max(enumerate(results), key=lambda pair: (pair[1]["date"], pair[0]))[1] if results else None


def shown(results):
    """The result that stands in a claim's row."""
    decided = [r for r in results if r["outcome"] in DECIDED]
    whole = newest([r for r in decided if r["form"] == "whole"])
    if not whole:
        return newest(decided) or newest([r for r in results if r["outcome"] == "ended"])
    # A short form says less than a whole run, but a failure is one.
    return newest([r for r in decided if r is whole or r["outcome"] == "failed"])


class Page:
    """Makes the page, and keeps which line of it tells of which claim."""

    def __init__(self, tree, claims, results):
        self.tree, self.claims = tree, claims
        self.own = {id: [r for r in results if r["claim"] == id] for id in claims}
        self.lines, self.claim_of = [], {}
        self.now = {}
        self.counts = collections.Counter()

    def is_stale(self, result):
        """Whether the files that its claim depends on are others now. Unknown counts as stale."""
        patterns = self.claims[result["claim"]].patterns
        if (key := tuple(patterns)) not in self.now:
            self.now[key] = fingerprint(self.tree.at_hand(patterns), patterns)
        return result.get("product") != self.now[key]

    def row_of(self, claim):
        """The result of a claim's row and its state."""
        results = list(self.own[claim.id])
        if claim.part_of:
            # Of a whole that failed nobody knows which part did.
            results += [r for r in self.own[claim.part_of] if r["outcome"] == "holds"]
        result = shown(results)
        if result is None:
            return None, "see there" if claim.see else "never run"
        outcome, stale = result["outcome"], self.is_stale(result)
        if outcome == "holds":
            state = "stale" if stale else "current"
        else:
            state = f"**{outcome}**" + (", stale" if stale else "")
        return result, state + (", short form" if result["form"] == "quick" else "")

    def add(self, line="", claim=None):
        if claim:
            self.claim_of[len(self.lines)] = claim.id
        self.lines.append(line)

    def row(self, claim):
        result, state = self.row_of(claim)
        self.counts[re.sub(r"\*", "", state).split(",")[0]] += 1
        commands = "<br>".join(f"`{c}`" for c in claim.commands)
        see = f"[{claim.see.split('#')[0].removeprefix('../')}]({claim.see})" if claim.see else ""
        if result is None:
            last = see or "none"
            date = commit = ""
        else:
            last = words_of(result)
            if result["claim"] != claim.id:
                last = f"holds as a part of `{self.claims[result['claim']].commands[0]}`"
            elif len(last) > CELL:
                last = last[:CELL].rsplit(" ", 1)[0].rstrip(",;:") + " …"
            last += f"; more in {see}" if see else ""
            date, commit = f"[{result['date']}](#{result['claim']})", result.get("commit", "unknown")[:7]
        cells = (claim.text, commands, last, date, commit, state)
        self.add("| " + " | ".join(c if c == commands else cell(c) for c in cells) + " |", claim)

    def history(self, claim):
        results = sorted(enumerate(self.own[claim.id]), key=lambda pair: (pair[1]["date"], pair[0]), reverse=True)
        if not results:
            return
        count = f"{len(results)} runs" if len(results) > 1 else "1 run"
        self.add(f'<details id="{claim.id}"><summary>{claim.id}: {count}</summary>', claim)
        self.add("", claim)
        for _, r in results:
            about = [r["date"], f"program {r['commit'][:7]}" if "commit" in r else "program unknown"]
            about += [f"`{r['command']}`"] if "command" in r else ["short form"] if r["form"] == "quick" else []
            about += [r["conditions"]] if "conditions" in r else []
            about += [f"{r['seconds']:,.0f} s"] if "seconds" in r else []
            told = words_of(r)
            seed = r.get("printed", {}).get("seed")
            if seed is not None and not re.search(rf"seed {seed}\b", told):
                told += f"; seed {seed}"
            details = f" {r['details']}" if "details" in r else ""
            end = "" if told.endswith((".", ")")) and not details else "."
            self.add(f"- {', '.join(about)}. **{r['outcome'].replace('-', ' ')}**: {told}{end}{details}".rstrip(), claim)
        self.add("", claim)
        self.add("</details>", claim)
        self.add("", claim)

    def render(self):
        self.lines, self.claim_of = [], {}
        self.counts.clear()
        self.add("# Evidence")
        self.add()
        self.add(INTRODUCTION[0])
        self.add()
        summary = len(self.lines)
        self.add("")
        self.add()
        self.add(INTRODUCTION[1])
        for group in dict.fromkeys(c.group for c in self.claims.values()):
            self.add()
            self.add(f"## {group}")
            self.add()
            self.add("| claim | command | last result | date | program | state |")
            self.add("| --- | --- | --- | --- | --- | --- |")
            for claim in self.claims.values():
                if claim.group == group:
                    self.row(claim)
        self.add()
        self.add("## All results")
        self.add()
        self.add(INTRODUCTION[2])
        self.add()
        for claim in self.claims.values():
            self.history(claim)
        order = ("current", "stale", "failed", "missed", "ended", "see there", "never run")
        states = [f"{self.counts[s]} {'in another document' if s == 'see there' else s}" for s in order if self.counts[s]]
        self.lines[summary] = f"**{len(self.claims)} claims: {', '.join(states)}.**"
        return "\n".join(self.lines).rstrip("\n") + "\n"


INTRODUCTION = (
    """Each claim, the command that shows it, and the result of its last run. Drills run real processes and print a verdict at their end. `--quick` is the
short form that `.ci/run` uses; `--help` lists all options. What earlier programs did not survive, and which check finds it: [hardening.md](hardening.md).""",
    """`.ci/evidence.py render` writes this page from the [claims](evidence/claims.toml) and the [results](evidence/results.jsonl); `.ci/run docs` fails
if the page is out of date. How to record a run: [internals.md](internals.md#evidence).

| state | meaning |
| --- | --- |
| current | the run holds, and the product's code is the same now |
| stale | the run held, but code that the claim depends on has changed since, or nobody knows the program that ran; a line that holds only a comment does not count; a run that failed can be stale as well |
| failed, missed | the run failed; or all was right but a promise about time or size, which was missed |
| ended | the run was ended by hand before it was over, and there is no other |
| short form | only the `--quick` form has run |
| never run | no result was recorded |

A row shows the newest whole run, or a newer short one that failed. The program is the commit from which it was built.""",
    """Every recorded run, the newest first. A run is whole unless it says otherwise. [results.jsonl](evidence/results.jsonl) also has the line that a drill
printed at its end, where it was kept.""",
)


def cell(text):
    """In a table a bar ends a cell."""
    return re.sub(r"(?<!\\)\|", r"\\|", text)


# The commands.


def load(root):
    tree = Tree(root)
    claims = read_claims(root)
    return tree, claims, read_results(root, claims)


def render(root, _args):
    text = Page(*load(root)).render()
    (root / PAGE).write_text(text, encoding="utf-8")
    print(f"{PAGE}: written, {len(text.encode()):,} bytes")


def check(root, _args):
    tree, claims, results = load(root)
    if wrong := wrong_fingerprints(tree, claims, results):
        lines = ", ".join(str(at) for at, _ in wrong)
        raise Wrong(
            f"{RESULTS}: lines whose fingerprint is not that of the files that their claim depends on at their commit: {lines}; "
            "after a change of `depends`, and after a merge, run: .ci/evidence.py refresh"
        )
    page = Page(tree, claims, results)
    text = page.render()
    try:
        there = (root / PAGE).read_text(encoding="utf-8")
    except FileNotFoundError:
        there = ""
    if there == text:
        print(f"evidence: {len(claims)} claims, {len(results)} results, the page is up to date")
        return
    begin = f"{PAGE} is not what its claims, its results and the product's code make of it:"
    raise Wrong("\n".join([begin, *differences(page, there), "run: .ci/evidence.py render"]))


def differences(page, there):
    """Which claims a page tells otherwise, and where it differs besides."""
    old, new = there.splitlines(), "\n".join(page.lines).rstrip("\n").splitlines()
    present, found = set(old), []
    # The texts of several lines make the numbers of the page's lines other than those of its parts.
    claim_of = {line: page.claim_of[at] for at, line in enumerate(page.lines) if at in page.claim_of}
    for id in dict.fromkeys(claim_of[line] for line in new if line in claim_of and line not in present):
        row = next((line for line in new if claim_of.get(line) == id and line.startswith("| ")), None)
        if row in present:
            found.append(f"  {id}: its list of results")
        else:
            claim = cell(page.claims[id].text)
            before = next((line for line in old if line.startswith(f"| {claim} |")), None)
            states = [re.sub(r"\*", "", line.rstrip(" |").rsplit("| ", 1)[-1]) for line in (before, row) if line]
            found.append(f"  {id}: its row" + (f": {states[0]} before, {states[1]} now" if len(states) == 2 and states[0] != states[1] else ""))
    extra = [line for line in old if line and line not in set(new)]
    lacking = [line for line in new if line and line not in present and line not in claim_of]
    if not found and not extra and not lacking:
        found.append("  the order of its lines, or empty lines")
    if not found:
        found += [f"  too much: {line[:120]}" for line in extra[:5]] + [f"  missing: {line[:120]}" for line in lacking[:5]]
    return found[:20] + ([f"  and {len(found) - 20} more"] if len(found) > 20 else [])


def refresh(root, _args):
    tree, claims, results = load(root)
    wrong = dict(wrong_fingerprints(tree, claims, results))
    for at, right in wrong.items():
        results[at - 1]["product"] = right
    if wrong:
        (root / RESULTS).write_text("".join(as_line(r) for r in results), encoding="utf-8")
    print(f"{RESULTS}: {len(wrong)} fingerprints written")


def program(root, args):
    """Prints the short name of the commit whose program a run would show."""
    tree = Tree(root)
    if args.commit:
        name = tree.resolve(args.commit)
        if name is None:
            raise Wrong(f"{args.commit}: this clone has no such commit")
    else:
        name = tree.resolve("HEAD")
        if name is None:
            raise Wrong("this tree has no commit")
        # Of everything that is built: crates, the lock file, settings of the build.
        built = ["crates/**", "Cargo.toml", "Cargo.lock"]
        fits, here = matcher(built), tree.at_hand(built)
        there = {path: blob for path, blob in tree.of_commit(name).items() if fits(path)}
        changed = sorted(path for path in here.keys() | there.keys() if here.get(path) != there.get(path))
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            raise Wrong(f"the tree is not that of {name}: {', '.join(changed[:3])}{more}")
    print(name)


def as_line(result):
    return json.dumps({key: result[key] for key in FIELDS if key in result}, ensure_ascii=False) + "\n"


def said(output, status):
    """What a command's output and status say: the fields of a result."""
    try:
        lines = [line.strip() for line in output.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError as error:
        raise Wrong(f"--output: {error}") from error
    last = lines[-1] if lines else "nothing was printed"
    fields = {"outcome": "failed" if status else "holds"}
    try:
        printed = json.loads(last)
    except ValueError:
        printed = None
    if not isinstance(printed, dict) or "outcome" not in printed:
        return fields | {"words": last}
    fields |= {"printed": printed, "form": "quick" if printed.get("quick") else "whole"}
    if isinstance(printed.get("seconds"), (int, float)):
        fields["seconds"] = printed["seconds"]
    missed = printed.get("missed")
    if printed["outcome"] == "not run":
        fields["outcome"] = "not-run"
    elif printed["outcome"] == "FAILS":
        # All was right but promises about time or size.
        fields["outcome"] = "missed" if missed and printed.get("why") == "; ".join(missed) else "failed"
    elif missed:
        # The short form goes on after a missed promise.
        fields["outcome"] = "missed"
    return fields


def record(root, args):
    tree, claims, _ = load(root)
    result = {"claim": args.claim, "date": args.date or datetime.datetime.now(datetime.timezone.utc).date().isoformat(), "form": "whole"}
    if args.output:
        result |= said(args.output, args.status)
    elif args.status is not None:
        raise Wrong("--status goes with --output")
    given = {key: getattr(args, key) for key in ("outcome", "form", "command", "conditions", "seconds", "words", "details")}
    result |= {key: value for key, value in given.items() if value is not None}
    if "outcome" not in result:
        raise Wrong(f"--outcome is wanted, one of: {', '.join(OUTCOMES)}; or --output")
    if args.claim not in claims:
        raise Wrong("; ".join(w for w in faults(result | {"words": "-"}, claims) if "claim" in w))
    if result.get("command") == claims[args.claim].commands[0]:
        del result["command"]
    commit = args.commit or tree.resolve("HEAD")
    if commit is None:
        raise Wrong("this tree has no commit; --commit names the program that ran")
    result["commit"] = tree.resolve(commit) or commit
    files = tree.of_commit(result["commit"])
    if files is None:
        print(f"this clone does not have {commit}: without its files the result counts as stale", file=sys.stderr)
    else:
        result["product"] = fingerprint(files, claims[args.claim].patterns)
    if found := faults(result, claims):
        raise Wrong("; ".join(found))
    path = root / RESULTS
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    line = as_line(result)
    if line in before.splitlines(keepends=True):
        raise Wrong(f"{RESULTS} has this result")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(before + ("" if before.endswith("\n") or not before else "\n") + line, encoding="utf-8")
    print(f"recorded: {args.claim}, {result['commit'][:7]}, {result['outcome']}; .ci/evidence.py render writes the page")


def arguments():
    parser = argparse.ArgumentParser(prog=".ci/evidence.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(name, does, words):
        added = verbs.add_parser(name, help=words, description=words)
        added.set_defaults(does=does)
        return added

    verb("render", render, f"write {PAGE}")
    verb("check", check, f"fail, and name what differs, where {PAGE} is not what render writes, or a claim or result is malformed")
    adds = verb("record", record, f"append one result to {RESULTS}")
    adds.add_argument("claim", help=f"the id of a claim of {CLAIMS}")
    adds.add_argument("--outcome", choices=OUTCOMES, help="[default: what --output says]")
    adds.add_argument("--commit", help="the commit of the program that ran [default: HEAD]")
    adds.add_argument("--date", help="YYYY-MM-DD [default: today, UTC]")
    adds.add_argument("--form", choices=FORMS, help="quick: the short form [default: what --output says, else whole]")
    adds.add_argument("--command", help="what ran, where it is not the claim's command")
    adds.add_argument("--conditions", help='what else ran, as "alone on the machine"')
    adds.add_argument("--seconds", type=float, help="how long it took")
    adds.add_argument("--words", help="what was printed, in words: one short line")
    adds.add_argument("--details", help="what else there is to say; it stands in the list of all results only")
    adds.add_argument("--output", type=pathlib.Path, metavar="FILE", help="what the command printed: its last line is the result")
    adds.add_argument("--status", type=int, help="the exit status of the command, with --output")
    names = verb("program", program, "print the commit whose program this tree builds; fail where files of the build are not those of a commit")
    names.add_argument("--commit", help="print the short name of this commit instead")
    verb("refresh", refresh, "compute all fingerprints again, of commits that this clone has; after a change of what claims depend on")
    return parser


def main(argv=None, root=ROOT):
    args = arguments().parse_args(argv)
    try:
        args.does(root, args)
    except Wrong as words:
        print(f".ci/evidence.py: {words}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
