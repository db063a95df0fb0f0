//! The allocator of the program.

use libmimalloc_sys::{mi_option_set, mi_option_t};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc.h, which the bindings do not name.
const PURGE_DELAY: mi_option_t = 15;

/// For how long memory stays that is not used, milliseconds. At once would have a busy node fetch again what it has just given back: 4 % of
/// its appends at depth 64 and 256.
const KEPT_MS: i64 = 50;

/// From here on memory that is not used soon goes back to the system. As it comes, the allocator keeps it for a second or more: refused
/// messages of a crowd of clients cost a node three times the memory that its limits allow (`drills/hostile_grpc.py`).
#[allow(unsafe_code)] // The only call of C in this program's own code.
pub fn give_back_soon() {
    // SAFETY: mimalloc takes options at any time; this stores one number, in an array of its own that has one of this index.
    unsafe { mi_option_set(PURGE_DELAY, KEPT_MS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number is the one of the option that is meant: by its default, and by those beside it that are named.
    #[test]
    #[allow(unsafe_code)]
    fn the_option_is_the_delay() {
        // SAFETY: as above; reading an option has no other effect.
        let get = |option| unsafe { libmimalloc_sys::mi_option_get(option) };
        const { assert!(PURGE_DELAY < libmimalloc_sys::_mi_option_last) };
        assert_eq!(PURGE_DELAY + 1, libmimalloc_sys::mi_option_use_numa_nodes);
        assert_eq!(get(PURGE_DELAY), 1000, "milliseconds, unless it was set");
        give_back_soon();
        assert_eq!(get(PURGE_DELAY), KEPT_MS);
    }
}
