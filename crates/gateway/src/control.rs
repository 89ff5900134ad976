//! The control socket: the UNIX socket at which libraries hand connections over.
//!
//! Anybody in the network namespace may call. The kernel says who it is; a message has a fixed form
//! and one connection beside it, and a caller that says anything else is hung up on. No caller is waited for.
//!
//! What is handed over is a claim, too: it becomes a session only together with a connection to the
//! [listener](crate::listener) that the kernel says is the same user's.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};
use rustix::process::geteuid;
use sidestep_wire::RmbeSize;
use sidestep_wire::hand_over::{
    EMITTED_LEN_MAX, Greeting, HandOver, Message, Protect, ResolvedName, gateway_name,
    replaced_name,
};
use sidestep_wire::host_control::Side;
use sidestep_wire::rule_name::RuleName;

use crate::ends::Ends;
use crate::foreign::{Foreign, RIGHTS_MAX, admit_rights, refuse_rights};
use crate::lent;
use crate::limits::{AT_ONCE, BACKLOG, LINES_MAX, LINES_OF_USER_MAX};
use crate::poller::{Poller, Source};
use crate::spare::Spare;
use crate::status::{Status, say};

/// In the place of a user whom the kernel does not tell.
const NOBODY: u32 = 65_534;

/// What is said at the control socket.
#[derive(Debug)]
pub(crate) enum Request {
    /// See to this connection.
    Carry(Offer),
    /// What of TLS on the connection whose H comes from there?
    Protection {
        /// The program's port of H.
        port: u16,
        /// Whose connection it has to be; `None`: anybody's.
        user: Option<u32>,
    },
    /// What have you got?
    Status,
    /// The IP filter has other rules: which connections do they deny?
    RulesChanged,
    /// Another gateway is to have the place of this one.
    Replace,
}

/// What a library hands over.
#[derive(Debug)]
pub(crate) struct Offer {
    /// Which end of N the program has.
    pub(crate) side: Side,
    /// Where H comes from.
    pub(crate) port: u16,
    pub(crate) rmbe: RmbeSize,
    /// The two hosts have agreed on SMC by the TCP option, so CLC is first, the library says.
    pub(crate) is_agreed: bool,
    /// By which TLS is to protect it, the library says.
    pub(crate) rule: Option<RuleName>,
    /// What the program has asked for to find the peer, the library says.
    pub(crate) resolved: Option<Box<ResolvedName>>,
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
pub(crate) struct ControlSocket {
    listener: OwnedFd,
    spare: Spare,
    /// Where H is to come to; `None`: nothing is taken any more, and displays alone call.
    port: Option<u16>,
    lines: HashMap<u64, Line>,
    last_line: u64,
}

impl ControlSocket {
    /// Begins to listen. H is to come to this port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// `AddrInUse`: there is a gateway in this network namespace.
    pub(crate) fn open(port: u16, poller: &Poller) -> io::Result<Self> {
        Self::with(listen(&gateway_name())?, Some(port), poller)
    }

    /// That of a gateway that was replaced, which is this process.
    pub(crate) fn open_replaced(poller: &Poller) -> io::Result<Self> {
        let own = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
        Self::with(listen(&replaced_name(own))?, None, poller)
    }

    /// With what another gateway has listened at, and who had called there.
    pub(crate) fn take_over(
        listener: OwnedFd,
        lines: Vec<OwnedFd>,
        port: u16,
        poller: &Poller,
    ) -> io::Result<Self> {
        let mut this = Self::with(listener, Some(port), poller)?;
        for line in lines {
            let socket = foreign(line);
            let uid = socket.uid();
            this.attend_to(Line { socket, uid, heard: Duration::ZERO }, poller);
        }
        Ok(this)
    }

    fn with(listener: OwnedFd, port: Option<u16>, poller: &Poller) -> io::Result<Self> {
        poller.watch(&listener, Source::ControlSocket)?;
        Ok(Self { listener, spare: Spare::new(), port, lines: HashMap::new(), last_line: 0 })
    }
}

/// A socket that listens at a name.
fn listen(name: &[u8]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    net::bind(&listener, &SocketAddrUnix::new_abstract_name(name)?)?;
    // From those that are admitted only.
    refuse_rights(&listener);
    net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

impl ControlSocket {
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
            log::warn!(
                "user {uid} has {LINES_OF_USER_MAX} processes at the control socket, and no more"
            );
            return;
        }
        if self.lines.len() >= LINES_MAX {
            self.dismiss_quietest();
        }
        admit_rights(&*socket);
        let greets = |port| {
            let greeting = Message::Greeting(Greeting { port, takes_agreed: true, user: uid });
            say(socket.as_fd(), greeting, &[lessons]).is_ok()
        };
        if self.port.is_none_or(greets) {
            self.attend_to(Line { socket, uid, heard: now }, poller);
        }
    }

    fn attend_to(&mut self, line: Line, poller: &Poller) {
        self.last_line += 1;
        if poller.watch(&line.socket, Source::Line(self.last_line)).is_ok() {
            self.lines.insert(self.last_line, line);
        }
    }

