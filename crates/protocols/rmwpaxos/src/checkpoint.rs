//! The checkpoint of an acceptor: all of its registers, encoded in steps, and the restore (§8).

use std::ops::Bound;

use atoll_core::codec::OpenList;
use atoll_core::testing::hit;
use atoll_core::{Decode, DecodeError, Encode, Lsn};
use bytes::{Bytes, BytesMut};

use super::acceptor::{Acceptor, Group};
use super::message::{AcceptorImage, SlotImage};

/// Format of the image of a checkpoint.
const IMAGE_FORMAT: u16 = 1;
/// Initial capacity for the part of an image besides names and states of registers; the buffer grows if needed.
const USUAL_SLOT_BYTES: usize = 60;

/// An [`AcceptorImage`] under construction, built in steps because the registers may take tens of megabytes.
#[derive(Debug)]
pub(super) struct Walk {
    /// The groups as they were at the first step. Registers may be newer. If a group was added or has changed since, the image starts
    /// again.
    shape: Shape,
    out: BytesMut,
    groups: OpenList,
    /// The current group, the list of its registers, and the last register in it.
    slots: Option<(u64, OpenList, Option<String>)>,
    /// The last group that is complete in the image.
    after: Option<u64>,
}

/// The serving epoch, and for each group its epoch, whether it is open, and the epoch of its successor.
type Shape = (Option<u64>, Vec<(u64, bool, Option<u64>)>);

impl Walk {
    /// Returns the range of the epochs whose groups are not completely in the image.
    fn rest(&self) -> (Bound<u64>, Bound<u64>) {
        (self.after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
    }
}

impl Acceptor {
    fn shape(&self) -> Shape {
        let group = |(epoch, g): (&u64, &Group)| (*epoch, g.open, g.fenced.as_ref().map(|next| next.epoch));
        (self.serving.as_ref().map(|g| g.epoch), self.groups.iter().map(group).collect())
    }

    fn begin_walk(&self, shape: Shape) -> Walk {
        let slots: usize = self.groups.values().map(|g| g.slots.len()).sum();
        let mut out = BytesMut::with_capacity(self.held_bytes() + USUAL_SLOT_BYTES * slots + 64);
        IMAGE_FORMAT.encode(&mut out);
        self.serving.encode(&mut out);
        let groups = OpenList::begin(&mut out);
        Walk { shape, out, groups, slots: None, after: None }
    }

    /// Encodes everything for a checkpoint, about `max_bytes` more in each call. Returns None until it is complete.
    pub(super) fn image(&mut self, max_bytes: usize) -> Option<Bytes> {
        if self.groups.is_empty() && self.serving.is_none() {
            self.walk = None;
            return Some(Bytes::new());
        }
        let shape = self.shape();
        let mut walk = match self.walk.take() {
            Some(walk) if walk.shape == shape => walk,
            Some(_) => {
                hit("rmw.checkpoint.anew");
                self.begin_walk(shape)
            }
            None => self.begin_walk(shape),
        };
        let end = walk.out.len().saturating_add(max_bytes.max(1));
        while let Some((&epoch, group)) = self.groups.range(walk.rest()).next() {
            let (mut slots, after) = match walk.slots.take() {
                Some((_, slots, after)) => (slots, after),
                None => {
                    group.config.encode(&mut walk.out);
                    group.open.encode(&mut walk.out);
                    group.fenced.encode(&mut walk.out);
                    (OpenList::begin(&mut walk.out), None)
                }
            };
            let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let mut last = None;
            for (name, slot) in group.slots.range::<str, _>((from, Bound::Unbounded)) {
                if walk.out.len() >= end {
                    hit("rmw.checkpoint.step");
                    walk.slots = Some((epoch, slots, last.or(after)));
                    self.walk = Some(walk);
                    return None;
                }
                let image = SlotImage {
                    name: name.clone(),
                    promised: slot.promised,
                    voted: slot.voted,
                    last: slot.last,
                    state: slot.state.clone(),
                };
                slots.push(&image, &mut walk.out);
                last = Some(image.name);
            }
            slots.end(&mut walk.out);
            walk.groups.count_one();
            walk.after = Some(epoch);
        }
        walk.groups.end(&mut walk.out);
        Some(walk.out.freeze())
    }

    /// Restores a checkpoint.
    pub(super) fn restore_image(&mut self, checkpoint: Bytes) -> Result<(), DecodeError> {
        let image = AcceptorImage::from_bytes(checkpoint)?;
        if image.format != IMAGE_FORMAT {
            let value = u64::from(image.format);
            return Err(DecodeError::Invalid {
                what: "format of an acceptor's checkpoint",
                value,
                allowed: "1",
            });
        }
        if let Some(serving) = image.serving {
            self.known.set(&serving);
            self.serving = Some(serving);
        }
        for g in image.groups {
            let epoch = g.group.epoch;
            let mut group = Group::new(g.group, g.open);
            group.fenced = g.fenced;
            group.journaled = true;
            self.groups.insert(epoch, group);
            for s in g.slots {
                let state = Bytes::copy_from_slice(&s.state);
                self.promised(epoch, &s.name, s.promised, Lsn::NONE);
                self.voted(epoch, &s.name, (s.voted, s.promised), s.last, state, Lsn::NONE);
            }
        }
        Ok(())
    }
}
