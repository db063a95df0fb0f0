//! Surgery on the log, as the chain keeps it (virtuallog §7): which entry is held, which ones an operator has excised or replaced, and
//! the record of who did it and why.
//!
//! A surgery has two steps, each a conditional write of the chain. First the chain gets a [`Hold`]: whoever has read that chain reads
//! nothing at the position. Once every learner is known not to have passed the position, and to have read that chain or a later one
//! before it does, the hold becomes a [`Patch`] and a [`Record`]. So no learner takes the old entry while another takes the new one.
//! At most one surgery is under way at a time. A trim that passes a position drops its patch, and keeps the record.
//!
//! Byte form: `hold Option<(patch, record)> | patches [Patch] | records [Record]`, little endian, lists with a u32 length. A patch is
//! `position u64 | id u128 | replacement Option<bytes>`.

use bytes::{Bytes, BytesMut};
use twox_hash::XxHash3_128;

use atoll_core::{Decode, DecodeError, Encode, NodeId, Reader, record};

use atoll_contract::entry::Entry;
use atoll_contract::position::LogPos;
use atoll_contract::register::Nonce;

/// Most patches of one chain. A trim drops those that it passes.
pub const MAX_PATCHES: usize = 256;
/// Most bytes of all replacements of one chain together. An entry can still be excised when there is no room for a replacement.
pub const MAX_REPLACEMENTS_BYTES: usize = 4 * MAX_REPLACEMENT_BYTES;
/// Most records of one chain. The oldest ones leave.
pub const MAX_RECORDS: usize = 32;
/// Longest replacement of an entry, in bytes. The chain must stay short, because every change of it is a write of the whole.
pub const MAX_REPLACEMENT_BYTES: usize = 16 * 1024;
/// Longest name of an operator, in bytes.
pub const MAX_OPERATOR_BYTES: usize = 128;
/// Longest reason, in bytes.
pub const MAX_REASON_BYTES: usize = 512;

/// Why the surgery of a chain is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SurgeryFault {
    /// Too many patches.
    #[error("it has {0} patches; at most {MAX_PATCHES} are allowed; trim the log past the oldest")]
    Patches(usize),
    /// Too many records.
    #[error("it has {0} records; at most {MAX_RECORDS} are allowed")]
    Records(usize),
    /// A replacement is too long.
    #[error("the replacement has {0} bytes; at most {MAX_REPLACEMENT_BYTES} are allowed")]
    Replacement(usize),
    /// All replacements together are too long.
    #[error(
        "the replacements have {0} bytes together; at most {MAX_REPLACEMENTS_BYTES} are allowed; excise the entry, or wait for a trim"
    )]
    Replacements(usize),
    /// The name of the operator is too long.
    #[error("the name of the operator has {0} bytes; at most {MAX_OPERATOR_BYTES} are allowed")]
    Operator(usize),
    /// There is no reason, or it is too long.
    #[error("the reason has {0} bytes; 1 to {MAX_REASON_BYTES} are allowed")]
    Reason(usize),
    /// The words of the operator have characters that a terminal would obey.
    #[error("the reason and the name of the operator may have no control characters")]
    Control,
    /// Patches are not in the order of their positions.
    #[error("its patches are not in the order of their positions")]
    Order,
    /// A position is below the trim position, or in the active segment.
    #[error("position {0} is trimmed, or in the active segment")]
    Position(LogPos),
    /// A hold and its record are of different positions.
    #[error("the hold at {0} has a record of another position")]
    Mismatch(LogPos),
}

/// A change of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// The position of the entry.
    pub at: LogPos,
    /// The surgery that made the change. Never reused.
    pub id: Nonce,
    /// The payload that readers get instead of the stored one. None: the entry is excised, and readers get a pad.
    pub with: Option<Bytes>,
}

record! {
    /// What was done to an entry, by whom, and why.
    pub struct Record {
        /// The position of the entry.
        pub at: LogPos,
        /// When it was decided, in milliseconds since the Unix epoch, by the clock of the node that did it.
        pub time_ms: u64,
        /// The node that did it.
        pub node: NodeId,
        /// Who asked for it.
        pub operator: String,
        /// Why.
        pub reason: String,
        /// The hash of the payload that was there before.
        pub old_hash: u128,
        /// Its length in bytes.
        pub old_bytes: u64,
        /// The hash of the replacement; None if the entry was excised.
        pub new_hash: Option<u128>,
    }
}

