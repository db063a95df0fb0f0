#!/usr/bin/env python3
"""Real data in a table: queries through indices return the same as a plain scan of the file.

The Debian package index is imported as a table (package, version, section, maintainer, size, depends) with two secondary indices, by
section and by maintainer. It is the index that `apt-get update` left on this machine; without one, the drill makes up records and says so.
Every section and many maintainers are queried, each through a different node and in both directions, and compared with the file. So is the
whole table, in key order. A third index is built while rows change; a node is killed in the meantime, and returns with the same rows. A
file with a broken line is refused as a whole, or imported without that line, as requested.
"""

import collections
import contextlib
import itertools
import json
import pathlib
import subprocess

from cluster import Cluster, Drill, need, poll, say, table
from real_data import INDEXES, uncompressed

COLUMNS = ["package:text", "version:text", "section:text?", "maintainer:text?", "size:int64?", "depends:text?"]
FIELDS = {b"Package": "package", b"Version": "version", b"Section": "section", b"Maintainer": "maintainer", b"Size": "size", b"Depends": "depends"}


def index_lines():
    """The lines of the package index of this machine, or made-up ones; and where they are from."""
    for path in sorted(pathlib.Path(INDEXES).glob("*_Packages*"), key=lambda p: -p.stat().st_size):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            data = uncompressed(path)
            if data.count(b"\nPackage: ") > 100:
                return data.splitlines(), f"the Debian package index ({path.name.rpartition('_dists_')[2]})"
    lines = []
    for n in range(20_000):
        lines += [b"Package: lib%d" % (n * 7919 % 20_000), b"Version: %d.%d-1" % (n % 17, n % 7), b"Section: section %d" % (n % 40)]
        lines += [b"Maintainer: Maintainer %d <m@example.org>" % (n % 900), b"Size: %d" % (n * 31), b""]
    return lines, f"made up in the shape of a package index: {INDEXES} has none"


def packages(wanted):
    """Rows of the index, one for each (package, version); and where they are from."""
    lines, origin = index_lines()
    rows, row = {}, {}
    for line in itertools.chain(lines, [b""]):
        name, found, value = line.partition(b": ")
        if found and name in FIELDS:
            text = value.decode(errors="replace").strip()
            row[FIELDS[name]] = int(text) if name == b"Size" else text
        elif not line and row:
            rows[row["package"], row["version"]] = dict.fromkeys(FIELDS.values()) | row
            row = {}
            if len(rows) >= wanted:
                break
    return list(rows.values()), origin


def by_key(row):
    """Where a row stands in the order of the primary key."""
    return row["package"].encode(), row["version"].encode()


