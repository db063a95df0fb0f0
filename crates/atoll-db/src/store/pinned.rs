//! Snapshot reads that wait for no other thread. A read through fjall asks the tree for the files of the snapshot. This takes the
//! lock that the tree holds while it writes and syncs a new list of its files, with four syncs after each commit and each merge. On
//! a busy disk, no command could be applied for half a second. A snapshot therefore remembers its files when it is taken (decision
//! 0014).

use std::sync::Arc;

use fjall::{AbstractTree, AnyTree, Keyspace, SeqNo, Slice};
use lsm_tree::table::filter::standard_bloom::Builder;
use lsm_tree::{InternalValue, Memtable, Tree};

use atoll_contract::application::KeyRange;

type Get = dyn Fn(&[u8]) -> fjall::Result<Option<Slice>> + Send + Sync;
type Scan = dyn Fn(&KeyRange) -> Items + Send + Sync;

/// The keys and values of a range, in order, from either end.
pub(super) type Items = Box<dyn DoubleEndedIterator<Item = fjall::Result<(Slice, Slice)>>>;

/// The files and the memory of a snapshot. The files stay on disk until this is dropped.
///
/// It holds functions, because the types that they capture have no public names.
pub(super) struct Pinned {
    get: Box<Get>,
    scan: Box<Scan>,
}

fn value_of(found: InternalValue) -> Option<Slice> {
    (!found.is_tombstone()).then_some(found.value)
}

impl Pinned {
    /// Pins the files and the memory of the snapshot with this number. The caller must hold the snapshot. Waits while the tree
    /// writes a list of its files.
    ///
    /// Returns None if part of the snapshot is in memory that is being written out, because only the tree itself can read that
    /// memory.
    pub(super) fn of(tree: &Keyspace, number: SeqNo) -> Option<Self> {
        let AnyTree::Standard(tree) = &tree.tree else { return None };
        let files_and_memory = tree.get_version_history_lock().get_version_for_snapshot(number);
        let memory = files_and_memory.active_memtable.clone();
        // This check must come after the memory was captured. Data that is written out from now on is also in the files, and
        // finding it in both does no harm.
        if tree.sealed_memtable_count() > 0 {
            return None;
        }
        Some(Pinned {
            get: get(tree, memory, number),
            scan: Box::new(move |range| {
                let start = &range.start[..];
                match &range.end {
                    Some(end) => items(Tree::create_internal_range(
                        files_and_memory.clone(),
                        &(start..&end[..]),
                        number,
                        None,
                    )),
                    None => {
                        items(Tree::create_internal_range(files_and_memory.clone(), &(start..), number, None))
                    }
                }
            }),
        })
    }

    /// Returns the value of a key, or None if the key does not exist.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn get(&self, key: &[u8]) -> fjall::Result<Option<Slice>> {
        (self.get)(key)
    }

    /// Returns the entries of a range, which must not be empty.
    pub(super) fn scan(&self, range: &KeyRange) -> Items {
        (self.scan)(range)
    }
}

/// Returns a lookup that searches the memory first, and then the files from the newest to the oldest, as the tree itself does.
fn get(tree: &Tree, memory: Arc<Memtable>, number: SeqNo) -> Box<Get> {
    let files = tree.current_version();
    Box::new(move |key| {
        if let Some(found) = memory.get(key, number) {
            return Ok(value_of(found));
        }
        let hash = Builder::get_hash(key);
        let runs = files.iter_levels().flat_map(|level| level.iter());
        for file in runs.filter_map(|run| run.get_for_key(key)) {
            if let Some(found) = file.get(key, number, hash)? {
                return Ok(value_of(found));
            }
        }
        Ok(None)
    })
}

