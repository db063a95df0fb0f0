//! Alters one value in the store of a node that is down, as a fault of a disk or of a program could: the value can be read, but is
//! not what was written. For drills: `cargo run -p atoll-db --example alter -- DATA/database PREFIX NTH`.
//!
//! It selects the key with index NTH, from 0, among those that begin with PREFIX (in hexadecimal, with the application's number
//! first), and inverts the last bit of its value. It prints the key in hexadecimal.

use std::process::ExitCode;

use atoll_db::store::may_continue;
use atoll_db::{Direction, FjallStore, KeyRange, Store, StoreError};

const CACHE_BYTES: u64 = 1 << 20;
const PAGE_ENTRIES: usize = 256;

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()).collect()
}

fn alter(folder: &str, prefix: &[u8], nth: usize) -> Result<Option<Vec<u8>>, StoreError> {
    let mut store = FjallStore::open(folder.as_ref(), CACHE_BYTES)?;
    let snapshot = store.snapshot();
    let (mut left, mut seen) = (KeyRange::prefix(prefix), 0);
    loop {
        let page = snapshot.page(&left, Direction::Forward, PAGE_ENTRIES)?;
        if let Some((key, value)) = page.get(nth - seen) {
            let mut altered = value.to_vec();
            if let Some(last) = altered.last_mut() {
                *last ^= 1;
            }
            store.commit(vec![(key.clone(), Some(altered.into()))])?;
            store.persist()?;
            return Ok(Some(key.to_vec()));
        }
        seen += page.len();
        match page.last() {
            Some((last, _)) if may_continue(&page, PAGE_ENTRIES) => left = left.above(last),
            _ => return Ok(None),
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, prefix, nth] = &args[..] else {
        eprintln!("give the folder of a store, a prefix in hexadecimal, and a number");
        return ExitCode::FAILURE;
    };
    let (Some(prefix), Ok(nth)) = (unhex(prefix), nth.parse()) else {
        eprintln!("{prefix:?} is no prefix in hexadecimal, or {nth:?} no number");
        return ExitCode::FAILURE;
    };
    match alter(folder, &prefix, nth) {
        Ok(Some(key)) => {
            println!("{}", key.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
            ExitCode::SUCCESS
        }
        Ok(None) => {
            eprintln!("there are not so many keys with this prefix");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
