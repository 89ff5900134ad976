//! No bytes make the CDC parser panic, and what it understood it can say again.
//!
//! `cargo xtask fuzz cdc`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_wire::cdc::{CdcMessage, LEN};

fuzz_target!(|bytes: &[u8]| {
    let Ok(message) = CdcMessage::parse(bytes) else {
        return;
    };
    let mut out = [0; LEN];
    message.emit(&mut out).expect("what parsed can be emitted");
    assert_eq!(CdcMessage::parse(&out), Ok(message));
});
