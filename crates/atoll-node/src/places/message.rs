//! What nodes ask each other about places of registers.

atoll_core::message! {
    /// Asks a node what it finds at a place of registers. Sent only from [`atoll_core::level::since::REGISTER_PLACES`] on.
    pub struct AskPlace = 18 {
        /// The name of the place.
        pub name: String,
    }
}

atoll_core::message! {
    /// What a node finds at a place.
    #[derive(Default)]
    pub struct PlaceSeen = 19 {
        /// The URL of the place in its configuration; empty if it has no place with this name.
        pub url: String,
        /// The token of the cluster that uses the place; None if there is none.
        pub token: Option<u128>,
        /// Why it does not reach the place; None if it does.
        pub failed: Option<String>,
    }
}
atoll_core::rpc!(AskPlace => PlaceSeen, crate::members::roles::PLACES, Control);

atoll_core::message! {
    /// Sent by the procedure to the role on its own node: what it has found.
    pub struct PlaceReady = 20 {
        /// The number of the question.
        pub question: u64,
        /// See [`PlaceSeen`].
        pub url: String,
        /// See [`PlaceSeen`].
        pub token: Option<u128>,
        /// See [`PlaceSeen`].
        pub failed: Option<String>,
    }
}
