//! What an operator declares for a log, and the record of the register that keeps it: the policy, when segments were sealed, and what nodes
//! did because of it. Everything here is a value.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_contract::{LogPos, LogletProvider, LogletSpec};
use atoll_core::{Decode, DecodeError, Encode, Incarnation, NodeId, choice, record};
use bytes::Bytes;

/// The format of the record.
const FORMAT: u8 = 1;
/// The longest policy, in bytes. The rest of the register is for marks and actions.
pub const MAX_POLICY_BYTES: usize = 16 * 1024;
/// The most actions that a record keeps, the newest ones.
pub const MAX_ACTIONS: usize = 32;
/// The most marks that a record keeps.
pub const MAX_MARKS: usize = 512;
/// The longest text of an action, in characters.
const MAX_WORDS: usize = 300;
/// The ages and waits that may be declared, in milliseconds.
const AGES_MS: std::ops::RangeInclusive<u64> = 1_000..=315_360_000_000;
/// The sizes that may be declared, in bytes.
const SIZES: std::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000_000;
/// Without another declaration, a segment is sealed at this fraction of the least age, and of the least size, that is declared.
const SEGMENTS_WITHIN: u64 = 4;

record! {
    /// A Loglet that a policy names: its kind, the nodes of its roles, and its options.
    pub struct WantedLoglet {
        /// The kind.
        pub kind: String,
        /// By role.
        pub places: BTreeMap<String, Vec<NodeId>>,
        /// By name.
        pub options: BTreeMap<String, String>,
    }
}

impl WantedLoglet {
    /// Returns it as a specification.
    pub fn spec(&self) -> LogletSpec {
        LogletSpec {
            kind: Some(self.kind.clone()),
            places: self.places.clone(),
            options: self.options.clone(),
            ..LogletSpec::default()
        }
    }

    /// Whether a Loglet of this provider with this configuration is what the policy names. An option that the provider does not show is
    /// not compared.
    pub fn is(&self, provider: &dyn LogletProvider, config: &Bytes) -> bool {
        if provider.kind() != self.kind {
            return false;
        }
        let (duties, fields) = (provider.duties(config), provider.describe(config));
        let is_placed = |(role, nodes): (&String, &Vec<NodeId>)| {
            let mut nodes = nodes.clone();
            nodes.sort_unstable();
            nodes.dedup();
            duties.in_role(role) == nodes
        };
        let plain = |text: &str| text.trim_end_matches('/').to_owned();
        let is_set = |(option, value): (&String, &String)| {
            let shown = fields.iter().find(|(name, _)| name == option);
            shown.is_none_or(|(_, shown)| plain(shown) == plain(value))
        };
        self.places.iter().all(is_placed) && self.options.iter().all(is_set)
    }
}

record! {
    /// Where the active segment should be. Converged: on the nodes with a replica of the database.
    pub struct Placement {
        /// The kind of the converged Loglet.
        pub kind: String,
        /// With fewer live replicas than this, the log leaves for `elsewhere`. 0: never.
        pub least_replicas: u32,
        /// The disaggregated Loglet.
        pub elsewhere: Option<WantedLoglet>,
        /// Replicas must be too few for so long before the log leaves, in milliseconds.
        pub settle_ms: u64,
        /// They must be enough for so long before it returns, in milliseconds.
        pub return_ms: u64,
        /// The least time between two switches, in milliseconds.
        pub rest_ms: u64,
    }
}

impl Placement {
    /// The default of [`Placement::settle_ms`].
    pub const SETTLE: Duration = Duration::from_secs(5);
    /// The default of [`Placement::return_ms`].
    pub const RETURN: Duration = Duration::from_mins(1);
    /// The default of [`Placement::rest_ms`].
    pub const REST: Duration = Duration::from_mins(5);
}

record! {
    /// Which sealed segments move to a store outside of the nodes.
    pub struct Cold {
        /// Where to.
        pub to: WantedLoglet,
        /// Those that were sealed so long ago, in milliseconds.
        pub age_ms: Option<u64>,
        /// The oldest, while all that have not moved have more bytes than this together.
        pub hot_bytes: Option<u64>,
    }
}

record! {
    /// The policy of a log.
    pub struct LogPolicy {
        /// Where the active segment should be.
        pub placement: Option<Placement>,
        /// Which sealed segments are cold.
        pub cold: Option<Cold>,
        /// Segments that were sealed so long ago are trimmed, in milliseconds.
        pub keep_age_ms: Option<u64>,
        /// The oldest sealed segments are trimmed as long as so many bytes stay.
        pub keep_bytes: Option<u64>,
        /// A segment is sealed once it is so old, in milliseconds.
        pub segment_age_ms: Option<u64>,
        /// A segment is sealed once it has so many bytes.
        pub segment_bytes: Option<u64>,
    }
}

