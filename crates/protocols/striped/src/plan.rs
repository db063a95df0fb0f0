//! Plans the stripes of the next Loglet: for rotating sequencers on the same servers, for sharded acceptors on other servers each (the
//! paper's Figure 7). Where exactly is up to the provider of the stripes.

use std::collections::BTreeMap;

use atoll_contract::{LogletSpec, PartLoglet, PlanError};
use atoll_core::NodeId;
use atoll_core::level::since;
use bytes::Bytes;

use crate::config::{MAX_STRIPES, Mode, StripedConfig};
use crate::provider::{ORDERER, SERVER, StripedProvider};

/// The number of stripes, as an option.
const STRIPES: &str = "stripes";
/// The kind of the stripes, as an option.
const OF: &str = "of";
/// How the stripes share the nodes, as an option.
const MODE: &str = "mode";

/// What a specification and the previous Loglet say together.
struct Wanted {
    stripes: usize,
    of: String,
    mode: Mode,
    /// The previous configuration of each stripe, if it can be continued.
    previous: Vec<Bytes>,
}

impl StripedProvider {
    /// Returns the stripes that satisfy `spec`.
    pub(crate) async fn plan_stripes(
        &self,
        spec: &LogletSpec,
        previous: Option<StripedConfig>,
    ) -> Result<StripedConfig, PlanError> {
        if !self.env.allows_soon(since::STRIPED).await {
            let allowed =
                "only once all members can read it: finish the upgrade with `atoll cluster upgrade`";
            return Err(PlanError::Invalid { what: "a striped loglet", allowed });
        }
        spec.check(self, &[STRIPES, OF, MODE])?;
        let wanted = self.wanted(spec, previous)?;
        let provider = self.part_provider(&wanted.of)?;
        let orders: Vec<&str> = provider.roles().iter().filter(|r| !r.holds).map(|r| r.name).collect();
        let mut stripes: Vec<PartLoglet> = Vec::with_capacity(wanted.stripes);
        for i in 0..wanted.stripes {
            let places = places_of(spec, &wanted, i)?;
            let (avoid, held) = (spec.avoid.clone(), spec.held.clone());
            let mut inner = LogletSpec { places, avoid, held, ..LogletSpec::default() };
            let duties = |config: &Bytes| provider.duties(config);
            let taken =
                stripes.iter().flat_map(|s| duties(&s.config).sequencers().map(|o| o.0).collect::<Vec<_>>());
            let taken: Vec<NodeId> = taken.collect();
            inner.avoid_in = orders.iter().map(|role| ((*role).to_owned(), taken.clone())).collect();
            let mut before = wanted.previous.get(i);
            match (wanted.mode, stripes.first()) {
                // The previous Loglet of a stripe says where its servers should be: where those of the first stripe are.
                (Mode::Rotating, Some(first)) => before = Some(&first.config),
                (Mode::Rotating, None) => {}
                (Mode::Sharded, _) => {
                    let others = stripes.iter().map(|s| &s.config).chain(wanted.previous.iter().skip(i + 1));
                    let others = others.flat_map(|c| duties(c).holders().map(|h| h.0).collect::<Vec<_>>());
                    inner.avoid.extend(others);
                }
            }
            let config = provider.plan(&inner, before).await?;
            // When servers are lost, a Loglet that shares some is better than none.
            if wanted.mode == Mode::Sharded && wanted.previous.is_empty() {
                let shared = duties(&config)
                    .holders()
                    .any(|(node, _)| stripes.iter().any(|s| duties(&s.config).is_holder(node)));
                if shared {
                    let allowed = "servers of its own for each stripe: add nodes, or use fewer stripes or mode=rotating";
                    return Err(PlanError::Invalid { what: "stripes in mode sharded", allowed });
                }
            }
            stripes.push(PartLoglet { kind: wanted.of.clone(), config });
        }
        Ok(StripedConfig { mode: wanted.mode, stripes })
    }

    fn wanted(&self, spec: &LogletSpec, previous: Option<StripedConfig>) -> Result<Wanted, PlanError> {
        let before = previous.as_ref();
        let stripes = match spec.options.get(STRIPES) {
            Some(text) => text
                .parse()
                .ok()
                .filter(|n| (1..=MAX_STRIPES).contains(n))
                .ok_or(PlanError::Invalid { what: "option stripes", allowed: "a number from 1 to 64" })?,
            None => before.map_or(self.options.stripes, |b| b.stripes.len()),
        };
        let mode = match spec.options.get(MODE) {
            Some(text) => text.parse().map_err(|()| PlanError::Invalid {
                what: "option mode",
                allowed: "rotating (the same servers for all stripes) or sharded (others for each)",
            })?,
            None => before.map_or(Mode::Rotating, |b| b.mode),
        };
        let kind_before = before.and_then(|b| b.stripes.first()).map(|part| part.kind.clone());
        let of = spec.options.get(OF).cloned().or(kind_before).unwrap_or_else(|| self.options.of.clone());
        let same = |b: &StripedConfig| {
            b.mode == mode && b.stripes.len() == stripes && b.stripes.iter().all(|part| part.kind == of)
        };
        let previous =
            previous.filter(same).map_or(Vec::new(), |b| b.stripes.into_iter().map(|p| p.config).collect());
        Ok(Wanted { stripes, of, mode, previous })
    }
}

/// Returns the places of a stripe. Nodes that order are dealt out to the stripes, and so are, in mode sharded, those that hold entries.
fn places_of(
    spec: &LogletSpec,
    wanted: &Wanted,
    stripe: usize,
) -> Result<BTreeMap<String, Vec<NodeId>>, PlanError> {
    let mut places = BTreeMap::new();
    if let Some(servers) = spec.placed(SERVER) {
        let mine = match wanted.mode {
            Mode::Rotating => servers.to_vec(),
            Mode::Sharded => {
                if servers.is_empty() || !servers.len().is_multiple_of(wanted.stripes) {
                    let allowed = "as many for each stripe, in the order of the stripes";
                    return Err(PlanError::Invalid { what: "servers in mode sharded", allowed });
                }
                let each = servers.len() / wanted.stripes;
                servers[stripe * each..(stripe + 1) * each].to_vec()
            }
        };
        places.insert(SERVER.to_owned(), mine);
    }
    if let Some(orderers) = spec.placed(ORDERER) {
        let Some(mine) = orderers.get(stripe % orderers.len().max(1)) else {
            return Err(PlanError::Invalid { what: "sequencers", allowed: "at least one node" });
        };
        places.insert(ORDERER.to_owned(), vec![*mine]);
    }
    Ok(places)
}
