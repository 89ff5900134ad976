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
//! Processes that have met before do without the name and the hello: they leave the same
//! in the memory that they share ([`crate::claim`]). So do the ends of a connection between
//! two network namespaces, which have no name in common ([`crate::distant`]).
//!
//! Nobody waits: each arrow is looked for when the program makes its next call on
//! the connection ([`Moment`]), and until then bytes flow by TCP as ever. The
//! kernel tells the sender's user with every datagram; both sides check that the
//! TCP socket is established and lives in the namespace of the name.

use crate::account;
use crate::autocache;
use crate::claim;
use crate::distant::Seek;
use crate::file::File;
use crate::gateway;
use crate::given::{self, Givers};
use crate::group::{self, Group};
use crate::memory;
use crate::options::Promotion;
use crate::pnet;
use crate::process::{self, Process, netns_cookie, socket_cookie};
use crate::reload;
use crate::sock::{self, Conn, Phase, Sock};
use crate::{switch, tcp_option};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use sidestep_device::channel::SLOTS;
use sidestep_device::rights::{self, NotTaken};
use sidestep_device::ring::Ring;
use sidestep_device::slab::{CLC_LEN_MAX, Record, phase};
use sidestep_device::state::{Slot, mode};
use sidestep_device::sys::{self, Errno, UnixName};
use sidestep_proto::fallback::{Field, Lack, OperatorSaid, PeerCannot, ProgramDid, Reason};
use sidestep_proto::rendezvous::{self, AnswerWait, Buffer, Refusal};
use sidestep_wire::clc::{AcceptConfirm, AcceptConfirmD, Decline, Message};
use sidestep_wire::host_control::{
    ControlMessage, EMITTED_LEN_MAX, Hello, Instance, Side, connection_name, connection_token,
    listener_name,
};
use sidestep_wire::tcp_option::Identity;
use sidestep_wire::{DmbToken, Error, PeerId, RmbeSize};

/// Looks before an attempt is given up whose giver still has the connection open: it may
/// never close it, and each look asks the kernel.
const LOOKS_FOR_GIVER: u32 = 64;
/// Looks that all read the client's name; then, because that asks the kernel, only some do
/// ([`Meeting::is_due`]).
const LOOKS_AT_NAME: u32 = 8;
/// Looks of a server that all read its mailbox, or look for room in it; likewise.
const LOOKS_AT_MAILBOX: u32 = 4_096;
/// Later looks of which one asks the kernel.
const LOOKS_BETWEEN: u32 = 1_024;
/// Messages after which the server's end looks for the client no more. Until then it does
/// each time their number has doubled: the other end may think that it has to live longer
/// before it is worth moving.
pub(crate) const MESSAGES_MAX: u64 = 4_096;
/// Receives that may have been the answer to the only request.
const ANSWERS: u64 = 4;
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
    /// Something may be left in the memory of processes that we know.
    has_claimed: bool,
    /// Server: messages after which it looks for the client again.
    next_attempt: u64,
    /// The hello was another user's, who may not want to share memory with us.
    is_stranger: bool,
    /// It has begun, and is one of [`PENDING`].
    waiting: Option<AnswerWait>,
}

/// Meetings that have begun and are not over.
static PENDING: AtomicU32 = AtomicU32::new(0);

enum Step {
    /// Nothing done.
    Start,
    /// Looks for the other end in another network namespace.
    Seek(Seek),
    /// Client: has claimed the connection, or is bound to its name, or both.
    AwaitHello(claim::Token),
    /// Client: the server's process has to introduce itself first.
    AwaitIntroduction(Hello),
    /// Client: proposed.
    AwaitAccept { hello: Hello, group: &'static Group, outgoing: Ring },
    /// Server: hello sent under this token, when there had been so many refusals.
    AwaitReply { token: claim::Token, refusals: u32, knows_client: bool },
    /// Decided.
    Over,
}

impl Meeting {
    pub(crate) const fn new() -> Self {
        Self {
            step: Step::Start,
            looks: 0,
            name_fd: -1,
            has_claimed: false,
            next_attempt: 0,
            is_stranger: false,
            waiting: None,
        }
    }

    /// The connection ends, or the attempt does.
    pub(crate) fn abandon(&mut self, sock: &Sock) {
        self.withdraw(sock);
        self.step = Step::Over;
        if self.waiting.take().is_some() {
            PENDING.fetch_sub(1, Ordering::Relaxed);
        }
        if self.name_fd >= 0 {
            rights::close(self.name_fd);
            self.name_fd = -1;
        }
    }

    /// Takes back what may be left in the memory of processes that we know.
    fn withdraw(&mut self, sock: &Sock) {
        let has_claimed = match &mut self.step {
            Step::Seek(seek) => core::mem::take(&mut seek.has_claimed),
            _ => false,
        };
        if (core::mem::take(&mut self.has_claimed) || has_claimed)
            && let Some(process) = sock.home()
        {
            claim::withdraw(process, sock);
        }
    }

