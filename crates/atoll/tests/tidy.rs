//! The rules of this project that the formatter and the compiler do not check, applied to every file of the tree. A program of its own: it
//! links nothing of the product, so it is there in a moment after an edit of any file.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Maximum length of a source file, in lines. The aim is about 600.
const MAX_FILE_LINES: usize = 800;
/// Maximum length of a function outside of tests, in lines. The aim is about 70.
const MAX_FUNCTION_LINES: usize = 100;
/// Maximum length of a comment line, in characters. The formatter does not break comments.
const MAX_COMMENT_CHARS: usize = 140;
/// Folders that are not part of the tree.
const NOT_OURS: [&str; 6] = [".git", "target", "atoll-dev", "node_modules", "__pycache__", "generated"];
/// Crates whose code also runs in the simulator, and which share one `clippy.toml`.
const PROTOCOL_CRATES: [&str; 22] = [
    "atoll-contract",
    "atoll-core",
    "atoll-log",
    "atoll-log-apps",
    "atoll-loglet-store",
    "atoll-pipeline",
    "atoll-register-store",
    "atoll-sim",
    "protocols/bizur",
    "protocols/corfu",
    "protocols/etcd-register",
    "protocols/file-register",
    "protocols/in-place",
    "protocols/local",
    "protocols/log-service",
    "protocols/native",
    "protocols/object",
    "protocols/rmwpaxos",
    "protocols/scalog",
    "protocols/striped",
    "protocols/trio",
    "protocols/zookeeper-loglet",
];

/// The crates of the product, the lowest layer first. A crate uses only crates of lower layers. So the node knows no door, and no door
/// knows the node or another door.
const LAYERS: [&[&str]; 11] = [
    &["atoll-pipeline", "atoll-serialla", "atoll-socket"],
    &["atoll-client", "atoll-core"],
    &["atoll-contract", "atoll-net", "atoll-object-store", "atoll-storage"],
    &["atoll-backup", "atoll-log", "atoll-loglet-store"],
    &[
        "atoll-bizur",
        "atoll-corfu",
        "atoll-db",
        "atoll-in-place",
        "atoll-local",
        "atoll-log-service",
        "atoll-native",
        "atoll-rmwpaxos",
        "atoll-scalog",
        "atoll-striped",
        "atoll-trio",
    ],
    &[
        "atoll-auth",
        "atoll-file-register",
        "atoll-log-apps",
        "atoll-register-store",
        "atoll-tables",
        "atoll-zookeeper",
    ],
    &["atoll-etcd-register", "atoll-object", "atoll-zookeeper-loglet"],
    &["atoll-door", "atoll-protocols"],
    &[
        "atoll-door-auth",
        "atoll-door-cluster",
        "atoll-door-corfu",
        "atoll-door-keyspaces",
        "atoll-door-log",
        "atoll-door-scalog",
        "atoll-door-tables",
        "atoll-door-zookeeper",
        "atoll-node",
    ],
    &["atoll-doors"],
    &["atoll"],
];
/// Programs for tests, which may use every crate and which no crate of the product uses.
const TOOLS: [&str; 7] = [
    "atoll-exhaustive",
    "atoll-experiments",
    "atoll-fuzz",
    "atoll-judge",
    "atoll-protogen",
    "atoll-sim",
    "atoll-threads",
];
/// Crates whose files use each other in one direction only.
const WITHOUT_CIRCLES: [&str; 10] = [
    "atoll-door",
    "atoll-doors",
    "atoll-node",
    "doors/cluster",
    "doors/corfu",
    "doors/keyspaces",
    "doors/log",
    "doors/scalog",
    "doors/tables",
    "doors/zookeeper",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns all text files, with their paths from the root.
fn files() -> Vec<(String, String)> {
    fn walk(dir: &Path, root: &Path, out: &mut Vec<(String, String)>) {
        let mut entries: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            // `.git` is a file in a second work tree.
            if NOT_OURS.contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                if !name.starts_with("target-") {
                    walk(&path, root, out);
                }
            } else if let Ok(text) = fs::read_to_string(&path) {
                out.push((path.strip_prefix(root).unwrap().to_string_lossy().into_owned(), text));
            }
        }
    }
    let (root, mut out) = (root(), Vec::new());
    walk(&root, &root, &mut out);
    assert!(out.len() > 50, "the tree was not found");
    out
}

