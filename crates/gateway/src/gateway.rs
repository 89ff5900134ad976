//! The gateway: what it has, what has happened to it, and what it does then. One thread at a time runs it, in a loop
//! ([`service`]).

mod absences;
mod drain;
mod migrate;
mod roster;
mod service;
mod store;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::mem;
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use sidestep_engine::{AdapterView, Clock, Event, Host, LinkView};
use sidestep_proto::link_group::{ADAPTERS_MAX, AdapterId};
use sidestep_proto::rendezvous::hosts::{self, Exchange, LocalHost, Roce, Route, Versions};
use sidestep_rdma::device::{Driven, Kind};
use sidestep_rdma::soft::Succession;
use sidestep_tls::{Peer, Setup};
use sidestep_wire::clc::Hostname;
use sidestep_wire::hand_over::Message;
use sidestep_wire::host_control::Side;
use sidestep_wire::protection_status::ProtectionStatus;
use sidestep_wire::{AlertToken, Diagnosis, PeerId};

use crate::adapters::{Hardware, Health, Place, Wanted, gid_of};
use crate::control::{ControlSocket, Offer, Request};
use crate::ends::Ends;
use crate::error::OpenError;
use crate::handshakes::Handshakes;
use crate::interfaces::{self, Changes, Interface};
use crate::ipsec::{Blind, Policies};
use crate::lessons::Lessons;
use crate::limits::{
    AT_ONCE, BUFFERS_OF_USER_MAX, FAREWELL, HANDSHAKES_OF_USER_MAX, JUDGE_PATIENCE, KEEPALIVE,
    QUESTION_PATIENCE, REFUSALS_OF_USER_MAX, SESSIONS_MAX, SESSIONS_OF_USER_MAX,
};
use crate::listener::Listener;
use crate::migration;
use crate::nic::Nic;
use crate::poller::{Poller, Source};
use crate::protection::Protection;
use crate::rivalry::{Rivalry, Sight};
use crate::session::{End, Fate, OtherEnd, Session, Talk, Word, World};
use crate::settings::Settings;
use crate::status::{self, Cpu, Status, Totals, say};
use crate::succession::{Drain, Estate, Predecessor, Storing};
use absences::{Absences, Arrival, Returns};

/// A session, and what the loop has noted of it.
#[derive(Debug)]
struct Known {
    /// `None`: a thread is away with it.
    session: Option<Box<Session>>,
    /// What the session was told meanwhile, and when.
    missed: Vec<(Word, Duration)>,
    /// What it has done apart from the loop, to be heeded.
    talk: Option<Talk>,
    /// It is among those that may do something.
    is_ready: bool,
    /// It is to be so again after this turn, because something has happened since that began.
    is_called: bool,
    /// Its place among the deadlines.
    due: Option<Duration>,
}

impl Known {
    /// Tells it something, at once or when it is back.
    fn tell(&mut self, word: Word, now: Duration, protection: &mut Protection) {
        match &mut self.session {
            Some(session) => session.hear(word, now, protection),
            None if self.missed.iter().any(|(missed, _)| word.says_no_more_than(missed)) => {}
            None => self.missed.push((word, now)),
        }
    }
}

/// Connections that are judged anew, because the IP filter has other rules.
#[derive(Debug)]
struct Judging {
    /// Who waits for the answer, at the control socket.
    line: u64,
    left: BTreeSet<u64>,
    denied: u32,
    until: Duration,
}

/// A program asks about TLS on a connection of which nothing can be told yet.
#[derive(Debug)]
struct Question {
    /// Who waits for the answer, at the control socket.
    line: u64,
    /// The program's, of H.
    port: u16,
    /// Whose connection it has to be; `None`: anybody's.
    user: Option<u32>,
    until: Duration,
}

/// What a user has.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    sessions: usize,
    /// Bytes.
    buffers: usize,
}

/// What there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Enough,
    /// The connection stays TCP.
    ToDecline,
    /// Not even for that.
    None,
}

impl Share {
    /// Beside these, where there are so many of all users.
    fn room_for(self, session: &Session, of_all: usize) -> Room {
        let buffers = self.buffers + session.buffers();
        let has_room = self.sessions < SESSIONS_OF_USER_MAX && of_all < SESSIONS_MAX;
        match has_room && buffers <= BUFFERS_OF_USER_MAX {
            true => Room::Enough,
            false if self.sessions < SESSIONS_OF_USER_MAX + REFUSALS_OF_USER_MAX => Room::ToDecline,
            false => Room::None,
        }
    }
}

