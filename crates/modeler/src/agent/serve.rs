//! `sidestep bench serve`: the server side for coordinators on other hosts.
//!
//! One session at a time, because two measurements would disturb each other. A
//! session is a connection: when it ends, for whatever reason, its workers end. What
//! a coordinator says can end its session and nothing else.

use std::convert::Infallible;
use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::local::LocalServers;
use super::protocol::{Answer, Hello, LINE_LEN_MAX, Request};
use crate::control::{ServerSide, Witness};
use crate::launch::lines::LineError;
use crate::launch::{Launcher, lines};

/// Serves coordinators that connect to `listener`, one after the other, for ever.
///
/// # Errors
/// No connection can be accepted any more.
pub fn serve(
    listener: &TcpListener,
    launcher: &Launcher,
    witness: &(dyn Witness + Sync),
) -> io::Result<Infallible> {
    let seat = Seat::default();
    thread::scope(|scope| {
        loop {
            let (stream, coordinator) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if is_passing(&error) => {
                    thread::sleep(ACCEPT_PAUSE);
                    continue;
                }
                Err(error) => return Err(error),
            };
            match seat.take(coordinator) {
                Ok(seated) => {
                    // Its workers live as long as this thread.
                    scope.spawn(move || {
                        serve_one(&stream, launcher, witness);
                        drop(seated);
                    });
                }
                Err(other) => turn_away(&stream, other),
            }
        }
    })
}

/// The place of the one coordinator that is served.
#[derive(Default)]
struct Seat {
    taken_by: Mutex<Option<SocketAddr>>,
    freed: Condvar,
}

struct Seated<'a>(&'a Seat);

impl Seat {
    /// Takes the seat. One that is about to leave, as a coordinator's last run ends
    /// and its next begins, is waited for.
    fn take(&self, coordinator: SocketAddr) -> Result<Seated<'_>, SocketAddr> {
        let waited = self.freed.wait_timeout_while(self.lock(), PATIENCE, |seat| seat.is_some());
        let (mut seat, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match *seat {
            Some(other) => Err(other),
            None => {
                *seat = Some(coordinator);
                Ok(Seated(self))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<SocketAddr>> {
        self.taken_by.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seated<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
        self.0.freed.notify_one();
    }
}

/// How long a client waits for the seat before it is told that it is taken.
const PATIENCE: Duration = Duration::from_secs(1);

fn turn_away(stream: &TcpStream, other: SocketAddr) {
    let text = format!("busy: it serves {other}; try again when that has ended");
    // What he says is read first: a connection that is closed before that is reset, and
    // the answer might be lost. If he says nothing, he gets it all the same.
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let _ = lines::read::<Request>(&mut BufReader::new(stream), LINE_LEN_MAX);
    answer(stream, &Answer::Refused(text));
}

fn serve_one(stream: &TcpStream, launcher: &Launcher, witness: &dyn Witness) {
    let Ok(here) = prepare(stream) else { return };
    let mut requests = BufReader::new(stream);
    if let Err(text) = meet(stream, &mut requests) {
        answer(stream, &Answer::Refused(text));
        return;
    }
    let mut servers = LocalServers::new(launcher, witness).reached_at(here);
    loop {
        let (reply, goes_on) = match lines::read(&mut requests, LINE_LEN_MAX) {
            Ok(Some(request)) => (obey(&mut servers, request), true),
            // The coordinator has ended, or is lost: dropping `servers` ends the workers.
            Ok(None) | Err(LineError::Io(_)) => return,
            Err(error) => (refuse(&error), false),
        };
        if !answer(stream, &reply) || !goes_on {
            return;
        }
    }
}

/// Returns our address, as the coordinator knows it.
fn prepare(stream: &TcpStream) -> io::Result<SocketAddr> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(HELLO_LIMIT))?;
    notice_loss(stream)?;
    let mut here = stream.local_addr()?;
    // IPv4 that came in through an IPv6 listener.
    let ip = here.ip().to_canonical();
    if ip != here.ip() {
        here = SocketAddr::new(ip, here.port());
    }
    Ok(here)
}

/// A coordinator says first who it is, and soon: it keeps others waiting.
fn meet(stream: &TcpStream, requests: &mut BufReader<&TcpStream>) -> Result<(), String> {
    let heard = stream
        .set_read_timeout(Some(HELLO_LIMIT))
        .map_err(LineError::Io)
        .and_then(|()| lines::read(requests, HELLO_LEN_MAX));
    match heard {
        Ok(Some(Request::Hello(hello))) => hello.check()?,
        Ok(_) => return Err("it has to begin with hello".to_owned()),
        Err(error) => return Err(format!("no hello: {error}")),
    }
    stream.set_read_timeout(None).map_err(|error| error.to_string())?;
    match answer(stream, &Answer::Hello(Hello::ours())) {
        true => Ok(()),
        false => Err("the connection is gone".to_owned()),
    }
}

fn obey(servers: &mut LocalServers<'_>, request: Request) -> Answer {
    let done = match request {
        Request::Hello(_) => Ok(Answer::Hello(Hello::ours())),
        Request::Start { transport, jobs } => servers.start(transport, &jobs).map(Answer::Started),
        Request::Sample => servers.sample().map(|sample| Answer::Sample(Box::new(sample))),
        Request::Stop => servers.stop().map(|()| Answer::Stopped),
    };
    done.unwrap_or_else(|error| refuse(&error))
}

fn refuse(error: &impl std::fmt::Display) -> Answer {
    Answer::Refused(error.to_string())
}

/// Whether it could be sent.
fn answer(mut stream: &TcpStream, answer: &Answer) -> bool {
    lines::write(&mut stream, answer).is_ok()
}

/// Has the kernel ask now and then whether the coordinator's host is still there: it
/// says nothing for as long as a run takes.
fn notice_loss(stream: &TcpStream) -> io::Result<()> {
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 10),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 5),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 4),
    ];
    for (level, name, value) in options {
        set_option(stream, level, name, value)?;
    }
    Ok(())
}

