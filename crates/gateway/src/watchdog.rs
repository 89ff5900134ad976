//! What the service manager is told so that it knows that a daemon's loops go round.
//!
//! With `WatchdogSec=` systemd restarts a daemon that it has not heard of for so long. A daemon may have
//! several loops, each in its thread, and is of no use if one of them stands still. So no thread tells the
//! manager on behalf of another one: each loop has a [`Pulse`], which it beats once a round, and the loop
//! that is the last to beat in an interval is the one that tells.
//!
//! ```text
//!   loop A   beat ········ beat ········ beat ········ beat
//!   loop B        beat ········ beat ···── stands still ──
//!   manager       told         told                           nothing more: restart
//! ```
//!
//! A loop that waits is woken once in an interval, a third of what the manager waits for. Each loop's next
//! beat comes at most an interval after its last one, so all of them beat within an interval of the word to
//! the manager, and the last of these beats is the next word: words are an interval apart, and two may be
//! lost. Without a manager that waits, a beat is one comparison, and no loop is woken.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Intervals in the time that the manager waits.
const INTERVALS: u32 = 3;
/// What the manager is told: sd_notify(3).
const ALIVE: &[u8] = b"WATCHDOG=1\n";

/// The service manager, if it waits for a word of this process.
#[derive(Clone, Debug, Default)]
pub struct Watchdog(Option<Arc<Manager>>);

#[derive(Debug)]
struct Manager {
    /// Connected to it, and never waited for: a manager that stands still must not stop who reports to it.
    socket: UnixDatagram,
    interval: Duration,
    /// For each loop, whether it has come round since the manager was told last.
    rounds: Mutex<Vec<bool>>,
}

impl Watchdog {
    /// The manager that waits to hear of this process after `patience` at the latest.
    ///
    /// # Errors
    ///
    /// `NOTIFY_SOCKET` is not set, or no manager listens there.
    pub fn report_within(patience: Duration) -> io::Result<Self> {
        let name = env::var_os("NOTIFY_SOCKET")
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "NOTIFY_SOCKET is not set"))?;
        Self::at(&name, patience)
    }

    fn at(name: &OsStr, patience: Duration) -> io::Result<Self> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_nonblocking(true)?;
        let interval = patience / INTERVALS;
        Ok(Self(Some(Arc::new(Manager { socket, interval, rounds: Mutex::default() }))))
    }

    /// For one more loop. From now on the manager is told only if this one comes round, too.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        let of = self.0.as_ref().map(|manager| {
            let mut rounds = manager.rounds();
            rounds.push(false);
            (Arc::clone(manager), rounds.len() - 1)
        });
        Pulse { of, due: Instant::now() }
    }
}

impl Manager {
    fn rounds(&self) -> std::sync::MutexGuard<'_, Vec<bool>> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A loop has come round. The last one of all tells the manager.
    fn note(&self, number: usize) {
        let mut rounds = self.rounds();
        rounds[number] = true;
        if rounds.iter().all(|has_come| *has_come) {
            match self.socket.send(ALIVE) {
                Ok(_) => rounds.fill(false),
                // There was no room: the loop that comes next tries again.
                Err(error) => log::debug!("the service manager does not hear: {error}"),
            }
        }
    }
}

/// That of one loop.
#[derive(Debug)]
pub struct Pulse {
    of: Option<(Arc<Manager>, usize)>,
    due: Instant,
}

impl Pulse {
    /// The loop has come round. Says how long it may wait for something to do; `None`: as long as it likes.
    pub fn beat(&mut self, now: Instant) -> Option<Duration> {
        let (manager, number) = self.of.as_ref()?;
        if now >= self.due {
            manager.note(*number);
            self.due = now + manager.interval;
        }
        Some(self.due - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const PATIENCE: Duration = Duration::from_secs(30);
    const INTERVAL: Duration = Duration::from_secs(10);

    /// A manager, and what reports to it.
    fn manager() -> (UnixDatagram, Watchdog) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let watchdog = Watchdog::at(path.as_os_str(), PATIENCE).unwrap();
        fs::remove_file(&path).unwrap();
        (manager, watchdog)
    }

    /// How often the manager has been told since it was asked last.
    fn told(manager: &UnixDatagram) -> usize {
        let mut bytes = [0; 64];
        let mut times = 0;
        while let Ok(len) = manager.recv(&mut bytes) {
            assert_eq!(&bytes[..len], ALIVE);
            times += 1;
        }
        times
    }

    #[test]
    fn a_loop_tells_once_in_an_interval_however_often_it_comes_round() {
        let (manager, watchdog) = manager();
        let (mut pulse, start) = (watchdog.pulse(), Instant::now());
        assert_eq!(pulse.beat(start), Some(INTERVAL));
        for tenths in 1..10 {
            assert_eq!(
                pulse.beat(start + INTERVAL * tenths / 10),
                Some(INTERVAL * (10 - tenths) / 10)
            );
        }
        assert_eq!(told(&manager), 1);
        pulse.beat(start + INTERVAL);
        assert_eq!(told(&manager), 1);
    }

    #[test]
    fn one_loop_that_stands_still_is_enough_for_silence() {
        let (manager, watchdog) = manager();
        let [mut one, mut other] = [watchdog.pulse(), watchdog.pulse()];
        let mut now = Instant::now();
        let mut round = |pulses: &mut [&mut Pulse]| {
            for pulse in pulses.iter_mut() {
                let _ = pulse.beat(now);
            }
            now += INTERVAL;
        };
        round(&mut [&mut one, &mut other]);
        assert_eq!(told(&manager), 1);
        for _ in 0..5 {
            round(&mut [&mut one]);
        }
        assert_eq!(told(&manager), 0, "one does not speak for the other");
        round(&mut [&mut other]);
        assert_eq!(told(&manager), 1, "the last one tells");
        // One that has ended comes round no more.
        drop(other);
        round(&mut [&mut one]);
        round(&mut [&mut one]);
        assert_eq!(told(&manager), 0);
    }

    #[test]
    fn words_are_an_interval_apart_whatever_loops_there_are() {
        let (manager, watchdog) = manager();
        let mut pulses = [watchdog.pulse(), watchdog.pulse()];
        // The worst case: each comes round just before the other one is due.
        let start = Instant::now();
        let mut last = start;
        let mut at = [start, start + INTERVAL - Duration::from_nanos(1)];
        for _ in 0..20 {
            let next = usize::from(at[1] < at[0]);
            let now = at[next];
            at[next] += pulses[next].beat(now).unwrap();
            if told(&manager) > 0 {
                assert!(now - last <= INTERVAL, "{:?}", now - last);
                last = now;
            }
        }
        assert!(last > start + 8 * INTERVAL);
    }

    #[test]
    fn a_manager_that_does_not_read_is_not_waited_for() {
        let (manager, watchdog) = manager();
        let mut pulse = watchdog.pulse();
        let mut now = Instant::now();
        for _ in 0..10_000 {
            pulse.beat(now);
            now += INTERVAL;
        }
        let heard = told(&manager);
        assert!((1..10_000).contains(&heard), "its queue was full: {heard}");
        pulse.beat(now);
        assert_eq!(told(&manager), 1, "it is told again");
    }

    #[test]
    fn without_a_manager_no_loop_is_woken() {
        assert_eq!(Watchdog::default().pulse().beat(Instant::now()), None);
        assert!(Watchdog::at(OsStr::new("/nowhere/notify"), PATIENCE).is_err());
    }
}