/// The gateway of a network namespace.
#[derive(Debug)]
pub struct Gateway {
    begin: Instant,
    /// In which it all takes place: its own pauses do not count.
    clock: Clock,
    settings: Settings,
    poller: Poller,
    changes: Changes,
    interfaces: Vec<Interface>,
    control: ControlSocket,
    /// `None`: another process has it.
    listener: Option<Listener>,
    lessons: Lessons,
    /// Of IPsec.
    policies: Policies,
    /// SMC-R and TCP side by side.
    rivalry: Rivalry,
    /// What has become of its connections.
    totals: Totals,
    /// TLS.
    protection: Protection,
    host: Host<Nic>,
    /// The adapters that it is to have, the preferred first.
    wanted: Vec<Wanted>,
    /// Those that it has, in that order.
    places: Vec<Place>,
    /// The RDMA devices of the kernel, when they were looked at last.
    devices: Vec<String>,
    /// When adapters that are not there are looked for.
    search: Option<Duration>,
    /// What CLC tells of us, as of now.
    local: Arc<LocalHost>,
    sessions: HashMap<u64, Known>,
    last_session: u64,
    /// What users have.
    shares: HashMap<u32, Share>,
    /// Sessions by the host's name for them.
    owners: HashMap<AlertToken, u64>,
    /// H of sessions that were reset while an adapter might read its ring.
    lingering: HashMap<AlertToken, TcpStream>,
    /// What was handed over and is no session yet.
    arrivals: VecDeque<Arrival>,
    /// Sessions that may do something.
    ready: VecDeque<u64>,
    deadlines: BTreeSet<(Duration, u64)>,
    /// Threads that sockets of programs keep from their work.
    absences: Absences,
    returns: Arc<Returns>,
    judgings: Vec<Judging>,
    questions: Vec<Question>,
    /// The gateways before this one that drain, the latest first.
    predecessors: Vec<Predecessor>,
    /// What it has given away, and no adapter of ours has yet.
    successions: HashMap<IpAddr, Succession>,
    drain: Option<Drain>,
    storing: Option<Storing>,
}

/// Where a gateway has its names from.
enum Origin {
    /// They are free.
    Free,
    /// From the gateway that is there, if there is one.
    Live,
    /// From one that has ended.
    Stored(OwnedFd),
}

// ---- beginning ----------------------------------------------------------------------------------

impl Gateway {
    /// Listens, and opens the adapters that are there.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(settings: Settings) -> Result<Self, OpenError> {
        Self::prepare(settings, Origin::Free)
    }

    /// The same in the place of the gateway that is there, if there is one: that goes on with the connections it
    /// has, and takes no more.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn replace(settings: Settings) -> Result<Self, OpenError> {
        Self::prepare(settings, Origin::Live)
    }

    /// The same with what a gateway has left that has ended: [`run`](Self::run) of that one has returned it.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn restore(settings: Settings, stored: OwnedFd) -> Result<Self, OpenError> {
        Self::prepare(settings, Origin::Stored(stored))
    }

    fn prepare(settings: Settings, origin: Origin) -> Result<Self, OpenError> {
        if settings.adapters.len() > ADAPTERS_MAX {
            return Err(OpenError::TooMany(settings.adapters.len()));
        }
        let changes = Changes::listen().map_err(OpenError::kernel("rtnetlink"))?;
        let interfaces = interfaces::read().map_err(OpenError::kernel("rtnetlink"))?;
        Hardware::find().report_unusable();
        let peer_id = peer_id(&interfaces);
        let poller = Poller::new().map_err(OpenError::kernel("epoll"))?;
        poller.watch(&changes, Source::Interfaces).map_err(OpenError::kernel("epoll"))?;
        let policies = listen_for_policies(&poller)?;
        let handshakes = Handshakes::begin(!settings.rules.is_empty())
            .map_err(OpenError::kernel("threads for handshakes"))?;
        poller.watch(&handshakes, Source::Handshakes).map_err(OpenError::kernel("epoll"))?;
        let protection = Protection::new(settings.rules.clone(), handshakes);
        let returns = Returns::new().map_err(OpenError::kernel("eventfd"))?;
        poller.watch(&returns, Source::Returns).map_err(OpenError::kernel("epoll"))?;
        let returns = Arc::new(returns);
        // Last: from then on the one before takes no new connections.
        let Reception { control, listener, lessons, predecessors, successions } =
            Reception::open(origin, &poller)?;
        let keepalive = Some(KEEPALIVE);
        let mut this = Self {
            begin: Instant::now(),
            clock: Clock::default(),
            local: Arc::new(local_host(peer_id, &settings)),
            wanted: settings.adapters.iter().cloned().map(Wanted::from).collect(),
            settings,
            poller,
            changes,
            interfaces,
            control,
            listener: Some(listener),
            lessons,
            policies,
            rivalry: Rivalry::default(),
            totals: Totals::default(),
            protection,
            host: Host::new(sidestep_engine::Settings { keepalive }, rand::make_rng()),
            places: Vec::new(),
            devices: Vec::new(),
            search: None,
            sessions: HashMap::new(),
            last_session: 0,
            shares: HashMap::new(),
            owners: HashMap::new(),
            lingering: HashMap::new(),
            arrivals: VecDeque::new(),
            ready: VecDeque::new(),
            deadlines: BTreeSet::new(),
            absences: Absences::default(),
            returns,
            judgings: Vec::new(),
            questions: Vec::new(),
            predecessors,
            successions,
            drain: None,
            storing: None,
        };
        this.find_adapters(this.now());
        // Without an adapter here, the one before receives by itself.
        this.successions.clear();
        if let Some(latest) = this.predecessors.first().filter(|latest| latest.hears) {
            // One that does not want to know has ended, or drains.
            let _ = say(latest.line.as_fd(), Message::Admits(migration::version()), &[]);
        }
        Ok(this)
    }
}

