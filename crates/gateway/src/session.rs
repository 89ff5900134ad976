//! A session: one connection of a program, from the hand-over to its end.
//!
//! ```text
//!             ┌── Rendezvous ── CLC on N; H is not read, so the program's bytes wait there
//!             │      │ agreed                         │ declined
//!             │      v                                v
//!   broken    │   Moved                            Relayed
//!             │   H's ring ───────────> SMC-R      H ──> outward ──> N
//!             │   H <─────── RMBE <──── SMC-R      H <── inward  <── N
//!             v      │                                │
//!         both reset └── over, in order or reset      └── over, in order or both reset
//! ```
//!
//! | One side | becomes on the other |
//! |---|---|
//! | H ends (FIN) | the program sends no more: `shut`, D |
//! | H is reset | `abort`, A |
//! | SMC-R: the peer sends no more | FIN on H |
//! | SMC-R: reset, whatever the reason | RST on H |
//! | both directions have ended | `close`, and H is closed in order |
//! | H is full, or SMC-R is | the other side is not read |
//! | bytes have arrived by SMC-R | H's ring has room for as many |
//! | an urgent byte | an urgent byte, also where the bytes stay on TCP |
//! | a rule of TLS has it | it is [protected], by SMC-R or by TCP as CLC says, or [joined] with its other end |
//! | the IP filter denies N since its rules have changed | both are reset |
//!
//! N is shared with the program: its flags are not touched, so each call says that it does not wait.
//! While the bytes go by SMC-R nothing may come on it, but its end tells that the peer is gone.

mod at_rest;
mod carrier;
mod joined;
mod protected;
mod turn;
mod ways;

use std::mem;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, sockopt};
use sidestep_engine::{
    CallError, Caller, Event as EngineEvent, Host, Readable, Request, Sizes, Terms,
};
use sidestep_proto::autosmc::{self, Traffic};
use sidestep_proto::paths::Carried;
use sidestep_proto::rendezvous::hosts::{Event, Exchange, Fallback, Outcome};
use sidestep_rdma::memory::Stretch;
use sidestep_tls::{Peer, Setup};
use sidestep_wire::host_control::Side;
use sidestep_wire::lessons::Cause;
use sidestep_wire::protection_status::ProtectionStatus;
use sidestep_wire::{AlertToken, Diagnosis};

use crate::bytes::Kept;
use crate::control::Offer;
use crate::ends::{Ends, canonical};
use crate::foreign::Foreign;
use crate::intake::{self, Intake};
use crate::lent::{self, Ahead, Ring};
use crate::lessons::{self, Lessons};
use crate::limits::{LEAVE_PATIENCE, N_KEEPALIVE, RESET_PATIENCE, SEND_BUFFER_MAX, TURN};
use crate::nic::Nic;
use crate::output;
use crate::protection::Protection;
use crate::status::{self, Mode};
use carrier::{BySmcR, ByTcp};
use joined::Joined;
use protected::Protected;
use turn::{Apart, Cut, Ready, pass_on};
use ways::Ways;

pub(crate) use at_rest::{LeaveAtRest, SessionAtRest};
pub(crate) use joined::OtherEnd;
pub(crate) use turn::{End, Fate, Talk, Word, World};

/// One connection of a program.
#[derive(Debug)]
pub(crate) struct Session {
    number: u64,
    /// Of N.
    ends: Ends,
    /// The program's, of H.
    port: u16,
    /// Whether the program has connected.
    is_client: bool,
    /// Its program may have its lock: none but [`talk`](Self::talk) calls the kernel about it.
    n: Foreign<TcpStream>,
    h: TcpStream,
    n_is: Ready,
    h_is: Ready,
    sizes: Sizes,
    /// The host's connection.
    token: Option<AlertToken>,
    /// By the IP filter of the host.
    is_denied: bool,
    /// The filter is to be asked about this N.
    to_judge: Option<Which>,
    /// The interface of N, for that.
    interface: u32,
    stage: Stage,
}

/// Whose N.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Own,
    /// The second end of a session that has both.
    Other,
}

#[derive(Debug)]
enum Stage {
    Rendezvous(Box<Rendezvous>),
    Moved(Box<Moved>),
    Relayed(Box<Relayed>),
    Protected(Box<Protected>),
    Joined(Box<Joined>),
}

/// CLC is under way.
#[derive(Debug)]
struct Rendezvous {
    exchange: Exchange,
    unsent: Kept,
    /// N is as it has to be.
    is_settled: bool,
    /// It has been declined before it began.
    is_unwanted: bool,
    /// What it has come to, to be heeded.
    event: Option<Event>,
    /// TLS is to protect it, whatever that is.
    upcoming: Option<Box<Upcoming>>,
}

/// TLS that begins when it is known what carries it.
#[derive(Debug)]
pub(crate) struct Upcoming {
    protected: Protected,
    setup: Setup,
    peer: Peer,
}

/// Bytes go by SMC-R.
#[derive(Debug)]
struct Moved {
    token: AlertToken,
    /// They are records of TLS. `None`: they are the program's.
    protected: Option<Box<Protected>>,
    /// When.
    begun: Duration,
    /// What may be done with the host's connection.
    host_is: Ready,
    /// What is sent in place.
    ring: Ring,
    /// Some of it has arrived since.
    has_arrived: bool,
    /// The program sends no more.
    has_ended: bool,
    /// The peer sends no more.
    peer_has_ended: bool,
    /// The program knows that.
    is_told: bool,
    /// The peer has left N.
    leave: Option<Leave>,
    /// TCP may have to probe N.
    to_keep_alive: bool,
}

/// It stays TCP, and its bytes are passed on between H and N.
#[derive(Debug)]
struct Relayed {
    /// N is as it has to be.
    is_settled: bool,
    ways: Ways,
    /// Until the first bytes of the peer have come: they may be its Decline.
    exchange: Option<Exchange>,
    fallback: Fallback,
}

#[derive(Clone, Copy, Debug)]
struct Leave {
    until: Duration,
    /// By a reset.
    is_reset: bool,
    /// It has sent something since.
    was_heard: bool,
}