fn sources() -> Vec<(String, String)> {
    files().into_iter().filter(|(name, _)| name.ends_with(".rs")).collect()
}

fn is_test(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap();
    name.contains("/tests/")
        || name.contains("/benches/")
        || name.contains("/examples/")
        || file.ends_with("_test.rs")
        || file.starts_with("test")
        || file == "tests.rs"
}

/// Fails with all findings at once.
fn none(rule: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

#[test]
fn files_and_functions_are_short() {
    let mut found = Vec::new();
    for (name, text) in sources() {
        let lines = text.lines().count();
        if lines > MAX_FILE_LINES {
            found.push(format!(
                "{name}: {lines} lines; {MAX_FILE_LINES} at most, split it by what belongs together"
            ));
        }
        if is_test(&name) {
            continue;
        }
        let all: Vec<&str> = text.lines().take_while(|l| !l.starts_with("#[cfg(test)]")).collect();
        for (at, line) in all.iter().enumerate() {
            let code = line.trim_start();
            let indent = line.len() - code.len();
            let starts = [
                "fn ",
                "pub fn ",
                "async fn ",
                "pub async fn ",
                "pub(crate) fn ",
                "pub(crate) async fn ",
                "pub(super) fn ",
                "const fn ",
                "pub const fn ",
            ];
            if !starts.iter().any(|s| code.starts_with(s)) {
                continue;
            }
            // The formatter ends a function with the first `}` at the function's own indentation.
            let end = format!("{}}}", " ".repeat(indent));
            let one_line = code.ends_with('}') || code.ends_with(';');
            if let Some(length) =
                all[at..].iter().position(|l| *l == end).filter(|n| !one_line && *n + 1 > MAX_FUNCTION_LINES)
            {
                found.push(format!(
                    "{name}:{}: a function of {} lines; {MAX_FUNCTION_LINES} at most",
                    at + 1,
                    length + 1
                ));
            }
        }
    }
    none("short files and functions", found);
}

#[test]
fn nothing_is_left_over() {
    // Split, so that this file passes.
    let words =
        [["TO", "DO"], ["FIX", "ME"], ["XX", "X"], ["db", "g!("], ["to", "do!("], ["unimple", "mented!("]]
            .map(|w| w.concat());
    let mut found = Vec::new();
    for (name, text) in
        files().iter().filter(|(n, _)| !n.ends_with(".lock") && !n.ends_with(".svg") && !n.contains("corpus"))
    {
        for (at, line) in text.lines().enumerate() {
            if let Some(word) = words.iter().find(|w| line.contains(w.as_str())) {
                found.push(format!("{name}:{}: {word}", at + 1));
            }
            if line.ends_with([' ', '\t']) && !name.ends_with(".md") {
                found.push(format!("{name}:{}: white space at the end", at + 1));
            }
        }
        if name.ends_with(".rs") && (!text.ends_with('\n') || text.ends_with("\n\n")) {
            found.push(format!("{name}: ends without a line feed, or with two"));
        }
    }
    none("no left-overs", found);
}

#[test]
fn no_place_of_one_machine() {
    let places = ["work", "root", "home"].map(|p| format!("/{p}/"));
    let mut found = Vec::new();
    for (name, text) in files() {
        for (at, line) in text.lines().enumerate() {
            if places.iter().any(|p| line.contains(p.as_str()) && !line.contains(&format!(".{p}"))) {
                found.push(format!("{name}:{}: {}", at + 1, line.trim()));
            }
        }
    }
    none("no absolute path of one machine", found);
}

#[test]
fn comments_fit() {
    let mut found = Vec::new();
    for (name, text) in sources() {
        for (at, line) in text.lines().enumerate() {
            // A row of a table cannot be broken.
            let is_comment = line.trim_start().starts_with("//") && !line.contains("//! |");
            if is_comment && line.chars().count() > MAX_COMMENT_CHARS {
                found.push(format!("{name}:{}: {} characters", at + 1, line.chars().count()));
            }
        }
    }
    none("comments of 140 characters at most", found);
}

#[test]
fn unwrap_is_for_tests() {
    let mut found = Vec::new();
    for (name, text) in sources().into_iter().filter(|(n, _)| !is_test(n)) {
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let allows =
                line.contains("allow(clippy::unwrap_used)") || line.contains("allow(clippy::expect_used)");
            let near = &lines[at.saturating_sub(2)..(at + 3).min(lines.len())];
            if allows && !near.iter().any(|l| l.contains("cfg(test)") || l.contains("mod test")) {
                found.push(format!("{name}:{}: unwrap is allowed outside of tests", at + 1));
            }
        }
    }
    none("no unwrap on what input, disk or network can cause", found);
}