/// A surgery under way: nobody reads the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// What the surgery will do.
    pub patch: Patch,
    /// What its record will be.
    pub record: Record,
}

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surgery {
    hold: Option<Hold>,
    /// In the order of their positions.
    patches: Vec<Patch>,
    /// In the order of the surgeries.
    records: Vec<Record>,
}

/// Returns the hash of a payload, as records show it.
pub fn hash_of(payload: &[u8]) -> u128 {
    XxHash3_128::oneshot(payload)
}

impl Patch {
    /// Returns the entry that readers get in place of this one.
    pub fn applied_to(&self, entry: &Entry) -> Entry {
        match &self.with {
            Some(payload) => Entry { op: entry.op, payload: payload.clone() },
            None => Entry::pad(),
        }
    }
}

impl Surgery {
    /// Whether nothing was ever done.
    pub fn is_empty(&self) -> bool {
        self.hold.is_none() && self.patches.is_empty() && self.records.is_empty()
    }

    /// Returns the surgery that is under way.
    pub fn hold(&self) -> Option<&Hold> {
        self.hold.as_ref()
    }

    /// Returns the position that nobody may read now.
    pub fn held(&self) -> Option<LogPos> {
        self.hold.as_ref().map(|hold| hold.patch.at)
    }

    /// Returns the changes of entries that are in force, in the order of their positions.
    pub fn patches(&self) -> &[Patch] {
        &self.patches
    }

    /// Returns the change of an entry, if it has one.
    pub fn patch(&self, at: LogPos) -> Option<&Patch> {
        self.patches.binary_search_by_key(&at, |p| p.at).ok().map(|i| &self.patches[i])
    }

    /// Returns the records, the oldest first.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Begins a surgery. It takes the place of one that is under way.
    pub fn begin(&mut self, hold: Hold) {
        self.hold = Some(hold);
    }

    /// Ends the surgery with this id: its change takes effect. Returns false if that surgery is not under way.
    pub fn finish(&mut self, id: Nonce) -> bool {
        let Some(Hold { patch, record }) = self.hold.take_if(|hold| hold.patch.id == id) else {
            return false;
        };
        match self.patches.binary_search_by_key(&patch.at, |p| p.at) {
            Ok(i) => self.patches[i] = patch,
            Err(i) => self.patches.insert(i, patch),
        }
        self.records.push(record);
        let more = self.records.len().saturating_sub(MAX_RECORDS);
        self.records.drain(..more);
        true
    }

    /// Gives up the surgery with this id: the entry stays as it was. Returns false if that surgery is not under way.
    pub fn release(&mut self, id: Nonce) -> bool {
        self.hold.take_if(|hold| hold.patch.id == id).is_some()
    }

    /// Drops the hold and the patches of positions that nobody can read any more.
    pub(crate) fn drop_below(&mut self, trim: LogPos) {
        self.hold.take_if(|hold| hold.patch.at < trim);
        self.patches.retain(|p| p.at >= trim);
    }

    /// Gives up the surgery that is under way, and drops the patches of positions that a rescue has given up.
    pub(crate) fn drop_from(&mut self, end: LogPos) {
        self.hold = None;
        self.patches.retain(|p| p.at < end);
    }

    /// Checks the limits, and that every change is of an entry that is readable and in a sealed segment.
    pub(crate) fn check(&self, trim: LogPos, active: LogPos) -> Result<(), SurgeryFault> {
        // The hold will become one more patch, unless its position has one.
        let more = self.held().is_some_and(|at| self.patch(at).is_none());
        let count = self.patches.len() + usize::from(more);
        if count > MAX_PATCHES {
            return Err(SurgeryFault::Patches(count));
        }
        if self.records.len() > MAX_RECORDS {
            return Err(SurgeryFault::Records(self.records.len()));
        }
        if !self.patches.is_sorted_by(|a, b| a.at < b.at) {
            return Err(SurgeryFault::Order);
        }
        for patch in self.patches.iter().chain(self.hold.iter().map(|hold| &hold.patch)) {
            if patch.at < trim || patch.at >= active {
                return Err(SurgeryFault::Position(patch.at));
            }
            let bytes = patch.with.as_ref().map_or(0, Bytes::len);
            if bytes > MAX_REPLACEMENT_BYTES {
                return Err(SurgeryFault::Replacement(bytes));
            }
        }
        let bytes_of = |patch: &Patch| patch.with.as_ref().map_or(0, Bytes::len);
        let kept = self.patches.iter().filter(|patch| Some(patch.at) != self.held());
        let bytes = kept.chain(self.hold.iter().map(|hold| &hold.patch)).map(bytes_of).sum();
        if bytes > MAX_REPLACEMENTS_BYTES {
            return Err(SurgeryFault::Replacements(bytes));
        }
        if let Some(hold) = self.hold.as_ref().filter(|hold| hold.patch.at != hold.record.at) {
            return Err(SurgeryFault::Mismatch(hold.patch.at));
        }
        self.records.iter().chain(self.hold.iter().map(|hold| &hold.record)).try_for_each(Record::check)
    }
}