impl Session {
    /// One whose N has these ends, at this interface, and that TLS protects by this setup, if there is one.
    pub(crate) fn begin(
        number: u64,
        (offer, ends): (Offer, Ends),
        h: TcpStream,
        (exchange, interface): (Exchange, u32),
        protection: Option<(Setup, Peer)>,
    ) -> Self {
        let Offer { side, port, rmbe, connection, .. } = offer;
        let upcoming = protection.map(|(setup, peer)| {
            Box::new(Upcoming { protected: Protected::new(ends, &setup), setup, peer })
        });
        let rendezvous = Rendezvous {
            exchange,
            unsent: Kept::default(),
            is_settled: false,
            is_unwanted: false,
            event: None,
            upcoming,
        };
        Self {
            number,
            ends,
            port,
            is_client: side == Side::Client,
            n: connection,
            h,
            n_is: Ready::ALL,
            h_is: Ready::ALL,
            sizes: Sizes { rmbe, send_buffer: rmbe.min(SEND_BUFFER_MAX) },
            token: None,
            is_denied: false,
            to_judge: None,
            interface,
            stage: Stage::Rendezvous(Box::new(rendezvous)),
        }
    }

    /// One that comes to nothing, of which the peer has to be told.
    pub(crate) fn decline(&mut self, diagnosis: Diagnosis, now: Duration) {
        if let Stage::Rendezvous(rendezvous) = &mut self.stage {
            rendezvous.is_unwanted = true;
            rendezvous.exchange.decline(diagnosis, now);
        }
    }