def rows_of(done):
    """The rows that a verb printed."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def query(cluster, index, value, *more, node=None):
    """Rows of one value of an index."""
    asked = ["--node", node] if node else []
    return rows_of(cluster.atoll("table", "query", "packages", index, "--equal", value, "--json", *asked, *more))


def compare(cluster, rows, column, index, most):
    """Queries by the values of a column, the most frequent ones and some of the rest; how many, and how many rows came back."""
    groups = collections.defaultdict(list)
    for row in rows:
        if row[column] is not None:
            groups[row[column]].append(row)
    by_size = sorted(groups, key=lambda value: (-len(groups[value]), value))
    chosen = by_size[: most // 2] + by_size[most // 2 :: max(1, (len(by_size) - most // 2) // max(1, most - most // 2))][: most - most // 2]
    nodes = itertools.cycle(cluster.ids())
    total = 0
    for number, value in enumerate(chosen):
        expected = sorted(groups[value], key=by_key)
        backward = number % 2 == 1
        got = query(cluster, index, value, *(["--backward"] if backward else []), node=next(nodes))
        need(got == (expected[::-1] if backward else expected), f"{index} = {value!r} gives {len(got)} rows that are not the {len(expected)} of the file")
        total += len(got)
    return len(chosen), total


def bad_lines(drill, cluster, rows):
    """Files with a broken line."""
    path = drill.folder / "broken.jsonl"
    # No package's name begins so: Debian has a zzuf, too.
    good = [dict(row, package=f"~{row['package']}") for row in rows[:50]]
    lines = [json.dumps(row) for row in good]
    lines[30] = lines[30].replace('"size": ', '"size": "many", "was": ')
    path.write_text("".join(line + "\n" for line in lines))
    refused = cluster.atoll("table", "import", "packages", path, check=False)
    words = refused.stderr.decode()
    need(refused.returncode == 2 and "line 31" in words and "nothing was imported" in words, f"a file with a broken line: {words}")
    need(not rows_of(cluster.atoll("table", "scan", "packages", "--from", "~", "--json")), "rows of a refused file are there")
    done = cluster.atoll("table", "import", "packages", path, "--skip-bad-lines", "--json")
    need(json.loads(done.stdout)["rows"] == 49 and b"line 31" in done.stderr, "a broken line was not named, or more than it was left out")
    for row in good:
        cluster.atoll("table", "txn", json.dumps([{"delete": "packages", "key": [row["package"], row["version"]]}]))


def build_index(cluster, rows, drill):
    """Builds an index while rows change; kills a node meanwhile."""
    cluster.atoll("table", "add-index", "packages", "by_size=size")
    changed = drill.random.sample(rows, min(40, len(rows)))
    for number, row in enumerate(changed):
        row["size"] = 7_000_000_000 + number
        cluster.atoll("table", "put", "packages", json.dumps(row))
        if number == len(changed) // 2:
            pids, _ = cluster.signal([cluster.ids()[0]])
    cluster.wait_back(pids)

    def ready():
        found = [i for i in cluster.json("table", "show", "packages")["indices"] if i["name"] == "by_size"]
        need(not found[0]["state"].startswith("failed"), f"the index: {found[0]['state']}")
        return found[0]["state"] == "ready"

    poll("the index is built", 120, ready, every=0.2)
    got = rows_of(cluster.atoll("table", "query", "packages", "by_size", "--from", "7000000000", "--json"))
    need(got == changed, "the index that was built under load lacks rows, or has them in another order")
    got = rows_of(cluster.atoll("table", "query", "packages", "by_size", "--json", timeout=120))
    need(sorted(got, key=by_key) == sorted(rows, key=by_key), "the index that was built under load is not the table")
    return len(changed)


def body(drill):
    rows, origin = packages(drill.args.rows)
    say(f"input: {len(rows)} packages, {origin}")
    path = drill.folder / "packages.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Cluster(drill.binary, drill.folder / "cluster", "--nodes", drill.args.nodes) as cluster:
        columns = [word for column in COLUMNS for word in ("--column", column)]
        cluster.atoll("table", "create", "packages", *columns, "--key", "package,version", "--index", "by_section=section", "--index", "by_maintainer=maintainer")
        imported = json.loads(cluster.atoll("table", "import", "packages", path, "--json", timeout=600).stdout)
        need(imported["rows"] == len(rows), f"{imported['rows']} rows were imported")
        say(f"imported in {imported['seconds']:.1f} s: {imported['rows_s']:.0f} rows/s")
        shown = []
        for column in ("section", "maintainer"):
            queries, found = compare(cluster, rows, column, f"by_{column}", drill.args.queries)
            shown.append((f"by {column}", queries, found, "as in the file"))
        bad_lines(drill, cluster, rows)
        changed = build_index(cluster, rows, drill)
        for number in cluster.ids():
            out = drill.folder / f"export-{number}"
            cluster.atoll("table", "export", "packages", "--output", out, "--node", number, timeout=300)
            got = [json.loads(line) for line in out.read_text().splitlines()]
            need(got == sorted(rows, key=by_key), f"what node {number} exports is not the input")
            shown.append((f"export of node {number}", 1, len(got), "as in the file"))
        say()
        table(shown, ("what", "queries", "rows", "compared"))
        drill.result.update(rows=len(rows), rows_s=round(imported["rows_s"]), queries=shown[0][1] + shown[1][1], changed_under_build=changed, input=origin)


if __name__ == "__main__":
    Drill(
        "tables",
        __doc__,
        nodes=(3, 3, "how many nodes"),
        rows=(100_000, 3_000, "most rows of the input"),
        queries=(100_000, 30, "most values of each index that are queried"),
    ).run(body)
