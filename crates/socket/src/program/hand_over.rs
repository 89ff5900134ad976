//! Connections to other hosts are handed over to the gateway, and their descriptors mean others then: see
//! [`gateway`](crate::rendezvous::gateway).

use crate::connection::ledger;
use crate::polling::epoll;
use crate::process::loan;
use crate::process::owner::Held;
use crate::process::tcp::{self, Name};
use crate::program::protection::{self, Accepted, later};
use crate::program::{dead_end, life, without_gateway};
use crate::rendezvous::gateway::{LINE, PATIENCE, comes};
use crate::rendezvous::tcp_option;
use crate::table::descriptors::{self, Use};
use crate::table::file::{self, File};
use crate::table::session::Session;
use crate::table::sock::{Phase, Sock};
use core::sync::atomic::Ordering;
use core::time::Duration;
use sidestep_device::sys::{self, Errno};
use sidestep_wire::hand_over::{EMITTED_LEN_MAX, HandOver, Message};
use sidestep_wire::host_control::Side;

/// How long a program that is about to begin another one waits for a handshake of TCP: one SYN may
/// be lost.
const HANDSHAKE_PATIENCE: Duration = Duration::from_millis(1500);

/// A socket is connected, or has begun to connect. True if the option was offered to another host, or
/// TLS is to protect it: then what came of it decides, at once or when it is known, or when the program asks.
pub fn offered(sock: &Use, fd: i32) -> bool {
    if sock.is_for_rule_later() {
        later::begin_in_plain_text(sock.sock(), fd);
        return true;
    }
    let may_be_handed_over = sock.is_to_be_offered();
    if may_be_handed_over {
        sock.offer(fd, settle);
        epoll::watch_connecting(sock.sock());
        settle(sock.sock(), fd);
    }
    may_be_handed_over
}

/// What came of the option, if that is known by now: then the descriptors stand for another object.
pub(super) fn settle(sock: &'static Sock, fd: i32) {
    if !sock.is_offered() || loan::is_borrowed_memory() || !sock.enter() {
        return;
    }
    if descriptors::leads_to(fd, sock) {
        settle_in_turn(sock, fd);
    }
    sock.leave();
}

fn settle_in_turn(sock: &'static Sock, fd: i32) {
    // The second thread waits: by N nothing may go.
    let _first = sock.agreeing();
    if !sock.is_offered() || ledger::is_connecting(fd) {
        return;
    }
    let is_agreed = tcp_option::is_agreed_with_host(sock, fd);
    let is_for_gateway = sock.rule().is_some() || is_agreed;
    // Of those that are accepted, one whose program begins TLS comes here.
    let is_server = sock.is_server.load(Ordering::Relaxed);
    let side = if is_server { Side::Server } else { Side::Client };
    if !is_for_gateway || !hand_over(sock, fd, (side, is_agreed)) {
        life::succeed(sock, life::renewed(sock, fd, None), fd);
    }
    // Calls that found the old object go on with whatever the number means now.
    sock.set_phase(Phase::Plain);
}

/// Makes the program's own call by what the number means once that is settled. Where it is not to
/// wait for that, the answer is the kernel's to a call that sends or receives while TCP connects.
pub(super) fn settled(
    sock: &Use,
    fd: i32,
    dont_wait: bool,
    plain: impl Fn() -> Option<isize>,
) -> Option<isize> {
    loop {
        settle(sock.sock(), fd);
        if !sock.is_offered() {
            return plain();
        }
        let refused = if dont_wait || !file::may_sleep(sock, File::of(sock, fd)) {
            Err(Errno(libc::EAGAIN))
        } else {
            sys::poll_until(fd, libc::POLLOUT, None)
        };
        if let Err(errno) = refused {
            let _ = sys::replace_libc_errno(errno.0);
            return Some(-1);
        }
    }
}

/// A descriptor is about to go to another program, which knows nothing of the option: settles it, if
/// the handshake ends soon. Not in borrowed memory.
pub(super) fn conclude(fd: i32) {
    let Some(sock) = descriptors::object(fd).filter(|sock| sock.is_offered()) else {
        return;
    };
    let end = sys::deadline(HANDSHAKE_PATIENCE);
    settle(sock.sock(), fd);
    while sock.is_offered()
        && !loan::is_borrowed_memory()
        && let Some(left) = end.checked_sub(sys::now_ns())
    {
        // A signal changes nothing.
        let _ = sys::poll_until(fd, libc::POLLOUT, Some(Duration::from_nanos(left)));
        settle(sock.sock(), fd);
    }
}

