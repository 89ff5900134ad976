//! What the elements of a transaction cost on this machine.
//!
//! Each element is tried for a slice of time in batches, and the median of the batches
//! counts: another program that takes the processor for a moment spoils one of them.

use std::cell::UnsafeCell;
use std::hint::{black_box, spin_loop};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rand::seq::SliceRandom;
use rand::{SeedableRng, rngs::StdRng};
use thiserror::Error;

use super::cpu::{self, Cpu, Epoll};
use super::figures::{CopyCost, Figures, Places, RING_LEN, TcpCost};

/// Why a machine could not be measured.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The processors could not be told.
    #[error("cannot tell which processors may be used: {0}")]
    Processors(#[source] io::Error),
    /// TCP to 127.0.0.1 does not work.
    #[error("TCP over loopback does not work: {0}; is the interface up (`ip link set lo up`)?")]
    Loopback(#[source] io::Error),
}

/// Measures this machine, in about two seconds.
///
/// The threads that measure are pinned to processors; the caller's is not touched. It
/// uses what the calling thread may use: with one processor there are no figures for
/// another.
///
/// # Errors
/// TCP over loopback does not work, or the kernel does not tell the processors.
pub fn measure() -> Result<Figures, ProbeError> {
    let allowed = cpu::allowed().map_err(ProbeError::Processors)?;
    let first = *allowed.first().ok_or_else(|| ProbeError::Processors(io::Error::other("none")))?;
    let other = cpu::pair(&allowed).map(|(_, other)| other);
    let between = |cost: fn(Cpu, Cpu) -> f64| Places {
        same_cpu: cost(first, first),
        other_cpu: other.map(|other| cost(first, other)),
    };
    Ok(Figures {
        cpus: allowed.len() as u32,
        syscall_ns: cpu::on(first, syscall_ns),
        wakeup_us: between(wakeup_us),
        ring_ns: between(ring_ns),
        copies: copies(first, other),
        tcp: cpu::on(first, tcp_costs).map_err(ProbeError::Loopback)?,
        connect_us: cpu::on(first, connect_us).map_err(ProbeError::Loopback)?,
        epoll_ns: cpu::on(first, epoll_ns).map_err(ProbeError::Loopback)?,
    })
}

/// For each figure. There are some 25 of them.
const SLICE: Duration = Duration::from_millis(75);
/// However long they take.
const BATCHES_MIN: usize = 5;

/// The first quartile of what a batch returns.
fn typical(mut batch: impl FnMut() -> f64) -> f64 {
    let end = Instant::now() + SLICE;
    let mut results = Vec::new();
    while results.len() < BATCHES_MIN || Instant::now() < end {
        results.push(batch());
    }
    first_quartile(&mut results)
}

fn first_quartile(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 4]
}

/// Nanoseconds of one `work`, on the average of `count`.
fn time_ns(count: u32, mut work: impl FnMut()) -> f64 {
    let begin = Instant::now();
    for _ in 0..count {
        work();
    }
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(count)
}

fn syscall_ns() -> f64 {
    typical(|| time_ns(1000, cpu::call_kernel))
}

// ---- between two threads ---------------------------------------------------

/// Half a round trip of two threads that sleep until the other wakes them (a futex).
fn wakeup_us(here: Cpu, there: Cpu) -> f64 {
    Rally::new(0, Waiting::Sleep).round_trip_ns(here, there, 10) / 2.0 / 1e3
}

/// A round trip of one cache line. On one processor looking would keep the other side
/// from running, so there it yields.
fn ring_ns(here: Cpu, there: Cpu) -> f64 {
    let waiting = if here == there { Waiting::Yield } else { Waiting::Spin };
    Rally::new(0, waiting).round_trip_ns(here, there, 100)
}

/// From the beginning of the copy into shared memory to the end of the copy out of it.
fn handed_ns(here: Cpu, there: Cpu, len: usize) -> f64 {
    let rounds = (1 << 17) / len as u32;
    Rally::new(len, Waiting::Spin).round_trip_ns(here, there, rounds.clamp(1, 100)) / 2.0
}

/// Two threads that send a message to and fro.
#[derive(Debug)]
struct Rally {
    there: Lane,
    back: Lane,
    message_len: usize,
    waiting: Waiting,
    /// Who sent first.
    asker: OnceLock<Thread>,
}

/// How a thread waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Spin,
    Yield,
    Sleep,
}

impl Rally {
    fn new(message_len: usize, waiting: Waiting) -> Self {
        let (there, back) = (Lane::new(message_len), Lane::new(message_len));
        Self { there, back, message_len, waiting, asker: OnceLock::new() }
    }

    /// In batches of so many round trips.
    fn round_trip_ns(&self, from: Cpu, to: Cpu, rounds: u32) -> f64 {
        thread::scope(|scope| {
            let answerer = cpu::start_on(scope, to, || self.answer_all());
            let partner = answerer.thread().clone();
            let asker = cpu::start_on(scope, from, move || self.ask_all(&partner, rounds));
            let result = cpu::join(asker);
            cpu::join(answerer);
            result
        })
    }

