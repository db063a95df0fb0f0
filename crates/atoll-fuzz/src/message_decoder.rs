//! Fuzzes every message kind of the protocols and of the core, and the values that their roles store in the journal and in the chain. What
//! is decoded must be encoded as it was read.

use std::sync::LazyLock;

use atoll_core::Format;
use atoll_core::format::{FORMATS, frame_of};
use bytes::Bytes;

static ALL: LazyLock<Vec<Format>> =
    LazyLock::new(|| FORMATS.iter().copied().chain(atoll_protocols::formats()).collect());

/// Returns whether a format accepts these bytes. Panics if the format breaks a promise.
fn accepts(format: &Format, head: &[u8], payloads: Vec<Bytes>) -> bool {
    let checked = format.check(frame_of(Bytes::copy_from_slice(head), payloads));
    checked.unwrap_or_else(|mismatch| panic!("{mismatch}"))
}

/// The input has the number of the format, the number of payloads, the length of the head (two bytes, little endian), then the head, and
/// payloads of equal length.
pub fn run(input: &[u8]) {
    let [which, payloads, low, high, rest @ ..] = input else { return };
    let (head, rest) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes([*low, *high]))));
    let payloads = usize::from(*payloads % 4);
    let share = rest.len() / payloads.max(1);
    let payloads = (0..payloads).map(|i| Bytes::copy_from_slice(&rest[i * share..(i + 1) * share])).collect();
    accepts(&ALL[usize::from(*which) % ALL.len()], head, payloads);
}

/// Returns accepted inputs for each format: heads of zeros, and such heads with another first byte. They encode empty lists, and the
/// variants of a choice. The example of a format is added if it has one.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (which, format) in ALL.iter().enumerate() {
        for payloads in 0..2u8 {
            let taken =
                |head: &[u8]| accepts(format, head, vec![Bytes::from_static(b"abc"); usize::from(payloads)]);
            let found = |head: &[u8]| {
                let length = (head.len() as u16).to_le_bytes();
                let tail: &[u8] = if payloads == 0 { b"" } else { b"abc" };
                [&[which as u8, payloads], length.as_slice(), head, tail].concat()
            };
            let mut first = 0;
            for n in 0..128 {
                let mut head = vec![0; n];
                if taken(&head) {
                    seeds.push(found(&head));
                }
                // Try the other variants of messages that begin with a choice.
                for tag in 1..14u8 {
                    if let Some(byte) = head.first_mut() {
                        *byte = tag;
                        if first < 4 && taken(&head) {
                            first += 1;
                            seeds.push(found(&head));
                        }
                    }
                }
            }
            seeds.extend(format.sample().filter(|head| taken(head)).map(|head| found(&head)));
        }
    }
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_an_accepted_input_for_every_format() {
        let seeds = seeds();
        for (which, format) in ALL.iter().enumerate() {
            assert!(seeds.iter().any(|seed| usize::from(seed[0]) == which), "none for {}", format.name());
        }
    }
}
