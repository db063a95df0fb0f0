//! Registers that have room only for those that exist: the logs of a cluster continue, with longer chains, and no log is created.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{self, Cluster};
use atoll_contract::{ClientId, LogPos, LogletSpec, OpId, ReadFrom};
use atoll_log::{LogRecord, ReconfigError, VirtualLog};

/// The longest time for something that nothing holds up.
const SOON: Duration = Duration::from_millis(100);

fn append(c: &mut Cluster, log: &Arc<VirtualLog>, seq: u64) {
    let op = OpId { client: ClientId(7), seq };
    let record = LogRecord { op, floor: None, payload: bytes::Bytes::from_static(b"entry") };
    let ticket = log.submit(vec![record]).unwrap();
    assert_eq!(c.run(1, ticket).unwrap(), Ok(vec![LogPos(seq - 1)]));
}

/// Appends an entry and extends the log, once for each number. Returns the longest time that an extend took.
fn grow(c: &mut Cluster, log: &Arc<VirtualLog>, seqs: std::ops::Range<u64>) -> Duration {
    let mut longest = Duration::ZERO;
    for seq in seqs {
        append(c, log, seq);
        let (began, extend) = (c.driver.now(), log.extend(LogletSpec::default()));
        c.run(1, extend).unwrap().unwrap();
        longest = longest.max(c.driver.now().since(began));
    }
    longest
}

/// Returns how many segments are in the chain itself, and how many pages it names.
fn shape(log: &VirtualLog) -> (usize, usize) {
    let chain = log.chain().unwrap();
    (chain.chain.segments().len(), chain.chain.pages().len())
}

#[test]
fn a_log_goes_on_in_its_chain_when_no_page_can_be_written() {
    let mut c = Cluster::new(2, 3);
    assert_eq!(c.options.page_items, 2);
    let log = c.created("memory");
    grow(&mut c, &log, 1..11);
    let (own, pages) = shape(&log);
    assert!(own <= 6 && pages > 0, "{own} segments, {pages} pages");
    c.servers.faults(|f| f.registers_full = true);
    let longest = grow(&mut c, &log, 11..51);
    assert!(longest < SOON, "an extend took {longest:?}");
    assert_eq!(shape(&log), (own + 40, pages));
    // A reconfigurer seals the active segment and dies. The next append rolls the log forward.
    let chain = log.chain().unwrap();
    let active = chain.chain.active();
    let loglet = log.registry().provider("memory").unwrap().open(active.loglet, &active.config).unwrap();
    c.run(1, async move { loglet.seal().await }).unwrap();
    let began = c.driver.now();
    append(&mut c, &log, 51);
    // The node that sealed it gets some time to finish.
    let patience = c.options.roll_forward_after * 2;
    assert!(c.driver.now().since(began) < patience + SOON, "{:?}", c.driver.now().since(began));
    // Once there is room, the segments move to pages.
    c.servers.faults(|f| f.registers_full = false);
    grow(&mut c, &log, 52..60);
    assert!(shape(&log).0 <= 6, "{:?}", shape(&log));
    let cold = c.log(2, "log");
    for at in 0..59 {
        let read = cold.read(LogPos(at)..LogPos(at + 1), 1000, ReadFrom::Anywhere);
        assert_eq!(c.run(2, read).unwrap().unwrap().entries[0].op.seq, at + 1);
    }
}

#[test]
fn a_log_without_room_is_refused_at_once_and_leaves_nothing() {
    let mut c = Cluster::new(3, 3);
    let old = c.created("memory");
    append(&mut c, &old, 1);
    c.servers.faults(|f| f.registers_full = true);
    let log = c.log(1, "another");
    for _ in 0..3 {
        let (began, create) = (c.driver.now(), log.create(common::spec("memory")));
        assert_eq!(c.run(1, create).unwrap(), Err(ReconfigError::NoRoom));
        assert!(c.driver.now().since(began) < SOON, "{:?}", c.driver.now().since(began));
    }
    c.driver.run_for(Duration::from_secs(5));
    assert_eq!(c.servers.loglets(), 1, "the Loglets of the refused log are deleted");
    // A deleted log has its register.
    let delete = old.delete();
    assert_eq!(c.run(1, delete).unwrap(), Ok(true));
    let create = old.create(common::spec("memory"));
    assert_eq!(c.run(1, create).unwrap().map(|chain| chain.chain.trim()), Ok(LogPos(1)));
    c.servers.faults(|f| f.registers_full = false);
    let create = log.create(common::spec("memory"));
    assert!(c.run(1, create).unwrap().is_ok());
}
