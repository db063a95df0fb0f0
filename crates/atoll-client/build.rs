//! Compiles the protobuf definitions in pure Rust, without protoc.

use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(
        [
            "atoll/v1/log.proto",
            "atoll/v1/table.proto",
            "atoll/v1/database.proto",
            "atoll/keyspace/v1/keyspace.proto",
        ],
        ["proto"],
    )?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("atoll.v1.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure()
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        // Payloads share the buffer in which they arrived.
        .bytes(".")
        .compile_fds(files)?;
    Ok(())
}
