//! Creates CORFU Loglets: plans projections, and opens, copies, fills and deletes Loglets.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{
    Binding, Duties, Duty, Evidence, Extent, Loglet, LogletError, LogletId, LogletProvider, LogletSpec,
    Offset, Part, PlanError, Progress, ReadError, ReadFrom, Reason, RoleOfKind, SealedConfig, Trouble,
    Unavailability,
};
use atoll_core::testing::hit;
use atoll_core::{BoxFuture, Decode, Directory, Encode, Env, NodeId};
use atoll_loglet_store::batches;
use atoll_loglet_store::message::LogletStatus;
use atoll_loglet_store::status::{ask_status, delete_here, held_here};

use crate::client::ClientOptions;
use crate::loglet::CorfuLoglet;
use crate::loglet::sealed::SealedAt;
use crate::projection::Projection;
use crate::reasons;
use crate::rebuild::Copying;
use crate::roles::UNIT;

/// The name of this kind in chains.
pub const KIND: &str = "corfu";
/// The role of a node that holds entries, in specifications.
pub const UNIT_ROLE: &str = "unit";
/// The role of the node that gives out positions, in specifications.
pub const SEQUENCER_ROLE: &str = "sequencer";
/// The options of specifications.
pub(crate) const OPTIONS: [&str; 3] = ["chains", "replicas", "stripe"];
/// All roles.
const ROLES: [RoleOfKind; 2] =
    [RoleOfKind { name: UNIT_ROLE, holds: true }, RoleOfKind { name: SEQUENCER_ROLE, holds: false }];
/// How long this node's own unit may take to fill what it lacks, or to delete.
const OWN_ANSWER: Duration = Duration::from_secs(2);

/// The provider of "corfu".
#[derive(Clone)]
pub struct CorfuProvider {
    pub(crate) env: Env,
    pub(crate) directory: Arc<dyn Directory>,
    options: Arc<ClientOptions>,
}

impl std::fmt::Debug for CorfuProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CorfuProvider({:?})", self.env)
    }
}

fn parse(config: &Bytes) -> Result<Projection, PlanError> {
    Projection::parse(config).map_err(|error| PlanError::Unreadable(error.as_decode_error()))
}

impl CorfuProvider {
    /// Creates the provider for the node of `env`. It chooses among the members that `directory` shows.
    pub fn new(env: Env, directory: Arc<dyn Directory>, options: ClientOptions) -> Self {
        CorfuProvider { env, directory, options: Arc::new(options) }
    }

    /// Like [`LogletProvider::open`], with the concrete type.
    pub fn open_corfu(&self, id: LogletId, config: &Bytes) -> Result<CorfuLoglet, PlanError> {
        Ok(CorfuLoglet::new(self.env.clone(), id, parse(config)?, self.options.clone()))
    }

    /// Like `open_corfu`, for an operation that cannot report an unreadable projection.
    fn opened(&self, id: LogletId, config: &Bytes) -> Result<CorfuLoglet, LogletError> {
        self.open_corfu(id, config).map_err(|_| LogletError::Unavailable(Unavailability::StorageFailed))
    }

    /// Copies the entries into a new Loglet that is sealed.
    async fn copy_all(
        &self,
        copying: &mut Copying,
        source: &dyn Loglet,
        range: Range<Offset>,
    ) -> Result<(), LogletError> {
        let step_bytes = self.options.step_bytes as usize;
        let mut at = range.start;
        while at < range.end {
            let got =
                source.read(at..range.end, step_bytes, ReadFrom::Anywhere).await.map_err(|e| match e {
                    ReadError::Gone | ReadError::Trimmed(_) => LogletError::Gone,
                    _ => LogletError::Unavailable(Unavailability::NoQuorum),
                })?;
            for batch in batches(got.entries) {
                copying.put(at.since(range.start), &batch).await?;
                at = at.plus(batch.len() as u64);
            }
        }
        copying.verify(range.end.since(range.start)).await
    }
}

/// Returns which node does what for a Loglet with this projection. A unit is bound to its data directory: its epoch is on its disk, so it
/// may restart (corfu-C16). The sequencer is bound to one life of its node (corfu-C11).
pub(crate) fn duties(config: &Bytes) -> Duties {
    let Ok(projection) = parse(config) else { return Duties::default() };
    let (node, life) = projection.sequencer;
    let mut all = vec![Duty { role: SEQUENCER_ROLE, node, binding: Binding::Orders(life) }];
    for (node, storage) in projection.units() {
        all.push(Duty { role: UNIT_ROLE, node, binding: Binding::Holds(storage) });
    }
    Duties(all)
}

/// Returns the duties of each chain, and that of the sequencer. People count from 1.
fn parts(config: &Bytes) -> Vec<Part> {
    let (Ok(projection), all) = (parse(config), duties(config).0) else { return Vec::new() };
    let chains = &projection.active().chains;
    if chains.len() == 1 {
        return vec![Part { name: String::new(), duties: Duties(all) }];
    }
    let (units, sequencers): (Vec<Duty>, Vec<Duty>) =
        all.into_iter().partition(|duty| duty.role == UNIT_ROLE);
    let mut parts = vec![Part { name: SEQUENCER_ROLE.to_owned(), duties: Duties(sequencers) }];
    for (number, chain) in (1..).zip(chains) {
        let holds = |duty: &&Duty| chain.units.iter().any(|unit| unit.0 == duty.node);
        let duties = Duties(units.iter().filter(holds).copied().collect());
        parts.push(Part { name: format!("chain-{number}"), duties });
    }
    parts
}

