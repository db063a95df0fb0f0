//! What a user did.

/// The longest name of a user, of a session or of an item.
pub const MAX_NAME_BYTES: usize = 128;

atoll_core::choice! {
    /// What was done with an item.
    #[derive(Copy)]
    pub enum Kind {
        /// Looked at.
        0 = View {},
        /// Put into the cart.
        1 = Cart {},
        /// Bought.
        2 = Purchase {},
        /// Found by a search.
        3 = Search {},
    }
}

atoll_core::record! {
    /// One event, as it is in the log.
    pub struct UserEvent {
        /// Who.
        pub user: String,
        /// In which session.
        pub session: String,
        /// Did what.
        pub kind: Kind,
        /// With what: category and name, with a slash in between.
        pub item: String,
        /// At which price, in cents.
        pub price_cents: u64,
        /// When, by the producer's clock.
        pub time_ms: u64,
    }
}

impl UserEvent {
    /// Refuses what must not be appended, and says why.
    pub fn check(&self) -> Result<(), &'static str> {
        let names = [&self.user, &self.session, &self.item];
        if names.iter().any(|name| name.is_empty() || name.len() > MAX_NAME_BYTES) {
            return Err("users, sessions and items have names of 1 to 128 bytes");
        }
        match self.item.split_once('/') {
            Some((category, name)) if !category.is_empty() && !name.is_empty() => Ok(()),
            _ => Err("an item is CATEGORY/NAME"),
        }
    }
}

/// Returns the category of an item.
pub fn category(item: &str) -> &str {
    item.split_once('/').map_or(item, |(category, _)| category)
}