#[test]
fn every_protocol_has_the_same_files() {
    let mut found = Vec::new();
    let by_name: BTreeMap<String, String> = files().into_iter().collect();
    for entry in fs::read_dir(root().join("crates/protocols")).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        let folder = format!("crates/protocols/{name}");
        let has = |file: &str| by_name.contains_key(&format!("{folder}/{file}"));
        let Some(module) = by_name.get(&format!("{folder}/src/lib.rs")) else {
            found.push(format!("{folder}: no src/lib.rs"));
            continue;
        };
        if !module.starts_with("//!") {
            found.push(format!("{folder}/src/lib.rs: begins with what it is, in words"));
        }
        for file in ["src/mutants.rs", "tests/protocol/conformance.rs"] {
            if !has(file) {
                found.push(format!("{folder}: no {file}"));
            }
        }
        if !module.contains("//! | ---") {
            found.push(format!("{folder}/src/lib.rs: has no table from the paper to its files"));
        }
        // A crate with messages is a protocol between nodes. File registers have none, so they have no role and no plug-in, and
        // between nodes there is nothing that an oracle could see.
        if has("src/message.rs") {
            let judged = ["src/testing/mod.rs", "src/testing/oracle.rs", "tests/protocol/traces.rs"];
            // The one that only tests use is judged by what clients see of it.
            let judged = if name == "trio" { &judged[..0] } else { &judged[..] };
            for file in ["src/invariants.rs", "src/plugin.rs", "src/roles.rs"].iter().chain(judged) {
                if !has(file) {
                    found.push(format!("{folder}: no {file}"));
                }
            }
            if !module.to_lowercase().contains("departure") {
                found.push(format!("{folder}/src/lib.rs: does not tell departures from the paper"));
            }
        }
    }
    none("one shape of protocol folders", found);
}

/// Code that is about one protocol outside of its folder: the list, scenarios of the simulator and their load, figures of the papers,
/// exhaustive checks, an example that chooses kinds, as a user does, what makes one protocol's own interface a log for applications, the
/// tests of the doors to it, which create logs of that kind, and registers elsewhere, which keep the rules of RMWPaxos for one register.
const KNOW_PROTOCOLS: [&str; 15] = [
    "crates/atoll-exhaustive/",
    "crates/atoll-log-apps/Cargo.toml",
    "crates/atoll-log-apps/src/corfu.rs",
    "crates/atoll-log-apps/tests/apps/corfu.rs",
    "crates/atoll-node/examples/counter_map.rs",
    "crates/atoll-protocols/",
    "crates/atoll-register-store/",
    "crates/atoll-sim/Cargo.toml",
    "crates/atoll-sim/src/scenario/",
    "crates/atoll-sim/src/workload/",
    "crates/atoll-sim/tests/",
    "crates/atoll-experiments/",
    "crates/atoll/tests/tidy.rs",
    "crates/doors/corfu/tests/",
    "crates/doors/scalog/tests/",
];
/// Lines that mean something else by the name of a protocol, as a file and a part of the line.
const OTHER_MEANINGS: [(&str, &str); 7] = [
    // Scenarios of the simulator may have the name of a protocol.
    ("crates/atoll-loglet-store/src/mutants.rs", "caught by ["),
    ("crates/atoll-core/src/mutants.rs", "caught by ["),
    // The reason of an error that arose in the command itself.
    ("crates/atoll/src/cli/mod.rs", "(\"local\", other.to_string()"),
    ("crates/atoll/src/cli/mod.rs", "json!(\"local\")"),
    ("crates/atoll/tests/atoll/outcomes.rs", "json!(\"local\")"),
    // The object that an operation of a history is about.
    ("crates/atoll-serialla/src/report.rs", "\"object\": self.object"),
    ("crates/atoll-serialla/src/suite_test.rs", "&[\"line 3\", \"object\"]"),
];

