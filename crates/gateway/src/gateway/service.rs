//! The loop, and the thread that runs it: what is done with sockets that programs may keep locked is done apart from it.
//!
//! ```text
//!   sleep ──> adapters receive ──> the host's events ──> arrivals, sessions ──> adapters send ──┐
//!     └────────────────────────────── nothing more to be done <─────────────────────────────────┘
//! ```
//!
//! What comes is taken first and what is to be sent leaves last, so that an answer, its data and the
//! acknowledgement of what it answers leave together.
//!
//! Only [`Service::ask`] calls the kernel about N, and while it does the gateway is in the [`Seat`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sidestep_tls::rule::WithinHost;

use super::absences::{Arrival, EVERYBODY, Returned, Returns, Waiting};
use super::{Gateway, Share};
use crate::ends::Ends;
use crate::limits::{CHUNK, ROUND};
use crate::poller::Source;
use crate::protection::Verdict;
use crate::rivalry;
use crate::seat::{Seat, Served};
use crate::session::{Session, Talk, is_denied};
use crate::succession::Progress;
use crate::watchdog::Pulse;

/// A gateway that works.
struct Service {
    gateway: Gateway,
    /// It ends when something can be read from this.
    stop: OwnedFd,
    /// Beats in each round.
    pulse: Pulse,
    /// Is told how draining goes on.
    tell: Box<dyn FnMut(Progress) + Send>,
    /// When it ends, once that is known.
    end: Option<Duration>,
}

/// What a thread has for itself.
struct Tools<'a> {
    seat: &'a Seat<Service>,
    returns: Arc<Returns>,
    /// For bytes that are read from a socket.
    chunk: Box<[u8]>,
}

impl Gateway {
    /// Works until something can be read from `stop`, or it has been replaced and its last connection has ended,
    /// and then a moment longer, in which peers are told that it ends. What is still open then is reset. With a
    /// limit for draining it drains when something can be read, and ends when there is more. `pulse` beats in
    /// each round, and `tell` is told how draining goes on.
    ///
    /// Where the settings say that there is a store, it returns what the next gateway needs to go on with its connections
    /// ([`restore`](Self::restore)). They are reset when that is closed.
    ///
    /// # Errors
    ///
    /// The kernel does not let it wait any more, or gives no threads.
    ///
    /// # Panics
    ///
    /// A thread that runs it panics.
    pub fn run(
        self,
        stop: OwnedFd,
        pulse: Pulse,
        tell: impl FnMut(Progress) + Send + 'static,
    ) -> io::Result<Option<OwnedFd>> {
        self.poller.watch(&stop, Source::Stop)?;
        let (gateway, tell) = (self, Box::new(tell));
        Seat::run(Box::new(Service { gateway, stop, pulse, tell, end: None }))?
    }
}

impl Served for Service {
    type End = io::Result<Option<OwnedFd>>;

    fn serve(mut self: Box<Self>, seat: &Arc<Seat<Self>>) -> Option<Self::End> {
        let mut waiter = self.gateway.poller.waiter();
        let returns = Arc::clone(&self.gateway.returns);
        let mut tools = Tools { seat, returns, chunk: vec![0; CHUNK].into_boxed_slice() };
        let now = self.gateway.now();
        self.gateway.absences.begin(now);
        loop {
            // Also what the thread before this one has left in the middle of its round.
            let now = self.gateway.go_on(Some(Duration::ZERO));
            self.conclude_turns(now);
            if let Some(stored) = self.look_for_end(now) {
                return Some(Ok(stored));
            }
            let rest = self.rest();
            let sources = match waiter.wait(rest) {
                Ok(sources) => sources,
                Err(error) => return Some(Err(error.into())),
            };
            let now = self.gateway.go_on(rest);
            if sources.contains(&Source::Stop) && self.end.is_none() {
                let is_over = self.gateway.is_told_to_end(self.stop.as_fd(), now);
                self.end = is_over.then(|| self.gateway.say_farewell(now));
            }
            for source in sources {
                self.gateway.attend(source, now);
            }
            self.gateway.receive(now);
            self.gateway.pass_time(now);
            self.gateway.take_events(now);
            self = self.compare(&tools, now)?;
            self = self.begin_arrivals(&tools, now)?;
            self = self.take_turns(&mut tools, now)?;
        }
    }
}

