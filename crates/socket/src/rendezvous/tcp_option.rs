//! The TCP option of SMC, where an agent writes it.
//!
//! An option takes a privilege that a library does not have. `sidestep agent` has it: its
//! eBPF programs write the option into SYN and SYN-ACK of the sockets that are marked,
//! and read it from the peer's. The library speaks with these programs about a socket by
//! socket options that only they know ([`question`]):
//!
//! ```text
//!   client   mark ─── connect                      is it agreed? ─── the rendezvous begins
//!   server   mark ─── listen ─── announce          is it agreed? ─── the rendezvous begins
//! ```
//!
//! The option decides *whether* two ends meet, as in the standard; how they meet is the
//! same with and without it ([`crate::rendezvous::agreement`]). If no agent speaks for a socket, because
//! there is no agent, because it came later or has ended, the option decides nothing.
//!
//! The same programs tell which connection a socket is an end of ([`identity`]), where its ends
//! are in two network namespaces ([`crate::rendezvous::agreement`]).
//!
//! Without an agent this costs one system call for each process, and one more when a
//! process connects or listens after [`ABSENT_NS`]. With one it is a call for each
//! `connect`, two for each `listen`, and one when a rendezvous is about to begin.

use crate::process::{options, tcp, unseen};
use crate::rendezvous::gateway;
use crate::table::sock::Sock;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use sidestep_device::sys::{self, Errno};
use sidestep_wire::tcp_option::{IS_REMOTE, Identity, question};

/// For how long no thread looks again whether there is an agent by now.
const ABSENT_NS: u64 = 1_000_000_000;

/// Until when, by [`sys::coarse_ns`].
static ABSENT_UNTIL: AtomicU64 = AtomicU64::new(0);
/// The same for who tells identities: an agent may do one without the other.
static NAMELESS_UNTIL: AtomicU64 = AtomicU64::new(0);

/// A socket is about to connect; `to` tells where.
pub fn before_connect(sock: &Sock, fd: i32, to: impl Fn() -> Option<SocketAddr>) {
    let policy = &options::current().policy;
    let is_permitted = || {
        policy.is_empty() || to().is_none_or(|to| policy.objection(to.port(), to.ip()).is_none())
    };
    let may_lead_out = || to().is_some_and(|to| !to.ip().is_loopback() && gateway::may_lead_to(to));
    mark(sock, fd, is_permitted, may_lead_out);
}

/// A socket is about to listen.
pub fn before_listen(sock: &Sock, fd: i32) {
    // At which port may be decided by `listen`.
    mark(sock, fd, || true, gateway::is_present);
}

/// Marks a socket, also for other hosts if it may meet them.
fn mark(
    sock: &Sock,
    fd: i32,
    is_permitted: impl FnOnce() -> bool,
    may_lead_out: impl FnOnce() -> bool,
) {
    sock.has_tcp_option.store(false, Ordering::Relaxed);
    sock.set_for_hosts(false);
    if is_absent() || !wants_option(sock) || !is_permitted() {
        return;
    }
    let is_for_hosts = may_lead_out() && say(fd, question::MARK_FOR_HOSTS).is_ok();
    let is_marked = is_for_hosts || say(fd, question::MARK).is_ok();
    sock.set_for_hosts(is_for_hosts);
    sock.has_tcp_option.store(is_marked, Ordering::Relaxed);
    if !is_marked {
        ABSENT_UNTIL.store(sys::coarse_ns() + ABSENT_NS, Ordering::Relaxed);
    }
}

/// A socket is about to connect to this server, and TLS is to protect its connection. Marks it for other hosts alone, if it
/// may lead to one. True: it is marked.
pub(crate) fn mark_to_hosts(sock: &Sock, fd: i32, to: SocketAddr) -> bool {
    !is_absent()
        && wants_option(sock)
        && options::current().policy.objection(to.port(), to.ip()).is_none()
        && !to.ip().is_loopback()
        && gateway::may_lead_to(to)
        && gateway::takes_agreed()
        && say(fd, question::MARK_TO_HOSTS).is_ok()
}

/// A socket is about to connect to the gateway, which would otherwise miss the option.
pub(crate) fn mark_way(fd: i32) {
    if !is_absent() {
        let _ = say(fd, question::MARK);
    }
}

/// A socket listens: from now on clients may put the option into their SYN. Those that
/// connect before do without.
pub(crate) fn after_listen(sock: &Sock, fd: i32) {
    let is_announced = sock.has_tcp_option.load(Ordering::Relaxed)
        && is_permitted(fd)
        && say(fd, question::ANNOUNCE).is_ok();
    sock.has_tcp_option.store(is_announced, Ordering::Relaxed);
}

/// The same where clients of other hosts alone may be answered.
pub(crate) fn after_listen_to_hosts(sock: &Sock, fd: i32) {
    let is_announced = sock.is_for_hosts()
        && gateway::takes_agreed()
        && is_permitted(fd)
        && say(fd, question::ANNOUNCE_TO_HOSTS).is_ok();
    sock.set_for_hosts(is_announced);
}

/// A listener is to answer other hosts no more, because what they would send cannot be handed over.
pub(crate) fn withdraw(sock: &Sock, fd: i32) {
    if sock.is_for_hosts() {
        let _ = say(fd, question::MARK);
    }
}

