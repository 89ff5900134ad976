//! No bytes make a CLC parser panic, or the search for the TCP option, and what was understood can
//! be said again: Proposal and Decline, Accept and Confirm of SMC-R and SMC-D, in both versions.
//!
//! `cargo xtask fuzz clc`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_wire::clc::{EMITTED_LEN_MAX, Message};
use sidestep_wire::tcp_option;

fuzz_target!(|bytes: &[u8]| {
    if let Some(length) = tcp_option::find(bytes) {
        assert!((6..=bytes.len()).contains(&length.into()));
    }
    let Ok(message) = Message::parse(bytes) else {
        return;
    };
    let mut out = [0; EMITTED_LEN_MAX];
    let len = message.emit(&mut out).expect("what parsed can be emitted");
    assert_eq!(Message::parse(&out[..len]), Ok(message));
});