impl Service {
    /// Tells sessions what turns have come to, and lets adapters send.
    fn conclude_turns(&mut self, now: Duration) {
        self.gateway.take_events(now);
        self.gateway.answer_questions(now);
        self.gateway.migrate(now);
        if self.end.is_none() && self.gateway.store(now) {
            self.end = Some(self.gateway.say_farewell(now));
        }
        self.gateway.transmit(now);
    }

    /// Whether it is over: then what is left for the next gateway, if there is a store.
    fn look_for_end(&mut self, now: Duration) -> Option<Option<OwnedFd>> {
        let Self { gateway, end, tell, .. } = self;
        gateway.tell_drain(&mut **tell);
        if end.is_none() && gateway.is_drained(now) {
            *end = Some(gateway.say_farewell(now));
        }
        let is_over = end.is_some_and(|end| end <= now || gateway.host.holdings().groups == 0);
        is_over.then(|| gateway.stored())
    }

    /// How long it may sleep; `None`: until something happens.
    fn rest(&mut self) -> Option<Duration> {
        // The manager waits for a word of the one that takes connections.
        let is_replaced = self.gateway.is_replaced();
        let of_pulse = if is_replaced { None } else { self.pulse.beat(Instant::now()) };
        [self.gateway.rest(self.end), of_pulse].into_iter().flatten().min()
    }

    /// Asks a socket of this user something, which may take as long as a program of that user likes. Returns what it says; `None`
    /// beside it: meanwhile another thread has gone on as the gateway, and this one hands in what it has.
    fn ask<R>(
        mut self: Box<Self>,
        user: u32,
        tools: &Tools<'_>,
        call: impl FnOnce() -> R,
    ) -> (R, Option<Box<Self>>) {
        let now = self.gateway.now();
        let is_urgent = self.gateway.absences.ask(user, now);
        let (answer, mut back) = tools.seat.leave(self, is_urgent, call);
        if let Some(this) = &mut back {
            this.gateway.absences.is_answered();
        }
        (answer, back)
    }

    /// Asks the kernel what SMC-R and TCP carry, where the two are compared. It asks the sockets of all users.
    fn compare(mut self: Box<Self>, tools: &Tools<'_>, now: Duration) -> Option<Box<Self>> {
        if self.gateway.rivalry.poll_timeout().is_none_or(|due| due > now) {
            return Some(self);
        }
        let mut seen = Ok(Vec::new());
        if self.gateway.absences.may_ask(EVERYBODY) {
            let (answer, back) = self.ask(EVERYBODY, tools, rivalry::look);
            let Some(this) = back else {
                tools.returns.hand_in(EVERYBODY, vec![Returned::Sights(answer)]);
                return None;
            };
            (self, seen) = (this, answer);
        }
        self.gateway.handle_comparison(seen, now);
        Some(self)
    }
}

// ---- arrivals -----------------------------------------------------------------------------------

impl Service {
    fn begin_arrivals(mut self: Box<Self>, tools: &Tools<'_>, now: Duration) -> Option<Box<Self>> {
        for _ in 0..self.gateway.arrivals.len() {
            let Some(arrival) = self.gateway.arrivals.pop_front() else { break };
            self = self.begin(arrival, tools, now)?;
        }
        Some(self)
    }

    /// Begins what was handed over.
    fn begin(
        self: Box<Self>,
        arrival: Arrival,
        tools: &Tools<'_>,
        now: Duration,
    ) -> Option<Box<Self>> {
        match self.try_begin(arrival, tools, now) {
            Ok(this) => Some(this),
            Err(NotNow(this)) => this,
        }
    }

