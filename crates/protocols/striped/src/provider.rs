//! Creates striped Loglets, and answers for them by asking the providers of their stripes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use atoll_contract::{
    Duties, Evidence, Extent, Kinds, Loglet, LogletError, LogletId, LogletProvider, LogletSpec, Offset, Part,
    PartLoglet, PlanError, Progress, Reason, RoleOfKind, SealedConfig, Trouble, Unavailability, Urgency,
};
use atoll_core::level::since;
use atoll_core::testing::hit;
use atoll_core::{BoxFuture, Encode, Env, NodeId};

use crate::check_tail::all_or_error;
use crate::config::{self, StripedConfig};
use crate::copy;
use crate::layout::Layout;
use crate::loglet::{StripedLoglet, StripedOptions};

/// The name of this kind in chains.
pub const KIND: &str = "striped";
/// The role of nodes that hold entries, in specifications.
pub const SERVER: &str = "server";
/// The role of nodes that order appends, in specifications.
pub const ORDERER: &str = "sequencer";
/// All roles. They are those of the stripes.
const ROLES: [RoleOfKind; 2] =
    [RoleOfKind { name: SERVER, holds: true }, RoleOfKind { name: ORDERER, holds: false }];

/// The provider of "striped".
#[derive(Clone, Debug)]
pub struct StripedProvider {
    pub(crate) env: Env,
    pub(crate) kinds: Kinds,
    pub(crate) options: Arc<StripedOptions>,
}

/// A stripe with everything that its provider needs to know.
struct Stripe {
    provider: Arc<dyn LogletProvider>,
    id: LogletId,
    config: Bytes,
}

impl StripedProvider {
    /// Creates the provider for the node of `env`. `kinds` has the providers of the stripes.
    pub fn new(env: Env, kinds: Kinds, options: StripedOptions) -> Self {
        StripedProvider { env, kinds, options: Arc::new(options) }
    }

    fn stripes(&self, id: LogletId, config: &Bytes) -> Result<Vec<Stripe>, PlanError> {
        let config = config::parse(config)?;
        let stripe = |(id, part): (LogletId, &PartLoglet)| {
            Ok(Stripe { provider: self.part_provider(&part.kind)?, id, config: part.config.clone() })
        };
        config.parts(id).map(stripe).collect()
    }

    /// Returns the provider of the stripes. A stripe cannot be striped itself, because its parts would have no ids.
    pub(crate) fn part_provider(&self, kind: &str) -> Result<Arc<dyn LogletProvider>, PlanError> {
        if kind == KIND {
            return Err(PlanError::Invalid {
                what: "kind of the stripes",
                allowed: "any other than \"striped\"",
            });
        }
        self.kinds.provider(kind)
    }

    fn open_with(
        &self,
        id: LogletId,
        config: &Bytes,
        open: impl Fn(usize, &Stripe) -> Result<Arc<dyn Loglet>, PlanError>,
    ) -> Result<Arc<dyn Loglet>, PlanError> {
        let stripes = self.stripes(id, config)?;
        // A chain names this kind only from this level on, and the level never falls. So a node that has just started need not wait until
        // it hears of it, and says from the first pad on which offsets are meant (`Loglet::fills_once`).
        if self.env.levels().learn(since::STRIPED).is_ok_and(|has_risen| has_risen) {
            hit("striped.level");
        }
        let parts =
            stripes.iter().enumerate().map(|(i, stripe)| open(i, stripe)).collect::<Result<_, _>>()?;
        Ok(Arc::new(StripedLoglet::new(self.env.clone(), parts, self.options.clone())))
    }

    /// Returns the stripes for an operation on servers.
    fn reached(&self, id: LogletId, config: &Bytes) -> Result<Vec<Stripe>, LogletError> {
        self.stripes(id, config).map_err(|_| LogletError::Unavailable(Unavailability::NoQuorum))
    }

    fn duties_of(&self, part: &PartLoglet) -> Duties {
        self.kinds.provider(&part.kind).map_or_else(|_| Duties::default(), |p| p.duties(&part.config))
    }