/// In the child of a fork: what became of the option only the parent is to learn. Two cannot hand
/// over one connection.
pub(crate) fn after_fork_in_child() {
    LINE.lock.get().reset();
    protection::after_fork_in_child();
    descriptors::for_each_sock(|fd, sock| {
        if sock.is_offered() {
            dead_end::close_off(fd);
            sock.set_phase(Phase::Plain);
        }
    });
}

/// The gateway gets the connection, of which the program has this side and for which both hosts have agreed on SMC or
/// have not, and its descriptors stand for one to the gateway. False: there is none, and the connection is an ordinary one.
pub(crate) fn hand_over(old: &'static Sock, fd: i32, (side, is_agreed): (Side, bool)) -> bool {
    let Some((way, session)) = open_session(old, fd, (side, is_agreed)) else {
        return !stays_without_gateway(old, fd, side);
    };
    let new = life::renewed(old, fd, Some(session));
    epoll::withdraw(old);
    life::put_under(old, fd, way);
    sys::close_number(way);
    life::succeed(old, new, fd);
    true
}

/// Whether a connection goes on that was to go to the gateway. Otherwise it is reset, as one is that is to have TLS.
fn stays_without_gateway(sock: &'static Sock, fd: i32, side: Side) -> bool {
    if sock.rule().is_some() {
        crate::log!(Error, "the gateway has gone: a connection that is to have TLS is reset");
        give_up(sock, fd);
        return false;
    }
    let stays = without_gateway::decline(fd, side);
    if stays {
        crate::log!(Warn, "the gateway has gone: a connection to another host is without SMC-R");
    } else {
        crate::log!(Warn, "the gateway has gone, and so has a connection to another host");
        give_up(sock, fd);
    }
    stays
}

/// No byte of the program's goes by the connection: its next call says ECONNRESET.
pub(super) fn give_up(sock: &'static Sock, fd: i32) {
    match dead_end::dead_end(|_| ()) {
        Some(end) => {
            epoll::withdraw(sock);
            life::put_under(sock, fd, end);
            sys::close_number(end);
            epoll::give_back(sock);
        }
        // No descriptor is left for one. Then the connection itself ends, so that no byte goes by it.
        None => _ = sys::shutdown(fd, libc::SHUT_RDWR),
    }
    sock.set_phase(Phase::Plain);
}

/// Connects to the gateway and gives it the connection.
fn open_session(sock: &Sock, fd: i32, (side, is_agreed): (Side, bool)) -> Option<(i32, Session)> {
    let _held = Held::enter(LINE.lock.get());
    let (line, port) = LINE.reach()?;
    // A program with a socket of IPv6 is to find one, whatever may be asked of it.
    let is_ipv6 = sys::socket_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Ok(libc::AF_INET6);
    let way = sys::tcp_socket(is_ipv6).ok()?;
    tcp_option::mark_way(way);
    let session = sys::connect_to_self(way, is_ipv6, port, PATIENCE).ok().and_then(|_| {
        let session = describe(way, fd, side)?;
        let hand_over = HandOver { side, port: session.port, rmbe: sock.rmbe() };
        let message = match sock.rule() {
            Some(at) => {
                let by_rule = protection::hand_over_by(at, hand_over, is_agreed, &session.peer);
                Message::Protect(by_rule?)
            }
            None => Message::HandOver(hand_over),
        };
        // Before the gateway has N, on which it sets some for itself: with its SO_LINGER each close would be a reset.
        carry_options_over(fd, way);
        give(line, message, fd).map(|_| session)
    });
    if session.is_none() {
        sys::close_number(way);
    }
    Some((way, session?))
}

fn describe(way: i32, fd: i32, side: Side) -> Option<Session> {
    let (own, _) = sys::socket_name(way, false).ok()?;
    Some(Session {
        local: Name::of(fd, false)?,
        peer: Name::of(fd, true)?,
        is_server: side == Side::Server,
        port: tcp::address(&own)?.port(),
    })
}

