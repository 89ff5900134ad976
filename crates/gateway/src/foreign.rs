//! Descriptors that programs of other users have sent, or that such messages may lie in.
//!
//! The last close of a file ends what it is, in the thread that closes, and that takes as long as its
//! owner likes: a TCP socket with unsent data sleeps for its `SO_LINGER`, a file of a user's own
//! file system for as long as that is silent. A daemon that serves all users from one thread must not
//! be that thread. So what a user has sent is [`Foreign`]: used like any descriptor, and closed by a
//! thread that closes this user's descriptors and nothing else. If it sleeps, that user waits.
//!
//! | What | Bound |
//! |---|---|
//! | threads | one for each user with something to close, [`CLOSERS_MAX`]; they end when there was nothing for [`IDLE`] |
//! | descriptors that wait to be closed | [`Foreign::is_flooded`] says of a user that it has sent enough |
//!
//! A socket that lets no descriptors in ([`refuse_rights`], Linux 6.16) has none in its queue; before, they go with the socket.
//! That option is set through libc. `sidestep` is a program that the library carries, so it makes no system call of its own on a socket.

use std::collections::HashMap;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::socket::SetSockOpt;
use nix::{setsockopt_impl, sockopt_impl};

/// `SO_PASSRIGHTS` of `asm-generic/socket.h`; Linux 6.16.
const SO_PASSRIGHTS: i32 = 83;

sockopt_impl!(
    /// Whether descriptors can be sent to an AF_UNIX socket.
    PassRights,
    SetOnly,
    libc::SOL_SOCKET,
    SO_PASSRIGHTS,
    bool
);

/// Descriptors beside one message, as many as Linux takes: `SCM_MAX_FD` of `net/scm.h`. What there is no
/// room for the kernel would close in the thread that receives.
pub const RIGHTS_MAX: usize = 253;
/// Threads at once. Beyond, the users who have none share one.
const CLOSERS_MAX: usize = 64;
/// How long a thread waits for more.
const IDLE: Duration = Duration::from_secs(1);
/// Descriptors of a user that wait to be closed, before the user is served no more. Closing takes
/// microseconds unless its sender makes it take longer.
const WAITING_OF_USER_MAX: usize = 1024;
/// Whose descriptors the shared thread closes.
const OTHERS: u32 = u32::MAX;

/// A descriptor that a user has sent, or by which it sends.
#[derive(Debug)]
pub struct Foreign<T: Into<OwnedFd> = OwnedFd> {
    /// `None` when it is dropped.
    it: Option<T>,
    uid: u32,
}

impl<T: Into<OwnedFd>> Foreign<T> {
    /// What this user has sent.
    pub const fn new(it: T, uid: u32) -> Self {
        Self { it: Some(it), uid }
    }

    /// Whose it is.
    pub const fn uid(&self) -> u32 {
        self.uid
    }

    /// The same as another type.
    pub fn map<U: Into<OwnedFd>>(mut self, into: impl FnOnce(T) -> U) -> Foreign<U> {
        Foreign { it: self.it.take().map(into), uid: self.uid }
    }
}

impl<T: Into<OwnedFd> + Send + 'static> Foreign<T> {
    /// Closes it after a last call on it, which may sleep as the close may.
    pub fn close_after(mut self, last: impl FnOnce(&T) + Send + 'static) {
        if let Some(it) = self.it.take() {
            let close = move || {
                last(&it);
                drop(it.into());
            };
            have_closed(self.uid, Box::new(close));
        }
    }
}

impl Foreign {
    /// Whether so much of this user's waits to be closed that no more is to be taken.
    #[must_use]
    pub fn is_flooded(uid: u32) -> bool {
        let closers = closers();
        let waiting = |of: u32| closers.get(&of).map_or(0, |it| it.waiting.load(Ordering::Relaxed));
        waiting(uid).max(waiting(OTHERS)) >= WAITING_OF_USER_MAX
    }
}

impl<T: Into<OwnedFd>> Deref for Foreign<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.it.as_ref().expect("until it is dropped")
    }
}

impl<T: Into<OwnedFd> + AsFd> AsFd for Foreign<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl<T: Into<OwnedFd>> Drop for Foreign<T> {
    fn drop(&mut self) {
        if let Some(it) = self.it.take() {
            let it = it.into();
            have_closed(self.uid, Box::new(move || drop(it)));
        }
    }
}