/// Why a policy cannot be declared. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// It would do nothing.
    #[error(
        "the policy declares nothing; allowed: a placement, a place for cold segments, or a limit of what is kept"
    )]
    Nothing,
    /// A number is out of bounds.
    #[error("{what} is {got}; allowed: {least} to {most}")]
    OutOfBounds {
        /// The name of the setting.
        what: &'static str,
        /// What was declared.
        got: u64,
        /// The least that is allowed.
        least: u64,
        /// The most that is allowed.
        most: u64,
    },
    /// One number must not be above another.
    #[error("{what} is {got}; allowed: at most {of}, which is {most}")]
    Above {
        /// The name of the setting.
        what: &'static str,
        /// What was declared.
        got: u64,
        /// The name of the other setting.
        of: &'static str,
        /// The other one.
        most: u64,
    },
    /// A place for cold segments without a rule which ones are.
    #[error("nothing says which segments are cold; allowed: an age, a size of what is hot, or both")]
    NeverCold,
    /// The least number of replicas and the disaggregated Loglet belong together.
    #[error(
        "the least number of replicas is {least}; allowed: 1 or more with a loglet for that case, 0 without one"
    )]
    Elsewhere {
        /// The declared number.
        least: u32,
    },
    /// There are never so many replicas.
    #[error(
        "the least number of replicas is {least}; allowed: at most {replicas}, the replicas that the cluster has"
    )]
    TooFewReplicas {
        /// The declared number.
        least: u32,
        /// How many there are.
        replicas: usize,
    },
    /// The database trims its log itself.
    #[error(
        "the database trims its own log, as soon as all replicas and the backup have what it holds; allowed for it: no limit of what is kept"
    )]
    DatabaseTrims,
    /// The encoded policy is too long.
    #[error("the policy has {0} bytes; allowed: at most {MAX_POLICY_BYTES}")]
    TooLong(usize),
}

fn within(
    what: &'static str,
    got: Option<u64>,
    bounds: std::ops::RangeInclusive<u64>,
) -> Result<(), Contradiction> {
    match got {
        Some(got) if !bounds.contains(&got) => {
            Err(Contradiction::OutOfBounds { what, got, least: *bounds.start(), most: *bounds.end() })
        }
        _ => Ok(()),
    }
}

fn at_most(
    what: &'static str,
    got: Option<u64>,
    of: &'static str,
    most: Option<u64>,
) -> Result<(), Contradiction> {
    match (got, most) {
        (Some(got), Some(most)) if got > most => Err(Contradiction::Above { what, got, of, most }),
        _ => Ok(()),
    }
}

impl LogPolicy {
    /// A policy that declares nothing.
    pub const NOTHING: LogPolicy = LogPolicy {
        placement: None,
        cold: None,
        keep_age_ms: None,
        keep_bytes: None,
        segment_age_ms: None,
        segment_bytes: None,
    };

    /// Checks that its parts fit together and to a cluster with so many replicas of the database.
    ///
    /// # Errors
    /// The first contradiction, with what is allowed.
    pub fn check(&self, is_database: bool, replicas: usize) -> Result<(), Contradiction> {
        let keeps = self.keep_age_ms.is_some() || self.keep_bytes.is_some();
        if self.placement.is_none() && self.cold.is_none() && !keeps {
            return Err(Contradiction::Nothing);
        }
        if is_database && keeps {
            return Err(Contradiction::DatabaseTrims);
        }
        within("the age of what is kept, in milliseconds", self.keep_age_ms, AGES_MS)?;
        within("the size of what is kept, in bytes", self.keep_bytes, SIZES)?;
        within("the age of a segment, in milliseconds", self.segment_age_ms, AGES_MS)?;
        within("the size of a segment, in bytes", self.segment_bytes, SIZES)?;
        if let Some(cold) = &self.cold {
            if cold.age_ms.is_none() && cold.hot_bytes.is_none() {
                return Err(Contradiction::NeverCold);
            }
            within("the age of cold segments, in milliseconds", cold.age_ms, AGES_MS)?;
            within("the size of what is hot, in bytes", cold.hot_bytes, SIZES)?;
            let kept = "the age of what is kept";
            at_most("the age of cold segments, in milliseconds,", cold.age_ms, kept, self.keep_age_ms)?;
            let kept = "the size of what is kept";
            at_most("the size of what is hot, in bytes,", cold.hot_bytes, kept, self.keep_bytes)?;
        }
        let (age, size) = (self.least_age_ms(), self.least_bytes());
        at_most(
            "the age of a segment, in milliseconds,",
            self.segment_age_ms,
            "the least age of the policy",
            age,
        )?;
        at_most(
            "the size of a segment, in bytes,",
            self.segment_bytes,
            "the least size of the policy",
            size,
        )?;
        self.placement.iter().try_for_each(|placement| placement.check(replicas))?;
        match self.to_bytes().len() {
            length if length > MAX_POLICY_BYTES => Err(Contradiction::TooLong(length)),
            _ => Ok(()),
        }
    }

