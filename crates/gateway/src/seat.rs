//! The seat of the thread that runs the loop, and what becomes of the loop when that thread sleeps.
//!
//! A program keeps the TCP socket that it has handed over. Each call on it waits in the kernel for the socket's lock,
//! and a `send` of the program's that waits for its own memory (a file of FUSE, `userfaultfd`) holds that lock for as long as the
//! program likes. No flag and no time limit is about this wait, no signal ends it, and no question asked before
//! tells whether it will be one. So the thread that runs the loop gets up for such a call: it leaves what it
//! runs in the seat, and another thread takes that if the call takes long.
//!
//! ```text
//!   runner   ── leaves ── call ── takes it again ──────>          two locks without another claimant
//!   runner   ── leaves ── call ·····(sleeps)··········· is late: hands in what it has got, and ends
//!   warden        └── looks ── looks ── takes it, is the runner ─────────────>
//!   a new one              └── is the warden ────────────────────────────────>
//! ```
//!
//! What is run is in one place at any time: with the runner, or in the seat. So it needs no lock, and code that makes no such
//! call knows nothing of all this.
//!
//! The warden looks each [`TICK`] as long as the seat is left now and then, and sleeps otherwise.

use std::io;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How often the warden looks. A call that is under way at two looks in a row has lasted one tick to two.
const TICK: Duration = Duration::from_millis(10);
/// After so many looks at a seat that has not been left since, the warden sleeps until it is.
const QUIET_TICKS: u32 = 100;

/// What is run in a seat.
pub(crate) trait Served: Send + Sized + 'static {
    /// What it comes to.
    type End: Send;

    /// Runs it. `None`: it was left in the seat, and another thread runs it.
    fn serve(self: Box<Self>, seat: &Arc<Seat<Self>>) -> Option<Self::End>;
}

/// See the [module](self).
pub(crate) struct Seat<T: Served> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T: Served> {
    /// What was left.
    left: Option<Box<T>>,
    /// How often.
    times: u64,
    /// It is not to wait for a look.
    is_urgent: bool,
    warden_sleeps: bool,
    is_over: bool,
    /// What it has come to, or with what the thread that ran it has panicked.
    end: Option<thread::Result<T::End>>,
}

