//! Reads the text of a configuration file, based on the table of settings. Every fault names the file, the line, the setting, the given
//! value and the allowed ones. All faults of a file are reported at once.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::settings::{LISTS, SECTIONS, SETTINGS, of_section};

/// Longest part of a value that a fault quotes, in characters.
const MAX_SHOWN: usize = 80;
/// Settings whose values are secrets, or may contain one by mistake. No fault quotes them.
const SECRETS: [&str; 3] = ["sasl_users", "super_digest", "url"];
/// Maximum number of faults that are listed.
const MAX_FAULTS: usize = 50;

/// One fault of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// Line of the file, from 1; None if something is missing.
    pub line: Option<usize>,
    /// What is wrong, with the name of the setting, the given value and the allowed ones.
    pub what: String,
}

/// A configuration that cannot be used, with all its faults. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFaults {
    /// The file, or the name of another source.
    pub file: PathBuf,
    /// At least one, in the order of the file; 50 at most.
    pub faults: Vec<ConfigFault>,
}

impl fmt::Display for ConfigFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.faults.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{}", self.file.display())?;
            if let Some(line) = fault.line {
                write!(f, ":{line}")?;
            }
            write!(f, ": {}", fault.what)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigFaults {}

/// The text, and the faults found so far.
#[derive(Debug)]
pub struct Source<'a> {
    text: &'a str,
    faults: Vec<ConfigFault>,
}

impl<'a> Source<'a> {
    /// Creates a source from a text, without faults yet.
    pub fn new(text: &'a str) -> Self {
        Source { text, faults: Vec::new() }
    }

    fn line_of(&self, at: usize) -> usize {
        self.text.as_bytes().iter().take(at).filter(|b| **b == b'\n').count() + 1
    }

    /// Notes a fault at a place in the text, or without a place if something is missing.
    pub fn fault(&mut self, at: Option<usize>, what: String) {
        if self.faults.len() < MAX_FAULTS {
            let line = at.map(|at| self.line_of(at));
            self.faults.push(ConfigFault { line, what });
        }
    }

    /// Returns `value` if there are no faults, otherwise the faults in the order of the file.
    pub fn finish<T>(mut self, file: &Path, value: T) -> Result<T, ConfigFaults> {
        if self.faults.is_empty() {
            return Ok(value);
        }
        self.faults.sort_by_key(|f| f.line.unwrap_or(usize::MAX));
        Err(ConfigFaults { file: file.to_owned(), faults: self.faults })
    }

    /// Returns the tables of the text, after a check that they contain only known settings. None if the text is not TOML.
    pub fn tables(&mut self) -> Option<Tables<'a>> {
        let root = match DeTable::parse(self.text) {
            Ok(root) => root.into_inner(),
            Err(error) => {
                let at = error.span().map(|s| s.start);
                self.fault(at, format!("this is not TOML: {}", error.message().trim_end()));
                return None;
            }
        };
        let mut out = Tables { single: Vec::new(), lists: Vec::new() };
        for (key, value) in root {
            let (name, at) = (key.get_ref().to_string(), key.span().start);
            if !SECTIONS.iter().any(|(s, _)| *s == name) {
                let known: Vec<&str> = SECTIONS.iter().map(|(s, _)| *s).collect();
                self.fault(
                    Some(at),
                    format!(
                        "unknown table or setting `{}`; the file has the tables {}",
                        shown(&name),
                        known.join(", ")
                    ),
                );
                continue;
            }
            match (name.as_str(), value.into_inner()) {
                (list, DeValue::Array(elements)) if LISTS.contains(&list) => {
                    for element in elements {
                        let span = element.span();
                        match element.into_inner() {
                            DeValue::Table(table) => out.lists.extend(self.table(list, span, table)),
                            _ => {
                                let what = format!(
                                    "`{list}` is a table each: write `[[{list}]]` above its settings"
                                );
                                self.fault(Some(span.start), what);
                            }
                        }
                    }
                }
                (list, _) if LISTS.contains(&list) => {
                    self.fault(Some(at), format!("`{list}` is a list of tables: write `[[{list}]]`"));
                }
                (_, DeValue::Table(table)) => out.single.extend(self.table(&name, at..at, table)),
                (_, _) => self.fault(Some(at), format!("`{name}` is a table: write `[{name}]`")),
            }
        }
        Some(out)
    }

    /// Checks that a table contains only known settings.
    fn table(&mut self, section: &str, at: Range<usize>, table: DeTable<'a>) -> Option<Table<'a>> {
        let known: BTreeSet<&str> = of_section(section).map(|s| s.key).collect();
        let mut values = Vec::new();
        for (key, value) in table {
            match known.get(key.get_ref().as_ref()) {
                Some(known) => values.push((*known, value)),
                None => {
                    let list: Vec<&str> = known.iter().copied().collect();
                    let what = format!(
                        "unknown setting `{section}.{}`; known are {}",
                        shown(key.get_ref()),
                        list.join(", ")
                    );
                    self.fault(Some(key.span().start), what);
                }
            }
        }
        let section = SECTIONS.iter().find(|(s, _)| *s == section)?.0;
        Some(Table { section, at: at.start, values })
    }
}

