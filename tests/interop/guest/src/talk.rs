//! Playing one end of some connections, as an application would.
//!
//! Standard output gets a line of JSON for each [`Event`]. Nothing here knows whether it runs in a guest
//! or on the host, over TCP, under Sidestep or on the kernel's SMC.

use std::io::{self, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::net::RecvFlags;
use sha2::{Digest, Sha256};
use sidestep_guest::{Account, Answer, Event, Play, Report, Role, SocketKind, Talk, Tally};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::smc;

/// Plays a talk, and prints its events.
///
/// **Errors**: a talk that cannot be played, or output that cannot be written.
pub(crate) fn play(talk: &Talk) -> Result<()> {
    let report = match talk.role {
        Role::Server => serve(talk)?,
        Role::Client => call(talk)?,
    };
    say(&Event::Done(Answer::Talk(report)))
}

/// Prints an event.
pub(crate) fn say(event: &Event) -> Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    // In one call: threads do not come between.
    let mut output = io::stdout().lock();
    output.write_all(&line)?;
    Ok(output.flush()?)
}

fn serve(talk: &Talk) -> Result<Report> {
    let listener = open(talk)?;
    listener.set_reuse_address(true)?;
    // Of `accept` as well.
    listener.set_read_timeout(Some(patience(talk)))?;
    listener.bind(&talk.address.into()).context("bind")?;
    listener.listen(i32::from(talk.connections)).context("listen")?;
    say(&Event::Listening)?;
    report(talk, || Ok(uninterrupted(|| listener.accept()).context("accept")?.0))
}

fn call(talk: &Talk) -> Result<Report> {
    report(talk, || {
        let socket = open(talk)?;
        socket.connect(&talk.address.into()).context("connect")?;
        Ok(socket)
    })
}

/// Makes all connections, gives each a thread to itself, and waits until all are over.
fn report(talk: &Talk, connect: impl Fn() -> Result<Socket>) -> Result<Report> {
    let mut sockets = vec![connect()?];
    let start = Instant::now();
    while sockets.len() < talk.connections.into() {
        sockets.push(connect()?);
    }
    let mut running = Vec::new();
    for socket in sockets {
        let talk = talk.clone();
        running.push(thread::spawn(move || Conversation::new(socket, &talk)?.play(&talk)));
    }
    let mut connections = Vec::new();
    for conversation in running {
        let account = conversation.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        connections.push(account);
    }
    Ok(Report { connections, took_ms: u64::try_from(start.elapsed().as_millis())? })
}

fn open(talk: &Talk) -> Result<Socket> {
    const AF_SMC: i32 = 43;
    const IPPROTO_SMC: i32 = 256;
    // Of AF_SMC: 0 is SMC over IPv4, 1 over IPv6.
    let version = i32::from(talk.address.is_ipv6());
    let (domain, protocol) = match talk.socket {
        SocketKind::Tcp => (Domain::for_address(talk.address), None),
        SocketKind::AfSmc => (Domain::from(AF_SMC), Some(Protocol::from(version))),
        SocketKind::IpprotoSmc => {
            (Domain::for_address(talk.address), Some(Protocol::from(IPPROTO_SMC)))
        }
    };
    Socket::new(domain, Type::STREAM, protocol).context("socket")
}

fn patience(talk: &Talk) -> Duration {
    Duration::from_millis(talk.patience_ms.into())
}

/// One connection from one end.
struct Conversation {
    socket: Socket,
    role: Role,
    /// Our port and the peer's, if it is SMC's. Later the kernel may say that there is no peer.
    smc_ports: Option<[u16; 2]>,
    patience: Duration,
    ours: Direction,
    theirs: Direction,
    account: Account,
}

/// How many bytes a call gets at a time.
const CHUNK_LEN: usize = 32 * 1024;

