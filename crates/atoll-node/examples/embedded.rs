//! A durable log in a program's own process, without a cluster:
//! `cargo run -p atoll-node --example embedded -- DIR TEXT` appends a record and prints all of them.

use std::error::Error;

use atoll_contract::{ClientId, LogPos, LogletSpec, OpId, ReadFrom};
use atoll_log::virtual_log::LogRecord;
use atoll_node::NodeConfig;

/// Opens the log in `dir`, appends `text`, and returns all records in order.
pub async fn append_and_read(dir: &str, text: &str) -> Result<Vec<String>, Box<dyn Error>> {
    // The node runs on its own thread and has exclusive use of `dir`.
    let node = atoll_node::start(NodeConfig::alone(dir))?;
    node.joined().await?;
    let log = node.logs().open("main")?;
    log.create(LogletSpec::default()).await??;

    // The name of a record consists of a client id, which is drawn once per run of the program, and a sequence number that rises.
    let client = ClientId(node.parts().env.random().max(1));
    let record = LogRecord { op: OpId { client, seq: 1 }, floor: None, payload: text.to_owned().into() };
    // When this returns, the record is on disk.
    log.submit(vec![record])?.await??;

    let (mut at, tail) = (LogPos::ZERO, log.check_tail().await??);
    let mut all = Vec::new();
    while at < tail {
        let read = log.read(at..tail, 1 << 20, ReadFrom::Anywhere).await??;
        all.extend(read.records().map(|(_, e)| String::from_utf8_lossy(&e.payload).into_owned()));
        at = read.next();
    }
    node.shutdown().await;
    Ok(all)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [dir, text] = words.as_slice() else { return Err("usage: embedded DIR TEXT".into()) };
    for (position, record) in append_and_read(dir, text).await?.iter().enumerate() {
        println!("{position} {record}");
    }
    Ok(())
}
