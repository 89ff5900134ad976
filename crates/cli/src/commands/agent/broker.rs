//! The agent's part that brings programs together that do not find each other.
//!
//! Two programs of one user and network namespace find each other by abstract names. Where the ends of a connection are
//! of two users or namespaces, or addresses are translated between them, each sends the agent a *lookup*: "I hold this end of the connection with this token". When both
//! have come, each gets one end of a new pair of sockets, with the user of the other as the kernel says it, and
//! whether the policy of the host lets the two share memory ([`policy`]).
//! By that line the two show each other their memory, and from then on they need the agent no more: it sees
//! none of it, and none of the bytes.
//!
//! ```text
//!   client ──lookup──> agent <──lookup── server       SOCK_SEQPACKET, a file
//!   client <──match, socket── agent ──match, socket──> server
//!   client <═══════════════ a line of their own ═══════════════> server
//! ```
//!
//! Anybody may write to the socket. So each message has a fixed size and is checked; what is none is answered
//! and hung up on; nobody is waited for; who does not read loses his answers; and all that is kept is bounded,
//! for each user and in all. A line that says nothing for a while is hung up on: the libraries call again.
//! A user whose lookups come faster than [`LOOKUPS_OF_USER_MAX`] is listened to again at the next tick.
//!
//! With each answer goes a descriptor. Until it is read the kernel counts it as one in flight of *the agent's*
//! user, who may have as many of those as open files; beyond, no program of root's can pass one on. So what
//! lies unread is counted, also when its line has ended: the process at the other end may still have it.

mod lookups;
mod policy;

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io::{self, IoSliceMut};
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sidestep_gateway::foreign::{Foreign, RIGHTS_MAX, refuse_rights};
use sidestep_gateway::watchdog::{Pulse, Watchdog};
use sidestep_wire::host_control::{
    ControlMessage, EMITTED_LEN_MAX, Lookup, Match, Refusal, RefusalCause,
};

use super::socket_file::{SocketFile, make_room};
use crate::share::Party;
use lookups::{Asker, Lookups, Waiting};
pub(super) use policy::{HostPolicy, PolicyError};

/// Processes of one user that may be connected.
const LINES_OF_USER_MAX: usize = 256;
/// Processes of all users; beyond, who was silent longest gives way.
const LINES_MAX: usize = 2_048;
/// After this a silent line is hung up on.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// How often is looked for what has waited or been silent too long.
const TICK: Duration = Duration::from_secs(1);
/// Messages taken from one line, and callers accepted, before others have their turn.
const AT_ONCE: usize = 16;
/// Callers that wait to be accepted; others try again.
const BACKLOG: i32 = 256;
/// Bytes of answers that may lie unread, by the kernel's count, about a thousand for each: as many
/// connections may begin at once. Further ones are lost, and asked for again.
const UNREAD_MAX: usize = 128 << 10;
/// Answers to one user that may lie unread, at all its lines.
const UNREAD_OF_USER_MAX: usize = 1_024;
/// Of the descriptors that the agent may have open, one in so many may be in flight to all users.
const UNREAD_SHARE: u64 = 4;
/// Bytes that an answer counts for at least: the kernel's own part of a message is more.
const ANSWER_LEN_MIN: usize = 512;
/// Lookups of one user between two ticks; 64 processes may send as many as the library lets them.
const LOOKUPS_OF_USER_MAX: u32 = 16_384;
/// Groups of a caller for which room is made at first.
const GROUPS_AT_ONCE: usize = 32;
/// In the place of a line: the listening socket.
const LISTENER: u64 = 0;

/// The broker, as long as this exists.
pub(super) struct Broker {
    _file: SocketFile,
}

impl Broker {
    /// Begins to serve at a path.
    ///
    /// **Errors**: another agent serves there, or no socket can be made there.
    pub(super) fn start(at: &Path, policy: HostPolicy, watchdog: &Watchdog) -> io::Result<Self> {
        let listener = listen(at)?;
        let broker = Self { _file: SocketFile(at.to_owned()) };
        let mut clerk = Clerk::new(listener, policy)?;
        let pulse = watchdog.pulse();
        thread::Builder::new().name("broker".to_owned()).spawn(move || {
            let error = clerk.serve(pulse);
            log::error!(
                "programs of different users and network namespaces stay on TCP until the agent is \
                 restarted: {error}"
            );
        })?;
        Ok(broker)
    }
}