    fn try_begin(
        self: Box<Self>,
        arrival: Arrival,
        tools: &Tools<'_>,
        now: Duration,
    ) -> Result<Box<Self>, NotNow> {
        let (mut this, arrival) = match arrival.ends {
            Some(_) => (self, arrival),
            None => self.ask_of(arrival, tools, |it| it.ends = Some(it.offer.look()))?,
        };
        let Some(ends) = arrival.ends.filter(|ends| ends.both().is_some()) else {
            log::debug!("what is handed over is connected no more, and H is reset");
            return Ok(this);
        };
        match this.gateway.protection.judge(&arrival.offer, ends) {
            Verdict::Plain => {
                this.gateway.begin_rendezvous((arrival.offer, ends), arrival.h, None, now);
                Ok(this)
            }
            // With another host; so it has no other end here.
            Verdict::Protected(setup, peer) if arrival.offer.is_agreed => {
                let (of, protection) = ((arrival.offer, ends), Some((setup, peer)));
                this.gateway.begin_rendezvous(of, arrival.h, protection, now);
                Ok(this)
            }
            // H is reset, and N ends without a byte.
            Verdict::Refused => Ok(this),
            Verdict::Protected(setup, peer) => {
                let may_join = setup.rule().within_host == WithinHost::Memory;
                let first = may_join.then(|| this.gateway.first_end(&ends)).flatten();
                let (mut this, arrival, first) = match first {
                    Some(first) => this.join_with(first, arrival, &ends, tools)?,
                    None => (this, arrival, None),
                };
                let (of, h) = ((arrival.offer, ends), arrival.h);
                match first {
                    Some(first) => this.gateway.join(first, of, h, &setup, now),
                    None => this.gateway.begin_protected(of, h, (setup, peer), now),
                }
                Ok(this)
            }
        }
    }

    /// The session that is to be joined with this end of the same connection, unless the IP filter denies one of the two.
    fn join_with(
        self: Box<Self>,
        first: u64,
        arrival: Arrival,
        ends: &Ends,
        tools: &Tools<'_>,
    ) -> Result<(Box<Self>, Arrival, Option<u64>), NotNow> {
        let interface = self.gateway.route(ends).map_or(0, |route| route.interface);
        let (mut this, mut arrival) = match arrival.is_denied {
            Some(_) => (self, arrival),
            None => self.ask_of(arrival, tools, |it| {
                it.is_denied = Some(is_denied(&it.offer.connection, interface));
            })?,
        };
        let is_asked = arrival.other_is_denied.is_some_and(|(number, _)| number == first);
        if !is_asked && arrival.is_denied == Some(false) {
            (this, arrival) = this.ask_first(first, arrival, interface, tools)?;
        }
        let is_admitted =
            arrival.is_denied == Some(false) && arrival.other_is_denied == Some((first, false));
        Ok((this, arrival, is_admitted.then_some(first)))
    }

    /// Asks the IP filter about the N of a session, which may be another user's.
    fn ask_first(
        mut self: Box<Self>,
        first: u64,
        mut arrival: Arrival,
        interface: u32,
        tools: &Tools<'_>,
    ) -> Result<(Box<Self>, Arrival), NotNow> {
        let owner = self.gateway.user_of(first).unwrap_or(arrival.offer.uid);
        let session = match self.gateway.absences.may_ask(owner) {
            true => self.gateway.take_out(first),
            false => None,
        };
        // A thread is away with it. The next time it is there, or it is not the first end.
        let Some(session) = session else { return Err(self.put_off(owner, arrival)) };
        let (is_denied, back) = self.ask(owner, tools, || session.is_denied_now(interface));
        arrival.other_is_denied = Some((first, is_denied));
        match back {
            Some(mut this) => {
                this.gateway.put_in(first, session, None);
                Ok((this, arrival))
            }
            None => {
                let session = Returned::Session(first, session, None);
                let arrival = Returned::Arrival(Box::new(arrival));
                tools.returns.hand_in(owner, vec![session, arrival]);
                Err(NotNow(None))
            }
        }
    }

    /// Asks N of an arrival something, if that can be now.
    fn ask_of(
        self: Box<Self>,
        mut arrival: Arrival,
        tools: &Tools<'_>,
        question: impl FnOnce(&mut Arrival),
    ) -> Result<(Box<Self>, Arrival), NotNow> {
        let user = arrival.offer.uid;
        if !self.gateway.absences.may_ask(user) {
            return Err(self.put_off(user, arrival));
        }
        let ((), back) = self.ask(user, tools, || question(&mut arrival));
        match back {
            Some(this) => Ok((this, arrival)),
            None => {
                tools.returns.hand_in(user, vec![Returned::Arrival(Box::new(arrival))]);
                Err(NotNow(None))
            }
        }
    }

