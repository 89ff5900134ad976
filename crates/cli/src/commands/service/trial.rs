//! Do connections to a service move? One is made, and looked at.
//!
//! ```text
//!   enable ── starts, as a user ──> sidestep call ADDRESS, under Sidestep ── empty lines ──> the service
//!      └──── looks at its state ───────────┘
//! ```
//!
//! What the service speaks is not known, so the caller says empty lines, as many as it takes until a connection is worth
//! moving. Protocols of lines (HTTP, those of redis, memcached, SMTP …) pass over them. A service that hangs up has shown
//! nothing, neither good nor bad.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use procfs::net::TcpState;
use procfs::process::{FDTarget, Process};
use sidestep_observe::{Connection, Mode, Snapshot};
use sidestep_proto::fallback::{ProgramDid, Reason};

use super::unit::Unit;
use crate::accounts::User;
use crate::args::CallArgs;
use crate::commands::run;
use crate::library::{self, PRELOAD_VARIABLE};
use crate::output;

/// How long a service may take to listen after its start.
const LISTENING: Duration = Duration::from_secs(5);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Ports of one service that are tried.
const PORTS_MAX: usize = 4;
/// How long a service may take to answer the call.
const CONNECTING: Duration = Duration::from_secs(2);
/// How long the agent may take to read a policy that has changed: it looks once a second.
const READING: Duration = Duration::from_secs(3);
/// Empty lines: a connection moves after 16 messages, and both ends need some calls more to agree.
const LINES: usize = 64;
const LINE_INTERVAL: Duration = Duration::from_millis(3);
const EMPTY_LINE: &[u8] = b"\r\n";

/// What a call has shown.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Moved,
    /// It stayed on TCP for this reason.
    Stayed(String),
    /// Why it shows nothing.
    Nothing(String),
}

/// One call.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) user: String,
    pub(super) address: SocketAddr,
    pub(super) shown: Shown,
}

/// Calls a service at its ports, as each of the users that there are once it listens.
///
/// # Errors
///
/// Why it cannot be called.
pub(super) fn of(unit: &Unit, users: fn(&Unit) -> Vec<String>) -> Result<Vec<Trial>, String> {
    let addresses = await_listeners(unit)?;
    let users = users(unit);
    let calls = addresses.iter().flat_map(|address| users.iter().map(move |user| (*address, user)));
    let trial = |(address, user): (SocketAddr, &String)| Trial {
        user: user.clone(),
        address,
        shown: call_until_moved(address, user),
    };
    Ok(calls.map(trial).collect())
}

