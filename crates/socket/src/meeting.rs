//! How two libraries meet beside a connection, and agree.
//!
//! *The name of the meeting place is the connection itself.* At its first I/O on a
//! connection the client binds an abstract UNIX datagram socket whose name is the
//! four-tuple; the process that does the first I/O on the accepted side sends a
//! hello to that name. Four-tuples are unique within a network namespace, and
//! abstract names belong to one, so whoever answers holds the other end, whichever
//! worker of whichever `SO_REUSEPORT` group accepted it. A plain program on either
//! side sees nothing: the client finds no listener marked as ours and does not
//! bind, or the server's hello finds no such name.
//!
//! ```text
//!   client                                        server
//!   is the listening port marked as ours?
//!   bind "<four-tuple>"
//!         ---------------- first bytes by TCP -------------->
//!         <------- Hello (instance, slot, token) ------------   datagram to the name
//!   first contact only:
//!         -------- Introduction (slab, wake) --------------->   datagrams between
//!         <------- Introduction (slab, wake) ----------------   mailboxes
//!   Proposal in the CLC box, slot in the server's reply cell
//!                                          Accept in the CLC box; reads by ledger
//!   Confirm in the CLC box; reads by ledger
//! ```
//!
//! Nobody waits: each arrow is looked for when the program makes its next call on
//! the connection ([`Moment`]), and until then bytes flow by TCP as ever. The
//! kernel tells the sender's user with every datagram; both sides check that the
//! TCP socket is established and lives in the namespace of the name.

use crate::account;
use crate::given::{self, Givers};
use crate::group::{self, Group};
use crate::options::{LAZY_BYTES, LAZY_MESSAGES, Promotion};
use crate::process::{self, Process, netns_cookie, socket_cookie};
use crate::sock::{self, Conn, Phase, Sock};
use crate::switch;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use sidestep_device::channel::SLOTS;
use sidestep_device::ring::Ring;
use sidestep_device::slab::{CLC_LEN_MAX, Record, phase};
use sidestep_device::state::{Slot, mode};
use sidestep_device::sys::{self, Errno, UnixName};
use sidestep_proto::fallback::Reason;
use sidestep_proto::rendezvous::{self, Buffer};
use sidestep_wire::clc::{AcceptConfirm, AcceptConfirmD, Decline, Message};
use sidestep_wire::host_control::{
    ControlMessage, EMITTED_LEN_MAX, Hello, Instance, connection_name, listener_name,
};
use sidestep_wire::{Diagnosis, DmbToken, PeerId, RmbeSize};

/// Looks for an answer before the attempt is given up.
const LOOKS_MAX: u32 = 4_096;
/// The same for one whose giver still has it open: it may never close it, and each look
/// asks the kernel.
const LOOKS_FOR_GIVER: u32 = 64;
/// Markers of one port that a client looks for: the second is there while an old
/// listener is being replaced.
const MARKERS: u8 = 2;

/// Where in a call the library looks for progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before bytes are given to TCP.
    BeforeSend,
    /// After bytes were given to TCP.
    AfterSend,
    /// Before bytes are taken from TCP.
    BeforeReceive,
    /// After bytes were taken from TCP: the peer has done I/O, so its name exists.
    AfterReceive,
}

/// How far the agreement about one connection has come.
pub struct Meeting {
    step: Step,
    looks: u32,
    name_fd: i32,
}

enum Step {
    /// Nothing done.
    Start,
    /// Client: bound to the name.
    AwaitHello,
    /// Client: the server's process has to introduce itself first.
    AwaitIntroduction(Hello),
    /// Client: proposed.
    AwaitAccept { hello: Hello, group: &'static Group, outgoing: Ring },
    /// Server: hello sent under this token, when there had been so many refusals.
    AwaitReply { token: [u8; 16], refusals: u32 },
    /// Decided.
    Over,
}

impl Meeting {
    pub(crate) const fn new() -> Self {
        Self { step: Step::Start, looks: 0, name_fd: -1 }
    }