/// Where programs come to, and what is left of the gateway before.
struct Reception {
    control: ControlSocket,
    listener: Listener,
    lessons: Lessons,
    predecessors: Vec<Predecessor>,
    successions: HashMap<IpAddr, Succession>,
}

impl Reception {
    fn open(origin: Origin, poller: &Poller) -> Result<Self, OpenError> {
        let estate = match origin {
            Origin::Free => None,
            Origin::Live => Estate::claim()?,
            Origin::Stored(line) => Estate::inherit(line)
                .inspect_err(|error| log::warn!("what was left by a gateway is reset: {error}"))
                .ok(),
        };
        match estate {
            Some(estate) => Self::take_over(estate, poller).map_err(OpenError::kernel("epoll")),
            None => Self::open_anew(poller),
        }
    }

    fn open_anew(poller: &Poller) -> Result<Self, OpenError> {
        let listener = Listener::open(poller).map_err(OpenError::kernel("127.0.0.1"))?;
        let control =
            ControlSocket::open(listener.port(), poller).map_err(|error| match error.kind() {
                io::ErrorKind::AddrInUse => OpenError::InUse,
                _ => OpenError::Kernel { what: "the abstract name of the gateway", error },
            })?;
        let lessons = Lessons::new().map_err(OpenError::kernel("a memory file"))?;
        let (predecessors, successions) = (Vec::new(), HashMap::new());
        Ok(Self { control, listener, lessons, predecessors, successions })
    }

    fn take_over(estate: Estate, poller: &Poller) -> io::Result<Self> {
        let Estate {
            predecessors,
            control,
            listener,
            lessons,
            successions,
            lines,
            callers,
            offers,
        } = estate;
        for (nth, predecessor) in predecessors.iter().enumerate() {
            let now = if predecessor.hears { "drains" } else { "has ended" };
            log::info!("process {} was the gateway, and {now}", predecessor.process);
            match nth {
                0 => poller.watch(predecessor, Source::Predecessor)?,
                // It speaks to the one before this.
                _ => poller.watch_end(predecessor, Source::Predecessor)?,
            }
        }
        let listener = Listener::take_over(listener, callers, offers, poller)?;
        let control = ControlSocket::take_over(control, lines, listener.port(), poller)?;
        Ok(Self { control, listener, lessons, predecessors, successions })
    }
}

/// Who may not look at policies is told so, and goes on.
fn listen_for_policies(poller: &Poller) -> Result<Policies, OpenError> {
    let (policies, blind) = Policies::listen();
    match blind {
        None | Some(Blind::None) => {}
        Some(blind) => log::warn!("{blind}"),
    }
    if let Some(changes) = policies.changes() {
        poller.watch(changes, Source::Policies).map_err(OpenError::kernel("epoll"))?;
    }
    Ok(policies)
}

/// Two bytes of our own choice, by which a gateway that was started anew is another one, and the MAC address
/// of an interface: the first one that has a MAC address. Without any, no adapter will ever be told of.
fn peer_id(interfaces: &[Interface]) -> PeerId {
    let [instance_high, instance_low] = rand::random::<u16>().to_be_bytes();
    let macs = interfaces.iter().map(|it| it.mac.0);
    let [a, b, c, d, e, f] = macs.into_iter().find(|mac| *mac != [0; 6]).unwrap_or_default();
    PeerId([instance_high, instance_low, a, b, c, d, e, f])
}

fn local_host(peer_id: PeerId, settings: &Settings) -> LocalHost {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    LocalHost {
        peer_id,
        hostname: Hostname::new(name.trim().as_bytes()),
        ueids: settings.ueids.clone(),
        adapters: ArrayVec::new(),
        versions: Versions { v1: true, v2: true },
        max_conns: u8::MAX,
        max_links: 2,
    }
}

// ---- the loop -----------------------------------------------------------------------------------

impl Gateway {
    /// Whether it is to end now. The first time, it drains if there is a limit for that, or begins to store.
    fn is_told_to_end(&mut self, stop: BorrowedFd<'_>, now: Duration) -> bool {
        // One byte for each signal; which have come together count once. So does the end of all, which can be read for ever.
        if rustix::io::read(stop, &mut [0; 16]) == Ok(0) {
            self.poller.forget(stop);
        }
        if self.drain.is_some() || self.storing.is_some() {
            return true;
        }
        if let Some(limit) = self.settings.drain_limit {
            self.begin_drain(Some(now + limit), None);
            self.plan_search(now);
            return false;
        }
        !(self.settings.has_store && self.begin_storing(now))
    }

    /// Tells peers that it ends. Returns when it ends, whether or not they have heard.
    fn say_farewell(&mut self, now: Duration) -> Duration {
        self.host.end(true, now);
        now + FAREWELL
    }

    /// It has wanted to wait for so long at most, and goes on.
    fn go_on(&mut self, wanted: Option<Duration>) -> Duration {
        self.clock.go_on(self.begin.elapsed(), wanted)
    }

