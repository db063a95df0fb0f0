//! What one acceptor knows of the registers by itself. It is for a rescue after a majority of the acceptors is lost for good: nobody can
//! tell any more which votes were chosen.

use std::collections::BTreeMap;

use atoll_contract::Versioned;
use atoll_core::{Decode, DecodeError};
use bytes::Bytes;

use crate::message::AcceptorImage;
use crate::registers::ROOT;
use crate::state::RegisterState;

/// Returns the newest state of each register in an acceptor's checkpoint, whichever group it belongs to. It may have been overwritten
/// since, or never have been chosen.
///
/// During a hand-over, the old group and the next one have the same state of a register, until the next one writes. A higher version is
/// therefore always the newer one.
pub(crate) fn registers_in(checkpoint: Bytes) -> Result<BTreeMap<String, Versioned>, DecodeError> {
    let mut newest: BTreeMap<String, Versioned> = BTreeMap::new();
    if checkpoint.is_empty() {
        return Ok(newest);
    }
    let image = AcceptorImage::from_bytes(checkpoint)?;
    for slot in image.groups.into_iter().flat_map(|group| group.slots).filter(|slot| slot.name != ROOT) {
        let state = RegisterState::read(&slot.state)?;
        if state.version > newest.get(&slot.name).map_or(0, |known| known.version.0) {
            newest.insert(slot.name, state.versioned());
        }
    }
    Ok(newest)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ballot::Ballot;
    use crate::group::{GroupConfig, Member};
    use crate::message::{GroupImage, SlotImage};
    use atoll_contract::{Nonce, Version};
    use atoll_core::{Encode, NodeId, StorageId};

    fn slot(name: &str, version: u64, value: &'static [u8]) -> SlotImage {
        let nonces = (1..=u128::from(version)).collect();
        let state = RegisterState { version, value: Bytes::from_static(value), nonces, moved: None };
        let ballot = Ballot::GENESIS;
        SlotImage { name: name.into(), promised: ballot, voted: ballot, last: false, state: state.written() }
    }

    fn group(epoch: u64, slots: Vec<SlotImage>) -> GroupImage {
        let member = Member { node: NodeId(1), storage: StorageId(1) };
        let group = GroupConfig::new(epoch, vec![member]).unwrap();
        GroupImage { group, open: epoch == 1, fenced: None, slots }
    }

    #[test]
    fn the_newest_state_of_each_register_counts() {
        let old =
            vec![slot(ROOT, 1, b"root"), slot("a", 3, b"a3"), slot("b", 2, b"b2"), slot("never", 0, b"")];
        let groups = vec![group(1, old), group(2, vec![slot("a", 4, b"a4"), slot("b", 1, b"b1")])];
        let image = AcceptorImage { format: 1, serving: None, groups }.to_bytes();
        let found = registers_in(image.clone()).unwrap();
        let seen: Vec<_> =
            found.iter().map(|(n, v)| (n.as_str(), v.version, v.nonce, &v.value[..])).collect();
        assert_eq!(seen, [("a", Version(4), Nonce(4), &b"a4"[..]), ("b", Version(2), Nonce(2), &b"b2"[..])]);
        assert_eq!(registers_in(Bytes::new()), Ok(BTreeMap::new()), "an acceptor without a group");
        for cut in 1..image.len() {
            assert!(registers_in(image.slice(..cut)).is_err(), "cut at {cut}");
        }
    }
}