pub(crate) fn give(line: i32, message: Message, fd: i32) -> Option<usize> {
    let mut bytes = [0; EMITTED_LEN_MAX];
    let len = message.emit(&mut bytes).ok()?;
    comes(sys::seat(line), libc::POLLOUT, sys::deadline(PATIENCE)).then_some(())?;
    sys::send_over(line, &bytes[..len], &[fd]).ok()
}

/// Gives H what the program has set on N.
pub(crate) fn carry_options_over(from: i32, to: i32) {
    const NUMBERS: [(i32, i32); 10] = [
        // Before SO_PRIORITY, which it sets.
        (libc::IPPROTO_IP, libc::IP_TOS),
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
        (libc::SOL_SOCKET, libc::SO_PRIORITY),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY),
        (libc::IPPROTO_TCP, libc::TCP_CORK),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    ];
    for (level, name) in NUMBERS {
        carry::<i32>(from, to, level, name);
    }
    carry::<libc::linger>(from, to, libc::SOL_SOCKET, libc::SO_LINGER);
    carry::<libc::timeval>(from, to, libc::SOL_SOCKET, libc::SO_RCVTIMEO);
    carry::<libc::timeval>(from, to, libc::SOL_SOCKET, libc::SO_SNDTIMEO);
    for (get, set) in [(libc::F_GETFL, libc::F_SETFL), (libc::F_GETOWN, libc::F_SETOWN)] {
        if let Ok(value) = sys::fcntl(from, get, 0) {
            let _ = sys::fcntl(to, set, value);
        }
    }
}

pub(crate) fn carry<T: Copy>(from: i32, to: i32, level: i32, name: i32) {
    if let Ok(value) = sys::socket_option::<T>(from, level, name) {
        let _ = sys::set_option(to, level, name, &value);
    }
}

/// What `getsockname`, or `getpeername`, is to say of a connection to another host.
#[must_use]
pub fn name(fd: i32, peer: bool) -> Option<Name> {
    let session = descriptors::object(fd)?.session()?;
    Some(if peer { session.peer } else { session.local })
}