    fn now(&self) -> Duration {
        self.clock.at(self.begin.elapsed())
    }

    /// How long it may sleep; `None`: until something happens.
    fn rest(&mut self, end: Option<Duration>) -> Option<Duration> {
        let has_more = !self.ready.is_empty() || !self.arrivals.is_empty();
        if has_more || self.places.iter().any(|place| place.is_busy) {
            return Some(Duration::ZERO);
        }
        let of_sessions = self.deadlines.first().map(|(due, _)| *due);
        let of_engine = self.host.poll_timeout();
        let of_trials = self.rivalry.poll_timeout();
        let of_listener = self.listener.as_ref().and_then(Listener::poll_timeout);
        let of_drain = self.drain.as_ref().filter(|_| end.is_none()).and_then(Drain::poll_timeout);
        let of_store = self.storing.as_ref().filter(|_| end.is_none()).map(|it| it.until);
        let of_judgings = self.judgings.iter().map(|it| it.until).min();
        let of_questions = self.questions.iter().map(|it| it.until).min();
        let of_sources = [of_engine, of_listener, of_sessions, of_trials, self.search];
        let of_absences = self.absences.poll_timeout();
        let others = [end, of_drain, of_store, of_judgings, of_questions, of_absences];
        let mut due = others.into_iter().chain(of_sources).flatten().min();
        for place in &self.places {
            let of_device = self.host.device(place.id).and_then(|device| device.poll_timeout());
            due = [due, of_device].into_iter().flatten().min();
        }
        due.map(|due| due.saturating_sub(self.now()))
    }

    fn attend(&mut self, source: Source, now: Duration) {
        match source {
            Source::Stop => {}
            Source::Interfaces => {
                self.changes.take();
                match interfaces::read() {
                    Ok(interfaces) => {
                        self.interfaces = interfaces;
                        self.find_adapters(now);
                    }
                    Err(error) => {
                        log::warn!("interfaces have changed, and cannot be read: {error}")
                    }
                }
            }
            // What was declined for one may be as it should be now.
            Source::Policies => {
                self.policies.note_change();
                self.lessons.forget_all();
            }
            Source::ControlSocket => {
                self.control.welcome(&self.poller, self.lessons.read_only(), now)
            }
            Source::Line(number) => {
                for _ in 0..AT_ONCE {
                    match self.control.hear(number, now) {
                        Some(Request::Carry(offer)) => {
                            let listener = self.listener.as_mut();
                            let pairs =
                                listener.map_or_else(Vec::new, |it| it.match_up(offer, now));
                            self.arrivals.extend(pairs.into_iter().map(Arrival::new));
                        }
                        // It has the other lines from then on.
                        Some(Request::Replace) => return self.give_way(number, now),
                        Some(Request::Status) => {
                            let status = self.status();
                            self.control.tell(number, &status);
                        }
                        Some(Request::Protection { port, user }) => {
                            // Its last one counts.
                            self.questions.retain(|it| it.line != number);
                            let until = now + QUESTION_PATIENCE;
                            self.questions.push(Question { line: number, port, user, until });
                        }
                        Some(Request::RulesChanged) => {
                            self.tell_filter_again();
                            self.judge_again(number, now);
                        }
                        None => break,
                    }
                }
            }
            Source::Listener => {
                let pairs = self.listener.as_mut().map_or_else(Vec::new, |it| it.welcome(now));
                self.arrivals.extend(pairs.into_iter().map(Arrival::new));
            }
            Source::Predecessor => self.hear_predecessors(now),
            Source::Successor => self.hear_successor(now),
            Source::Handshakes => self.take_handshakes(now),
            Source::Returns => self.take_returns(now),
            Source::Adapter(id) => {
                for place in self.places.iter_mut().filter(|place| place.id == AdapterId(id)) {
                    place.is_busy = true;
                }
            }
            Source::Program(number) => self.tell(number, Word::Program, now),
            Source::Network(number) => self.tell(number, Word::Network, now),
        }
    }

    /// Lets adapters take what has come, and what is late.
    fn receive(&mut self, now: Duration) {
        let mut has_news = false;
        for place in &mut self.places {
            let Some(device) = self.host.device(place.id) else { continue };
            if place.is_busy || device.poll_timeout().is_some_and(|due| due <= now) {
                place.is_busy = device.receive(now);
                while let Some(notice) = device.poll_notice() {
                    place.heed(notice);
                    has_news = true;
                }
                self.host.handle_device(place.id, now);
            }
        }
        while let Some((adapter, failure)) = self.host.poll_broken_link() {
            let address = self.places.iter().find(|place| place.id == adapter).map(|it| it.address);
            let address =
                address.map_or_else(|| "an adapter that is gone".to_owned(), |it| it.to_string());
            log::warn!("a link over {address} is broken: {failure}");
        }
        if has_news {
            self.look_at_interfaces(now);
        }
    }

