//! Converts between the packed corpora and the folders in which `cargo fuzz` keeps a file for each input:
//!
//! - `cargo run -p atoll-fuzz --example corpus -- unpack [TARGET...]` writes the inputs into the folders.
//! - `... -- seeds [TARGET...]` adds the seeds of the targets to the folders.
//! - `... -- pack [TARGET...]` replaces the packed files with the folders' inputs.
//!
//! Without a target, the verb applies to all targets; `pack` applies to those that have a folder.

use std::error::Error;
use std::fs;
use std::path::Path;

use atoll_fuzz::corpus::{self, Corpus};
use atoll_fuzz::{TARGETS, Target};

fn unpacked(target: &str) -> Result<Corpus, Box<dyn Error>> {
    let mut inputs = Corpus::new();
    for entry in fs::read_dir(corpus::folder().join(target))? {
        let entry = entry?;
        let name =
            entry.file_name().into_string().map_err(|name| format!("{} is no text", name.display()))?;
        if name.contains(char::is_whitespace) || name.starts_with('#') {
            return Err(format!("{name:?}: names have no white space, and do not begin with #").into());
        }
        inputs.insert(name, fs::read(entry.path())?);
    }
    Ok(inputs)
}

fn write_all(folder: &Path, inputs: impl IntoIterator<Item = (String, Vec<u8>)>) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    inputs.into_iter().try_for_each(|(name, input)| fs::write(folder.join(name), input))
}

fn run(verb: &str, target: &Target) -> Result<(), Box<dyn Error>> {
    let folder = corpus::folder().join(target.name);
    let file = corpus::packed_file(target.name);
    match verb {
        "unpack" => write_all(&folder, corpus::parse(&fs::read_to_string(file)?)?)?,
        "seeds" => {
            let seeds = (target.seeds)().into_iter().enumerate();
            write_all(&folder, seeds.map(|(i, seed)| (format!("seed-{i:03}"), seed)))?;
        }
        "pack" => fs::write(file, corpus::pack(target.name, &unpacked(target.name)?))?,
        _ => return Err("the verbs are unpack, seeds and pack".into()),
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let verb = words.next().unwrap_or_default();
    let named: Vec<String> = words.collect();
    if let Some(unknown) = named.iter().find(|name| TARGETS.iter().all(|target| target.name != *name)) {
        return Err(format!("there is no target {unknown}").into());
    }
    let has_folder = |target: &Target| corpus::folder().join(target.name).is_dir();
    for target in &TARGETS {
        let wanted = match named.is_empty() {
            true => verb != "pack" || has_folder(target),
            false => named.iter().any(|name| name == target.name),
        };
        if wanted {
            run(&verb, target).map_err(|error| format!("{}: {error}", target.name))?;
        }
    }
    Ok(())
}