    /// The connection ends, or the attempt does.
    pub(crate) fn abandon(&mut self) {
        self.step = Step::Over;
        if self.name_fd >= 0 {
            sys::close(self.name_fd);
            self.name_fd = -1;
        }
    }
}

/// A program listens on a port: leaves the marker that tells clients on this host
/// that they may meet us. Called again with every connection it accepts, until there
/// is one: of many listeners on a port two leave markers, and others take over when
/// those are gone.
pub fn mark_listener(sock: &Sock, fd: i32) {
    let can_meet = process::options().moves_connections() && sock::unseen_use().is_none();
    if !can_meet || sock.marker.load(Ordering::Relaxed) >= 0 {
        return;
    }
    clear_retired(sys::now_ns());
    let Ok((local, _)) = sys::socket_name(fd, false) else { return };
    let Some(port) = sock::address(&local).map(|local| local.port()) else { return };
    if process::options().policy.objection_to_port(port).is_some() {
        return;
    }
    let Ok(marker) = sys::unix_datagram().map(sys::move_up) else { return };
    let free = |index| sys::bind_unix(marker, &UnixName::new(&listener_name(port, index))).is_ok();
    let placed = (0..MARKERS).any(free)
        && sock.marker.compare_exchange(-1, marker, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if !placed {
        sys::close(marker);
    }
}

/// Markers of listeners that were closed, + 1, and when they may go, by
/// [`sys::now_ns`]. Many a server closes its listener once it has the connection it
/// waited for, and the client of that connection still has to find the marker.
static RETIRED: [(AtomicI32, AtomicU64); RETIRED_MAX] =
    [const { (AtomicI32::new(0), AtomicU64::new(0)) }; RETIRED_MAX];
/// Closed listeners whose markers are kept.
const RETIRED_MAX: usize = 8;
/// For how long: more than a client takes to its first call.
const RETIRED_NS: u64 = 2_000_000_000;

/// A listener is closed: its marker stays for a moment. If too many do, the one that
/// has stayed longest gives way: its client is the likeliest to have looked.
pub(crate) fn retire_marker(marker: i32) {
    let now = sys::now_ns();
    clear_retired(now);
    // A free place is due since the beginning of time.
    let oldest = RETIRED.iter().min_by_key(|(_, until)| until.load(Ordering::Relaxed));
    let Some((place, until)) = oldest else { return sys::close(marker) };
    until.store(now + RETIRED_NS, Ordering::Relaxed);
    let before = place.swap(marker + 1, Ordering::Relaxed);
    if before != 0 {
        sys::close(before - 1);
    }
}

/// The connections of a listener will not meet us.
pub(crate) fn withdraw_marker(listener: &Sock) {
    let marker = listener.marker.swap(-1, Ordering::Relaxed);
    if marker >= 0 {
        sys::close(marker);
    }
}

fn clear_retired(now: u64) {
    for (marker, until) in &RETIRED {
        let due = until.load(Ordering::Relaxed);
        if due != 0 && due <= now && until.swap(0, Ordering::Relaxed) == due {
            sys::close(marker.swap(0, Ordering::Relaxed) - 1);
        }
    }
}

/// Looks for progress. Called around every call on a connection that is a
/// candidate or meeting; it never sleeps.
pub fn look(sock: &'static Sock, fd: i32, moment: Moment) {
    sock.with_meeting(|meeting| {
        let undecided = matches!(sock.phase(), Phase::Candidate | Phase::Meeting);
        if !undecided {
            return meeting.abandon();
        }
        let server = sock.is_server.load(Ordering::Relaxed);
        let outcome = if server {
            server_looks(sock, fd, meeting, moment)
        } else {
            client_looks(sock, fd, meeting)
        };
        match outcome {
            Ok(()) => {}
            Err(reason) => {
                meeting.abandon();
                sock.stay_plain(reason);
            }
        }
        if sock.phase() == Phase::Smc {
            meeting.abandon();
        }
    });
}

fn client_looks(sock: &'static Sock, fd: i32, meeting: &mut Meeting) -> Result<(), Reason> {
    meeting.count_look(sock)?;
    loop {
        meeting.step = match &meeting.step {
            Step::Start => {
                let Some(process) = ready_to_start(sock, fd)? else { return Ok(()) };
                meeting.name_fd = bind_name(process, fd)?;
                begin_meeting(sock);
                Step::AwaitHello
            }
            Step::AwaitHello => match receive_hello(sock, meeting.name_fd, fd)? {
                Some(hello) => Step::AwaitIntroduction(hello),
                None => return Ok(()),
            },
            Step::AwaitIntroduction(hello) => {
                let hello = *hello;
                let Some(process) = sock.home() else { return Err(Reason::NoSlot) };
                let look = group::Look::at(process);
                let Some(group) = introduced(process, &look, hello.instance)? else {
                    return Ok(());
                };
                let outgoing = propose(sock, fd, group, &hello)?;
                Step::AwaitAccept { hello, group, outgoing }
            }
            Step::AwaitAccept { hello, group, outgoing } => {
                return client_finishes(sock, fd, hello, group, *outgoing);
            }
            Step::AwaitReply { .. } | Step::Over => return Ok(()),
        }
    }
}

fn server_looks(
    sock: &'static Sock,
    fd: i32,
    meeting: &mut Meeting,
    moment: Moment,
) -> Result<(), Reason> {
    meeting.count_look(sock)?;
    if let Step::Start = meeting.step {
        let after_data = moment == Moment::AfterReceive;
        if !after_data && moment != Moment::BeforeSend {
            return Ok(());
        }
        if meeting.looks > LOOKS_FOR_GIVER && sock.is_received.load(Ordering::Relaxed) {
            return Err(Reason::HandedOver);
        }
        let Some(process) = ready_to_start(sock, fd)? else { return Ok(()) };
        let refusals = process.refusals.load(Ordering::Relaxed);
        match send_hello(sock, process, fd)? {
            Greeting::Sent(token) => {
                begin_meeting(sock);
                meeting.step = Step::AwaitReply { token, refusals };
            }
            // Before the client's first byte it may not have bound its name yet.
            Greeting::NobodyThere if after_data => return Err(Reason::PeerNotSmc),
            Greeting::NoRoom if meeting.looks >= LOOKS_MAX => return Err(Reason::Unanswered),
            Greeting::NobodyThere | Greeting::NoRoom => return Ok(()),
        }
    }
    match meeting.step {
        Step::AwaitReply { token, refusals } => server_finishes(sock, fd, token, refusals),
        _ => Ok(()),
    }
}

fn begin_meeting(sock: &Sock) {
    account::attempted(sock);
    sock.set_phase(Phase::Meeting);
    sock.slot().inspect(|slot| slot.mode.store(mode::NEGOTIATING, Ordering::Release));
}

impl Meeting {
    fn count_look(&mut self, sock: &Sock) -> Result<(), Reason> {
        self.looks += 1;
        match self.looks {
            LOOKS_MAX.. if sock.phase() == Phase::Meeting => Err(Reason::Unanswered),
            _ => Ok(()),
        }
    }
}

/// Whether the attempt may begin now: `Ok(None)` is "not yet".
fn ready_to_start(sock: &'static Sock, fd: i32) -> Result<Option<&'static Process>, Reason> {
    let options = process::options();
    sock.begin(fd);
    let Some(slot) = sock.slot() else { return Err(Reason::NoSlot) };
    match options.promotion {
        Promotion::Never => return Err(Reason::PromotionNever),
        Promotion::Lazy if !has_proven_to_live(slot) => return Ok(None),
        _ => {}
    }
    if sock.tcp_only.load(Ordering::Relaxed) {
        return Err(Reason::OptionUnsupported);
    }
    if slot.holders.load(Ordering::Acquire) > 1 {
        // A forked process may use the connection as well: whoever is left alone
        // with it goes on.
        return if process::current().is_some() { Ok(None) } else { Err(Reason::NoMemory) };
    }
    sock.move_home(fd);
    let Some(process) = process::current() else { return Err(Reason::NoMemory) };
    if sock.is_received.load(Ordering::Relaxed) {
        match given::givers(process, fd) {
            Givers::Gone => sock.is_received.store(false, Ordering::Relaxed),
            Givers::Here => return Ok(None),
            Givers::Many => return Err(Reason::HandedOver),
        }
    }
    let Ok((local, peer)) = sock::addresses(fd) else { return Ok(None) };
    sock.note_addresses(local, peer);
    // They were not known to `begin` if the connection was still being established.
    if let Some(reason) = sock.objection(Some((local, peer))) {
        return Err(reason);
    }
    if !is_same_host(local, peer) {
        return Err(Reason::RemotePeer);
    }
    if netns_cookie(fd) != process.netns_cookie {
        return Err(Reason::OtherNamespace);
    }
    Ok(Some(process))
}

fn has_proven_to_live(slot: &Slot) -> bool {
    let counters = &slot.counters;
    let sum = |a: &AtomicU64, b: &AtomicU64| a.load(Ordering::Relaxed) + b.load(Ordering::Relaxed);
    sum(&counters.messages_sent, &counters.messages_received) >= LAZY_MESSAGES
        || sum(&counters.bytes_sent, &counters.bytes_received) >= LAZY_BYTES
}

/// Both ends lie on this host: a loopback address, the same address twice, or a
/// peer address that this host could bind.
pub(crate) fn is_same_host(local: SocketAddr, peer: SocketAddr) -> bool {
    if peer.ip().is_loopback() || peer.ip() == local.ip() {
        return true;
    }
    let (storage, len) = storage(peer);
    sys::is_local(&storage, len)
}

fn storage(address: SocketAddr) -> (libc::sockaddr_storage, u32) {
    // SAFETY: all-zero is a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let at = &raw mut storage;
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: storage is large and aligned enough for every address.
            let place = unsafe { &mut *at.cast::<libc::sockaddr_in>() };
            place.sin_family = libc::AF_INET as u16;
            place.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            (storage, size_of::<libc::sockaddr_in>() as u32)
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let place = unsafe { &mut *at.cast::<libc::sockaddr_in6>() };
            place.sin6_family = libc::AF_INET6 as u16;
            place.sin6_addr.s6_addr = v6.ip().octets();
            (storage, size_of::<libc::sockaddr_in6>() as u32)
        }
    }
}

/// Client: is the server's port marked, and if so, bind the connection's name.
fn bind_name(process: &Process, fd: i32) -> Result<i32, Reason> {
    let (local, peer) = sock::addresses(fd).map_err(|_| Reason::PeerNotSmc)?;
    let marked = |index| {
        let name = UnixName::new(&listener_name(peer.port(), index));
        sys::connect_unix(process.probe, &name) != Err(Errno(libc::ECONNREFUSED))
    };
    if !(0..MARKERS).any(marked) {
        return Err(Reason::PeerNotSmc);
    }
    let name_fd = sys::unix_datagram().map(sys::move_up).map_err(|_| Reason::NoMemory)?;
    let name = UnixName::new(&connection_name(local, peer));
    let bound = sys::set_socket_option(name_fd, libc::SOL_SOCKET, libc::SO_PASSCRED, 1)
        .and_then(|_| sys::bind_unix(name_fd, &name));
    if bound.is_err() {
        sys::close(name_fd);
        return Err(Reason::PeerMisbehaved);
    }
    Ok(name_fd)
}

/// Client: has the server's process said hello?
fn receive_hello(sock: &Sock, name_fd: i32, fd: i32) -> Result<Option<Hello>, Reason> {
    let mut bytes = [0; 256];
    let Ok(received) = sys::recv_with_fds(name_fd, &mut bytes) else { return Ok(None) };
    received.close_fds();
    let Some(process) = sock.home() else { return Err(Reason::NoSlot) };
    if received.uid != Some(process.uid) {
        return Err(Reason::OtherUser);
    }
    match ControlMessage::parse(&bytes[..received.len]) {
        Ok(ControlMessage::Hello(hello)) if hello.netns_cookie != process.netns_cookie => {
            Err(Reason::OtherNamespace)
        }
        Ok(ControlMessage::Hello(hello)) if hello.slot as usize >= SLOTS => {
            Err(Reason::PeerMisbehaved)
        }
        Ok(ControlMessage::Hello(hello)) if switch::is_established(fd) => Ok(Some(hello)),
        Ok(ControlMessage::Hello(_)) => Err(Reason::Unanswered),
        _ => Err(Reason::PeerMisbehaved),
    }
}

/// The link group with a process, once it has introduced itself.
fn introduced(
    process: &'static Process,
    look: &group::Look,
    peer: Instance,
) -> Result<Option<&'static Group>, Reason> {
    let group = group::begin(look, peer).ok();
    if let Some(group) = group.filter(|group| group.theirs().is_none()) {
        group.introduce(true);
        process.read_mail();
    }
    match group.filter(|group| !group.is_refused()) {
        Some(group) => Ok(group.theirs().map(|_| group)),
        None => {
            // The server waits for our proposal on this connection, too.
            group::refuse(look, peer);
            Err(Reason::NoMemory)
        }
    }
}