/// A connection was accepted that may be another host's, or TLS's. True: it was, and nothing else is to be done; mostly the
/// descriptor means another one now.
pub fn accepted(sock: &'static Sock, fd: i32) -> bool {
    let is_agreed = tcp_option::is_agreed_with_host(sock, fd);
    match protection::accepted(sock, fd) {
        Accepted::Unprotected if !is_agreed => false,
        Accepted::Unprotected | Accepted::Protected => {
            hand_over(sock, fd, (Side::Server, is_agreed))
        }
        Accepted::ProtectedLater => {
            // The rule has come since the program listens: its plain text comes first, and goes by TCP.
            match !is_agreed || without_gateway::decline(fd, Side::Server) {
                true => later::begin_in_plain_text(sock, fd),
                false => give_up(sock, fd),
            }
            true
        }
        Accepted::Refused => {
            give_up(sock, fd);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::home::tests::alone;
    use crate::program::bundle;
    use crate::program::without_gateway::DECLINE_LEN;
    use crate::rendezvous::gateway::{is_present, may_lead_to, objection};
    use core::net::SocketAddr;
    use sidestep_device::program::Argument;
    use sidestep_device::sys::UnixName;
    use sidestep_proto::autocache;
    use sidestep_proto::fallback::{PeerCannot, ProgramDid, Reason};
    use sidestep_wire::clc::proposal::UEID_COUNT_MAX;
    use sidestep_wire::clc::{Decline, Proposal};
    use sidestep_wire::hand_over::{Greeting, gateway_name};
    use sidestep_wire::lessons::{self, Cause, Lesson};
    use sidestep_wire::{Chid, Diagnosis, Eid, ExtendedGid};
    use std::fs::File;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::thread::JoinHandle;

    /// Who this program is to the gateway.
    const USER: u32 = 7;

    /// A gateway to which one process comes, and what it does with its line. It has learned this.
    fn gateway<T: Send + 'static>(
        learned: &[Lesson],
        serve: impl FnOnce(OwnedFd, &TcpListener) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        LINE.in_vain.store(0, Ordering::Relaxed);
        let file = File::from(owned(sys::memfd(c"lessons").unwrap()));
        file.set_len(lessons::FILE_LEN as u64).unwrap();
        for lesson in learned {
            let at = lessons::offset(lesson.server, lesson.user);
            file.write_all_at(&lesson.emit().unwrap(), at).unwrap();
        }
        let ways = TcpListener::bind("127.0.0.1:0").unwrap();
        let door = owned(sys::unix_packet().unwrap());
        sys::bind_unix(door.as_raw_fd(), &UnixName::new(&gateway_name())).unwrap();
        // SAFETY: no memory operands.
        assert_eq!(unsafe { libc::listen(door.as_raw_fd(), 8) }, 0);
        std::thread::spawn(move || {
            let fd = sys::poll_until(door.as_raw_fd(), libc::POLLIN, None)
                // SAFETY: no address is asked for.
                .map(|_| unsafe {
                    libc::accept(door.as_raw_fd(), core::ptr::null_mut(), core::ptr::null_mut())
                });
            let line = owned(fd.unwrap());
            let mut bytes = [0; EMITTED_LEN_MAX];
            let greeting = Greeting {
                port: ways.local_addr().unwrap().port(),
                takes_agreed: true,
                user: USER,
            };
            let len = Message::Greeting(greeting).emit(&mut bytes).unwrap();
            sys::send_over(line.as_raw_fd(), &bytes[..len], &[file.as_raw_fd()]).unwrap();
            serve(line, &ways)
        })
    }

    /// The same for one connection, on which it answers what it hears. The end of the thread: what
    /// was handed over.
    fn echoing_gateway() -> JoinHandle<(HandOver, OwnedFd)> {
        gateway(&[], |line, ways| {
            let mut bytes = [0; EMITTED_LEN_MAX];
            let (mut way, library) = ways.accept().unwrap();
            sys::poll_until(line.as_raw_fd(), libc::POLLIN, None).unwrap();
            let received = sys::recv_with_fds(line.as_raw_fd(), &mut bytes).unwrap();
            let Ok(Message::HandOver(said)) = Message::parse(&bytes[..received.len]) else {
                panic!("no hand-over")
            };
            assert_eq!(said.port, library.port());
            let [connection] = received.fds() else { panic!("no connection") };
            let mut heard = [0; 3];
            way.read_exact(&mut heard).unwrap();
            way.write_all(&heard).unwrap();
            assert_eq!(way.read(&mut heard).unwrap(), 0, "until the program closes it");
            (said, owned(*connection))
        })
    }

    fn owned(fd: i32) -> OwnedFd {
        // SAFETY: opened here, and known nowhere else.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    /// A connection, and its other end on what is to be another host.
    fn connection() -> (TcpStream, TcpStream, &'static Sock) {
        connection_by(&TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn connection_by(listener: &TcpListener) -> (TcpStream, TcpStream, &'static Sock) {
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let sock = life::register(stream.as_raw_fd(), false, false).unwrap();
        sock.offer(stream.as_raw_fd(), settle);
        (stream, peer, sock)
    }

    fn close(stream: TcpStream) {
        drop(life::before_close(stream.as_raw_fd()));
        drop(stream);
    }

    /// Waits for it in a set, where the word 77 stands for it.
    fn watch(fd: i32) -> OwnedFd {
        // SAFETY: no memory operands.
        let set = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 77 };
        // SAFETY: one event.
        let event = unsafe { Argument::new(&raw mut event, 1) };
        let added = epoll::control(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, event);
        assert_eq!(added, Some(Ok(0)));
        set
    }

    /// The words of what the kernel reports.
    fn reported(set: &OwnedFd) -> Option<u64> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        match unsafe { libc::epoll_wait(set.as_raw_fd(), &raw mut event, 1, 5_000) } {
            1 => Some(event.u64),
            _ => None,
        }
    }

    #[test]
    fn a_connection_goes_by_the_gateway_and_shows_where_it_leads() {
        let _alone = alone();
        let thread = echoing_gateway();
        let (mut stream, mut peer, sock) = connection();
        let fd = stream.as_raw_fd();
        stream.set_read_timeout(Some(Duration::from_secs(7))).unwrap();
        let before = [false, true].map(|peer| Name::of(fd, peer).unwrap().bytes().to_vec());
        let set = watch(fd);
        hand_over(sock, fd, (Side::Server, true));
        stream.write_all(b"abc").unwrap();
        assert_eq!(reported(&set), Some(77));
        let mut answer = [0; 3];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"abc");
        assert_eq!([false, true].map(|peer| name(fd, peer).unwrap().bytes().to_vec()), before);
        assert_ne!(stream.peer_addr().unwrap(), peer.local_addr().unwrap(), "the kernel knows");
        assert_eq!(stream.read_timeout().unwrap(), Some(Duration::from_secs(7)));
        close(stream);
        let (said, connection) = thread.join().unwrap();
        assert_eq!(said.side, Side::Server);
        // No other process has it.
        drop(connection);
        assert_eq!(peer.read(&mut answer).unwrap(), 0);
    }

    /// What the gateway sets on a connection is none of the program's.
    #[test]
    fn the_program_s_options_are_on_its_descriptor_before_the_gateway_has_the_connection() {
        let _alone = alone();
        let (stream, _peer, sock) = connection();
        let fd = stream.as_raw_fd();
        let limit = Some(Duration::from_secs(7));
        stream.set_read_timeout(limit).unwrap();
        let thread = gateway(&[], |line, ways| {
            let way = ways.accept().unwrap();
            let mut bytes = [0; EMITTED_LEN_MAX];
            sys::poll_until(line.as_raw_fd(), libc::POLLIN, None).unwrap();
            let received = sys::recv_with_fds(line.as_raw_fd(), &mut bytes).unwrap();
            let [n] = received.fds() else { panic!("no connection") };
            TcpStream::from(owned(*n)).set_read_timeout(None).unwrap();
            (line, way)
        });
        let (way, _) = open_session(sock, fd, (Side::Server, true)).unwrap();
        let _gateway = thread.join().unwrap();
        assert_eq!(TcpStream::from(owned(way)).read_timeout().unwrap(), limit);
        close(stream);
    }

    /// A server that is root until it listens, as nginx is.
    #[test]
    fn who_becomes_another_user_hands_over_as_that_one() {
        const OTHER: u32 = 4711;
        if sys::effective_uid() != 0 {
            return println!("skipped: only root becomes another user");
        }
        let _alone = alone();
        let thread = gateway(&[], |line, _| line);
        assert!(is_present());
        // It goes on serving whom it has greeted.
        let line_of_root = thread.join().unwrap();
        let thread = gateway(&[], |line, ways| {
            let way = ways.accept().unwrap();
            (sys::peer_user(line.as_raw_fd()), line, way)
        });
        let (stream, _peer, sock) = connection();
        let fd = stream.as_raw_fd();
        let as_other = std::thread::spawn(move || {
            // SAFETY: no memory operands. Unlike libc's function, the call is about this thread alone.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, OTHER, -1) };
            assert_eq!(changed, 0);
            hand_over(sock, fd, (Side::Server, true));
        });
        as_other.join().unwrap();
        let owner = File::from(OwnedFd::from(stream.try_clone().unwrap())).metadata().unwrap();
        assert_eq!(owner.uid(), OTHER, "the descriptor means no H of the new user");
        let (caller, _line, _way) = thread.join().unwrap();
        assert_eq!(caller, Ok(OTHER), "H and the line are one user's");
        close(stream);
        drop(line_of_root);
    }

    /// Also one that leads to an address of IPv4.
    #[test]
    fn a_socket_of_ipv6_stays_one() {
        let _alone = alone();
        for address in ["[::1]:0", "[::ffff:127.0.0.1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                println!("skipped: there is no IPv6 for {address}");
                continue;
            };
            let thread = echoing_gateway();
            let (mut stream, _peer, sock) = connection_by(&listener);
            let fd = stream.as_raw_fd();
            let tclass = |fd| sys::socket_option(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS);
            sys::set_socket_option(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 0x28).unwrap();
            let before = [false, true].map(|peer| Name::of(fd, peer).unwrap().bytes().to_vec());
            hand_over(sock, fd, (Side::Client, true));
            let domain = sys::socket_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
            assert_eq!((domain, tclass(fd)), (Ok(libc::AF_INET6), Ok(0x28)));
            sys::set_socket_option(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 0x48).unwrap();
            assert_eq!(tclass(fd), Ok(0x48));
            assert_eq!([false, true].map(|peer| name(fd, peer).unwrap().bytes().to_vec()), before);
            let mut answer = [0; 3];
            stream.write_all(b"abc").unwrap();
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"abc");
            close(stream);
            thread.join().unwrap();
        }
    }

    #[test]
    fn servers_that_are_not_worth_it_are_left_alone() {
        let _alone = alone();
        let now = Duration::from_nanos(sys::now_ns());
        let [failed, short, over, impossible, others, never] =
            [1, 2, 3, 4, 5, 6].map(|host| SocketAddr::from(([10, 0, 0, host], 80)));
        let lesson = |server, user, cause, until| {
            let (declined, has_accepted) = (0, false);
            Lesson { server, user, in_vain: 16, cause, until, declined, has_accepted }
        };
        let soon = now + Duration::from_secs(60);
        let learned = [
            lesson(failed, USER, Cause::Failed, soon),
            lesson(short, USER, Cause::Short, soon),
            lesson(over, USER, Cause::Failed, now),
            lesson(impossible, USER, Cause::Failed, now + 2 * autocache::LONGEST),
            lesson(others, USER + 1, Cause::Failed, soon),
        ];
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = gateway(&learned, move |line, _| {
            // Until the test is over.
            let _ = ended.recv();
            drop(line);
        });
        assert!(is_present());
        assert_eq!(
            [failed, short].map(objection),
            [Reason::Peer(PeerCannot::FailedLately), Reason::Program(ProgramDid::ShortLately)]
                .map(Some)
        );
        assert!(!may_lead_to(failed) && !may_lead_to(short));
        assert!([over, impossible, others, never].into_iter().all(may_lead_to));
        drop(end);
        thread.join().unwrap();
        // What it knew went with it.
        assert!(!is_present() && objection(failed).is_none());
    }

    #[test]
    fn without_a_gateway_a_client_declines_and_goes_on() {
        let _alone = alone();
        let (mut stream, mut peer, sock) = connection();
        let fd = stream.as_raw_fd();
        assert!(!hand_over(sock, fd, (Side::Client, true)));
        stream.write_all(b"abc").unwrap();
        let mut heard = [0; DECLINE_LEN + 3];
        peer.read_exact(&mut heard).unwrap();
        let decline = Decline::parse(&heard[..DECLINE_LEN]).unwrap();
        assert_eq!((decline.diagnosis, &heard[DECLINE_LEN..]), (Diagnosis::MEM, &b"abc"[..]));
        assert!(name(fd, true).is_none());
        close(stream);
    }

    /// A Proposal is longer than what is read over at once, and behind it are the client's first bytes.
    #[test]
    fn without_a_gateway_a_server_declines_and_goes_on() {
        let _alone = alone();
        let (mut stream, mut peer, sock) = connection();
        let fd = stream.as_raw_fd();
        peer.write_all(&[&proposal()[..], b"abc"].concat()).unwrap();
        assert!(!hand_over(sock, fd, (Side::Server, true)));
        let mut heard = [0; 3];
        stream.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"abc");
        stream.write_all(b"def").unwrap();
        let mut heard = [0; DECLINE_LEN + 3];
        peer.read_exact(&mut heard).unwrap();
        assert!(Decline::parse(&heard[..DECLINE_LEN]).is_ok());
        assert_eq!(&heard[DECLINE_LEN..], b"def");
        close(stream);
    }

    /// Of as many UEIDs as one may name.
    fn proposal() -> Vec<u8> {
        let ueids = (0..UEID_COUNT_MAX).map(|n| Eid::ueid(&format!("UEID{n}")).unwrap());
        let gid = ExtendedGid::default();
        let proposal = Proposal::smc_d_v2(ueids.collect(), None, gid, Chid::LOOPBACK);
        let mut bytes = vec![0; proposal.emitted_len()];
        proposal.emit(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_client_without_a_gateway_either_is_not_declined_a_second_time() {
        let _alone = alone();
        let (mut stream, mut peer, sock) = connection();
        assert!(without_gateway::decline(peer.as_raw_fd(), Side::Client));
        peer.write_all(b"abc").unwrap();
        assert!(!hand_over(sock, stream.as_raw_fd(), (Side::Server, true)));
        let mut heard = [0; 3];
        stream.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"abc");
        stream.write_all(b"def").unwrap();
        peer.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"def");
        close(stream);
    }

    #[test]
    fn without_a_gateway_a_server_ends_what_is_no_proposal() {
        let _alone = alone();
        let accept = [&[0xE2, 0xD4, 0xC3, 0xD9, 2][..], &[0, 16, 0x10], &[0; 8]].concat();
        for said in [&b"a Proposal"[..], &proposal()[..100], &accept, b""] {
            let (mut stream, mut peer, sock) = connection();
            peer.write_all(said).unwrap();
            assert!(hand_over(sock, stream.as_raw_fd(), (Side::Server, true)));
            let ended = stream.read(&mut [0; 16]).unwrap_err();
            assert_eq!(ended.raw_os_error(), Some(libc::ECONNRESET));
            close(stream);
        }
    }

    #[test]
    fn without_a_gateway_no_byte_of_what_tls_is_to_protect_goes_out() {
        let _alone = alone();
        for side in [Side::Client, Side::Server] {
            let (mut stream, mut peer, sock) = connection();
            let mut further = stream.try_clone().unwrap();
            life::duplicate(stream.as_raw_fd(), further.as_raw_fd());
            let set = watch(stream.as_raw_fd());
            sock.set_rule(Some(0));
            hand_over(sock, stream.as_raw_fd(), (side, true));
            assert_eq!(reported(&set), Some(77), "a loop is told");
            let ended = stream.read(&mut [0; 16]).unwrap_err();
            assert_eq!(ended.raw_os_error(), Some(libc::ECONNRESET));
            assert!(stream.write_all(b"abc").is_err());
            assert!(further.write_all(b"abc").is_err(), "by another number of its descriptor");
            let mut heard = Vec::new();
            assert!(matches!(peer.read_to_end(&mut heard), Ok(0)), "{heard:?}");
            close(further);
            close(stream);
        }
    }

    /// A connection to a listener that has no room for it.
    fn unfinished() -> (Vec<OwnedFd>, OwnedFd) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // SAFETY: no memory operands.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let (address, len) = sys::socket_name(listener.as_raw_fd(), false).unwrap();
        let mut others = vec![OwnedFd::from(listener)];
        loop {
            let stream = owned(sys::tcp_socket(false).unwrap());
            sys::fcntl(stream.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK as usize).unwrap();
            // SAFETY: an address of this length.
            unsafe { libc::connect(stream.as_raw_fd(), (&raw const address).cast(), len) };
            let is_connected = sys::poll_until(
                stream.as_raw_fd(),
                libc::POLLOUT,
                Some(Duration::from_millis(200)),
            );
            if is_connected == Ok(0) {
                return (others, stream);
            }
            others.push(stream);
        }
    }

    #[test]
    fn what_is_not_known_yet_is_reset_in_another_program() {
        let _alone = alone();
        let (_others, stream) = unfinished();
        let fd = stream.as_raw_fd();
        let sock = life::register(fd, true, false).unwrap();
        sock.offer(fd, settle);
        let other = File::from(owned(bundle::stand_in_hidden(fd).unwrap()));
        let error = (&other).read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
        assert!(sock.is_offered() && ledger::is_connecting(fd), "it goes on here");
        drop(life::before_close(fd));
    }

    #[test]
    fn what_is_known_goes_to_another_program_as_it_is() {
        let _alone = alone();
        let (stream, mut peer, _) = connection();
        let fd = stream.as_raw_fd();
        conclude(fd);
        assert!(descriptors::object(fd).is_some_and(|sock| sock.phase() == Phase::Candidate));
        assert!(bundle::stand_in_hidden(fd).is_none());
        peer.write_all(b"abc").unwrap();
        assert_eq!((&stream).read(&mut [0; 8]).unwrap(), 3);
        close(stream);
    }

    #[test]
    fn what_no_other_host_has_agreed_to_goes_on_as_it_is() {
        let _alone = alone();
        let (stream, mut peer, sock) = connection();
        let fd = stream.as_raw_fd();
        let set = watch(fd);
        settle(sock, fd);
        assert!(descriptors::object(fd).is_some_and(|sock| sock.phase() == Phase::Candidate));
        peer.write_all(b"abc").unwrap();
        assert_eq!(reported(&set), Some(77));
        close(stream);
    }
}
