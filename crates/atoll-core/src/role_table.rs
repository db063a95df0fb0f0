//! The roles of a node, and their deadlines.

use crate::ids::{RoleKind, Tick};
use crate::role::Role;

struct Held {
    kind: RoleKind,
    role: Box<dyn Role>,
    /// The cached deadline. The outer None means that the role has run since it was last queried.
    deadline: Option<Option<Tick>>,
}

/// Roles in the order of their kinds. A role's deadline changes only when the role runs, so the table queries it once after each run. Most
/// steps of a turn run at most one role, and querying all of them in every step would be a waste.
#[derive(Default)]
pub(crate) struct RoleTable {
    held: Vec<Held>,
    /// The first deadline of all roles. The outer None means that a role has run since it was computed.
    first: Option<Option<Tick>>,
}

impl RoleTable {
    fn place(&self, kind: RoleKind) -> Result<usize, usize> {
        self.held.binary_search_by_key(&kind, |held| held.kind)
    }

    pub(crate) fn add(&mut self, kind: RoleKind, role: Box<dyn Role>) {
        match self.place(kind) {
            Ok(_) => panic!("{kind} is there twice"),
            Err(place) => self.held.insert(place, Held { kind, role, deadline: None }),
        }
        self.first = None;
    }

    /// Returns a role that is about to run, and invalidates its cached deadline.
    pub(crate) fn get_mut(&mut self, kind: RoleKind) -> Option<&mut dyn Role> {
        let place = self.place(kind).ok()?;
        let held = &mut self.held[place];
        held.deadline = None;
        self.first = None;
        Some(held.role.as_mut())
    }

    pub(crate) fn get(&self, kind: RoleKind) -> Option<&dyn Role> {
        self.place(kind).ok().map(|place| self.held[place].role.as_ref())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RoleKind, &dyn Role)> {
        self.held.iter().map(|held| (held.kind, held.role.as_ref()))
    }

    pub(crate) fn kinds(&self) -> Vec<RoleKind> {
        self.held.iter().map(|held| held.kind).collect()
    }

    /// Returns the first role, in the order of kinds, whose deadline has come.
    pub(crate) fn due(&mut self, now: Tick) -> Option<RoleKind> {
        let held = &mut self.held;
        let first = *self.first.get_or_insert_with(|| {
            let ask = |held: &mut Held| *held.deadline.get_or_insert_with(|| held.role.deadline());
            held.iter_mut().filter_map(ask).min()
        });
        first.filter(|at| *at <= now)?;
        held.iter().find(|held| held.deadline.flatten().is_some_and(|at| at <= now)).map(|held| held.kind)
    }

    /// Returns the earliest deadline of all roles.
    pub(crate) fn first_deadline(&self) -> Option<Tick> {
        let ask = |held: &Held| held.deadline.unwrap_or_else(|| held.role.deadline());
        let first = self.first.unwrap_or_else(|| self.held.iter().filter_map(ask).min());
        debug_assert_eq!(
            first,
            self.held.iter().filter_map(|held| held.role.deadline()).min(),
            "a role's deadline has changed although it has not run"
        );
        first
    }
}