/// Client: a ring for the server to read, a Proposal, and the hint where they are.
fn propose(
    sock: &'static Sock,
    fd: i32,
    group: &'static Group,
    hello: &Hello,
) -> Result<Ring, Reason> {
    let (Some(process), Some(slot)) = (sock.home(), sock.slot()) else {
        return Err(Reason::NoSlot);
    };
    let index = sock.slot_index();
    let size = RmbeSize::from_bytes(hello.rmbe_len as usize).ok_or(Reason::PeerMisbehaved)?;
    let local = process.local().ok_or(Reason::NoCommonEid)?;
    let (_, wake) = group.theirs().ok_or(Reason::NoMemory)?;
    let (ring_at, ring) = group.take_ring(index, size).ok_or(Reason::NoMemory)?;
    let mut bytes = [0; CLC_LEN_MAX];
    let len = rendezvous::propose(&local).emit(&mut bytes).map_err(|_| Reason::NoCommonEid)?;
    group.slab().clc(index).put(&bytes[..len]);
    let record = group.record(index);
    prepare(record, slot, fd, ring_at, size, our_rmbe(sock));
    record.identity.peer_slot.store(hello.slot, Ordering::Relaxed);
    let token = process::halves(&hello.token);
    record.identity.token[0].store(token[0], Ordering::Relaxed);
    record.identity.token[1].store(token[1], Ordering::Relaxed);
    turn(record, slot, phase::PROPOSED);
    wake.cell(hello.slot as usize).put(process.key(), index as u32);
    Ok(ring)
}