    /// Whether the IP filter denies N, at this interface.
    pub(crate) fn is_denied_now(&self, interface: u32) -> bool {
        is_denied(&self.n, interface)
    }

    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) const fn uid(&self) -> u32 {
        self.ends.user()
    }

    /// Of N.
    pub(crate) const fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Where the program has connected to, if it is the client.
    fn server(&self) -> Option<SocketAddr> {
        self.ends.remote().filter(|_| self.is_client)
    }

    /// Bytes of its buffers, or of those that it may get.
    pub(crate) const fn buffers(&self) -> usize {
        self.sizes.rmbe.bytes() + self.sizes.send_buffer.bytes()
    }

    pub(crate) fn sockets(&self) -> [&TcpStream; 2] {
        [&self.h, &self.n]
    }

    /// The program's, on the way to the peer.
    pub(crate) fn own_address(&self) -> Option<SocketAddr> {
        self.ends.local().map(canonical)
    }

    /// What displays show of it.
    pub(crate) fn status(&self, host: &Host<Nic>) -> status::Connection {
        let view = self.token.and_then(|token| host.connection(token));
        let (mode, reason) = match &self.stage {
            Stage::Rendezvous(_) => (Mode::Deciding, None),
            Stage::Moved(_) => (Mode::SmcR, None),
            Stage::Relayed(relayed) => (Mode::Tcp, Some((&relayed.fallback).into())),
            Stage::Protected(protected) => (Mode::Tls, protected.fallback().map(Into::into)),
            Stage::Joined(_) => (Mode::WithinHost, None),
        };
        let protection = match &self.stage {
            Stage::Joined(joined) => Some(joined.status()),
            _ => self.protected().map(Protected::status),
        };
        status::Connection {
            user: self.uid(),
            port: self.port,
            local: self.ends.local(),
            remote: self.ends.remote(),
            mode,
            reason,
            protection,
            link_group: view.map(|view| view.group_number),
            link: view.and_then(|view| view.link).map(|link| link.0),
            traffic: view.map(|view| view.traffic.into()).unwrap_or_default(),
            moves: view.map_or(0, |view| view.moves),
        }
    }

    /// What another gateway needs to go on with it, beside H and N. `None`: its bytes do not go by SMC-R, TLS protects them, or
    /// it is about to end.
    pub(crate) fn at_rest(&self, now: Duration) -> Option<SessionAtRest> {
        let Stage::Moved(moved) = &self.stage else { return None };
        let leave = moved.leave.map(|leave| LeaveAtRest {
            left: leave.until.saturating_sub(now),
            is_reset: leave.is_reset,
            was_heard: leave.was_heard,
        });
        let has_to_talk = self.talks_to().is_some();
        let may_leave = !self.is_denied && !has_to_talk && moved.protected.is_none();
        may_leave.then_some(SessionAtRest {
            token: moved.token,
            uid: self.uid(),
            is_client: self.is_client,
            ends: [self.ends.local(), self.ends.remote()],
            sizes: [self.sizes.rmbe, self.sizes.send_buffer],
            age: now.saturating_sub(moved.begun),
            has_ended: moved.has_ended,
            peer_has_ended: moved.peer_has_ended,
            is_told: moved.is_told,
            leave,
        })
    }

    /// Whether it ends with this process, though its bytes go by SMC-R.
    pub(crate) fn stays(&self) -> bool {
        matches!(&self.stage, Stage::Moved(moved) if moved.protected.is_some())
    }

    /// The host's connection leaves, and what was under way goes with it: the program may write over its bytes.
    pub(crate) fn part(&mut self) {
        if let Stage::Moved(moved) = &mut self.stage {
            moved.ring.pass_arrived(&self.h, 0);
        }
    }

    /// The host's connection is back, and what has happened meanwhile is not known.
    pub(crate) fn handle_return(&mut self) {
        (self.h_is, self.n_is) = (Ready::ALL, Ready::ALL);
        if let Stage::Moved(moved) = &mut self.stage {
            moved.host_is = Ready::ALL;
        }
    }

    /// One that has come from another gateway.
    pub(crate) fn resume(
        number: u64,
        from: &SessionAtRest,
        [h, n]: [TcpStream; 2],
        now: Duration,
    ) -> Self {
        let [rmbe, send_buffer] = from.sizes;
        let leave = from.leave.map(|leave| Leave {
            until: now + leave.left,
            is_reset: leave.is_reset,
            was_heard: leave.was_heard,
        });
        let moved = Moved {
            begun: now.saturating_sub(from.age),
            has_ended: from.has_ended,
            peer_has_ended: from.peer_has_ended,
            is_told: from.is_told,
            leave,
            to_keep_alive: false,
            ..Moved::new(from.token, now)
        };
        Self {
            number,
            ends: Ends::told(from.uid, from.ends),
            port: h.peer_addr().map_or(0, |address| address.port()),
            is_client: from.is_client,
            n: Foreign::new(n, from.uid),
            h,
            n_is: Ready::ALL,
            h_is: Ready::ALL,
            sizes: Sizes { rmbe, send_buffer },
            token: Some(from.token),
            is_denied: false,
            to_judge: None,
            interface: 0,
            stage: Stage::Moved(Box::new(moved)),
        }
    }

    /// Hears what has happened at this time.
    pub(crate) fn hear(&mut self, word: Word, now: Duration, protection: &mut Protection) {
        match word {
            Word::Program => self.h_is = Ready::ALL,
            Word::Network => self.n_is = Ready::ALL,
            Word::Host(event) => self.handle_event(event, now),
            Word::Handshake(done) => {
                let Some(protected) = self.protected_mut() else { return };
                let mut reports = Vec::new();
                protected.handle_handshake(done, &mut reports);
                reports.into_iter().for_each(|report| protection.heed(self.number, report));
            }
            Word::Judge(interface) => {
                self.to_judge = Some(Which::Own);
                self.interface = interface.unwrap_or(self.interface);
            }
            Word::Denied => self.is_denied = true,
        }
    }

    /// When it is to be looked after though nothing has happened.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        match &self.stage {
            Stage::Rendezvous(rendezvous) => rendezvous.exchange.poll_timeout(),
            Stage::Moved(moved) => {
                let of_protection = moved.protected.as_ref().and_then(|it| it.poll_timeout());
                let of_leave = moved.leave.map(|leave| leave.until);
                [of_leave, of_protection].into_iter().flatten().min()
            }
            Stage::Relayed(_) | Stage::Joined(_) => None,
            Stage::Protected(protected) => protected.poll_timeout(),
        }
    }

    /// The host tells something of its connection.
    fn handle_event(&mut self, event: EngineEvent, now: Duration) {
        match (&mut self.stage, event) {
            (Stage::Rendezvous(rendezvous), event) => {
                let exchange = &mut rendezvous.exchange;
                match event {
                    EngineEvent::Introduce(_, message) => exchange.introduce(&message, now),
                    EngineEvent::Declined(_, diagnosis) => exchange.decline(diagnosis, now),
                    EngineEvent::Established(_) => exchange.established(),
                    EngineEvent::Reset(_, reset) => {
                        log::info!("connection {}: {reset}", self.number);
                        exchange.decline(Diagnosis::NOACTLINK, now);
                    }
                    _ => {}
                }
            }
            (Stage::Moved(moved), EngineEvent::Readable(_)) => moved.host_is.read = true,
            (Stage::Moved(moved), EngineEvent::Writable(_)) => moved.host_is.write = true,
            (Stage::Moved(moved), EngineEvent::Sent(_)) => {
                moved.has_arrived = true;
                moved.host_is.write = true;
                // Its end, or what comes by TCP from here on, is told when nothing before is under way.
                self.h_is.read = true;
            }
            (Stage::Moved(moved), EngineEvent::Reset(_, reset)) => {
                log::info!("connection {}: reset: {reset}", self.number);
                moved.host_is = Ready::ALL;
            }
            _ => {}
        }
    }

    /// Whose socket the next [`talk`](Self::talk) is about: that user's program may keep it locked. `None`: it is about none.
    pub(crate) fn talks_to(&self) -> Option<u32> {
        match (&self.stage, self.to_judge) {
            _ if self.is_denied => None,
            (Stage::Joined(joined), Some(Which::Other)) => Some(joined.other_user()),
            (_, Some(_)) => Some(self.uid()),
            (Stage::Rendezvous(_) | Stage::Relayed(_) | Stage::Protected(_), None) => {
                Some(self.uid())
            }
            (Stage::Moved(moved), None) => moved.to_keep_alive.then(|| self.uid()),
            (Stage::Joined(_), None) => None,
        }
    }

    /// Does what can be done with N, apart from the loop.
    pub(crate) fn talk(&mut self, chunk: &mut [u8], now: Duration) -> Talk {
        let mut reports = Vec::new();
        let is_denied = self.to_judge.take().and_then(|which| self.ask_filter(which));
        let Self { number, n, h, n_is, h_is, stage, .. } = self;
        let mut apart = Apart { chunk, reports: &mut reports, now };
        let fate = match stage {
            _ if self.is_denied => Fate::HasMore,
            Stage::Rendezvous(rendezvous) => {
                if !mem::replace(&mut rendezvous.is_settled, true) {
                    rendezvous.settle(*number, n, self.interface, &mut apart);
                }
                rendezvous.talk(n, n_is, &mut apart)
            }
            Stage::Moved(moved) => {
                if mem::take(&mut moved.to_keep_alive) {
                    keep_alive(n);
                }
                Fate::HasMore
            }
            Stage::Relayed(relayed) => relayed.talk((h, h_is), (n, n_is), apart.chunk),
            Stage::Protected(protected) => {
                protected.settle(n, apart.reports);
                protected.advance(*number, (h, h_is), &mut ByTcp { n, is: n_is }, &mut apart)
            }
            Stage::Joined(_) => Fate::HasMore,
        };
        Talk { fate, reports, is_denied }
    }

    /// Asks the IP filter about an end. Returns what it says of the connection, once it has been asked about all of its ends here.
    fn ask_filter(&mut self, which: Which) -> Option<bool> {
        let asked = match (&self.stage, which) {
            (Stage::Joined(joined), Which::Other) => joined.network(),
            _ => &*self.n,
        };
        self.is_denied |= is_denied(asked, self.interface);
        let has_other = matches!(self.stage, Stage::Joined(_)) && which == Which::Own;
        self.to_judge = (has_other && !self.is_denied).then_some(Which::Other);
        self.to_judge.is_none().then_some(self.is_denied)
    }

    /// Does what can be done, once it has talked, if it had to.
    pub(crate) fn advance(&mut self, talk: Option<Talk>, world: &mut World<'_>) -> Fate {
        let (fate, reports) =
            talk.map_or((Fate::HasMore, Vec::new()), |talk| (talk.fate, talk.reports));
        for report in reports {
            world.protection.heed(self.number, report);
        }
        let fate = match &self.stage {
            _ if self.is_denied => Fate::Over(End::ResetBoth),
            Stage::Rendezvous(_) => self.meet(fate, world),
            Stage::Moved(_) => self.carry(world),
            Stage::Relayed(_) | Stage::Protected(_) => fate,
            Stage::Joined(_) => self.pass_within_host(world),
        };
        if let Fate::Over(end) = fate {
            world.totals.resets += u64::from(end != End::InOrder);
            self.let_go(world);
        }
        fate
    }

    /// The last thing that happens: H is closed in this way, and N let go. Returns H, which is reset but still open,
    /// where an adapter may read its ring until the host's connection is gone.
    pub(crate) fn end(self, end: End) -> Option<(AlertToken, TcpStream)> {
        if end == End::InOrder {
            // If it fails, the program sees a reset, and the peer.
            let _ = sockopt::set_socket_linger(&self.h, None);
        }
        let may_be_in_order = matches!(self.stage, Stage::Moved(_) | Stage::Protected(_));
        self.n.close_after(move |n| match end {
            // The program has N as well, and closing ours would say nothing.
            End::ResetBoth => drop(net::connect_unspec(n)),
            // By RDMA the peer is told how it ends, and Linux as a peer lets go of what it knows of a connection whose N is reset.
            // By TLS it is told by an alert, which it is to read.
            End::Reset if !may_be_in_order => {}
            End::InOrder | End::Reset => drop(sockopt::set_socket_linger(n, None)),
        });
        match self.stage {
            Stage::Moved(moved) if moved.ring.under_way() > 0 => {
                lent::reset(&self.h);
                Some((moved.token, self.h))
            }
            Stage::Joined(joined) => {
                joined.end(end);
                None
            }
            _ => None,
        }
    }

    fn let_go(&mut self, world: &mut World<'_>) {
        if let Some(token) = self.token.take() {
            world.host.abort(token, world.now);
        }
    }
}