    fn pass_time(&mut self, now: Duration) {
        if self.host.poll_timeout().is_some_and(|due| due <= now) {
            self.host.handle_timeout(now);
        }
        if let Some(listener) = &mut self.listener
            && listener.poll_timeout().is_some_and(|due| due <= now)
        {
            listener.handle_timeout(now);
        }
        if self.search.is_some_and(|due| due <= now) {
            self.search(now);
        }
        self.absences.handle_timeout(now);
        self.break_off_judgings(now);
        while let Some((due, number)) = self.deadlines.first().copied()
            && due <= now
        {
            self.deadlines.pop_first();
            if let Some(known) = self.sessions.get_mut(&number) {
                known.due = None;
            }
            self.rouse(number);
        }
    }

    /// What the kernel has said of SMC-R and TCP, where the two are compared.
    fn handle_comparison(&mut self, seen: io::Result<Vec<Sight>>, now: Duration) {
        let present = self.sessions.values().filter_map(|known| known.session.as_ref());
        let ours = present.filter_map(|session| session.own_address()).collect();
        self.rivalry.handle_timeout(seen, &ours, &self.lessons, now);
    }

    fn take_events(&mut self, now: Duration) {
        while let Some(event) = self.host.poll_event() {
            let token = event.connection();
            let number = match event {
                Event::Gone(_) => {
                    self.lingering.remove(&token);
                    self.owners.remove(&token)
                }
                _ => self.owners.get(&token).copied(),
            };
            if let Some(number) = number {
                self.tell(number, Word::Host(event), now);
            }
        }
    }

    /// Gives sessions what threads have worked on. One that has ended meanwhile takes nothing.
    fn take_handshakes(&mut self, now: Duration) {
        for done in self.protection.handshakes.take() {
            self.tell(done.number, Word::Handshake(done), now);
        }
    }

    /// Tells a session something, after which it may do something.
    fn tell(&mut self, number: u64, word: Word, now: Duration) {
        if let Some(known) = self.sessions.get_mut(&number) {
            known.tell(word, now, &mut self.protection);
        }
        self.rouse(number);
    }

    /// A session may do something, when it is there.
    fn rouse(&mut self, number: u64) {
        let Some(known) = self.sessions.get_mut(&number) else { return };
        // What it has done apart from the loop was done before this.
        known.is_called |= known.session.is_none() || known.talk.is_some();
        if !known.is_ready {
            known.is_ready = true;
            self.ready.push_back(number);
        }
    }

    /// Lets a session do what it can in the loop, after what it may have done apart from it.
    fn advance(&mut self, number: u64, chunk: &mut [u8], now: Duration) {
        let Some(known) = self.sessions.get_mut(&number) else { return };
        let Some(session) = &mut known.session else { return };
        let mut world = World {
            host: &mut self.host,
            owners: &mut self.owners,
            lessons: &self.lessons,
            rivalry: &mut self.rivalry,
            totals: &mut self.totals,
            protection: &mut self.protection,
            chunk,
            now,
        };
        let talk = known.talk.take();
        let judged = talk.as_ref().and_then(|talk| talk.is_denied);
        let fate = session.advance(talk, &mut world);
        known.is_ready = false;
        let is_called = mem::take(&mut known.is_called);
        let due = session.poll_timeout();
        if due != known.due {
            known.due.map(|before| self.deadlines.remove(&(before, number)));
            due.map(|due| self.deadlines.insert((due, number)));
            known.due = due;
        }
        if let Some(is_denied) = judged {
            self.note_judged(number, is_denied);
        }
        match fate {
            Fate::Waits if !is_called => {}
            Fate::Waits | Fate::HasMore => self.rouse(number),
            Fate::Over(end) => self.finish(number, end),
        }
    }

    fn transmit(&mut self, now: Duration) {
        self.host.transmit(now);
        for place in &mut self.places {
            if let Some(device) = self.host.device(place.id) {
                place.is_busy |= device.transmit(now);
            }
        }
    }
}

// ---- sessions -----------------------------------------------------------------------------------

impl Gateway {
    /// What there is of TLS on a connection that comes from this port, of this user. `None`: there is no such connection.
    fn protection_of(&self, port: u16, user: Option<u32>) -> Option<ProtectionStatus> {
        let (owner, status) = self.present().find_map(|(_, it)| it.protection(port))?;
        user.is_none_or(|user| user == owner).then_some(status)
    }

    /// Answers programs that ask about TLS, as far as that can be known by now.
    fn answer_questions(&mut self, now: Duration) {
        if self.questions.is_empty() {
            return;
        }
        let may_come = !self.arrivals.is_empty()
            || self.listener.as_ref().is_some_and(Listener::waits)
            || self.sessions.values().any(|known| known.session.is_none());
        for question in mem::take(&mut self.questions) {
            match self.protection_of(question.port, question.user) {
                Some(status) => self.control.answer(question.line, Message::Protection(status)),
                None if may_come && now < question.until => self.questions.push(question),
                None => self.control.answer(question.line, Message::Unknown),
            }
        }
    }

    /// Sessions that no thread is away with.
    fn present(&self) -> impl Iterator<Item = (u64, &Session)> {
        self.sessions
            .iter()
            .filter_map(|(number, known)| Some((*number, known.session.as_deref()?)))
    }