/// Whether the two ends have agreed by the option, and are of two hosts: from its first byte
/// on the connection belongs to CLC, so the gateway has to be given it before the program does
/// any I/O. To be asked once, of a connected or accepted socket whose handshake is over.
pub fn is_agreed_with_host(sock: &Sock, fd: i32) -> bool {
    if !sock.take_for_hosts() {
        return false;
    }
    let answer = say(fd, question::IS_AGREED);
    // What this host's ends have agreed is asked when they are about to meet, unless it is
    // known by now that nothing speaks against it.
    let is_refused = answer == Err(Errno(libc::EPERM));
    sock.has_tcp_option.fetch_and(is_refused, Ordering::Relaxed);
    answer == Err(Errno(IS_REMOTE))
}

/// Whether the two ends could have agreed by the option and have not. Asked once.
pub(crate) fn is_refused(sock: &Sock, fd: i32) -> bool {
    sock.has_tcp_option.swap(false, Ordering::Relaxed)
        && say(fd, question::IS_AGREED) == Err(Errno(libc::EPERM))
}

/// Which connection this is, if the agent tells: six system calls.
pub(crate) fn identity(fd: i32, is_server: bool) -> Option<Identity> {
    let mut answers = [0; Identity::PARTS];
    for (what, answer) in (question::IDENTITY..).zip(&mut answers) {
        *answer = part_of_identity(fd, what)?;
    }
    Identity::from_answers(answers, is_server)
}

/// Whether the agent tells which connection this is.
pub(super) fn tells_identity(fd: i32) -> bool {
    part_of_identity(fd, question::IDENTITY).is_some_and(|answer| answer >= Identity::ANSWER)
}

/// The answer to one question of its identity, if an agent is there.
fn part_of_identity(fd: i32, what: i32) -> Option<i32> {
    if is_until(&NAMELESS_UNTIL) {
        return None;
    }
    let Err(Errno(errno)) = say(fd, what) else { return None };
    if errno == libc::ENOPROTOOPT {
        NAMELESS_UNTIL.store(sys::coarse_ns() + ABSENT_NS, Ordering::Relaxed);
        return None;
    }
    Some(errno)
}

/// Whether no agent would answer about a socket, as was seen a moment ago.
#[must_use]
pub fn is_absent() -> bool {
    is_until(&ABSENT_UNTIL)
}

fn is_until(time: &AtomicU64) -> bool {
    let until = time.load(Ordering::Relaxed);
    until != 0 && sys::coarse_ns() < until
}

fn wants_option(sock: &Sock) -> bool {
    options::current().moves_connections()
        && !sock.tcp_only.load(Ordering::Relaxed)
        && unseen::unseen_use().is_none()
}

/// Whether clients may be told of the address and port that a socket listens at: by the
/// operator's rules, and because it serves all who would ask.
fn is_permitted(fd: i32) -> bool {
    let policy = &options::current().policy;
    let local = sys::socket_name(fd, false).ok().and_then(|(local, _)| tcp::address(&local));
    local.is_some_and(|local| {
        policy.objection_to_port(local.port()).is_none() && !is_of_ipv6_only(fd, local)
    })
}

/// Whether it listens at all addresses of IPv6, and at none of IPv4: clients of IPv4 would
/// ask it as well, and reach another process.
fn is_of_ipv6_only(fd: i32, local: SocketAddr) -> bool {
    let only = || sys::socket_option::<i32>(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
    local.is_ipv6() && local.ip().is_unspecified() && only() != Ok(0)
}

fn say(fd: i32, what: i32) -> sys::Result {
    sys::set_socket_option(fd, question::LEVEL, what, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::life;
    use core::cell::Cell;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    /// Whether or not an agent runs here: none speaks of a socket that was not marked.
    #[test]
    fn nobody_speaks_for_a_socket_that_was_not_marked() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for what in [question::ANNOUNCE, question::IS_AGREED, 77] {
            assert_eq!(say(listener.as_raw_fd(), what), Err(Errno(libc::ENOPROTOOPT)));
        }
    }

    #[test]
    fn listeners_for_all_of_ipv6_and_none_of_ipv4_are_told_apart() {
        // SAFETY: three integers.
        let fd = unsafe { libc::socket(libc::AF_INET6, libc::SOCK_STREAM, 0) };
        if fd < 0 {
            return println!("skipped: there is no IPv6");
        }
        let is_found = |only: i32, local: &str| {
            sys::set_socket_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only).unwrap();
            is_of_ipv6_only(fd, local.parse().unwrap())
        };
        assert!(is_found(1, "[::]:80"));
        assert!(!is_found(0, "[::]:80"));
        assert!(!is_found(1, "[::1]:80"));
        sys::close_number(fd);
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        assert!(!is_of_ipv6_only(listener.as_raw_fd(), listener.local_addr().unwrap()));
    }

    #[test]
    fn without_an_agent_the_kernel_is_not_asked_again_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = listener.as_raw_fd();
        let sock = life::register(fd, false, false).unwrap();
        before_listen(sock, fd);
        if sock.has_tcp_option.load(Ordering::Relaxed) {
            return println!("skipped: an agent runs here");
        }
        assert!(is_absent());
        let is_asked = Cell::new(false);
        before_connect(sock, fd, || {
            is_asked.set(true);
            None
        });
        assert!(!is_asked.get());
        life::forget_number(fd);
    }

    #[test]
    fn options_of_other_levels_are_the_kernels() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let set = |level| sys::set_socket_option(listener.as_raw_fd(), level, question::MARK, 0);
        assert_eq!(set(question::LEVEL + 1), Err(Errno(libc::ENOPROTOOPT)));
        assert!(set(libc::IPPROTO_TCP).is_ok(), "TCP_NODELAY");
    }
}
