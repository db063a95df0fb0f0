//! Fuzzes the objects of a backup. What is decoded is bounded, and decodes again after it is encoded.

/// The length of the head of an object; where the length of its meta is, and its two checksums.
const HEAD_BYTES: usize = 52;
const META_BYTES_AT: usize = 32;
const BODY_SUM_AT: usize = 44;
const SUM_AT: usize = 48;

/// The first byte selects: the rest is an object, or one whose checksums are corrected.
pub fn run(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else { return };
    match choice % 2 {
        0 => drop(atoll_backup::decode_any(rest)),
        _ => drop(atoll_backup::decode_any(&forged(rest))),
    }
}

fn forged(bytes: &[u8]) -> Vec<u8> {
    let mut forged = bytes.to_vec();
    let Some(length) = bytes.get(META_BYTES_AT..META_BYTES_AT + 4) else { return forged };
    let length = length.iter().rev().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte));
    let Some(body_at) = HEAD_BYTES.checked_add(length).filter(|at| *at <= bytes.len()) else { return forged };
    let sum = crc32c::crc32c(&bytes[body_at..]).to_le_bytes();
    forged[BODY_SUM_AT..BODY_SUM_AT + 4].copy_from_slice(&sum);
    let sum = crc32c::crc32c_append(crc32c::crc32c(&forged[..SUM_AT]), &forged[HEAD_BYTES..body_at]);
    forged[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    forged
}

/// Returns valid objects of every kind, as they are and to be forged.
pub fn seeds() -> Vec<Vec<u8>> {
    let objects = atoll_backup::samples().into_iter();
    objects.flat_map(|object| [0u8, 1].map(|choice| [&[choice][..], &object[..]].concat())).collect()
}
