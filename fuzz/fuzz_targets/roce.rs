//! No bytes make the RoCEv2 parser panic, and what it understood it can say again.
//!
//! `cargo xtask fuzz roce`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_wire::roce::Packet;

fuzz_target!(|bytes: &[u8]| {
    let Ok(packet) = Packet::parse(bytes) else {
        return;
    };
    let mut out = vec![0; bytes.len() + 64];
    let len = packet.emit(&mut out).expect("what parsed can be emitted");
    // Behind a packet is its ICRC.
    let again = Packet::parse(&out[..len + 4]).expect("what was emitted parses");
    assert_eq!(again, packet);
});