    fn begin_protected(
        &mut self,
        (offer, ends): (Offer, Ends),
        h: TcpStream,
        (setup, peer): (Setup, Peer),
        now: Duration,
    ) {
        self.last_session += 1;
        let (number, uid) = (self.last_session, offer.uid);
        let under_way = self.handshakes_of(uid);
        let session = Session::begin_protected(number, (offer, ends), h, &setup, now);
        if under_way >= HANDSHAKES_OF_USER_MAX
            || self.share(uid).room_for(&session, self.sessions.len()) != Room::Enough
        {
            return log::warn!("a connection of user {uid} is reset: there are too many");
        }
        if self.admit(number, session) {
            self.protection.handshakes.start(number, setup, peer);
        }
    }

    /// Connections of a user on which TLS has not begun.
    fn handshakes_of(&self, uid: u32) -> usize {
        let is_under_way = |(_, it): &(u64, &Session)| it.uid() == uid && it.is_shaking_hands();
        self.present().filter(is_under_way).count()
    }

    /// The session of the other end of the connection whose ends these are, if it has one and may be joined.
    fn first_end(&self, ends: &Ends) -> Option<u64> {
        self.present().find(|(_, session)| session.may_join(ends)).map(|(number, _)| number)
    }

    /// Lets bytes stay in memory: this is the second end of a connection, and the rules of both ends say so.
    fn join(
        &mut self,
        number: u64,
        (offer, ends): (Offer, Ends),
        h: TcpStream,
        setup: &Setup,
        now: Duration,
    ) {
        let known = self.sessions.get_mut(&number);
        let Some(session) = known.and_then(|known| known.session.as_mut()) else { return };
        // N is silent from now on, and its events would be taken for those of the second H.
        self.poller.forget(session.sockets()[1]);
        if let Err(error) = self.poller.watch_changes(&h, Source::Network(number)) {
            log::warn!("connection {number} cannot be watched: {error}");
            return self.finish(number, End::ResetBoth);
        }
        log::info!("connection {number} stays in memory, by the rules of both ends");
        let rule = setup.rule().name();
        session.join(OtherEnd { n: offer.connection, ends, h, port: offer.port, rule });
        self.tell(number, Word::Program, now);
    }

    /// CLC is first, and then TLS if that is to protect the connection.
    fn begin_rendezvous(
        &mut self,
        (offer, ends): (Offer, Ends),
        h: TcpStream,
        protection: Option<(Setup, Peer)>,
        now: Duration,
    ) {
        self.last_session += 1;
        let (number, uid) = (self.last_session, offer.uid);
        let Some(route) = self.route(&ends) else { return };
        let interface = route.interface;
        let is_protected = self.is_protected(&ends);
        let has_rule = protection.is_some();
        let may_shake_hands = !has_rule || self.handshakes_of(uid) < HANDSHAKES_OF_USER_MAX;
        let exchange = match offer.side {
            Side::Client => {
                let local = self.local_towards(route.remote);
                match is_protected {
                    true => Exchange::unwilling(local, route, Diagnosis::IPSEC),
                    false => Exchange::client(local, route, now),
                }
            }
            Side::Server => Exchange::server(Arc::clone(&self.local), route, now),
        };
        let of = (exchange, interface);
        let mut session = Session::begin(number, (offer, ends), h, of, protection);
        if is_protected {
            session.decline(Diagnosis::IPSEC, now);
        } else if self.drain.is_some() {
            session.decline(Diagnosis::CNFERR, now);
        }
        match self.share(uid).room_for(&session, self.sessions.len()) {
            Room::Enough if may_shake_hands => {}
            Room::ToDecline if !has_rule => {
                log::warn!("connection {number}: user {uid} has too many");
                session.decline(Diagnosis::MEM, now);
            }
            _ => return log::warn!("a connection of user {uid} is reset: there are too many"),
        }
        self.admit(number, session);
    }

    /// What CLC tells a server of us. One that shares a link group with us, which a gateway before this one has begun, finds
    /// it by the identity of that one. But it may have others of it, too, and as long as there are such in another
    /// process, an Accept could name one of those.
    fn local_towards(&self, server: IpAddr) -> Arc<LocalHost> {
        let known_as = self.predecessors.is_empty().then(|| self.host.known_as(server)).flatten();
        match known_as {
            Some(peer_id) if peer_id != self.local.peer_id => {
                Arc::new(LocalHost { peer_id, ..LocalHost::clone(&self.local) })
            }
            _ => Arc::clone(&self.local),
        }
    }

    /// Begins to watch a session. False: it cannot be, and is reset.
    fn admit(&mut self, number: u64, session: Session) -> bool {
        let uid = session.uid();
        let [h, n] = session.sockets();
        let watched = self
            .poller
            .watch_changes(h, Source::Program(number))
            .and_then(|()| self.poller.watch_changes(n, Source::Network(number)));
        if let Err(error) = watched {
            // H is reset.
            log::warn!("connection {number} of user {uid} cannot be watched: {error}");
            self.poller.forget(n);
            return false;
        }
        let share = self.shares.entry(uid).or_default();
        share.sessions += 1;
        share.buffers += session.buffers();
        let (session, missed, talk) = (Some(Box::new(session)), Vec::new(), None);
        let (is_ready, is_called, due) = (false, false, None);
        self.sessions.insert(number, Known { session, missed, talk, is_ready, is_called, due });
        self.rouse(number);
        true
    }