/// Returns the lines of code outside of the protocols' folders that name a protocol: by its crate, or by its kind as a string.
fn lines_that_name_protocols(names: &[String], all: &[(String, String)]) -> Vec<String> {
    let crates: Vec<String> = names
        .iter()
        .flat_map(|n| [format!("atoll_{}", n.replace('-', "_")), format!("atoll-{n}"), format!("\"{n}\"")])
        .collect();
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let mut found = Vec::new();
    for (name, text) in all {
        let is_code = name.starts_with("crates/") && (name.ends_with(".rs") || name.ends_with("Cargo.toml"));
        let knows =
            name.starts_with("crates/protocols/") || KNOW_PROTOCOLS.iter().any(|k| name.starts_with(k));
        if !is_code || knows {
            continue;
        }
        for (at, line) in text.lines().enumerate().filter(|(_, l)| !l.trim_start().starts_with("//")) {
            let means_else =
                OTHER_MEANINGS.iter().any(|(file, part)| name.starts_with(file) && line.contains(part));
            let names_it = |c: &&String| {
                // `atoll-native` is not in `atoll-natives`.
                line.match_indices(c.as_str()).any(|(i, _)| !line[i + c.len()..].starts_with(is_of_name))
            };
            if let Some(named) = crates.iter().find(names_it).filter(|_| !means_else) {
                found.push(format!("{name}:{}: {named}", at + 1));
            }
        }
    }
    found
}

