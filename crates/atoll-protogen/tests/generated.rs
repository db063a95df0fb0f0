//! The code in `src/generated` of a crate is what the definitions in its folder `proto` give. With `ATOLL_REWRITE_GENERATED=1`, this test
//! writes it anew.
//!
//! The repository keeps the code, so that a build of the program does not build a compiler of protobuf definitions first (decision 0021).
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::{env, fs};

use prost::Message;

/// The definitions of a crate. Each package becomes one file.
struct Api {
    /// The folder of the crate, below that of all crates.
    folder: &'static str,
    definitions: &'static [&'static str],
    /// Whether nodes serve it: then there is code for servers, too, and the descriptors are kept for reflection.
    is_served: bool,
}

const APIS: [Api; 2] = [
    Api {
        folder: "atoll-client",
        definitions: &[
            "atoll/v1/log.proto",
            "atoll/v1/table.proto",
            "atoll/v1/database.proto",
            "atoll/v1/backup.proto",
            "atoll/v1/auth.proto",
            "atoll/v1/policy.proto",
            "atoll/keyspace/v1/keyspace.proto",
            "atoll/corfu/v1/corfu.proto",
            "atoll/scalog/v1/scalog.proto",
        ],
        is_served: true,
    },
    // What registers use of the API of etcd.
    Api { folder: "protocols/etcd-register", definitions: &["etcdserverpb/kv.proto"], is_served: false },
];

impl Api {
    fn folder(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(self.folder)
    }

    /// Writes the code for all definitions to `out`.
    fn generate(&self, out: &Path) {
        // Without protoc, so that nobody has to install it.
        let files = protox::compile(self.definitions, [self.folder().join("proto")]).unwrap();
        if self.is_served {
            fs::write(out.join("descriptors.bin"), files.encode_to_vec()).unwrap();
        }
        tonic_prost_build::configure()
            .out_dir(out)
            .emit_rerun_if_changed(false)
            .build_server(self.is_served)
            .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
            // Payloads share the buffer in which they arrived.
            .bytes(".")
            .compile_fds(files)
            .unwrap();
    }
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
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let again = "run `ATOLL_REWRITE_GENERATED=1 cargo test -p atoll-protogen`, and commit what changed";
    for api in APIS {
        let kept = api.folder().join("src/generated");
        if env::var_os("ATOLL_REWRITE_GENERATED").is_some() {
            fs::create_dir_all(&kept).unwrap();
            api.generate(&kept);
        }
        let fresh = tempfile::tempdir().unwrap();
        api.generate(fresh.path());
        let (kept, fresh) = (contents(&kept), contents(fresh.path()));
        assert_eq!(names(&kept), names(&fresh), "{}: {again}", api.folder);
        for ((name, kept), (_, fresh)) in kept.iter().zip(&fresh) {
            assert!(kept == fresh, "{name} is not what the definitions give: {again}");
        }
    }
}