impl Conversation {
    fn new(socket: Socket, talk: &Talk) -> Result<Self> {
        let patience = patience(talk);
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        let [client, server] = [Direction::new(1), Direction::new(2)];
        let (ours, theirs) = match talk.role {
            Role::Client => (client, server),
            Role::Server => (server, client),
        };
        let smc_ports = match talk.socket {
            SocketKind::Tcp => None,
            SocketKind::AfSmc | SocketKind::IpprotoSmc => {
                Some([port_of(socket.local_addr()?)?, port_of(socket.peer_addr()?)?])
            }
        };
        let account = Account::default();
        Ok(Self { socket, role: talk.role, smc_ports, patience, ours, theirs, account })
    }

    /// Plays it to its end, and closes.
    fn play(mut self, talk: &Talk) -> Result<Account> {
        let is_client = self.role == Role::Client;
        match &talk.play {
            Play::Echo { sizes, pause_ms } if is_client => {
                for (nth, size) in sizes.iter().enumerate() {
                    if nth > 0 {
                        thread::sleep(Duration::from_millis((*pause_ms).into()));
                    }
                    self.send((*size).into())?;
                    self.receive((*size).into())?;
                }
                self.witness()?;
            }
            Play::Echo { sizes, .. } => {
                for size in sizes {
                    self.receive((*size).into())?;
                    self.send((*size).into())?;
                }
                self.witness()?;
                self.receive_to_end();
            }
            Play::Stream { sender, bytes } if *sender == self.role => {
                self.send(*bytes)?;
                self.witness()?;
                self.socket.shutdown(std::net::Shutdown::Write)?;
                self.receive_to_end();
            }
            Play::Stream { bytes, .. } => {
                self.receive(*bytes)?;
                self.witness()?;
                self.receive_to_end();
            }
            Play::HalfClose { asked, answered } if is_client => {
                self.send((*asked).into())?;
                // Behind both ends there is nothing left to be seen.
                self.witness()?;
                self.socket.shutdown(std::net::Shutdown::Write)?;
                self.receive((*answered).into())?;
                self.receive_to_end();
            }
            Play::HalfClose { answered, .. } => {
                self.receive_to_end();
                self.send((*answered).into())?;
                self.witness()?;
            }
            Play::Urgent if is_client => {
                self.send(1)?;
                self.send_urgent()?;
                self.receive(2)?;
                self.witness()?;
            }
            Play::Urgent => {
                self.receive(1)?;
                self.receive_urgent()?;
                self.send(2)?;
                self.witness()?;
                self.receive_to_end();
            }
            Play::Abort { bytes } if is_client => {
                self.send((*bytes).into())?;
                self.receive((*bytes).into())?;
                self.witness()?;
                self.socket.set_linger(Some(Duration::ZERO))?;
            }
            Play::Abort { bytes } => {
                self.receive((*bytes).into())?;
                self.send((*bytes).into())?;
                self.witness()?;
                self.receive_to_end();
            }
            Play::CloseUnread { .. } if is_client => {
                self.await_readable()?;
                self.witness()?;
            }
            Play::CloseUnread { bytes } => {
                self.send((*bytes).into())?;
                self.witness()?;
                self.receive_to_end();
            }
        }
        self.account.sent = self.ours.tally();
        self.account.received = self.theirs.tally();
        Ok(self.account)
    }

    fn send(&mut self, len: u64) -> Result<()> {
        let mut left = len;
        let mut chunk = [0; CHUNK_LEN];
        while left > 0 {
            let chunk = &mut chunk[..CHUNK_LEN.min(usize::try_from(left)?)];
            self.ours.next(chunk);
            self.socket.write_all(chunk).context("send")?;
            left -= chunk.len() as u64;
        }
        Ok(())
    }

    fn receive(&mut self, len: u64) -> Result<()> {
        let mut left = len;
        let mut chunk = [0; CHUNK_LEN];
        while left > 0 {
            let most = CHUNK_LEN.min(usize::try_from(left)?);
            let got = uninterrupted(|| self.socket.read(&mut chunk[..most])).context("receive")?;
            ensure!(got > 0, "end of file, {left} of {len} bytes missing");
            self.theirs.check(&chunk[..got])?;
            left -= got as u64;
        }
        Ok(())
    }

