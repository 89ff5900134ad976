//! Every order in which the threads of an end can meet a peer that ends: not drawn by a seed, but all there are.
//!
//! ```text
//!   the peer      sends a byte, and ends in one of several ways, word by word
//!   the kernel    lets this end know when the last of these words was said
//!   a thread      receives until it is told the end of the stream
//!   another one   follows a hint at any moment, and hears what the kernel says
//!   a third       receives as well, or asks for SO_ERROR, or polls
//! ```
//!
//! A look of a thread is three steps: its own words, the peer's, the cursors. All else that a machine carries out is one.
//!
//! Of a reset from outside no word tells: it is the kernel's error alone that tells it from a FIN, and the kernel tells it
//! once. A thread that asks between another one's question and its note must not take that for an end in order.
//!
//! *Laws*: the end, and a reset, are told behind the last byte. A reset is told once, to one thread, and before any thread is
//! told the end; an end in order is no error. No thread waits for ever.

use super::errno::ECONNRESET;
use super::*;
use core::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::vec;

/// A step of the peer, or of its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Sends,
    Says(Say),
    LingersZero,
    /// Its process ends.
    Dies,
    /// This end's kernel has FIN, or RST.
    Arrives {
        errno: i32,
    },
}

const FIN: Step = Step::Arrives { errno: 0 };
const RST: Step = Step::Arrives { errno: ECONNRESET };
const CLOSED: Step = Step::Says(Say::Closed);
const ABORT: Step = Step::Says(Say::Abort);
const DONE: Step = Step::Says(Say::Done { refuses: false });

/// How a peer ends behind its bytes.
struct Ending {
    name: &'static str,
    steps: &'static [Step],
    /// It leaves bytes of ours unread.
    leaves_unread: bool,
    /// What one thread of ours is told, besides the end.
    reset: Option<i32>,
}

const fn ending(
    name: &'static str,
    steps: &'static [Step],
    leaves_unread: bool,
    reset: Option<i32>,
) -> Ending {
    Ending { name, steps, leaves_unread, reset }
}

const ENDINGS: [Ending; 9] = [
    ending("shuts down and closes", &[DONE, CLOSED, FIN], false, None),
    ending("closes", &[CLOSED, FIN], false, None),
    ending("closes with a bell unread", &[CLOSED, RST], false, None),
    ending("closes with bytes unread", &[ABORT, FIN], true, Some(ECONNRESET)),
    ending("asks for a reset", &[Step::LingersZero, CLOSED, RST], false, Some(ECONNRESET)),
    ending("is killed", &[Step::Dies, FIN], false, None),
    ending("is killed with a bell unread", &[Step::Dies, RST], false, None),
    ending("is killed with bytes unread", &[Step::Dies, RST], true, Some(ECONNRESET)),
    ending("is torn down from outside", &[RST], false, Some(ECONNRESET)),
];

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Work {
    /// Looks for a byte, and takes it.
    Receives,
    /// A call is about an end.
    Tells(Telling),
    /// Follows a hint, which may come before all else or after it.
    Follows(Hearing),
    /// Waits until the kernel says something.
    Listens,
    Hears(Hearing),
    Over,
}

/// A thread, and what it has read of the look that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Thread {
    work: Work,
    own: Option<Own>,
    peer: Option<Said>,
    /// Read too early, for the planted fault.
    unread: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    /// Steps of the peer that were taken, its byte first.
    at: usize,
    has_sent: bool,
    has_received: bool,
    own: Own,
    peer: Said,
    /// Of this end's TCP connection.
    error: i32,
    is_gone: bool,
    is_connected: bool,
    peer_runs: bool,
    /// The error that the program was told.
    told: Option<i32>,
    threads: [Thread; 3],
}

/// What is played: a peer, and the call of the third thread.
#[derive(Clone, Copy)]
struct Play {
    ending: &'static Ending,
    third: Call,
    /// A receive reads the cursors before the peer's words.
    is_faulty: bool,
}

/// The world in the hand of a thread, for one step.
struct Hand {
    world: RefCell<World>,
    thread: Thread,
    play: Play,
    has_looked: Cell<bool>,
}