    fn least_age_ms(&self) -> Option<u64> {
        let cold = self.cold.as_ref().and_then(|cold| cold.age_ms);
        self.keep_age_ms.into_iter().chain(cold).min()
    }

    fn least_bytes(&self) -> Option<u64> {
        let cold = self.cold.as_ref().and_then(|cold| cold.hot_bytes);
        self.keep_bytes.into_iter().chain(cold).min()
    }

    /// Returns the age at which the active segment is sealed, in milliseconds: only sealed segments become cold or are trimmed.
    pub fn seal_age_ms(&self) -> Option<u64> {
        self.segment_age_ms.or_else(|| self.least_age_ms().map(|age| age / SEGMENTS_WITHIN))
    }

    /// Returns the size at which the active segment is sealed, in bytes.
    pub fn seal_bytes(&self) -> Option<u64> {
        self.segment_bytes.or_else(|| self.least_bytes().map(|bytes| bytes / SEGMENTS_WITHIN))
    }

    /// Whether it depends on how large segments are.
    pub fn weighs(&self) -> bool {
        self.seal_bytes().is_some()
    }
}

impl Placement {
    fn check(&self, replicas: usize) -> Result<(), Contradiction> {
        within("the wait before the log leaves, in milliseconds", Some(self.settle_ms), AGES_MS)?;
        within("the wait before it returns, in milliseconds", Some(self.return_ms), AGES_MS)?;
        within("the rest between two switches, in milliseconds", Some(self.rest_ms), AGES_MS)?;
        let least = self.least_replicas;
        if (least > 0) != self.elsewhere.is_some() {
            return Err(Contradiction::Elsewhere { least });
        }
        match usize::try_from(least) {
            Ok(wanted) if wanted <= replicas => Ok(()),
            _ => Err(Contradiction::TooFewReplicas { least, replicas }),
        }
    }
}

record! {
    /// All segments that stop at or below a position were sealed by this time, as a node saw it.
    pub struct Mark {
        /// The position.
        pub stop: LogPos,
        /// The time of the node, in milliseconds since the Unix epoch.
        pub at_ms: u64,
    }
}

choice! {
    /// What a policy does.
    pub enum Kind {
        /// Moves the active segment to the replicas, or away from them.
        0 = Place {},
        /// Gives up the oldest segments.
        1 = Trim {},
        /// Seals the active segment.
        2 = Seal {},
        /// Moves a sealed segment to the store.
        3 = Cool {},
    }
}

impl Kind {
    /// Returns the word for people.
    pub fn word(&self) -> &'static str {
        match self {
            Kind::Place {} => "place",
            Kind::Trim {} => "trim",
            Kind::Seal {} => "seal",
            Kind::Cool {} => "cool",
        }
    }
}

choice! {
    /// What became of an action.
    pub enum Outcome {
        /// It is under way, or its node died.
        0 = Begun {},
        /// It is done.
        1 = Done {},
        /// It did not happen.
        2 = Failed { why: String },
        /// Nobody knows whether it happened, or may still happen.
        3 = Unknown { why: String },
    }
}

record! {
    /// Something that a node did because of the policy.
    pub struct Action {
        /// When it began, in milliseconds since the Unix epoch.
        pub at_ms: u64,
        /// The node.
        pub node: NodeId,
        /// The life of the node.
        pub life: Incarnation,
        /// What kind of thing.
        pub kind: Kind,
        /// A description of the action, for people.
        pub what: String,
        /// The reason, for people.
        pub reason: String,
        /// How many attempts there were, with this one.
        pub attempts: u32,
        /// What became of it.
        pub outcome: Outcome,
    }
}

/// Returns the beginning of a text, as long as an action keeps it.
pub fn short(text: &str) -> String {
    text.chars().take(MAX_WORDS).collect()
}

