//! What the library does with a connection to another host, by hand: to try a gateway without the
//! library, and from plain programs.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{
    self, AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use sidestep_gateway::status::{Mode, Status};
use sidestep_wire::RmbeSize;
use sidestep_wire::hand_over::{EMITTED_LEN_MAX, Greeting, HandOver, Message, gateway_name};
use sidestep_wire::host_control::Side;

/// A gateway that has not greeted by then is none.
const GREETING_PATIENCE: Duration = Duration::from_secs(10);
/// Longer than CLC takes, whatever the peer does.
const DECISION_PATIENCE: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A line to the gateway of this network namespace.
pub(crate) struct Line {
    socket: OwnedFd,
    /// Where it takes H.
    pub(crate) port: u16,
}

impl Line {
    /// Calls the gateway.
    ///
    /// **Errors**: there is none, or it does not greet.
    pub(crate) fn call() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        net::connect(&socket, &SocketAddrUnix::new_abstract_name(&gateway_name())?)?;
        let patience = Some(GREETING_PATIENCE);
        net::sockopt::set_socket_timeout(&socket, net::sockopt::Timeout::Recv, patience)?;
        let mut bytes = [0; EMITTED_LEN_MAX];
        let (_, len) = net::recv(&socket, &mut bytes, RecvFlags::empty())?;
        match Message::parse(&bytes[..len]) {
            Ok(Message::Greeting(Greeting { port, .. })) => Ok(Self { socket, port }),
            other => Err(io::Error::other(format!("the gateway says {other:?}"))),
        }
    }

    /// Connects H.
    pub(crate) fn connect(&self) -> io::Result<TcpStream> {
        let h = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        h.set_nodelay(true)?;
        Ok(h)
    }

    /// Says what `h` is for: `as_what` says it of the hand-over.
    pub(crate) fn say(
        &self,
        n: &TcpStream,
        h: &TcpStream,
        (side, rmbe): (Side, RmbeSize),
        as_what: impl FnOnce(HandOver) -> Message,
    ) -> io::Result<()> {
        let hand_over = HandOver { side, port: h.local_addr()?.port(), rmbe };
        let mut bytes = [0; EMITTED_LEN_MAX];
        let len = as_what(hand_over).emit(&mut bytes).map_err(io::Error::other)?;
        self.send(&bytes[..len], &[n])
    }

    /// Sends any message, with any descriptors beside it.
    pub(crate) fn send(&self, message: &[u8], beside: &[&TcpStream]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let rights: Vec<_> = beside.iter().map(|it| it.as_fd()).collect();
        control.push(SendAncillaryMessage::ScmRights(&rights));
        net::sendmsg(&self.socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

impl From<Line> for OwnedFd {
    fn from(line: Line) -> Self {
        line.socket
    }
}

/// Hands a connection over, and returns H.
pub(crate) fn hand_over(n: &TcpStream, side: Side, rmbe: RmbeSize) -> io::Result<TcpStream> {
    let line = Line::call()?;
    let h = line.connect()?;
    line.say(n, &h, (side, rmbe), Message::HandOver)?;
    Ok(h)
}

/// Waits until it is decided how the bytes of H travel. The gateway says so to root and to its own user.
pub(crate) fn decided(h: &TcpStream) -> io::Result<Mode> {
    let port = h.local_addr()?.port();
    let end = Instant::now() + DECISION_PATIENCE;
    while Instant::now() < end {
        let known = Status::ask()?.connections.into_iter().find(|it| it.port == port);
        match known.map(|it| it.mode) {
            Some(mode @ (Mode::SmcR | Mode::Tcp | Mode::Tls | Mode::WithinHost)) => {
                return Ok(mode);
            }
            // It may not have come there yet.
            Some(Mode::Deciding) | None => thread::sleep(POLL_INTERVAL),
        }
    }
    Err(io::Error::other("the gateway does not know, or has not decided"))
}