fn items(of: impl DoubleEndedIterator<Item = lsm_tree::Result<InternalValue>> + 'static) -> Items {
    Box::new(of.map(|item| {
        let item = item?;
        Ok((item.key.user_key, item.value))
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;
    use std::time::Duration;

    use fjall::{Database, KeyspaceCreateOptions, Readable, Snapshot};
    use proptest::prelude::*;

    use super::*;

    type Model = BTreeMap<Vec<u8>, Vec<u8>>;
    /// A snapshot, its pinned form, and the contents that both must show.
    type Taken = (Snapshot, Option<Pinned>, Model);

    /// A step of a test: a change through the tree's memory or through a file, or an action of the tree's worker.
    #[derive(Clone, Debug)]
    enum Step {
        Batch(BTreeMap<Vec<u8>, Option<u8>>),
        File(BTreeMap<Vec<u8>, Option<u8>>),
        WriteOut,
        Merge,
    }

    fn changes() -> impl Strategy<Value = BTreeMap<Vec<u8>, Option<u8>>> {
        let key = proptest::collection::vec(0u8..4, 1..4);
        proptest::collection::btree_map(key, proptest::option::of(0u8..200), 1..12)
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => changes().prop_map(Step::Batch),
            3 => changes().prop_map(Step::File),
            1 => Just(Step::WriteOut),
            1 => Just(Step::Merge),
        ]
    }

    fn value(n: u8) -> Vec<u8> {
        vec![n; 3]
    }

    fn run(db: &Database, tree: &Keyspace, step: &Step) {
        match step {
            Step::Batch(changes) => {
                let mut batch = db.batch();
                for (key, n) in changes {
                    match n {
                        Some(n) => batch.insert(tree, key.as_slice(), value(*n)),
                        None => batch.remove(tree, key.as_slice()),
                    }
                }
                batch.commit().unwrap();
            }
            Step::File(changes) => {
                let mut files = tree.start_ingestion().unwrap();
                for (key, n) in changes {
                    match n {
                        Some(n) => files.write(key.as_slice(), value(*n)).unwrap(),
                        None => files.write_tombstone(key.as_slice()).unwrap(),
                    }
                }
                files.finish().unwrap();
            }
            Step::WriteOut => drop(tree.rotate_memtable_and_wait()),
            Step::Merge => tree.major_compact().unwrap(),
        }
    }

    fn note(model: &mut Model, step: &Step) {
        let (Step::Batch(changes) | Step::File(changes)) = step else { return };
        for (key, n) in changes {
            match n {
                Some(n) => drop(model.insert(key.clone(), value(*n))),
                None => drop(model.remove(key)),
            }
        }
    }

    fn ranges() -> [KeyRange; 3] {
        let of = |start: &'static [u8], end: Option<&'static [u8]>| KeyRange {
            start: start.into(),
            end: end.map(Into::into),
        };
        [of(&[], None), of(&[1], Some(&[2, 2])), of(&[2, 1, 3], None)]
    }

    /// Checks that the pinned form and the snapshot both show the model.
    fn shows((snapshot, pinned, model): &Taken, tree: &Keyspace) {
        let Some(pinned) = pinned else { return };
        for a in 0..4 {
            for key in [vec![a], vec![a, 1], vec![1, a, 2]] {
                let shown = pinned.get(&key).unwrap().map(|value| value.to_vec());
                assert_eq!(shown.as_ref(), model.get(&key));
                assert_eq!(shown, snapshot.get(tree, &key).unwrap().map(|value| value.to_vec()));
            }
        }
        for range in ranges() {
            let want: Vec<_> = model.iter().filter(|(key, _)| range.contains(key)).collect();
            let plain = |items: Vec<fjall::Result<(Slice, Slice)>>| -> Vec<_> {
                items
                    .into_iter()
                    .map(Result::unwrap)
                    .map(|(key, value)| (key.to_vec(), value.to_vec()))
                    .collect()
            };
            let mut shown = plain(pinned.scan(&range).collect());
            assert!(shown.iter().map(|(key, value)| (key, value)).eq(want.iter().copied()));
            shown.reverse();
            assert_eq!(plain(pinned.scan(&range).rev().collect()), shown);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn shows_what_the_snapshot_shows(steps in proptest::collection::vec(step(), 1..24)) {
            let at = tempfile::tempdir().unwrap();
            let db = Database::builder(at.path()).worker_threads(1).open().unwrap();
            let tree = db.keyspace("tree", KeyspaceCreateOptions::default).unwrap();
            let (mut model, mut taken) = (Model::new(), Vec::<Taken>::new());
            for step in &steps {
                run(&db, &tree, step);
                note(&mut model, step);
                let snapshot = db.snapshot();
                let pinned = Pinned::of(&tree, snapshot.seqno());
                taken.push((snapshot, pinned, model.clone()));
                shows(&taken[taken.len() - 1], &tree);
            }
            // Later writes and merges do not change what a snapshot shows.
            for taken in &taken {
                shows(taken, &tree);
            }
            prop_assert!(taken.iter().any(|(_, pinned, _)| pinned.is_some()));
        }
    }

    #[test]
    #[allow(clippy::disallowed_methods)] // It tests real threads.
    fn reads_while_the_tree_writes_its_list_of_files() {
        let at = tempfile::tempdir().unwrap();
        let db = Database::builder(at.path()).worker_threads(1).open().unwrap();
        let tree = db.keyspace("tree", KeyspaceCreateOptions::default).unwrap();
        let here = |n| BTreeMap::from([(vec![n], Some(n))]);
        let mut model = Model::new();
        for step in [Step::File(here(1)), Step::Batch(here(2))] {
            run(&db, &tree, &step);
            note(&mut model, &step);
        }
        let snapshot = db.snapshot();
        let pinned = Pinned::of(&tree, snapshot.seqno()).unwrap();
        let writing = tree.tree.get_version_history_lock();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let one = pinned.get(&[1]).unwrap().map(|value| value.to_vec());
            drop(done.send((one, pinned.scan(&KeyRange::all()).count())));
        });
        let read = is_done.recv_timeout(Duration::from_secs(30)).expect("it waits for nobody");
        assert_eq!(read, (Some(value(1)), 2));
        drop(writing);
    }
}