// ---- Rendezvous ------------------------------------------------------------------------------------

impl Session {
    fn meet(&mut self, talked: Fate, world: &mut World<'_>) -> Fate {
        let Stage::Rendezvous(rendezvous) = &mut self.stage else { return Fate::HasMore };
        match rendezvous.event.take() {
            Some(event) => self.heed(event, world).unwrap_or(Fate::HasMore),
            None => talked,
        }
    }

    fn heed(&mut self, event: Event, world: &mut World<'_>) -> Option<Fate> {
        match event {
            Event::Accept(proposer, terms) => {
                let request = self.request(terms);
                let accepted = request.and_then(|it| world.host.accept(proposer, it, world.now));
                self.asked(accepted, world);
            }
            Event::Connect(accept, terms) => {
                if let Some(server) = self.server() {
                    world.lessons.note_accept(server, self.uid(), accept.is_first_contact());
                }
                let request = self.request(terms);
                let connected = request.and_then(|it| world.host.connect(&accept, it, world.now));
                self.asked(connected, world);
            }
            Event::Confirmed(confirm) => {
                if let Some(token) = self.token {
                    world.host.handle_confirm(token, &confirm, world.now);
                }
            }
            Event::Ended(outcome) => return Some(self.decide(outcome, world)),
        }
        None
    }

    /// What the host is asked for: whose connection it is, the kernel says.
    ///
    /// # Errors
    ///
    /// The TCP connection is gone.
    fn request(&self, terms: Terms) -> Result<Request, Diagnosis> {
        let (local, remote) = self.ends.both().ok_or(Diagnosis::INTERR)?;
        let caller = Caller::new(self.uid(), local.ip(), remote.ip());
        let Stage::Rendezvous(rendezvous) = &self.stage else { return Err(Diagnosis::INTERR) };
        // What TLS knows of a connection another process cannot go on with.
        let stays = rendezvous.upcoming.is_some();
        Ok(Request { caller, terms, sizes: self.sizes, stays })
    }

    /// What the host says to a connection that it was asked for.
    fn asked(&mut self, answer: Result<AlertToken, Diagnosis>, world: &mut World<'_>) {
        match answer {
            Ok(token) => {
                self.token = Some(token);
                world.owners.insert(token, self.number);
            }
            Err(diagnosis) => {
                if let Stage::Rendezvous(rendezvous) = &mut self.stage {
                    rendezvous.exchange.decline(diagnosis, world.now);
                }
            }
        }
    }

    fn decide(&mut self, outcome: Outcome, world: &mut World<'_>) -> Fate {
        let number = self.number;
        self.remember(&outcome, world.lessons);
        match (outcome, self.token) {
            (Outcome::Agreed { version, first_contact }, Some(token)) => {
                let contact = if first_contact { "first" } else { "further" };
                log::info!("connection {number}: SMC-R, {version:?}, {contact} contact");
                world.totals.smc_r_connections += 1;
                let mut moved = Moved::new(token, world.now);
                moved.protected = self.begin_tls(world);
                self.stage = Stage::Moved(Box::new(moved));
                self.n_is = Ready::ALL;
                Fate::HasMore
            }
            (Outcome::Tcp(fallback), _) => {
                log::info!("connection {number}: stays TCP: {fallback}");
                world.totals.tcp_connections += 1;
                match &fallback {
                    Fallback::Peers(decline) if decline.out_of_sync => self.leave_group(world),
                    _ => self.abandon(world),
                }
                self.stay_tcp(fallback, world);
                Fate::HasMore
            }
            (Outcome::Broken(failure), _) => {
                log::warn!("connection {number}: {failure}");
                self.abandon(world);
                Fate::Over(End::ResetBoth)
            }
            (Outcome::Agreed { .. }, None) => Fate::Over(End::ResetBoth),
        }
    }

