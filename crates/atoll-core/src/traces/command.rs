//! A command of a trace: a name, words, and options.

use std::collections::{BTreeMap, VecDeque};

/// `name word... key=value...`, taken apart from the left. A word or an option that nobody has taken is an error, because otherwise a
/// misspelled option would just have no effect.
#[derive(Debug)]
pub struct Command<'a> {
    text: &'a str,
    words: VecDeque<&'a str>,
    options: BTreeMap<&'a str, &'a str>,
}

impl<'a> Command<'a> {
    /// Reads a line.
    pub fn new(text: &'a str) -> Self {
        let (options, words): (Vec<&str>, Vec<&str>) =
            text.split_whitespace().partition(|word| word.contains('='));
        let options = options.into_iter().filter_map(|option| option.split_once('=')).collect();
        Command { text, words: words.into(), options }
    }

    /// The whole line.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// The next word; the first one is the command's name.
    pub fn word(&mut self) -> &'a str {
        self.words.pop_front().unwrap_or_else(|| panic!("{:?}: a word is missing", self.text))
    }

    /// The next word, a number.
    pub fn number(&mut self) -> u64 {
        let word = self.word();
        self.parse(word)
    }

    /// The next word, a number, if there is one.
    pub fn maybe_number(&mut self) -> Option<u64> {
        (!self.words.is_empty()).then(|| self.number())
    }

    /// All further words.
    pub fn words(&mut self) -> Vec<&'a str> {
        self.words.drain(..).collect()
    }

    /// Whether this word stands anywhere behind those that were taken.
    pub fn flag(&mut self, name: &str) -> bool {
        let before = self.words.len();
        self.words.retain(|word| *word != name);
        before != self.words.len()
    }

    /// The value of an option.
    pub fn option(&mut self, key: &str) -> Option<&'a str> {
        self.options.remove(key)
    }

    /// The value of an option, a number.
    pub fn number_of(&mut self, key: &str, otherwise: u64) -> u64 {
        self.option(key).map_or(otherwise, |word| self.parse(word))
    }

    fn parse(&self, word: &str) -> u64 {
        word.parse().unwrap_or_else(|_| panic!("{:?}: {word} is no number", self.text))
    }

    /// Panics if something is left.
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
