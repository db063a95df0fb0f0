//! The invariants of a striped Loglet. It keeps nothing itself, so all of them rest on those of its stripes (vlog-L1–vlog-L9).
//!
//! | invariant | where it is maintained |
//! | --- | --- |
//! | striped-I1 an acknowledged offset has only filled offsets below it | `append.rs`; checked here |
//! | striped-I2 what counts as filled is below every sealed tail of its stripe | only acknowledgements and open tails count (`stripes.rs`, vlog-L3, vlog-L4) |
//! | striped-I3 acknowledged offsets are below every sealed tail | I1 and I2, because the sealed tail is the first unfilled offset (`check_tail.rs`) |
//! | striped-I4 a sealed tail is only reported once all stripes are sealed | `check_tail.rs` |
//! | striped-I5 one record, one stripe | `layout.rs`: the stripe follows from the record's name |
//! | striped-I6 an append behind an idle stripe ends | `pads.rs`; the scenario `striped-idle` checks it |
//! | striped-I7 a pad is below a record that was there before | `pads.rs` asks for the offsets below a blocked append, and the stripe fills each once (`Loglet::append_above`) |

use atoll_contract::Offset;
use atoll_core::invariant;

/// Checks that an append may be acknowledged: everything below its end is filled (striped-I1).
pub(crate) fn may_acknowledge(end: Offset, first_unfilled: Offset) {
    invariant!(
        end <= first_unfilled,
        "an append up to {end} although {first_unfilled} is unfilled (striped-I1)"
    );
}