    /// Returns the parts of extents that a node holds, by the kind of the stripe, each with the place of its extent in the list.
    fn held_parts(&self, node: NodeId, extents: &[Extent]) -> Option<BTreeMap<String, Vec<Held>>> {
        let mut held: BTreeMap<String, Vec<Held>> = BTreeMap::new();
        for (place, extent) in extents.iter().enumerate() {
            let config = config::parse(&extent.config).ok()?;
            let layout = Layout::new(config.stripes.len());
            let sealed = config::parse_sealed(&extent.sealed, config.stripes.len()).ok()?;
            for (stripe, (id, part)) in config.parts(extent.loglet).enumerate() {
                if !self.duties_of(part).is_holder(node) {
                    continue;
                }
                let range = layout.below(stripe, extent.range.start)..layout.below(stripe, extent.range.end);
                let (loglet, config, sealed) = (id, part.config.clone(), sealed[stripe].clone());
                let inner = Extent { loglet, config, sealed, range };
                held.entry(part.kind.clone()).or_default().push(Held { place, layout, stripe, inner });
            }
        }
        Some(held)
    }
}

/// The part of an extent that is in one stripe.
struct Held {
    place: usize,
    layout: Layout,
    stripe: usize,
    inner: Extent,
}

/// The name of a stripe. People count from 1.
fn i_th(stripe: usize) -> String {
    (stripe + 1).to_string()
}