/// Fills a record for a new connection.
fn prepare(record: &Record, slot: &Slot, fd: i32, ring_at: u64, ring: RmbeSize, rmbe: RmbeSize) {
    turn(record, slot, phase::FREE);
    record.sending.producer.reset();
    record.sending.switch.store(0, Ordering::Relaxed);
    record.sending.urgent.store(0, Ordering::Relaxed);
    record.sending.flags.store(0, Ordering::Relaxed);
    record.sending.closes.store(0, Ordering::Relaxed);
    record.sending.cpu.store(sys::cpu(), Ordering::Relaxed);
    record.receiving.consumer.reset();
    record.waiting.read_arm.withdraw();
    record.waiting.write_arm.withdraw();
    record.waiting.channels.store(0, Ordering::Relaxed);
    record.waiting.write_wanted.store(0, Ordering::Relaxed);
    record.identity.ring_at.store(ring_at, Ordering::Relaxed);
    record.identity.ring_len.store(ring.bytes() as u32, Ordering::Relaxed);
    record.identity.rmbe_len.store(rmbe.bytes() as u32, Ordering::Relaxed);
    record.identity.cookie.store(socket_cookie(fd), Ordering::Relaxed);
    slot.send_ring_len.store(ring.bytes() as u32, Ordering::Relaxed);
    slot.receive_ring_len.store(rmbe.bytes() as u32, Ordering::Relaxed);
}

