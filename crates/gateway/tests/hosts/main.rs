//! Two hosts with a gateway each, and programs that use them: what the library does is done by hand.
//!
//! | Module | What |
//! |---|---|
//! | `scene` | network namespaces with cables and gateways; skipped where there are none |
//! | `adapters` | which adapters gateways have, when they come, and for whom |
//! | `moved` | bytes by SMC-R: requests, streams, ends of all kinds, many connections |
//! | `stays` | connections that stay TCP, with every byte |
//! | `broken` | gateways and peers that die, cables that are cut |
//! | `replaced` | connections that go on in the gateway that takes the place of theirs |
//! | `held` | programs that keep the lock of their socket |
//! | `tls` | connections that TLS protects, by SMC-R and by TCP |
//! | `hostile` | callers that say what they should not |

#[path = "../../examples/handover/by_hand.rs"]
mod by_hand;
#[path = "../../examples/handover/rights.rs"]
mod rights;

mod adapters;
mod broken;
mod held;
mod hostile;
mod moved;
mod replaced;
mod scene;
mod stays;
mod tls;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

/// The byte at a place of what one end sends.
fn byte(salt: u8, at: usize) -> u8 {
    (at * 7 + at / 251) as u8 ^ salt
}

/// Sends so many bytes, and no end.
fn send(mut to: &TcpStream, salt: u8, len: usize) {
    let bytes: Vec<u8> = (0..len).map(|at| byte(salt, at)).collect();
    to.write_all(&bytes).unwrap();
}

/// Receives so many bytes and compares them.
fn receive(from: &TcpStream, salt: u8, len: usize) {
    receive_from(from, salt, 0, len);
}

/// The same, if the first `at` of them have been received.
fn receive_from(mut from: &TcpStream, salt: u8, at: usize, len: usize) {
    let mut bytes = vec![0; len - at];
    from.read_exact(&mut bytes).unwrap();
    let wrong = (at..len).find(|place| bytes[place - at] != byte(salt, *place));
    assert_eq!(wrong, None, "of {len}");
}

/// Receives the end of file, and nothing before it.
fn receive_end(mut from: &TcpStream) {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    assert!(bytes.is_empty(), "{} bytes before the end", bytes.len());
}

/// Reads until the connection is reset.
fn receive_reset(mut from: &TcpStream) {
    let mut bytes = [0; 4096];
    let error = loop {
        match from.read(&mut bytes) {
            Ok(0) => panic!("an end in order"),
            Ok(_) => {}
            // Where there is a time limit, even a pause of the whole process ends the call.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

/// Closes a connection in the way that resets it.
fn reset(connection: TcpStream) {
    let now = Some(std::time::Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(&connection, now).unwrap();
}