record! {
    /// What the register of a log's policy holds.
    pub struct Book {
        /// The format of this record.
        pub format: u8,
        /// The policy.
        pub policy: LogPolicy,
        /// When segments were sealed, in the order of their stops.
        pub marks: Vec<Mark>,
        /// What was done, the newest last.
        pub actions: Vec<Action>,
    }
}

impl Book {
    /// Returns the record of a policy that was just declared.
    pub fn of(policy: LogPolicy) -> Self {
        Book { format: FORMAT, policy, marks: Vec::new(), actions: Vec::new() }
    }

    /// Reads the value of the register. None: no policy is declared.
    ///
    /// # Errors
    /// A newer program wrote it, or it is damaged.
    pub fn parse(value: Bytes) -> Result<Option<Book>, String> {
        match value.first() {
            None => Ok(None),
            Some(&FORMAT) => Book::from_bytes(value).map(Some).map_err(|e: DecodeError| e.to_string()),
            Some(other) => Err(format!("the policy has format {other}; this program reads {FORMAT}")),
        }
    }

    /// Returns by when the segments up to a position were sealed. None if no node has noted it.
    pub fn sealed_by(&self, stop: LogPos) -> Option<u64> {
        let at = self.marks.partition_point(|mark| mark.stop < stop);
        self.marks.get(at).map(|mark| mark.at_ms)
    }

    /// Notes that the segments up to a position are sealed now. Returns false if that was known. Times never go back: a segment then only
    /// seems younger than it is.
    pub fn mark(&mut self, stop: LogPos, now_ms: u64, trim: LogPos) -> bool {
        if self.sealed_by(stop).is_some() {
            return false;
        }
        self.marks.retain(|mark| mark.stop > trim);
        if self.marks.len() >= MAX_MARKS {
            // Whoever loses its mark has that of a later segment.
            let mut number = 0;
            self.marks.retain(|_| {
                number += 1;
                number % 2 == 0
            });
        }
        let at_ms = self.marks.last().map_or(now_ms, |last| last.at_ms.max(now_ms));
        self.marks.push(Mark { stop, at_ms });
        true
    }

    /// Returns the newest action of a kind.
    pub fn last(&self, kind: &Kind) -> Option<&Action> {
        self.actions.iter().rev().find(|action| action.kind == *kind)
    }

    /// Adds an action that begins. A repeat of what failed last takes its place, so that failures do not push out everything else.
    pub fn begin(&mut self, mut action: Action) {
        let again = self.actions.iter().rposition(|old| {
            old.kind == action.kind && old.what == action.what && old.outcome != Outcome::Done {}
        });
        if let Some(at) = again {
            action.attempts = self.actions.remove(at).attempts.saturating_add(1);
        }
        if self.actions.len() >= MAX_ACTIONS {
            self.actions.remove(0);
        }
        self.actions.push(action);
    }