fn protocols() -> Vec<String> {
    let folders = fs::read_dir(root().join("crates/protocols")).unwrap();
    folders.map(|f| f.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn only_the_list_of_protocols_names_them() {
    none("only the list of protocols names them", lines_that_name_protocols(&protocols(), &files()));
}

#[test]
fn a_planted_name_of_a_protocol_is_found() {
    let names = ["file-register", "native"].map(str::to_owned);
    let of = |file: &str, line: &str| {
        lines_that_name_protocols(&names, &[(file.to_owned(), line.to_owned())]).len()
    };
    let node = "crates/atoll-node/src/policy/guardian.rs";
    for line in [
        "use atoll_native;",
        "let server = atoll_native::LogServer::new();",
        "use atoll_file_register as registers;",
        "if segment.kind == \"native\" {",
    ] {
        assert_eq!(of(node, line), 1, "{line}");
        assert_eq!(of("crates/protocols/trio/src/plan.rs", line), 0, "{line}");
    }
    assert_eq!(of("crates/atoll-node/Cargo.toml", "testing = [\"atoll-native/testing\"]"), 1);
    assert_eq!(of("crates/atoll-node/Cargo.toml", "atoll-native = { workspace = true }"), 1);
    for line in ["// like atoll_native::LogServer", "let alternative = \"natives\";", "use atoll_natives;"] {
        assert_eq!(of(node, line), 0, "{line}");
    }
}

#[test]
fn every_crate_keeps_the_rules_of_the_workspace() {
    let mut found = Vec::new();
    let by_name: BTreeMap<String, String> = files().into_iter().collect();
    for (name, text) in by_name.iter().filter(|(n, _)| n.starts_with("crates/") && n.ends_with("/Cargo.toml"))
    {
        for line in ["license.workspace = true", "rust-version.workspace = true", "[lints]\nworkspace = true"]
        {
            if !text.contains(line) {
                found.push(format!("{name}: lacks {line:?}"));
            }
        }
    }
    let rules: Vec<Option<&String>> =
        PROTOCOL_CRATES.iter().map(|c| by_name.get(&format!("crates/{c}/clippy.toml"))).collect();
    if rules.iter().any(|r| r.is_none() || *r != rules[0]) {
        found.push(format!("clippy.toml differs between, or is missing in, {PROTOCOL_CRATES:?}"));
    }
    none("crates follow the workspace", found);
}

/// A test program of several files, `tests/NAME/main.rs`, names each of them: the compiler passes over a file that nobody names.
#[test]
fn every_file_of_a_test_program_is_built() {
    let sources: BTreeMap<String, String> = sources().into_iter().collect();
    let mut found = Vec::new();
    let mut files = 0;
    for name in sources.keys() {
        let (dir, file) = name.rsplit_once('/').unwrap_or(("", name));
        let Some(main) = sources.get(&format!("{dir}/main.rs")).filter(|_| dir.contains("/tests/")) else {
            continue;
        };
        let module = file.trim_end_matches(".rs");
        files += 1;
        if module != "main" && !main.lines().any(|l| l.trim_end() == format!("mod {module};")) {
            found.push(format!("{name}: {dir}/main.rs has no `mod {module};`"));
        }
    }
    assert!(files > 20, "only {files} files of test programs were found");
    none("tests that are not built", found);
}

/// The most files that a newcomer's search for words may find.
const MOST_FOUND: usize = 4;
/// The most files that a newcomer's search for names of files may find. Each protocol may have a file of the same name, and its folder
/// says which protocol it belongs to.
const MOST_NAMED: usize = 12;
/// The most files that a newcomer opens for one answer.
const MOST_OPENED: usize = 2;

#[test]
fn searches_in_the_internals_find_what_they_should() {
    let text = fs::read_to_string(root().join("docs/internals.md")).unwrap();
    let mut found = Vec::new();
    let mut searches = 0;
    for line in text.lines().filter(|l| l.contains("| `git grep -l '") || l.contains("| `git ls-files '")) {
        let code: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
        let (search, files) = code.split_first().unwrap();
        let mut command = Command::new("git");
        let most = match search.strip_prefix("git grep -l '") {
            Some(rest) => {
                let (word, folder) = rest.split_once("' ").unwrap();
                // A newcomer does not know which folder holds the answer.
                assert!(["crates", "docs"].contains(&folder), "{search}");
                command.args(["grep", "-l", "-F", "-e", word, "--", folder]);
                MOST_FOUND
            }
            None => {
                command.args(["ls-files", search.trim_start_matches("git ls-files ").trim_matches('\'')]);
                MOST_NAMED
            }
        };
        let out = command.current_dir(root()).output().unwrap();
        let hits: Vec<String> = String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect();
        searches += 1;
        // An answer was found by the search, or an earlier file of the answer names it.
        let opened: Vec<String> =
            files.iter().map(|f| fs::read_to_string(root().join(f)).unwrap_or_default()).collect();
        for (n, file) in files.iter().enumerate() {
            let (folder, name) = file.rsplit_once('/').unwrap();
            let short = format!("{}/{name}", folder.rsplit('/').next().unwrap());
            if !hits.contains(&file.to_string()) && !opened[..n].iter().any(|text| text.contains(&short)) {
                found.push(format!("{search}: not {file}"));
            }
        }
        if hits.len() > most {
            found.push(format!("{search}: {} files", hits.len()));
        }
        if files.len() > MOST_OPENED {
            found.push(format!("{search}: {} files to open", files.len()));
        }
    }
    none("searches find what they should", found);
    assert!(searches >= 10, "the page has {searches} searches");
}

#[test]
fn crates_use_only_lower_layers() {
    let rows = LAYERS.iter().enumerate().flat_map(|(at, names)| names.iter().map(move |name| (*name, at)));
    let layers: BTreeMap<&str, usize> = rows.collect();
    let (mut found, mut seen) = (Vec::new(), 0);
    for (path, text) in
        files().into_iter().filter(|(n, _)| n.starts_with("crates/") && n.ends_with("/Cargo.toml"))
    {
        let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"')).unwrap();
        let Some(own) = layers.get(name) else {
            if !TOOLS.contains(&name) {
                found.push(format!("{path}: {name} is in no layer"));
            }
            continue;
        };
        seen += 1;
        let lines = text.lines().skip_while(|line| *line != "[dependencies]").skip(1);
        for line in lines.take_while(|line| !line.starts_with('[')).filter(|line| line.starts_with("atoll")) {
            let used = line.split_whitespace().next().unwrap();
            if layers.get(used).is_none_or(|layer| layer >= own) {
                found.push(format!("{path}: uses {used}"));
            }
        }
    }
    none("crates use lower layers only", found);
    assert_eq!(seen, layers.len(), "every crate in the list exists");
}

/// Returns the paths that a `use` imports, without braces.
fn imports(text: &str) -> Vec<String> {
    let Some((prefix, rest)) = text.split_once('{') else { return vec![text.trim().to_owned()] };
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in rest.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => parts.push(String::new()),
            c => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                parts.last_mut().unwrap().push(c);
            }
        }
    }
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(|part| imports(&part).into_iter().map(|end| format!("{}{end}", prefix.trim()))).collect()
}

