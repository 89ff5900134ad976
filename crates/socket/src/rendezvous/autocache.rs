//! Servers with which agreeing has failed lately: see [`sidestep_proto::autocache`].
//!
//! They stand in the state of the process, where `sidestep ss --totals` shows them. If the
//! server had said who it was, the failure is forgotten as soon as that process is gone.

use crate::process::home::{self, Home};
use crate::process::owner::Held;
use crate::process::{groups, options, tcp};
use crate::table::sock::Sock;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use sidestep_device::state::Failure;
use sidestep_device::sys::{self, Errno, UnixName};
use sidestep_proto::autocache::{self, pause_after};
use sidestep_proto::fallback::Reason;
use sidestep_wire::host_control::{Instance, mailbox_name};

/// Client: why this server is to be left alone for now, if it is.
pub(super) fn why_left_alone(process: &'static Home, server: SocketAddr) -> Option<Reason> {
    if !options::current().autocache {
        return None;
    }
    let failure = find(process, server)?;
    if failure.until_ns.load(Ordering::Acquire) <= sys::now_ns() {
        return None;
    }
    if has_changed(process, failure) {
        forget(process, server);
        return None;
    }
    Some(autocache::told(Reason::of_word(failure.reason.load(Ordering::Relaxed))))
}

/// Client: agreeing with this server has failed.
pub(crate) fn note_failure(
    process: &Home,
    server: SocketAddr,
    peer: Option<Instance>,
    reason: Reason,
) {
    if !options::current().autocache {
        return;
    }
    let now = sys::now_ns();
    let _held = Held::enter(process.lock.get());
    let failures = &process.state.header().failures;
    // The one that is over, or was over first, gives way.
    let oldest = failures
        .iter()
        .min_by_key(|failure| (is_used(failure), failure.until_ns.load(Ordering::Relaxed)));
    let Some(failure) = find(process, server).or(oldest) else { return };
    if !is_about(failure, server) {
        empty(failure);
    }
    // Connections that were begun together teach it once.
    if failure.until_ns.load(Ordering::Relaxed) > now {
        return;
    }
    let in_a_row = failure.in_a_row.load(Ordering::Relaxed).saturating_add(1);
    failure.until_ns.store(0, Ordering::Release);
    let (ip, family) = tcp::words(server.ip());
    failure.ip[0].store(ip[0], Ordering::Relaxed);
    failure.ip[1].store(ip[1], Ordering::Relaxed);
    failure.port.store(u32::from(server.port()), Ordering::Relaxed);
    failure.family.store(u32::from(family), Ordering::Relaxed);
    failure.reason.store(reason.word(), Ordering::Relaxed);
    failure.in_a_row.store(in_a_row, Ordering::Relaxed);
    let peer = peer.map_or([0; 2], |peer| tcp::halves(&peer.0));
    failure.peer[0].store(peer[0], Ordering::Relaxed);
    failure.peer[1].store(peer[1], Ordering::Relaxed);
    let has_succeeded = failure.has_succeeded.load(Ordering::Relaxed) != 0;
    if let Some(pause) = pause_after(in_a_row, has_succeeded) {
        // Release: a thread that sees the time sees what it is about.
        failure.until_ns.store(now + pause.as_nanos() as u64, Ordering::Release);
    }
}

/// Agreeing has succeeded.
pub(super) fn note_success(sock: &Sock, fd: i32) {
    let Some(process) = sock.home() else { return };
    let failures = &process.state.header().failures;
    let is_known = failures.iter().any(|failure| failure.in_a_row.load(Ordering::Relaxed) != 0);
    if is_known && let Ok((_, server)) = tcp::addresses(fd) {
        let _held = Held::enter(process.lock.get());
        if let Some(failure) = find(process, server) {
            failure.until_ns.store(0, Ordering::Release);
            failure.in_a_row.store(0, Ordering::Relaxed);
            failure.has_succeeded.store(1, Ordering::Relaxed);
        }
    }
}

/// What has failed may succeed now: the rules have changed.
pub(super) fn forget_all() {
    let Some(process) = home::existing() else { return };
    let _held = Held::enter(process.lock.get());
    process.state.header().failures.iter().for_each(empty);
}

fn forget(process: &Home, server: SocketAddr) {
    let _held = Held::enter(process.lock.get());
    if let Some(failure) = find(process, server) {
        empty(failure);
    }
}

/// Makes a place one of no server.
fn empty(failure: &Failure) {
    failure.until_ns.store(0, Ordering::Release);
    failure.family.store(0, Ordering::Relaxed);
    failure.in_a_row.store(0, Ordering::Relaxed);
    failure.has_succeeded.store(0, Ordering::Relaxed);
}

fn is_used(failure: &Failure) -> bool {
    failure.family.load(Ordering::Relaxed) != 0
}

/// What is known about a server. Also a failure that is over: the next one is another in a
/// row.
fn find(process: &Home, server: SocketAddr) -> Option<&Failure> {
    process.state.header().failures.iter().find(|failure| is_about(failure, server))
}

fn is_about(failure: &Failure, server: SocketAddr) -> bool {
    let (ip, family) = tcp::words(server.ip());
    failure.port.load(Ordering::Relaxed) == u32::from(server.port())
        && failure.family.load(Ordering::Relaxed) == u32::from(family)
        && failure.ip.each_ref().map(|half| half.load(Ordering::Relaxed)) == ip
}

/// The process that it failed with is gone: another one serves there now.
fn has_changed(process: &'static Home, failure: &Failure) -> bool {
    let halves = failure.peer.each_ref().map(|half| half.load(Ordering::Relaxed));
    let peer = Instance(tcp::joined(halves));
    if let Some(group) = groups::find(&groups::Look::at(process), peer) {
        return !group.peer_lives();
    }
    let mailbox = UnixName::new(&mailbox_name(&peer));
    peer.0 != [0; 16]
        && sys::connect_unix(process.probe, &mailbox) == Err(Errno(libc::ECONNREFUSED))
}
