//! What the library does with a connection to another host, by hand: to try a gateway without the
//! library, and from plain programs.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    self, AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use sidestep_wire::RmbeSize;
use sidestep_wire::hand_over::{
    EMITTED_LEN_MAX, Greeting, HandOver, Message, Verdict, gateway_name,
};
use sidestep_wire::host_control::Side;

/// A gateway that has not greeted by then is none.
const GREETING_PATIENCE: Duration = Duration::from_secs(10);

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

    /// Says what `h` is for, and whether the caller goes on with `n` if it stays TCP.
    pub(crate) fn say(
        &self,
        (n, keeps_n): (&TcpStream, bool),
        h: &TcpStream,
        side: Side,
        rmbe: RmbeSize,
    ) -> io::Result<()> {
        let hand_over = HandOver { side, keeps_n, port: h.local_addr()?.port(), rmbe };
        let mut bytes = [0; EMITTED_LEN_MAX];
        let message = Message::HandOver(hand_over);
        let len = message.emit(&mut bytes).map_err(io::Error::other)?;
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

/// Hands a connection over, and returns H. The verdict comes on it.
pub(crate) fn hand_over(n: &TcpStream, side: Side, rmbe: RmbeSize) -> io::Result<TcpStream> {
    let line = Line::call()?;
    let h = line.connect()?;
    line.say((n, true), &h, side, rmbe)?;
    Ok(h)
}

/// Waits for the verdict.
pub(crate) fn verdict(mut h: &TcpStream) -> io::Result<Verdict> {
    let mut byte = [0];
    h.read_exact(&mut byte)?;
    let unknown = || io::Error::other(format!("a verdict of {byte:?}"));
    Verdict::from_byte(byte[0]).ok_or_else(unknown)
}

/// After [`Verdict::Tcp`]: waits until all that was sent on H is on N.
pub(crate) fn take_back(mut h: &TcpStream) -> io::Result<()> {
    h.shutdown(Shutdown::Write)?;
    match h.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(io::Error::other("bytes behind the verdict to stay on TCP")),
    }
}