/// A socket at a path; a file that a killed agent has left is replaced.
fn listen(at: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(at)?;
    if let Some(directory) = at.parent().filter(|it| !it.exists()) {
        fs::create_dir(directory)?;
    }
    make_room(at).map_err(io::Error::other)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    net::bind(&listener, &address).map_err(|errno| match errno {
        Errno::ADDRINUSE => io::Error::new(io::ErrorKind::AddrInUse, "another agent serves there"),
        errno => errno.into(),
    })?;
    // Which users may come the kernel is asked when one does.
    fs::set_permissions(at, Permissions::from_mode(0o666))?;
    // Lookups have none. Where the kernel cannot refuse them, their sender waits for
    // their end, and not the clerk: see `Foreign`.
    refuse_rights(&listener);
    net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// A process that has called.
struct Line {
    socket: Foreign,
    uid: u32,
    gid: u32,
    heard: Instant,
    /// Answers that lie unread, at most.
    unread: usize,
    /// Nothing is heard of it, nor told to it, any more; what it has not read yet still counts.
    is_over: bool,
}

impl Line {
    /// Looks how many answers can still lie unread.
    fn count_unread(&mut self) {
        if self.unread > 0 {
            self.unread = self.unread.min(unread_bytes(&self.socket).div_ceil(ANSWER_LEN_MIN));
        }
    }
}

/// What the one thread of the broker has before it.
struct Clerk {
    events: OwnedFd,
    listener: OwnedFd,
    policy: HostPolicy,
    lines: HashMap<u64, Line>,
    /// Numbers are not used again: a lookup may outlive its line.
    next_line: u64,
    lookups: Lookups,
    /// Lookups of users since the last tick.
    heard_of: HashMap<u32, u32>,
    /// Lines that are not listened to until the next one.
    paused: Vec<u64>,
    /// Answers to all users that may lie unread.
    unread_max: usize,
    next_tick: Instant,
}

impl Clerk {
    fn new(listener: OwnedFd, policy: HostPolicy) -> io::Result<Self> {
        let limit = getrlimit(Resource::Nofile);
        // Lines are descriptors; without more of them fewer fit.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&events, listener.as_fd(), LISTENER)?;
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Ok(Self {
            events,
            listener,
            policy,
            lines: HashMap::new(),
            next_line: LISTENER + 1,
            lookups: Lookups::default(),
            heard_of: HashMap::new(),
            paused: Vec::new(),
            unread_max: usize::try_from(files / UNREAD_SHARE).unwrap_or(usize::MAX),
            next_tick: Instant::now() + TICK,
        })
    }

    /// Serves until that is impossible.
    fn serve(&mut self, mut pulse: Pulse) -> io::Error {
        loop {
            let to_tick = (!self.lines.is_empty()).then_some(TICK);
            let rest = [to_tick, pulse.beat(Instant::now())].into_iter().flatten().min();
            let rest = rest.map(|rest| Timespec {
                tv_sec: rest.as_secs() as i64,
                tv_nsec: i64::from(rest.subsec_nanos()),
            });
            let mut room = [MaybeUninit::uninit(); AT_ONCE];
            let events = match epoll::wait(&self.events, &mut room, rest.as_ref()) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => continue,
                Err(error) => return error.into(),
            };
            let now = Instant::now();
            for event in events {
                match event.data.u64() {
                    LISTENER => self.welcome(now),
                    line => self.hear(line, now),
                }
            }
            if now >= self.next_tick {
                self.next_tick = now + TICK;
                self.tick(now);
            }
        }
    }

    fn tick(&mut self, now: Instant) {
        self.lookups.expire(now);
        self.heard_of.clear();
        for number in mem::take(&mut self.paused) {
            let Some(line) = self.lines.get(&number).filter(|line| !line.is_over) else { continue };
            if watch(&self.events, line.socket.as_fd(), number).is_err() {
                self.hang_up(number);
            }
        }
        let is_silent = |line: &Line| now.duration_since(line.heard) >= SILENCE_MAX;
        let silent = self.lines.iter().filter(|(_, line)| !line.is_over && is_silent(line));
        for number in silent.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.hang_up(number);
        }
        self.lines.retain(|_, line| {
            line.count_unread();
            !line.is_over || line.unread > 0
        });
    }

    fn welcome(&mut self, now: Instant) {
        for _ in 0..AT_ONCE {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match net::accept_with(&self.listener, flags) {
                Ok(socket) => self.admit(socket, now),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // Without this the one who waits would be reported again and again.
                    return self.dismiss_quietest();
                }
                Err(_) => return,
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd, now: Instant) {
        // Not rustix's `UCred`: a process of another PID namespace has the number 0, for which
        // that has no room.
        let Ok(caller) = getsockopt(&socket, PeerCredentials) else { return };
        let (uid, gid) = (caller.uid(), caller.gid());
        let socket = Foreign::new(socket, uid);
        if Foreign::is_flooded(uid) {
            return refuse(&socket, RefusalCause::NoRoom);
        }
        if self.lines.values().filter(|line| line.uid == uid).count() >= LINES_OF_USER_MAX {
            return refuse(&socket, RefusalCause::NoRoom);
        }
        if self.lines.values().filter(|line| !line.is_over).count() >= LINES_MAX {
            self.dismiss_quietest();
        }
        let number = self.next_line;
        let _ = sockopt::set_socket_send_buffer_size(&socket, UNREAD_MAX);
        if watch(&self.events, socket.as_fd(), number).is_ok() {
            self.next_line += 1;
            let (unread, is_over) = (0, false);
            self.lines.insert(number, Line { socket, uid, gid, heard: now, unread, is_over });
        }
    }

    fn dismiss_quietest(&mut self) {
        let heard = self.lines.iter().filter(|(_, line)| !line.is_over);
        let Some((&number, line)) = heard.min_by_key(|(_, line)| line.heard) else { return };
        refuse(&line.socket, RefusalCause::NoRoom);
        self.hang_up(number);
    }

    /// Takes what has come by a line.
    fn hear(&mut self, number: u64, now: Instant) {
        // One byte more than the longest message: what is longer does not look like one.
        let mut bytes = [0; EMITTED_LEN_MAX + 1];
        for _ in 0..AT_ONCE {
            let Some(line) = self.lines.get_mut(&number).filter(|it| !it.is_over) else { return };
            let heard_of = self.heard_of.entry(line.uid).or_default();
            if *heard_of >= LOOKUPS_OF_USER_MAX {
                // What is not watched does not wake, nor does its end.
                let _ = epoll::delete(&self.events, &line.socket);
                return self.paused.push(number);
            }
            *heard_of += 1;
            if Foreign::is_flooded(line.uid) {
                return self.hang_up(number);
            }
            let len = match receive(line, &mut bytes) {
                Ok(len) if len > 0 => len,
                Err(Errno::AGAIN | Errno::INTR) => return,
                Ok(_) | Err(_) => return self.hang_up(number),
            };
            let Ok(ControlMessage::Lookup(lookup)) = ControlMessage::parse(&bytes[..len]) else {
                refuse(&line.socket, RefusalCause::Malformed);
                return self.hang_up(number);
            };
            line.heard = now;
            let asker = Asker { line: number, uid: line.uid, gid: line.gid };
            self.consider(&lookup, asker, now);
        }
    }

    fn consider(&mut self, lookup: &Lookup, asker: Asker, now: Instant) {
        let Self { lines, lookups, .. } = self;
        let is_there = |line| lines.get(&line).is_some_and(|line| !line.is_over);
        if let Some(other) = lookups.submit(now, asker, lookup, is_there) {
            self.acquaint(lookup, asker, &other, now);
        }
    }

    /// Gives the two a line of their own. If only one gets its end, it finds the other end closed.
    fn acquaint(&mut self, lookup: &Lookup, asker: Asker, other: &Waiting, now: Instant) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let Ok((one, another)) = pair else { return };
        // Each decides whether it takes what the other sends.
        for end in [&one, &another] {
            refuse_rights(end);
        }
        let is_granted = self.is_granted(asker.line, other.asker.line, now);
        let to_one = news(lookup, other, asker.uid, is_granted);
        let mirrored = Waiting { asker, instance: lookup.instance, ..*other };
        let its = Lookup { side: lookup.side.other(), port: other.port, ..*lookup };
        let to_other = news(&its, &mirrored, other.asker.uid, is_granted);
        self.tell(asker.line, &to_one, one.as_fd());
        self.tell(other.asker.line, &to_other, another.as_fd());
    }

    /// Whether the policy of the host lets the processes at these lines share memory.
    fn is_granted(&mut self, one: u64, other: u64, now: Instant) -> bool {
        let Self { lines, policy, .. } = self;
        let (Some(one), Some(other)) = (lines.get(&one), lines.get(&other)) else { return false };
        let [of_one, of_other] = [one, other].map(|line| groups_of_caller(&line.socket));
        let one = Party { uid: one.uid, gid: one.gid, groups: &of_one };
        policy.grants(&one, &Party { uid: other.uid, gid: other.gid, groups: &of_other }, now)
    }

    fn tell(&mut self, number: u64, news: &Match, end: BorrowedFd<'_>) {
        let Some(uid) = self.lines.get(&number).map(|line| line.uid) else { return };
        if !self.has_room_for_answer(uid) {
            return;
        }
        let Some(line) = self.lines.get_mut(&number).filter(|line| !line.is_over) else { return };
        match send(&line.socket, &ControlMessage::Match(*news), &[end]) {
            Ok(()) => line.unread += 1,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.hang_up(number),
        }
    }

    /// Whether one more answer to this user may lie unread. If not, the library asks again.
    fn has_room_for_answer(&mut self, uid: u32) -> bool {
        let unread_max = self.unread_max;
        let has_room = |lines: &HashMap<u64, Line>| {
            let of_all: usize = lines.values().map(|line| line.unread).sum();
            let its = lines.values().filter(|line| line.uid == uid).map(|line| line.unread);
            of_all < unread_max && its.sum::<usize>() < UNREAD_OF_USER_MAX
        };
        if has_room(&self.lines) {
            return true;
        }
        self.lines.values_mut().for_each(Line::count_unread);
        has_room(&self.lines)
    }

    fn hang_up(&mut self, number: u64) {
        let Some(line) = self.lines.get_mut(&number) else { return };
        line.count_unread();
        if line.unread == 0 {
            // Closed, it is watched no more.
            self.lines.remove(&number);
            return;
        }
        line.is_over = true;
        let _ = epoll::delete(&self.events, &line.socket);
        let _ = net::shutdown(&line.socket, net::Shutdown::Both);
    }
}

