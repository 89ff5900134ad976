//! How two ends find each other when their processes share memory already.
//!
//! Then no end needs a name in the kernel. A client that connects to a port at which it has met servers
//! before leaves a *claim* with each of them: "the connection of this token is the one of my
//! slot c". The token says what the name would: the four-tuple
//! ([`sidestep_wire::host_control::connection_token`]). The
//! server's end looks for a claim on its own token, and *greets* by leaving its slot in the
//! cell of the client's.
//!
//! ```text
//!   client                                              server
//!   record: CLAIMED, token
//!          -- place of the token: key, slot --------->  wake memory
//!                                                       record: GREETED, token, RMBE
//!   wake memory  <------- cell of the slot: key, slot --
//! ```
//!
//! It stands in the place of the hello, and what makes a hello certain makes a greeting
//! certain. What lies in wake memory is a hint; the records that it leads to are written by
//! processes that have introduced themselves. A claim may be out of date, when a process
//! died or a program closed its socket behind our back: then it is greeted in vain, because only
//! the end of a connection that is open goes on to propose. At the moment of the greeting
//! each of the two held a socket of this four-tuple, in the namespace that is part of the
//! token, and there is only one such pair. Between two namespaces the connection's identity
//! is part of it instead ([`crate::rendezvous::agreement`]).

use crate::process::group::Group;
use crate::process::groups::{self, Look};
use crate::process::home::Home;
use crate::process::{clc, tcp};
use crate::table::sock::Sock;
use core::sync::atomic::Ordering;
use sidestep_device::channel::SLOTS;
use sidestep_device::slab::{Identity, phase};
use sidestep_device::state::Slot;
use sidestep_proto::rendezvous::agreement::{Seen, Token};
use sidestep_wire::host_control::Hello;

/// Client: claims the connection before every server that it has met at this port, of those
/// that can be meant. False: it knows none.
pub(super) fn post(
    process: &'static Home,
    sock: &Sock,
    port: u16,
    token: Token,
    can_be_meant: impl FnMut(&&'static Group) -> bool,
) -> bool {
    let Some(slot) = sock.slot() else { return false };
    let index = sock.slot_index();
    let look = Look::at(process);
    let mut is_posted = false;
    for group in groups::serving(&look, port, can_be_meant) {
        let Some((_, wake)) = group.theirs() else { continue };
        let [first, _] = show(&group.record(index).identity, slot, token, NOBODY, phase::CLAIMED);
        wake.claim(first).put(process.key(), index as u32);
        is_posted = true;
    }
    is_posted
}

/// A peer's record: whose it is, in which of its slots, and what it shows.
pub(crate) type Found = (&'static Group, usize, Seen);

/// Server: what the hint at the place of this token leads to. `own`: our slot.
pub(crate) fn find(process: &Home, look: &Look, token: Token, own: usize) -> Option<Found> {
    let hint = process.wake.claim(tcp::halves(&token)[0]).take();
    follow(look, hint, own).filter(|(group, ..)| may_claim(group))
}

/// Server: answers a claim.
pub(super) fn greet(
    process: &Home,
    sock: &Sock,
    (group, peer_slot): (&Group, usize),
    token: Token,
) {
    let (Some(slot), Some((_, wake))) = (sock.slot(), group.theirs()) else { return };
    let index = sock.slot_index();
    process.wake.cell(index).clear();
    let identity = &group.record(index).identity;
    identity.rmbe_len.store(sock.rmbe().bytes() as u32, Ordering::Relaxed);
    show(identity, slot, token, peer_slot as u32, phase::GREETED);
    wake.cell(peer_slot).put(process.key(), index as u32);
}

/// Client: what the hint in our cell leads to, and the hello that a greeting there stands for.
pub(crate) fn greeting(process: &'static Home, sock: &Sock) -> Option<(Seen, Hello)> {
    let index = sock.slot_index();
    let look = Look::at(process);
    let found = follow(&look, process.wake.cell(index).take(), index);
    let (group, peer_slot, seen) = found.filter(|(group, ..)| may_claim(group))?;
    let identity = &group.theirs()?.0.record(peer_slot).identity;
    let hello = Hello {
        instance: group.peer,
        slot: peer_slot as u32,
        generation: seen.generation,
        token: seen.token,
        socket_cookie: NOT_SAID,
        netns_cookie: process.netns_cookie,
        rmbe_len: identity.rmbe_len.load(Ordering::Relaxed),
    };
    Some((seen, hello))
}

/// Takes back what a connection has shown that did not come to an agreement.
pub(crate) fn withdraw(process: &'static Home, sock: &Sock) {
    let Some(slot) = sock.slot() else { return };
    let generation = slot.generation.load(Ordering::Relaxed) << 8;
    for group in groups::all(&Look::at(process)) {
        let at = &group.record(sock.slot_index()).identity.phase;
        for shown in [phase::CLAIMED, phase::GREETED] {
            let (from, to) = (generation | shown, generation | phase::FREE);
            let _ = at.compare_exchange(from, to, Ordering::Release, Ordering::Relaxed);
        }
    }
}

/// The peer's slot in a claim: not known.
const NOBODY: u32 = u32::MAX;
/// The server's socket in a greeting.
const NOT_SAID: u64 = 0;

/// Fills a record of ours, and says so. The halves of the token.
fn show(identity: &Identity, slot: &Slot, token: Token, peer_slot: u32, as_what: u32) -> [u64; 2] {
    let halves = tcp::halves(&token);
    identity.phase.store(phase::FREE, Ordering::Relaxed);
    identity.peer_slot.store(peer_slot, Ordering::Relaxed);
    identity.token[0].store(halves[0], Ordering::Relaxed);
    identity.token[1].store(halves[1], Ordering::Relaxed);
    let generation = slot.generation.load(Ordering::Relaxed) << 8;
    // Release: pairs with the Acquire in `clc::read`.
    identity.phase.store(generation | as_what, Ordering::Release);
    halves
}

/// What a hint leads to. Any peer can have left it.
pub(crate) fn follow(look: &Look, hint: Option<(u64, u32)>, own: usize) -> Option<Found> {
    let (key, peer_slot) = hint?;
    let peer_slot = Some(peer_slot as usize).filter(|slot| *slot < SLOTS)?;
    let group = groups::find_by_key(look, key)?;
    let identity = &group.theirs()?.0.record(peer_slot).identity;
    Some((group, peer_slot, clc::read(identity, own)))
}

/// The user of a claim is known from the introduction, and the rules may have changed since.
fn may_claim(group: &&'static Group) -> bool {
    group.may_go_on()
}