    /// By IPsec, whose policies RDMA would pass by.
    fn is_protected(&mut self, ends: &Ends) -> bool {
        ends.both().is_some_and(|(local, remote)| self.policies.protect(local, remote))
    }

    /// Has the IP filter asked about all sessions: those that it denies now end by reset. What begins later is judged then.
    /// The answer goes to this line when all have been asked.
    fn judge_again(&mut self, line: u64, now: Duration) {
        let left: BTreeSet<u64> = self.sessions.keys().copied().collect();
        let interfaces: HashMap<u64, u32> = self
            .present()
            .map(|(number, session)| {
                (number, self.route(session.ends()).map_or(0, |route| route.interface))
            })
            .collect();
        for &number in &left {
            // One that a thread is away with is where it was.
            self.tell(number, Word::Judge(interfaces.get(&number).copied()), now);
        }
        self.judgings.push(Judging { line, left, denied: 0, until: now + JUDGE_PATIENCE });
        self.answer_judgings();
    }

    /// The IP filter has been asked about a session.
    fn note_judged(&mut self, number: u64, is_denied: bool) {
        if is_denied {
            log::info!("connection {number} is reset: the IP filter denies it");
        }
        for judging in &mut self.judgings {
            judging.denied += u32::from(judging.left.remove(&number) && is_denied);
        }
        self.answer_judgings();
    }

    /// What could not be asked in time is denied: its program keeps its socket's lock, and what goes by SMC-R would go on.
    fn break_off_judgings(&mut self, now: Duration) {
        let late = self.judgings.iter().filter(|it| it.until <= now).flat_map(|it| &it.left);
        let late: BTreeSet<u64> = late.copied().collect();
        for number in late {
            self.tell(number, Word::Denied, now);
            self.note_judged(number, true);
            // The thread that is away with it may be so for long.
            let token = self.owners.iter().find(|(_, owner)| **owner == number).map(|it| *it.0);
            if let Some(token) = token {
                self.host.abort(token, now);
            }
        }
    }

    fn answer_judgings(&mut self) {
        let over = self.judgings.extract_if(.., |it| it.left.is_empty());
        for Judging { line, denied, .. } in over.collect::<Vec<_>>() {
            self.control.answer(line, Message::Judged(denied));
        }
    }

    /// The IP filter may be another one, which knows nothing of links.
    fn tell_filter_again(&mut self) {
        for place in &self.places {
            if let Some(Nic::Soft(rnic, partners)) = self.host.device(place.id) {
                partners.tell_again(rnic);
            }
        }
    }

    fn finish(&mut self, number: u64, end: End) {
        let Some(session) = self.release(number) else { return };
        log::debug!("connection {number} is over: {end:?}");
        self.lingering.extend(session.end(end));
    }

    /// Watches a session no more.
    fn release(&mut self, number: u64) -> Option<Session> {
        let Known { session, due, .. } = self.sessions.remove(&number)?;
        if !self.judgings.is_empty() {
            self.note_judged(number, false);
        }
        let session = *session?;
        if let Some(due) = due {
            self.deadlines.remove(&(due, number));
        }
        let [h, n] = session.sockets();
        self.poller.forget(h);
        // The program has it, too: closing ours would not take it out of the set.
        self.poller.forget(n);
        if let Some(share) = self.shares.get_mut(&session.uid()) {
            share.sessions -= 1;
            share.buffers -= session.buffers();
            if share.sessions == 0 {
                self.shares.remove(&session.uid());
            }
        }
        Some(session)
    }
}

// ---- status -------------------------------------------------------------------------------------

impl Gateway {
    fn status(&mut self) -> Status {
        let partners = self.partners().collect();
        let tally = self.host.tally();
        let (rules, refusals) = self.protection.status();
        Status {
            rules,
            refusals,
            partners,
            adapters: self.host.adapters().filter_map(|it| self.adapter_status(&it)).collect(),
            links: self.host.links().map(|it| self.link_status(&it)).collect(),
            connections: self.connections().collect(),
            totals: Totals {
                failovers: tally.failovers,
                rmbe_full: tally.rmbe_full,
                ..self.totals
            },
            cpu: Cpu::of_this_process(),
            process: std::process::id(),
            drains: self.drain.is_some(),
            predecessors: self.predecessors.iter().map(|it| it.process).collect(),
        }
    }

    /// The ends of links that the IP filter knows, the own one first.
    fn partners(&mut self) -> impl Iterator<Item = [IpAddr; 2]> {
        let Self { places, host, .. } = self;
        places.iter().flat_map(|place| {
            let told: Vec<IpAddr> = match host.device(place.id) {
                Some(Nic::Soft(_, partners)) => partners.told().collect(),
                _ => Vec::new(),
            };
            told.into_iter().map(|partner| [place.address, partner])
        })
    }

