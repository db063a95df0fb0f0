//! Stores the corpus of a target in one text file, in which each line has the name of an input and its bytes in hexadecimal. This keeps
//! hundreds of small files out of the repository, and a change of the corpus shows as added and removed lines. `examples/corpus.rs` packs
//! and unpacks the file.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The inputs of a target, by name.
pub type Corpus = BTreeMap<String, Vec<u8>>;

/// Returns the folder of the packed files, in which `cargo fuzz` looks for the folders of inputs.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

/// Returns the path of a target's packed corpus.
pub fn packed_file(target: &str) -> PathBuf {
    folder().join(format!("{target}.txt"))
}

/// Parses a packed corpus. Lines that begin with `#` are comments. The error names the line.
pub fn parse(text: &str) -> Result<Corpus, String> {
    let mut corpus = Corpus::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let (name, digits) = line.split_once(' ').unwrap_or((line, ""));
        if name.is_empty() {
            return Err(format!("line {}: no name", at + 1));
        }
        let Some(input) = bytes_of(digits) else {
            return Err(format!("line {}: {name} is not followed by bytes in hexadecimal", at + 1));
        };
        if corpus.insert(name.to_owned(), input).is_some() {
            return Err(format!("line {}: {name} is there twice", at + 1));
        }
    }
    Ok(corpus)
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    // `from_str_radix` would also accept a sign.
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let places = (0..digits.len()).step_by(2);
    places.map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()).collect()
}

/// Returns a corpus in packed form.
pub fn pack(target: &str, corpus: &Corpus) -> String {
    let mut text = format!(
        "# Inputs of the fuzz target {target}, one a line: its name and its bytes in hexadecimal. See fuzz/README.md.\n"
    );
    for (name, input) in corpus {
        text.push_str(name);
        for (at, byte) in input.iter().enumerate() {
            let gap = if at == 0 { " " } else { "" };
            let _ = write!(text, "{gap}{byte:02x}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back() {
        let inputs = [("empty", vec![]), ("all", (0..=255).collect()), ("text", b"# a b\n".to_vec())];
        let corpus: Corpus = inputs.into_iter().map(|(name, input)| (name.to_owned(), input)).collect();
        let text = pack("some_target", &corpus);
        assert_eq!(text.lines().count(), 4);
        assert!(!text.contains(" \n"), "no space behind the name of an empty input");
        assert_eq!(parse(&text), Ok(corpus));
    }

    #[test]
    fn what_is_no_input_is_refused_by_its_line() {
        for (line, why) in [
            ("", "no name"),
            (" 00", "no name"),
            ("b 0", "b is not followed by bytes in hexadecimal"),
            ("b +f", "b is not followed by bytes in hexadecimal"),
            ("b 00 11", "b is not followed by bytes in hexadecimal"),
            ("a 01", "a is there twice"),
        ] {
            assert_eq!(parse(&format!("# first\na 00\n{line}\n")), Err(format!("line 3: {why}")), "{line:?}");
        }
    }
}
