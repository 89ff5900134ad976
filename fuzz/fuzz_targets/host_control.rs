//! No bytes make the host-control parser panic, and what it understood it can say again.
//!
//! `cargo xtask fuzz host_control`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_wire::host_control::{ControlMessage, EMITTED_LEN_MAX};

fuzz_target!(|bytes: &[u8]| {
    let Ok(message) = ControlMessage::parse(bytes) else {
        return;
    };
    let mut out = [0; EMITTED_LEN_MAX];
    let len = message.emit(&mut out).expect("what parsed can be emitted");
    assert_eq!(ControlMessage::parse(&out[..len]), Ok(message));
});