/// No descriptor can be sent to this socket from now on, where the kernel lets a socket say so: older kernels answer
/// `ENOPROTOOPT`, and a [`Foreign`] closes what comes.
pub fn refuse_rights(socket: &impl AsFd) {
    let _ = PassRights.set(socket, &false);
}

/// Descriptors can be sent to this socket, which has the refusal of the listening socket that it came by.
pub fn admit_rights(socket: &impl AsFd) {
    let _ = PassRights.set(socket, &true);
}

/// Closes something.
type Close = Box<dyn FnOnce() + Send>;

/// A thread that closes.
struct Closer {
    work: Sender<Close>,
    waiting: Arc<AtomicUsize>,
}

static CLOSERS: LazyLock<Mutex<HashMap<u32, Closer>>> = LazyLock::new(Mutex::default);

fn closers() -> std::sync::MutexGuard<'static, HashMap<u32, Closer>> {
    CLOSERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets the thread of this user close something.
fn have_closed(uid: u32, close: Close) {
    let mut closers = closers();
    let has_room = closers.contains_key(&uid) || closers.len() < CLOSERS_MAX;
    let owner = if has_room { uid } else { OTHERS };
    let closer = closers.entry(owner).or_insert_with(|| Closer::start(owner));
    closer.waiting.fetch_add(1, Ordering::Relaxed);
    // The thread leaves its place before it ends. If none could be started, this one has to close.
    let _ = closer.work.send(close);
}

impl Closer {
    fn start(owner: u32) -> Self {
        let (work, closes) = mpsc::channel::<Close>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&waiting);
        let close_all = move || {
            loop {
                match closes.recv_timeout(IDLE) {
                    Ok(close) => {
                        close();
                        left.fetch_sub(1, Ordering::Relaxed);
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        let mut closers = closers();
                        // Under the lock nothing more comes.
                        if left.load(Ordering::Relaxed) == 0 {
                            closers.remove(&owner);
                            return;
                        }
                    }
                }
            }
        };
        if let Err(error) = thread::Builder::new().name("closer".to_owned()).spawn(close_all) {
            log::warn!("no thread to close what user {owner} has sent: {error}");
        }
        Self { work, waiting }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(300);

    /// A connection that cannot send what it has, and would wait for that for ten minutes, and its peer.
    fn sleeper() -> [TcpStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        while (&socket).write(&[0; 1 << 16]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(600))).unwrap();
        [socket, peer]
    }

    fn await_that(what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "in vain: {what}");
            thread::yield_now();
        }
    }

    fn is_open(number: i32) -> bool {
        std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok()
    }

    #[test]
    fn one_users_sleep_is_nobody_elses() {
        let [sleeping, peer] = sleeper();
        let start = Instant::now();
        drop(Foreign::new(sleeping, 7001));
        let [quick, _other] = sleeper();
        rustix::net::sockopt::set_socket_linger(&quick, None).unwrap();
        let number = quick.as_raw_fd();
        drop(Foreign::new(quick, 7002));
        await_that("another user's descriptor is closed", || !is_open(number));
        assert!(start.elapsed() < PATIENCE, "nobody has slept");
        assert!(closers().get(&7001).is_some_and(|it| it.waiting.load(Ordering::Relaxed) == 1));
        // The sleeper wakes when its peer resets the connection.
        rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        drop(peer);
        await_that("the threads end", || {
            let closers = closers();
            !closers.contains_key(&7001) && !closers.contains_key(&7002)
        });
    }

    #[test]
    fn a_user_whose_descriptors_are_not_closed_is_flooded() {
        let [sleeping, peer] = sleeper();
        drop(Foreign::new(sleeping, 7003));
        let file = std::fs::File::open("/dev/null").unwrap();
        for _ in 0..WAITING_OF_USER_MAX {
            drop(Foreign::new(file.try_clone().unwrap(), 7003));
        }
        assert!(Foreign::is_flooded(7003) && !Foreign::is_flooded(7004));
        rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        drop(peer);
        await_that("all is closed", || !Foreign::is_flooded(7003));
    }
}
