//! A server role that journals the records that it receives, reads them back, and forgets them on request.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use atoll_core::env::Refused;
use atoll_core::{
    Caller, Class, Decode, DecodeError, Effects, Encode, FetchError, ForRole, Frame, Loc, Lsn, Measure,
    Message, RecordKind, Role, RoleKind, Rpc, Space, Stored, Tick, message,
};
use bytes::Bytes;

pub const ECHO: RoleKind = RoleKind(200);

message! {
    /// Stores a record.
    pub struct Put = 9001 {
        /// The number of the record.
        pub n: u64,
    } + payload
    /// The contents of the record.
    blob
}

message! {
    /// The request is durable.
    pub struct PutOk = 9002 {
        /// The number in the request.
        pub n: u64,
    }
}

message! {
    /// Reads a record.
    pub struct Fetch = 9003 {
        /// The number of the record.
        pub n: u64,
    }
}

message! {
    /// The record that was read.
    pub struct Fetched = 9004 {} + payload
    /// Its contents.
    blob
}

message! {
    /// Asks for the state of the role.
    pub struct Probe = 9005 {}
}

message! {
    /// The state of the role.
    pub struct Seen = 9006 {
        /// The number of records that are not durable yet.
        pub staged: u64,
        /// Whether the journal is closed.
        pub closed: bool,
        /// All records below this number were forgotten.
        pub forgotten: u64,
        /// Whether the journal refuses entries at the moment.
        pub full: bool,
    }
}

message! {
    /// Forgets records.
    pub struct Forget = 9007 {
        /// All records below this number.
        pub below: u64,
    }
}

message! {
    /// Breaks an invariant.
    pub struct Panic = 9008 {}
}

message! {
    /// Reads a record over and over, with several concurrent reads, until [`Rest`].
    pub struct Reread = 9009 {
        /// The number of the record.
        pub n: u64,
        /// The number of concurrent reads.
        pub at_once: u64,
    }
}

message! {
    /// Ends the repeated reads.
    pub struct Rest = 9010 {}
}

message! {
    /// The result of the repeated reads.
    pub struct Rested = 9011 {
        /// The number of reads that were answered.
        pub reads: u64,
    }
}

macro_rules! asks {
    ($($request:ty => $reply:ty, $class:ident);*) => {$(
        impl Rpc for $request {
            type Reply = $reply;
            const CLASS: Class = Class::$class;
        }
        impl ForRole for $request {
            const ROLE: RoleKind = ECHO;
        }
    )*};
}
asks!(Put => PutOk, Data; Fetch => Fetched, Data; Probe => Seen, Data; Forget => PutOk, Data; Panic => PutOk, Control;
    Reread => PutOk, Data; Rest => Rested, Data);

#[derive(Default)]
pub struct Echo {
    kept: BTreeMap<u64, Loc>,
    staged: BTreeMap<Lsn, u64>,
    reads: BTreeMap<u64, Caller>,
    next_read: u64,
    forgotten: u64,
    closed: bool,
    /// The record that is read over and over, and the number of reads so far.
    again: Option<(Loc, u64)>,
}

/// The lowest tag of the repeated reads, whose results nobody waits for.
const AGAIN: u64 = 1 << 32;

impl Echo {
    fn forget(&mut self, below: u64) -> Vec<Loc> {
        self.forgotten = self.forgotten.max(below);
        let kept = self.kept.split_off(&below);
        std::mem::replace(&mut self.kept, kept).into_values().collect()
    }

    fn put(&mut self, from: Caller, put: Put, out: &mut Effects) {
        if out.space() != Space::Plenty {
            return out.reply(from, Refused { reason: "the disk is full".into() }, Lsn::NONE);
        }
        let lsn = out.journal(RecordKind::Entry, put.n.to_bytes(), put.blob);
        self.staged.insert(lsn, put.n);
        out.reply(from, PutOk { n: put.n }, lsn);
    }
}