/// The groups of a caller beside its own, as the kernel has kept them since it called (`SO_PEERGROUPS`). None, if
/// the kernel does not say.
fn groups_of_caller(socket: &Foreign) -> Vec<u32> {
    let mut groups = vec![0; GROUPS_AT_ONCE];
    loop {
        let mut len = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERGROUPS);
        // SAFETY: the kernel writes `len` bytes at most to where as many are.
        let asked = unsafe {
            let at = groups.as_mut_ptr().cast();
            libc::getsockopt(socket.as_raw_fd(), level, option, at, &raw mut len)
        };
        let needed = len as usize / size_of::<u32>();
        if asked == 0 {
            groups.truncate(needed);
            return groups;
        }
        if io::Error::last_os_error().raw_os_error() != Some(libc::ERANGE) || needed <= groups.len()
        {
            return Vec::new();
        }
        groups.resize(needed, 0);
    }
}

/// What has been sent to a socket and not been read, in bytes and with the kernel's own part.
fn unread_bytes(socket: &Foreign) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request, `SIOCOUTQ` of unix(7) by its other name, stores one int.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    // A socket that cannot be asked has what it was sent.
    if asked == 0 { usize::try_from(bytes).unwrap_or(0) } else { usize::MAX }
}

fn watch(events: &OwnedFd, socket: BorrowedFd<'_>, number: u64) -> rustix::io::Result<()> {
    epoll::add(events, socket, epoll::EventData::new_u64(number), epoll::EventFlags::IN)
}

