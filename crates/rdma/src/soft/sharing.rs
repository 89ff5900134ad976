//! Several processes of one host at one address: who gets a datagram.
//!
//! All of them have a socket at port 4791 (`SO_REUSEPORT`); the kernel keeps these sockets in a
//! list, and a [program] of ours chooses one for each datagram. Each process has a *slot*, the low
//! bits of all its QPNs, so the destination of a packet tells whose it is.
//!
//! ```text
//!   QPN ── low bits ──> slot ── program ──> place in the kernel's list ──> socket
//! ```
//!
//! A slot stays; a place does not. When a socket is closed, the kernel moves the last one of its list
//! to the free place, and tells nobody. One could keep a list of one's own and move its entries
//! alike; but two processes that end together leave two different lists, depending on who was
//! first, and nobody knows it. So here nothing is reckoned, and the kernel is asked: the program
//! lets a *question* through to whatever place it names, and a process that hears a question of its
//! own knows where it is. It [tells](registry) the others by a name, and attaches the program anew.
//!
//! * **Who asks.** Everybody: when joining, when something was handed over, when a peer does not
//!   answer, and each second.
//! * **Who attaches last is right**: one reads all places, attaches, and reads again until nothing
//!   has changed. Whoever changes a place afterwards attaches himself.
//! * **Until then nothing is answered wrongly.** A datagram for another slot is never looked at, but
//!   [handed over](hand_over) to the process that has that slot; if there is none, it is
//!   dropped in silence, and the peer gives up by itself. What is lost on the way was lost as on any
//!   network, and comes again: at the latest after our next question, which is a second, while
//!   peers have patience for five. So a process that sleeps or hangs breaks no connection but its
//!   own. This also holds where the kernel has joined datagrams for two
//!   processes that came from one port.
//! * **The least place counts.** The kernel lets a question for a place that does not exist pass to
//!   anybody, who may be the asker. But those that exist come before it.
//!
//! A group has members of one user only: the kernel keeps others out, and hand-overs ask. With a
//! device it cannot be shared, because questions take the way of the loopback interface. What is not
//! shared is a process's knowledge: tombstones end with it.
//!
//! *Source*: Linux `net/core/sock_reuseport.c`; measured on 6.12 and 6.18.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

use sidestep_wire::QpNumber;

use super::adapter::Datagram;
use super::port::batch::Inbox;
use super::port::{OpenError, Port};
use super::sys::{self, SocketName};

mod hand_over;
mod program;
mod registry;

/// The bits of a QPN that are its process's.
const SLOT_MASK: u8 = 0x7F;

/// The low bits of all QPNs of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(
    /// `<= 127`
    u8,
);

impl Slot {
    /// The slot with this number; `None` above 127.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number <= SLOT_MASK { Some(Self(number)) } else { None }
    }

    /// The one that a QP belongs to.
    #[must_use]
    pub const fn of(qp: QpNumber) -> Self {
        let [_, _, low] = qp.0;
        Self(low & SLOT_MASK)
    }

    /// A QPN like this one, but of this slot.
    #[must_use]
    pub const fn apply(self, QpNumber([high, middle, low]): QpNumber) -> QpNumber {
        QpNumber([high, middle, low & !SLOT_MASK | self.0])
    }
}

/// Whether a number is none of a QP, but asks for a place.
#[must_use]
pub(super) const fn is_question(qp: QpNumber) -> bool {
    matches!(qp.0, [0xFF, 0xFF, _])
}

/// Where the socket of each slot is in the kernel's list.
type Places = BTreeMap<Slot, u8>;

/// Between two questions without a reason.
const QUESTION_INTERVAL: Duration = Duration::from_secs(1);
/// Between two questions that have one.
const HASTE: Duration = Duration::from_millis(20);
/// How often, and how long each time, a new member waits for its own question.
const JOIN_TRIES: u32 = 20;
const JOIN_WAIT: Duration = Duration::from_millis(5);
/// Those who hand over to us at once; others wait in the queue.
const VISITORS_MAX: usize = 32;
/// Places are read so often until nothing changes. Somebody who changes one attaches himself.
const SETTLE_TRIES: u32 = 8;