    /// Whether a caller is of the user of this process.
    pub(crate) fn is_own(&self, number: u64) -> bool {
        self.lines.get(&number).is_some_and(|line| line.uid == geteuid().as_raw())
    }

    /// The socket of a caller.
    pub(crate) fn line(&self, number: u64) -> Option<BorrowedFd<'_>> {
        self.lines.get(&number).map(|line| line.socket.as_fd())
    }

    /// Hangs up on a caller.
    pub(crate) fn dismiss(&mut self, number: u64) {
        self.lines.remove(&number);
    }

    /// What it listens at.
    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// The lines of all callers but this one.
    pub(crate) fn lines_but(&self, number: Option<u64>) -> impl Iterator<Item = BorrowedFd<'_>> {
        let others = self.lines.iter().filter(move |(other, _)| Some(**other) != number);
        others.map(|(_, line)| line.socket.as_fd())
    }

    /// Nothing of it is told of any more: other processes have its sockets, too.
    pub(crate) fn leave(self, poller: &Poller) {
        poller.forget(&self.listener);
        self.lines.values().for_each(|line| poller.forget(&*line.socket));
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

impl ControlSocket {
    /// Tells the caller that has asked for it the status. The gateway waits for no caller: one without room for the answer has none.
    pub(crate) fn tell(&self, number: u64, status: &Status) {
        let Some(line) = self.lines.get(&number) else { return };
        if let Err(error) = status.send(&line.socket) {
            log::debug!("the status cannot be told: {error}");
        }
    }

    /// Answers the caller's question with one message, if the caller has room for it.
    pub(crate) fn answer(&self, number: u64, message: Message) {
        let Some(line) = self.lines.get(&number) else { return };
        if let Err(error) = say(line.socket.as_fd(), message, &[]) {
            log::debug!("a question cannot be answered: {error}");
        }
    }
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
    let received =
        lent::receive_strange(|| net::recvmsg(&line.socket, &mut parts, &mut beside, flags));
    let len = match received {
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
    let (hand_over, protect) = match Message::parse(&bytes[..len]) {
        Ok(Message::HandOver(hand_over)) => (hand_over, None),
        Ok(Message::Protect(protect)) => (protect.hand_over, Some(protect)),
        Ok(Message::ProtectionRequest(port)) => {
            let user = (!is_operator).then_some(line.uid);
            return Ok(Request::Protection { port, user });
        }
        Ok(Message::StatusRequest) if is_operator => return Ok(Request::Status),
        Ok(Message::RulesChanged) if is_operator => return Ok(Request::RulesChanged),
        Ok(Message::Replace) if is_operator => return Ok(Request::Replace),
        Ok(other) => return Err(nonsense(format!("{other:?}"))),
        Err(error) => return Err(nonsense(error.to_string())),
    };
    let Ok([descriptor]) = <[Foreign; 1]>::try_from(descriptors) else {
        return Err(nonsense("not one descriptor beside it".to_owned()));
    };
    let offer = Offer::new(hand_over, descriptor).map_err(|error| nonsense(error.to_string()))?;
    Ok(Request::Carry(match protect {
        None => offer,
        Some(Protect { is_agreed, rule, resolved, .. }) => {
            Offer { is_agreed, rule: Some(rule), resolved: resolved.map(Box::new), ..offer }
        }
    }))
}

impl Offer {
    /// Of the user who has sent the descriptor.
    pub(crate) fn new(hand_over: HandOver, descriptor: Foreign) -> io::Result<Self> {
        let HandOver { side, port, rmbe } = hand_over;
        let uid = descriptor.uid();
        let connection = connection(descriptor)?;
        let (is_agreed, rule, resolved) = (true, None, None);
        Ok(Self { side, port, rmbe, is_agreed, rule, resolved, connection, uid })
    }

    /// What the kernel says of N. It waits for the lock of the socket, which its program may have.
    pub(crate) fn look(&self) -> Ends {
        // It is the program's, which has it on H; here it would only hold up who closes N.
        let _ = sockopt::set_socket_linger(&self.connection, None);
        Ends::of(&self.connection, self.uid)
    }

    /// As it was handed over.
    pub(crate) const fn hand_over(&self) -> HandOver {
        HandOver { side: self.side, port: self.port, rmbe: self.rmbe }
    }
}

/// A descriptor as a TCP connection, if it is one, by what is asked without the socket's lock: its program may have that.
fn connection(descriptor: Foreign) -> io::Result<Foreign<TcpStream>> {
    let family = sockopt::socket_domain(&descriptor)?;
    let is_tcp = matches!(family, AddressFamily::INET | AddressFamily::INET6)
        && sockopt::socket_type(&descriptor)? == SocketType::STREAM
        && sockopt::socket_protocol(&descriptor)? == Some(net::ipproto::TCP);
    if !is_tcp {
        return Err(io::Error::other("the descriptor is no TCP socket"));
    }
    Ok(descriptor.map(TcpStream::from))
}
