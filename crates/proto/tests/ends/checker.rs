//! Compares what programs were told with what TCP could have told them.
//!
//! A call takes effect at one moment between its begin and its end. Which, is not seen from outside; so the checker has all
//! connections of TCP that there may be by now, and each answer leaves those that could have given it. When none is
//! left, no TCP would have answered so.
//!
//! What the world does without being asked (a kill, a reset from outside) takes effect at any moment after it has begun,
//! because the library may notice late. These are the differences to TCP that the library is allowed:
//!
//! * The death of a peer, and a reset from outside, may be noticed at any later call.
//! * What comes to a process that has read everything and ends by `exit` comes behind its FIN.
//! * An error of the own kernel that comes behind a FIN may be told before that, if it was not noticed.
//! * `shutdown` takes effect in two steps: the peer finds it before the other threads of this end.
//! * Of two threads that shut down one direction at the same time, both may be told that they have; and so may a thread
//!   that shuts down while another one's call finds that the connection is over.
//! * A byte that the peer has sent before it noticed that this end was reset may be received behind the reset.
//! * An end goes on sending to one that was torn down from outside until it notices that.
//! * A peer that is killed with bytes unread that went by TCP, before the direction moved into the ring, may be taken for one that has read
//!   them.
//! * While a direction goes by TCP, two threads may be told of one reset: one by the kernel, one by the library.
//! * The send that is told by TCP itself is told what TCP knows: ECONNRESET if the peer's FIN went by the ring, where TCP would say
//!   EPIPE, and EPIPE if the peer has left bytes there unread, where TCP would say ECONNRESET.
//! * A peer that closes or exits with a bell unread, right behind a turn of this end's direction from the ring to TCP, may be taken for one
//!   that has left bytes unread.
//! * A receive on an end that is over for receiving is told EAGAIN if bytes come right then: the next one gets them.
//! * While one direction goes by TCP and the other through the ring, one may notice the death of the peer, or a
//!   reset from outside, before the other.
//! * A send to a peer that refuses it may reset the peer behind the FIN of a thread that shuts down meanwhile.
//! * A send that is under way when another thread learns that the peer is gone may make the end of the peer a reset; and
//!   one that is under way when the peer shuts down both directions may be received.
//! * Of two resets, one by the peer and one from outside, the later one may be told.
//! * An error that one thread has taken from the kernel, and not written down yet, another one may be told as ECONNRESET: the kernel
//!   tells it once. Never as the end of the stream, unless the peer has ended as well: if it says its FIN or dies before the
//!   reset is written down, one thread may be told the end, and another one the reset. No answer behind that is compared.
//! * If one end was torn down from outside, the other may be told of a reset although its own TCP knows of none.

use std::collections::BTreeSet;

use crate::tcp::Tcp;

/// What a program or the world does to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Act {
    Send(usize),
    Receive,
    TakeError,
    Poll,
    /// As the peer finds it.
    Shut {
        reading: bool,
        writing: bool,
    },
    /// As the threads of this end find it.
    ShutHere {
        /// Behind this one.
        of: usize,
        reading: bool,
        writing: bool,
    },
    Linger(bool),
    /// The process begins to end.
    Exit,
    /// Close, exit or death.
    Close,
    Breaks(i32),
}

/// What it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    Count(Result<usize, i32>),
    Errno(i32),
    Mask([bool; 3]),
    Shut(Result<(), i32>),
    Done,
}

/// Something under way.
#[derive(Clone, Copy, Debug)]
struct Begun {
    id: usize,
    end: usize,
    act: Act,
}

/// A connection that there may be, and what is under way with the answer that it has given already.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Possible {
    tcp: Tcp,
    given: Vec<(usize, Answer)>,
}

pub(crate) struct Checker {
    possible: BTreeSet<Possible>,
    begun: Vec<Begun>,
    next: usize,
    has_stopped: bool,
}

impl Checker {
    pub(crate) fn new() -> Self {
        let tcp = Tcp { answers_late: true, ..Tcp::default() };
        let first = Possible { tcp, given: Vec::new() };
        Self { possible: BTreeSet::from([first]), begun: Vec::new(), next: 0, has_stopped: false }
    }

    pub(crate) fn begin(&mut self, end: usize, act: Act) -> usize {
        self.next += 1;
        self.begun.push(Begun { id: self.next, end, act });
        self.next
    }

    /// Compares no further answer.
    pub(crate) const fn stop(&mut self) {
        self.has_stopped = true;
    }

    /// It has ended, with one of these answers.
    ///
    /// **Panics**: no TCP would have answered so.
    pub(crate) fn answered(&mut self, id: usize, answers: &[Answer]) {
        if self.has_stopped {
            return;
        }
        let mut open: Vec<Possible> = core::mem::take(&mut self.possible).into_iter().collect();
        let mut all: BTreeSet<Possible> = open.iter().cloned().collect();
        let mut left = BTreeSet::new();
        while let Some(now) = open.pop() {
            if let Some(place) = now.given.iter().position(|(of, _)| *of == id) {
                if answers.contains(&now.given[place].1) {
                    let mut now = now;
                    now.given.remove(place);
                    left.insert(now);
                }
                // What has no effect yet may have it later.
                continue;
            }
            for begun in &self.begun {
                if now.may_have(begun) {
                    let mut next = now.clone();
                    let given = next.apply(begun);
                    next.given.push((begun.id, given));
                    next.given.sort_unstable();
                    if all.insert(next.clone()) {
                        open.push(next);
                    }
                }
            }
        }
        let begun = self.begun.iter().find(|begun| begun.id == id).copied();
        assert!(!left.is_empty(), "no TCP answers so: {begun:?}: {answers:?}");
        self.begun.retain(|begun| begun.id != id);
        self.possible = left;
    }
}

impl Possible {
    fn given(&self, id: usize) -> Option<Answer> {
        self.given.iter().find(|(of, _)| *of == id).map(|(_, answer)| *answer)
    }

    /// What is under way has had no effect yet, and can have it now.
    fn may_have(&self, begun: &Begun) -> bool {
        let is_due = match begun.act {
            Act::ShutHere { of, .. } => self.given(of).is_some(),
            _ => true,
        };
        is_due && self.given(begun.id).is_none()
    }

    fn apply(&mut self, begun: &Begun) -> Answer {
        let end = begun.end;
        if let Act::ShutHere { of, reading, writing } = begun.act {
            if self.given(of) == Some(Answer::Shut(Ok(()))) {
                self.tcp.knows_shutdown(end, reading, writing);
            }
            return Answer::Done;
        }
        apply(&mut self.tcp, begun)
    }
}

fn apply(tcp: &mut Tcp, begun: &Begun) -> Answer {
    let end = begun.end;
    match begun.act {
        Act::Send(len) => Answer::Count(tcp.send(end, len)),
        Act::Receive => Answer::Count(tcp.receive(end)),
        Act::TakeError => Answer::Errno(tcp.take_error(end)),
        Act::Poll => Answer::Mask(tcp.poll(end)),
        Act::Shut { reading, writing } => Answer::Shut(tcp.begins_shutdown(end, reading, writing)),
        Act::ShutHere { .. } => unreachable!("it is for `Possible`"),
        Act::Linger(zero) => {
            tcp.ends[end].linger_zero = zero;
            Answer::Done
        }
        Act::Exit => {
            let own = &mut tcp.ends[end];
            if own.queue == 0 {
                own.late = Some(0);
            }
            Answer::Done
        }
        Act::Close => {
            tcp.close(end, false);
            Answer::Done
        }
        Act::Breaks(errno) => {
            tcp.breaks(end, errno);
            Answer::Done
        }
    }
}
