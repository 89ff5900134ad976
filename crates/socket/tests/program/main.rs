//! What a program sees of its sockets, with the kernel's TCP as the oracle.
//!
//! Both ends of each connection are in this process, which is then its own peer, and calls are made as
//! the preloaded library makes them. `cargo xtask operations` does the like with the library preloaded,
//! among processes that fork and die; here are the calls that it leaves out (urgent data, pipes, files,
//! peeks from an offset, sets in sets), and some hundred lists a second.
//!
//! ```text
//!   call        one call each: the library's answer, or the kernel's
//!   pair        two ends, on TCP or moved; waits for what is on its way
//!   operation   what lists are made of
//!   seeds       draws them, and shortens those that are wrong
//!   twins       plays a list on a plain pair and on one of ours, and compares
//!   processes   a child that plays, too
//!   found       lists that have found something
//!   numbers     which number leads to which connection
//!   sets        event loops
//!   nests       sets in sets, in any shape
//!   sleeps      calls that sleep, and what wakes them
//!   liar        a peer whose memory lies
//! ```

mod call;
mod found;
mod liar;
mod nests;
mod numbers;
mod operation;
mod pair;
mod processes;
mod seeds;
mod sets;
mod sleeps;
mod twins;

use operation::Deck;
use pair::MOVED;

const DECK: Deck = Deck {
    warm_rounds: (MOVED, MOVED),
    with_demotions: false,
    with_forks: false,
    with_rights: false,
    length: 40,
};

#[test]
fn a_connection_in_shared_memory_answers_as_tcp_does() {
    twins::play_all(DECK, 0..5);
}

#[test]
fn a_connection_that_moves_answers_as_tcp_does() {
    twins::play_all(Deck { warm_rounds: (0, MOVED - 1), ..DECK }, 0..5);
}

#[test]
fn a_connection_that_goes_back_to_tcp_answers_as_tcp_does() {
    twins::play_all(
        Deck { warm_rounds: (12, MOVED), with_demotions: true, length: 60, ..DECK },
        0..5,
    );
}

#[test]
fn a_connection_of_two_processes_answers_as_tcp_does() {
    twins::play_all(
        Deck { warm_rounds: (0, MOVED), with_forks: true, with_rights: true, ..DECK },
        0..2,
    );
}

#[test]
fn a_connection_that_is_passed_on_answers_as_tcp_does() {
    twins::play_all(
        Deck { warm_rounds: (0, MOVED), with_rights: true, with_demotions: true, ..DECK },
        0..5,
    );
}

/// TCP counts what was not acknowledged, which bytes in a socket's queue are: not the same number, but as soon
/// as the peer has taken all both are 0.
#[test]
fn what_the_peer_has_not_taken_is_counted() {
    let stage = pair::Stage::enter();
    let pair = stage.moved();
    let [fd, peer] = pair.fds();
    assert_eq!(call::send(fd, &[7; 100], &[], 0).value, 100);
    for (taken, left) in [(40, 60), (60, 0)] {
        assert_eq!(call::receive(peer, taken, &[], libc::MSG_PEEK).value, taken as i64);
        assert_eq!(call::receive(peer, taken, &[], 0).value, taken as i64);
        assert_eq!(call::untaken(fd).value, left);
    }
}
