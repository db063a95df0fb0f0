//! The acceptor's side of a hand-over (§9a), and its recovery. The documentation of [`super`] contains the argument.

use std::ops::Bound;

use atoll_contract::register::MAX_NAME_BYTES;
use atoll_core::testing::hit;
use atoll_core::{Decode, DecodeError, Effects, Lsn, Stored};
use bytes::Bytes;

use super::acceptor::{Acceptor, Group};
use super::ballot::Ballot;
use super::group::GroupConfig;
use super::message::{DoneReply, Fact, Fence, Install, List, ListAnswer, ListReply, Open, Reject};

/// Maximum number of names in one page of a list. They take at most 256 KiB, well within the limit of a frame's head.
pub const NAMES_PER_PAGE: usize = 1000;

impl Acceptor {
    /// Fences this acceptor: shuts out the registers that it never voted for (rmw-H2). Durable before it is answered; idempotent.
    pub fn fence(&mut self, m: &Fence, out: &mut Effects) -> (DoneReply, Lsn) {
        self.settle_initial();
        let result = self.try_fence(m, out);
        Self::done(result, self.newest_group_lsn())
    }

    fn try_fence(&mut self, m: &Fence, out: &mut Effects) -> Result<Lsn, Reject> {
        let group = self.route(&m.to)?;
        match &group.fenced {
            Some(next) if *next == m.next => return Ok(group.lsn),
            // Two successors cannot both have been chosen in the root register.
            Some(_) => return Err(Reject::Invalid {}),
            None if m.next.epoch != m.to.epoch + 1 => return Err(Reject::Invalid {}),
            None => {}
        }
        let fact = Fact::Fenced { epoch: m.to.epoch, next: m.next.clone() };
        let lsn = self.journal(&fact, Bytes::new(), out);
        self.fenced(m.to.epoch, m.next.clone(), lsn);
        Ok(lsn)
    }

    fn fenced(&mut self, epoch: u64, next: GroupConfig, lsn: Lsn) {
        if let Some(group) = self.groups.get_mut(&epoch) {
            group.fenced = Some(next);
            group.lsn = group.lsn.max(lsn);
        }
    }

    /// Returns one page of the registers that this acceptor voted for.
    pub fn list(&mut self, m: &List, _out: &mut Effects) -> (ListReply, Lsn) {
        self.settle_initial();
        let (answer, reveals) =
            self.try_list(m).unwrap_or_else(|why| (ListAnswer::Rejected { why }, self.newest_group_lsn()));
        (ListReply { answer }, reveals)
    }

    fn try_list(&mut self, m: &List) -> Result<(ListAnswer, Lsn), Reject> {
        let group = self.route(&m.to)?;
        match (&group.fenced, m.moving) {
            // Registers that were created since the fence may exist only in the next group.
            (Some(next), false) => return Err(Reject::Fenced { next: next.clone() }),
            // Before the fence, the list is not final: a mover that relied on it would lose registers created later.
            (None, true) => return Err(Reject::Invalid {}),
            _ => {}
        }
        let from = match &m.after {
            Some(after) if *after >= m.prefix => Bound::Excluded(after.clone()),
            _ => Bound::Included(m.prefix.clone()),
        };
        let mut names = Vec::new();
        let mut more = false;
        let mut reveals = group.lsn;
        let voted = group.slots.range((from, Bound::Unbounded)).take_while(|(n, _)| n.starts_with(&m.prefix));
        for (name, slot) in voted.filter(|(_, slot)| slot.voted != Ballot::ZERO) {
            if names.len() == NAMES_PER_PAGE {
                more = true;
                break;
            }
            names.push((name.clone(), slot.voted));
            reveals = reveals.max(slot.voted_lsn);
        }
        Ok((ListAnswer::Names { names, more }, reveals))
    }

    /// Checks that the group of a mover's message has not ended.
    fn check_next(&self, group: &GroupConfig) -> Result<(), Reject> {
        match &self.serving {
            Some(serving) if serving.epoch > group.epoch => Err(Reject::Moved { to: serving.clone() }),
            _ => Ok(()),
        }
    }

    /// Installs a register in a group that is being filled (rmw-H5). Durable before it is answered. Idempotent, because the content is
    /// what was chosen in the old group.
    pub fn install(&mut self, m: &Install, out: &mut Effects) -> (DoneReply, Lsn) {
        self.settle_initial();
        let result = self.try_install(m, out);
        Self::done(result, self.newest_group_lsn())
    }

