//! Which connection a socket is an end of: the same at both ends, whatever has happened on it, and
//! at no other connection.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use sidestep_wire::tcp_option::Identity;

use crate::socket::Socket;
use crate::{ALL, ALL_6, LOOPBACK, LOOPBACK_6, with_option};

/// What both ends say; they have to say the same.
#[track_caller]
fn agreed(client: &Socket, server: &Socket) -> Identity {
    let identity = client.identity(false).expect("an identity");
    assert_eq!(server.identity(true), Some(identity));
    identity
}

#[test]
fn both_ends_have_the_same_and_keep_it() {
    with_option(|_| {
        let mapped = IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        for (at, to) in
            [(LOOPBACK, LOOPBACK), (LOOPBACK_6, LOOPBACK_6), (ALL_6, LOOPBACK), (ALL, mapped)]
        {
            let listener = Socket::plain_listening(at);
            let client = Socket::new(to);
            let server = client.connect(&listener, to);
            let identity = agreed(&client, &server);
            client.talks_to(&server);
            assert_eq!(agreed(&client, &server), identity, "after a message");
            server.talks_to(&client);
            server.stream_to(&client, 5_000_000);
            client.stream_to(&server, 5_000_000);
            assert_eq!(agreed(&client, &server), identity, "after many bytes");
            client.shut_down_writing();
            server.awaits_end();
            assert_eq!(agreed(&client, &server), identity, "after the client's FIN");
            server.talks_to(&client);
            server.shut_down_writing();
            client.awaits_end();
            assert_eq!(agreed(&client, &server), identity, "after both FIN");
        }
    });
}

#[test]
fn syn_cookies_and_fast_open_change_nothing() {
    with_option(|_| {
        fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").unwrap();
        let listener = Socket::plain_listening(LOOPBACK);
        let client = Socket::new(LOOPBACK);
        let server = client.connect(&listener, LOOPBACK);
        agreed(&client, &server);
        fs::write("/proc/sys/net/ipv4/tcp_syncookies", "1").unwrap();

        // 0x207: both sides, without a cookie.
        fs::write("/proc/sys/net/ipv4/tcp_fastopen", "519").unwrap();
        listener.take_fast_open();
        // The first one asks for the cookie of the next.
        for _ in 0..2 {
            let client = Socket::new(LOOPBACK);
            let server = client.connect_fast(&listener, LOOPBACK);
            let identity = agreed(&client, &server);
            server.talks_to(&client);
            assert_eq!(agreed(&client, &server), identity);
            if server.has_syn_data() {
                return;
            }
        }
        panic!("no byte went in a SYN");
    });
}

#[test]
fn lost_segments_change_nothing() {
    with_option(|_| {
        let listener = Socket::plain_listening(LOOPBACK);
        let client = Socket::new(LOOPBACK);
        let server = client.connect(&listener, LOOPBACK);
        let identity = agreed(&client, &server);
        client.talks_while_lost(&server);
        assert_eq!(agreed(&client, &server), identity);
    });
}

#[test]
fn the_next_connection_of_the_same_addresses_has_another() {
    with_option(|_| {
        let listener = Socket::plain_listening(LOOPBACK);
        let from = SocketAddr::new(LOOPBACK, 40_000);
        let mut seen = Vec::new();
        for _ in 0..20 {
            let client = Socket::new(LOOPBACK);
            client.reuse_address();
            client.bind(from);
            let server = client.connect(&listener, LOOPBACK);
            assert_eq!(client.local(), from);
            let identity = agreed(&client, &server);
            assert!(!seen.contains(&identity), "{identity:?}");
            seen.push(identity);
            client.abort();
        }
    });
}

#[test]
fn without_programs_nobody_tells() {
    with_option(|agent| {
        let listener = Socket::plain_listening(LOOPBACK);
        let client = Socket::new(LOOPBACK);
        let server = client.connect(&listener, LOOPBACK);
        agreed(&client, &server);
        agent.end();
        assert_eq!((client.identity(false), server.identity(true)), (None, None));
    });
}
