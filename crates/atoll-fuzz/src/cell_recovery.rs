//! Fuzzes the recovery of cells. No bytes make it panic, and what it hands out survives a power cut. From valid files with one flipped bit
//! it hands out the last value of every cell, or refuses the directory. With more flipped bits it hands out no value that was not written
//! to that cell (rmw-T9).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};

use atoll_core::{Cell, CellWrite, RoleKind, StorageId};
use atoll_storage::{CellError, CellOptions, CellStore, Disk, DiskPath, MemDisk, Open, RecoverCellsError};
use bytes::Bytes;

use crate::input::{Input, path, put};

const STORAGE: StorageId = StorageId(0x5eed);
/// Files are damaged below this offset, in which everything that `write` needs lies.
const DAMAGED_BYTES: u64 = 16 * 1024;
/// A 32-bit checksum detects this many wrong bits with certainty in versions as short as these.
const MAX_FLIPS: usize = 3;
/// No cell is written after a number above this, which no store reaches.
const MAX_NUMBER: u64 = 1 << 60;

type Key = (u8, Bytes);
type Cells = BTreeMap<Key, Bytes>;

fn open(disk: &MemDisk) -> Result<(CellStore, Cells), CellError> {
    let mut found = Cells::new();
    let visit = &mut |Cell { owner, key, value }: Cell| {
        let old = found.insert((owner.0, key), value);
        assert!(old.is_none(), "a cell is handed out once");
        Ok::<_, Infallible>(())
    };
    match CellStore::recover(Arc::new(disk.clone()), CellOptions::small(STORAGE), visit) {
        Ok(store) => Ok((store, found)),
        Err(RecoverCellsError::Cells(error)) => Err(error),
    }
}

/// Cells as the product wrote them.
struct Written {
    disk: MemDisk,
    /// Every value that each cell ever had. None stands for a deletion.
    history: BTreeMap<Key, Vec<Option<Bytes>>>,
    last: Cells,
    files: Vec<DiskPath>,
}

/// Writes some cells several times, in two classes. One of them grows into the other class, and one is deleted and made again.
fn write() -> Result<Written, CellError> {
    let disk = MemDisk::new();
    let (mut store, _) = open(&disk)?;
    let mut history: BTreeMap<Key, Vec<Option<Bytes>>> = BTreeMap::new();
    let sizes: [(u8, Option<usize>); 12] = [
        (1, Some(10)),
        (2, Some(300)),
        (3, Some(600)),
        (1, Some(20)),
        (2, Some(700)),
        (4, Some(0)),
        (3, None),
        (1, Some(30)),
        (3, Some(50)),
        (2, Some(310)),
        (5, Some(5)),
        (5, None),
    ];
    for (n, (name, size)) in sizes.into_iter().enumerate() {
        let (number, owner) = (1 + n as u64, RoleKind(1 + name % 2));
        let key = Bytes::from(vec![name; usize::from(name)]);
        let value = size.map(|len| Bytes::from((0..len).map(|i| (n * 31 + i * 7) as u8).collect::<Vec<_>>()));
        history.entry((owner.0, key.clone())).or_default().push(value.clone());
        store.write(&[CellWrite { number, owner, key, value }])?;
        store.sync()?;
    }
    store.mark()?;
    drop(store);
    let (_, last) = open(&disk.fork())?;
    let names = disk.list(&path("cells"))?;
    let manifest = [path("cells.manifest")];
    let files = names.iter().map(|name| path(&format!("cells/{name}"))).chain(manifest).collect();
    Ok(Written { disk, history, last, files })
}

fn written() -> &'static Written {
    static WRITTEN: OnceLock<Written> = OnceLock::new();
    WRITTEN.get_or_init(|| match write() {
        Ok(written) => written,
        Err(error) => panic!("an undamaged disk takes cells: {error}"),
    })
}

