//! Keyspaces by name. A register for each name holds the layout of the keyspace, so that all nodes agree on which one has the name.
//!
//! A deletion takes three steps: the layout is marked as being deleted, the replicas are deleted, and the layout is marked as deleted. From
//! the first step on, nobody opens the keyspace. If the node that deletes dies after it, [`Catalog::tend`] on any node, or the next
//! creation with this name, does the rest. A creation that dies leaves a layout without replicas, which the first client provides.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use atoll_core::{Decode, DecodeError, Encode, Env, NodeId};

use super::{
    Keyspace, KeyspaceError, KeyspacePlanError, KeyspaceProvider, KeyspaceSpec, Layout, LayoutState,
};
use crate::register::{
    Listed, MAX_NAME_BYTES, MAX_VALUE_BYTES, Nonce, RegisterError, Registers, Version, Written,
};

/// The names of the registers of keyspaces start with this.
pub const REGISTER_PREFIX: &str = "keyspace/";

/// Why a keyspace was not created, opened or deleted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// There is no layout for the specification. Nothing was changed.
    #[error(transparent)]
    Plan(#[from] KeyspacePlanError),
    /// No keyspace has this name.
    #[error("there is no keyspace {0:?}")]
    NotThere(String),
    /// A keyspace has this name already. Nothing was changed.
    #[error("there is a keyspace {0:?} already")]
    Exists(String),
    /// The keyspace is being deleted.
    #[error("the keyspace {0:?} is being deleted")]
    Deleting(String),
    /// A name must have 1 to 200 printable bytes.
    #[error("{0:?} is no name for a keyspace: 1 to 200 bytes without control characters are allowed")]
    InvalidName(String),
    /// The layout is too long for a register. Nothing was changed.
    #[error("the layout has {0} bytes; at most {MAX_VALUE_BYTES} are allowed: use fewer shards")]
    TooManyShards(usize),
    /// The layout in the register cannot be decoded.
    #[error("the layout of the keyspace {name:?} is not readable: {error}")]
    Unreadable {
        /// The keyspace.
        name: String,
        /// What is wrong.
        error: DecodeError,
    },
    /// The register of the name cannot be used now.
    #[error("the register of the keyspace: {0}")]
    Register(#[from] RegisterError),
    /// The replicas could not be told. The layout was written: try again to complete the operation.
    #[error("the replicas: {0}")]
    Replicas(#[from] KeyspaceError),
}

/// The longest name of a keyspace, in bytes.
pub const MAX_KEYSPACE_NAME: usize = 200;
const _: () = assert!(MAX_KEYSPACE_NAME + REGISTER_PREFIX.len() <= MAX_NAME_BYTES);

/// The keyspaces of a cluster, as one node sees them. Cheap to clone.
#[derive(Clone)]
pub struct Catalog {
    env: Env,
    registers: Arc<dyn Registers>,
    providers: BTreeMap<&'static str, Arc<dyn KeyspaceProvider>>,
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog").field("engines", &self.providers.keys()).finish_non_exhaustive()
    }
}

fn check_name(name: &str) -> Result<(), CatalogError> {
    let fits = !name.is_empty() && name.len() <= MAX_KEYSPACE_NAME && !name.chars().any(char::is_control);
    if fits { Ok(()) } else { Err(CatalogError::InvalidName(name.chars().take(80).collect())) }
}

impl Catalog {
    /// Returns the keyspaces in these registers, of these engines.
    pub fn new(
        env: Env,
        registers: Arc<dyn Registers>,
        providers: impl IntoIterator<Item = Arc<dyn KeyspaceProvider>>,
    ) -> Self {
        let providers = providers.into_iter().map(|provider| (provider.engine(), provider)).collect();
        Catalog { env, registers, providers }
    }

    fn provider(&self, engine: &str) -> Result<&Arc<dyn KeyspaceProvider>, CatalogError> {
        let known = || self.providers.keys().copied().collect::<Vec<_>>().join(", ");
        let unknown = || KeyspacePlanError::UnknownEngine { wanted: engine.to_owned(), known: known() };
        self.providers.get(engine).ok_or_else(|| unknown().into())
    }

    /// Returns the version of the register of a name, and the layout in it.
    async fn read(&self, name: &str) -> Result<(Version, Option<Layout>), CatalogError> {
        check_name(name)?;
        let got = self.registers.register(&format!("{REGISTER_PREFIX}{name}")).read().await?;
        if got.version == Version(0) {
            return Ok((got.version, None));
        }
        let layout = Layout::from_bytes(got.value)
            .map_err(|error| CatalogError::Unreadable { name: name.to_owned(), error })?;
        Ok((got.version, Some(layout)))
    }

    /// Writes a layout. Returns false if somebody else has written in the meantime.
    async fn write(&self, name: &str, at: Version, layout: &Layout) -> Result<bool, CatalogError> {
        let value: Bytes = layout.to_bytes();
        if value.len() > MAX_VALUE_BYTES {
            return Err(CatalogError::TooManyShards(value.len()));
        }
        let nonce = Nonce(u128::from(self.env.random()) << 64 | u128::from(self.env.random()));
        let register = self.registers.register(&format!("{REGISTER_PREFIX}{name}"));
        Ok(matches!(register.write_if(at, value, nonce).await?, Written::Yes(_)))
    }

    /// Creates a keyspace and returns its layout. If the outcome is unknown, the keyspace may be there: open it.
    pub async fn create(&self, name: &str, spec: &KeyspaceSpec) -> Result<Layout, CatalogError> {
        loop {
            let (version, now) = self.read(name).await?;
            match now {
                Some(rest) if rest.state == LayoutState::Deleting => {
                    self.finish_delete(name, version, rest).await?;
                    continue;
                }
                Some(rest) if rest.state != LayoutState::Deleted => {
                    return Err(CatalogError::Exists(name.to_owned()));
                }
                _ => {}
            }
            let provider = self.provider(&spec.engine)?;
            let layout = provider.plan(spec).await?;
            if self.write(name, version, &layout).await? {
                // Replicas that do not hear of it now learn of it from the first client.
                let _ = provider.provision(&layout).await;
                return Ok(layout);
            }
        }
    }

    /// Returns the layout of a keyspace.
    pub async fn layout(&self, name: &str) -> Result<Layout, CatalogError> {
        Ok(self.read_normal(name).await?.1)
    }

    /// Returns whether a keyspace has this name, or had it before it was deleted.
    pub async fn is_known(&self, name: &str) -> Result<bool, CatalogError> {
        Ok(self.read(name).await?.1.is_some())
    }

    /// Returns a handle to the keyspace with this layout. Contacts no server.
    pub fn open_layout(&self, layout: &Layout) -> Result<Arc<dyn Keyspace>, CatalogError> {
        Ok(self.provider(&layout.engine)?.open(layout))
    }

    /// Returns a handle to a keyspace.
    pub async fn open(&self, name: &str) -> Result<Arc<dyn Keyspace>, CatalogError> {
        let layout = self.layout(name).await?;
        self.open_layout(&layout)
    }

    /// Deletes a keyspace, or completes its deletion. It is gone once this returns, and refuses everything from the first step on. If
    /// somebody else deletes it meanwhile and creates another one with its name, the other one stays.
    pub async fn delete(&self, name: &str) -> Result<(), CatalogError> {
        let mut meant = None;
        loop {
            let (version, now) = self.read(name).await?;
            let Some(mut layout) = now.filter(|layout| layout.state != LayoutState::Deleted) else {
                return if meant.is_some() { Ok(()) } else { Err(CatalogError::NotThere(name.to_owned())) };
            };
            if *meant.get_or_insert(layout.id) != layout.id {
                return Ok(());
            }
            if layout.state == LayoutState::Deleting {
                return self.finish_delete(name, version, layout).await;
            }
            layout.state = LayoutState::Deleting;
            self.write(name, version, &layout).await?;
        }
    }

    /// Deletes the replicas of a keyspace that is being deleted, and then marks it as deleted. If the mark loses against another write,
    /// the register is read again: it may still say that the keyspace is being deleted.
    async fn finish_delete(
        &self,
        name: &str,
        mut at: Version,
        mut layout: Layout,
    ) -> Result<(), CatalogError> {
        loop {
            self.provider(&layout.engine)?.delete(&layout).await?;
            let mut deleted = layout.clone();
            deleted.state = LayoutState::Deleted;
            // Nobody needs to know any more where the other shards were.
            deleted.shards.truncate(1);
            if self.write(name, at, &deleted).await? {
                return Ok(());
            }
            match self.read(name).await? {
                (version, Some(now)) if now.id == layout.id && now.state == LayoutState::Deleting => {
                    (at, layout) = (version, now);
                }
                _ => return Ok(()),
            }
        }
    }

    /// Moves the replicas of a keyspace to where `spec` wants them, and returns the layout at the end. Requests are answered meanwhile,
    /// except for those of a shard whose turn it is. If this fails, the move may have begun: any node completes it
    /// ([`Catalog::tend`]), and so does another call, which may also name other nodes.
    pub async fn relocate(&self, name: &str, spec: &KeyspaceSpec) -> Result<Layout, CatalogError> {
        self.plan_move(name, spec).await?;
        self.complete_move(name).await.map(|(layout, _)| layout)
    }

    /// Begins to move the replicas of a keyspace, and returns the layout with the plan. [`Catalog::complete_move`] does the steps.
    pub async fn plan_move(&self, name: &str, spec: &KeyspaceSpec) -> Result<Layout, CatalogError> {
        loop {
            let (version, layout) = self.read_normal(name).await?;
            let planned = self.provider(&layout.engine)?.plan_move(&layout, spec).await?;
            if planned == layout || self.write(name, version, &planned).await? {
                return Ok(planned);
            }
        }
    }

    /// Returns how many shards of a layout are still to move.
    pub fn left_to_move(&self, layout: &Layout) -> usize {
        self.providers.get(layout.engine.as_str()).map_or(0, |provider| provider.left_to_move(layout))
    }

    /// Checks whether a keyspace could move to where `spec` wants it. Nothing is changed.
    pub async fn may_relocate(&self, layout: &Layout, spec: &KeyspaceSpec) -> Result<(), CatalogError> {
        self.provider(&layout.engine)?.plan_move(layout, spec).await?;
        Ok(())
    }

    /// Returns every node that holds something of a keyspace with this layout, or is about to. If nobody here knows the engine, these are
    /// the nodes of its shards.
    pub fn nodes(&self, layout: &Layout) -> Vec<NodeId> {
        self.provider(&layout.engine).map_or_else(|_| layout.nodes(), |provider| provider.nodes(layout))
    }

    /// Returns the layout of a keyspace that is there, and its version.
    async fn read_normal(&self, name: &str) -> Result<(Version, Layout), CatalogError> {
        match self.read(name).await? {
            (_, None) => Err(CatalogError::NotThere(name.to_owned())),
            (version, Some(layout)) => match layout.state {
                LayoutState::Deleted => Err(CatalogError::NotThere(name.to_owned())),
                LayoutState::Deleting => Err(CatalogError::Deleting(name.to_owned())),
                LayoutState::Normal | LayoutState::Copying => Ok((version, layout)),
            },
        }
    }

    /// Does all steps of a move that are left. Returns the layout then, and how many steps there were.
    pub async fn complete_move(&self, name: &str) -> Result<(Layout, usize), CatalogError> {
        let mut steps = 0;
        loop {
            let (version, layout) = self.read_normal(name).await?;
            match self.provider(&layout.engine)?.step(&layout).await {
                Ok(Some(next)) => {
                    // If somebody else has written, the step was theirs, too.
                    self.write(name, version, &next).await?;
                    steps += 1;
                }
                Ok(None) => return Ok((layout, steps)),
                Err(error) => {
                    // Another node may have done the step meanwhile.
                    if self.read(name).await?.0 == version {
                        return Err(error.into());
                    }
                }
            }
        }
    }

    /// Lists the names of the keyspaces that are there, in order.
    pub async fn names(&self) -> Result<Vec<String>, CatalogError> {
        Ok(self.layouts().await?.into_iter().map(|(name, _)| name).collect())
    }

    /// Lists the keyspaces that are there, in the order of their names.
    pub async fn layouts(&self) -> Result<Vec<(String, Layout)>, CatalogError> {
        let mut layouts = Vec::new();
        for listed in self.registers.list(REGISTER_PREFIX).await? {
            let Some(name) = listed.name.strip_prefix(REGISTER_PREFIX) else { continue };
            match self.layout(name).await {
                Ok(layout) => layouts.push((name.to_owned(), layout)),
                Err(CatalogError::NotThere(_) | CatalogError::Deleting(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(layouts)
    }

    /// Completes deletions and moves that died in the middle. Returns how many it has completed. Call it from time to time on any node.
    pub async fn tend(&self) -> Result<usize, CatalogError> {
        self.tend_since(&mut BTreeMap::new()).await
    }

    /// Like [`Catalog::tend`], but does not read the registers that had nothing to complete at an earlier call with the same `settled` and
    /// have not changed since. One keyspace that cannot be deleted or moved now does not keep the others waiting.
    ///
    /// # Errors
    /// The first error, after all registers were looked at.
    pub async fn tend_since(&self, settled: &mut BTreeMap<String, u128>) -> Result<usize, CatalogError> {
        let listed = self.registers.list(REGISTER_PREFIX).await?;
        settled.retain(|name, _| listed.iter().any(|l| l.name == *name));
        let (mut completed, mut failed) = (0, None);
        for Listed { name: register, mark } in listed {
            if mark.is_some() && settled.get(&register) == mark.as_ref() {
                continue;
            }
            let Some(name) = register.strip_prefix(REGISTER_PREFIX) else { continue };
            match self.complete(name).await {
                Ok(true) => completed += 1,
                Ok(false) => settled.extend(mark.map(|mark| (register, mark))),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(completed), Err)
    }

    /// Completes the deletion of a keyspace, or its move to other nodes, if there is one. Returns whether there was.
    async fn complete(&self, name: &str) -> Result<bool, CatalogError> {
        match self.read(name).await? {
            (version, Some(layout)) if layout.state == LayoutState::Deleting => {
                self.finish_delete(name, version, layout).await?;
                Ok(true)
            }
            (_, Some(layout))
                if layout.state == LayoutState::Normal
                    && self.providers.contains_key(layout.engine.as_str()) =>
            {
                Ok(self.complete_move(name).await?.1 > 0)
            }
            _ => Ok(false),
        }
    }
}
