//! Back-fill (X7): the mirror fetches what it lacks of a sealed loglet from the store. It copies one run at a time, each durable before the
//! next, so that it does not flood its own disk.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{LogletId, Offset};
use atoll_core::testing::hit;
use atoll_core::{Class, Env, NodeId};
use atoll_loglet_store::message::{Delete, Entries, Read, Trim, Verdict};

use crate::message::{Fill, FillEnded};
use crate::roles::{MIRROR, STORE};

/// How long the store may take to answer one read.
const ANSWER: Duration = Duration::from_millis(500);

/// Where a back-fill reads, and for which loglet.
pub(crate) struct Source {
    /// The executor of the mirror's node.
    pub env: Env,
    /// The loglet.
    pub loglet: LogletId,
    /// Its configuration.
    pub config: Bytes,
    /// The node of its store.
    pub store: NodeId,
    /// Approximate number of bytes of entries in one read.
    pub step_bytes: u32,
}

/// Runs a back-fill on the mirror's own node. It ends when the gaps are closed, or when the store does not have the entries now. The next
/// request continues.
pub(crate) async fn back_fill(source: Source, gaps: Vec<Range<Offset>>) {
    for gap in gaps {
        if !close(&source, gap).await {
            break;
        }
    }
    let (env, loglet) = (&source.env, source.loglet);
    env.post(env.node(), Class::Data, MIRROR, FillEnded { loglet });
}

/// Closes one gap. Returns false if the store cannot supply it now.
async fn close(source: &Source, gap: Range<Offset>) -> bool {
    let (env, loglet) = (&source.env, source.loglet);
    let own = env.node();
    let mut at = gap.start;
    while at < gap.end {
        let request = Read { loglet, from: at, to: gap.end, max_bytes: source.step_bytes };
        let asked = env.within(ANSWER, env.call_role(source.store, STORE, request)).await;
        let Ok(Ok(entries)) = asked else {
            hit("trio.back_fill.no_source");
            return false;
        };
        match entries.verdict {
            Verdict::Done {} if entries.first == at => match put(source, entries).await {
                Some(end) => at = end,
                None => return false,
            },
            // The mirror was away during the trim, and nobody can supply the entries below it.
            Verdict::Trimmed {} if entries.state.trim > at => {
                hit("trio.back_fill.trims_too");
                let (config, to) = (source.config.clone(), entries.state.trim);
                env.post(own, Class::Control, MIRROR, Trim { loglet, config, to });
                at = to;
            }
            // The mirror was away during the deletion. Otherwise it would keep the entries forever (native-T10).
            Verdict::Gone {} => {
                hit("trio.back_fill.deletes_too");
                env.post(own, Class::Control, MIRROR, Delete { loglet });
                return false;
            }
            _ => return false,
        }
    }
    true
}

/// Passes entries to the mirror, and returns where they end. None if the mirror does not take them all.
async fn put(source: &Source, entries: Entries) -> Option<Offset> {
    let mut first = entries.first;
    for (count, batch) in entries.counts.into_iter().zip(entries.batches) {
        let fill = Fill { loglet: source.loglet, first, count, batch };
        let answer = source.env.call(source.env.node(), fill).await.ok()?;
        if answer.verdict != (Verdict::Done {}) {
            return None;
        }
        first = first.plus(count.into());
    }
    (first > entries.first).then_some(first)
}