    /// Whether the next connection of this user's to this server is to be offered to it.
    fn remember(&self, outcome: &Outcome, lessons: &Lessons) {
        let Some(server) = self.server() else { return };
        match outcome {
            Outcome::Agreed { .. } => lessons.note_success(server, self.uid()),
            // Of a link group that has just ended: the next connection begins another one.
            Outcome::Tcp(fallback) if self.token.is_none() && has_passed(fallback) => {}
            // At once, by the Proposal alone.
            Outcome::Tcp(Fallback::Peers(_)) if self.token.is_none() => {
                self.tell_pause(server, lessons.note_decline(server, self.uid(), lessons::now()));
            }
            _ => self.note_in_vain(server, Cause::Failed, lessons),
        }
    }

    /// It has ended in order: whether it was long enough.
    fn measure(&self, token: AlertToken, begun: Duration, world: &mut World<'_>) {
        let view = world.host.connection(token);
        let Some((server, view)) = self.server().zip(view) else { return };
        let traffic = Traffic {
            messages: view.traffic.messages_sent + view.traffic.messages_received,
            bytes: view.traffic.bytes_sent + view.traffic.bytes_received,
        };
        if autosmc::has_paid(traffic) {
            world.lessons.forget(server, self.uid());
            let carried = Carried {
                time: world.now.saturating_sub(begun),
                sent: view.traffic.bytes_sent,
                received: view.traffic.bytes_received,
            };
            let key = (canonical(server), self.uid());
            if world.rivalry.note(key, carried, world.lessons, world.now) {
                log::info!("connection {}: SMC-R is compared with TCP at {server}", self.number);
            }
        } else {
            self.note_in_vain(server, Cause::Short, world.lessons);
        }
    }

    fn note_in_vain(&self, server: SocketAddr, cause: Cause, lessons: &Lessons) {
        self.tell_pause(server, lessons.note(server, self.uid(), cause, lessons::now()));
    }

    fn tell_pause(&self, server: SocketAddr, pause: Option<Duration>) {
        if let Some(pause) = pause {
            let (number, pause) = (self.number, pause.as_secs());
            log::info!("connection {number}: {server} is left alone for {pause} s");
        }
    }

    fn stay_tcp(&mut self, fallback: Fallback, world: &mut World<'_>) {
        let after = match self.begin_tls(world) {
            Some(protected) => Stage::Protected(protected),
            None => {
                let (is_settled, ways) = (false, Ways::default());
                let fallback = fallback.clone();
                Stage::Relayed(Box::new(Relayed { is_settled, ways, exchange: None, fallback }))
            }
        };
        let before = mem::replace(&mut self.stage, after);
        match (&mut self.stage, before) {
            (Stage::Protected(protected), Stage::Rendezvous(it)) => {
                protected.stay_tcp(it.exchange, fallback);
            }
            (Stage::Relayed(relayed), Stage::Rendezvous(it)) => {
                relayed.exchange = Some(it.exchange)
            }
            _ => {}
        }
        self.n_is = Ready::ALL;
    }

    /// Begins TLS, if that is to protect it: what carries it is known.
    fn begin_tls(&mut self, world: &mut World<'_>) -> Option<Box<Protected>> {
        let Stage::Rendezvous(rendezvous) = &mut self.stage else { return None };
        let Upcoming { mut protected, setup, peer } = *rendezvous.upcoming.take()?;
        protected.begin(world.now);
        world.protection.handshakes.start(self.number, setup, peer);
        Some(Box::new(protected))
    }

    fn abandon(&mut self, world: &mut World<'_>) {
        if let Some(token) = self.token.take() {
            world.host.abandon(token, world.now);
        }
    }

    /// The peer, or a local user in its place, says that it does not know the link group that our Accept
    /// has named. Whether the peer is there, the links tell.
    fn leave_group(&mut self, world: &mut World<'_>) {
        if let Some(token) = self.token.take() {
            log::warn!(
                "connection {}: the peer says that it does not know the link group, and is asked over \
                 its links",
                self.number
            );
            world.host.handle_out_of_sync(token, world.now);
        }
    }
}

/// Lets TCP probe a silent connection, unless the program has it probed as soon. If it cannot be, it is as
/// good as the firewalls on its way.
fn keep_alive(n: &TcpStream) {
    let is_soon = sockopt::socket_keepalive(n) == Ok(true)
        && sockopt::tcp_keepidle(n).is_ok_and(|idle| idle <= N_KEEPALIVE);
    if !is_soon {
        let _ = sockopt::set_tcp_keepidle(n, N_KEEPALIVE);
        let _ = sockopt::set_socket_keepalive(n, true);
    }
}

/// Whether a connection was declined only because one host knew sooner than the other that their link
/// group has ended.
fn has_passed(fallback: &Fallback) -> bool {
    [Diagnosis::NOACTLINK, Diagnosis::SYNCERR].contains(&fallback.diagnosis())
}

impl Rendezvous {
    /// Before the first byte.
    fn settle(&mut self, number: u64, n: &TcpStream, interface: u32, apart: &mut Apart<'_>) {
        // If this process dies, the kernel resets N: an end would be a lie, and a peer by SMC-R would wait for more.
        let _ = sockopt::set_socket_linger(n, Some(Duration::ZERO));
        // CLC passes a filter that wants TLS, because TLS follows.
        if let Some(upcoming) = &mut self.upcoming {
            upcoming.protected.settle(n, apart.reports);
        }
        if !self.is_unwanted && is_denied(n, interface) {
            log::info!("connection {number} stays TCP: the IP filter denies it");
            self.exchange.decline(Diagnosis::CNFERR, apart.now);
        }
    }