fn set_option(stream: &TcpStream, level: i32, name: i32, value: i32) -> io::Result<()> {
    let (at, len) = ((&raw const value).cast(), size_of_val(&value) as u32);
    // SAFETY: the kernel reads `len` bytes of `value`.
    match unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, at, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether a later connection may be accepted again: this one was given up by its
/// peer, or there is no room at the moment.
fn is_passing(error: &io::Error) -> bool {
    let passing = [
        libc::ECONNABORTED,
        libc::EINTR,
        libc::EPERM,
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOBUFS,
        libc::ENOMEM,
        libc::EPROTO,
    ];
    error.raw_os_error().is_some_and(|number| passing.contains(&number))
}

/// Before the next attempt to accept after one that had no room.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// For the first line of a coordinator, and for each answer to be taken.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// Longest first line in bytes.
const HELLO_LEN_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::fake::FakeWitness;
    use crate::agent::{RemoteError, RemoteServers};
    use crate::control::Address;
    use crate::launch::Limits;
    use crate::launch::fake::{Fake, SERVER, limits, server_at};
    use crate::plan::Transport;
    use std::io::{BufRead, Read, Write};

    const LONG: Limits = Limits {
        listen: Duration::from_secs(60),
        connect: Duration::from_secs(60),
        slack: Duration::from_secs(60),
        count: Duration::from_secs(60),
        sample: Duration::from_secs(60),
        end: Duration::from_secs(60),
    };

    /// Serves until the tests are done.
    fn start(fake: &Fake) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let launcher = fake.launcher();
        thread::spawn(move || serve(&listener, &launcher, &FakeWitness::default()));
        address
    }

    fn connect(address: SocketAddr) -> Result<RemoteServers, RemoteError> {
        RemoteServers::connect(&address.to_string(), &LONG)
    }

    /// What it answers to these lines, until it closes the connection or has answered
    /// all of them.
    fn say(address: SocketAddr, lines: &[&str]) -> Vec<String> {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LONG.sample)).unwrap();
        let mut answers = BufReader::new(stream.try_clone().unwrap());
        let mut all = Vec::new();
        for line in lines {
            // It may have closed the connection.
            let _ = stream.write_all(format!("{line}\n").as_bytes());
            let mut answer = String::new();
            if answers.read_line(&mut answer).unwrap_or(0) > 0 {
                all.push(answer.trim_end().to_owned());
            }
        }
        all
    }

    const HELLO: &str = r#"{"hello":{"version":1,"sidestep":"9.9"}}"#;

    #[test]
    fn a_coordinator_starts_samples_and_ends_workers() {
        let fake = Fake::new(SERVER, "");
        let address = start(&fake);
        let mut servers = connect(address).unwrap();
        assert!(servers.is_remote());
        for run in 1..=2 {
            let jobs = ["0.0.0.0:0", "127.0.0.2:0"].map(server_at);
            let addresses = servers.start(Transport::Smc, &jobs).unwrap();
            let expected = ["127.0.0.1:4711", "127.0.0.2:4711"];
            assert_eq!(addresses, expected.map(|at| Address::Tcp(at.parse().unwrap())));
            let sample = servers.sample().unwrap();
            assert_eq!(sample.usage.user_us, 200);
            assert_eq!(sample.evidence.smc_connections, 10 * run);
            assert_eq!(sample.evidence.fallbacks.len(), 1);
            assert!(sample.machine.busy_us > 0);
            servers.stop().unwrap();
            fake.wait_until_gone(2 * run as usize);
        }
        // The unspecified address became the one that the coordinator has come to.
        let jobs = fake.jobs();
        assert_eq!(jobs[0], server_at("127.0.0.1:0"));
    }

    #[test]
    fn the_failure_of_a_worker_is_told_and_the_session_goes_on() {
        let server = r#"
            case "$address" in
            127.0.0.9:*) echo '{"failed":"the port is in use"}'; exit 1 ;;
            esac"#;
        let fake = Fake::new(&(server.to_owned() + SERVER), "");
        let address = start(&fake);
        let mut servers = connect(address).unwrap();
        let error = servers.start(Transport::Tcp, &[server_at("127.0.0.9:0")]).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with(&format!("the server side at {address}: server ")), "{error}");
        assert!(error.ends_with(": the port is in use"), "{error}");
        let error = servers.sample().unwrap_err().to_string();
        assert!(error.ends_with(": no workers are running"), "{error}");
        servers.start(Transport::Tcp, &[server_at("127.0.0.1:0")]).unwrap();
        servers.stop().unwrap();
    }

    #[test]
    fn workers_end_with_a_lost_coordinator() {
        let fake = Fake::new(SERVER, "");
        let address = start(&fake);
        let mut servers = connect(address).unwrap();
        servers.start(Transport::Tcp, &["127.0.0.1:0"; 3].map(server_at)).unwrap();
        assert_eq!(fake.lines("processes").len(), 3);
        drop(servers);
        fake.wait_until_gone(3);
        connect(address).unwrap();
    }

    #[test]
    fn a_second_coordinator_is_told_who_is_served() {
        let fake = Fake::new(SERVER, "");
        let address = start(&fake);
        let first = connect(address).unwrap();
        let error = connect(address).unwrap_err().to_string();
        let busy = format!("the server side at {address}: busy: it serves 127.0.0.1:");
        assert!(error.starts_with(&busy), "{error}");
        assert!(error.ends_with("; try again when that has ended"), "{error}");
        drop(first);
        // One that comes at once waits until its predecessor has left.
        connect(address).unwrap();
    }

    #[test]
    fn who_does_not_speak_the_language_ends_his_session_only() {
        let fake = Fake::new(SERVER, "");
        let address = start(&fake);
        let refused = |lines: &[&str], number: usize, text: &str| {
            let answers = say(address, lines);
            assert_eq!(answers.len(), number + 1, "{answers:?}");
            let answer = &answers[number];
            assert!(answer.starts_with(r#"{"refused":""#) && answer.contains(text), "{answer}");
        };
        refused(&["GET / HTTP/1.1", "Host: x"], 0, "no hello: the line `GET / HTTP/1.1`");
        refused(&[r#""stop""#, HELLO], 0, "it has to begin with hello");
        refused(&[&"x".repeat(2000), HELLO], 0, "no hello: a line of more than 1024 bytes");
        let later = r#"{"hello":{"version":2,"sidestep":"9.9"},"more":1}"#;
        refused(
            &[&later.replace(",\"more\":1", ""), HELLO],
            0,
            "sidestep 9.9 there speaks version 2",
        );
        refused(&[HELLO, "{\"start\":{}}", HELLO], 1, "missing field");
        refused(&[HELLO, "\"dance\"", HELLO], 1, "unknown variant `dance`");
        connect(address).unwrap();
    }

    #[test]
    fn a_request_without_end_ends_its_session() {
        let fake = Fake::new(SERVER, "");
        let address = start(&fake);
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(format!("{HELLO}\n").as_bytes()).unwrap();
        let mut answers = BufReader::new(stream.try_clone().unwrap());
        answers.read_line(&mut String::new()).unwrap();
        let endless = vec![b'x'; LINE_LEN_MAX + 1];
        stream.write_all(&endless).unwrap();
        let mut answer = String::new();
        answers.read_to_string(&mut answer).unwrap();
        let expected = format!("{{\"refused\":\"a line of more than {LINE_LEN_MAX} bytes\"}}\n");
        assert_eq!(answer, expected);
        drop((stream, answers));
        connect(address).unwrap();
    }

    #[test]
    fn a_server_that_is_not_there_can_be_started() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = connect(address).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot reach the server side at {address}: ")));
        let command = format!("start it there by `sidestep bench serve --listen {address}`");
        assert!(error.ends_with(&command), "{error}");
        let error = RemoteServers::connect("nowhere", &LONG).unwrap_err().to_string();
        assert!(error.starts_with("`nowhere` is no address of a server: "), "{error}");
    }

    /// What becomes of a coordinator whose server gives this answer.
    fn answered_by(answer: &'static str, limit: Duration) -> RemoteError {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut requests = BufReader::new(stream.try_clone().unwrap());
            requests.read_line(&mut String::new()).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            if answer.is_empty() {
                // Silent until the other end gives up.
                let _ = requests.read_line(&mut String::new());
            }
        });
        let limits = limits(limit);
        let error = RemoteServers::connect(&address.to_string(), &limits).unwrap_err();
        server.join().unwrap();
        error
    }

    #[test]
    fn a_stranger_at_the_port_is_recognised() {
        let error = answered_by("HTTP/1.1 400 Bad Request\r\n", LONG.sample);
        assert!(matches!(error, RemoteError::Stranger { .. }), "{error}");
        let error = answered_by("\"stopped\"\n", LONG.sample).to_string();
        assert!(error.ends_with("is no `sidestep bench serve`: it answers Stopped"), "{error}");
        let other = "{\"hello\":{\"version\":7,\"sidestep\":\"8.0\"}}\n";
        let error = answered_by(other, LONG.sample).to_string();
        assert!(error.contains("install the same version on both hosts"), "{error}");
        let error = answered_by("", Duration::from_millis(20));
        assert!(matches!(error, RemoteError::Silent { .. }), "{error}");
    }

    #[test]
    fn unix_connections_stay_on_a_host() {
        let fake = Fake::new(SERVER, "");
        let mut servers = connect(start(&fake)).unwrap();
        let error = servers.start(Transport::Unix, &[server_at("0.0.0.0:0")]).unwrap_err();
        assert!(error.to_string().starts_with("unix connections do not leave a host"), "{error}");
        servers.stop().unwrap();
    }
}
