//! A pool of named values. Values stay while they are in use, and for a while longer. When too many are idle, the least recently used are
//! removed first.

use std::collections::BTreeMap;

/// A pool of named values; see the module documentation. The pool never removes an entry that is in use, so callers must bound the number
/// of those themselves.
#[derive(Debug)]
pub struct Pool<T> {
    entries: BTreeMap<String, Entry<T>>,
    /// How many idle entries may stay.
    keep: usize,
    /// Counts uses, to order entries by their last use.
    uses: u64,
    /// The pool looks for idle entries when it has this size, so that a pool whose entries are all in use is not scanned at each call.
    look_at: usize,
}

#[derive(Debug)]
struct Entry<T> {
    value: T,
    used: u64,
}

impl<T> Pool<T> {
    /// Returns an empty pool that keeps about `keep` idle entries, and at least one.
    pub fn new(keep: usize) -> Self {
        let keep = keep.max(1);
        Pool { entries: BTreeMap::new(), keep, uses: 0, look_at: keep + 1 }
    }

    /// Returns how many entries there are, in use or not.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns an entry and counts this as a use.
    pub fn get(&mut self, name: &str) -> Option<&T> {
        self.uses += 1;
        let entry = self.entries.get_mut(name)?;
        entry.used = self.uses;
        Some(&entry.value)
    }

    /// Returns an entry without counting a use.
    pub fn peek(&self, name: &str) -> Option<&T> {
        self.entries.get(name).map(|entry| &entry.value)
    }

    /// Returns all entries in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), &entry.value))
    }

    /// Inserts an entry, which counts as a use. Returns the entries that were removed to make room: the least recently used ones for which
    /// `is_idle` holds, never the new one.
    pub fn insert(&mut self, name: &str, value: T, is_idle: impl Fn(&T) -> bool) -> Vec<(String, T)> {
        let given_up = if self.entries.len() + 1 >= self.look_at { self.shrink(is_idle) } else { Vec::new() };
        self.uses += 1;
        self.entries.insert(name.to_owned(), Entry { value, used: self.uses });
        given_up
    }

    /// Removes and returns all entries for which `is` holds.
    pub fn take_if(&mut self, is: impl Fn(&T) -> bool) -> Vec<(String, T)> {
        let names: Vec<String> =
            self.entries.iter().filter(|(_, entry)| is(&entry.value)).map(|(name, _)| name.clone()).collect();
        let taken = names.into_iter().filter_map(|name| self.entries.remove_entry(&name));
        taken.map(|(name, entry)| (name, entry.value)).collect()
    }

    /// Removes and returns idle entries until an eighth of their room is free, so that not every [`Pool::insert`] has to look for one.
    pub fn shrink(&mut self, is_idle: impl Fn(&T) -> bool) -> Vec<(String, T)> {
        let mut idle: Vec<(u64, String)> = self
            .entries
            .iter()
            .filter(|(_, entry)| is_idle(&entry.value))
            .map(|(name, entry)| (entry.used, name.clone()))
            .collect();
        idle.sort_unstable();
        let room = self.keep / 8;
        let too_many = (idle.len() + room).saturating_sub(self.keep).min(idle.len());
        let names = idle.into_iter().take(too_many).map(|(_, name)| name);
        let mut given_up = Vec::new();
        for name in names {
            if let Some((name, entry)) = self.entries.remove_entry(&name) {
                given_up.push((name, entry.value));
            }
        }
        self.look_at = self.entries.len() + room + 1;
        given_up
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn is_idle(value: &Arc<u32>) -> bool {
        Arc::strong_count(value) == 1
    }

    #[test]
    fn the_least_recently_used_go_and_never_one_in_use() {
        let mut pool = Pool::new(8);
        let in_use = Arc::new(0);
        pool.insert("used", in_use.clone(), is_idle);
        for n in 1..=1000u32 {
            pool.insert(&n.to_string(), Arc::new(n), is_idle);
            pool.get("1");
            assert!(pool.len() <= 8 + 2, "{}", pool.len());
        }
        assert!(pool.peek("used").is_some(), "somebody holds it");
        assert!(pool.peek("1").is_some(), "it was used all the time");
        assert!(pool.peek("1000").is_some() && pool.peek("500").is_none());
    }

    #[test]
    fn a_pool_in_full_use_grows_and_shrinks_when_it_is_not() {
        let mut pool = Pool::new(8);
        let held: Vec<Arc<u32>> = (0..100).map(Arc::new).collect();
        for value in &held {
            assert!(pool.insert(&value.to_string(), value.clone(), is_idle).is_empty());
        }
        assert_eq!(pool.len(), 100);
        drop(held);
        let mut given_up = 0;
        for n in 200..203u32 {
            given_up += pool.insert(&n.to_string(), Arc::new(n), is_idle).len();
        }
        assert!(given_up >= 92 && pool.len() <= 10, "{given_up} were given up, {} stay", pool.len());
    }

    #[test]
    fn entries_are_taken_out_by_what_they_are() {
        let mut pool = Pool::new(8);
        (0..6u32).for_each(|n| drop(pool.insert(&n.to_string(), n, |_| true)));
        assert_eq!(pool.take_if(|n| n % 2 == 0).len(), 3);
        assert_eq!(pool.iter().map(|(_, n)| *n).collect::<Vec<_>>(), [1, 3, 5]);
    }
}
