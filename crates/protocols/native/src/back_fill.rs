//! Back-fill (native §4, X7): a server fetches committed entries that it lacks from its peers. A back-fill raises no tail and acknowledges
//! nothing. It copies one chunk at a time, each durable before the next, so that a returning server does not flood the cluster.

use std::ops::Range;

use atoll_contract::Offset;
use atoll_core::testing::hit;
use atoll_core::{Class, NodeId};

use super::loglet::ServerSet;
use super::message::{Delete, Entries, Fill, FillEnded, Read, Trim, Verdict};
use crate::roles::LOG_SERVER;

/// Runs a back-fill on the server's own node. Ends when the gaps are filled, or when no peer has the entries now; the next check
/// continues.
pub(crate) async fn back_fill(group: ServerSet, gaps: Vec<Range<Offset>>) {
    let own = group.env.node();
    'gaps: for gap in gaps {
        let mut at = gap.start;
        while at < gap.end {
            let mut sources: Vec<NodeId> = group.readers();
            sources.retain(|n| *n != own);
            let entries = match source(&group, &sources, at, gap.end).await {
                Source::Entries(entries) => entries,
                Source::Trimmed(to) => {
                    // This server was away during the trim, and no peer can supply the entries below it.
                    hit("native.back_fill.trims_too");
                    let config = group.config_bytes.clone();
                    let trim = Trim { loglet: group.id, config, to };
                    group.env.post(own, Class::Control, LOG_SERVER, trim);
                    at = to;
                    continue;
                }
                Source::Gone => {
                    delete_too(&group);
                    break 'gaps;
                }
                Source::Nobody => {
                    hit("native.back_fill.no_source");
                    continue 'gaps;
                }
            };
            for (count, batch) in entries.counts.into_iter().zip(entries.batches) {
                let fill = Fill { loglet: group.id, first: at, count, batch };
                match group.env.call(own, fill).await {
                    Ok(answer) if answer.verdict == (Verdict::Done {}) => at = at.plus(count.into()),
                    _ => break 'gaps,
                }
            }
        }
    }
    group.env.post(own, Class::Data, LOG_SERVER, FillEnded { loglet: group.id });
}

/// What the peers report about a gap.
enum Source {
    Entries(Entries),
    /// The offsets below this were trimmed.
    Trimmed(Offset),
    Gone,
    Nobody,
}

/// Reads entries from exactly `at` on, from the first peer that has them.
async fn source(group: &ServerSet, peers: &[NodeId], at: Offset, to: Offset) -> Source {
    let mut trim = Offset::ZERO;
    for node in peers {
        let request = Read { loglet: group.id, from: at, to, max_bytes: group.options.step_bytes };
        let answer = group
            .env
            .within(group.options.round_timeout, group.env.call_role(*node, LOG_SERVER, request))
            .await;
        let Ok(Ok(entries)) = answer else { continue };
        match entries.verdict {
            Verdict::Done {} if entries.first == at => return Source::Entries(entries),
            Verdict::Trimmed {} => trim = trim.max(entries.state.trim),
            Verdict::Gone {} => return Source::Gone,
            _ => {}
        }
    }
    if trim > at { Source::Trimmed(trim) } else { Source::Nobody }
}

/// Deletes the loglet on this server, because a peer has deleted it at its owner's request while this server was away (native-T10).
/// Otherwise the server would keep the entries, and search for the missing ones, forever.
pub(crate) fn delete_too(group: &ServerSet) {
    hit("native.server.deletes_too");
    group.env.post(group.env.node(), Class::Control, LOG_SERVER, Delete { loglet: group.id });
}