/// Calls again while the connection stays on TCP: the agent may not have read the policy yet that was just written.
fn call_until_moved(address: SocketAddr, user: &str) -> Shown {
    let deadline = Instant::now() + READING;
    loop {
        let shown = call(address, user).unwrap_or_else(Shown::Nothing);
        if !matches!(shown, Shown::Stayed(_)) || Instant::now() > deadline {
            return shown;
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

/// Where the unit's processes listen.
fn await_listeners(unit: &Unit) -> Result<Vec<SocketAddr>, String> {
    let deadline = Instant::now() + LISTENING;
    loop {
        let pids = unit.pids();
        if pids.iter().any(|pid| is_elsewhere(*pid)) {
            return Err("it has a network of its own, so no connection was tried".to_owned());
        }
        let mut found: Vec<SocketAddr> = pids.into_iter().flat_map(listeners).collect();
        found.sort_unstable();
        found.dedup_by_key(|address| address.port());
        found.truncate(PORTS_MAX);
        if !found.is_empty() {
            return Ok(found);
        }
        if Instant::now() > deadline {
            return Err("it listens at no TCP port, so no connection was tried".to_owned());
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

fn is_elsewhere(pid: u32) -> bool {
    let network = |whose: &str| fs::read_link(format!("/proc/{whose}/ns/net")).ok();
    network(&pid.to_string()).is_some_and(|its| Some(its) != network("self"))
}

/// The addresses at which a process listens, as a client of this host calls them.
fn listeners(pid: u32) -> Vec<SocketAddr> {
    let all = || -> procfs::ProcResult<Vec<SocketAddr>> {
        let process = Process::new(pid.cast_signed())?;
        let inode = |target| match target {
            FDTarget::Socket(inode) => Some(inode),
            _ => None,
        };
        let sockets: HashSet<u64> =
            process.fd()?.flatten().filter_map(|fd| inode(fd.target)).collect();
        let entries = process.tcp()?.into_iter().chain(process.tcp6().unwrap_or_default());
        let mine = entries
            .filter(|entry| entry.state == TcpState::Listen && sockets.contains(&entry.inode));
        Ok(mine.map(|entry| called(entry.local_address)).collect())
    };
    all().unwrap_or_default()
}

fn called(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Has a user's program call, and looks at its connection.
fn call(address: SocketAddr, user: &str) -> Result<Shown, String> {
    let mut caller = Caller::start(address, user)?;
    let said = caller.line()?;
    let Some(sent) = said.strip_prefix("sent ") else { return Ok(Shown::Nothing(said)) };
    let snapshot = Snapshot::of(&[caller.0.id()]).map_err(|error| error.to_string())?;
    let is_it = |it: &&Connection| it.pid == caller.0.id();
    let connection = snapshot.connections.iter().find(is_it);
    let hung_up = sent.trim().parse::<usize>().is_ok_and(|sent| sent < LINES);
    Ok(match connection {
        Some(connection) => {
            judged(connection.mode, connection.fallback.map(|it| it.reason), hung_up)
        }
        None => Shown::Nothing("the caller has no connection that Sidestep knows".to_owned()),
    })
}

fn judged(mode: Mode, reason: Option<Reason>, hung_up: bool) -> Shown {
    const TOO_SHORT: Reason = Reason::Program(ProgramDid::TooShort);
    match (mode, reason) {
        (Mode::SmcD | Mode::Lingering, None) => Shown::Moved,
        (_, None | Some(TOO_SHORT)) if hung_up => Shown::Nothing(
            "the service has hung up before the connection was worth moving".to_owned(),
        ),
        (_, None | Some(TOO_SHORT)) => Shown::Nothing(
            "the service has not read enough of it for it to be worth moving".to_owned(),
        ),
        (_, Some(reason)) => Shown::Stayed(reason.to_string()),
    }
}

/// The process that calls; ends with this.
struct Caller(Child);

impl Caller {
    fn start(address: SocketAddr, user: &str) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("the caller cannot be started: {error}");
        let library = library::find().map_err(|error| error.to_string())?;
        let account =
            User::find(user, user.parse().ok()).ok_or(format!("there is no user {user}"))?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command
            .args(["call", &address.to_string()])
            .uid(account.uid())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .current_dir("/")
            .env(PRELOAD_VARIABLE, library::preload_value(&library, None))
            .envs(run::variables_for_service(false).map_err(|error| error.to_string())?);
        command.spawn().map(Self).map_err(failed)
    }

    fn line(&mut self) -> Result<String, String> {
        let mut said = String::new();
        let out = self.0.stdout.take().ok_or("the caller has no output")?;
        BufReader::new(out).read_line(&mut said).map_err(|error| error.to_string())?;
        Ok(said.trim_end().to_owned())
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // It has seen its input end, or has ended by itself.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// `sidestep call`: the process that calls. It keeps its connection until its input ends.
pub(crate) fn execute(args: &CallArgs) -> i32 {
    let said = match say_lines(args.address) {
        Ok((stream, sent)) => {
            let _ = output::print(&format!("sent {sent}\n"));
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            drop(stream);
            return 0;
        }
        Err(error) => format!("cannot connect: {error}\n"),
    };
    let _ = output::print(&said);
    1
}

/// Says empty lines until there were enough, or the service has hung up.
fn say_lines(address: SocketAddr) -> std::io::Result<(TcpStream, usize)> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECTING)?;
    stream.set_nonblocking(true)?;
    for sent in 0..LINES {
        let is_over = |stream: &mut TcpStream| match stream.read(&mut [0; 4096]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        };
        if is_over(&mut stream) || stream.write_all(EMPTY_LINE).is_err() {
            return Ok((stream, sent));
        }
        thread::sleep(LINE_INTERVAL);
    }
    Ok((stream, LINES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_proto::fallback::PeerCannot;
    use std::net::TcpListener;

    #[test]
    fn a_listener_of_this_process_is_found_and_called_by_an_address_of_this_host() {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let expected: SocketAddr = (Ipv4Addr::LOCALHOST, port).into();
        assert!(listeners(std::process::id()).contains(&expected));
        assert!(!is_elsewhere(std::process::id()));
        assert_eq!(called("[::]:7".parse().unwrap()), "[::1]:7".parse().unwrap());
        assert_eq!(called("10.0.0.1:7".parse().unwrap()), "10.0.0.1:7".parse().unwrap());
    }

    #[test]
    fn a_caller_says_lines_until_the_service_hangs_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let service = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; EMPTY_LINE.len()];
            stream.read_exact(&mut bytes).unwrap();
            bytes
        });
        let (_, sent) = say_lines(address).unwrap();
        assert_eq!(&service.join().unwrap(), EMPTY_LINE);
        assert!((1..LINES).contains(&sent), "{sent}");
    }

    #[test]
    fn what_shows_nothing_is_no_fault() {
        let too_short = Some(Reason::Program(ProgramDid::TooShort));
        assert_eq!(judged(Mode::SmcD, None, false), Shown::Moved);
        assert!(matches!(judged(Mode::Tcp, too_short, true), Shown::Nothing(_)));
        assert!(matches!(judged(Mode::Negotiating, None, false), Shown::Nothing(_)));
        let plain = Some(Reason::Peer(PeerCannot::PeerNotSmc));
        assert!(matches!(judged(Mode::Tcp, plain, false), Shown::Stayed(_)));
    }
}