    fn put_off(mut self: Box<Self>, user: u32, arrival: Arrival) -> NotNow {
        if !self.gateway.absences.put_off(user, Waiting::Arrival(Box::new(arrival))) {
            log::warn!(
                "a connection of user {user} is reset: too many wait for others of that user"
            );
        }
        NotNow(Some(self))
    }
}

/// An arrival goes on later: it is put off, or else another thread is the gateway now, and will have it.
struct NotNow(Option<Box<Service>>);

// ---- sessions -----------------------------------------------------------------------------------

impl Service {
    /// Gives each session that may do something its turn, and breaks off when that takes so long
    /// that acknowledgements would be late: those behind are the first of the next round.
    fn take_turns(mut self: Box<Self>, tools: &mut Tools<'_>, now: Duration) -> Option<Box<Self>> {
        let end = self.gateway.now() + ROUND;
        for _ in 0..self.gateway.ready.len() {
            if self.gateway.now() > end {
                break;
            }
            let Some(number) = self.gateway.ready.pop_front() else { break };
            self = self.take_turn(number, tools, now)?;
        }
        Some(self)
    }

    fn take_turn(
        mut self: Box<Self>,
        number: u64,
        tools: &mut Tools<'_>,
        now: Duration,
    ) -> Option<Box<Self>> {
        let Some(user) = self.gateway.talks_to(number) else {
            self.gateway.advance(number, &mut tools.chunk, now);
            return Some(self);
        };
        if !self.gateway.absences.may_ask(user) {
            self.gateway.absences.put_off(user, Waiting::Session(number));
            return Some(self);
        }
        let Some(mut session) = self.gateway.take_out(number) else { return Some(self) };
        let mut chunk = std::mem::take(&mut tools.chunk);
        let (talk, back) = self.ask(user, tools, || session.talk(&mut chunk, now));
        tools.chunk = chunk;
        let Some(mut this) = back else {
            let session = Returned::Session(number, session, Some(talk));
            tools.returns.hand_in(user, vec![session]);
            return None;
        };
        this.gateway.put_in(number, session, Some(talk));
        this.gateway.advance(number, &mut tools.chunk, now);
        Some(this)
    }
}

impl Gateway {
    /// Takes what threads hand in that were late.
    pub(super) fn take_returns(&mut self, now: Duration) {
        for (user, returned) in self.returns.take() {
            for waiting in self.absences.end(user, now) {
                match waiting {
                    Waiting::Session(number) => self.ready.push_back(number),
                    Waiting::Arrival(arrival) => self.arrivals.push_back(*arrival),
                }
            }
            returned.into_iter().for_each(|it| self.take_return(it, now));
        }
    }

    fn take_return(&mut self, returned: Returned, now: Duration) {
        match returned {
            Returned::Session(number, session, talk) => {
                self.put_in(number, session, talk);
                self.ready.push_back(number);
            }
            Returned::Arrival(arrival) => self.arrivals.push_back(*arrival),
            Returned::Sights(seen) => self.handle_comparison(seen, now),
        }
    }

    /// Whose socket a session asks next; `None`: none.
    fn talks_to(&self, number: u64) -> Option<u32> {
        let known = self.sessions.get(&number)?;
        // It has talked, and that is not heeded yet.
        if known.talk.is_some() { None } else { known.session.as_ref()?.talks_to() }
    }

    fn user_of(&self, number: u64) -> Option<u32> {
        self.sessions.get(&number)?.session.as_deref().map(Session::uid)
    }

    /// A session is to do something apart from the loop.
    fn take_out(&mut self, number: u64) -> Option<Box<Session>> {
        self.sessions.get_mut(&number)?.session.take()
    }

    /// It is back, has talked perhaps, and hears what it has missed.
    fn put_in(&mut self, number: u64, mut session: Box<Session>, talk: Option<Talk>) {
        let Some(known) = self.sessions.get_mut(&number) else { return };
        for (word, now) in std::mem::take(&mut known.missed) {
            session.hear(word, now, &mut self.protection);
        }
        known.session = Some(session);
        known.talk = talk.or(known.talk.take());
    }

    /// Of this user.
    pub(super) fn share(&self, user: u32) -> Share {
        self.shares.get(&user).copied().unwrap_or_default()
    }
}