    fn ask_all(&self, answerer: &Thread, rounds: u32) -> f64 {
        self.asker.set(thread::current()).expect("one asker");
        let mut own = vec![1; self.message_len];
        let mut number = 0;
        let result = typical(|| {
            time_ns(rounds, || {
                number += 1;
                self.there.send(number, &own);
                self.wake(answerer);
                self.back.await_number(number, self.waiting);
                self.back.receive(number, &mut own);
            })
        });
        self.there.end();
        self.wake(answerer);
        result
    }

    fn answer_all(&self) {
        let mut own = vec![0; self.message_len];
        for number in 1.. {
            if self.there.await_number(number, self.waiting) == Lane::END {
                return;
            }
            self.there.receive(number, &mut own);
            self.back.send(number, &own);
            self.wake(self.asker.get().expect("who asked has said who it is"));
        }
    }

    fn wake(&self, thread: &Thread) {
        if self.waiting == Waiting::Sleep {
            thread.unpark();
        }
    }
}

/// One direction: a ring of bytes, and the number of the last message in it.
///
/// Sender and receiver take turns: a message is written before its number is published,
/// and the next one after it was answered.
#[derive(Debug)]
#[repr(align(64))] // A cache line: what is measured is its way.
struct Lane {
    number: AtomicU64,
    ring: UnsafeCell<Vec<u8>>,
}

// SAFETY: `ring` is used by one thread at a time: by the sender until it publishes the
// number (Release in `send`), by the receiver from then on (Acquire in `await_number`)
// until it answers in the same way on the other lane.
unsafe impl Sync for Lane {}

impl Lane {
    /// The number behind the last one.
    const END: u64 = u64::MAX;

    fn new(message_len: usize) -> Self {
        let ring = vec![0; message_len.max(RING_LEN)];
        Self { number: AtomicU64::new(0), ring: UnsafeCell::new(ring) }
    }

    fn send(&self, number: u64, message: &[u8]) {
        // SAFETY: it is the sender's turn; see above.
        let ring = unsafe { &mut *self.ring.get() };
        ring[place(number, message.len())..][..message.len()].copy_from_slice(message);
        // Release: pairs with the Acquire in await_number().
        self.number.store(number, Ordering::Release);
    }

    fn end(&self) {
        // Release: pairs with the Acquire in await_number().
        self.number.store(Self::END, Ordering::Release);
    }

    /// Returns this number, or [`Self::END`].
    fn await_number(&self, expected: u64, waiting: Waiting) -> u64 {
        loop {
            // Acquire: pairs with the Release in send().
            let number = self.number.load(Ordering::Acquire);
            if number >= expected {
                return number;
            }
            match waiting {
                Waiting::Spin => spin_loop(),
                Waiting::Yield => thread::yield_now(),
                Waiting::Sleep => thread::park(),
            }
        }
    }

    fn receive(&self, number: u64, message: &mut [u8]) {
        // SAFETY: it is the receiver's turn; see above.
        let ring = unsafe { &*self.ring.get() };
        message.copy_from_slice(&ring[place(number, message.len())..][..message.len()]);
    }
}

/// Where a message lies in the ring: behind the one before, none across the end.
fn place(number: u64, len: usize) -> usize {
    let places = (RING_LEN / len.max(1)).max(1);
    (number % places as u64) as usize * len
}

// ---- copies ----------------------------------------------------------------

/// A line, a page's half, a packet of the largest size, a block.
const COPY_LENS: [usize; 4] = [64, 2 << 10, 32 << 10, 1 << 20];

/// Bytes read, and as many written, until a place comes up again: more than caches hold.
const COLD_LEN: usize = 32 << 20;

fn copies(here: Cpu, there: Option<Cpu>) -> Vec<CopyCost> {
    let mut areas = [vec![1; COLD_LEN], vec![2; COLD_LEN]];
    let mut cost = |len| CopyCost {
        len: len as u64,
        hot_ns: cpu::on(here, || hot_ns(len)),
        cold_ns: cpu::on(here, || cold_ns(len, &mut areas)),
        handed_ns: there.map(|there| handed_ns(here, there, len)),
    };
    COPY_LENS.map(&mut cost).to_vec()
}

fn hot_ns(len: usize) -> f64 {
    let (from, mut to) = (vec![1; len], vec![2; len]);
    let count = ((1 << 21) / len as u32).min(4096);
    typical(|| time_ns(count, || copy(&from, &mut to)))
}

fn cold_ns(len: usize, [from, to]: &mut [Vec<u8>; 2]) -> f64 {
    let mut places: Vec<usize> = (0..COLD_LEN).step_by(len).collect();
    places.shuffle(&mut StdRng::seed_from_u64(0));
    let mut next = places.iter().cycle();
    let count = ((1 << 21) / len as u32).min(4096);
    typical(|| {
        time_ns(count, || {
            let place = *next.next().expect("an endless cycle");
            copy(&from[place..][..len], &mut to[place..][..len]);
        })
    })
}

