//! Limits of the lists and texts in requests, checked before any work. Without them, a request of a megabyte could name a hundred thousand
//! nodes, and an error message could repeat all of it.

use atoll_client::{Reason, proto};

use crate::backend::Refusal;

/// The maximum number of nodes in one list of a request. No Loglet or cluster has more.
pub const MAX_NODES: usize = 64;
/// The maximum number of roles that one request places: several for each of many stripes, chains or shards.
const MAX_PLACES: usize = 256;
/// The maximum number of options in one request.
const MAX_OPTIONS: usize = 256;
/// The longest value of an option, in bytes.
const MAX_OPTION_BYTES: usize = 256;
/// How much of a text from a request an error message repeats, in characters.
const MAX_SHOWN: usize = 80;

/// Returns a text from a request as an error message may repeat it: quoted, and cut off if it is too long.
pub fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}, cut off after {MAX_SHOWN} characters,", &text[..end]),
    }
}

/// Refuses a list with more than `most` elements.
pub fn check_list(what: &str, length: usize, most: usize) -> Result<(), Refusal> {
    if length <= most {
        return Ok(());
    }
    Err(Refusal::no(Reason::TooLarge, format!("{length} {what}; at most {most} are allowed"), ""))
}

/// Refuses a text with more than `most` bytes.
pub fn check_text(what: &str, text: &str, most: usize) -> Result<(), Refusal> {
    if text.len() <= most {
        return Ok(());
    }
    let length = text.len();
    Err(Refusal::no(Reason::TooLarge, format!("{what} of {length} bytes; at most {most} are allowed"), ""))
}

/// Refuses a Loglet specification whose lists or texts are too long.
pub fn check_spec(spec: &proto::LogletSpec) -> Result<(), Refusal> {
    check_text("a kind of loglet", spec.kind.as_deref().unwrap_or_default(), MAX_SHOWN)?;
    check_list("servers of a loglet", spec.servers.len(), MAX_NODES)?;
    check_list("places of a loglet", spec.places.len(), MAX_PLACES)?;
    for place in &spec.places {
        check_text("a role of a loglet", &place.role, MAX_SHOWN)?;
        check_list("nodes of a role", place.nodes.len(), MAX_NODES)?;
    }
    check_list("options of a loglet", spec.options.len(), MAX_OPTIONS)?;
    for (name, value) in &spec.options {
        check_text("the name of an option", name, MAX_SHOWN)?;
        check_text("the value of an option", value, MAX_OPTION_BYTES)?;
    }
    check_list("nodes to avoid", spec.avoid.len(), MAX_NODES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_texts_are_measured_and_no_answer_repeats_a_long_one() {
        let spec = |kind: &str, servers, avoid| proto::LogletSpec {
            kind: Some(kind.to_owned()),
            servers: vec![1; servers],
            sequencer: None,
            avoid: vec![1; avoid],
            ..proto::LogletSpec::default()
        };
        let place = |role: &str, n| proto::Place { role: role.to_owned(), nodes: vec![1; n] };
        let placed = |places| proto::LogletSpec { places, ..proto::LogletSpec::default() };
        assert_eq!(check_spec(&placed(vec![place("unit", MAX_NODES)])), Ok(()));
        for bad in [
            vec![place("unit", MAX_NODES + 1)],
            vec![place(&"u".repeat(81), 1)],
            vec![place("u", 1); MAX_PLACES + 1],
        ] {
            assert!(check_spec(&placed(bad)).is_err_and(|r| r.failure.reason == Reason::TooLarge));
        }
        assert_eq!(check_spec(&spec("a kind", MAX_NODES, MAX_NODES)), Ok(()));
        for bad in [spec("n", MAX_NODES + 1, 0), spec("n", 0, 400_000), spec(&"n".repeat(81), 0, 0)] {
            let refusal = check_spec(&bad).map_err(|r| r.failure);
            assert!(refusal.is_err_and(|f| f.reason == Reason::TooLarge && f.message.len() < 200));
        }
        assert_eq!(shown("a\"b"), r#""a\"b""#);
        assert!(shown(&"\u{e9}".repeat(1 << 20)).len() < 300);
    }
}
