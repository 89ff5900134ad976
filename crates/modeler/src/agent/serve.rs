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

/// How long somebody waits for the seat before he is told that it is taken.
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