/// What a question looks like: a BTH that no QP would take, and behind it something that only
/// the asker knows.
const QUESTION_LEN: usize = 24;
const NONCE_AT: usize = 16;
const QPN_AT: usize = 5;

/// This process among those who share an address.
#[derive(Debug)]
pub(super) struct Membership {
    address: IpAddr,
    slot: Slot,
    /// Where others hand over.
    listener: OwnedFd,
    /// Those who do.
    visitors: Vec<OwnedFd>,
    /// The slot that the last datagram was handed over to, and the way, if somebody has it.
    way: Option<(Slot, Option<OwnedFd>)>,
    /// Where our socket is.
    place: Option<u8>,
    /// Tells all others.
    told: Option<OwnedFd>,
    question: Question,
}

#[derive(Debug)]
struct Question {
    nonce: u64,
    /// The least place from which it came back.
    answer: Option<u8>,
    /// When it was asked, and when it is to be asked again.
    asked: Duration,
    next: Duration,
}

impl Membership {
    /// Joins those who share the address of a port, which was opened to be shared.
    pub(super) fn join(port: &Port) -> Result<Self, OpenError> {
        let address = port.address();
        let mut this = Self::take_slot(address)?;
        this.find_place(port).map_err(|error| OpenError::new(address, error))?;
        if this.place.is_none() {
            return Err(OpenError::NoPlace(address));
        }
        Ok(this)
    }

    fn take_slot(address: IpAddr) -> Result<Self, OpenError> {
        for slot in (0..=SLOT_MASK).map(Slot) {
            let taken = registry::take(address, slot);
            if let Some(listener) = taken.map_err(|error| OpenError::new(address, error))? {
                let never = Duration::ZERO;
                let question = Question { nonce: 0, answer: None, asked: never, next: never };
                return Ok(Self {
                    address,
                    slot,
                    listener,
                    visitors: Vec::new(),
                    way: None,
                    place: None,
                    told: None,
                    question,
                });
            }
        }
        Err(OpenError::NoPlace(address))
    }

    /// Asks until the question is heard. Nothing else that comes meanwhile is for us: no QP has our
    /// slot yet.
    fn find_place(&mut self, port: &Port) -> io::Result<()> {
        let mut inbox = Inbox::default();
        self.settle(port)?;
        for _ in 0..JOIN_TRIES {
            self.ask(port, Duration::ZERO)?;
            let _ = inbox.receive(port.receiver());
            for datagram in inbox.datagrams() {
                self.hear(&datagram);
            }
            if self.question.answer.is_some() {
                return self.move_to_answer(port);
            }
            thread::sleep(JOIN_WAIT);
        }
        Ok(())
    }

    /// The slot of this process.
    pub(super) const fn slot(&self) -> Slot {
        self.slot
    }

    /// Readable when something is handed over.
    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// A datagram has come by the port. True: it is for this process's QPs.
    pub(super) fn is_ours(&mut self, datagram: &Datagram<'_>) -> bool {
        let Some(qp) = destination(datagram.bytes) else { return true };
        if is_question(qp) {
            self.hear(datagram);
            return false;
        }
        let slot = Slot::of(qp);
        if slot != self.slot {
            self.hand_over(slot, datagram);
        }
        slot == self.slot
    }

    fn hand_over(&mut self, slot: Slot, datagram: &Datagram<'_>) {
        if self.way.as_ref().is_none_or(|(to, _)| *to != slot) {
            let way = hand_over::visit(&registry::name(self.address, slot));
            self.way = Some((slot, way.ok()));
        }
        // If nobody is there, or he is slow, it is lost, and comes again.
        if let Some((_, way)) = &mut self.way {
            way.take_if(|way| hand_over::give(way, datagram).is_err());
        }
    }