    /// Reads whatever there is, and notes how it ends.
    fn receive_to_end(&mut self) {
        let mut chunk = [0; CHUNK_LEN];
        let end = loop {
            match uninterrupted(|| self.socket.read(&mut chunk)) {
                Ok(0) => break "end of file".to_owned(),
                Ok(got) => {
                    if let Err(wrong) = self.theirs.check(&chunk[..got]) {
                        break wrong.to_string();
                    }
                }
                Err(error) => break name_of(&error),
            }
        };
        self.account.end = Some(end);
    }

    fn send_urgent(&mut self) -> Result<()> {
        let mut byte = [0];
        self.ours.next(&mut byte);
        self.socket.send_out_of_band(&byte).context("send urgent data")?;
        Ok(())
    }

    fn receive_urgent(&mut self) -> Result<()> {
        const POLL_INTERVAL: Duration = Duration::from_millis(5);
        let deadline = Instant::now() + self.patience;
        let mut byte = [0];
        loop {
            // Until it is there, the call fails at once.
            match rustix::net::recv(&self.socket, &mut byte[..], RecvFlags::OOB) {
                Ok((1, _)) => break,
                Ok(_) | Err(_) if Instant::now() < deadline => thread::sleep(POLL_INTERVAL),
                Ok(_) => bail!("no urgent data"),
                Err(error) => return Err(error).context("receive urgent data"),
            }
        }
        self.theirs.check(&byte)?;
        self.account.urgent = Some(byte[0]);
        Ok(())
    }

    fn await_readable(&self) -> Result<()> {
        let mut byte = [0];
        let peek = || rustix::net::recv(&self.socket, &mut byte[..], RecvFlags::PEEK);
        let (got, _) = rustix::io::retry_on_intr(peek)?;
        ensure!(got == 1, "end of file instead of what is not to be read");
        Ok(())
    }

    /// Notes what the kernel's SMC says of the socket while it is still open. The kernel counts sockets
    /// while it lists them, and passes over some if others go meanwhile.
    fn witness(&mut self) -> Result<()> {
        const LOOKS: usize = 20;
        let Some([local, peer]) = self.smc_ports else { return Ok(()) };
        for _ in 0..LOOKS {
            self.account.smc = smc::socket_between(local, peer)?;
            if self.account.smc.is_some() {
                break;
            }
        }
        Ok(())
    }
}

/// Calls until nothing interrupts it. A program that is stopped and goes on, as on a machine that somebody
/// wants for a while, finds calls on sockets with a time limit interrupted, signal(7).
fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn port_of(address: SockAddr) -> Result<u16> {
    Ok(address.as_socket().context("a socket without an address")?.port())
}

/// An error's name as in errno(3), for those that end connections.
fn name_of(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionReset => "ECONNRESET".to_owned(),
        io::ErrorKind::BrokenPipe => "EPIPE".to_owned(),
        io::ErrorKind::WouldBlock => "EAGAIN".to_owned(),
        io::ErrorKind::TimedOut => "ETIMEDOUT".to_owned(),
        _ => error.to_string(),
    }
}

/// The bytes of one direction: whoever sends them and whoever receives them know all of them.
struct Direction {
    state: u64,
    bytes: u64,
    hash: Sha256,
}

impl Direction {
    fn new(seed: u64) -> Self {
        Self { state: seed, bytes: 0, hash: Sha256::new() }
    }

    /// Makes the next bytes.
    fn next(&mut self, chunk: &mut [u8]) {
        for byte in &mut *chunk {
            // A linear congruential generator (Knuth's MMIX), whose high bits are good enough.
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (self.state >> 56) as u8;
        }
        self.bytes += chunk.len() as u64;
        self.hash.update(&*chunk);
    }

    /// **Errors**: these are not the next bytes.
    fn check(&mut self, chunk: &[u8]) -> Result<()> {
        let mut expected = vec![0; chunk.len()];
        let start = self.bytes;
        self.next(&mut expected);
        let wrong = expected.iter().zip(chunk).position(|(a, b)| a != b);
        ensure!(wrong.is_none(), "byte {} is wrong", start + wrong.unwrap_or_default() as u64);
        Ok(())
    }

    fn tally(&self) -> Tally {
        let digest = self.hash.clone().finalize();
        let sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Tally { bytes: self.bytes, sha256 }
    }
}