/// Publishes a phase together with the generation of the slot.
fn turn(record: &Record, slot: &Slot, to: u32) {
    let generation = slot.generation.load(Ordering::Relaxed) << 8;
    // Release: pairs with the Acquire of whoever reads the phase; everything
    // prepared before is visible with it.
    record.identity.phase.store(generation | to, Ordering::Release);
}

/// Our receive buffer: the first size above `SO_RCVBUF` if the program set it
/// before connecting or listening, else the configured default.
fn our_rmbe(sock: &Sock) -> RmbeSize {
    match sock.receive_buffer.load(Ordering::Relaxed) {
        0 => process::options().rmbe,
        bytes => RmbeSize::for_receive_buffer(bytes as usize),
    }
}

/// Client: has the server answered?
fn client_finishes(
    sock: &'static Sock,
    fd: i32,
    hello: &Hello,
    group: &'static Group,
    outgoing: Ring,
) -> Result<(), Reason> {
    let (Some(process), Some(slot), Some((theirs, _))) = (sock.home(), sock.slot(), group.theirs())
    else {
        return Err(Reason::NoSlot);
    };
    let answer = theirs.record(hello.slot as usize);
    let at = answer.identity.phase.load(Ordering::Acquire);
    if at >> 8 != hello.generation & 0x00ff_ffff {
        return Ok(());
    }
    let message = match at & phase::MASK {
        phase::ACCEPTED | phase::DECLINED => read_clc(group, hello.slot as usize),
        _ => return Ok(()),
    };
    let accept = match message {
        Some(Message::Accept(AcceptConfirm::SmcD(accept))) => accept,
        Some(Message::Decline(decline)) => return Err(declined(slot, &decline)),
        _ => return Err(Reason::PeerMisbehaved),
    };
    let local = process.local().ok_or(Reason::NoCommonEid)?;
    let size = rendezvous::check_accept(&accept, group.peer.into(), &local)
        .map_err(|_| Reason::PeerMisbehaved)?;
    let ring_at = answer.identity.ring_at.load(Ordering::Relaxed);
    let incoming = theirs.ring(ring_at, our_rmbe(sock).bytes() as u32);
    let (Some(incoming), true) = (incoming, size.bytes() == outgoing.len()) else {
        return Err(Reason::PeerMisbehaved);
    };
    let index = sock.slot_index();
    let mine = group.record(index);
    let peer_slot = hello.slot as usize;
    let conn = Conn { mine, theirs: answer, outgoing, incoming, group, peer_slot };
    if switch::read_by_ledger(sock, slot, fd, conn) {
        let confirm = rendezvous::confirm(&accept, &local, buffer(sock, group, false));
        put_clc(group, index, &confirm);
        turn(mine, slot, phase::CONFIRMED);
        crate::epoll::adopt(sock);
    }
    Ok(())
}