/// The next message of a line. Descriptors beside it are taken, so that they are not closed here.
fn receive(line: &Line, bytes: &mut [u8]) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RIGHTS_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = net::recvmsg(&line.socket, &mut [IoSliceMut::new(bytes)], &mut beside, flags);
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            rights.for_each(|it| drop(Foreign::new(it, line.uid)));
        }
    }
    received.map(|received| received.bytes)
}

/// What is said about `other` to who has sent, or could have sent, the lookup.
fn news(lookup: &Lookup, other: &Waiting, own_uid: u32, is_granted: bool) -> Match {
    let Asker { uid, gid, .. } = other.asker;
    let Lookup { token, port, side, .. } = *lookup;
    Match { instance: other.instance, token, port, side, is_granted, own_uid, uid, gid }
}

/// Says why, before the line is closed. If it cannot be said, the end says enough.
fn refuse(socket: &Foreign, cause: RefusalCause) {
    let _ = send(socket, &ControlMessage::Refusal(Refusal { cause }), &[]);
}

fn send(socket: &Foreign, message: &ControlMessage, beside: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut bytes = [0; EMITTED_LEN_MAX];
    let len = message.emit(&mut bytes).map_err(io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !beside.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(beside));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    net::sendmsg(socket, &[io::IoSlice::new(&bytes[..len])], &mut control, flags)?;
    Ok(())
}
