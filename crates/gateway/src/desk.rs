//! The desk: the UNIX socket at which libraries hand connections over.
//!
//! Anybody in the network namespace may call. The kernel says who it is; a message has a fixed form
//! and one connection beside it, and who says anything else is hung up on. Nobody is waited for.
//!
//! What is handed over is a claim, too: it becomes a passage only together with a connection to the
//! [door](crate::door) that the kernel says is the same user's.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use rustix::process::geteuid;
use sidestep_wire::RmbeSize;
use sidestep_wire::hand_over::{EMITTED_LEN_MAX, Greeting, HandOver, Message, gateway_name};
use sidestep_wire::host_control::Side;

use crate::foreign::{Foreign, RIGHTS_MAX, admit_rights, refuse_rights};
use crate::limits::{AT_ONCE, BACKLOG, LINES_MAX, LINES_OF_USER_MAX};
use crate::poller::{Poller, Source};
use crate::spare::Spare;
use crate::status::Status;

/// In the place of a user whom the kernel does not tell.
const NOBODY: u32 = 65_534;

/// What is said at the desk.
#[derive(Debug)]
pub(crate) enum Request {
    /// See to this connection.
    Carry(Offer),
    /// What have you got?
    Status,
    /// The IP filter has other rules: which connections do they deny?
    RulesChanged,
}

/// What a library hands over.
#[derive(Debug)]
pub(crate) struct Offer {
    /// Which end of N the program has.
    pub(crate) side: Side,
    /// Where H comes from.
    pub(crate) port: u16,
    pub(crate) rmbe: RmbeSize,
    /// N.
    pub(crate) connection: Foreign<TcpStream>,
    pub(crate) uid: u32,
}

/// A process that has called.
#[derive(Debug)]
struct Line {
    socket: Foreign,
    uid: u32,
    heard: Duration,
}

/// The listening socket, and who has called.
#[derive(Debug)]
pub(crate) struct Desk {
    listener: OwnedFd,
    spare: Spare,
    /// Where H is to come to.
    port: u16,
    lines: HashMap<u64, Line>,
    last_line: u64,
}