/// A module, as the names on its path from the root of its crate.
type Module = Vec<String>;

/// Returns the module that a path leads to from `at`. None if it leads out of the crate.
fn module_of(path: &str, at: &[String], known: &BTreeMap<Module, String>) -> Option<Module> {
    // The first word: another name may follow after `as`.
    let mut names = path.split("::").map(|name| name.split_whitespace().next().unwrap_or("")).peekable();
    let mut module: Module = at.to_vec();
    match names.peek().copied()? {
        "crate" => {
            module.clear();
            names.next();
        }
        "super" => {
            while names.next_if_eq(&"super").is_some() {
                module.pop();
            }
        }
        first => {
            let child: Module = module.iter().cloned().chain([first.to_owned()]).collect();
            known.get(&child)?;
        }
    }
    for name in names {
        module.push(name.to_owned());
        if !known.contains_key(&module) {
            module.pop();
            break;
        }
    }
    Some(module)
}

/// Returns which modules each module of a crate uses, without its tests.
fn uses(known: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let of = |(module, text): (&Module, &String)| {
        let text = text.split("#[cfg(test)]").next().unwrap();
        let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let code = code.join(" ");
        let lists = code.split("use ").skip(1).filter_map(|rest| rest.split(';').next());
        let mut paths: Vec<String> = lists.flat_map(imports).collect();
        let is_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let words =
            code.split(|c| !is_of_path(c)).filter(|w| w.starts_with("crate::") || w.starts_with("super::"));
        // Those that end so are the beginnings of lists.
        let words = words.filter(|word| !word.ends_with("::"));
        paths.extend(words.map(str::to_owned));
        let used = paths.iter().filter_map(|path| module_of(path, module, known));
        (module.clone(), used.filter(|used| used != module).collect())
    };
    known.iter().map(of).collect()
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let mut found = Vec::new();
    let all = files();
    for name in WITHOUT_CIRCLES {
        let folder = format!("crates/{name}/src/");
        let module = |(path, text): &(String, String)| {
            let file =
                path.strip_prefix(&folder)?.strip_suffix(".rs").filter(|file| !file.ends_with("_test"))?;
            let mut module: Module = file.split('/').map(str::to_owned).collect();
            if matches!(module.last().unwrap().as_str(), "mod" | "lib") {
                module.pop();
            }
            Some((module, text.clone()))
        };
        let known: BTreeMap<Module, String> = all.iter().filter_map(module).collect();
        assert!(!known.is_empty(), "{name} has files");
        let mut left = uses(&known);
        // Whoever uses none of the others is in no circle. What remains is in one, or uses one that is.
        while let Some(free) =
            left.keys().find(|m| left[*m].iter().all(|used| !left.contains_key(used))).cloned()
        {
            left.remove(&free);
        }
        found.extend(left.keys().map(|module| format!("{name}: {}", module.join("::"))));
    }
    none("files use each other in one direction", found);
}

