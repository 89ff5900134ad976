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
            let now = self.gateway.go_on(Some(Duration::ZERO));
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
            self.gateway.take_events(now);
            self.gateway.migrate(now);
            if self.end.is_none() && self.gateway.store(now) {
                self.end = Some(self.gateway.say_farewell(now));
            }
            self.gateway.transmit(now);
        }
    }
}

impl Service {
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
                let returned = Returned { user: EVERYBODY, session: None, arrival: None };
                tools.returns.hand_in(returned);
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
        let user = arrival.0.uid;
        let look = |(offer, _): &Arrival| offer.look();
        let (mut this, arrival, ends) = match self.ask_of(user, arrival, tools, look) {
            Asked::Answered(this, arrival, ends) => (this, arrival, ends),
            Asked::PutOff(this) => return Some(this),
            Asked::Late => return None,
        };
        let (offer, h) = arrival;
        if ends.both().is_none() {
            log::debug!("what user {user} hands over is connected no more, and H is reset");
            return Some(this);
        }
        match this.gateway.protection.judge(&offer, ends) {
            Verdict::Plain => this.gateway.begin_rendezvous((offer, ends), h, now),
            // H is reset, and N ends without a byte.
            Verdict::Refused => {}
            Verdict::Protected(setup, peer) => {
                let may_join = setup.rule().within_host == WithinHost::Memory;
                let first = may_join.then(|| this.gateway.first_end(&ends)).flatten();
                let Some(first) = first else {
                    this.gateway.begin_protected((offer, ends), h, (setup, peer), now);
                    return Some(this);
                };
                let (joined, arrival);
                (this, arrival, joined) = match this.may_join(first, (offer, h), &ends, tools) {
                    Asked::Answered(this, arrival, joined) => (this, arrival, joined),
                    Asked::PutOff(this) => return Some(this),
                    Asked::Late => return None,
                };
                let (offer, h) = arrival;
                match joined {
                    true => this.gateway.join(first, (offer, ends), h, &setup, now),
                    false => this.gateway.begin_protected((offer, ends), h, (setup, peer), now),
                }
            }
        }
        Some(this)
    }

    /// Whether the IP filter lets two ends be joined that are in this host.
    fn may_join(
        self: Box<Self>,
        first: u64,
        arrival: Arrival,
        ends: &Ends,
        tools: &Tools<'_>,
    ) -> Asked<bool> {
        let interface = self.gateway.route(ends).map_or(0, |route| route.interface);
        let user = arrival.0.uid;
        let of_second = |(offer, _): &Arrival| is_denied(&offer.connection, interface);
        let (mut this, arrival) = match self.ask_of(user, arrival, tools, of_second) {
            Asked::Answered(this, arrival, true) => return Asked::Answered(this, arrival, false),
            Asked::Answered(this, arrival, false) => (this, arrival),
            other => return other,
        };
        let owner = this.gateway.user_of(first);
        let Some(owner) = owner.filter(|owner| this.gateway.absences.may_ask(*owner)) else {
            // The next time it is there, or it is not the first end.
            return Asked::PutOff(this.put_off(owner.unwrap_or(user), arrival));
        };
        let Some(session) = this.gateway.take_out(first) else {
            return Asked::PutOff(this.put_off(owner, arrival));
        };
        let (is_denied, back) = this.ask(owner, tools, || session.is_denied_now(interface));
        match back {
            Some(mut this) => {
                this.gateway.put_in(first, session, None);
                Asked::Answered(this, arrival, !is_denied)
            }
            None => {
                let session = Some((first, session, None));
                tools.returns.hand_in(Returned { user: owner, session, arrival: Some(arrival) });
                Asked::Late
            }
        }
    }

    /// Asks N of an arrival something, if that can be now.
    fn ask_of<R>(
        self: Box<Self>,
        user: u32,
        arrival: Arrival,
        tools: &Tools<'_>,
        question: impl FnOnce(&Arrival) -> R,
    ) -> Asked<R> {
        if !self.gateway.absences.may_ask(user) {
            return Asked::PutOff(self.put_off(user, arrival));
        }
        let (answer, back) = self.ask(user, tools, || question(&arrival));
        match back {
            Some(this) => Asked::Answered(this, arrival, answer),
            None => {
                let arrival = Some(arrival);
                tools.returns.hand_in(Returned { user, session: None, arrival });
                Asked::Late
            }
        }
    }

    fn put_off(mut self: Box<Self>, user: u32, arrival: Arrival) -> Box<Self> {
        if !self.gateway.absences.put_off(user, Waiting::Arrival(Box::new(arrival))) {
            log::warn!(
                "a connection of user {user} is reset: too many wait for others of that user"
            );
        }
        self
    }
}

/// What has become of a question to the socket of an arrival.
enum Asked<R> {
    Answered(Box<Service>, Arrival, R),
    /// A thread is away for a socket of the same user.
    PutOff(Box<Service>),
    /// Another thread is the gateway now, and has the arrival.
    Late,
}

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
            let session = Some((number, session, Some(talk)));
            tools.returns.hand_in(Returned { user, session, arrival: None });
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
        for Returned { user, session, arrival } in self.returns.take() {
            for waiting in self.absences.end(user, now) {
                match waiting {
                    Waiting::Session(number) => self.ready.push_back(number),
                    Waiting::Arrival(arrival) => self.arrivals.push_back(*arrival),
                }
            }
            self.arrivals.extend(arrival);
            if let Some((number, session, talk)) = session {
                self.put_in(number, session, talk);
                self.ready.push_back(number);
            }
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
        known.talk = talk;
    }

    /// Of this user.
    pub(super) fn share(&self, user: u32) -> Share {
        self.shares.get(&user).copied().unwrap_or_default()
    }
}
