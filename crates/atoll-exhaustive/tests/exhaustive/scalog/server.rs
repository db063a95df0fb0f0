//! A storage server of the model (scalog.md §2, §6).

use super::log::Moment;

/// There is one client in the model, and one record of somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    Ours,
    Others,
}

/// An append of our client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The newest view that the client knows.
    pub view: u64,
    /// Its record has no number below this one.
    pub floor: u64,
    /// Whether the client has chosen the shard itself.
    pub chosen: bool,
}

/// What became of an append of our client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It has this number.
    Ordered(u64),
    /// Its shard has ended without it: it never gets a number.
    Never,
    /// The client's records go to another server.
    Moved,
    /// The server has not applied the client's view.
    Behind,
    /// The client has moved here, and its record may be in its former shard.
    Forgotten,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Those on the disk come first; the others are on their way.
    pub records: Vec<Record>,
    pub synced: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub shard: u32,
    /// The segment of which it is the primary.
    pub me: usize,
    pub segments: Vec<Segment>,
    /// How many entries of the ordering log it has applied.
    pub applied: usize,
    /// Those that it has skipped (S7).
    pub skipped: Vec<usize>,
}

/// Bugs of the server that can be planted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flaws {
    /// S15: takes a record of a client that has moved, although its former shard may have it.
    pub takes_moved: bool,
    /// G7: says "never" as soon as it hears that its shard is to end.
    pub never_too_early: bool,
}

impl Server {
    pub fn new(shard: u32, me: usize, segments: usize) -> Self {
        let segments = vec![Segment::default(); segments];
        Server { shard, me, segments, applied: 0, skipped: Vec::new() }
    }

    /// Takes an append. Returns the place of the record, whether it was there before or not. `there` is what this server has applied.
    pub fn append(
        &mut self,
        there: &Moment,
        client: u64,
        request: Request,
        flaws: Flaws,
    ) -> Result<u64, Answer> {
        if request.view > there.order.view() {
            return Err(Answer::Behind);
        }
        let home =
            there.order.home(client).filter(|home| (home.shard, home.segment) == (self.shard, self.me));
        let since = match home {
            _ if request.chosen && there.order.shards()[&self.shard].is_live() => 0,
            Some(home) if !request.chosen => home.since,
            _ => return Err(Answer::Moved),
        };
        let own = &mut self.segments[self.me];
        if let Some(place) = own.records.iter().position(|record| *record == Record::Ours) {
            return Ok(place as u64);
        }
        if request.floor < since && !flaws.takes_moved {
            return Err(Answer::Forgotten);
        }
        own.records.push(Record::Ours);
        Ok(own.records.len() as u64 - 1)
    }

    /// Answers an append that waits for the number of the record at this place, if that is possible.
    pub fn settle(&self, there: &Moment, place: u64, flaws: Flaws) -> Option<Answer> {
        let spot = (self.shard, self.me, place);
        if let Some((number, _)) = there.numbered.iter().find(|(_, at)| *at == spot) {
            return Some(Answer::Ordered(*number));
        }
        let shard = &there.order.shards()[&self.shard];
        let never = shard.ended.is_some() || (flaws.never_too_early && shard.leaving.is_some());
        never.then_some(Answer::Never)
    }

    /// Returns how many records of each segment are on the disk; with those on their way to it, if `unsynced`.
    pub fn counts(&self, unsynced: bool) -> Vec<u64> {
        let count = |one: &Segment| if unsynced { one.records.len() } else { one.synced };
        self.segments.iter().map(|one| count(one) as u64).collect()
    }

    pub fn is_synced(&self) -> bool {
        self.segments.iter().all(|one| one.synced == one.records.len())
    }

    pub fn sync(&mut self) {
        for one in &mut self.segments {
            one.synced = one.records.len();
        }
    }

    /// Restarts: what was not on the disk is gone, and the ordering log is applied again.
    pub fn crash(&mut self) {
        for one in &mut self.segments {
            one.records.truncate(one.synced);
        }
        self.applied = 0;
        self.skipped.clear();
    }
}
