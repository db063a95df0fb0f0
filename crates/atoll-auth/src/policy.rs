//! The grants and tokens as a value, and the decision.

use std::collections::{BTreeMap, BTreeSet};

use crate::names::{Kind, Pattern, Resource, Right, Who};
use crate::token::TokenHash;

/// A right that somebody has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// Who has it.
    pub who: Who,
    /// On what.
    pub on: Pattern,
    /// Which right.
    pub right: Right,
}

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its name, which grants use.
    pub name: String,
    /// What is kept of it.
    pub hash: TokenHash,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_ms: u64,
}

/// Who asks: what a client has shown. If it has shown both, it may do what either may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asking {
    /// The name in its certificate.
    pub certificate: Option<String>,
    /// The name of its token.
    pub token: Option<String>,
}

impl Asking {
    /// Returns whether it has shown anything.
    pub fn is_known(&self) -> bool {
        self.certificate.is_some() || self.token.is_some()
    }

    /// Returns to whom grants for it are made, the token first: who sends one wants to act as its bearer.
    pub fn who(&self) -> Option<Who> {
        let token = self.token.clone().map(Who::Token);
        token.or_else(|| self.certificate.clone().map(Who::Certificate))
    }
}

/// What is granted, and which tokens there are. The default grants nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    certificates: BTreeMap<String, Vec<(Pattern, Right)>>,
    tokens: BTreeMap<String, Vec<(Pattern, Right)>>,
    any: Vec<(Pattern, Right)>,
    names: BTreeMap<TokenHash, String>,
    known: BTreeSet<String>,
}

impl Policy {
    /// Makes it of grants and tokens.
    pub fn new(grants: &[Grant], tokens: &[Token]) -> Self {
        let mut policy = Policy::default();
        for Grant { who, on, right } in grants {
            let list = match who {
                Who::Certificate(name) => policy.certificates.entry(name.clone()).or_default(),
                Who::Token(name) => policy.tokens.entry(name.clone()).or_default(),
                Who::Any => &mut policy.any,
            };
            list.push((on.clone(), *right));
        }
        policy.names = tokens.iter().map(|token| (token.hash, token.name.clone())).collect();
        policy.known = policy.names.values().cloned().collect();
        policy
    }

    /// Returns the name of the token with this hash.
    pub fn token(&self, hash: &TokenHash) -> Option<&str> {
        self.names.get(hash).map(String::as_str)
    }

    fn grants<'a>(&'a self, asking: &'a Asking) -> impl Iterator<Item = &'a (Pattern, Right)> {
        // The token of a stream may be gone since the stream began.
        let token = asking.token.as_ref().filter(|name| self.known.contains(*name));
        let certificate = asking.certificate.as_ref();
        let any = if token.is_some() || certificate.is_some() { &self.any[..] } else { &[] };
        let of_token = token.and_then(|name| self.tokens.get(name));
        let of_certificate = certificate.and_then(|name| self.certificates.get(name));
        of_token.into_iter().chain(of_certificate).flatten().chain(any)
    }

    /// Returns whether this client has the right on this.
    pub fn may(&self, asking: &Asking, right: Right, what: &Resource<'_>) -> bool {
        self.grants(asking).any(|(on, granted)| *granted >= right && on.covers(what))
    }

    /// Returns whether this client has the right on anything of this kind.
    pub fn may_some(&self, asking: &Asking, right: Right, kind: Kind) -> bool {
        self.grants(asking).any(|(on, granted)| *granted >= right && on.covers_some(kind))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn grant(who: &str, right: Right, on: &str) -> Grant {
        Grant { who: who.parse().unwrap(), on: on.parse().unwrap(), right }
    }

    fn by(certificate: Option<&str>, token: Option<&str>) -> Asking {
        Asking { certificate: certificate.map(str::to_owned), token: token.map(str::to_owned) }
    }

    #[test]
    fn nothing_is_allowed_that_is_not_granted() {
        let alice = by(Some("alice"), None);
        for what in [Resource::Cluster, Resource::Named(Kind::Log, "a")] {
            assert!(!Policy::default().may(&alice, Right::Read, &what));
        }
        let policy = Policy::new(&[grant("cert:alice", Right::Write, "log:a*")], &[]);
        let may = |asking: &Asking, right, name| policy.may(asking, right, &Resource::Named(Kind::Log, name));
        assert!(may(&alice, Right::Read, "ab") && may(&alice, Right::Write, "ab"));
        assert!(!may(&alice, Right::Operate, "ab") && !may(&alice, Right::Read, "b"));
        assert!(!may(&by(Some("bob"), None), Right::Read, "ab") && !may(&by(None, None), Right::Read, "ab"));
        assert!(!may(&by(None, Some("alice")), Right::Read, "ab"), "a token of the same name is another one");
        assert!(policy.may_some(&alice, Right::Write, Kind::Log));
        assert!(!policy.may_some(&alice, Right::Write, Kind::Table));
    }

    #[test]
    fn a_token_counts_while_it_exists_and_any_is_whoever_is_known() {
        let token = Token { name: "ci".into(), hash: [7; 32], created_ms: 1 };
        let grants = [grant("token:ci", Right::Operate, "*"), grant("any", Right::Read, "table:t")];
        let (with, without) = (Policy::new(&grants, std::slice::from_ref(&token)), Policy::new(&grants, &[]));
        let ci = by(None, Some("ci"));
        assert_eq!((with.token(&[7; 32]), with.token(&[8; 32])), (Some("ci"), None));
        assert!(with.may(&ci, Right::Operate, &Resource::Cluster));
        assert!(!without.may(&ci, Right::Operate, &Resource::Cluster));
        let table = Resource::Named(Kind::Table, "t");
        assert!(with.may(&by(Some("bob"), None), Right::Read, &table));
        assert!(!with.may(&by(None, None), Right::Read, &table) && !without.may(&ci, Right::Read, &table));
        let both = by(Some("bob"), Some("ci"));
        assert!(with.may(&both, Right::Operate, &table));
        assert_eq!(both.who(), Some(Who::Token("ci".into())));
    }
}