impl Role for Echo {
    fn on_frame(&mut self, _now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        match frame.kind {
            Put::KIND => {
                let put = Put::from_frame(frame).expect("a put");
                self.put(from, put, out);
            }
            Fetch::KIND => {
                let n = Fetch::from_frame(frame).expect("a fetch").n;
                self.next_read += 1;
                self.reads.insert(self.next_read, from);
                out.fetch(self.next_read, vec![self.kept[&n]]);
            }
            Probe::KIND => {
                let (staged, forgotten) = (self.staged.len() as u64, self.forgotten);
                let full = out.space() != Space::Plenty;
                out.reply(from, Seen { staged, closed: self.closed, forgotten, full }, Lsn::NONE);
            }
            Forget::KIND => {
                let below = Forget::from_frame(frame).expect("a forget").below;
                let lsn = out.journal(RecordKind::Fact, below.to_bytes(), Bytes::new());
                let freed = self.forget(below);
                out.free(freed);
                out.reply(from, PutOk { n: below }, lsn);
            }
            Reread::KIND => {
                let Reread { n, at_once } = Reread::from_frame(frame).expect("a number");
                let loc = self.kept[&n];
                self.again = Some((loc, 0));
                (0..at_once).for_each(|i| out.fetch(AGAIN + i, vec![loc]));
                out.reply(from, PutOk { n }, Lsn::NONE);
            }
            Rest::KIND => {
                let reads = self.again.take().map_or(0, |(_, reads)| reads);
                out.reply(from, Rested { reads }, Lsn::NONE);
            }
            _ => panic!("as the test wants it"),
        }
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, mine: &[(Lsn, Loc)], out: &mut Effects) {
        for (lsn, loc) in mine {
            match self.staged.remove(lsn) {
                Some(n) if n >= self.forgotten => drop(self.kept.insert(n, *loc)),
                Some(_) => out.free([*loc]),
                None => {}
            }
        }
    }

    fn on_fetched(&mut self, _now: Tick, tag: u64, got: Result<Vec<Stored>, FetchError>, out: &mut Effects) {
        if tag >= AGAIN {
            if let Some((loc, reads)) = &mut self.again {
                *reads += 1;
                // Simulate some work with the record, so that the next result is ready by then.
                let began = Instant::now();
                while began.elapsed() < Duration::from_micros(50) {}
                out.fetch(tag, vec![*loc]);
            }
            return;
        }
        let Some(from) = self.reads.remove(&tag) else { return };
        match got {
            Ok(stored) => out.reply(from, Fetched { blob: stored[0].record.payload.clone() }, Lsn::NONE),
            Err(e) => out.reply(from, Refused { reason: e.reason }, Lsn::NONE),
        }
    }

    fn on_space(&mut self, _now: Tick, space: Space, _out: &mut Effects) {
        self.closed = space == Space::Closed;
    }

    fn on_compact(&mut self, _now: Tick, _segment: u64, _out: &mut Effects) {}

    fn checkpoint(&mut self, _max_bytes: usize) -> Option<Bytes> {
        Some(self.forgotten.to_bytes())
    }

    fn restore(&mut self, checkpoint: Bytes) -> Result<(), DecodeError> {
        self.forgotten = u64::from_bytes(checkpoint)?;
        Ok(())
    }

    fn recover(&mut self, stored: Stored) -> Result<(), DecodeError> {
        let n = u64::from_bytes(stored.record.head)?;
        match stored.record.kind {
            RecordKind::Entry => drop(self.kept.insert(n, stored.loc)),
            RecordKind::Fact => self.forgotten = self.forgotten.max(n),
        }
        Ok(())
    }

    fn recovered(&mut self) -> Vec<Loc> {
        self.forget(self.forgotten)
    }

    fn measure(&self, out: &mut Vec<Measure>) {
        out.push(Measure { name: "echo_records", label: None, value: self.kept.len() as f64 });
    }
}