impl Hand {
    fn change_reset(&self, change: impl FnOnce(Reset) -> Option<Reset>) -> Option<Reset> {
        let own = &mut self.world.borrow_mut().own;
        let before = own.reset;
        own.reset = change(before)?;
        Some(before)
    }
}

impl Words for Hand {
    fn look(&self) -> Seen {
        self.has_looked.set(true);
        let world = self.world.borrow();
        let unread = match self.play.is_faulty {
            true => self.thread.unread,
            false => world.is_unread(),
        };
        Seen {
            own: self.thread.own.unwrap_or(world.own),
            peer: self.thread.peer.unwrap_or(world.peer),
            unread,
            is_next: unread,
            unread_by_peer: self.play.ending.leaves_unread,
            peer_sends_by_tcp: false,
        }
    }

    fn note(&self, note: Note) {
        let own = &mut self.world.borrow_mut().own;
        match note {
            Note::PeerGone => own.peer_gone = true,
            Note::PeerRefuses => own.peer_refuses = true,
            Note::InputEnded | Note::Shut(_) => {
                panic!("no thread shuts down, and nothing goes by TCP")
            }
        }
    }

    /// To a peer that is about to end, or has.
    fn say(&self, _: Say) {}

    fn note_reset(&self, errno: i32) -> bool {
        self.change_reset(|reset| reset.noted(errno)).is_some()
    }

    fn claim_reset(&self) -> bool {
        self.change_reset(Reset::claimed).is_some()
    }

    fn take_reset(&self) -> Option<i32> {
        match self.change_reset(Reset::taken)? {
            Reset::Pending(errno) => Some(errno),
            Reset::None | Reset::Told => None,
        }
    }

    fn hint(&self) {}
}

impl Kernel for Hand {
    fn take_error(&self) -> i32 {
        core::mem::take(&mut self.world.borrow_mut().error)
    }

    fn is_peer_gone(&self) -> bool {
        self.world.borrow().is_gone
    }

    fn peer_runs(&self) -> bool {
        self.world.borrow().peer_runs
    }

    fn is_connected(&self) -> bool {
        self.world.borrow().is_connected
    }

    fn wake_readers(&self) {}
}

impl World {
    fn new(play: Play) -> Self {
        let thread = |work| Thread { work, own: None, peer: None, unread: false };
        let threads = [
            Work::Receives,
            Work::Follows(Hearing::Hinted),
            Work::Tells(Telling::begin(play.third)),
        ];
        Self {
            at: 0,
            has_sent: false,
            has_received: false,
            own: Own::default(),
            peer: Said::default(),
            error: 0,
            is_gone: false,
            is_connected: true,
            peer_runs: true,
            told: None,
            threads: threads.map(thread),
        }
    }

    fn is_unread(&self) -> bool {
        self.has_sent && !self.has_received
    }

    /// The peer's next step, if it has not ended.
    fn by_peer(&self, ending: &Ending) -> Option<Self> {
        let step = *[Step::Sends].iter().chain(ending.steps).nth(self.at)?;
        let mut world = Self { at: self.at + 1, ..*self };
        match step {
            Step::Sends => world.has_sent = true,
            Step::Says(Say::Done { .. }) => world.peer.done = true,
            Step::Says(Say::Abort) => world.peer.abort = true,
            Step::Says(Say::Closed) => world.peer.closed = true,
            Step::Says(say) => panic!("no peer here says {say:?}"),
            Step::LingersZero => world.peer.linger_zero = true,
            Step::Dies => world.peer_runs = false,
            Step::Arrives { errno } => {
                (world.is_gone, world.error) = (true, errno);
                world.is_connected = errno == 0;
            }
        }
        Some(world)
    }

    /// A thread's next step; `None`: it is over, or waits for the kernel.
    fn by_thread(&self, at: usize, play: Play) -> Option<Self> {
        let mut world = *self;
        let thread = &mut world.threads[at];
        match thread.work {
            Work::Over => return None,
            Work::Listens if !self.is_gone => return None,
            Work::Listens => thread.work = Work::Hears(Hearing::TcpEnded),
            Work::Receives if self.is_unread() => world.has_received = true,
            Work::Receives => thread.work = Work::Tells(Telling::begin(Call::Receives)),
            _ => return Some(self.by_machine(at, play)),
        }
        Some(world)
    }

