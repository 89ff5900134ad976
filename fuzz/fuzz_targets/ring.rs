//! A list of operations on a ring, beside the simplest model of it: whatever the
//! sizes and the order, every byte comes out once and in order, and a lying cursor is
//! refused or harmless.
//!
//! `cargo xtask fuzz ring`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_device::ring::Spans;
use sidestep_proto::cursor::{readable, window};
use std::collections::VecDeque;

/// Ring length in bytes: small, so that it wraps often.
const LEN: usize = 64;

fuzz_target!(|operations: &[u8]| {
    let mut ring = [0u8; LEN];
    let mut model = VecDeque::new();
    // Close to the end of the range, so that the positions wrap, too.
    let (mut producer, mut consumer) = (u64::MAX - 200, u64::MAX - 200);
    let mut next = 0u8;
    for operation in operations.chunks_exact(2) {
        let [what, amount] = [operation[0] % 3, operation[1]];
        let amount = usize::from(amount) % (LEN + 1);
        match what {
            0 => {
                let n = window(producer, consumer, LEN).expect("an honest cursor").min(amount);
                let spans = Spans::cut(producer, n, LEN);
                for at in spans.first.chain(spans.second) {
                    ring[at] = next;
                    model.push_back(next);
                    next = next.wrapping_add(1);
                }
                producer = producer.wrapping_add(n as u64);
            }
            1 => {
                let n = readable(consumer, producer, LEN).expect("an honest cursor").min(amount);
                let spans = Spans::cut(consumer, n, LEN);
                for at in spans.first.chain(spans.second) {
                    assert_eq!(Some(ring[at]), model.pop_front());
                }
                consumer = consumer.wrapping_add(n as u64);
            }
            _ => {
                let lie = producer.wrapping_add((amount as u64) << (operation[0] % 64));
                if let Ok(n) = readable(consumer, lie, LEN) {
                    assert!(n <= LEN);
                }
                if let Ok(n) = window(producer, lie, LEN) {
                    assert!(n <= LEN);
                }
            }
        }
        assert_eq!(model.len() as u64, producer.wrapping_sub(consumer));
    }
});