    /// Exchanges CLC with the peer, until that has come to something.
    fn talk(&mut self, n: &TcpStream, n_is: &mut Ready, apart: &mut Apart<'_>) -> Fate {
        if self.upcoming.as_ref().is_some_and(|upcoming| upcoming.protected.has_failed()) {
            return Fate::Over(End::Reset);
        }
        loop {
            if self.exchange.poll_timeout().is_some_and(|due| due <= apart.now) {
                self.exchange.handle_timeout(apart.now);
            }
            if !self.flush(n, n_is) {
                return Fate::Waits;
            }
            self.event = self.exchange.poll_event();
            if self.event.is_some() {
                return Fate::HasMore;
            }
            if !self.read(n, n_is, apart.chunk) {
                return Fate::Waits;
            }
        }
    }

    /// Sends what is to be sent. False: not all of it could be.
    fn flush(&mut self, n: &TcpStream, n_is: &mut Ready) -> bool {
        while let Some(message) = self.exchange.poll_transmit() {
            self.unsent.keep(&message);
        }
        while !self.unsent.is_empty() {
            if !n_is.write {
                return false;
            }
            match output::send(n, [self.unsent.left().into(), Stretch::NONE], SendFlags::empty()) {
                Ok(count) => self.unsent.take(count),
                Err(Errno::AGAIN) => n_is.write = false,
                // Reading tells, too.
                Err(_) => self.unsent = Kept::default(),
            }
        }
        true
    }

    /// Reads what the exchange wants, and no more. False: there is nothing.
    fn read(&mut self, n: &TcpStream, n_is: &mut Ready, chunk: &mut [u8]) -> bool {
        let wanted = self.exchange.wanted().min(chunk.len());
        if wanted == 0 || !n_is.read {
            return false;
        }
        // What the exchange does not take is the program's.
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        match net::recv(n, &mut chunk[..wanted], flags) {
            Ok((_, 0)) => self.exchange.handle_end(),
            Ok((_, count)) => {
                let taken = self.exchange.handle_bytes(&chunk[..count]);
                // They are there: they were just seen, and no other process reads.
                let _ = net::recv(n, &mut chunk[..taken], RecvFlags::DONTWAIT);
                if taken == 0 {
                    n_is.read = false;
                }
            }
            Err(Errno::AGAIN) => {
                n_is.read = false;
                return false;
            }
            Err(Errno::INTR) => {}
            Err(_) => self.exchange.handle_reset(),
        }
        true
    }
}

// ---- Moved --------------------------------------------------------------------------------------

impl Moved {
    fn new(token: AlertToken, now: Duration) -> Self {
        Self {
            token,
            protected: None,
            begun: now,
            host_is: Ready::ALL,
            ring: Ring::default(),
            has_arrived: false,
            has_ended: false,
            peer_has_ended: false,
            is_told: false,
            leave: None,
            to_keep_alive: true,
        }
    }

    /// Both ways, the program's bytes as they are.
    fn carry_bytes(&mut self, h: &TcpStream, h_is: &mut Ready, world: &mut World<'_>) -> Fate {
        let outward = self.carry_out(h, h_is, world);
        // Even if the way out is cut, the program is to have what has come.
        let inward = self.carry_in(h, h_is, world);
        let (Ok(more_outward), Ok(more_inward)) = (outward, inward) else {
            return Fate::Over(End::Reset);
        };
        match (self.has_ended && self.is_told, more_outward || more_inward) {
            (true, _) => Fate::Over(End::InOrder),
            (false, true) => Fate::HasMore,
            (false, false) => Fate::Waits,
        }
    }

    /// The same as records of TLS.
    fn carry_records(
        &mut self,
        number: u64,
        h: &TcpStream,
        h_is: &mut Ready,
        world: &mut World<'_>,
    ) -> Fate {
        let Some(protected) = &mut self.protected else { return Fate::HasMore };
        let mut reports = Vec::new();
        let World { host, protection, chunk, now, .. } = world;
        let (token, is, now) = (self.token, &mut self.host_is, *now);
        let mut carrier = BySmcR { host, token, is, has_heard: false, now };
        let mut apart = Apart { chunk, reports: &mut reports, now };
        let fate = protected.advance(number, (h, h_is), &mut carrier, &mut apart);
        if let Some(leave) = &mut self.leave {
            leave.was_heard |= carrier.has_heard;
        }
        self.peer_has_ended = protected.carrier_has_ended();
        reports.into_iter().for_each(|report| protection.heed(number, report));
        fate
    }

    /// From the program to its peer. True: there is more.
    fn carry_out(
        &mut self,
        h: &TcpStream,
        h_is: &mut Ready,
        world: &mut World<'_>,
    ) -> Result<bool, Cut> {
        if mem::take(&mut self.has_arrived) {
            let kept = world.host.kept(self.token).map_err(|_| Cut)?;
            self.ring.pass_arrived(h, usize::try_from(kept).unwrap_or(usize::MAX));
        }
        let mut moved = 0;
        loop {
            if self.has_ended || !h_is.read || !self.host_is.write {
                return Ok(false);
            }
            if moved >= TURN {
                return Ok(true);
            }
            match self.take_in(h, world)? {
                Intake::Bytes { count, .. } => moved += count,
                Intake::End => {
                    self.has_ended = true;
                    world.host.shut(self.token, world.now).map_err(|_| Cut)?;
                }
                Intake::Nothing => h_is.read = false,
            }
        }
    }

    /// Sends what lies in the program's ring, or reads as much from H as the send buffer has room for.
    fn take_in(&mut self, h: &TcpStream, world: &mut World<'_>) -> Result<Intake, Cut> {
        let nothing = Intake::Bytes { count: 0, is_urgent: false };
        let under_way = self.ring.under_way();
        match lent::look(h, under_way).map_err(|_| Cut)? {
            Some(Ahead::Bytes(ahead)) => return self.send_lent(h, &ahead, world),
            Some(ahead) => return Ok(ahead.into()),
            None if under_way > 0 => {
                // They come before what comes by TCP, and are not to be read once more.
                self.host_is.write = false;
                return Ok(nothing);
            }
            None => {}
        }
        let Some(room) = self.unless_full(world.host.room(self.token))? else { return Ok(nothing) };
        let room = room.min(world.chunk.len());
        let taken = intake::take(h, &mut world.chunk[..room]).map_err(|_| Cut)?;
        if let Intake::Bytes { count, is_urgent } = taken {
            let chunk = mem::take(&mut world.chunk);
            let bytes = [(&chunk[..count]).into(), Stretch::NONE];
            let sent = self.send_to_host(bytes, is_urgent, world);
            world.chunk = chunk;
            if sent? < count {
                // There was room for all, so the connection is none any more.
                return Err(Cut);
            }
        }
        Ok(taken)
    }