/// As it stands, whatever the compiler knows about the bytes.
fn copy(from: &[u8], to: &mut [u8]) {
    black_box(&mut *to).copy_from_slice(black_box(from));
    black_box(to);
}

// ---- TCP -------------------------------------------------------------------

const TCP_LENS: [usize; 3] = [1, 2 << 10, 32 << 10];

/// As many connections at most: each leaves an address that cannot be used for a while.
const CONNECTIONS_MAX: usize = 200;

/// To and fro in one thread: no thread is woken. Half of it is a message; acknowledgements
/// travel with the next one, as they do between programs.
fn tcp_costs() -> io::Result<Vec<TcpCost>> {
    let (mut near, mut far) = connection(&listener()?)?;
    let mut costs = Vec::new();
    for len in TCP_LENS {
        let mut message = vec![0; len];
        let mut to_and_fro = || {
            pass(&mut near, &mut far, &mut message)?;
            pass(&mut far, &mut near, &mut message)
        };
        to_and_fro()?;
        let ns = typical(|| time_ns(8, || to_and_fro().expect("it went well before"))) / 2.0;
        costs.push(TcpCost { len: len as u64, ns });
    }
    Ok(costs)
}

fn pass(from: &mut TcpStream, to: &mut TcpStream, message: &mut [u8]) -> io::Result<()> {
    from.write_all(message)?;
    to.read_exact(message)
}

fn epoll_ns() -> io::Result<f64> {
    let (mut near, far) = connection(&listener()?)?;
    near.write_all(&[0])?;
    let set = Epoll::watching(&far)?;
    // The byte is never read, so there is always an event.
    Ok(typical(|| time_ns(200, || _ = black_box(set.wait()))))
}

fn connect_us() -> io::Result<f64> {
    let listener = listener()?;
    let end = Instant::now() + SLICE;
    let mut times_us = Vec::new();
    while times_us.len() < BATCHES_MIN || times_us.len() < CONNECTIONS_MAX && Instant::now() < end {
        let begin = Instant::now();
        drop(connection(&listener)?);
        times_us.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    Ok(first_quartile(&mut times_us))
}

fn listener() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
}

/// Both ends.
fn connection(listener: &TcpListener) -> io::Result<(TcpStream, TcpStream)> {
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    Ok((near, far))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only what is orders of magnitude apart: other tests run beside this.
    fn assert_plausible(figures: &Figures) {
        let mut all = vec![
            figures.syscall_ns,
            figures.wakeup_us.same_cpu,
            figures.ring_ns.same_cpu,
            figures.connect_us,
            figures.epoll_ns,
        ];
        all.extend(figures.copies.iter().flat_map(|copy| [copy.hot_ns, copy.cold_ns]));
        all.extend(figures.tcp.iter().map(|tcp| tcp.ns));
        assert!(all.iter().all(|cost| cost.is_finite() && *cost > 0.0), "{figures:?}");

        let [shortest, .., longest] = &figures.copies[..] else { panic!("{figures:?}") };
        assert!(shortest.hot_ns < longest.hot_ns && shortest.cold_ns < longest.cold_ns);
        assert!(figures.wakeup_us.same_cpu * 1e3 > figures.syscall_ns);
        assert!(figures.tcp.iter().all(|tcp| tcp.ns > figures.syscall_ns));
        assert!(figures.connect_us * 1e3 > figures.tcp[0].ns);

        let for_two_cpus: Vec<Option<f64>> =
            [figures.wakeup_us.other_cpu, figures.ring_ns.other_cpu]
                .into_iter()
                .chain(figures.copies.iter().map(|copy| copy.handed_ns))
                .collect();
        let is_right =
            |cost: &Option<f64>| cost.is_some_and(|cost| cost > 0.0) == (figures.cpus > 1);
        assert!(for_two_cpus.iter().all(is_right), "{figures:?}");
    }

    #[test]
    fn figures_are_plausible() {
        let figures = measure().unwrap();
        assert_eq!(figures.cpus as usize, cpu::allowed().unwrap().len());
        assert_plausible(&figures);
    }

    #[test]
    fn one_processor_is_enough() {
        let first = cpu::allowed().unwrap()[0];
        let figures = cpu::on(first, || measure().unwrap());
        assert_eq!(figures.cpus, 1);
        assert_plausible(&figures);
    }

    #[test]
    fn messages_lie_within_the_ring_and_follow_each_other() {
        assert_eq!([1, 2, 3].map(|number| place(number, 32 << 10)), [32 << 10, 0, 32 << 10]);
        assert_eq!([1, 2].map(|number| place(number, 1 << 20)), [0, 0]);
        assert_eq!(place(7, 0), 0);
        assert!((0..5000).all(|number| place(number, 2049) + 2049 <= RING_LEN));
    }

    #[test]
    fn the_first_quartile_leaves_out_what_was_disturbed() {
        assert_eq!(first_quartile(&mut [9.0, 1.0, 8.0, 2.0, 7.0]), 2.0);
        assert_eq!(first_quartile(&mut [5.0]), 5.0);
    }
}