    /// Takes what was handed over. What is not for us stays untouched: nobody hands over twice.
    pub(super) fn take_handed_over(
        &mut self,
        epoll: BorrowedFd<'_>,
        now: Duration,
        mut on_datagram: impl FnMut(Datagram<'_>),
    ) {
        self.way = None;
        while self.visitors.len() < VISITORS_MAX {
            match hand_over::welcome(&self.listener) {
                Ok(visitor) => {
                    // Unwatched, it is heard with the next datagram.
                    let _ = sys::watch(epoll, visitor.as_fd(), libc::EPOLLIN);
                    self.visitors.push(visitor);
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(_) => break,
            }
        }
        let (own, mut came) = (self.slot, false);
        self.visitors.retain(|visitor| {
            hand_over::take(visitor, |datagram| {
                came = true;
                if destination(datagram.bytes).is_some_and(|qp| Slot::of(qp) == own) {
                    on_datagram(datagram);
                }
            })
        });
        if came {
            self.hasten(now);
        }
    }

    /// There is a reason to ask: something was handed over, or a peer is silent.
    pub(super) fn hasten(&mut self, now: Duration) {
        let soon = (self.question.asked + HASTE).max(now);
        self.question.next = self.question.next.min(soon);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    pub(super) const fn poll_timeout(&self) -> Duration {
        self.question.next
    }

    /// Looks whether the answer to the last question has changed anything, and asks the next one.
    pub(super) fn handle_timeout(&mut self, port: &Port, now: Duration) -> io::Result<()> {
        self.move_to_answer(port)?;
        if now < self.question.next {
            return Ok(());
        }
        let is_lost = self.question.answer.is_none();
        self.question.next = now + if is_lost { HASTE } else { QUESTION_INTERVAL };
        if is_lost {
            // Perhaps somebody else's program is attached.
            self.settle(port)?;
        }
        self.ask(port, now)
    }

    /// Asks for all places up to ours, or for all if the last question was not heard.
    fn ask(&mut self, port: &Port, now: Duration) -> io::Result<()> {
        let last = match (self.place, self.question.answer) {
            (Some(place), Some(_)) => place,
            _ => SLOT_MASK,
        };
        self.question.nonce = rand::random();
        self.question.answer = None;
        self.question.asked = now;
        let mut bytes = [0; QUESTION_LEN];
        bytes[NONCE_AT..].copy_from_slice(&self.question.nonce.to_ne_bytes());
        let to = SocketName::new(SocketAddr::new(self.address, sidestep_wire::roce::PORT));
        for place in 0..=last {
            let number = program::FIRST_QUESTION | u32::from(place);
            bytes[QPN_AT - 1..][..4].copy_from_slice(&number.to_be_bytes());
            sys::send_to(port.sender(), &bytes, &to)?;
        }
        Ok(())
    }

    fn hear(&mut self, datagram: &Datagram<'_>) {
        let is_own = datagram.from == self.address
            && datagram.bytes.get(NONCE_AT..) == Some(&self.question.nonce.to_ne_bytes());
        if let (true, Some(QpNumber([_, _, place]))) = (is_own, destination(datagram.bytes)) {
            let least = self.question.answer.map_or(place, |answer| answer.min(place));
            self.question.answer = Some(least);
        }
    }

    /// Tells all where our socket is, if it is not where it was.
    fn move_to_answer(&mut self, port: &Port) -> io::Result<()> {
        let answer = self.question.answer;
        if answer.is_none() || answer == self.place {
            return Ok(());
        }
        self.place = answer;
        self.told = None;
        // If a stranger has that name, others hand over what is for us.
        self.told = answer.and_then(|place| registry::tell(self.address, self.slot, place).ok());
        self.settle(port)
    }

    /// Attaches the program for all places that are told.
    fn settle(&self, port: &Port) -> io::Result<()> {
        let mut places = registry::places(self.address)?;
        for _ in 0..SETTLE_TRIES {
            let own = self.place.map(|place| (self.slot, place));
            places.extend(own);
            sys::attach_chooser(port.receiver(), &program::choosing(&places))?;
            let told = registry::places(self.address)?;
            if told == places {
                break;
            }
            places = told;
        }
        Ok(())
    }
}

fn destination(datagram: &[u8]) -> Option<QpNumber> {
    Some(QpNumber(*datagram.get(QPN_AT..)?.first_chunk()?))
}