    /// Has bytes of the ring sent in place, or else by a copy, if nothing before them is under way.
    fn send_lent(
        &mut self,
        h: &TcpStream,
        ahead: &lent::Bytes<'_>,
        world: &mut World<'_>,
    ) -> Result<Intake, Cut> {
        let is_urgent = ahead.is_urgent;
        let bytes = self.ring.in_place(ahead);
        if world.host.send_in_place(self.token, &bytes, world.now).map_err(|_| Cut)? {
            self.ring.note_sent(ahead);
            return Ok(Intake::Bytes { count: ahead.len(), is_urgent });
        }
        if self.ring.under_way() > 0 {
            self.host_is.write = false;
            return Ok(Intake::Bytes { count: 0, is_urgent });
        }
        let count = self.send_to_host(ahead.stretches, is_urgent, world)?;
        lent::pass(h, ahead, count);
        Ok(Intake::Bytes { count, is_urgent })
    }

    /// Returns how many bytes the host takes; if it is not all, it wants no more for now.
    fn send_to_host(
        &mut self,
        stretches: [Stretch<'_>; 2],
        is_urgent: bool,
        world: &mut World<'_>,
    ) -> Result<usize, Cut> {
        let mut count = 0;
        for bytes in stretches.into_iter().filter(|bytes| !bytes.is_empty()) {
            let sent = match is_urgent {
                true => world.host.send_urgent(self.token, bytes, world.now),
                false => world.host.send(self.token, bytes, world.now),
            };
            let sent = self.unless_full(sent)?.unwrap_or(0);
            count += sent;
            if sent < bytes.len() {
                break;
            }
        }
        Ok(count)
    }

    /// What the host has said of sending. `None`: there is no room, until it tells of some.
    fn unless_full(&mut self, said: Result<usize, CallError>) -> Result<Option<usize>, Cut> {
        match said {
            Ok(count) => Ok(Some(count)),
            Err(CallError::WouldBlock) => {
                self.host_is.write = false;
                Ok(None)
            }
            Err(_) => Err(Cut),
        }
    }

    /// From the peer to the program. True: there is more.
    fn carry_in(
        &mut self,
        h: &TcpStream,
        h_is: &mut Ready,
        world: &mut World<'_>,
    ) -> Result<bool, Cut> {
        let mut moved = 0;
        loop {
            if self.peer_has_ended {
                if !self.is_told {
                    self.is_told = true;
                    // A program that has closed H is told nothing, and how it has ended is told by the way out.
                    let _ = h.shutdown(Shutdown::Write);
                }
                return Ok(false);
            }
            if !self.host_is.read || !h_is.write {
                return Ok(false);
            }
            if moved >= TURN {
                return Ok(true);
            }
            match world.host.readable(self.token) {
                Ok(readable) if readable.is_empty() => self.peer_has_ended = true,
                // From the RMBE into the program's ring: the one copy.
                Ok(Readable { stretches, is_urgent }) => {
                    let sent = pass_on(h, h_is, stretches, is_urgent)?;
                    moved += sent;
                    world.host.consume(self.token, sent, world.now).map_err(|_| Cut)?;
                    if let Some(leave) = &mut self.leave {
                        leave.was_heard = true;
                    }
                }
                Err(CallError::WouldBlock) => self.host_is.read = false,
                Err(_) => return Err(Cut),
            }
        }
    }

    /// N is silent, unless its other end is gone.
    fn look_at_n(&mut self, n: &TcpStream, n_is: &mut Ready, now: Duration) -> Result<(), Cut> {
        if !n_is.read {
            return Ok(());
        }
        n_is.read = false;
        let happened = what_has_happened(n);
        let is_reset = happened.contains(PollFlags::ERR);
        if !is_reset && !happened.intersects(PollFlags::RDHUP | PollFlags::HUP) {
            // No byte of either program has been there since both sides agreed. (Behind some an end looks like an end, and
            // the peer says none by CDC.)
            return if happened.contains(PollFlags::IN) { Err(Cut) } else { Ok(()) };
        }
        let until = now + self.leave_patience(is_reset);
        let leave = self.leave.get_or_insert(Leave { until, is_reset, was_heard: false });
        leave.is_reset |= is_reset;
        leave.until = leave.until.min(until);
        Ok(())
    }

    /// How long the peer, which has left N, is waited for. One that has ended in order may have reset N then: Linux does
    /// for a program with an `SO_LINGER` of 0.
    const fn leave_patience(&self, is_reset: bool) -> Duration {
        if is_reset && !self.peer_has_ended { RESET_PATIENCE } else { LEAVE_PATIENCE }
    }

    /// The peer has left N. If it says nothing by CDC either, it is gone.
    fn lose_patience(&mut self, world: &mut World<'_>) -> Result<(), Cut> {
        let now = world.now;
        let Some(leave) = self.leave.filter(|leave| leave.until <= now) else { return Ok(()) };
        let has_unread = |it: Readable<'_>| !it.is_empty();
        if leave.was_heard || world.host.readable(self.token).is_ok_and(has_unread) {
            let until = now + self.leave_patience(leave.is_reset);
            self.leave = Some(Leave { until, was_heard: false, ..leave });
            return Ok(());
        }
        // Who has said D may end its half of N, too, as Linux does.
        if leave.is_reset || !self.peer_has_ended {
            return Err(Cut);
        }
        self.leave = None;
        Ok(())
    }
}

/// Whether the IP filter of the host denies N. One that cannot be asked has ended.
pub(crate) fn is_denied(n: &TcpStream, interface: u32) -> bool {
    sidestep_bpf::is_denied(n, interface).unwrap_or(false)
}

/// What of N poll(2) tells, which asks for no lock.
fn what_has_happened(n: &TcpStream) -> PollFlags {
    let mut asked = [PollFd::new(n, PollFlags::IN | PollFlags::RDHUP)];
    // It is asked anew at the next event.
    let answered = poll(&mut asked, Some(&Timespec::default()));
    answered.map_or(PollFlags::empty(), |_| asked[0].revents())
}

impl Session {
    fn carry(&mut self, world: &mut World<'_>) -> Fate {
        let Self { number, n, h, n_is, h_is, .. } = self;
        let Stage::Moved(moved) = &mut self.stage else { return Fate::HasMore };
        let carried = match moved.protected {
            Some(_) => moved.carry_records(*number, h, h_is, world),
            None => moved.carry_bytes(h, h_is, world),
        };
        let watched = moved
            .look_at_n(n, n_is, world.now)
            .and_then(|()| moved.lose_patience(world))
            .inspect_err(|Cut| log::warn!("connection {number}: the peer has left"));
        match (carried, watched) {
            (Fate::Over(End::InOrder), Ok(())) => {
                let (token, begun) = (moved.token, moved.begun);
                self.token = None;
                self.measure(token, begun, world);
                world.host.close(token, world.now);
                Fate::Over(End::InOrder)
            }
            (Fate::Over(_), _) | (_, Err(Cut)) => {
                // The peer is to read the alert, and that nothing follows it.
                if moved.protected.as_ref().is_some_and(|it| it.has_failed()) {
                    self.token = None;
                    world.host.close(moved.token, world.now);
                }
                Fate::Over(End::Reset)
            }
            (more, Ok(())) => more,
        }
    }
}

// ---- Protected ----------------------------------------------------------------------------------

impl Session {
    /// One that a rule of TLS has.
    pub(crate) fn begin_protected(
        number: u64,
        (offer, ends): (Offer, Ends),
        h: TcpStream,
        setup: &Setup,
        now: Duration,
    ) -> Self {
        let mut protected = Protected::new(ends, setup);
        protected.begin(now);
        Self {
            number,
            ends,
            port: offer.port,
            is_client: offer.side == Side::Client,
            n: offer.connection,
            h,
            n_is: Ready::ALL,
            h_is: Ready::ALL,
            // It has none of the host's buffers.
            sizes: Sizes { rmbe: offer.rmbe, send_buffer: offer.rmbe },
            token: None,
            is_denied: false,
            to_judge: None,
            interface: 0,
            stage: Stage::Protected(Box::new(protected)),
        }
    }

