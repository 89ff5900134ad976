//! Event loops: more of them than there are channels, in threads and in one another.

use crate::call;
use crate::pair::{Pair, Stage};
use sidestep_device::sys;
use sidestep_device::wake::CHANNELS;
use std::fs;
use std::io::{PipeReader, Read, pipe};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Only a wait without a wake-up takes so long.
const HANG: Duration = Duration::from_secs(60);

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;

/// Sets that watch one end to read from it, each with its own number as data.
struct Sets(Vec<i32>);

impl Sets {
    fn of(fd: i32, count: usize) -> Self {
        let sets: Vec<i32> = (0..count).map(|_| call::new_set(true)).collect();
        for (number, set) in sets.iter().enumerate() {
            let added = call::control(*set, libc::EPOLL_CTL_ADD, fd, IN, number as u64);
            assert_eq!(added.value, 0);
        }
        Self(sets)
    }

    /// One more than there are channels: it has none.
    fn without_channel(pair: &Pair) -> Self {
        Self::of(pair.fds()[0], CHANNELS + 1)
    }

    fn last(&self) -> (i32, u64) {
        (self.0[self.0.len() - 1], self.0.len() as u64 - 1)
    }
}

impl Drop for Sets {
    fn drop(&mut self) {
        self.0.iter().for_each(|set| call::close(*set));
    }
}

/// What a thread that sleeps in a set is told when something is done meanwhile.
fn told_asleep(set: i32, act: impl FnOnce()) -> Vec<(u64, u32)> {
    let (tid, begin) = (AtomicU32::new(0), Instant::now());
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            tid.store(sys::tid(), Ordering::Relaxed);
            call::wait(set, 4, HANG)
        });
        let is_asleep = || match tid.load(Ordering::Relaxed) {
            0 => false,
            tid => sys::is_asleep(tid) == Ok(true),
        };
        while !is_asleep() && !sleeper.is_finished() {
            thread::yield_now();
        }
        act();
        let told = sleeper.join().expect("a wait").expect("no error");
        assert!(begin.elapsed() < HANG, "nobody has woken it");
        told
    })
}

#[test]
fn a_set_without_a_channel_hears_of_a_message() {
    let stage = Stage::enter();
    let pair = stage.moved();
    let sets = Sets::without_channel(&pair);
    let (set, number) = sets.last();
    let [fd, peer] = pair.fds();
    for _ in 0..3 {
        let told = told_asleep(set, || assert_eq!(call::send(peer, b"x", &[], 0).value, 1));
        assert_eq!(told, [(number, IN)]);
        assert_eq!(call::receive(fd, 8, &[], 0).value, 1);
    }
}

#[test]
fn a_set_without_a_channel_hears_of_what_another_thread_changes() {
    let stage = Stage::enter();
    let pair = stage.moved();
    let sets = Sets::without_channel(&pair);
    let (set, number) = sets.last();
    let fd = pair.fds()[0];
    let modify = |events| {
        let modified = call::control(set, libc::EPOLL_CTL_MOD, fd, events, number);
        assert_eq!(modified.value, 0);
    };
    assert_eq!(told_asleep(set, || modify(IN | OUT)), [(number, OUT)]);
    modify(IN);
    assert_eq!(call::wait(set, 4, Duration::ZERO), Ok(Vec::new()));
    let shut = || assert_eq!(call::shutdown(fd, libc::SHUT_RD).value, 0);
    assert_eq!(told_asleep(set, shut), [(number, IN)]);
}

/// Standard input, while it is the end of a pipe to write to.
struct StandardInput {
    before: i32,
    written: PipeReader,
}

impl StandardInput {
    fn catch() -> Self {
        let (written, end) = pipe().expect("a pipe");
        // SAFETY: no memory operands; `end` is closed behind it.
        let before = unsafe {
            let before = libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 100);
            assert_eq!(libc::dup2(end.as_raw_fd(), 0), 0);
            before
        };
        Self { before, written }
    }

    /// Gives back what was there; returns what was written.
    fn release(mut self) -> Vec<u8> {
        // SAFETY: no memory operands.
        unsafe {
            libc::dup2(self.before, 0);
            libc::close(self.before);
        }
        let mut bytes = Vec::new();
        self.written.read_to_end(&mut bytes).expect("a pipe without writers");
        bytes
    }
}

#[test]
fn a_set_without_a_channel_takes_no_descriptor_of_the_program_for_its_bell() {
    let stage = Stage::enter();
    let input = StandardInput::catch();
    let pair = stage.moved();
    let sets = Sets::without_channel(&pair);
    let (set, number) = sets.last();
    let fd = pair.fds()[0];
    let modify = || {
        assert_eq!(call::control(set, libc::EPOLL_CTL_MOD, fd, IN | OUT, number).value, 0);
    };
    assert_eq!(told_asleep(set, modify), [(number, OUT)]);
    drop(sets);
    assert_eq!(input.release(), b"");
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").expect("/proc").count()
}

