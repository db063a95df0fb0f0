//! Operators that change a log between native Loglets and those of another kind, and clients that leave stripes idle.

use std::time::Duration;

use atoll_contract::{LogletId, LogletSpec};

use crate::rng::Rng;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::Stage;
use crate::workload::log::{self as load, live, members, record, round};

/// Returns a specification of striped Loglets for this many members: rotating sequencers or, if there is room, sharded acceptors.
pub fn spec(stage: &Stage<NodeHandles>) -> LogletSpec {
    let members = members(stage).len();
    let mut spec = LogletSpec::of("striped");
    let mut option = |name: &str, value: &str| spec.options.insert(name.to_owned(), value.to_owned());
    option("stripes", &(2 + stage.below(2)).to_string());
    match stage.below(4) {
        0 if members >= 6 => {
            option("mode", "sharded");
            option("stripes", "2");
        }
        1 => {
            // Each stripe is on one node.
            option("mode", "sharded");
            option("of", "local");
            option("stripes", "2");
        }
        _ => {
            option("mode", "rotating");
        }
    }
    spec
}

/// Draws a specification of the other kind.
pub type Spec = fn(&Stage<NodeHandles>) -> LogletSpec;

/// Creates a log of this kind, or sometimes a native one, and starts at most so many appenders, readers, and an operator that moves it
/// between native Loglets and those of `spec`.
pub fn people(
    stage: &Stage<NodeHandles>,
    rng: &mut Rng,
    name: &'static str,
    (kind, most_appenders): (&'static str, u64),
    spec: Spec,
) {
    let appenders = 1 + rng.below(most_appenders);
    let reconfigure = Duration::from_millis(2_000 + rng.below(3_000));
    let trims = rng.below(2) == 0;
    let first = if rng.below(3) == 0 { "native" } else { kind };
    let all = stage.clone();
    let stage = stage.clone();
    all.spawn("people", async move {
        load::create_kind(&stage, name, first).await;
        let name = || name.to_owned();
        for _ in 0..appenders {
            let think = Duration::from_millis(50 * appenders);
            stage.spawn("appender", load::appender(stage.clone(), name(), think));
        }
        stage.spawn("checker", load::checker(stage.clone(), name(), Duration::from_millis(150)));
        stage.spawn("reader", load::reader(stage.clone(), name(), Duration::from_millis(100)));
        stage.spawn("operator", swapper(stage.clone(), name(), reconfigure, spec));
        if trims {
            stage.spawn("trimmer", load::trimmer(stage.clone(), name(), Duration::from_secs(4)));
        }
    });
}

/// Extends the log again and again, to Loglets of another kind than native and back. Sometimes it rebuilds a sealed segment, or truncates.
/// Its node may die at any step, and sometimes the operator requests that.
pub async fn swapper(stage: Stage<NodeHandles>, name: String, every: Duration, spec: Spec) {
    use crate::world::fault::Fault;
    while !stage.over.is_up() {
        stage.pause(every).await;
        let Some(life) = live(&stage, stage.below(64) as usize) else { continue };
        let Some(log) = life.handles.log(&name) else { continue };
        if stage.below(6) == 0 {
            let (host, frames) = (life.node.0 as usize - 1, stage.below(60));
            let back_after = 50_000_000 + stage.below(1_500_000_000);
            stage.cluster.inject(Fault::CrashAfterFrames { host, frames, back_after });
        }
        match stage.below(10) {
            0 => drop(stage.cluster.ask(&life, log.truncate()).await),
            1 => {
                if let Some(which) = sealed_segment(&stage, &name) {
                    let to = if stage.below(2) == 0 { spec(&stage) } else { LogletSpec::of("native") };
                    drop(stage.cluster.ask(&life, log.modify(which, to)).await);
                }
            }
            2 | 3 => drop(stage.cluster.ask(&life, log.extend(LogletSpec::of("native"))).await),
            4 => drop(stage.cluster.ask(&life, log.extend(LogletSpec::default())).await),
            _ => drop(stage.cluster.ask(&life, log.extend(spec(&stage))).await),
        }
        stage.report();
    }
}

/// Returns a random sealed segment.
fn sealed_segment(stage: &Stage<NodeHandles>, name: &str) -> Option<LogletId> {
    let sealed: Vec<LogletId> = {
        let wire = stage.oracles.wire.lock();
        let all = wire.chain.newest(name).into_iter().flat_map(|c| c.segments());
        all.filter(|s| s.stop.is_some()).map(|s| s.loglet).collect()
    };
    (!sealed.is_empty()).then(|| sealed[stage.below(sealed.len() as u64) as usize])
}

/// Appends single records of new clients, one at a time with pauses, so that nothing is on its way to most stripes most of the time.
pub async fn loner(stage: Stage<NodeHandles>, name: String, think: Duration) {
    while !stage.over.is_up() {
        stage.pause(think).await;
        let client = atoll_contract::ClientId(stage.env.random() | 1);
        // Its first record may belong to any stripe.
        let mut pending = vec![record(&stage, client, 1 + stage.below(9))];
        let mut at = stage.below(64) as usize;
        while !stage.over.is_up() && !round(&stage, &name, &mut at, &mut pending).await {
            stage.pause(Duration::from_millis(20)).await;
            at = stage.below(64) as usize;
        }
        stage.report();
    }
}