impl Desk {
    /// Begins to listen. H is to come to this port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// `AddrInUse`: there is a gateway in this network namespace.
    pub(crate) fn open(port: u16, poller: &Poller) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        net::bind(&listener, &SocketAddrUnix::new_abstract_name(&gateway_name())?)?;
        // From those that are admitted only.
        refuse_rights(&listener);
        net::listen(&listener, BACKLOG)?;
        poller.watch(&listener, Source::Desk)?;
        Ok(Self { listener, spare: Spare::new(), port, lines: HashMap::new(), last_line: 0 })
    }

    /// Takes calls. Who calls is given what connections have taught.
    pub(crate) fn welcome(&mut self, poller: &Poller, lessons: BorrowedFd<'_>, now: Duration) {
        for _ in 0..AT_ONCE {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match net::accept_with(&self.listener, flags) {
                Ok(socket) => self.admit(socket, poller, lessons, now),
                Err(Errno::MFILE | Errno::NFILE) => {
                    self.spare.lend(|| drop(net::accept(&self.listener).map(foreign)));
                    return self.dismiss_quietest();
                }
                Err(_) => return,
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd, poller: &Poller, lessons: BorrowedFd<'_>, now: Duration) {
        let socket = foreign(socket);
        let uid = socket.uid();
        if Foreign::is_flooded(uid) {
            return log::warn!("user {uid} has sent what cannot be closed, and is not served");
        }
        if self.lines.values().filter(|line| line.uid == uid).count() >= LINES_OF_USER_MAX {
            log::warn!("user {uid} has {LINES_OF_USER_MAX} processes at the desk, and no more");
            return;
        }
        if self.lines.len() >= LINES_MAX {
            self.dismiss_quietest();
        }
        admit_rights(&*socket);
        if greet(&socket, Greeting { port: self.port, user: uid }, lessons).is_err() {
            return;
        }
        self.last_line += 1;
        if poller.watch(&socket, Source::Line(self.last_line)).is_ok() {
            self.lines.insert(self.last_line, Line { socket, uid, heard: now });
        }
    }

    fn dismiss_quietest(&mut self) {
        let quietest = self.lines.iter().min_by_key(|(_, line)| line.heard).map(|(at, _)| *at);
        if let Some(number) = quietest {
            self.lines.remove(&number);
        }
    }

    /// The next that a process says, if there is something.
    pub(crate) fn hear(&mut self, number: u64, now: Duration) -> Option<Request> {
        let line = self.lines.get_mut(&number)?;
        line.heard = now;
        match receive(line) {
            Ok(request) => Some(request),
            Err(Heard::Nothing) => None,
            Err(Heard::End) => {
                self.lines.remove(&number);
                None
            }
            Err(Heard::Nonsense(what)) => {
                log::warn!("user {} hands over what is no connection: {what}", line.uid);
                self.lines.remove(&number);
                None
            }
        }
    }
}

impl Desk {
    /// Answers who has asked for it. Nobody is waited for: who has no room for the answer has none.
    pub(crate) fn tell(&self, number: u64, status: &Status) {
        let Some(line) = self.lines.get(&number) else { return };
        if let Err(error) = status.send(&line.socket) {
            log::debug!("the status cannot be told: {error}");
        }
    }

    /// Answers with so many connections that are denied. The same.
    pub(crate) fn tell_denied(&self, number: u64, denied: u32) {
        let Some(line) = self.lines.get(&number) else { return };
        let mut bytes = [0; EMITTED_LEN_MAX];
        let Ok(len) = Message::Judged(denied).emit(&mut bytes) else { return };
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if let Err(error) = net::send(&line.socket, &bytes[..len], flags) {
            log::debug!("what is denied cannot be told: {error}");
        }
    }
}

fn greet(socket: &Foreign, greeting: Greeting, lessons: BorrowedFd<'_>) -> io::Result<()> {
    let mut bytes = [0; EMITTED_LEN_MAX];
    let len = Message::Greeting(greeting).emit(&mut bytes).map_err(io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let rights = [lessons];
    beside.push(SendAncillaryMessage::ScmRights(&rights));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    net::sendmsg(socket, &[IoSlice::new(&bytes[..len])], &mut beside, flags)?;
    Ok(())
}

/// What came instead of a request.
enum Heard {
    Nothing,
    End,
    Nonsense(String),
}

/// Whom a caller's socket belongs to, the kernel says.
fn foreign(socket: OwnedFd) -> Foreign {
    // Not rustix's `UCred`: a process of another PID namespace has the number 0, for which that
    // has no room.
    let uid = getsockopt(&socket, PeerCredentials).map_or(NOBODY, |caller| caller.uid());
    Foreign::new(socket, uid)
}

fn receive(line: &Line) -> Result<Request, Heard> {
    if Foreign::is_flooded(line.uid) {
        return Err(Heard::Nonsense("more than can be closed".to_owned()));
    }
    // One byte more than the longest message: what is longer does not look like one.
    let mut bytes = [0; EMITTED_LEN_MAX + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RIGHTS_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let len = match net::recvmsg(&line.socket, &mut parts, &mut beside, flags) {
        Ok(received) if received.bytes > 0 => received.bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Err(Heard::Nothing),
        Ok(_) | Err(_) => return Err(Heard::End),
    };
    let mut descriptors = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights.map(|it| Foreign::new(it, line.uid)));
        }
    }
    let nonsense = |what: String| Heard::Nonsense(what);
    // What it tells, or makes, is of all users.
    let is_operator = line.uid == 0 || line.uid == geteuid().as_raw();
    let HandOver { side, port, rmbe } = match Message::parse(&bytes[..len]) {
        Ok(Message::HandOver(hand_over)) => hand_over,
        Ok(Message::StatusRequest) if is_operator => return Ok(Request::Status),
        Ok(Message::RulesChanged) if is_operator => return Ok(Request::RulesChanged),
        Ok(other) => return Err(nonsense(format!("{other:?}"))),
        Err(error) => return Err(nonsense(error.to_string())),
    };
    let Ok([descriptor]) = <[Foreign; 1]>::try_from(descriptors) else {
        return Err(nonsense("not one descriptor beside it".to_owned()));
    };
    let connection = connection(descriptor).map_err(|error| nonsense(error.to_string()))?;
    Ok(Request::Carry(Offer { side, port, rmbe, connection, uid: line.uid }))
}

/// A descriptor as a TCP connection, if it is one. Its `SO_LINGER` is the program's, which has it on
/// H; here it would only hold up who closes it.
fn connection(descriptor: Foreign) -> io::Result<Foreign<TcpStream>> {
    let family = sockopt::socket_domain(&descriptor)?;
    let is_tcp = matches!(family, AddressFamily::INET | AddressFamily::INET6)
        && sockopt::socket_type(&descriptor)? == SocketType::STREAM
        && sockopt::socket_protocol(&descriptor)? == Some(net::ipproto::TCP);
    if !is_tcp {
        return Err(io::Error::other("the descriptor is no TCP socket"));
    }
    sockopt::set_socket_linger(&descriptor, None)?;
    let connection = descriptor.map(TcpStream::from);
    connection.peer_addr()?;
    Ok(connection)
}
