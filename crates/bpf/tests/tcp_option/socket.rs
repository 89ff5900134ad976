//! TCP sockets that speak with the programs as the library does.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use sidestep_wire::tcp_option::{self, Identity, question};
use socket2::{Domain, Type};

/// What the programs say about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Both ends have sent the option.
    Yes,
    /// They have not.
    No,
    /// Nobody speaks for it.
    None,
    /// Both ends have, and they are of two hosts.
    WithHost,
}

pub(crate) struct Socket(socket2::Socket);

impl Socket {
    /// A plain one, of the family of this address.
    pub(crate) fn new(of: IpAddr) -> Self {
        let domain = Domain::for_address(SocketAddr::new(of, 0));
        Self(socket2::Socket::new(domain, Type::STREAM, None).unwrap())
    }

    pub(crate) fn marked(of: IpAddr) -> Self {
        let socket = Self::new(of);
        assert!(socket.mark());
        socket
    }

    /// A marked and announced listener at any port.
    pub(crate) fn listening(at: IpAddr) -> Self {
        Self::listening_at(SocketAddr::new(at, 0))
    }

    pub(crate) fn listening_at(at: SocketAddr) -> Self {
        let socket = Self::marked(at.ip());
        socket.listen(at);
        assert!(socket.announce());
        socket
    }

    /// The same, for other hosts as well.
    pub(crate) fn listening_for_hosts(at: SocketAddr) -> Self {
        let socket = Self::listening_unannounced(at, Self::mark_for_hosts);
        assert!(socket.announce());
        socket
    }

    /// A listener that is marked so.
    pub(crate) fn listening_unannounced(at: SocketAddr, mark: impl FnOnce(&Self) -> bool) -> Self {
        let socket = Self::new(at.ip());
        assert!(mark(&socket));
        socket.listen(at);
        socket
    }

    /// A listener that nobody has marked.
    pub(crate) fn plain_listening(at: IpAddr) -> Self {
        Self::plain_listening_at(SocketAddr::new(at, 0))
    }

    pub(crate) fn plain_listening_at(at: SocketAddr) -> Self {
        let socket = Self::new(at.ip());
        socket.listen(at);
        socket
    }

    fn listen(&self, at: SocketAddr) {
        self.0.set_reuse_address(true).unwrap();
        self.0.set_reuse_port(true).unwrap();
        self.set(libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, &1i32).unwrap();
        self.bind(at);
        self.0.listen(8).unwrap();
    }

    pub(crate) fn bind(&self, at: SocketAddr) {
        self.0.bind(&at.into()).unwrap();
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.local_addr().unwrap().as_socket().unwrap().port()
    }

    /// Returns the accepted socket.
    pub(crate) fn connect(&self, listener: &Self, to: IpAddr) -> Self {
        self.0.connect(&SocketAddr::new(to, listener.port()).into()).unwrap();
        Self(listener.0.accept().unwrap().0)
    }

    /// The same by `MSG_FASTOPEN`.
    pub(crate) fn connect_fast(&self, listener: &Self, to: IpAddr) -> Self {
        let to = SocketAddr::new(to, listener.port()).into();
        assert_eq!(self.0.send_to_with_flags(b"x", &to, libc::MSG_FASTOPEN).unwrap(), 1);
        Self(listener.0.accept().unwrap().0)
    }