impl LogletProvider for StripedProvider {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn roles(&self) -> &'static [RoleOfKind] {
        &ROLES
    }

    fn plan<'a>(
        &'a self,
        spec: &'a LogletSpec,
        previous: Option<&'a Bytes>,
    ) -> BoxFuture<'a, Result<Bytes, PlanError>> {
        Box::pin(async move {
            let previous = previous.map(config::parse).transpose()?;
            Ok(self.plan_stripes(spec, previous).await?.to_bytes())
        })
    }

    fn provision(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        let stripes = self.reached(id, config);
        Box::pin(async move {
            let mut results = Vec::new();
            for stripe in stripes? {
                results.push(stripe.provider.provision(stripe.id, &stripe.config).await);
            }
            all_or_error(results).map(|_| ())
        })
    }

    fn open(&self, id: LogletId, config: &Bytes) -> Result<Arc<dyn Loglet>, PlanError> {
        self.open_with(id, config, |_, stripe| stripe.provider.open(stripe.id, &stripe.config))
    }

    fn open_sealed(
        &self,
        id: LogletId,
        config: &Bytes,
        sealed: &SealedConfig,
    ) -> Result<Arc<dyn Loglet>, PlanError> {
        let stripes = config::parse(config)?.stripes.len();
        let sealed = config::parse_sealed(sealed, stripes)?;
        self.open_with(id, config, |i, stripe| {
            stripe.provider.open_sealed(stripe.id, &stripe.config, &sealed[i])
        })
    }

    fn build_sealed<'a>(
        &'a self,
        id: LogletId,
        config: &'a Bytes,
        source: &'a dyn Loglet,
        range: Range<Offset>,
    ) -> BoxFuture<'a, Result<(), LogletError>> {
        Box::pin(async move {
            let stripes = self.reached(id, config)?;
            let layout = Layout::new(stripes.len());
            for (i, stripe) in stripes.iter().enumerate() {
                let source = copy::Source::new(source, range.clone(), layout, i);
                let all = Offset::ZERO..source.len();
                stripe.provider.build_sealed(stripe.id, &stripe.config, &source, all).await?;
            }
            Ok(())
        })
    }

    fn delete(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        let stripes = self.reached(id, config);
        Box::pin(async move {
            let mut results = Vec::new();
            for stripe in stripes? {
                results.push(stripe.provider.delete(stripe.id, &stripe.config).await);
            }
            all_or_error(results).map(|_| ())
        })
    }

    fn describe(&self, config: &Bytes) -> Vec<(&'static str, String)> {
        match config::parse(config) {
            Err(error) => vec![("unreadable", error.to_string())],
            Ok(config) => {
                let one = |(i, part): (usize, &PartLoglet)| {
                    let fields = self.kinds.provider(&part.kind).map(|p| p.describe(&part.config));
                    let fields = fields.unwrap_or_default();
                    let fields: Vec<String> = fields.into_iter().map(|(k, v)| format!("{k}={v}")).collect();
                    format!("{}: {} {}", i + 1, part.kind, fields.join(" "))
                };
                let stripes: Vec<String> = config.stripes.iter().enumerate().map(one).collect();
                vec![("mode", config.mode.to_string()), ("stripes", stripes.join("; "))]
            }
        }
    }

    fn duties(&self, config: &Bytes) -> Duties {
        let parts = config::parse(config).map_or_else(|_| Vec::new(), |config| config.stripes);
        Duties::of_parts(parts.iter().map(|part| self.duties_of(part)))
    }

    fn parts(&self, config: &Bytes) -> Vec<Part> {
        let stripes = config::parse(config).map_or_else(|_| Vec::new(), |config| config.stripes);
        let part = |(i, part)| Part { name: i_th(i), duties: self.duties_of(part) };
        stripes.iter().enumerate().map(part).collect()
    }

    fn reason_to_reconfigure(&self, config: &Bytes, evidence: &Evidence<'_>) -> Option<Reason> {
        let stripes = config::parse(config).ok()?.stripes;
        // What appenders report does not say which stripe it is about.
        let seen = Evidence { appends: None, ..*evidence };
        let of_stripe = |(i, part): (usize, &PartLoglet)| {
            let provider = self.kinds.provider(&part.kind).ok()?;
            let reason = provider.reason_to_reconfigure(&part.config, &seen)?;
            Some(Reason { words: format!("stripe {}: {}", i_th(i), reason.words), ..reason })
        };
        // The first one of the most urgent ones, so that all nodes find the same.
        let found = stripes.iter().enumerate().filter_map(of_stripe).min_by_key(|r| Reverse(r.urgency));
        found.or_else(|| match evidence.appends? {
            Trouble::WrongSequencer | Trouble::SequencerFailed => {
                let (node, _) = self.duties_of(stripes.first()?).sequencers().next()?;
                let words =
                    "appenders were refused by the sequencer of a stripe, which was restarted or fails";
                Some(Reason::new(node, Urgency::AtOnce, words).node_may_stay())
            }
            Trouble::NoSequencer | Trouble::NoQuorum | Trouble::DiskFull => None,
        })
    }

    fn can_seal(&self, config: &Bytes, reached: &dyn Fn(NodeId) -> bool) -> bool {
        let Ok(StripedConfig { stripes, .. }) = config::parse(config) else { return false };
        stripes.iter().all(|part| {
            self.kinds.provider(&part.kind).is_ok_and(|provider| provider.can_seal(&part.config, reached))
        })
    }

    fn progress<'a>(&'a self, node: NodeId, extents: &'a [Extent]) -> BoxFuture<'a, Option<Vec<Progress>>> {
        Box::pin(async move {
            let whole = |extent: &Extent| Progress { has_up_to: extent.range.end, lacks: 0 };
            let mut all: Vec<Progress> = extents.iter().map(whole).collect();
            for (kind, held) in self.held_parts(node, extents)? {
                let provider = self.kinds.provider(&kind).ok()?;
                let inner: Vec<Extent> = held.iter().map(|h| h.inner.clone()).collect();
                let progress = provider.progress(node, &inner).await?;
                for (held, progress) in held.iter().zip(progress) {
                    let of_whole = &mut all[held.place];
                    of_whole.lacks += progress.lacks;
                    if progress.has_up_to < held.inner.range.end {
                        let first = held.layout.whole(held.stripe, progress.has_up_to);
                        of_whole.has_up_to = of_whole.has_up_to.min(first);
                    }
                }
            }
            Some(all)
        })
    }

    fn back_fill(&self, extent: &Extent) -> BoxFuture<'_, ()> {
        let held = self.held_parts(self.env.node(), std::slice::from_ref(extent)).unwrap_or_default();
        Box::pin(async move {
            for (kind, held) in held {
                let Ok(provider) = self.kinds.provider(&kind) else { continue };
                for one in held {
                    provider.back_fill(&one.inner).await;
                }
            }
        })
    }

    /// Returns none: the stripes are on the disks, and their kinds report them.
    fn held_here(&self, _above: Option<LogletId>) -> BoxFuture<'_, Option<(Vec<LogletId>, bool)>> {
        Box::pin(std::future::ready(Some((Vec::new(), false))))
    }

    fn delete_here(&self, _id: LogletId) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }
}