impl Record {
    fn check(&self) -> Result<(), SurgeryFault> {
        check_words(&self.operator, &self.reason)
    }
}

/// Checks the words of an operator.
pub(crate) fn check_words(operator: &str, reason: &str) -> Result<(), SurgeryFault> {
    if operator.len() > MAX_OPERATOR_BYTES {
        return Err(SurgeryFault::Operator(operator.len()));
    }
    if reason.trim().is_empty() || reason.len() > MAX_REASON_BYTES {
        return Err(SurgeryFault::Reason(if reason.trim().is_empty() { 0 } else { reason.len() }));
    }
    if operator.chars().chain(reason.chars()).any(char::is_control) {
        return Err(SurgeryFault::Control);
    }
    Ok(())
}

impl Encode for Patch {
    fn encode(&self, out: &mut BytesMut) {
        self.at.encode(out);
        self.id.0.encode(out);
        self.with.encode(out);
    }
}

impl Decode for Patch {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let (at, id) = (LogPos::decode(from)?, Nonce(u128::decode(from)?));
        // Copy the bytes: a slice would pin the whole message that contained the chain (X13).
        let with = Option::<Bytes>::decode(from)?.map(|bytes| Bytes::copy_from_slice(&bytes));
        Ok(Patch { at, id, with })
    }
}

impl Encode for Hold {
    fn encode(&self, out: &mut BytesMut) {
        self.patch.encode(out);
        self.record.encode(out);
    }
}

impl Decode for Hold {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Hold { patch: Decode::decode(from)?, record: Decode::decode(from)? })
    }
}

impl Encode for Surgery {
    fn encode(&self, out: &mut BytesMut) {
        self.hold.encode(out);
        self.patches.encode(out);
        self.records.encode(out);
    }
}

impl Decode for Surgery {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let (hold, patches) = (Decode::decode(from)?, Decode::decode(from)?);
        Ok(Surgery { hold, patches, records: Decode::decode(from)? })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_contract::entry::{ClientId, OpId};

    fn hold(at: u64, id: u128, with: Option<&'static [u8]>) -> Hold {
        let record = Record {
            at: LogPos(at),
            time_ms: 7,
            node: NodeId(1),
            operator: "ann".into(),
            reason: "it stops every replica".into(),
            old_hash: hash_of(b"old"),
            old_bytes: 3,
            new_hash: with.map(hash_of),
        };
        Hold { patch: Patch { at: LogPos(at), id: Nonce(id), with: with.map(Bytes::from_static) }, record }
    }

    fn done(all: &[(u64, u128)]) -> Surgery {
        let mut surgery = Surgery::default();
        for (at, id) in all {
            surgery.begin(hold(*at, *id, Some(b"new")));
            assert!(surgery.finish(Nonce(*id)));
        }
        surgery
    }

    #[test]
    fn only_the_surgery_that_is_under_way_ends() {
        let mut surgery = Surgery::default();
        surgery.begin(hold(5, 1, None));
        // Another operator has taken it over.
        surgery.begin(hold(5, 2, Some(b"new")));
        assert!(!surgery.finish(Nonce(1)) && !surgery.release(Nonce(1)));
        assert_eq!((surgery.held(), surgery.patch(LogPos(5))), (Some(LogPos(5)), None));
        assert!(surgery.finish(Nonce(2)) && !surgery.finish(Nonce(2)));
        assert_eq!(surgery.held(), None);
        assert_eq!(surgery.patch(LogPos(5)).unwrap().with, Some(Bytes::from_static(b"new")));
        assert_eq!(surgery.records().len(), 1);
        surgery.begin(hold(6, 3, None));
        assert!(surgery.release(Nonce(3)));
        assert_eq!((surgery.held(), surgery.patches().len(), surgery.records().len()), (None, 1, 1));
    }

