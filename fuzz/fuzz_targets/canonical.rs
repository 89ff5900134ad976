//! What was decoded is encoded to the same bytes, and each bit of them either comes back or means
//! nothing: CLC of all kinds and versions, and host control.
//!
//! A message in its canonical form is one that we have written. Each of its bits is turned, one at
//! a time: then the bytes are no message any more, or the same one (the bit is reserved), or another
//! one, in whose encoding the bit is turned, too. A field that is read at the wrong place, cut
//! off or forgotten by one of the two sides breaks that.
//!
//! `cargo xtask fuzz canonical`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_wire::Error;
use sidestep_wire::clc::{self, Message};
use sidestep_wire::host_control::{self, ControlMessage};
use std::fmt::Debug;

fuzz_target!(|bytes: &[u8]| {
    check(bytes, Message::parse, |message: &Message| {
        let mut out = [0; clc::EMITTED_LEN_MAX];
        let len = message.emit(&mut out).expect("what parsed can be emitted");
        out[..len].to_vec()
    });
    check(bytes, ControlMessage::parse, |message: &ControlMessage| {
        let mut out = [0; host_control::EMITTED_LEN_MAX];
        let len = message.emit(&mut out).expect("what parsed can be emitted");
        out[..len].to_vec()
    });
});

fn check<M: PartialEq + Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<M, Error>,
    encode: impl Fn(&M) -> Vec<u8>,
) {
    let Ok(message) = decode(bytes) else { return };
    let canonical = encode(&message);
    let again = decode(&canonical).expect("what was emitted parses");
    assert_eq!(encode(&again), canonical);
    for bit in 0..canonical.len() * 8 {
        let (at, mask) = (bit / 8, 1 << (bit % 8));
        let mut turned = canonical.clone();
        turned[at] ^= mask;
        let Ok(other) = decode(&turned) else { continue };
        let encoded = encode(&other);
        // Another length: the bit belongs to what lays the message out.
        if other == message || encoded.len() != canonical.len() {
            continue;
        }
        assert_eq!(
            encoded[at] & mask,
            turned[at] & mask,
            "bit {bit} of {canonical:02x?} is lost: {message:?} and {other:?}"
        );
    }
}
