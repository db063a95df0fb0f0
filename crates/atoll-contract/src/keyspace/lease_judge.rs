//! Checks what clients of leases saw: fencing numbers rise with every grant, each belongs to one grant, and no lease expires early. It
//! knows nothing of how leases are made. Times are nanoseconds of one clock that is right.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::entry::OpId;

/// What was known of the leases on a key when a request was sent.
#[derive(Clone, Copy, Debug)]
pub struct LeaseAsked {
    /// The highest fencing number that was granted by then.
    highest: u64,
    sent: u64,
}

#[derive(Debug)]
struct Grant {
    op: OpId,
    /// When its holder knew of it.
    answered: u64,
    /// Until when nobody else may get the lease.
    until: u64,
    /// The holder has sent a request that gives it up.
    released: bool,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct LeaseJudge {
    /// The grants of each key, by fencing number.
    keys: BTreeMap<Bytes, BTreeMap<u64, Grant>>,
    failures: Vec<String>,
    answered: u64,
}

impl LeaseJudge {
    /// Returns a judge that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the violations found since the last call.
    pub fn take_failures(&mut self) -> Vec<String> {
        std::mem::take(&mut self.failures)
    }

    /// Returns how many grants, renewals and releases there were.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// A request for a lease, or for its renewal, is about to be sent for the first time.
    pub fn asks(&self, key: &Bytes, now: u64) -> LeaseAsked {
        let highest = self.keys.get(key).and_then(|grants| grants.last_key_value()).map_or(0, |(f, _)| *f);
        LeaseAsked { highest, sent: now }
    }

    /// A request was answered with a grant.
    pub fn granted(&mut self, key: &Bytes, asked: LeaseAsked, op: OpId, fencing: u64, for_ns: u64, now: u64) {
        self.answered += 1;
        if fencing <= asked.highest {
            let was = asked.highest;
            self.failures.push(format!("fencing: {fencing} was granted for {key:?} after {was}"));
        }
        let until = asked.sent + for_ns;
        let grants = self.keys.entry(key.clone()).or_default();
        let grant = Grant { op, answered: now, until, released: false };
        if let Some(other) = grants.insert(fencing, grant)
            && other.op != op
        {
            let both = format!("fencing: {fencing} was granted for {key:?} to {:?} and to {op:?}", other.op);
            self.failures.push(both);
        }
        self.check(key);
    }

    /// A renewal was answered as done.
    pub fn renewed(&mut self, key: &Bytes, asked: LeaseAsked, fencing: u64, for_ns: u64) {
        self.answered += 1;
        let Some(grant) = self.keys.get_mut(key).and_then(|grants| grants.get_mut(&fencing)) else {
            self.failures.push(format!("invented: {fencing} was renewed for {key:?}, and never granted"));
            return;
        };
        // A shorter renewal ends the lease earlier.
        grant.until = asked.sent + for_ns;
        self.check(key);
    }

    /// A request that gives up a lease, or renews it for a shorter time, is about to be sent.
    pub fn releases(&mut self, key: &Bytes, fencing: u64) {
        self.answered += 1;
        if let Some(grant) = self.keys.get_mut(key).and_then(|grants| grants.get_mut(&fencing)) {
            grant.released = true;
        }
    }

    /// A holder was told that it has lost its lease, or that nobody holds it.
    pub fn lost(&mut self, key: &Bytes, fencing: u64, now: u64) {
        let Some(grant) = self.keys.get(key).and_then(|grants| grants.get(&fencing)) else { return };
        if now < grant.until && !grant.released {
            let left = (grant.until - now) / 1_000_000;
            self.failures.push(format!("early: the lease {fencing} on {key:?} was lost {left} ms too early"));
        }
    }

    /// Nobody got a lease while it was held under a lower number.
    fn check(&mut self, key: &Bytes) {
        let Some(grants) = self.keys.get(key) else { return };
        for (fencing, grant) in grants {
            let next = grants.range(fencing + 1..).next();
            if let Some((other, next)) =
                next.filter(|(_, next)| next.answered < grant.until && !grant.released)
            {
                let left = (grant.until - next.answered) / 1_000_000;
                let words =
                    format!("early: {other} was granted for {key:?} {left} ms before {fencing} could expire");
                self.failures.push(words);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::ClientId;

    const SECOND: u64 = 1_000_000_000;

    fn failures(f: impl FnOnce(&mut LeaseJudge, &Bytes)) -> String {
        let mut judge = LeaseJudge::new();
        f(&mut judge, &Bytes::from_static(b"k"));
        judge.take_failures().join("; ")
    }

    fn grant(j: &mut LeaseJudge, k: &Bytes, n: u64, fencing: u64, (sent, now): (u64, u64)) {
        let asked = j.asks(k, sent * SECOND);
        j.granted(k, asked, OpId { client: ClientId(n), seq: 1 }, fencing, 10 * SECOND, now * SECOND);
    }

    #[test]
    fn a_correct_history_passes() {
        let found = failures(|j, k| {
            grant(j, k, 1, 3, (0, 1));
            let asked = j.asks(k, 5 * SECOND);
            j.renewed(k, asked, 3, 10 * SECOND);
            grant(j, k, 2, 7, (6, 16));
            j.lost(k, 3, 16 * SECOND);
            j.releases(k, 7);
            grant(j, k, 3, 8, (16, 17));
        });
        assert_eq!(found, "");
    }

    #[test]
    fn each_kind_of_violation_is_found() {
        let early = failures(|j, k| {
            grant(j, k, 1, 3, (0, 1));
            grant(j, k, 2, 4, (2, 9));
        });
        assert!(early.contains("early: 4"), "{early}");
        let renewed = failures(|j, k| {
            grant(j, k, 1, 3, (0, 1));
            let asked = j.asks(k, 5 * SECOND);
            grant(j, k, 2, 4, (6, 12));
            j.renewed(k, asked, 3, 10 * SECOND);
        });
        assert!(renewed.contains("early: 4"), "{renewed}");
        let order = failures(|j, k| {
            grant(j, k, 1, 3, (0, 1));
            j.releases(k, 3);
            grant(j, k, 2, 2, (2, 3));
        });
        assert!(order.contains("fencing: 2"), "{order}");
        let both = failures(|j, k| {
            let (a, b) = (j.asks(k, 0), j.asks(k, 0));
            j.granted(k, a, OpId { client: ClientId(1), seq: 1 }, 3, 0, SECOND);
            j.granted(k, b, OpId { client: ClientId(2), seq: 1 }, 3, 0, SECOND);
        });
        assert!(both.contains("and to"), "{both}");
        let lost = failures(|j, k| {
            grant(j, k, 1, 3, (0, 1));
            j.lost(k, 3, 2 * SECOND);
        });
        assert!(lost.contains("too early"), "{lost}");
    }
}
