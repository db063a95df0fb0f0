//! The NativeLoglet on a small cluster, procedure by procedure.
#![allow(clippy::unwrap_used)]

mod cluster;

use std::time::Duration;

use atoll_core::*;
use atoll_log::*;
use atoll_loglets::native::NativeLoglet;
use cluster::{Cluster, batch};

const SOON: Duration = Duration::from_secs(10);

fn append(
    c: &mut Cluster,
    log: &NativeLoglet,
    client: u64,
    seq: u64,
    what: &[&str],
) -> Result<Placement, AppendError> {
    let ticket = log.append(batch(client, seq, what));
    c.wait(ticket, SOON).expect("an append is answered")
}

fn check(c: &mut Cluster, at: u32, log: &NativeLoglet) -> Result<Tail, LogletError> {
    let log = log.clone();
    c.on(at, async move { log.check_tail().await })
}

fn seal(c: &mut Cluster, at: u32, log: &NativeLoglet) -> Result<(), LogletError> {
    let log = log.clone();
    c.on(at, async move { log.seal().await })
}

fn read(
    c: &mut Cluster,
    at: u32,
    log: &NativeLoglet,
    from: u64,
    to: u64,
    which: ReadFrom,
) -> Result<Vec<String>, ReadError> {
    let log = log.clone();
    c.on(at, async move {
        let mut out = Vec::new();
        let mut next = Offset(from);
        while next < Offset(to) {
            let got = log.read(next..Offset(to), 1 << 20, which).await?;
            next = next.plus(got.entries.len() as u64);
            out.extend(got.entries.iter().map(|e| String::from_utf8(e.payload.to_vec()).unwrap()));
        }
        Ok(out)
    })
}

#[test]
fn append_read_check_seal() {
    for n in [1u32, 3, 5] {
        let mut c = Cluster::new(n, 7);
        let config = c.config(&(1..=n).collect::<Vec<_>>(), 1);
        let log = c.open(1, 9, &config);
        assert_eq!(check(&mut c, 1, &log), Ok(Tail { at: Offset(0), sealed: None }));
        assert_eq!(append(&mut c, &log, 1, 1, &["a", "b"]), Ok(Placement::contiguous(Offset(0), 2)));
        assert_eq!(append(&mut c, &log, 1, 3, &["c"]), Ok(Placement::contiguous(Offset(2), 1)));
        // The same operations again: the same places, nothing new.
        assert_eq!(
            append(&mut c, &log, 1, 2, &["b", "c", "d"]).unwrap().runs,
            [(Offset(1), 2), (Offset(3), 1)]
        );
        assert_eq!(check(&mut c, 1, &log), Ok(Tail { at: Offset(4), sealed: None }));
        let other = c.open(n, 9, &config);
        assert_eq!(read(&mut c, n, &other, 0, 4, ReadFrom::Anywhere).unwrap(), ["a", "b", "c", "d"]);
        assert_eq!(seal(&mut c, n, &other), Ok(()));
        let tail = check(&mut c, 1, &log).unwrap();
        assert_eq!((tail.at, tail.sealed.is_some()), (Offset(4), true));
        assert_eq!(append(&mut c, &log, 1, 5, &["e"]), Err(AppendError::Sealed));
    }
}