    /// What a program hears that asks about TLS, if its end of H has this port, and whose it is.
    pub(crate) fn protection(&self, port: u16) -> Option<(u32, ProtectionStatus)> {
        let status = match &self.stage {
            Stage::Joined(joined) if joined.other_port() == port => return Some(joined.of_other()),
            _ if self.port != port => return None,
            Stage::Joined(joined) => joined.protection(),
            _ => self.protected().map_or_else(ProtectionStatus::default, Protected::protection),
        };
        Some((self.uid(), status))
    }

    /// The peer has not agreed to TLS yet.
    pub(crate) fn is_shaking_hands(&self) -> bool {
        match &self.stage {
            Stage::Rendezvous(rendezvous) => rendezvous.upcoming.is_some(),
            _ => self.protected().is_some_and(Protected::is_shaking_hands),
        }
    }

    /// What TLS makes of its bytes, once it is known what carries them.
    fn protected(&self) -> Option<&Protected> {
        match &self.stage {
            Stage::Protected(protected) => Some(protected),
            Stage::Moved(moved) => moved.protected.as_deref(),
            _ => None,
        }
    }

    fn protected_mut(&mut self) -> Option<&mut Protected> {
        match &mut self.stage {
            Stage::Protected(protected) => Some(protected),
            Stage::Moved(moved) => moved.protected.as_deref_mut(),
            _ => None,
        }
    }
}

// ---- Joined -------------------------------------------------------------------------------------

impl Session {
    /// Whether it can be [joined](Self::join) with an end of this connection. What has ended cannot: another one may have its
    /// addresses.
    pub(crate) fn may_join(&self, other: &Ends) -> bool {
        matches!(&self.stage, Stage::Protected(it) if it.may_join(other))
            && !what_has_happened(&self.n).contains(PollFlags::HUP)
    }

    /// The other end is here: what is told of N from now on is about the H of that end.
    pub(crate) fn join(&mut self, other: OtherEnd) {
        let Stage::Protected(protected) = &self.stage else { return };
        self.stage = Stage::Joined(Box::new(Joined::new(protected.rule(), other)));
        (self.h_is, self.n_is) = (Ready::ALL, Ready::ALL);
    }

    /// What displays show of its second program, if it has two.
    pub(crate) fn other_status(&self) -> Option<status::Connection> {
        match &self.stage {
            Stage::Joined(joined) => Some(joined.other_status()),
            _ => None,
        }
    }

    fn pass_within_host(&mut self, world: &mut World<'_>) -> Fate {
        let Self { h, h_is, n_is, stage, .. } = self;
        let Stage::Joined(joined) = stage else { return Fate::HasMore };
        joined.pass((h, h_is), n_is, world.chunk)
    }
}

// ---- Relayed ------------------------------------------------------------------------------------

impl Relayed {
    fn talk(
        &mut self,
        h: (&TcpStream, &mut Ready),
        (n, n_is): (&TcpStream, &mut Ready),
        chunk: &mut [u8],
    ) -> Fate {
        if !mem::replace(&mut self.is_settled, true) {
            // No other process reads it, so an urgent byte is to come in line. If it cannot be, the
            // connection has failed, and says so.
            let _ = sockopt::set_socket_oobinline(n, true);
        }
        let exchange = &mut self.exchange;
        // A Decline of the peer may have crossed ours.
        let declines = |first: &[u8]| exchange.take().map_or(0, |exchange| exchange.crossed(first));
        self.ways.pass(h, (n, n_is), chunk, declines)
    }
}
