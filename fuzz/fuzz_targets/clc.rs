//! No bytes make a CLC parser panic, and what it understood it can say again.
//!
//! `cargo +nightly fuzz run clc fuzz/corpus/clc fuzz/seeds/clc`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_wire::clc::{EMITTED_LEN_MAX, Message};

fuzz_target!(|bytes: &[u8]| {
    let Ok(message) = Message::parse(bytes) else {
        return;
    };
    let mut out = [0; EMITTED_LEN_MAX];
    let len = message.emit(&mut out).expect("what parsed can be emitted");
    assert_eq!(Message::parse(&out[..len]), Ok(message));
});