/// Opens the cells and writes one more. If that works, a second recovery after a power cut must find everything again.
fn survives(disk: &MemDisk) -> Option<Cells> {
    let (mut store, found) = open(disk).ok()?;
    let mut expected = found.clone();
    if store.last() < MAX_NUMBER {
        let (number, owner) = (store.last() + 1, RoleKind(1));
        let (key, value) = (Bytes::from_static(b"one more"), Bytes::from_static(b"value"));
        let cell = CellWrite { number, owner, key: key.clone(), value: Some(value.clone()) };
        if store.write(&[cell]).is_ok() && store.sync().is_ok() {
            expected.insert((owner.0, key), value);
        }
    }
    drop(store);
    disk.crash(&mut || false);
    match open(disk) {
        Ok((_, again)) => assert_eq!(again, expected),
        Err(error) => panic!("it was opened, and cannot be opened again: {error}"),
    }
    Some(found)
}

/// The first byte selects what is done; the rest says where.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    match input.number(1) % 3 {
        0 => any_files(&mut input),
        1 => overwritten(&mut input),
        _ => flipped(&mut input),
    }
}

/// Tests files with arbitrary content below a valid manifest, or an arbitrary one.
fn any_files(input: &mut Input) {
    let disk = written().disk.fork();
    for _ in 0..3 {
        let (name, len) = (input.number(1), input.number(2) as usize);
        let file = match name % 8 {
            0 => path("cells.manifest"),
            class => path(&format!("cells/class-{:02}", class - 1)),
        };
        put(&disk, &file, 0, input.take(len % DAMAGED_BYTES as usize), Open::Create);
    }
    assert!(disk.sync_dir(&path("cells")).and_then(|()| disk.sync_dir(&DiskPath::root())).is_ok());
    survives(&disk);
}

/// Tests valid files in which bytes are overwritten, and that are cut.
fn overwritten(input: &mut Input) {
    let base = written();
    let disk = base.disk.fork();
    while !input.is_empty() {
        let file = &base.files[input.number(1) as usize % base.files.len()];
        let (offset, len) = (input.number(2) % DAMAGED_BYTES, input.number(1) as usize);
        match len {
            255 => disk.cut(file, offset),
            _ => put(&disk, file, offset, input.take(len), Open::Write),
        }
    }
    survives(&disk);
}

/// Tests bit rot in valid files.
fn flipped(input: &mut Input) {
    let base = written();
    let disk = base.disk.fork();
    let mut flips = 0;
    while !input.is_empty() && flips < MAX_FLIPS {
        let file = &base.files[input.number(1) as usize % base.files.len()];
        let place = input.number(3);
        flips += usize::from(disk.flip_bit(file, place / 8 % DAMAGED_BYTES, (place % 8) as u8));
    }
    let Some(found) = survives(&disk) else { return };
    if flips <= 1 {
        // Every write was synced, and a mark after them says so. One wrong bit cannot hide any of that.
        assert_eq!(found, base.last, "a value is lost or old, and recovery went on");
    }
    // More wrong bits can hide which write a damaged version held. It then looks torn, and the version before it is handed out.
    for (key, value) in &found {
        let was = base.history.get(key).is_some_and(|all| all.iter().flatten().any(|old| old == value));
        assert!(was, "the value of {key:?} was never written");
    }
}

/// Returns inputs for each test.
pub fn seeds() -> Vec<Vec<u8>> {
    let base = written();
    let mut seeds = vec![vec![0; 10], vec![1], vec![2], vec![2, 0, 100, 20, 0, 1, 3, 40, 0, 2, 255, 8, 0]];
    let mut files = vec![0];
    for (i, file) in base.files.iter().enumerate() {
        let Ok(open) = base.disk.open(file, Open::Read) else { continue };
        let mut bytes = vec![0; open.len().unwrap_or(0).min(8192) as usize];
        let read = open.read_at(0, &mut bytes).unwrap_or(0);
        bytes.truncate(read);
        files.push(if file.as_str().ends_with("manifest") { 0 } else { 1 + i as u8 });
        files.extend((bytes.len() as u16).to_le_bytes());
        files.extend(bytes);
    }
    seeds.push(files);
    seeds.push([&[1, 0, 0, 2, 40], &[0x41; 40][..]].concat());
    seeds.push(vec![1, 1, 0, 6, 255]);
    seeds.push([&[1, 2, 0, 0, 30], &[9; 30][..]].concat());
    for file in 0..base.files.len() as u8 {
        seeds.push(vec![2, file, 0, 20, 0]);
    }
    seeds
}