type Lines<'a> = Vec<(usize, &'a str)>;

/// Returns the lines of a markdown file outside of fenced blocks, and those inside.
fn prose_and_code(text: &str) -> (Lines<'_>, Lines<'_>) {
    let (mut prose, mut code, mut fenced) = (Vec::new(), Vec::new(), false);
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            code.push((at + 1, line));
        } else {
            prose.push((at + 1, line));
        }
    }
    (prose, code)
}

#[test]
fn documents_have_one_title_and_links_that_lead_somewhere() {
    let mut found = Vec::new();
    for (name, text) in files().into_iter().filter(|(n, _)| n.ends_with(".md")) {
        let (prose, _) = prose_and_code(&text);
        let titles = prose.iter().filter(|(_, l)| l.starts_with("# ")).count();
        if titles != 1 {
            found.push(format!("{name}: {titles} titles"));
        }
        let folder = root().join(&name).parent().unwrap().to_owned();
        for (at, line) in prose {
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let path = target.split('#').next().unwrap();
                if !path.is_empty() && !path.contains("://") && !folder.join(path).exists() {
                    found.push(format!("{name}:{at}: {path} is not there"));
                }
            }
        }
    }
    none("documents", found);
}

/// Returns the words of an `atoll` command in a document: verbs, then flags. None for other lines.
fn atoll_command(line: &str) -> Option<(Vec<String>, Vec<String>)> {
    let line = line.trim_start().trim_start_matches("$ ");
    let rest = line.strip_prefix("atoll ").or_else(|| line.strip_prefix("cargo run --release -- "))?;
    let rest = rest.split(" #").next()?.split(['|', '>', ';']).next()?;
    let words: Vec<String> = rest.split_whitespace().map(str::to_owned).collect();
    let verb = |w: &&String| w.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !w.starts_with('-');
    let verbs = words.iter().take(3).take_while(verb).cloned().collect();
    let flags = words.iter().filter(|w| w.starts_with("--") && w.len() > 2);
    Some((verbs, flags.map(|f| f.split('=').next().unwrap().to_owned()).collect()))
}

fn help(verbs: &[String]) -> Option<String> {
    let out = Command::new(env!("CARGO_BIN_EXE_atoll")).args(verbs).arg("--help").output().unwrap();
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

#[test]
fn commands_in_documents_exist() {
    let mut found = Vec::new();
    let mut commands = 0;
    for (name, text) in files().into_iter().filter(|(n, _)| n.ends_with(".md")) {
        let (_, code) = prose_and_code(&text);
        for (at, line) in code {
            let Some((verbs, flags)) = atoll_command(line) else { continue };
            commands += 1;
            // If the last of the words is an argument, those before it are the verb.
            let help = (verbs.len().min(1)..=verbs.len()).rev().find_map(|words| help(&verbs[..words]));
            match help {
                None => found.push(format!("{name}:{at}: no such verb: {}", verbs.join(" "))),
                Some(help) => {
                    let unknown = flags.iter().filter(|f| !help.contains(f.as_str()));
                    found.extend(
                        unknown.map(|f| format!("{name}:{at}: {} does not know {f}", verbs.join(" "))),
                    );
                }
            }
        }
    }
    none("commands in documents", found);
    assert!(commands >= 5, "the README shows {commands} commands");
}
