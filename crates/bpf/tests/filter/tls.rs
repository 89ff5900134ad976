//! Rules with `tls`: bytes of connections that are not protected do not pass.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use sidestep_bpf::is_denied;
use sidestep_wire::verdict::GATEWAY_MARK;

use super::{connection, exchange, put, with_cgroup};

/// What a record of a handshake begins with.
const HANDSHAKE: &[u8] = &[22, 3, 1, 0, 5];

/// As a gateway says that it speaks TLS there.
pub(super) fn protect(connection: &TcpStream) {
    setsockopt(connection, sockopt::Mark, &GATEWAY_MARK).unwrap();
}

/// Whether what one end sends comes out of the other.
fn passes(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) -> bool {
    to.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    from.write_all(bytes).unwrap();
    let mut read = vec![0; bytes.len()];
    match to.read_exact(&mut read) {
        Ok(()) => read == bytes,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            false
        }
    }
}

#[test]
fn no_byte_leaves_by_a_connection_that_is_not_protected() {
    with_cgroup(|place| {
        let filter = place.attach("default permit", 1);
        let (mut client, mut server, port) = connection();
        let list = format!("permit tcp any any:{port} out tls log\ndefault permit");
        put(&filter, &list, 2);
        assert!(is_denied(&client, 0).unwrap(), "it may not move to shared memory");
        assert!(!passes(&mut client, &mut server, b"plain"));
        let line = filter.log().unwrap().take().expect("a line of the rule");
        assert!(line.verdict.needs_tls && line.verdict.action.to_string() == "deny");

        // The bytes that were sent come when TCP sends them again.
        protect(&client);
        server.set_read_timeout(None).unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
        assert!(!is_denied(&client, 0).unwrap());
        for _ in 0..50 {
            exchange(&mut client, &mut server);
        }
        let counted = || filter.hits().unwrap()[0].count;
        let before = counted();
        for _ in 0..50 {
            exchange(&mut client, &mut server);
        }
        assert_eq!(counted(), before, "the verdict of a protected connection is kept");

        // Another list asks the same, and the mark is there still.
        put(&filter, &format!("# again\n{list}"), 3);
        exchange(&mut client, &mut server);
    });
}

#[test]
fn a_connection_that_is_not_protected_begins_and_ends() {
    with_cgroup(|place| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let rules = format!(
            "permit tcp any any:{port} both tls\npermit tcp any:{port} any both tls\ndefault deny"
        );
        let _filter = place.attach(&rules, 1);
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        drop(client);
        server.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(server.read(&mut [0]).unwrap(), 0, "the end of the stream has no bytes");
        assert_ne!(is_denied(&server, 0).ok(), Some(false));
    });
}

/// What a client of another host sends first is there before the gateway is.
#[test]
fn what_arrives_early_passes_if_it_begins_as_tls_or_clc() {
    with_cgroup(|place| {
        const SENT: usize = 1 << 20;
        let filter = place.attach("default permit", 1);
        let clc = b"\xE2\xD4\xC3\xD9\x01";
        for (first, wanted) in [(HANDSHAKE, true), (clc, true), (b"GET /", false)] {
            let (mut client, mut server, port) = connection();
            put(&filter, &format!("permit tcp any any:{port} in tls"), 2);
            assert_eq!(passes(&mut client, &mut server, first), wanted);
            if !wanted {
                continue;
            }
            assert!(passes(&mut client, &mut server, b"more"));
            // No program without TLS is given so much, as it would have to answer.
            let mut sender = client.try_clone().unwrap();
            let sent = thread::spawn(move || sender.write_all(&vec![0; SENT]));
            server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            let mut read = 0;
            while let Ok(len @ 1..) = server.read(&mut [0; 4096]) {
                read += len;
            }
            assert!(read < SENT / 2, "{read} bytes");
            protect(&server);
            server.set_read_timeout(None).unwrap();
            server.read_exact(&mut vec![0; SENT - read]).unwrap();
            sent.join().unwrap().unwrap();
        }
    });
}

/// A rule that asks for TLS is one more at once only where the list has such rules already.
#[test]
fn a_rule_with_tls_can_come_later() {
    use super::Machine;
    use sidestep_filter::{LaterRule, RuleList};
    with_cgroup(|place| {
        let rule = RuleList::parse("permit tcp any any:7 out tls").unwrap().rules.remove(0);
        let later = [LaterRule { before: 0, rule }];
        let filter = place.attach("default permit", 1);
        assert!(
            filter.put_later(&later, &Machine).unwrap().is_none(),
            "its programs do not know of TLS"
        );
        put(&filter, "permit tcp any any:9 out tls", 2);
        filter.put_later(&later, &Machine).unwrap().expect("room").unwrap();
    });
}
