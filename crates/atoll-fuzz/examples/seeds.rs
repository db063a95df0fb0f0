//! Writes every target's seeds into a corpus folder: `cargo run -p atoll-fuzz --example seeds -- fuzz/corpus`.

use std::path::PathBuf;

use atoll_fuzz::TARGETS;

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "fuzz/corpus".into()));
    for target in &TARGETS {
        let folder = folder.join(target.name);
        std::fs::create_dir_all(&folder)?;
        for (i, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{i:03}")), seed)?;
        }
    }
    Ok(())
}
