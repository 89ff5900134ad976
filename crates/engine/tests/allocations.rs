//! Once warm, a host takes no memory to send, to receive and to open its window, however many
//! connections and link groups it has.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[path = "support/pair.rs"]
mod pair;

use pair::{CLIENT, Pair, SERVER};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts for each thread.
struct Counting;

// SAFETY: everything is the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's word.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's word.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Messages go one way, so their reader has to tell what it has read, and the other.
#[test]
fn messages_take_no_memory_once_warm() {
    let mut pair = Pair::with_connections(30);
    let mut messages = |rounds: usize| {
        for round in 0..rounds {
            let talk = round % 30;
            pair.pass(talk, CLIENT, &[7; 2000]);
            if round % 3 == 0 {
                pair.pass(talk, SERVER, &[8; 100]);
            }
        }
    };
    // Around the end of each ring several times.
    messages(4_000);
    let before = ALLOCATIONS.get();
    messages(4_000);
    assert_eq!(ALLOCATIONS.get(), before);
}