/// What became of a hello.
enum Greeting {
    /// It waits under the client's name, with this token.
    Sent([u8; 16]),
    NobodyThere,
    /// The buffer of our mailbox is full of hellos that other clients have not read:
    /// some 280 connections had their first bytes at once. A later call may do.
    NoRoom,
}

/// Server: sends the hello.
fn send_hello(sock: &Sock, process: &Process, fd: i32) -> Result<Greeting, Reason> {
    let (local, peer) = sock::addresses(fd).map_err(|_| Reason::PeerNotSmc)?;
    let slot = sock.slot().ok_or(Reason::NoSlot)?;
    let mut token = [0; 16];
    sys::random(&mut token).map_err(|_| Reason::NoMemory)?;
    let hello = Hello {
        instance: process.instance,
        slot: sock.slot_index() as u32,
        generation: slot.generation.load(Ordering::Relaxed),
        token,
        socket_cookie: socket_cookie(fd),
        netns_cookie: process.netns_cookie,
        rmbe_len: our_rmbe(sock).bytes() as u32,
    };
    let mut bytes = [0; EMITTED_LEN_MAX];
    let len = hello.emit(&mut bytes).map_err(|_| Reason::PeerMisbehaved)?;
    process.wake.cell(sock.slot_index()).clear();
    let name = UnixName::new(&connection_name(peer, local));
    match sys::send_with_fds(process.mailbox, &name, &bytes[..len], &[]) {
        Ok(_) => Ok(Greeting::Sent(token)),
        Err(Errno(libc::EAGAIN)) => Ok(Greeting::NoRoom),
        Err(_) => Ok(Greeting::NobodyThere),
    }
}