/// Returns how far a unit is with an extent, according to its status. Holes of a sealed Loglet count as missing until the unit has recorded
/// them as junk.
fn progress_of(node: NodeId, status: Option<&LogletStatus>, extent: &Extent) -> Progress {
    let (from, to) = (extent.range.start, extent.range.end);
    let nothing = Progress { has_up_to: from, lacks: to.since(from) };
    let (Some(status), Ok(projection)) = (status, parse(&extent.config)) else { return nothing };
    let stretch = projection.active();
    let holds = |chain: &crate::Chain| chain.units.iter().any(|unit| unit.0 == node);
    let Some(index) = stretch.chains.iter().position(holds) else { return nothing };
    let (first, end) = (stretch.address_from(index, from.0), stretch.address_from(index, to.0));
    let state = &status.state;
    let complete = state.known_tail.0.clamp(first, end.max(first));
    let above = state.local_tail.0.min(end).max(complete);
    // Gaps above the requested range are counted, too; they are rare.
    let inner = if state.known_tail >= state.local_tail { 0 } else { status.missing };
    let lacks = end.saturating_sub(above) + inner.min(above - complete);
    let has_up_to = Offset(stretch.position_at(index, complete).clamp(from.0, to.0));
    Progress { has_up_to: if lacks == 0 { to } else { has_up_to }, lacks }
}

impl LogletProvider for CorfuProvider {
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
            let previous = previous.map(parse).transpose()?;
            Ok(self.choose(spec, previous.as_ref()).await?.to_bytes())
        })
    }

    fn provision(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        let loglet = self.opened(id, config);
        Box::pin(async move { loglet?.check_tail().await.map(|_| ()) })
    }

    fn open(&self, id: LogletId, config: &Bytes) -> Result<Arc<dyn Loglet>, PlanError> {
        Ok(Arc::new(self.open_corfu(id, config)?))
    }

    fn open_sealed(
        &self,
        id: LogletId,
        config: &Bytes,
        sealed: &SealedConfig,
    ) -> Result<Arc<dyn Loglet>, PlanError> {
        let loglet = self.open_corfu(id, config)?;
        loglet.ends(SealedAt::from_bytes(sealed.clone())?);
        Ok(Arc::new(loglet))
    }

    fn build_sealed<'a>(
        &'a self,
        id: LogletId,
        config: &'a Bytes,
        source: &'a dyn Loglet,
        range: Range<Offset>,
    ) -> BoxFuture<'a, Result<(), LogletError>> {
        Box::pin(async move {
            let mut copying = Copying::begin(self.opened(id, config)?).await?;
            self.copy_all(&mut copying, source, range).await
        })
    }

    fn delete(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        let loglet = self.opened(id, config);
        Box::pin(async move { loglet?.delete().await })
    }

    fn describe(&self, config: &Bytes) -> Vec<(&'static str, String)> {
        let projection = match parse(config) {
            Ok(projection) => projection,
            Err(error) => return vec![("unreadable", error.to_string())],
        };
        let stretch = projection.active();
        let chain = |chain: &crate::Chain| {
            let nodes: Vec<String> = chain.units.iter().map(|unit| unit.0.to_string()).collect();
            nodes.join(",")
        };
        let chains: Vec<String> = stretch.chains.iter().map(chain).collect();
        vec![
            ("units", chains.join(" ")),
            ("sequencer", projection.sequencer.0.to_string()),
            ("stripe", stretch.stripe.to_string()),
        ]
    }

    fn duties(&self, config: &Bytes) -> Duties {
        duties(config)
    }

    fn parts(&self, config: &Bytes) -> Vec<Part> {
        parts(config)
    }

    fn can_seal(&self, config: &Bytes, reached: &dyn Fn(NodeId) -> bool) -> bool {
        parse(config).is_ok_and(|projection| reasons::can_seal(&projection, reached))
    }

    fn reason_to_reconfigure(&self, config: &Bytes, evidence: &Evidence<'_>) -> Option<Reason> {
        reasons::reason(&parse(config).ok()?, evidence)
    }

    /// An appender that does not reach some unit cannot tell which one it is, so only a silent sequencer is suspect.
    fn suspect(&self, config: &Bytes, trouble: Trouble) -> Option<NodeId> {
        let sequencer = parse(config).ok()?.sequencer.0;
        (trouble == Trouble::NoSequencer).then_some(sequencer)
    }

    fn progress<'a>(&'a self, node: NodeId, extents: &'a [Extent]) -> BoxFuture<'a, Option<Vec<Progress>>> {
        Box::pin(async move {
            let loglets: Vec<LogletId> = extents.iter().map(|e| e.loglet).collect();
            let known = ask_status(&self.env, node, UNIT, &loglets).await?;
            Some(extents.iter().map(|extent| progress_of(node, known.get(&extent.loglet), extent)).collect())
        })
    }

    fn back_fill(&self, extent: &Extent) -> BoxFuture<'_, ()> {
        let opened = self.open_corfu(extent.loglet, &extent.config);
        let end = SealedAt::from_bytes(extent.sealed.clone());
        let (Ok(loglet), Ok(end)) = (opened, end) else { return Box::pin(std::future::ready(())) };
        loglet.ends(end);
        let range = extent.range.start.0..extent.range.end.0;
        // Ignore the outcome: the next round checks again.
        Box::pin(async move {
            hit("corfu.back_fill.asked");
            let _ = self.env.within(OWN_ANSWER, Box::pin(loglet.back_fill(range))).await;
        })
    }

    fn held_here(&self, above: Option<LogletId>) -> BoxFuture<'_, Option<(Vec<LogletId>, bool)>> {
        Box::pin(held_here(&self.env, UNIT, above))
    }

    fn delete_here(&self, id: LogletId) -> BoxFuture<'_, bool> {
        Box::pin(delete_here(&self.env, UNIT, id, OWN_ANSWER))
    }
}
