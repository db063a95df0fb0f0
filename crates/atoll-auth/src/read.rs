//! Reads the grants and tokens from a view.

use atoll_contract::application::{Direction, StoreError, View};
use atoll_core::codec::Decode;

use crate::layout::{self, KeptToken};
use crate::policy::{Grant, Policy, Token};

/// Returns all grants and tokens, in order, and the policy that they make. Panics if the state is damaged.
///
/// # Errors
/// The store cannot be read.
pub fn policy(view: &View) -> Result<(Vec<Grant>, Vec<Token>, Policy), StoreError> {
    let (mut grants, mut tokens) = (Vec::new(), Vec::new());
    for row in view.scan(&layout::grants(), Direction::Forward) {
        let (key, right) = row?;
        grants.push(grant(&key, &right).unwrap_or_else(|| panic!("damaged state: a grant")));
    }
    for row in view.scan(&layout::tokens(), Direction::Forward) {
        let (key, kept) = row?;
        let kept = KeptToken::from_bytes(kept).expect("damaged state: a token");
        let name = layout::name_of_token(&key).expect("damaged state: the name of a token");
        let hash = kept.hash[..].try_into().expect("damaged state: the hash of a token");
        tokens.push(Token { name: name.to_owned(), hash, created_ms: kept.created_ms });
    }
    let policy = Policy::new(&grants, &tokens);
    Ok((grants, tokens, policy))
}

fn grant(key: &[u8], right: &[u8]) -> Option<Grant> {
    let (who, on) = layout::parts_of_grant(key)?;
    let right = std::str::from_utf8(right).ok()?.parse().ok()?;
    Some(Grant { who: who.parse().ok()?, on: on.parse().ok()?, right })
}
