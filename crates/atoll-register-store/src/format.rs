//! The bytes of a cell, and its name.

use atoll_contract::Versioned;
use atoll_core::Encode;
use atoll_rmwpaxos::RegisterState;
use bytes::{BufMut, Bytes, BytesMut};

/// Version of the format of a register.
const REGISTER_FORMAT: u8 = 1;
/// Bytes before the state: the version of the format, and a checksum.
const HEADER_BYTES: usize = 1 + 4;

/// Returns the name of a cell for the name of a register: everything but letters, digits, '-' and '_' is written as its bytes in
/// hexadecimal. Names that differ stay different.
pub fn to_cell_name(register: &str) -> String {
    let mut cell = String::with_capacity(register.len());
    for byte in register.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => cell.push(byte.into()),
            _ => cell.push_str(&format!(".{byte:02x}")),
        }
    }
    cell
}

/// Returns the name of a register for the name of a cell. None for a cell that is no register.
pub fn to_register_name(cell: &str) -> Option<String> {
    let mut name = Vec::with_capacity(cell.len());
    let mut rest = cell.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'.' {
            name.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        name.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    let name = String::from_utf8(name).ok()?;
    (to_cell_name(&name) == cell).then_some(name)
}

pub(crate) fn to_bytes(state: &RegisterState) -> Bytes {
    let state = state.to_bytes();
    let mut out = BytesMut::with_capacity(HEADER_BYTES + state.len());
    out.put_u8(REGISTER_FORMAT);
    out.put_u32_le(crc32c::crc32c(&state));
    out.put_slice(&state);
    out.freeze()
}

/// Reads a cell. The error says what is wrong with it.
pub(crate) fn to_state(bytes: &Bytes) -> Result<RegisterState, String> {
    let Some((head, _)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Err("a register is shorter than its header".to_owned());
    };
    if head[0] != REGISTER_FORMAT {
        return Err("a register has a format that this version does not read".to_owned());
    }
    let state = bytes.slice(HEADER_BYTES..);
    if head[1..] != crc32c::crc32c(&state).to_le_bytes() {
        return Err("the checksum of a register does not hold".to_owned());
    }
    RegisterState::read(&state).map_err(|error| error.to_string())
}

/// Returns the register that a cell holds, for those who look at a store from outside.
///
/// # Errors
/// The cell holds no register; the error says why.
pub fn register_of(cell: &str, bytes: &Bytes) -> Result<(String, Versioned), String> {
    let name = to_register_name(cell).ok_or("no register has this name")?;
    Ok((name, to_state(bytes)?.versioned()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_cell_of_its_own() {
        for name in ["log", "a/b", "a.2fb", ".", "..", "ü", "%/ \u{1}", "zookeeper"] {
            let cell = to_cell_name(name);
            assert_eq!(to_register_name(&cell).as_deref(), Some(name), "{cell}");
            assert!(cell != "." && cell != ".." && !cell.contains('/') && cell.is_ascii());
        }
        for cell in [".", ".2", ".zz", ".2F", ".61", "a b"] {
            assert_eq!(to_register_name(cell), None, "{cell:?} is the cell of no register");
        }
    }

    #[test]
    fn an_altered_register_is_refused() {
        let state = RegisterState { version: 1, value: "chain".into(), nonces: vec![7], moved: None };
        let bytes = to_bytes(&state);
        assert_eq!(register_of("log.2fa", &bytes), Ok(("log/a".to_owned(), state.versioned())));
        assert!(to_state(&bytes).is_ok_and(|read| read == state));
        for at in 0..bytes.len() {
            let mut altered = bytes.to_vec();
            altered[at] ^= 0x20;
            assert!(to_state(&altered.into()).is_err(), "byte {at}");
            assert!(to_state(&bytes.slice(..at)).is_err(), "the first {at} bytes");
        }
    }
}