    /// Notes what became of the action that this life of a node began at this time.
    pub fn end(&mut self, begun: &Action, outcome: Outcome) {
        let is = |old: &&mut Action| {
            (old.node, old.life, old.at_ms) == (begun.node, begun.life, begun.at_ms) && old.what == begun.what
        };
        if let Some(action) = self.actions.iter_mut().rev().find(is) {
            action.outcome = outcome;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(what: &str, at_ms: u64) -> Action {
        Action {
            at_ms,
            node: NodeId(1),
            life: Incarnation(1),
            kind: Kind::Cool {},
            what: what.to_owned(),
            reason: String::new(),
            attempts: 1,
            outcome: Outcome::Begun {},
        }
    }

    #[test]
    fn marks_are_bounded_and_a_segment_never_seems_older_than_it_is() {
        let mut book = Book::of(LogPolicy::NOTHING);
        let stops = 3 * MAX_MARKS as u64;
        for n in 1..=stops {
            assert!(book.mark(LogPos(n * 10), n * 100, LogPos(0)));
            assert!(!book.mark(LogPos(n * 10), n * 100 + 1, LogPos(0)), "it is noted once");
        }
        assert!(book.marks.len() <= MAX_MARKS);
        for n in 1..=stops {
            assert!(book.sealed_by(LogPos(n * 10)).is_some_and(|at| at >= n * 100), "segment {n}");
        }
        assert_eq!(book.sealed_by(LogPos(stops * 10 + 1)), None);
        // The clock went back, and segments were trimmed.
        assert!(book.mark(LogPos(stops * 10 + 5), 7, LogPos(stops * 10 - 5)));
        assert_eq!(book.marks.iter().map(|mark| mark.at_ms).collect::<Vec<_>>(), [stops * 100, stops * 100]);
        assert_eq!(Book::parse(book.to_bytes()), Ok(Some(book)));
        assert!(Book::parse(Bytes::from_static(&[FORMAT + 1])).is_err_and(|why| why.contains("format 2")));
        assert_eq!(Book::parse(Bytes::new()), Ok(None));
    }

    #[test]
    fn attempts_at_one_thing_are_one_action_and_old_actions_go() {
        let mut book = Book::of(LogPolicy::NOTHING);
        for n in 0..5 {
            let begun = action("a", n);
            book.begin(begun.clone());
            book.end(&begun, Outcome::Failed { why: "no".to_owned() });
        }
        assert_eq!(book.actions.iter().map(|a| a.attempts).collect::<Vec<_>>(), [5]);
        book.end(&action("a", 4), Outcome::Done {});
        book.begin(action("a", 5));
        assert_eq!(book.actions.len(), 2, "what is done stays");
        (0..100).for_each(|n| book.begin(action(&n.to_string(), n)));
        assert_eq!(book.actions.len(), MAX_ACTIONS);
        assert_eq!(book.last(&Kind::Cool {}).map(|a| a.what.as_str()), Some("99"));
        assert_eq!(book.last(&Kind::Trim {}), None);
    }

    #[test]
    fn contradictions_are_refused_with_what_is_allowed() {
        let to = WantedLoglet { kind: "store".to_owned(), places: BTreeMap::new(), options: BTreeMap::new() };
        let cold = |age_ms, hot_bytes| Some(Cold { to: to.clone(), age_ms, hot_bytes });
        let placement = |least_replicas, elsewhere| {
            Some(Placement {
                kind: "servers".to_owned(),
                least_replicas,
                elsewhere,
                settle_ms: 1_000,
                return_ms: 1_000,
                rest_ms: 1_000,
            })
        };
        let nothing = LogPolicy::NOTHING;
        let good = LogPolicy {
            placement: placement(3, Some(to.clone())),
            cold: cold(Some(2_000), Some(5_000)),
            keep_age_ms: Some(2_000),
            keep_bytes: Some(5_000),
            segment_age_ms: Some(2_000),
            segment_bytes: Some(5_000),
        };
        assert_eq!(good.check(false, 3), Ok(()));
        assert_eq!((good.seal_age_ms(), good.seal_bytes()), (Some(2_000), Some(5_000)));
        let bad = [
            (nothing.clone(), "declares nothing"),
            (LogPolicy { segment_age_ms: Some(5_000), ..nothing.clone() }, "declares nothing"),
            (LogPolicy { keep_age_ms: Some(10), ..good.clone() }, "is 10; allowed: 1000 to"),
            (LogPolicy { keep_bytes: Some(10), ..good.clone() }, "is 10; allowed: 1000 to"),
            (LogPolicy { cold: cold(None, None), ..good.clone() }, "which segments are cold"),
            (LogPolicy { cold: cold(Some(2_001), None), ..good.clone() }, "at most the age of what is kept"),
            (LogPolicy { cold: cold(None, Some(5_001)), ..good.clone() }, "at most the size of what is kept"),
            (LogPolicy { segment_age_ms: Some(2_001), ..good.clone() }, "at most the least age"),
            (LogPolicy { segment_bytes: Some(5_001), ..good.clone() }, "at most the least size"),
            (LogPolicy { placement: placement(1, None), ..good.clone() }, "1 or more with a loglet"),
            (LogPolicy { placement: placement(0, Some(to.clone())), ..good.clone() }, "0 without one"),
            (LogPolicy { placement: placement(4, Some(to.clone())), ..good.clone() }, "at most 3"),
        ];
        for (policy, words) in bad {
            let refused = policy.check(false, 3).map_err(|e| e.to_string());
            assert!(
                refused.as_ref().is_err_and(|e| e.contains(words) && e.contains("allowed")),
                "{refused:?}"
            );
        }
        assert_eq!(good.check(true, 3), Err(Contradiction::DatabaseTrims));
        let of_database = LogPolicy { keep_age_ms: None, keep_bytes: None, ..good };
        assert_eq!(of_database.check(true, 3), Ok(()));
        let defaults = LogPolicy { segment_age_ms: None, segment_bytes: None, ..of_database };
        assert_eq!((defaults.seal_age_ms(), defaults.seal_bytes()), (Some(500), Some(1_250)));
    }
}
