//! Changes of the chain that meet other changes or fail half way: how long they take, and what they leave behind.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use atoll_contract::{ClientId, LogletSpec, OpId};
use atoll_log::LogRecord;
use atoll_log::virtual_log::VirtualLog;
use bytes::Bytes;
use common::Cluster;

fn fill(c: &mut Cluster, log: &Arc<VirtualLog>, records: u64) {
    let record = |seq| LogRecord {
        op: OpId { client: ClientId(1), seq },
        floor: None,
        payload: Bytes::from_static(b"entry"),
    };
    let ticket = log.submit((1..=records).map(record).collect()).unwrap();
    c.run(1, ticket).unwrap().unwrap();
}

/// The register stops to answer at some step after the copy was made.
#[test]
fn a_copy_that_was_not_put_in_place_is_deleted() {
    let (mut done, mut failed) = (0, 0);
    for steps in 0..40 {
        let mut c = Cluster::new(51, 3);
        c.options.reconfigure_within = Duration::from_millis(50);
        let log = c.created("memory");
        fill(&mut c, &log, 10);
        let first = log.chain().unwrap().chain.active().loglet;
        let extend = log.extend(LogletSpec::default());
        c.run(1, extend).unwrap().unwrap();
        c.driver.run_for(Duration::from_secs(1));
        let before = c.servers.loglets();
        let modify = log.modify(first, LogletSpec::default());
        let limit = c.driver.now().after(Duration::from_secs(10));
        while c.servers.loglets() == before {
            assert!(c.driver.step(limit), "no copy was made");
        }
        for _ in 0..steps {
            c.driver.step(limit);
        }
        c.servers.faults(|f| f.register_down = 1000);
        match c.run(1, modify).unwrap() {
            Ok(_) => done += 1,
            Err(_) => failed += 1,
        }
        c.servers.faults(|f| f.register_down = 0);
        c.driver.run_for(Duration::from_secs(60));
        assert_eq!(c.servers.loglets(), before, "{steps} steps after the copy: one too many");
    }
    assert!(done > 0 && failed > 0, "{done} done, {failed} failed");
}