#[test]
fn sets_give_their_bells_and_channels_back() {
    let stage = Stage::enter();
    let pair = stage.moved();
    drop(Sets::without_channel(&pair));
    let before = open_files();
    for _ in 0..3 {
        let sets = Sets::without_channel(&pair);
        call::send(pair.fds()[1], b"x", &[], 0);
        for (number, set) in sets.0.iter().enumerate() {
            assert_eq!(call::wait(*set, 4, Duration::ZERO), Ok(vec![(number as u64, IN)]));
        }
        assert_eq!(call::receive(pair.fds()[0], 8, &[], 0).value, 1);
    }
    assert_eq!(open_files(), before);
}

/// A set in each of which is the next, down to one that watches an end.
fn nest(fd: i32, depth: usize) -> Sets {
    let sets = Sets::of(fd, 1);
    let mut all = sets.0.clone();
    std::mem::forget(sets);
    for level in 1..depth {
        let outer = call::new_set(true);
        let added = call::control(outer, libc::EPOLL_CTL_ADD, all[level - 1], IN, level as u64);
        assert_eq!(added.value, 0);
        all.push(outer);
    }
    Sets(all)
}

/// Linux takes a set of which four more are inside of one another.
const DEPTH: usize = 5;

#[test]
fn a_sleeper_in_the_outermost_set_hears_of_a_message_to_the_innermost() {
    let stage = Stage::enter();
    for pair in [stage.moved(), stage.known(false), stage.known(true), stage.plain()] {
        let [fd, peer] = pair.fds();
        for depth in 1..=DEPTH {
            let sets = nest(fd, depth);
            let (outermost, _) = sets.last();
            let told =
                told_asleep(outermost, || assert_eq!(call::send(peer, b"x", &[], 0).value, 1));
            assert_eq!(told, [(depth as u64 - 1, IN)]);
            for set in &sets.0 {
                assert!(!call::wait(*set, 4, Duration::ZERO).expect("no error").is_empty());
            }
            assert_eq!(call::receive(fd, 8, &[], 0).value, 1);
            for set in &sets.0 {
                assert_eq!(call::wait(*set, 4, Duration::ZERO), Ok(Vec::new()));
            }
        }
    }
}

/// A program that waits outside may read what came without a word to the set inside.
#[test]
fn a_sleeper_around_a_set_sleeps_although_old_news_were_never_collected_there() {
    let stage = Stage::enter();
    let pair = stage.moved();
    let [fd, peer] = pair.fds();
    let sets = nest(fd, 2);
    for _ in 0..3 {
        let told =
            told_asleep(sets.last().0, || assert_eq!(call::send(peer, b"x", &[], 0).value, 1));
        assert_eq!(told, [(1, IN)]);
        assert_eq!(call::receive(fd, 8, &[], 0).value, 1);
    }
}

#[test]
fn a_circle_of_sets_and_one_too_deep_are_refused_and_change_nothing() {
    let stage = Stage::enter();
    let pair = stage.moved();
    let [fd, peer] = pair.fds();
    let sets = nest(fd, DEPTH);
    let deepest = call::new_set(true);
    let refusals = [libc::EINVAL, libc::ELOOP].map(|errno| -i64::from(errno));
    for _ in 0..3 {
        let circles = sets.0.iter().map(|inner| (sets.0[0], *inner));
        for (outer, inner) in circles.chain([(deepest, sets.last().0)]) {
            let added = call::control(outer, libc::EPOLL_CTL_ADD, inner, IN, 9);
            assert!(refusals.contains(&added.value), "{added:?}");
        }
    }
    let told = told_asleep(sets.last().0, || assert_eq!(call::send(peer, b"x", &[], 0).value, 1));
    assert_eq!(told, [(DEPTH as u64 - 1, IN)]);
    call::close(deepest);
}

#[test]
fn a_set_that_is_deleted_or_closed_is_reported_no_more() {
    let stage = Stage::enter();
    let pair = stage.moved();
    let [fd, peer] = pair.fds();
    for closes in [false, true] {
        let mut sets = nest(fd, 2);
        let outer = sets.last().0;
        assert_eq!(call::send(peer, b"x", &[], 0).value, 1);
        assert_eq!(call::wait(outer, 4, Duration::ZERO), Ok(vec![(1, IN)]));
        if closes {
            call::close(sets.0.remove(0));
        } else {
            assert_eq!(call::control(outer, libc::EPOLL_CTL_DEL, sets.0[0], 0, 0).value, 0);
        }
        assert_eq!(call::wait(outer, 4, Duration::ZERO), Ok(Vec::new()));
        assert_eq!(call::receive(fd, 8, &[], 0).value, 1);
    }
}
