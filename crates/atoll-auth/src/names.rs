//! Who, which right, on what.

use std::fmt;
use std::str::FromStr;

use crate::MAX_NAME_BYTES;

/// A word of a grant cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It names nobody.
    #[error("{0:?} names nobody; allowed: cert:NAME, token:NAME, any")]
    Who(String),
    /// It is no right.
    #[error("{0:?} is no right; allowed: read, write, operate")]
    Right(String),
    /// It names nothing.
    #[error(
        "{0:?} names nothing; allowed: *, cluster, log:NAME, table:NAME, keyspace:NAME; a NAME may end in *"
    )]
    Pattern(String),
    /// It is too long.
    #[error("a name of {0} bytes; at most {MAX_NAME_BYTES} are allowed")]
    Long(usize),
}

/// Checks a name, and returns it.
fn name<'a>(text: &'a str, error: &dyn Fn() -> NameError) -> Result<&'a str, NameError> {
    match text.len() {
        0 => Err(error()),
        n if n > MAX_NAME_BYTES => Err(NameError::Long(n)),
        _ if text.chars().any(char::is_control) => Err(error()),
        _ => Ok(text),
    }
}

/// Returns the beginning of a text that may be long, for a message.
fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

/// To whom a right is granted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// The client whose certificate has this name.
    Certificate(String),
    /// The bearer of the token with this name.
    Token(String),
    /// Everybody with a certificate or a token.
    Any,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Certificate(name) => write!(f, "cert:{name}"),
            Who::Token(name) => write!(f, "token:{name}"),
            Who::Any => f.write_str("any"),
        }
    }
}

impl FromStr for Who {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let nobody = || NameError::Who(shown(text));
        match text.split_once(':') {
            Some(("cert", rest)) => Ok(Who::Certificate(name(rest, &nobody)?.to_owned())),
            Some(("token", rest)) => Ok(Who::Token(name(rest, &nobody)?.to_owned())),
            None if text == "any" => Ok(Who::Any),
            _ => Err(nobody()),
        }
    }
}

/// A right. Each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// See what is there.
    Read,
    /// Change what is in it, and read it.
    Write,
    /// Change what it is, or end it: create, delete, trim, reconfigure. Also write and read.
    Operate,
}

impl Right {
    /// All rights, from the least.
    pub const ALL: [Right; 3] = [Right::Read, Right::Write, Right::Operate];

    /// Returns its word.
    pub fn word(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::Write => "write",
            Right::Operate => "operate",
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Right {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Right::ALL.into_iter().find(|right| right.word() == text).ok_or_else(|| NameError::Right(shown(text)))
    }
}

/// A kind of thing that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A log of clients.
    Log,
    /// A table.
    Table,
    /// A keyspace.
    Keyspace,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Log, Kind::Table, Kind::Keyspace];

    /// Returns its word.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Log => "log",
            Kind::Table => "table",
            Kind::Keyspace => "keyspace",
        }
    }
}

/// What a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource<'a> {
    /// The cluster: its nodes, its database and the log of that, its backup, its grants.
    Cluster,
    /// Something with a name.
    Named(Kind, &'a str),
}

impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Cluster => f.write_str("cluster"),
            Resource::Named(kind, name) => write!(f, "{}:{}", kind.word(), shown(name)),
        }
    }
}

/// What a grant covers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// Everything, the cluster included.
    Everything,
    /// The cluster alone.
    Cluster,
    /// What has this name.
    Exactly(Kind, String),
    /// All of one kind whose names begin so.
    Beginning(Kind, String),
}

impl Pattern {
    /// Returns whether it covers this.
    pub fn covers(&self, what: &Resource<'_>) -> bool {
        match (self, what) {
            (Pattern::Everything, _) | (Pattern::Cluster, Resource::Cluster) => true,
            (Pattern::Exactly(kind, name), Resource::Named(k, n)) => kind == k && name == n,
            (Pattern::Beginning(kind, head), Resource::Named(k, n)) => {
                kind == k && n.starts_with(head.as_str())
            }
            _ => false,
        }
    }

    /// Returns whether it covers anything of this kind.
    pub fn covers_some(&self, wanted: Kind) -> bool {
        match self {
            Pattern::Everything => true,
            Pattern::Cluster => false,
            Pattern::Exactly(kind, _) | Pattern::Beginning(kind, _) => *kind == wanted,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Everything => f.write_str("*"),
            Pattern::Cluster => f.write_str("cluster"),
            Pattern::Exactly(kind, name) => write!(f, "{}:{name}", kind.word()),
            Pattern::Beginning(kind, head) => write!(f, "{}:{head}*", kind.word()),
        }
    }
}

impl FromStr for Pattern {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let nothing = || NameError::Pattern(shown(text));
        let Some((word, rest)) = text.split_once(':') else {
            return match text {
                "*" => Ok(Pattern::Everything),
                "cluster" => Ok(Pattern::Cluster),
                _ => Err(nothing()),
            };
        };
        let kind = Kind::ALL.into_iter().find(|kind| kind.word() == word).ok_or_else(nothing)?;
        let rest = name(rest, &nothing)?;
        Ok(match rest.strip_suffix('*') {
            Some(head) => Pattern::Beginning(kind, head.to_owned()),
            None => Pattern::Exactly(kind, rest.to_owned()),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_read_again() {
        for text in ["cert:alice", "token:ci", "any", "cert:CN with: colons"] {
            assert_eq!(text.parse::<Who>().unwrap().to_string(), text);
        }
        for text in ["*", "cluster", "log:a/b", "log:*", "table:team-*", "keyspace:k"] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
        for right in Right::ALL {
            assert_eq!(right.word().parse(), Ok(right));
        }
        let long = "x".repeat(MAX_NAME_BYTES + 1);
        for bad in ["", "cert:", "alice", "cert:a\0b", "user:a", &format!("cert:{long}")] {
            assert!(bad.parse::<Who>().is_err(), "{bad:?}");
        }
        for bad in ["", "log", "log:", "cluster:x", "door:x", "log:a\nb", &format!("log:{long}")] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad:?}");
        }
        assert!("admin".parse::<Right>().is_err());
    }

    #[test]
    fn a_pattern_covers_what_it_names_and_nothing_else() {
        let log = |name| Resource::Named(Kind::Log, name);
        let covers = |pattern: &str, what: Resource<'_>| pattern.parse::<Pattern>().unwrap().covers(&what);
        assert!(covers("log:a", log("a")) && !covers("log:a", log("ab")) && !covers("log:a", log("b")));
        assert!(covers("log:a*", log("a")) && covers("log:a*", log("ab")) && !covers("log:a*", log("b")));
        assert!(!covers("log:*", Resource::Named(Kind::Table, "a")) && !covers("log:*", Resource::Cluster));
        assert!(covers("cluster", Resource::Cluster) && !covers("cluster", log("a")));
        assert!(covers("*", Resource::Cluster) && covers("*", log("a")));
    }
}