impl<T: Served> Seat<T> {
    /// Runs it until it is over, by threads of which this is none: one may sleep for longer than that.
    ///
    /// # Errors
    ///
    /// The kernel gives no threads.
    ///
    /// # Panics
    ///
    /// A thread that runs it panics.
    pub(crate) fn run(it: Box<T>) -> io::Result<T::End> {
        let state = State {
            left: None,
            times: 0,
            is_urgent: false,
            warden_sleeps: false,
            is_over: false,
            end: None,
        };
        let seat = Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() });
        let runner = Arc::clone(&seat);
        thread::Builder::new().name("runner".to_owned()).spawn(move || runner.serve(it))?;
        seat.begin_warden()?;
        Ok(seat.await_end())
    }

    /// Makes a call that may sleep, while `it` is in the seat. Returns what the call has come to, and what was left, unless
    /// another thread has taken that. `is_urgent`: another thread is to take it at once.
    pub(crate) fn leave<R>(
        &self,
        it: Box<T>,
        is_urgent: bool,
        call: impl FnOnce() -> R,
    ) -> (R, Option<Box<T>>) {
        let mut state = self.lock();
        state.left = Some(it);
        state.times += 1;
        state.is_urgent = is_urgent;
        let ticket = state.times;
        if mem::take(&mut state.warden_sleeps) || is_urgent {
            self.changed.notify_all();
        }
        drop(state);
        let answer = call();
        let mut state = self.lock();
        // Another thread may have taken it since, and left it in its turn.
        let back = if state.times == ticket { state.left.take() } else { None };
        (answer, back)
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No code of others runs under it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(self: &Arc<Self>, it: Box<T>) {
        let end = match panic::catch_unwind(AssertUnwindSafe(|| it.serve(self))) {
            Ok(None) => return,
            Ok(Some(end)) => Ok(end),
            Err(panic) => Err(panic),
        };
        let mut state = self.lock();
        (state.end, state.is_over) = (Some(end), true);
        self.changed.notify_all();
    }

    fn await_end(&self) -> T::End {
        let mut state = self.lock();
        loop {
            if let Some(end) = state.end.take() {
                drop(state);
                return end.unwrap_or_else(|panic| panic::resume_unwind(panic));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    // ---- the warden -----------------------------------------------------------------------------

    fn begin_warden(self: &Arc<Self>) -> io::Result<()> {
        let seat = Arc::clone(self);
        thread::Builder::new().name("warden".to_owned()).spawn(move || seat.stand_by()).map(drop)
    }

    /// Waits until the runner is late, and is the runner from then on. Without a thread for a new warden, it is the warden
    /// again when it is late itself.
    fn stand_by(self: Arc<Self>) {
        while let Some(it) = self.await_late() {
            let has_warden = self.begin_warden().inspect_err(|error| {
                log::warn!("no thread is there for when this one sleeps: {error}");
            });
            self.serve(it);
            if has_warden.is_ok() {
                return;
            }
        }
    }

    /// What was left, once that is long ago. `None`: all is over.
    fn await_late(&self) -> Option<Box<T>> {
        let (mut seen, mut quiet) = ((0, false), 0);
        let mut state = self.lock();
        while !state.is_over {
            let this = (state.times, state.left.is_some());
            let (_, is_left) = this;
            if is_left && (state.is_urgent || this == seen) {
                return state.left.take();
            }
            quiet = if this == seen { quiet + 1 } else { 0 };
            seen = this;
            state = if quiet < QUIET_TICKS {
                let waited = self.changed.wait_timeout(state, TICK);
                waited.unwrap_or_else(PoisonError::into_inner).0
            } else {
                state.warden_sleeps = true;
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::{self, Receiver, Sender};
    use std::thread::ThreadId;

    /// Counts to its goal, with a call for each step.
    struct Count {
        at: u32,
        goal: u32,
        is_urgent: bool,
        /// Sleeps in the call of each step that is in it, until it is told to go on.
        sleeps: fn(u32) -> bool,
        alarm: Arc<Mutex<Receiver<()>>>,
        /// Who has run which step.
        runners: Vec<ThreadId>,
        late: Arc<AtomicU32>,
    }

    impl Served for Count {
        type End = (u32, Vec<ThreadId>);

        fn serve(mut self: Box<Self>, seat: &Arc<Seat<Self>>) -> Option<Self::End> {
            while self.at < self.goal {
                self.at += 1;
                self.runners.push(thread::current().id());
                let (alarm, late) = (Arc::clone(&self.alarm), Arc::clone(&self.late));
                let (is_asleep, is_urgent) = ((self.sleeps)(self.at), self.is_urgent);
                let call = || {
                    if is_asleep {
                        alarm.lock().unwrap().recv().unwrap();
                    }
                };
                let ((), back) = seat.leave(self, is_urgent, call);
                let Some(this) = back else {
                    late.fetch_add(1, Ordering::Relaxed);
                    return None;
                };
                self = this;
            }
            Some((self.at, self.runners))
        }
    }

    fn count(goal: u32, sleeps: fn(u32) -> bool) -> (Box<Count>, Sender<()>, Arc<AtomicU32>) {
        let (wake, alarm) = mpsc::channel();
        let (alarm, late) = (Arc::new(Mutex::new(alarm)), Arc::new(AtomicU32::new(0)));
        let (at, is_urgent, runners) = (0, false, Vec::new());
        let told = Arc::clone(&late);
        (Box::new(Count { at, goal, is_urgent, sleeps, alarm, runners, late }), wake, told)
    }

    #[test]
    fn without_a_sleeper_all_is_run_and_ends() {
        let (it, _wake, _) = count(10_000, |_| false);
        assert_eq!(Seat::run(it).unwrap().0, 10_000);
    }

    #[test]
    fn a_call_that_sleeps_is_left_behind_and_comes_back_to_nothing() {
        let (it, wake, late) = count(1000, |at| at == 7);
        let (at, runners) = Seat::run(it).unwrap();
        assert_eq!((at, runners.len()), (1000, 1000), "each step once");
        assert_ne!(runners[6], runners[7], "another thread goes on");
        wake.send(()).unwrap();
        while late.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn several_sleep_at_once() {
        let (it, wake, late) = count(1000, |at| at % 200 == 0 && at < 1000);
        assert_eq!(Seat::run(it).unwrap().0, 1000);
        let before = late.load(Ordering::Relaxed);
        (0..4).for_each(|_| wake.send(()).unwrap());
        while late.load(Ordering::Relaxed) < 4 {
            thread::yield_now();
        }
        assert!(before <= 4);
    }

    #[test]
    fn what_is_urgent_waits_for_no_look() {
        let (mut it, _wake, _) = count(100, |_| false);
        it.is_urgent = true;
        // With each step the warden may be the faster one, or the runner; no step is run twice.
        let (at, runners) = Seat::run(it).unwrap();
        assert_eq!((at, runners.len()), (100, 100));
    }

    #[test]
    #[should_panic(expected = "steps are over")]
    fn a_panic_of_whichever_thread_is_the_end() {
        let (it, wake, _) = count(10, |at| match at {
            9 => panic!("steps are over"),
            at => at == 3,
        });
        let end = panic::catch_unwind(AssertUnwindSafe(|| Seat::run(it)));
        wake.send(()).unwrap();
        panic::resume_unwind(end.expect_err("it panics"));
    }
}
