use atoll_sim::runner::is_of_safety;

/// A known bug that only makes the product panic, or stop, is not caught.
#[test]
fn only_what_an_oracle_says_counts_as_caught() {
    for other in ["PANIC: index out of bounds", "LIVENESS: no append", "SPIN at 3 s", "HARNESS: no log"] {
        assert!(!is_of_safety(other), "{other}");
    }
    assert!(is_of_safety("a record is lost") && is_of_safety("vlog-V1: two values at 7"));
}
