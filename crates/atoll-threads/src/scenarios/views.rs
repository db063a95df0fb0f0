//! A scenario in which one thread applies and publishes. Others read the published state, while versions that nobody holds are
//! dropped.

use bytes::Bytes;
use shuttle::thread;

use super::versions::{Hold, Live, VersionedMap};
use crate::sync::{Arc, Mutex};
use atoll_contract::application::{Direction, KeyRange};

const VERSIONS: u64 = 6;

fn value(at: u64) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(&at.to_be_bytes()))
}

/// A view shows the same state for as long as it is held.
pub(crate) fn stay_as_they_are() {
    let live = Arc::new(Live::default());
    let map = Arc::new(VersionedMap::new(live.clone()));
    let (hot, other) = (Bytes::from_static(b"hot"), Bytes::from_static(b"other"));
    map.put(&hot, value(1), 1);
    let published: Arc<Mutex<Arc<Hold>>> = Arc::new(Mutex::new(Arc::new(live.hold(1))));
    let readers = [false, true].map(|scans| {
        let (map, published, hot) = (map.clone(), published.clone(), hot.clone());
        thread::spawn(move || {
            let view = published.lock().expect("nobody panicked").clone();
            let shown = value(view.version);
            for _ in 0..2 {
                let seen = if scans {
                    let (page, _) = map.page(&KeyRange::all(), Direction::Forward, view.version, 1);
                    page.into_iter().next().map(|(_, value)| value)
                } else {
                    map.get(&hot, view.version)
                };
                assert_eq!(seen, Some(shown.clone()), "a view has changed");
            }
        })
    });
    for at in 2..=VERSIONS {
        map.put(&hot, value(at), at);
        if at == 3 {
            map.put(&other, value(at), at);
        }
        // Publish twice, as after a commit: two states with the same version.
        for _ in 0..2 {
            let next = Arc::new(live.hold(at));
            let old = std::mem::replace(&mut *published.lock().expect("nobody panicked"), next);
            drop(old);
        }
    }
    assert!(readers.into_iter().all(|reader| reader.join().is_ok()));
    assert_eq!(live.versions(), 1, "held by nobody");
    assert_eq!(map.get(&hot, VERSIONS), Some(value(VERSIONS)));
}
