//! An end that is lent: what the peer has sent is shown where it lies, in both laps of the ring, with its urgent
//! bytes and its end, and neither the sender nor the reader enters the kernel for a message.

#[path = "support/pair.rs"]
mod pair;

use pair::{MESSAGE, Pair, bytes_of, receive, without_system_calls};
use sidestep_device::lent::{ELSEWHERE, Lent};
use sidestep_socket::program::{lending, life};
use sidestep_socket::table::descriptors;

#[test]
fn bytes_stay_where_they_lie_until_they_are_passed() {
    let pair = Pair::new();
    assert_eq!(pair.send(b"abcdef", 0), Ok(6));
    let first = pair.look().unwrap();
    assert_eq!((bytes_of(&first), first.is_urgent), (b"abcdef".to_vec(), false));
    assert_eq!(pair.look(), Ok(first), "a look takes nothing");
    lending::pass(pair.reader, first.position, 2);
    // The reader has moved on from there: nothing is passed twice.
    lending::pass(pair.reader, first.position, 2);
    assert_eq!(bytes_of(&pair.look().unwrap()), b"cdef");
    assert_eq!(receive(pair.reader, 9), Ok(4), "recv and pass are one stream");
    assert_eq!(pair.look(), Err(libc::EAGAIN));
}

#[test]
fn what_is_under_way_is_looked_past_and_stays() {
    let pair = Pair::new();
    assert_eq!(pair.send(b"abc", 0), Ok(3));
    let first = pair.look().unwrap();
    assert_eq!(lending::look(pair.reader, 3), Err(libc::EAGAIN));
    assert_eq!(pair.send(b"d!", libc::MSG_OOB), Ok(2));
    let next = lending::look(pair.reader, 3).unwrap();
    assert_eq!((bytes_of(&next), next.position), (b"d".to_vec(), first.position + 3));
    let urgent = lending::look(pair.reader, 4).unwrap();
    assert_eq!((bytes_of(&urgent), urgent.is_urgent), (b"!".to_vec(), true));
    assert_eq!(bytes_of(&first), b"abc");
    let (base, len) = first.memory;
    let at = (first.position % len as u64) as usize;
    assert_eq!(base.wrapping_add(at), first.stretches[0].0, "where an adapter reads it");
    lending::pass(pair.reader, first.position, 5);
    assert_eq!(pair.look(), Err(libc::EAGAIN));
}

#[test]
fn the_end_is_told_when_nothing_is_under_way() {
    let pair = Pair::new();
    assert_eq!(pair.send(b"bye", 0), Ok(3));
    let sender = descriptors::sock(pair.sender).unwrap();
    assert_eq!(life::shutdown(&sender, pair.sender, libc::SHUT_WR), Some(Ok(0)));
    let last = pair.look().unwrap();
    assert_eq!(lending::look(pair.reader, 3), Err(libc::EAGAIN));
    lending::pass(pair.reader, last.position, 3);
    assert_eq!(pair.look(), Ok(Lent::NOTHING));
}

#[test]
fn an_end_that_is_reset_keeps_its_ring_until_it_is_closed() {
    let pair = Pair::new();
    assert_eq!(pair.send(b"abc", 0), Ok(3));
    let lent = pair.look().unwrap();
    lending::reset(pair.reader);
    assert_eq!(receive(pair.sender, 1), Err(libc::ECONNRESET));
    // The next connection of the two processes gets another ring.
    let next = Pair::new();
    assert_eq!(next.send(b"xyz", 0), Ok(3));
    assert_ne!(next.look().unwrap().memory, lent.memory);
    assert_eq!(bytes_of(&lent), b"abc");
}

#[test]
fn all_laps_of_the_ring_are_shown_in_order() {
    let pair = Pair::new();
    let (mut sent, mut seen) = (0u8, 0u8);
    let mut wraps = 0;
    for _ in 0..4000 {
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            sent = sent.wrapping_add(1);
            sent
        })
        .take(1999)
        .collect();
        assert_eq!(pair.send(&bytes, 0), Ok(bytes.len()));
        wraps += usize::from(pair.look().unwrap().stretches[1].1 > 0);
        for byte in pair.take().unwrap().0 {
            seen = seen.wrapping_add(1);
            assert_eq!(byte, seen);
        }
    }
    assert!(wraps > 3, "{wraps}");
}

#[test]
fn a_full_ring_has_room_again_for_what_was_passed() {
    let pair = Pair::new();
    let mut len = 0;
    while let Ok(n) = pair.send(&MESSAGE, 0) {
        len += n;
    }
    let full = pair.look().unwrap();
    assert_eq!(full.len(), len);
    lending::pass(pair.reader, full.position, len - 5);
    assert_eq!(pair.send(&vec![8; len], 0), Ok(len - 5));
    assert_eq!(pair.look().map(|it| it.len()), Ok(len));
}

#[test]
fn an_urgent_byte_is_shown_by_itself() {
    let pair = Pair::new();
    assert_eq!(pair.send(b"ab!", libc::MSG_OOB), Ok(3));
    assert_eq!(pair.send(b"cd", 0), Ok(2));
    let parts = [(b"ab".to_vec(), false), (b"!".to_vec(), true), (b"cd".to_vec(), false)];
    assert_eq!([pair.take(), pair.take(), pair.take()], parts.map(Ok));
}

#[test]
fn the_end_comes_behind_the_last_byte() {
    let pair = Pair::new();
    assert_eq!(pair.send(b"bye", 0), Ok(3));
    let sender = descriptors::sock(pair.sender).unwrap();
    assert_eq!(life::shutdown(&sender, pair.sender, libc::SHUT_WR), Some(Ok(0)));
    assert_eq!(pair.take(), Ok((b"bye".to_vec(), false)));
    assert_eq!([pair.look(), pair.look()], [Ok(Lent::NOTHING); 2]);
}

#[test]
fn what_comes_by_tcp_is_not_lent() {
    let pair = Pair::fresh();
    assert_eq!(pair.send(b"x", 0), Ok(1));
    assert_eq!(pair.look(), Err(ELSEWHERE.0));
    assert_eq!(lending::look(-1, 0), Err(ELSEWHERE.0));
}

#[test]
fn a_message_that_is_lent_takes_no_system_call() {
    let warm = || {
        let pair = Pair::new();
        assert!(pass_message(&pair));
        pair
    };
    let name = "a_message_that_is_lent_takes_no_system_call";
    without_system_calls(name, warm, |pair| (0..1000).all(|_| pass_message(pair)));
}

/// No allocation: it may need memory of the kernel's.
fn pass_message(pair: &Pair) -> bool {
    let is_sent = pair.send(&MESSAGE, 0) == Ok(MESSAGE.len());
    let Ok(lent) = pair.look() else { return false };
    lending::pass(pair.reader, lent.position, lent.len());
    is_sent && lent.len() == MESSAGE.len() && pair.look() == Err(libc::EAGAIN)
}