/// The tables of a file.
#[derive(Debug)]
pub struct Tables<'a> {
    single: Vec<Table<'a>>,
    /// The tables of [`LISTS`], in order.
    lists: Vec<Table<'a>>,
}

impl<'a> Tables<'a> {
    /// Returns a table by its name; an empty one if it is not there.
    pub fn get(&self, section: &'static str) -> Table<'a> {
        let found = self.single.iter().find(|t| t.section == section).cloned();
        found.unwrap_or(Table { section, at: 0, values: Vec::new() })
    }

    /// Returns the tables with this name, one of [`LISTS`], in order.
    pub fn all(&self, list: &'static str) -> impl Iterator<Item = &Table<'a>> {
        self.lists.iter().filter(move |table| table.section == list)
    }
}

/// One table of the file, which contains only known settings.
#[derive(Clone, Debug)]
pub struct Table<'a> {
    section: &'static str,
    /// Where it begins in the text, in bytes.
    pub at: usize,
    values: Vec<(&'static str, Spanned<DeValue<'a>>)>,
}

impl Table<'_> {
    /// Returns whether the file has none of its settings.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns where the value of a setting begins in the text, if the file has it.
    pub fn place(&self, key: &str) -> Option<usize> {
        self.values.iter().find(|(k, _)| *k == key).map(|(_, v)| v.span().start)
    }

    /// Returns the value of a setting, converted by `read`, or its default. None if it has neither, or after a fault.
    ///
    /// `read` returns None for a value that is not allowed.
    pub fn read<T>(
        &self,
        source: &mut Source<'_>,
        key: &'static str,
        read: impl Fn(&DeValue<'_>) -> Option<T>,
    ) -> Option<T> {
        let setting = SETTINGS.iter().find(|s| s.section == self.section && s.key == key);
        debug_assert!(setting.is_some(), "{}.{key} is in the table of settings", self.section);
        let setting = setting?;
        let Some((_, value)) = self.values.iter().find(|(k, _)| *k == key) else {
            return DeValue::parse(setting.default?).ok().and_then(|v| read(v.get_ref()));
        };
        let taken = read(value.get_ref());
        if taken.is_none() {
            let given = source.text.get(value.span()).unwrap_or_default();
            let given = match SECRETS.contains(&key) {
                true => "not shown, because it is a secret".to_owned(),
                false => shown(given),
            };
            let what = format!("`{}` is {given}; allowed: {}", setting.name(), setting.allowed);
            source.fault(Some(value.span().start), what);
        }
        taken
    }

    /// Like [`Table::read`], for a setting that is mandatory.
    pub fn need<T>(
        &self,
        source: &mut Source<'_>,
        key: &'static str,
        read: impl Fn(&DeValue<'_>) -> Option<T>,
    ) -> Option<T> {
        if self.place(key).is_none() {
            let setting = SETTINGS.iter().find(|s| s.section == self.section && s.key == key)?;
            let at = (self.at > 0).then_some(self.at);
            source.fault(at, format!("`{}` is missing; allowed: {}", setting.name(), setting.allowed));
            return None;
        }
        self.read(source, key, read)
    }
}

/// Returns the start of a given value, on one line.
pub fn shown(given: &str) -> String {
    let flat: String = given.chars().take(MAX_SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if flat.len() < given.len() { format!("{flat}…") } else { flat }
}

/// Returns the value as an integer; None if it is not one, or does not fit.
pub fn integer(value: &DeValue<'_>) -> Option<u64> {
    let n = value.as_integer()?;
    u64::from_str_radix(n.as_str(), n.radix()).ok()
}

/// Returns a reader of integers from `least` to `most`, both included.
pub fn within(least: u64, most: u64) -> impl Fn(&DeValue<'_>) -> Option<u64> {
    move |v| integer(v).filter(|n| (least..=most).contains(n))
}

/// Returns the value as a string; None if it is not one.
pub fn text(value: &DeValue<'_>) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Returns the value as a list of strings; None if it is not one.
pub fn texts(value: &DeValue<'_>) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|v| v.get_ref().as_str().map(str::to_owned)).collect()
}