    #[test]
    fn a_second_surgery_of_an_entry_replaces_the_first_and_both_are_on_record() {
        let surgery = done(&[(5, 1), (5, 2), (3, 3)]);
        let ids: Vec<_> = surgery.patches().iter().map(|p| (p.at.0, p.id.0)).collect();
        assert_eq!(ids, [(3, 3), (5, 2)]);
        assert_eq!(surgery.records().iter().map(|r| r.at.0).collect::<Vec<_>>(), [5, 5, 3]);
    }

    #[test]
    fn a_trim_drops_what_nobody_can_read_and_keeps_the_records() {
        let mut surgery = done(&[(3, 1), (5, 2)]);
        surgery.begin(hold(4, 3, None));
        surgery.drop_below(LogPos(5));
        assert_eq!((surgery.held(), surgery.patches().len(), surgery.records().len()), (None, 1, 2));
        assert!(surgery.patch(LogPos(5)).is_some());
    }

    #[test]
    fn limits_are_checked_before_anything_is_held() {
        let end = LogPos(MAX_PATCHES as u64 + 9);
        let most: Vec<_> = (0..MAX_PATCHES as u64).map(|n| (n, u128::from(n))).collect();
        let mut surgery = done(&most);
        assert_eq!(surgery.check(LogPos(0), end), Ok(()));
        surgery.begin(hold(MAX_PATCHES as u64, 999, None));
        assert_eq!(surgery.check(LogPos(0), end), Err(SurgeryFault::Patches(MAX_PATCHES + 1)));
        surgery.begin(hold(3, 999, None));
        assert_eq!(surgery.check(LogPos(0), end), Ok(()), "it replaces a patch");
        assert_eq!(surgery.check(LogPos(0), LogPos(3)), Err(SurgeryFault::Position(LogPos(3))));
        assert_eq!(surgery.check(LogPos(1), end), Err(SurgeryFault::Position(LogPos(0))));
        let long = vec![0; MAX_REPLACEMENT_BYTES + 1];
        let mut too_long = hold(3, 99, None);
        too_long.patch.with = Some(long.into());
        surgery.begin(too_long);
        let fault = SurgeryFault::Replacement(MAX_REPLACEMENT_BYTES + 1);
        assert_eq!(surgery.check(LogPos(0), end), Err(fault));
        let mut many = done(&[]);
        for n in 0..5 {
            let mut long = hold(n, u128::from(n), None);
            long.patch.with = Some(vec![0; MAX_REPLACEMENT_BYTES].into());
            many.begin(long);
            assert_eq!(many.check(LogPos(0), end).is_ok(), n < 4, "{n}");
            many.finish(Nonce(u128::from(n)));
        }
        for reason in ["", "  ", "a\u{1b}[2J", &"x".repeat(MAX_REASON_BYTES + 1)] {
            assert!(check_words("ann", reason).is_err(), "{reason:?}");
        }
        assert!(check_words(&"x".repeat(MAX_OPERATOR_BYTES + 1), "why").is_err());
    }

    #[test]
    fn records_are_bounded() {
        let all: Vec<_> = (0..100).map(|n| (5, n)).collect();
        let surgery = done(&all);
        assert_eq!((surgery.patches().len(), surgery.records().len()), (1, MAX_RECORDS));
        assert_eq!(surgery.check(LogPos(0), LogPos(100)), Ok(()));
    }

    #[test]
    fn a_replacement_keeps_the_name_and_an_excised_entry_is_a_pad() {
        let op = OpId { client: ClientId(4), seq: 2 };
        let entry = Entry { op, payload: Bytes::from_static(b"old") };
        let replaced = hold(5, 1, Some(b"new")).patch.applied_to(&entry);
        assert_eq!(replaced, Entry { op, payload: Bytes::from_static(b"new") });
        assert!(hold(5, 1, None).patch.applied_to(&entry).is_pad());
    }

    #[test]
    fn it_reads_back_and_no_cut_does() {
        let mut surgery = done(&[(3, 1), (5, 2)]);
        surgery.begin(hold(4, 3, None));
        let bytes = surgery.to_bytes();
        assert_eq!(Surgery::from_bytes(bytes.clone()), Ok(surgery));
        for n in 0..bytes.len() {
            assert!(Surgery::from_bytes(bytes.slice(..n)).is_err(), "cut at {n}");
        }
    }
}
