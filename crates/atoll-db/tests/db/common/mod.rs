//! A small application for tests: a map from words to numbers, with their sum in a cache.

pub mod world;

use atoll_db::{AppId, Application, ApplyAt, Direction, Engine, KeyRange, Rejected, StoreError, Tx, View};
use bytes::Bytes;

pub type MapEngine = Engine<Map>;

#[derive(Default)]
pub struct Map {
    /// A cache of the sum of all values. None if it has to be recomputed.
    sum: Option<u64>,
    /// Differs between replicas in tests of divergence.
    salt: u64,
}

/// Returns a command that sets a key. A command is a letter, followed by `key=value`.
pub fn put(key: &str, value: &str) -> Bytes {
    format!("p{key}={value}").into()
}

pub fn delete(key: &str) -> Bytes {
    format!("d{key}=").into()
}

/// Returns a command that adds to a number.
pub fn add(key: &str, n: u64) -> Bytes {
    format!("a{key}={n}").into()
}

/// Returns a command that writes a key, emits an event, and is then rejected.
pub fn fail(key: &str, value: &str) -> Bytes {
    format!("f{key}={value}").into()
}

pub fn panic(key: &str) -> Bytes {
    format!("!{key}=").into()
}

/// Returns a command that writes one key, then writes another and rolls that back.
pub fn two_parts(stays: &str, goes: &str) -> Bytes {
    format!("2{stays}={goes}").into()
}

/// Returns a command that panics at replicas without salt.
pub fn panic_unsalted(key: &str) -> Bytes {
    format!("?{key}=").into()
}

/// Returns a command that writes the salt, which may differ between replicas.
pub fn salted(key: &str) -> Bytes {
    format!("x{key}=").into()
}

/// Returns a command that writes a value of this many bytes, which may be more than a command or a chunk of a snapshot may have.
pub fn long(key: &str, bytes: usize) -> Bytes {
    format!("l{key}={bytes}").into()
}

/// Returns a command that replies with the cached sum.
pub fn sum() -> Bytes {
    Bytes::from_static(b"s=")
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|s| s.parse().ok()).unwrap_or(0)
}

pub fn items(view: &View) -> Vec<(String, String)> {
    let text = |b: Bytes| String::from_utf8_lossy(&b).into_owned();
    let item = |item: Result<(Bytes, Bytes), StoreError>| {
        let (key, value) = item.expect("readable");
        (text(key), text(value))
    };
    view.scan(&KeyRange::all(), Direction::Forward).map(item).filter(|(key, _)| !key.is_empty()).collect()
}

pub fn total(view: &View) -> u64 {
    items(view).iter().map(|(_, value)| number(value.as_bytes())).sum()
}

impl Map {
    pub fn salted(salt: u64) -> Self {
        Map { sum: None, salt }
    }

    fn write(&mut self, tx: &mut Tx<'_, String>, key: &str, value: &str) -> Bytes {
        let old = tx.get(key.as_bytes());
        let had = old.as_ref().map_or(0, |v| number(v));
        tx.put(key.as_bytes(), Bytes::copy_from_slice(value.as_bytes()));
        tx.emit(key.to_owned());
        self.sum = self.sum.map(|sum| sum + number(value.as_bytes()) - had);
        old.unwrap_or_else(|| Bytes::from_static(b"new"))
    }
}

impl Application for Map {
    type Event = String;
    const ID: AppId = AppId(1);
    const NAME: &'static str = "map";

    fn apply(&mut self, _at: &ApplyAt, command: &[u8], tx: &mut Tx<'_, String>) -> Result<Bytes, Rejected> {
        let text = String::from_utf8_lossy(command).into_owned();
        let (head, value) = text.split_once('=').ok_or(Rejected(Bytes::from_static(b"no command")))?;
        let (kind, key) = head.split_at(1);
        match kind {
            "p" => Ok(self.write(tx, key, value)),
            "a" => {
                let n = tx.get(key.as_bytes()).map_or(0, |v| number(&v)) + number(value.as_bytes());
                self.write(tx, key, &n.to_string());
                Ok(n.to_string().into())
            }
            "d" => {
                let old = tx.get(key.as_bytes());
                tx.delete(key.as_bytes());
                self.sum = self.sum.map(|sum| sum - old.as_ref().map_or(0, |v| number(v)));
                Ok(old.unwrap_or_default())
            }
            "f" => {
                self.write(tx, key, value);
                Err(Rejected(Bytes::from_static(b"as asked")))
            }
            "2" => {
                self.write(tx, key, "1");
                let savepoint = tx.savepoint();
                self.write(tx, value, "1");
                tx.rollback(&savepoint);
                self.sum = None;
                Ok(Bytes::from_static(b"one part"))
            }
            "l" => {
                let bytes = usize::try_from(number(value.as_bytes())).unwrap_or(0);
                Ok(self.write(tx, key, &"long ".repeat(bytes / 5)))
            }
            "x" => {
                tx.put(key.as_bytes(), self.salt.to_string());
                Ok(Bytes::new())
            }
            "?" if self.salt > 0 => Ok(self.write(tx, key, "1")),
            "s" => Ok(self.sum.map_or("none".to_owned(), |sum| sum.to_string()).into()),
            _ => panic!("as the test wants it"),
        }
    }

    fn opened(&mut self, view: &View) -> Result<(), StoreError> {
        self.sum = Some(total(view));
        Ok(())
    }

    fn undone(&mut self) {
        self.sum = None;
    }
}