    /// The same; what the other end sends is lost until somebody has seen it.
    pub(crate) fn connect_while_lost(
        &self,
        listener: &Self,
        to: IpAddr,
        see: impl FnOnce(),
    ) -> Self {
        self.lose(true);
        self.0.set_nonblocking(true).unwrap();
        let error = self.0.connect(&SocketAddr::new(to, listener.port()).into()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINPROGRESS));
        see();
        self.lose(false);
        self.0.set_nonblocking(false).unwrap();
        Self(listener.0.accept().unwrap().0)
    }

    /// Its listeners forget SYNs that they have answered.
    pub(crate) fn saves_no_syn(&self) {
        self.set(libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, &0i32).unwrap();
    }

    pub(crate) fn is_refused_at(&self, at: SocketAddr) {
        let error = self.0.connect(&at.into()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    /// `connect` to nowhere.
    pub(crate) fn disconnect(&self) {
        // SAFETY: all-zero is a valid address, whose family is AF_UNSPEC.
        let nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
        let len = size_of::<libc::sockaddr>() as libc::socklen_t;
        // SAFETY: the address lives until the call returns.
        let result = unsafe { libc::connect(self.0.as_raw_fd(), &raw const nowhere, len) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    pub(crate) fn mark(&self) -> bool {
        self.ask(question::MARK) == Answer::Yes
    }

    pub(crate) fn mark_for_hosts(&self) -> bool {
        self.ask(question::MARK_FOR_HOSTS) == Answer::Yes
    }

    pub(crate) fn mark_to_hosts(&self) -> bool {
        self.ask(question::MARK_TO_HOSTS) == Answer::Yes
    }

    pub(crate) fn announce_to_hosts(&self) -> bool {
        self.ask(question::ANNOUNCE_TO_HOSTS) == Answer::Yes
    }

    pub(crate) fn announce(&self) -> bool {
        self.ask(question::ANNOUNCE) == Answer::Yes
    }

    pub(crate) fn is_agreed(&self) -> Answer {
        self.ask(question::IS_AGREED)
    }

    /// Which connection it is an end of, by what the programs say.
    pub(crate) fn identity(&self, is_server: bool) -> Option<Identity> {
        let mut answers = [0; Identity::PARTS];
        for (what, answer) in (question::IDENTITY..).zip(&mut answers) {
            let error = self.set(question::LEVEL, what, &0i32).unwrap_err();
            *answer = error.raw_os_error().unwrap();
        }
        Identity::from_answers(answers, is_server)
    }

    pub(crate) fn take_fast_open(&self) {
        self.set(libc::IPPROTO_TCP, libc::TCP_FASTOPEN, &8i32).unwrap();
    }

    /// The server's end of a connection in whose SYN a byte went and was taken.
    pub(crate) fn has_syn_data(&self) -> bool {
        // `tcpi_options`, and `TCPI_OPT_SYN_DATA` in it.
        self.info()[5] & 32 != 0
    }

    /// The other end loses what is sent, until it was sent again.
    pub(crate) fn talks_while_lost(&self, other: &Self) {
        other.lose(true);
        (&self.0).write_all(b"here").unwrap();
        // `tcpi_total_retrans`.
        while self.info()[100..104] == [0; 4] {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        other.lose(false);
        (&other.0).read_exact(&mut [0; 4]).unwrap();
    }

    /// Begins to lose, or loses no more, what comes for it.
    fn lose(&self, is_lost: bool) {
        if !is_lost {
            return self.set(libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0i32).unwrap();
        }
        // SAFETY: all-zero is "return 0", which lets nothing pass.
        let mut nothing: libc::sock_filter = unsafe { std::mem::zeroed() };
        nothing.code = (libc::BPF_RET | libc::BPF_K) as u16;
        let filter = libc::sock_fprog { len: 1, filter: &raw mut nothing };
        self.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter).unwrap();
    }

    /// The beginning of `struct tcp_info` of `linux/tcp.h`.
    fn info(&self) -> [u8; 104] {
        let mut info = [0u8; 104];
        let mut len = info.len() as libc::socklen_t;
        let (fd, at) = (self.0.as_raw_fd(), info.as_mut_ptr().cast());
        // SAFETY: the kernel writes at most `len` bytes, the size of `info`.
        let result =
            unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, at, &raw mut len) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        info
    }

    pub(crate) fn shut_down_writing(&self) {
        self.0.shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// Sends so many bytes, which somebody else reads meanwhile.
    pub(crate) fn stream_to(&self, other: &Self, len: usize) {
        std::thread::scope(|scope| {
            scope.spawn(|| (&self.0).write_all(&vec![7; len]).unwrap());
            let mut bytes = vec![0; len];
            (&other.0).read_exact(&mut bytes).unwrap();
        });
    }

    /// Until the peer's FIN.
    pub(crate) fn awaits_end(&self) {
        assert_eq!((&self.0).read(&mut [0; 8]).unwrap(), 0);
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.0.local_addr().unwrap().as_socket().unwrap()
    }

    /// May end in TIME_WAIT and leave its port to another.
    pub(crate) fn reuse_address(&self) {
        self.0.set_reuse_address(true).unwrap();
    }

    /// Ends by RST.
    pub(crate) fn abort(self) {
        self.0.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    }

    fn ask(&self, what: i32) -> Answer {
        match self.set(question::LEVEL, what, &0i32) {
            Ok(()) => Answer::Yes,
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Answer::No,
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Answer::None,
            Err(error) if error.raw_os_error() == Some(tcp_option::IS_REMOTE) => Answer::WithHost,
            Err(error) => panic!("{error}"),
        }
    }

    /// The length of the option in the SYN from which an accepted socket was made.
    pub(crate) fn option_in_syn(&self) -> Option<u8> {
        tcp_option::find(&self.syn_options())
    }

    /// All options of that SYN.
    pub(crate) fn syn_options(&self) -> Vec<u8> {
        let mut packet = [0u8; 256];
        let mut len = packet.len() as libc::socklen_t;
        let fd = self.0.as_raw_fd();
        let (name, at) = (libc::TCP_SAVED_SYN, packet.as_mut_ptr().cast());
        // SAFETY: the kernel writes at most `len` bytes, the size of `packet`.
        let result = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, name, at, &raw mut len) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        let packet = &packet[..len as usize];
        assert!(!packet.is_empty(), "the SYN was saved");
        let is_ipv4 = packet[0] >> 4 == 4;
        let tcp = &packet[if is_ipv4 { usize::from(packet[0] & 0xf) * 4 } else { 40 }..];
        tcp[20..].to_vec()
    }

    /// Signs all segments to and from this address (RFC 2385).
    pub(crate) fn sign(&self, peer: IpAddr) {
        // SAFETY: all-zero is a valid value.
        let mut signature: Signature = unsafe { std::mem::zeroed() };
        let address = socket2::SockAddr::from(SocketAddr::new(peer, 0));
        // SAFETY: the field has room for every address.
        unsafe {
            (&raw mut signature.address)
                .cast::<u8>()
                .copy_from_nonoverlapping(address.as_ptr().cast(), address.len() as usize);
        }
        signature.key[..3].copy_from_slice(b"key");
        signature.key_len = 3;
        self.set(libc::IPPROTO_TCP, libc::TCP_MD5SIG, &signature).unwrap();
    }

    pub(crate) fn receives(&self, expected: &[u8]) {
        let mut bytes = vec![0; expected.len()];
        (&self.0).read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, expected);
    }

    pub(crate) fn talks_to(&self, other: &Self) {
        (&self.0).write_all(b"here").unwrap();
        other.receives(b"here");
    }

    fn set<T>(&self, level: i32, name: i32, value: &T) -> io::Result<()> {
        let (fd, len) = (self.0.as_raw_fd(), size_of::<T>() as libc::socklen_t);
        let value = std::ptr::from_ref(value).cast();
        // SAFETY: the kernel reads the given size, that of the value.
        match unsafe { libc::setsockopt(fd, level, name, value, len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// `struct tcp_md5sig` of `linux/tcp.h`.
#[repr(C)]
struct Signature {
    address: libc::sockaddr_storage,
    flags: u8,
    prefix_len: u8,
    key_len: u16,
    interface: libc::c_int,
    key: [u8; 80],
}
