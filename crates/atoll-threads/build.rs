//! Copies the product's files that contain state shared by threads, so that the tests compile them with the checker's types. Makes
//! another copy for each known bug, with that bug in it.

use std::path::{Path, PathBuf};
use std::{env, fs};

include!("src/bugs.rs");

/// The modules of the copies, and the files from which they are copied.
const PIECES: [(&str, &str); 11] = [
    ("ticket", "atoll-core/src/ticket.rs"),
    ("ready", "atoll-core/src/ready.rs"),
    ("wait_list", "atoll-pipeline/src/wait_list.rs"),
    ("wake", "atoll-node/src/host/wake.rs"),
    ("port", "atoll-node/src/host/port.rs"),
    ("queue", "atoll-node/src/host/queue.rs"),
    ("inlet", "atoll-db/src/engine/inlet.rs"),
    ("crowd", "atoll-db/src/engine/crowd.rs"),
    ("versions", "atoll-db/src/store/versions.rs"),
    ("points", "atoll-db/src/store/points.rs"),
    ("parking", "atoll-log/src/virtual_log/parking.rs"),
];

/// Paths in the product, and their replacements in the copies.
const NAMES: [(&str, &str); 3] = [
    ("atoll_core::sync::", "crate::sync::"),
    ("use atoll_core::{Completer", "use super::ticket::{Completer"),
    ("use atoll_core::wait_list::", "use super::wait_list::"),
];

/// Returns the product's code of each piece, without tests and comments. The text of a bug therefore does not depend on comments.
fn pieces(crates: &Path) -> Vec<(&'static str, String)> {
    let read = |(module, file): &(&'static str, &str)| {
        let path = crates.join(file);
        println!("cargo::rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let mut text: String = code.flat_map(|line| [line, "\n"]).collect();
        for (there, here) in NAMES {
            text = text.replace(there, here);
        }
        assert!(!text.contains("std::sync"), "{file}: what threads share is made of atoll_core::sync");
        (*module, text)
    };
    PIECES.iter().map(read).collect()
}

/// Writes the pieces into a folder. Returns the declarations of their modules.
fn write(folder: &Path, pieces: &[(&str, String)]) -> String {
    fs::create_dir_all(folder).expect("a folder for the copies");
    let mut declared = String::new();
    for (module, text) in pieces {
        let path = folder.join(format!("{module}.rs"));
        fs::write(&path, text).expect("a copy is written");
        declared += &format!("#[path = {:?}]\npub(crate) mod {module};\n", path.display().to_string());
    }
    declared
}

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where"));
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/bugs.rs");
    let sound = pieces(&here.join(".."));
    fs::write(out.join("product.rs"), write(&out.join("product"), &sound)).expect("declarations are written");
    let scenarios = here.join("src/scenarios/mod.rs").display().to_string();
    let mut bugs = String::new();
    for Bug { name, piece, right, wrong, scenario, seen } in BUGS {
        let mut pieces = sound.clone();
        let (_, text) = pieces.iter_mut().find(|(module, _)| *module == piece).expect("a piece of this name");
        let found = text.matches(right).count();
        assert_eq!(found, 1, "bug {name}: this must be in {piece}.rs once, to be replaced:\n{right}");
        *text = text.replace(right, wrong);
        let modules = write(&out.join(name), &pieces);
        bugs += &format!(
            "mod {name} {{\n{modules}#[path = {scenarios:?}]\nmod scenarios;\n\
             #[test]\nfn is_caught() {{\n    crate::explore::catches(scenarios::{scenario}, {seen:?});\n}}\n}}\n"
        );
    }
    fs::write(out.join("bugs.rs"), bugs).expect("declarations are written");
}