    fn connections(&self) -> impl Iterator<Item = status::Connection> {
        let sessions = self.present();
        sessions.flat_map(|(_, it)| [Some(it.status(&self.host)), it.other_status()]).flatten()
    }

    fn link_status(&self, link: &LinkView<'_>) -> status::Link {
        let place = self.places.iter().find(|place| place.id == link.link.adapter().id);
        status::Link::of(link, place.and_then(|place| place.port.clone()))
    }

    fn adapter_status(&self, adapter: &AdapterView) -> Option<status::Adapter> {
        let place = self.places.iter().find(|place| place.id == adapter.description.id)?;
        let interface = self.interfaces.iter().find(|it| it.index == place.interface);
        let name = interface.map(|it| it.name.clone());
        Some(status::Adapter {
            address: place.address,
            port: place.port.clone(),
            roce: place.kinds.iter().map(|kind| version_of(*kind)).collect(),
            gid: adapter.description.gid.to_string(),
            mac: adapter.description.mac.to_string(),
            mtu: adapter.description.mtu.bytes(),
            vlan: interface.map_or(0, |it| it.vlan),
            pnet_id: name.as_deref().and_then(|it| self.settings.network(it)).map(str::to_owned),
            interface: name,
            is_up: adapter.is_up,
            links: adapter.links,
            usage: adapter.usage.into(),
        })
    }
}

// ---- interfaces ---------------------------------------------------------------------------------

impl Gateway {
    /// Adapters come and go with their interfaces, and with their addresses.
    fn look_at_interfaces(&mut self, now: Duration) {
        let mut local = LocalHost::clone(&self.local);
        local.adapters.clear();
        for place in &mut self.places {
            place.follow(&self.interfaces);
            let interface = self.interfaces.iter().find(|it| it.index == place.interface);
            let interface = interface
                .filter(|it| it.is_up && it.has(place.address))
                .filter(|_| place.health == Health::Well);
            match (place.is_up, interface.is_some()) {
                (true, false) => {
                    log::warn!("the adapter at {} is down", place.address);
                    self.host.handle_adapter_down(place.id, now);
                }
                (false, true) => {
                    log::info!("the adapter at {} is up", place.address);
                    self.lessons.forget_all();
                    self.host.handle_adapter_up(place.id, now);
                }
                _ => {}
            }
            place.is_up = interface.is_some();
        }
        // Those of version 1 last: where there is no room for all, they are missed least.
        for kind in [Kind::RoceV2, Kind::RoceV1] {
            for place in self.places.iter().filter(|place| place.kinds.contains(&kind)) {
                let interface = self.interfaces.iter().find(|it| it.index == place.interface);
                let described = interface.and_then(|it| describe(place, kind, it, &self.settings));
                if let Some(adapter) = described {
                    let _ = local.adapters.try_push(adapter);
                }
            }
        }
        self.local = Arc::new(local);
        self.plan_search(now);
    }

    /// The interface of a connection: that of our address. A VIP of a distributor lies on the loopback
    /// interface, which leads to no other host: then it is the one by which packets to the peer leave.
    fn interface_of(&self, local: IpAddr, remote: IpAddr) -> Option<&Interface> {
        let owner = self.interfaces.iter().find(|it| it.has(local));
        if !owner.is_some_and(|it| it.is_loopback) {
            return owner;
        }
        match interfaces::towards(local, remote) {
            Ok(index) => self.interfaces.iter().find(|it| it.index == index),
            Err(error) => {
                log::debug!("no way is known from {local} to {remote}: {error}");
                owner
            }
        }
    }

    /// Where a connection goes. `None`: its ends are not known.
    fn route(&self, ends: &Ends) -> Option<Route> {
        let (local, remote) = ends.both()?;
        let [local, remote] = [local, remote].map(|it| it.ip().to_canonical());
        let interface = self.interface_of(local, remote);
        Some(Route {
            local,
            remote,
            interface: interface.map_or(0, |it| it.index),
            networks: interface.map_or_else(ArrayVec::new, |it| it.networks_around(local)),
            vlan: interface.map_or(0, |it| it.vlan),
            pnet_id: interface.and_then(|it| self.settings.pnet_id(&it.name)),
        })
    }
}

const fn version_of(kind: Kind) -> u8 {
    match kind {
        Kind::RoceV1 => 1,
        Kind::RoceV2 => 2,
    }
}

fn describe(
    place: &Place,
    kind: Kind,
    interface: &Interface,
    settings: &Settings,
) -> Option<hosts::Adapter> {
    Some(hosts::Adapter {
        id: place.id,
        roce: match kind {
            Kind::RoceV1 => Roce::V1,
            Kind::RoceV2 => Roce::V2,
        },
        gid: gid_of(place.address),
        mac: interface.mac,
        mtu: place.mtu(interface)?,
        interface: interface.index,
        networks: interface.networks_around(place.address),
        vlan: interface.vlan,
        pnet_id: settings.pnet_id(&interface.name),
        is_up: place.is_up,
    })
}
