//! Converts the specification of a Loglet in a request for the virtual log.

use std::collections::BTreeMap;

use atoll_client::{Reason, proto};
use atoll_contract::LogletSpec;
use atoll_core::NodeId;

use crate::backend::Refusal;
use crate::limits::{check_spec, shown};

/// Converts a specification for the virtual log.
///
/// # Errors
/// One of its lists or texts is too long, or it places a role twice.
pub fn loglet_spec(spec: Option<proto::LogletSpec>) -> Result<LogletSpec, Refusal> {
    let spec = spec.unwrap_or_default();
    check_spec(&spec)?;
    let nodes = |ids: Vec<u32>| ids.into_iter().map(NodeId).collect::<Vec<_>>();
    let servers = Some(nodes(spec.servers)).filter(|servers| !servers.is_empty());
    let short = [("server", servers), ("sequencer", spec.sequencer.map(|node| vec![NodeId(node)]))];
    let short = short.into_iter().filter_map(|(role, nodes)| Some((role.to_owned(), nodes?)));
    let mut places = BTreeMap::new();
    for (role, nodes) in short.chain(spec.places.into_iter().map(|p| (p.role, nodes(p.nodes)))) {
        if places.contains_key(&role) {
            let words = format!("the role {} is placed twice", shown(&role));
            return Err(Refusal::no(Reason::Invalid, words, "place each role once"));
        }
        places.insert(role, nodes);
    }
    Ok(LogletSpec {
        kind: spec.kind,
        places,
        options: spec.options.into_iter().collect(),
        avoid: nodes(spec.avoid),
        ..LogletSpec::default()
    })
}