    fn try_install(&mut self, m: &Install, out: &mut Effects) -> Result<Lsn, Reject> {
        self.check_identity(m.storage)?;
        self.check_next(&m.group)?;
        if m.name.len() > MAX_NAME_BYTES || !m.group.contains(self.node, self.storage) {
            return Err(Reject::Invalid {});
        }
        match self.groups.get(&m.group.epoch) {
            Some(group) if group.config != m.group => {
                return Err(Reject::WrongEpoch { known: self.serving.clone() });
            }
            // Another mover has already completed the group: a late copy must not be mixed in.
            Some(group) if group.open => {
                hit("rmw.acceptor.late_install");
                return Err(Reject::Moved { to: m.group.clone() });
            }
            Some(group) => {
                if let Some(slot) = group.slots.get(&m.name) {
                    return Ok(slot.lsn.max(group.lsn));
                }
            }
            None => {}
        }
        let state = Bytes::copy_from_slice(&m.state);
        let fact = Fact::Installed { group: m.group.clone(), name: m.name.clone() };
        let lsn = self.journal(&fact, state.clone(), out);
        self.installed(m.group.clone(), &m.name, state, lsn);
        Ok(lsn)
    }

    fn installed(&mut self, config: GroupConfig, name: &str, state: Bytes, lsn: Lsn) {
        let epoch = config.epoch;
        let group = self.groups.entry(epoch).or_insert_with(|| Group::new(config, false));
        // The fact contains the group.
        group.journaled = true;
        self.voted(epoch, name, (Ballot::GENESIS, Ballot::GENESIS), false, state, lsn);
    }

    /// Opens a group: it serves from now on (rmw-H6). All earlier groups have ended, and only their successor is remembered. Durable
    /// before it is answered; idempotent. Sent only once every register of the old group is durable on a majority of this one.
    pub fn open(&mut self, m: &Open, out: &mut Effects) -> (DoneReply, Lsn) {
        self.settle_initial();
        let result = self.try_open(m, out);
        Self::done(result, self.newest_group_lsn())
    }

    fn try_open(&mut self, m: &Open, out: &mut Effects) -> Result<Lsn, Reject> {
        self.check_identity(m.storage)?;
        self.check_next(&m.group)?;
        if self.serving.as_ref().is_some_and(|s| s.epoch == m.group.epoch) {
            let same = self.serving.as_ref() == Some(&m.group);
            return if same {
                Ok(self.serving_lsn)
            } else {
                Err(Reject::WrongEpoch { known: self.serving.clone() })
            };
        }
        let lsn = self.journal(&Fact::Opened { group: m.group.clone() }, Bytes::new(), out);
        self.opened(m.group.clone(), lsn);
        Ok(lsn)
    }

    fn opened(&mut self, config: GroupConfig, lsn: Lsn) {
        let epoch = config.epoch;
        self.groups.retain(|e, _| *e >= epoch);
        if config.contains(self.node, self.storage) {
            let group = self.groups.entry(epoch).or_insert_with(|| Group::new(config.clone(), true));
            group.open = true;
            group.journaled = true;
            group.lsn = group.lsn.max(lsn);
        }
        self.known.set(&config);
        self.serving = Some(config);
        self.serving_lsn = lsn;
    }

    /// Restores the first group from the journal.
    fn first(&mut self, config: GroupConfig) {
        let newer = self.serving.as_ref().is_some_and(|s| s.epoch >= config.epoch);
        if newer {
            return;
        }
        self.known.set(&config);
        self.serving = Some(config.clone());
        let mut group = Group::new(config, true);
        group.journaled = true;
        self.groups.insert(group.config.epoch, group);
    }

    /// Replays one fact from the journal. Facts of groups that have since ended change nothing.
    pub(super) fn replay(&mut self, stored: Stored) -> Result<(), DecodeError> {
        let payload = stored.record.payload;
        let over = |a: &Acceptor, epoch: u64| a.serving.as_ref().is_some_and(|s| s.epoch > epoch);
        match Fact::from_bytes(stored.record.head)? {
            Fact::First { group } => self.first(group),
            Fact::Promised { epoch, name, ballot } if !over(self, epoch) => {
                self.promised(epoch, &name, ballot, Lsn::NONE);
            }
            Fact::Voted { epoch, name, ballot, last } if !over(self, epoch) => {
                self.voted(epoch, &name, (ballot, ballot.next()), last, payload, Lsn::NONE);
            }
            Fact::Fenced { epoch, next } if !over(self, epoch) => self.fenced(epoch, next, Lsn::NONE),
            Fact::Installed { group, name } if !over(self, group.epoch) => {
                self.installed(group, &name, payload, Lsn::NONE);
            }
            Fact::Opened { group } if !over(self, group.epoch) => self.opened(group, Lsn::NONE),
            _ => {}
        }
        Ok(())
    }
}
