//! Parses a command of a trace: a name, words, and options.

use std::collections::{BTreeMap, VecDeque};

/// A line `name word... key=value...`, consumed from the left. A word or option that nobody has consumed is an error, because otherwise a
/// misspelled option would silently have no effect.
#[derive(Debug)]
pub struct Command<'a> {
    text: &'a str,
    words: VecDeque<&'a str>,
    options: BTreeMap<&'a str, &'a str>,
}

impl<'a> Command<'a> {
    /// Parses a line.
    pub fn new(text: &'a str) -> Self {
        let (options, words): (Vec<&str>, Vec<&str>) =
            text.split_whitespace().partition(|word| word.contains('='));
        let options = options.into_iter().filter_map(|option| option.split_once('=')).collect();
        Command { text, words: words.into(), options }
    }

    /// Returns the whole line.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// Takes the next word; the first one is the command's name. Panics if there is none.
    pub fn word(&mut self) -> &'a str {
        self.words.pop_front().unwrap_or_else(|| panic!("{:?}: a word is missing", self.text))
    }

    /// Takes the next word, which must be a number.
    pub fn number(&mut self) -> u64 {
        let word = self.word();
        self.parse(word)
    }

    /// Takes the next word, if there is one. It must be a number.
    pub fn maybe_number(&mut self) -> Option<u64> {
        (!self.words.is_empty()).then(|| self.number())
    }

    /// Takes all remaining words.
    pub fn words(&mut self) -> Vec<&'a str> {
        self.words.drain(..).collect()
    }

    /// Takes this word, wherever it is among the remaining words, and returns whether it was there.
    pub fn flag(&mut self, name: &str) -> bool {
        let before = self.words.len();
        self.words.retain(|word| *word != name);
        before != self.words.len()
    }

    /// Takes the value of an option, if it is given.
    pub fn option(&mut self, key: &str) -> Option<&'a str> {
        self.options.remove(key)
    }

    /// Takes the value of an option, which must be a number. Returns `otherwise` if the option is not given.
    pub fn number_of(&mut self, key: &str, otherwise: u64) -> u64 {
        self.option(key).map_or(otherwise, |word| self.parse(word))
    }

    fn parse(&self, word: &str) -> u64 {
        word.parse().unwrap_or_else(|_| panic!("{:?}: {word} is no number", self.text))
    }

    /// Panics if a word or an option is left.
    pub fn end(self) {
        assert!(
            self.words.is_empty() && self.options.is_empty(),
            "{:?}: not understood: {:?} {:?}",
            self.text,
            self.words,
            self.options
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_taken_apart() {
        let mut command = Command::new("store 7 a twice b round=3 from=x");
        assert_eq!((command.word(), command.number()), ("store", 7));
        assert!(command.flag("twice") && !command.flag("twice"));
        assert_eq!(command.words(), ["a", "b"]);
        assert_eq!(command.maybe_number(), None);
        assert_eq!((command.number_of("round", 1), command.number_of("life", 9)), (3, 9));
        assert_eq!(command.option("from"), Some("x"));
        command.end();
    }

    #[test]
    #[should_panic(expected = "not understood: [] {\"ruond\": \"3\"}")]
    fn a_misspelled_option_is_an_error() {
        let mut command = Command::new("seal ruond=3");
        command.word();
        command.end();
    }
}