    /// A step of a machine, or a part of the look that it takes.
    fn by_machine(&self, at: usize, play: Play) -> Self {
        let mut world = *self;
        let thread = &mut world.threads[at];
        if thread.own.is_some() && thread.peer.is_none() {
            thread.peer = Some(self.peer);
            return world;
        }
        let hand = Hand {
            world: RefCell::new(*self),
            thread: *thread,
            play,
            has_looked: Cell::new(false),
        };
        let work = match thread.work {
            Work::Tells(telling) => Work::Tells(telling.step(&hand, &hand)),
            Work::Follows(hearing) => {
                hearing.step(&hand, &hand).map_or(Work::Listens, Work::Follows)
            }
            Work::Hears(hearing) => hearing.step(&hand, &hand).map_or(Work::Over, Work::Hears),
            work => panic!("{work:?} is no machine"),
        };
        if hand.has_looked.get() && thread.own.is_none() {
            (thread.own, thread.unread) = (Some(self.own), self.is_unread());
            return world;
        }
        let mut world = hand.world.into_inner();
        world.threads[at] = Thread { work, own: None, peer: None, unread: false };
        if let Work::Tells(Telling::Answers(told)) = work {
            world.is_told(at, told, play);
        }
        world
    }

    fn is_told(&mut self, at: usize, told: Told, play: Play) {
        let is_receive = at == 0 || play.third == Call::Receives;
        self.threads[at].work = match told {
            Told::Nothing | Told::Errno(1..) if is_receive => Work::Receives,
            _ => Work::Over,
        };
        if let Told::Errno(errno @ 1..) = told {
            assert_eq!(self.told.replace(errno), None, "told twice");
        }
        let is_early = is_receive && told != Told::Nothing && !self.has_received;
        assert!(!is_early, "{told:?} before the last byte");
        let hides_reset = told == Told::End && self.told != play.ending.reset;
        assert!(!hides_reset, "the end of the stream before the reset");
    }

    /// The peer has ended, and the kernel has nothing more to say.
    fn is_heard(&self) -> bool {
        self.is_gone && self.threads[1].work == Work::Over
    }

    /// Nothing happens any more but what the other threads do: one after the other, they come to the end.
    fn comes_to_the_end(&self, play: Play) {
        /// More than a thread takes that nothing disturbs.
        const STEPS_MAX: usize = 64;
        let mut world = *self;
        for at in [0, 2] {
            for _ in 0..STEPS_MAX {
                let Some(next) = world.by_thread(at, play) else { break };
                world = next;
            }
            assert_eq!(world.threads[at].work, Work::Over, "it waits for ever");
        }
    }
}

/// Plays all orders. How many worlds there are.
fn play(play: Play) -> usize {
    let first = World::new(play);
    let mut known = HashSet::from([first]);
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        let by_threads = (0..3).filter_map(|at| world.by_thread(at, play));
        for next in world.by_peer(play.ending).into_iter().chain(by_threads) {
            if known.insert(next) {
                open.push(next);
                if next.is_heard() && !world.is_heard() {
                    next.comes_to_the_end(play);
                }
            }
        }
        if world.threads.iter().all(|thread| thread.work == Work::Over) {
            assert_eq!(world.told, play.ending.reset, "a peer that {}", play.ending.name);
        }
    }
    known.len()
}

#[test]
fn a_peer_that_ends_is_told_behind_its_last_byte_and_once_in_every_order() {
    for ending in &ENDINGS {
        // Behind an abort each call asks the kernel, so that there are ten times as many orders.
        let is_asked_by_all = ending.steps == [ABORT, FIN];
        let thirds = [Call::Receives, Call::Polls, Call::AsksError];
        for third in thirds.into_iter().take(if is_asked_by_all { 2 } else { 3 }) {
            let worlds = play(Play { ending, third, is_faulty: false });
            std::println!("{}, {third:?}: {worlds} worlds", ending.name);
        }
    }
}

#[test]
#[should_panic(expected = "before the last byte")]
fn an_end_that_reads_the_cursors_before_the_words_is_found() {
    play(Play { ending: &ENDINGS[0], third: Call::Polls, is_faulty: true });
}
