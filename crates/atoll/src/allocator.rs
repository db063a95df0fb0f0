//! The allocator of the program: mimalloc for most blocks, the system's for large ones.
//!
//! What a node uses all the time is small, and is fastest in huge pages (2 MiB). So the first [`HUGE_MIB`] MiB are in huge pages, and what
//! is used beyond, mostly caches, is not: the kernel would fill whole huge pages where only parts are used, and a node with much data would
//! take half as much memory again.
//!
//! Memory that is free for a moment will soon be used again. To give it back to the system at once means to fault it in again, page by
//! page. So free memory waits a while.
//!
//! Large blocks are mostly buffers for what clients send. A client may announce megabytes and send a little, which would take a huge page
//! each time. A block from the system takes only the small pages that are touched, and all of it goes back as soon as it is freed. So
//! clients that misbehave cannot make a node much larger than its limits allow (`drills/hostile_grpc.py`).

use std::alloc::{GlobalAlloc, Layout, System};

use libmimalloc_sys::{mi_option_set, mi_option_t};
use mimalloc::MiMalloc;

/// The size of the smallest large block, in bytes. If it is smaller, busy nodes fault in more memory again and again. If it is larger,
/// clients that announce more than they send take more memory.
const LARGE_BYTES: usize = 1024 * 1024;

/// `mi_option_purge_delay` of mimalloc.h, which the bindings do not name, in milliseconds.
const PURGE_DELAY: mi_option_t = 15;
/// `mi_option_arena_reserve` of mimalloc.h, which the bindings do not name: the size of a region that it takes from the system, in KiB.
const REGION: mi_option_t = 23;
/// `mi_option_allow_thp` of mimalloc.h, which the bindings do not name: whether it asks for huge pages for a region.
const HUGE_PAGES: mi_option_t = 43;

/// How long free memory waits for use, in milliseconds, before it goes back to the system. If it is shorter, busy nodes fault in more
/// memory again. If it is longer, memory that only a burst needed stays longer.
const DELAY_MS: i64 = 100;
/// The size of the first region, which is in huge pages, in MiB. A busy node with little data has all of its memory there.
const HUGE_MIB: i64 = 128;
/// The size of the other regions, in MiB: what mimalloc takes by default.
const REGION_MIB: i64 = 1024;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// See the module documentation.
struct Allocator;

// SAFETY: The size of a block says which allocator it is from. Callers pass the same layout when they free or resize the block, so it
// always goes back to that one. Both allocators keep the contract of `GlobalAlloc`.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        unsafe { if is_large(layout.size()) { System.alloc(layout) } else { MiMalloc.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        unsafe {
            if is_large(layout.size()) { System.alloc_zeroed(layout) } else { MiMalloc.alloc_zeroed(layout) }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on, to the allocator that the block is from.
        unsafe {
            if is_large(layout.size()) {
                System.dealloc(block, layout)
            } else {
                MiMalloc.dealloc(block, layout)
            }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's promises are passed on, to the allocator that the block is from. If the block has to move to the other
        // one, the new block is distinct from it and as aligned, and both have the bytes that are copied.
        unsafe {
            match (is_large(layout.size()), is_large(bytes)) {
                (false, false) => MiMalloc.realloc(block, layout, bytes),
                (true, true) => System.realloc(block, layout, bytes),
                _ => {
                    let moved = self.alloc(Layout::from_size_align_unchecked(bytes, layout.align()));
                    if !moved.is_null() {
                        std::ptr::copy_nonoverlapping(block, moved, layout.size().min(bytes));
                        self.dealloc(block, layout);
                    }
                    moved
                }
            }
        }
    }
}

fn is_large(bytes: usize) -> bool {
    bytes >= LARGE_BYTES
}

/// Runs before the first allocation, which makes mimalloc take its first region.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
// SAFETY: the section holds functions of this type, which the C library calls once each, before `main`.
#[unsafe(link_section = ".init_array")]
#[used]
static BEFORE_MAIN: extern "C" fn() = before_main;

#[cfg(target_os = "linux")]
extern "C" fn before_main() {
    set(REGION, HUGE_MIB * 1024);
}

#[allow(unsafe_code)]
fn set(option: mi_option_t, value: i64) {
    // SAFETY: mimalloc accepts options at any time. The call stores one number in an array of its own, which has this index.
    unsafe { mi_option_set(option, value) }
}

/// Sets how both allocators take memory and give it back. To be called first: what is allocated before it is treated as by default.
#[allow(unsafe_code)]
pub fn set_up() {
    set(PURGE_DELAY, DELAY_MS);
    // The first region is there by now.
    set(REGION, REGION_MIB * 1024);
    set(HUGE_PAGES, 0);
    // By default, the C library takes larger and larger blocks from a heap that it does not give back.
    // SAFETY: the number is positive and fits.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES as libc::c_int);
    }
}

#[cfg(test)]
#[allow(unsafe_code, clippy::unwrap_used)]
mod tests {
    use super::*;

    fn get(option: mi_option_t) -> i64 {
        // SAFETY: reading an option has no other effect.
        unsafe { libmimalloc_sys::mi_option_get(option) }
    }

    /// Checks that the numbers are those of the right options: by their default values, and by their neighbours.
    #[test]
    fn the_options_are_the_right_ones() {
        assert_eq!(PURGE_DELAY + 1, libmimalloc_sys::mi_option_use_numa_nodes);
        assert_eq!(HUGE_PAGES + 4, libmimalloc_sys::_mi_option_last);
        let before = [PURGE_DELAY, REGION, HUGE_PAGES].map(get);
        assert_eq!(
            before,
            [1000, HUGE_MIB * 1024, 1],
            "milliseconds, KiB, and whether; the second was set before `main`"
        );
        set_up();
        assert_eq!([PURGE_DELAY, REGION, HUGE_PAGES].map(get), [DELAY_MS, REGION_MIB * 1024, 0]);
    }

    #[test]
    fn a_block_keeps_its_bytes_when_it_moves_between_the_allocators() {
        let sizes = [1, LARGE_BYTES - 1, LARGE_BYTES, 3 * LARGE_BYTES, LARGE_BYTES - 1, LARGE_BYTES, 7];
        for align in [1, 64, 8192] {
            let mut layout = Layout::from_size_align(sizes[0], align).unwrap();
            // SAFETY: the layouts are those of the block, and only its bytes are read and written.
            unsafe {
                let mut block = ALLOCATOR.alloc(layout);
                block.write(7);
                for bytes in sizes {
                    block = ALLOCATOR.realloc(block, layout, bytes);
                    layout = Layout::from_size_align(bytes, align).unwrap();
                    assert!(
                        !block.is_null() && block.addr().is_multiple_of(align),
                        "{bytes} bytes at {block:?}"
                    );
                    assert_eq!(block.read(), 7, "after it was resized to {bytes} bytes");
                    block.add(bytes - 1).write(7);
                }
                ALLOCATOR.dealloc(block, layout);
                for bytes in sizes {
                    let layout = Layout::from_size_align(bytes, align).unwrap();
                    let block = ALLOCATOR.alloc_zeroed(layout);
                    assert!(std::slice::from_raw_parts(block, bytes).iter().all(|byte| *byte == 0));
                    ALLOCATOR.dealloc(block, layout);
                }
            }
        }
    }
}