    /// An end that seeks begins anew if another process may use it as well, or it has become
    /// that of a child.
    fn check_seeker(&mut self, sock: &Sock) {
        let is_alone = || {
            let holders = sock.slot().map_or(0, |slot| slot.holders.load(Ordering::Acquire));
            holders == 1 && sock.is_at_home()
        };
        if matches!(self.step, Step::Seek(_)) && !is_alone() {
            self.withdraw(sock);
            self.step = Step::Start;
        }
    }
}

/// A program listens on a port: leaves the marker that tells clients on this host
/// that they may meet us. Called again with every connection it accepts, until there
/// is one: of many listeners on a port two leave markers, and others take over when
/// those are gone.
pub fn mark_listener(sock: &Sock, fd: i32) {
    if sock.marker.load(Ordering::Relaxed) >= 0 {
        return;
    }
    reload::look();
    if !process::options().moves_connections() || sock::unseen_use().is_some() {
        return;
    }
    clear_retired(sys::now_ns());
    let Ok((local, _)) = sys::socket_name(fd, false) else { return };
    let Some(port) = sock::address(&local).map(|local| local.port()) else { return };
    sock.server_port.store(port, Ordering::Relaxed);
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

/// A listener that this library has not seen being made (inherited, received). False: it is
/// not one of TCP.
pub fn recognise_listener(fd: i32) -> bool {
    let Some(sock) = sock::register_unseen(fd) else { return false };
    sock.set_phase(Phase::Listener);
    mark_listener(sock, fd);
    true
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
/// candidate or meeting; it never sleeps. False: it is not to move now, so a look after this
/// call would find nothing.
pub fn look(sock: &'static Sock, fd: i32, moment: Moment) -> bool {
    let has_to_stay = || !sock.is_worth_moving() || sock.is_held() || sock.has_young_calls();
    if sock.phase() == Phase::Candidate && has_to_stay() {
        return false;
    }
    // After a sleep the number may be another file's, and then there is nothing to agree on.
    sock.with_meeting(|meeting| {
        File::of(sock, fd).call(|fd| match fd {
            ..0 => {}
            _ => look_with(sock, fd, meeting, moment),
        });
    });
    true
}

fn look_with(sock: &'static Sock, fd: i32, meeting: &mut Meeting, moment: Moment) {
    let undecided = matches!(sock.phase(), Phase::Candidate | Phase::Meeting);
    if !undecided {
        return meeting.abandon(sock);
    }
    meeting.check_seeker(sock);
    let server = sock.is_server.load(Ordering::Relaxed);
    let outcome = if server {
        server_looks(sock, fd, meeting, moment)
    } else {
        client_looks(sock, fd, meeting, moment)
    };
    match outcome {
        Ok(()) => {}
        Err(reason) => {
            if !server && meeting.is_likely_to_recur(reason) {
                meeting.note_failure(sock, fd, reason);
            }
            meeting.abandon(sock);
            sock.stay_plain(reason);
        }
    }
    if sock.phase() == Phase::Smc {
        meeting.abandon(sock);
        autocache::note_success(sock, fd);
    }
}

fn client_looks(
    sock: &'static Sock,
    fd: i32,
    meeting: &mut Meeting,
    moment: Moment,
) -> Result<(), Reason> {
    meeting.count_look(sock)?;
    loop {
        meeting.step = match &mut meeting.step {
            Step::Start => {
                let Some(start) = ready_to_start(sock, fd)? else { return Ok(()) };
                if let Some(reason) = autocache::why_left_alone(start.process, start.peer) {
                    return Err(reason);
                }
                match start.distant(Side::Client) {
                    Some(seek) => Step::Seek(seek),
                    None => claim_or_bind(sock, meeting, &start)?,
                }
            }
            Step::Seek(seek) => {
                let Some(process) = sock.home() else { return Err(Reason::Lack(Lack::NoSlot)) };
                let Some(hello) = seek.find_greeting(process, sock, fd, moment)? else {
                    return Ok(());
                };
                meeting.has_claimed = true;
                begin_meeting(sock, meeting);
                Step::AwaitIntroduction(hello)
            }
            Step::AwaitHello(token) => {
                let token = *token;
                match meeting.find_hello(sock, fd, token, moment)? {
                    Some(hello) => Step::AwaitIntroduction(hello),
                    None => return Ok(()),
                }
            }
            Step::AwaitIntroduction(hello) => {
                let hello = *hello;
                let Some(process) = sock.home() else { return Err(Reason::Lack(Lack::NoSlot)) };
                let look = group::Look::at(process);
                let Some(group) = introduced(process, &look, hello.instance)? else {
                    return Ok(());
                };
                group.note_port(sock.server_port.load(Ordering::Relaxed));
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

/// Client: shows the connection in memory, if it knows servers at the port, or under its name.
fn claim_or_bind(sock: &Sock, meeting: &mut Meeting, start: &Start) -> Result<Step, Reason> {
    let Start { process, local, peer, .. } = *start;
    let token = connection_token(local, peer, process.netns_cookie);
    let is_near = |group: &&Group| !group.is_distant();
    meeting.has_claimed = claim::post(process, sock, peer.port(), token, is_near);
    if !meeting.has_claimed {
        meeting.name_fd = bind_name(start)?;
    }
    begin_meeting(sock, meeting);
    Ok(Step::AwaitHello(token))
}

fn server_looks(
    sock: &'static Sock,
    fd: i32,
    meeting: &mut Meeting,
    moment: Moment,
) -> Result<(), Reason> {
    meeting.count_look(sock)?;
    if let Step::Start = meeting.step {
        let messages = sock.traffic().messages;
        let is_due = messages >= meeting.next_attempt;
        if !is_due || !matches!(moment, Moment::AfterReceive | Moment::BeforeSend) {
            return Ok(());
        }
        if meeting.looks > LOOKS_FOR_GIVER && sock.is_received.load(Ordering::Relaxed) {
            return Err(Reason::Program(ProgramDid::HandedOver));
        }
        let Some(start) = ready_to_start(sock, fd)? else { return Ok(()) };
        if let Some(seek) = start.distant(Side::Server) {
            meeting.step = Step::Seek(seek);
            return server_seeks(sock, meeting, moment);
        }
        let refusals = start.process.refusals.load(Ordering::Relaxed);
        match greet(sock, &start, fd)? {
            Greeting::Sent { token, knows_client } => {
                meeting.has_claimed = knows_client;
                begin_meeting(sock, meeting);
                meeting.step = Step::AwaitReply { token, refusals, knows_client };
            }
            Greeting::NobodyThere if messages >= MESSAGES_MAX => {
                return Err(Reason::Peer(PeerCannot::PeerNotSmc));
            }
            Greeting::NobodyThere => {
                meeting.next_attempt = (2 * messages).max(1);
                sock.note_reason(Reason::Peer(PeerCannot::PeerNotSmc));
                return Ok(());
            }
            Greeting::NoRoom if meeting.looks >= LOOKS_AT_MAILBOX => {
                return Err(Reason::Peer(PeerCannot::Unanswered));
            }
            Greeting::NoRoom => return Ok(()),
        }
    }
    match meeting.step {
        Step::Seek(_) => server_seeks(sock, meeting, moment),
        Step::AwaitReply { token, refusals, knows_client } => {
            let reads_mail = !knows_client && meeting.is_due(LOOKS_AT_MAILBOX);
            let refusals = reads_mail.then_some(refusals);
            server_finishes(sock, fd, token, refusals)
        }
        _ => Ok(()),
    }
}

/// Server: looks for a client in another network namespace.
fn server_seeks(sock: &Sock, meeting: &mut Meeting, moment: Moment) -> Result<(), Reason> {
    let Some(process) = sock.home() else { return Err(Reason::Lack(Lack::NoSlot)) };
    let Step::Seek(seek) = &mut meeting.step else { return Ok(()) };
    if !matches!(moment, Moment::AfterReceive | Moment::BeforeSend) || !seek.greet(process, sock)? {
        return Ok(());
    }
    let token = seek.token();
    meeting.has_claimed = true;
    begin_meeting(sock, meeting);
    meeting.step = Step::AwaitReply { token, refusals: 0, knows_client: true };
    Ok(())
}

fn begin_meeting(sock: &Sock, meeting: &mut Meeting) {
    let waiting = AnswerWait::begin(sock.traffic().messages, sys::coarse_ns());
    (meeting.waiting, meeting.looks) = (Some(waiting), 0);
    PENDING.fetch_add(1, Ordering::Relaxed);
    sock.note_reason(Reason::None);
    account::attempted(sock);
    sock.set_phase(Phase::Meeting);
    sock.slot().inspect(|slot| slot.mode.store(mode::NEGOTIATING, Ordering::Release));
}

/// Client: the greeting, if it is to be followed now.
pub(crate) fn follow_greeting(
    sock: &Sock,
    fd: i32,
    hello: Hello,
    moment: Moment,
) -> Result<Option<Hello>, Reason> {
    // Who has got the answer may be about to close. It is early enough before the next
    // request, or when more answers follow.
    if moment == Moment::AfterReceive && sock.messages_received() < ANSWERS {
        return Ok(None);
    }
    if switch::is_established(fd) {
        Ok(Some(hello))
    } else {
        Err(Reason::Peer(PeerCannot::Unanswered))
    }
}

impl Meeting {
    /// Client: what the server's process has left for us.
    fn find_hello(
        &mut self,
        sock: &Sock,
        fd: i32,
        token: claim::Token,
        moment: Moment,
    ) -> Result<Option<Hello>, Reason> {
        let Some(process) = sock.home() else { return Err(Reason::Lack(Lack::NoSlot)) };
        let has_received = moment == Moment::AfterReceive;
        let greeting = self.has_claimed.then(|| claim::greeting(process, sock, token)).flatten();
        if let Some(hello) = greeting {
            return follow_greeting(sock, fd, hello, moment);
        }
        if self.name_fd < 0 && has_received {
            // Who has sent this would have greeted us, if it were one that we know.
            let (local, peer) =
                sock::addresses(fd).map_err(|_| Reason::Peer(PeerCannot::Unanswered))?;
            self.name_fd = bind_name(&Start { process, local, peer, identity: None })?;
        }
        if self.name_fd < 0 || !self.is_due(LOOKS_AT_NAME) {
            return Ok(None);
        }
        let found = receive_hello(sock, self.name_fd, fd)?;
        self.is_stranger = found.is_some_and(|(_, is_stranger)| is_stranger);
        Ok(found.map(|(hello, _)| hello))
    }

    /// A connection that ends before there is an answer says nothing about the server, nor does
    /// one for which nobody has asked, because the reason is known.
    fn is_likely_to_recur(&self, reason: Reason) -> bool {
        reason.is_likely_to_recur()
            && (reason != Reason::Peer(PeerCannot::Unanswered) || self.is_late())
            && (reason != Reason::Peer(PeerCannot::OtherVersion)
                || !matches!(self.step, Step::Start))
    }

    /// Whether this look asks the kernel: so many first ones do, then those whose number is a
    /// power of two, and one of [`LOOKS_BETWEEN`].
    fn is_due(&self, first: u32) -> bool {
        self.looks <= first
            || self.looks.is_power_of_two()
            || self.looks.is_multiple_of(LOOKS_BETWEEN)
    }

    fn is_late(&self) -> bool {
        self.waiting.is_some_and(|waiting| waiting.is_late())
    }

    /// Client: remembers with whom it has failed.
    fn note_failure(&self, sock: &Sock, fd: i32, reason: Reason) {
        let peer = match &self.step {
            Step::AwaitIntroduction(hello) | Step::AwaitAccept { hello, .. } => {
                Some(hello.instance)
            }
            _ => None,
        };
        if let (Some(process), Ok((_, server))) = (sock.home(), sock::addresses(fd)) {
            autocache::note_failure(process, server, peer, reason);
        }
    }

    fn count_look(&mut self, sock: &Sock) -> Result<(), Reason> {
        self.looks = self.looks.saturating_add(1);
        if let Some(waiting) = &mut self.waiting {
            waiting.look(sys::coarse_ns());
        }
        if sock.phase() != Phase::Meeting || !self.is_late() {
            return Ok(());
        }
        Err(if self.is_stranger {
            Reason::Operator(OperatorSaid::OtherUser)
        } else {
            Reason::Peer(PeerCannot::Unanswered)
        })
    }
}

/// What an attempt begins with.
struct Start {
    process: &'static Process,
    local: SocketAddr,
    peer: SocketAddr,
    /// Of a connection whose other end is in another network namespace, or on another host.
    identity: Option<Identity>,
}

impl Start {
    /// Looks for the other end elsewhere, if it is not here.
    fn distant(&self, side: Side) -> Option<Seek> {
        self.identity.map(|identity| Seek::new(side, self.local, self.peer, identity))
    }
}

/// Whether the attempt may begin now: `Ok(None)` is "not yet".
fn ready_to_start(sock: &'static Sock, fd: i32) -> Result<Option<Start>, Reason> {
    sock.begin(fd);
    let Some(slot) = sock.slot() else { return Err(Reason::Lack(Lack::NoSlot)) };
    let options = process::options();
    if options.promotion == Promotion::Never {
        return Err(Reason::Operator(OperatorSaid::PromotionNever));
    }
    if sock.tcp_only.load(Ordering::Relaxed) {
        return Err(Reason::Program(ProgramDid::OptionUnsupported));
    }
    if memory::is_strict() {
        return Err(Reason::Lack(Lack::StrictMemory));
    }
    let limit = options.handshake_limit;
    if limit != 0 && PENDING.load(Ordering::Relaxed) >= limit {
        return Err(Reason::Operator(OperatorSaid::Congested));
    }
    if slot.holders.load(Ordering::Acquire) > 1 {
        // A forked process may use the connection as well: whoever is left alone
        // with it goes on.
        return if process::current().is_some() {
            Ok(None)
        } else {
            Err(Reason::Lack(Lack::NoMemory))
        };
    }
    sock.move_home(fd);
    let Some(process) = process::current() else { return Err(Reason::Lack(Lack::NoMemory)) };
    if sock.is_received.load(Ordering::Relaxed) {
        match given::givers(process, fd) {
            Givers::Gone => sock.is_received.store(false, Ordering::Relaxed),
            Givers::Here => return Ok(None),
            Givers::Many => return Err(Reason::Program(ProgramDid::HandedOver)),
        }
    }
    let Some((local, peer)) = sock.learn_addresses(fd) else { return Ok(None) };
    // They were not known to `begin` if the connection was still being established.
    if let Some(reason) = sock.objection_by_policy(local, peer) {
        return Err(reason);
    }
    let identity = match elsewhere(process, fd, local, peer) {
        Some(reason) => {
            let is_server = sock.is_server.load(Ordering::Relaxed);
            if !is_server
                && reason == Reason::Peer(PeerCannot::RemotePeer)
                && let Some(objection) = gateway::objection(peer)
            {
                return Err(objection);
            }
            Some(tcp_option::identity(fd, is_server).ok_or(reason)?)
        }
        None => None,
    };
    if tcp_option::is_refused(sock, fd) {
        return Err(Reason::Peer(PeerCannot::NoTcpOption));
    }
    if let Some(reason) = pnet::objection(fd, local.ip()) {
        return Err(reason);
    }
    Ok(Some(Start { process, local, peer, identity }))
}

/// Why the other end cannot be found by its name: it is not in the network namespace of the
/// process.
fn elsewhere(process: &Process, fd: i32, local: SocketAddr, peer: SocketAddr) -> Option<Reason> {
    if !is_same_host(local, peer) {
        Some(Reason::Peer(PeerCannot::RemotePeer))
    } else if netns_cookie(fd) != process.netns_cookie {
        Some(Reason::Peer(PeerCannot::OtherNamespace))
    } else {
        None
    }
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
fn bind_name(Start { process, local, peer, .. }: &Start) -> Result<i32, Reason> {
    let marked = |index| {
        let name = UnixName::new(&listener_name(peer.port(), index));
        sys::connect_unix(process.probe, &name) != Err(Errno(libc::ECONNREFUSED))
    };
    if !(0..MARKERS).any(marked) {
        return Err(Reason::Peer(PeerCannot::PeerNotSmc));
    }
    if rights::is_beset() {
        return Err(Lack::Beset.into());
    }
    bind_to(&UnixName::new(&connection_name(*local, *peer)))
}

/// A socket of this name, for a hello. That there is none is no fault of the peer's, which has not
/// been asked yet.
fn bind_to(name: &UnixName) -> Result<i32, Reason> {
    let name_fd = sys::unix_datagram().map(sys::move_up).map_err(|_| Lack::NoMemory)?;
    // A Hello has none.
    rights::refuse(name_fd);
    let bound = sys::set_socket_option(name_fd, libc::SOL_SOCKET, libc::SO_PASSCRED, 1)
        .and_then(|_| sys::bind_unix(name_fd, name));
    if let Err(errno) = bound {
        crate::log!(Warn, "the name of a connection cannot be bound: errno {}", errno.0);
        sys::close(name_fd);
        return Err(Lack::NameTaken.into());
    }
    Ok(name_fd)
}

/// Client: has the server's process said hello, and is it another user's?
fn receive_hello(sock: &Sock, name_fd: i32, fd: i32) -> Result<Option<(Hello, bool)>, Reason> {
    let mut bytes = [0; 256];
    let Some(process) = sock.home() else { return Err(Reason::Lack(Lack::NoSlot)) };
    let received = match rights::receive(name_fd, &mut bytes, Process::takes_from) {
        Ok(received) => received,
        Err(NotTaken::Errno(_)) => return Ok(None),
        Err(NotTaken::Foreign) => return Err(Reason::Operator(OperatorSaid::OtherUser)),
    };
    let is_friend = Process::shares_with(&received);
    let is_stranger = received.sender.is_none_or(|sender| sender.uid != sys::uid());
    received.close_fds();
    if !is_friend {
        return Err(Reason::Operator(OperatorSaid::OtherUser));
    }
    let message = ControlMessage::parse(&bytes[..received.len]);
    if let Err(error) = &message {
        crate::log!(Warn, "hello refused: {error}");
    }
    let hello = hello_in(message, process.netns_cookie)?;
    match switch::is_established(fd) {
        true => Ok(Some((hello, is_stranger))),
        false => Err(PeerCannot::Unanswered.into()),
    }
}

/// Client: the hello that a datagram to the connection's name is, if it is one that leads on in this
/// network namespace.
fn hello_in(message: Result<ControlMessage, Error>, netns_cookie: u64) -> Result<Hello, Reason> {
    match message {
        Ok(ControlMessage::Hello(hello)) if hello.netns_cookie != netns_cookie => {
            Err(PeerCannot::OtherNamespace.into())
        }
        Ok(ControlMessage::Hello(hello)) if hello.slot as usize >= SLOTS => {
            Err(Reason::PeerBroke(Field::HELLO_SLOT))
        }
        Ok(ControlMessage::Hello(hello)) => Ok(hello),
        Ok(_) => Err(Reason::PeerBroke(Field::CONTROL_KIND)),
        Err(Error::Unsupported { .. }) => Err(PeerCannot::OtherVersion.into()),
        Err(error) => Err(Reason::of_unread(&error)),
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
    let refusal = match group {
        Some(group) => group.refusal(),
        None if process.is_beset() => Some(Lack::Beset.into()),
        None => Some(Reason::Lack(Lack::NoMemory)),
    };
    match (group, refusal) {
        (Some(group), None) => Ok(group.theirs().map(|_| group)),
        (_, refusal) => {
            let reason = refusal.unwrap_or(Reason::Lack(Lack::NoMemory));
            // The server waits for our proposal on this connection, too.
            group::refuse(look, peer, reason);
            Err(reason)
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
        return Err(Reason::Lack(Lack::NoSlot));
    };
    let index = sock.slot_index();
    let size = RmbeSize::from_bytes(hello.rmbe_len as usize)
        .ok_or(Reason::PeerBroke(Field::HELLO_RMBE_LEN))?;
    let local = process.local();
    let (_, wake) = group.theirs().ok_or(Reason::Lack(Lack::NoMemory))?;
    let (ring_at, ring) = group.take_ring(index, size)?;
    let mut bytes = [0; CLC_LEN_MAX];
    let len = rendezvous::propose(&local).emit(&mut bytes).map_err(|error| unwritten(&error))?;
    group.slab().clc(index).put(&bytes[..len]);
    let record = group.record(index);
    prepare(record, slot, fd, ring_at, size, sock.rmbe());
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
    record.sending.way.reset();
    record.sending.urgent.store(0, Ordering::Relaxed);
    record.sending.flags.store(0, Ordering::Relaxed);
    record.sending.closes.store(0, Ordering::Relaxed);
    record.sending.cpu.store(sys::cpu(), Ordering::Relaxed);
    record.receiving.consumer.reset();
    record.receiving.permit.reset();
    record.waiting.read_arm.withdraw();
    record.waiting.write_arm.withdraw();
    record.waiting.nap_arm.withdraw();
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
        return Err(Reason::Lack(Lack::NoSlot));
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
    let local = process.local();
    let accept =
        rendezvous::expect_accept(message, group.peer.into(), group.peer_link_id(), &local)
            .map_err(|refusal| refuse(sock, group, hello.slot as usize, &refusal))?;
    let ring_at = answer.identity.ring_at.load(Ordering::Relaxed);
    let incoming = theirs.ring(ring_at, sock.rmbe().bytes() as u32);
    let incoming = incoming.ok_or(Reason::PeerBroke(Field::RECORD_RING_AT))?;
    if accept.size.bytes() != outgoing.len() {
        return Err(Reason::PeerBroke(Field::SIZE_CODE));
    }
    group.admit(ring_at, &incoming)?;
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
    /// It waits under the client's name, or in its memory, with this token.
    Sent {
        token: claim::Token,
        knows_client: bool,
    },
    NobodyThere,
    /// The buffer of our mailbox is full of hellos that other clients have not read:
    /// some 280 connections had their first bytes at once. A later call may do.
    NoRoom,
}

/// Server: greets the client if it has claimed the connection, or else sends the hello.
fn greet(sock: &Sock, start: &Start, fd: i32) -> Result<Greeting, Reason> {
    let Start { process, local, peer, .. } = *start;
    let token = connection_token(peer, local, process.netns_cookie);
    let look = group::Look::at(process);
    match claim::find(process, &look, token) {
        Some(client) => {
            claim::greet(process, sock, client, token);
            Ok(Greeting::Sent { token, knows_client: true })
        }
        None if process.is_beset() => {
            // Its introduction would not be read.
            group::bury(&look);
            Err(Lack::Beset.into())
        }
        None => send_hello(sock, start, fd),
    }
}

fn send_hello(sock: &Sock, start: &Start, fd: i32) -> Result<Greeting, Reason> {
    let Start { process, local, peer, .. } = *start;
    let slot = sock.slot().ok_or(Reason::Lack(Lack::NoSlot))?;
    let mut token = [0; 16];
    sys::random(&mut token).map_err(|_| Reason::Lack(Lack::NoMemory))?;
    let hello = Hello {
        instance: process.instance,
        slot: sock.slot_index() as u32,
        generation: slot.generation.load(Ordering::Relaxed),
        token,
        socket_cookie: socket_cookie(fd),
        netns_cookie: process.netns_cookie,
        rmbe_len: sock.rmbe().bytes() as u32,
    };
    let mut bytes = [0; EMITTED_LEN_MAX];
    let len = hello.emit(&mut bytes).map_err(|error| unwritten(&error))?;
    process.wake.cell(sock.slot_index()).clear();
    let name = UnixName::new(&connection_name(peer, local));
    match sys::send_with_fds(process.mailbox, &name, &bytes[..len], &[]) {
        Ok(_) => Ok(Greeting::Sent { token, knows_client: false }),
        Err(Errno(libc::EAGAIN)) => Ok(Greeting::NoRoom),
        Err(_) => Ok(Greeting::NobodyThere),
    }
}

/// Server: has the client proposed? A client that we do not know yet introduces itself
/// before it does. If instead some client and we could not use each other's memory since the
/// hello (`refusals` had been counted then), it is taken for this one: who it is would have
/// been said by a proposal.
fn server_finishes(
    sock: &'static Sock,
    fd: i32,
    token: [u8; 16],
    refusals: Option<u32>,
) -> Result<(), Reason> {
    let (Some(process), Some(slot)) = (sock.home(), sock.slot()) else {
        return Err(Reason::Lack(Lack::NoSlot));
    };
    let index = sock.slot_index();
    let look = group::Look::at(process);
    let Some((group, peer_slot)) = find_proposal(process, &look, index, token) else {
        // Whoever has died meanwhile can be buried while letters are read.
        drop(look);
        let Some(refusals) = refusals else {
            process.read_mail_if_any();
            return Ok(());
        };
        process.read_mail();
        let refused = process.refusals.load(Ordering::Acquire) != refusals;
        let why = || Reason::of_word(process.last_refusal.load(Ordering::Relaxed));
        return if refused { Err(why()) } else { Ok(()) };
    };
    if slot.plain_receives.load(Ordering::SeqCst) != 0 {
        // Another thread sleeps in a plain receive: when it returns, look again.
        return Ok(());
    }
    let answer = answer(sock, group, peer_slot)?;
    accept(sock, fd, group, peer_slot, &answer)
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

/// Server: the Accept for a Proposal, or what came in its place is refused.
fn answer(
    sock: &'static Sock,
    group: &'static Group,
    peer_slot: usize,
) -> Result<AcceptConfirmD, Reason> {
    let local = sock.home().ok_or(Reason::Lack(Lack::NoSlot))?.local();
    let (message, buffer) = (read_clc(group, peer_slot), buffer(sock, group, true));
    rendezvous::expect_proposal(message, group.peer.into(), &local, buffer)
        .map_err(|refusal| refuse(sock, group, peer_slot, &refusal))
}

/// Server: takes its part in the connection, unless that has to be done later: then the phase
/// is what it was.
fn accept(
    sock: &'static Sock,
    fd: i32,
    group: &'static Group,
    peer_slot: usize,
    answer: &AcceptConfirmD,
) -> Result<(), Reason> {
    let (Some(slot), Some((theirs, _))) = (sock.slot(), group.theirs()) else {
        return Err(Reason::Lack(Lack::NoSlot));
    };
    if !group.may_go_on() {
        return Err(Reason::Operator(OperatorSaid::OtherUser));
    }
    let index = sock.slot_index();
    let proposal = theirs.record(peer_slot);
    let wished = proposal.identity.rmbe_len.load(Ordering::Relaxed) as usize;
    let size = RmbeSize::from_bytes(wished).ok_or(Reason::PeerBroke(Field::RECORD_RMBE_LEN))?;
    let ring_at = proposal.identity.ring_at.load(Ordering::Relaxed);
    let incoming = theirs.ring(ring_at, sock.rmbe().bytes() as u32);
    let incoming = incoming.ok_or(Reason::PeerBroke(Field::RECORD_RING_AT))?;
    group.admit(ring_at, &incoming)?;
    let (ring_at, outgoing) = group.take_ring(index, size)?;
    let mine = group.record(index);
    prepare(mine, slot, fd, ring_at, size, sock.rmbe());
    mine.identity.peer_slot.store(peer_slot as u32, Ordering::Relaxed);
    put_clc(group, index, answer);
    let conn = Conn { mine, theirs: proposal, outgoing, incoming, group, peer_slot };
    if !switch::is_established(fd) {
        return Err(Reason::Peer(PeerCannot::Unanswered));
    }
    if !switch::read_by_ledger(sock, slot, fd, conn) {
        // Another thread has begun a plain receive since we looked: the proposal stays where
        // it is, for a later look.
        group.give_ring_back(index);
    }
    Ok(())
}

/// Server: says why not, in the standard's words.
fn decline(sock: &Sock, group: &'static Group, peer_slot: usize, reason: Reason) {
    if let Some(code) = reason.diagnosis() {
        put_decline(sock, group, peer_slot, &Decline::v2(PeerId::default(), code));
    }
}

/// What came in place of an expected message leads no further.
fn refuse(sock: &Sock, group: &'static Group, peer_slot: usize, refusal: &Refusal) -> Reason {
    if let Refusal::Decline(decline, _) = refusal {
        put_decline(sock, group, peer_slot, decline);
    }
    refusal.reason()
}

/// A message of ours contradicts itself, or is too long for its place: that is no fault of the peer's.
fn unwritten(error: &Error) -> Reason {
    crate::log!(Error, "a message to the peer cannot be written: {error}");
    Lack::Unwritten.into()
}

fn put_decline(sock: &Sock, group: &'static Group, peer_slot: usize, message: &Decline) {
    let Some(slot) = sock.slot() else { return };
    let index = sock.slot_index();
    let mut bytes = [0; CLC_LEN_MAX];
    if let Ok(len) = message.emit(&mut bytes) {
        group.slab().clc(index).put(&bytes[..len]);
        let record = group.record(index);
        record.identity.peer_slot.store(peer_slot as u32, Ordering::Relaxed);
        turn(record, slot, phase::DECLINED);
    }
}

fn buffer(sock: &Sock, group: &Group, asks_contact: bool) -> Buffer {
    let mut token = [0; 8];
    let _ = sys::random(&mut token);
    Buffer {
        token: DmbToken(u64::from_ne_bytes(token)),
        size: sock.rmbe(),
        link_id: group.link_id,
        first_contact: asks_contact && group.is_first_contact(),
    }
}

/// What is in the CLC box of the peer: nothing, as long as it has not introduced itself.
fn read_clc(group: &Group, peer_slot: usize) -> Result<Message, Error> {
    let mut bytes = [0; CLC_LEN_MAX];
    let len = group.theirs().map_or(0, |(theirs, _)| theirs.clc(peer_slot).take(&mut bytes));
    let message = Message::parse(&bytes[..len]);
    if let Err(error) = &message {
        crate::log!(Warn, "CLC message of {} refused: {error}", group.peer);
    }
    message
}

/// What we have put into our CLC box.
fn own_clc(group: &Group, index: usize) -> Option<Message> {
    let mut bytes = [0; CLC_LEN_MAX];
    let len = group.slab().clc(index).take(&mut bytes);
    Message::parse(&bytes[..len]).ok()
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
    let message = read_clc(conn.group, conn.peer_slot);
    let Some(Message::Accept(AcceptConfirm::SmcD(accept))) = own_clc(conn.group, sock.slot_index())
    else {
        return false;
    };
    rendezvous::expect_confirm(message, conn.group.peer.into(), &accept)
        .is_ok_and(|size| size.bytes() == conn.outgoing.len())
}

/// Writes down that the connection is in shared memory.
pub(crate) fn note_smc(slot: &Slot) {
    let messages = slot.counters.traffic().0;
    slot.moved_after.store(messages + 1, Ordering::Relaxed);
    slot.reason.store(Reason::None.word(), Ordering::Relaxed);
    slot.mode.store(mode::SMC_D, Ordering::Release);
    crate::log!(Info, "connection is in shared memory");
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_proto::fallback::Blame;
    use sidestep_wire::LinkId;
    use sidestep_wire::host_control::Introduction;
    use std::vec::Vec;

    const NETNS: u64 = 77;

    fn hello() -> Hello {
        Hello {
            instance: Instance([7; 16]),
            slot: 5,
            generation: 3,
            token: [9; 16],
            socket_cookie: 1,
            netns_cookie: NETNS,
            rmbe_len: 65_536,
        }
    }

    fn bytes_of(hello: &Hello) -> Vec<u8> {
        let mut bytes = [0; EMITTED_LEN_MAX];
        let len = hello.emit(&mut bytes).unwrap();
        bytes[..len].to_vec()
    }

    fn heard(bytes: &[u8]) -> Result<Hello, Reason> {
        hello_in(ControlMessage::parse(bytes), NETNS)
    }

    #[test]
    fn a_name_that_cannot_be_bound_is_lacking_here() {
        let ends = ["127.0.0.1:1", "127.0.0.1:2"].map(|end| end.parse().unwrap());
        let name = UnixName::new(&connection_name(ends[0], ends[1]));
        let first = bind_to(&name).unwrap();
        assert_eq!(bind_to(&name), Err(Lack::NameTaken.into()));
        sys::close(first);
        sys::close(bind_to(&name).unwrap());
    }

    #[test]
    fn a_message_that_cannot_be_written_is_lacking_here() {
        let too_short = hello().emit(&mut [0; Hello::LEN - 1]).unwrap_err();
        assert_eq!(unwritten(&too_short), Lack::Unwritten.into());
    }

    #[test]
    fn a_hello_that_leads_nowhere_says_which_field_is_wrong() {
        assert_eq!(heard(&bytes_of(&hello())), Ok(hello()));
        let no_slot = Hello { slot: SLOTS as u32, ..hello() };
        assert_eq!(heard(&bytes_of(&no_slot)), Err(Reason::PeerBroke(Field::HELLO_SLOT)));
        let elsewhere = Hello { netns_cookie: NETNS + 1, ..hello() };
        assert_eq!(heard(&bytes_of(&elsewhere)), Err(PeerCannot::OtherNamespace.into()));
        let mut bytes = [0; EMITTED_LEN_MAX];
        let other = Introduction {
            instance: Instance([7; 16]),
            reply_wanted: false,
            pid: 1,
            slab_len: 0,
            link_id: LinkId(0),
        };
        let len = ControlMessage::Introduction(other).emit(&mut bytes).unwrap();
        assert_eq!(heard(&bytes[..len]), Err(Reason::PeerBroke(Field::CONTROL_KIND)));
        let name = |bytes: &[u8]| heard(bytes).unwrap_err().field().and_then(Field::name);
        assert_eq!(name(b"GET / HTTP/1.1\r\n\r\n"), Some("control magic"));
        assert_eq!(name(&bytes_of(&hello())[..40]), Some("control length"));
    }

    /// Each byte of a hello, with each value, and each length of it.
    #[test]
    fn what_cannot_be_read_of_a_hello_is_the_peers_fault() {
        let good = bytes_of(&hello());
        let is_peers = |bytes: &[u8]| match heard(bytes) {
            Ok(_) => true,
            Err(reason @ Reason::PeerBroke(_)) => reason.field().and_then(Field::name).is_some(),
            Err(reason) => reason.blame() == Some(Blame::PeerCannot),
        };
        for at in 0..good.len() {
            assert!(is_peers(&good[..at]), "cut off at {at}");
            for value in 0..=u8::MAX {
                let mut bad = good.clone();
                bad[at] = value;
                assert!(is_peers(&bad), "{value} at {at}: {:?}", heard(&bad));
            }
        }
        let mut newer = good;
        newer[5] += 1;
        assert_eq!(heard(&newer), Err(PeerCannot::OtherVersion.into()));
    }
}
