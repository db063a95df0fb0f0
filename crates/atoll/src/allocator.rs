//! The allocator of the program.

use libmimalloc_sys::{mi_option_set, mi_option_t};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc.h, which the bindings do not name.
const PURGE_DELAY: mi_option_t = 15;

/// Makes the allocator return unused memory to the system at once. By default it keeps such memory for a second or more. Refused messages
/// of many clients then take three times the memory that a node's limits allow (`drills/hostile_grpc.py`), and appends are no faster.
#[allow(unsafe_code)] // The only call of C in this program's own code.
pub fn give_back_at_once() {
    // SAFETY: mimalloc accepts options at any time. This stores one number in an array of its own, which has this index.
    unsafe { mi_option_set(PURGE_DELAY, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the number is that of the right option: by its default value, and by its neighbours, which the bindings name.
    #[test]
    #[allow(unsafe_code)]
    fn the_option_is_the_delay() {
        // SAFETY: as above; reading an option has no other effect.
        let get = |option| unsafe { libmimalloc_sys::mi_option_get(option) };
        const { assert!(PURGE_DELAY < libmimalloc_sys::_mi_option_last) };
        assert_eq!(PURGE_DELAY + 1, libmimalloc_sys::mi_option_use_numa_nodes);
        assert_eq!(get(PURGE_DELAY), 1000, "milliseconds, unless it was set");
        give_back_at_once();
        assert_eq!(get(PURGE_DELAY), 0);
    }
}
