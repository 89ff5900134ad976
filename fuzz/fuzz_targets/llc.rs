//! No bytes make an LLC parser panic, and what was understood can be said again: links and receive
//! buffers of SMC-R, in both versions and both byte orders.
//!
//! `cargo xtask fuzz llc`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_wire::llc::{EMITTED_LEN_MAX, Message};

fuzz_target!(|bytes: &[u8]| {
    let Ok(message) = Message::parse(bytes) else {
        return;
    };
    let mut out = [0; EMITTED_LEN_MAX];
    let len = message.emit(&mut out).expect("what parsed can be emitted");
    let again = Message::parse(&out[..len]).expect("what was emitted parses");
    // A length of two equal bytes does not tell in which order they stand.
    if out[1] != out[2] {
        assert_eq!(again, message);
    }
});
