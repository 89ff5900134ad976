//! What is written down besides the counters of a connection: attempts and decisions, and
//! traffic by server port if this process only counts.
//!
//! `sidestep why`, `stats` and `assess` read it from outside (the crate `observe`). Decisions
//! come once in the life of a connection; what every message costs is one counter of its
//! length.

use crate::process::home::Home;
use crate::process::tcp;
use crate::table::session::Session;
use crate::table::sock::{Phase, Sock};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use sidestep_device::history::{Kind, Verdict};
use sidestep_device::services::place;
use sidestep_device::state::{Header, Slot};
use sidestep_device::sys;
use sidestep_proto::fallback::{Lack, Reason};
use sidestep_wire::RmbeSize;

/// The two ends have begun to look for each other.
pub(crate) fn attempted(sock: &Sock) {
    with_header(sock, |header| add_one(&header.handshakes.attempted));
}

/// The connection reads by the ledger: it has moved.
pub(crate) fn moved(sock: &Sock) {
    let Some(slot) = sock.slot() else { return };
    let incoming = slot.receive_ring_len.load(Ordering::Relaxed) as usize;
    with_header(sock, |header| {
        add_one(&header.handshakes.agreed);
        if let Some(size) = RmbeSize::from_bytes(incoming) {
            add_one(&header.rings[usize::from(size.code())].incoming);
        }
    });
    note(sock, slot, Verdict::Moved);
}

/// The connection is another host's, and goes by the gateway from now on. What becomes of the way
/// there decides nothing.
pub(crate) fn handed_over(sock: &Sock, session: &Session) {
    let Some((home, server)) = sock.home().zip(session.server()) else { return };
    let (server_ip, family) = tcp::words(server.ip());
    note_kind(
        home,
        &Kind {
            server_ip,
            server_port: server.port(),
            family,
            is_server: session.is_server,
            verdict: Verdict::HandedOver,
        },
    );
}

/// The connection stays on TCP. Before its phase says so.
pub(crate) fn stays(sock: &Sock, reason: Reason) {
    let Some(slot) = sock.slot() else { return };
    note_failure(sock);
    note(sock, slot, tcp(reason));
}

/// The connection has ended before anything was decided: for the reason for which it was on
/// TCP so far, if there was one.
pub(crate) fn undecided(sock: &Sock) {
    let Some(slot) = sock.slot().filter(|slot| slot.is_counted_here()) else { return };
    note_failure(sock);
    let verdict = match Reason::of_word(slot.reason.load(Ordering::Relaxed)) {
        Reason::None => Verdict::Undecided,
        reason => tcp(reason),
    };
    note(sock, slot, verdict);
}

fn tcp(reason: Reason) -> Verdict {
    Verdict::Tcp { reason: reason.code(), detail: reason.detail() }
}

/// A connection for which there is no slot stays on TCP.
pub(super) fn without_slot(process: &Home, sock: &Sock, fd: i32) {
    process.state.header().ended[0].count_tcp(Reason::Lack(Lack::NoSlot).code());
    let is_server = sock.is_server.load(Ordering::Relaxed);
    let server = tcp::addresses(fd).ok().map(|(local, peer)| if is_server { local } else { peer });
    let (server_ip, family) = server.map_or(([0; 2], 0), |server| tcp::words(server.ip()));
    note_kind(
        process,
        &Kind {
            server_ip,
            server_port: server.map_or(0, |server| server.port()),
            family,
            is_server,
            verdict: tcp(Lack::NoSlot.into()),
        },
    );
}

/// From now on the traffic of a connection counts for its server's port.
pub(super) fn begin_tally(slot: &Slot, addresses: Option<(SocketAddr, SocketAddr)>) {
    slot.tally.began.store(sys::coarse_ms(), Ordering::Relaxed);
    slot.tally.place.store(addresses.map_or(place::PENDING, place_of), Ordering::Relaxed);
}

/// A connection is about to be closed: the last moment to ask where its peer was, if it
/// was not connected yet when that was asked first.
pub(crate) fn complete_tally(sock: &Sock, fd: i32) {
    let is_pending = |slot: &&Slot| slot.tally.place.load(Ordering::Relaxed) == place::PENDING;
    if let Some(slot) = sock.slot().filter(is_pending)
        && let Some((local, peer)) = sock.learn_addresses(fd)
    {
        slot.tally.place.store(place_of((local, peer)), Ordering::Relaxed);
    }
}

fn place_of((local, peer): (SocketAddr, SocketAddr)) -> u8 {
    if tcp::is_same_host(local, peer) { place::HERE } else { place::ELSEWHERE }
}

fn note_failure(sock: &Sock) {
    if sock.phase() == Phase::Rendezvous {
        with_header(sock, |header| add_one(&header.handshakes.failed));
    }
}

fn note(sock: &Sock, slot: &Slot, verdict: Verdict) {
    let Some(home) = sock.home().filter(|_| sock.session().is_none()) else { return };
    let (server_ip, server_port) = slot.server_address();
    note_kind(
        home,
        &Kind {
            server_ip,
            server_port,
            family: slot.family.load(Ordering::Relaxed),
            is_server: sock.is_server.load(Ordering::Relaxed),
            verdict,
        },
    );
}

fn note_kind(process: &Home, kind: &Kind) {
    process.state.history().note(kind, sys::cpu() as usize);
}

fn with_header(sock: &Sock, f: impl FnOnce(&Header)) {
    if let Some(home) = sock.home() {
        f(home.state.header());
    }
}

pub(crate) fn add_one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Sock {
    /// Its tcp::addresses, which from now on stand in its slot. `None` while it is not connected.
    pub(crate) fn learn_addresses(&self, fd: i32) -> Option<(SocketAddr, SocketAddr)> {
        let (local, peer) = tcp::addresses(fd).ok()?;
        // What is shown of one by the gateway is where it leads.
        if self.session().is_none() {
            self.note_addresses(local, peer);
        }
        Some((local, peer))
    }

    /// Writes its addresses down for `sidestep ss`.
    pub(crate) fn note_addresses(&self, local: SocketAddr, peer: SocketAddr) {
        let Some(slot) = self.slot() else { return };
        let places = [(local.ip(), &slot.local_ip), (peer.ip(), &slot.peer_ip)];
        for (ip, place) in places {
            let ([first, second], _) = tcp::words(ip);
            place[0].store(first, Ordering::Relaxed);
            place[1].store(second, Ordering::Relaxed);
        }
        slot.local_port.store(u32::from(local.port()), Ordering::Relaxed);
        slot.peer_port.store(u32::from(peer.port()), Ordering::Relaxed);
        let (_, family) = tcp::words(peer.ip());
        slot.family.store(family, Ordering::Release);
    }
}