/// Server: has the client proposed? If instead some client and we had no room for each
/// other's memory since the hello (`refusals` had been counted then), it is taken for
/// this one: who it is would have been said by a proposal.
fn server_finishes(
    sock: &'static Sock,
    fd: i32,
    token: [u8; 16],
    refusals: u32,
) -> Result<(), Reason> {
    let (Some(process), Some(slot)) = (sock.home(), sock.slot()) else {
        return Err(Reason::NoSlot);
    };
    let index = sock.slot_index();
    let look = group::Look::at(process);
    let Some((group, peer_slot)) = find_proposal(process, &look, index, token) else {
        // Whoever has died meanwhile can be buried while letters are read.
        drop(look);
        process.read_mail();
        let refused = process.refusals.load(Ordering::Relaxed) != refusals;
        return if refused { Err(Reason::NoMemory) } else { Ok(()) };
    };
    if slot.plain_receives.load(Ordering::SeqCst) != 0 {
        // Another thread sleeps in a plain receive: when it returns, look again.
        return Ok(());
    }
    accept(sock, fd, group, peer_slot)
        .inspect_err(|reason| decline(sock, group, peer_slot, *reason))?;
    if sock.phase() == Phase::Smc {
        turn(group.record(index), slot, phase::ACCEPTED);
        crate::epoll::adopt(sock);
    }
    Ok(())
}

/// Who has proposed, and in which of its slots. Any peer can write the cell; one that
/// does not lead to our token says nothing, and the right one may still come.
fn find_proposal(
    process: &Process,
    look: &group::Look,
    index: usize,
    token: [u8; 16],
) -> Option<(&'static Group, usize)> {
    let (key, peer_slot) = process.wake.cell(index).take()?;
    let peer_slot = Some(peer_slot as usize).filter(|slot| *slot < SLOTS)?;
    let group = group::find_by_key(look, key)?;
    let proposal = &group.theirs()?.0.record(peer_slot).identity;
    let at = proposal.phase.load(Ordering::Acquire) & phase::MASK;
    let shown = [0, 1].map(|half: usize| proposal.token[half].load(Ordering::Relaxed));
    (at == phase::PROPOSED && shown == process::halves(&token)).then_some((group, peer_slot))
}

fn accept(
    sock: &'static Sock,
    fd: i32,
    group: &'static Group,
    peer_slot: usize,
) -> Result<(), Reason> {
    let (Some(process), Some(slot), Some((theirs, _))) = (sock.home(), sock.slot(), group.theirs())
    else {
        return Err(Reason::NoSlot);
    };
    let index = sock.slot_index();
    let proposal = theirs.record(peer_slot);
    let Some(Message::Proposal(message)) = read_clc(group, peer_slot) else {
        return Err(Reason::PeerMisbehaved);
    };
    let local = process.local().ok_or(Reason::NoCommonEid)?;
    let wished = proposal.identity.rmbe_len.load(Ordering::Relaxed) as usize;
    let size = RmbeSize::from_bytes(wished).ok_or(Reason::PeerMisbehaved)?;
    let ring_at = proposal.identity.ring_at.load(Ordering::Relaxed);
    let incoming = theirs.ring(ring_at, our_rmbe(sock).bytes() as u32);
    let incoming = incoming.ok_or(Reason::PeerMisbehaved)?;
    let accept = rendezvous::answer(&message, group.peer.into(), &local, buffer(sock, group, true))
        .map_err(|decline| match decline.diagnosis {
            Diagnosis::NOUEID => Reason::NoCommonEid,
            _ => Reason::PeerMisbehaved,
        })?;
    let (ring_at, outgoing) = group.take_ring(index, size).ok_or(Reason::NoMemory)?;
    let mine = group.record(index);
    prepare(mine, slot, fd, ring_at, size, our_rmbe(sock));
    mine.identity.peer_slot.store(peer_slot as u32, Ordering::Relaxed);
    put_clc(group, index, &accept);
    let conn = Conn { mine, theirs: proposal, outgoing, incoming, group, peer_slot };
    if !switch::is_established(fd) || !switch::read_by_ledger(sock, slot, fd, conn) {
        return Err(Reason::Unanswered);
    }
    Ok(())
}

