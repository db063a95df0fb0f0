//! The code in `atoll-client/src/generated` is what the definitions in `atoll-client/proto` give. With `ATOLL_REWRITE_GENERATED=1`, this
//! test writes it anew.
//!
//! The repository keeps the code, so that a build of the program does not build a compiler of protobuf definitions first (decision 0021).
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::{env, fs};

use prost::Message;

/// All definitions. Each package becomes one file.
const DEFINITIONS: [&str; 6] = [
    "atoll/v1/log.proto",
    "atoll/v1/table.proto",
    "atoll/v1/database.proto",
    "atoll/keyspace/v1/keyspace.proto",
    "atoll/corfu/v1/corfu.proto",
    "atoll/scalog/v1/scalog.proto",
];

/// Writes the code for all definitions, and their descriptors for reflection, to `out`.
fn generate(client: &Path, out: &Path) {
    // Without protoc, so that nobody has to install it.
    let files = protox::compile(DEFINITIONS, [client.join("proto")]).unwrap();
    fs::write(out.join("descriptors.bin"), files.encode_to_vec()).unwrap();
    tonic_prost_build::configure()
        .out_dir(out)
        .emit_rerun_if_changed(false)
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        // Payloads share the buffer in which they arrived.
        .bytes(".")
        .compile_fds(files)
        .unwrap();
}

/// Returns the names and contents of the files in a directory, in order.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut files: Vec<_> = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn the_generated_code_is_current() {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../atoll-client");
    let kept = client.join("src/generated");
    if env::var_os("ATOLL_REWRITE_GENERATED").is_some() {
        fs::create_dir_all(&kept).unwrap();
        generate(&client, &kept);
    }
    let fresh = tempfile::tempdir().unwrap();
    generate(&client, fresh.path());
    let (kept, fresh) = (contents(&kept), contents(fresh.path()));
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let again = "run `ATOLL_REWRITE_GENERATED=1 cargo test -p atoll-protogen`, and commit what changed";
    assert_eq!(names(&kept), names(&fresh), "{again}");
    for ((name, kept), (_, fresh)) in kept.iter().zip(&fresh) {
        assert!(kept == fresh, "{name} is not what the definitions give: {again}");
    }
}