/// Server: says why not, in the standard's words.
fn decline(sock: &Sock, group: &'static Group, peer_slot: usize, reason: Reason) {
    let (Some(slot), Some(code)) = (sock.slot(), reason.diagnosis()) else { return };
    let index = sock.slot_index();
    let message = Decline::v2(PeerId::default(), code);
    let mut bytes = [0; CLC_LEN_MAX];
    if let Ok(len) = message.emit(&mut bytes) {
        group.slab().clc(index).put(&bytes[..len]);
        let record = group.record(index);
        record.identity.peer_slot.store(peer_slot as u32, Ordering::Relaxed);
        turn(record, slot, phase::DECLINED);
    }
}

fn declined(slot: &Slot, decline: &Decline) -> Reason {
    slot.peer_diagnosis.store(decline.diagnosis.0, Ordering::Relaxed);
    Reason::PeerDeclined
}

fn buffer(sock: &Sock, group: &Group, asks_contact: bool) -> Buffer {
    let mut token = [0; 8];
    let _ = sys::random(&mut token);
    Buffer {
        token: DmbToken(u64::from_ne_bytes(token)),
        size: our_rmbe(sock),
        link_id: group.link_id,
        first_contact: asks_contact && group.is_first_contact(),
    }
}

fn read_clc(group: &Group, peer_slot: usize) -> Option<Message> {
    let (theirs, _) = group.theirs()?;
    let mut bytes = [0; CLC_LEN_MAX];
    let len = theirs.clc(peer_slot).take(&mut bytes);
    let message = Message::parse(&bytes[..len]);
    if let Err(error) = &message {
        crate::log!(Warn, "CLC message of {} refused: {error}", group.peer);
    }
    message.ok()
}

fn put_clc(group: &Group, index: usize, message: &AcceptConfirmD) {
    let mut bytes = [0; CLC_LEN_MAX];
    if let Ok(len) = message.emit(&mut bytes) {
        group.slab().clc(index).put(&bytes[..len]);
    }
}

/// Server: the client has confirmed, so it reads by the ledger.
pub(crate) fn is_confirmed(conn: &Conn) -> bool {
    let at = conn.theirs.identity.phase.load(Ordering::Acquire);
    at & phase::MASK == phase::CONFIRMED
}

/// Server: checks the Confirm once, before the first byte goes into the ring.
pub(crate) fn check_confirm(sock: &Sock, conn: &Conn) -> bool {
    let Some(local) = sock.home().and_then(Process::local) else { return false };
    let message = read_clc(conn.group, conn.peer_slot);
    let Some(Message::Confirm(AcceptConfirm::SmcD(confirm))) = message else {
        return false;
    };
    rendezvous::check_confirm(&confirm, conn.group.peer.into(), &local)
        .is_ok_and(|size| size.bytes() == conn.outgoing.len())
}

/// Writes down that the connection is in shared memory.
pub(crate) fn note_smc(slot: &Slot) {
    slot.reason.store(Reason::None as u8, Ordering::Relaxed);
    slot.mode.store(mode::SMC_D, Ordering::Release);
    crate::log!(Info, "connection is in shared memory");
}
