//! A connection that TLS protects: the program's bytes on H, records on what carries them, N or SMC-R ([`carrier`](super::carrier)).
//!
//! ```text
//!             ┌── Handshake: H is not read, so the program's bytes wait there
//!     refused │      │ over
//!             │      v
//!             │   H ──> write ──> records ──> carrier   the program's end: close_notify, FIN
//!             │   H <── read  <── take    <── carrier   close_notify: FIN on H
//!             v      │
//!       an alert,    └── both have ended, or one is reset
//!       H is reset
//! ```
//!
//! The table says N; of a connection whose records go by SMC-R it holds for that, where a FIN is D and a RST is A.
//!
//! | One side | becomes on the other |
//! |---|---|
//! | H ends (FIN) | `close_notify`, then FIN; with `half_close = "hold"` once the peer has ended |
//! | H is reset | RST on N |
//! | N says `close_notify` | FIN on H |
//! | N ends without it | RST on H; with `unclean_end = "eof"` FIN |
//! | N is reset, or what comes was changed | RST on H |
//! | H is full, or N is | the other side is not read; at most one chunk is kept |
//! | an urgent byte | in line, without its mark: TLS has none |
//!
//! Where its program has begun TLS in the middle of the connection (`controlled = true`), a client finds nothing on N before it
//! has spoken, and a server finds a handshake. Anything else is plain text that the program may not take for protected, and
//! ends the connection.
//!
//! To the peer goes what the session has made of bytes, and nothing else: there is no way from H past it.

use super::carrier::Carrier;
use super::turn::{Apart, Cut, End, Fate, Ready, pass_on};
use crate::bytes::Kept;
use crate::ends::Ends;
use crate::handshakes::Done;
use crate::intake::{self, Intake};
use crate::limits::{HANDSHAKE_PATIENCE, TURN};
use crate::protection::{Report, mark};
use crate::status;
use rustix::net::sockopt;
use sidestep_proto::protection::{Begin, Role, RuleName};
use sidestep_proto::rendezvous::hosts::{Exchange, Fallback};
use sidestep_rdma::memory::Stretch;
use sidestep_tls::rule::{HalfClose, WithinHost};
use sidestep_tls::session::{Got, Protection};
use sidestep_tls::{Failure, Session as Tls, Setup};
use sidestep_wire::protection_status::{PeerCertificate, ProtectionStatus, State};
use std::mem;
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::time::Duration;

/// Bytes of plain text of a record, at most. *Source*: RFC 8446 §5.1.
const PLAIN_LEN_MAX: usize = 1 << 14;

/// How often N is read before the program is given what came, so that a peer that sends without a pause delays no byte for long.
const READINGS_MAX: usize = 8;

/// The first byte of a record of the handshake. *Source*: RFC 8446 §5.1.
const HANDSHAKE: u8 = 22;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Protected {
    of: (Role, RuleName),
    ends: Ends,
    within_host: WithinHost,
    half_close: HalfClose,
    /// Nothing but TLS is to be let through by the kernel's filters.
    is_enforced: bool,
    /// N is as it has to be.
    is_settled: bool,
    /// Until the first bytes of the peer have come: they may be its Decline, which has crossed ours.
    exchange: Option<Exchange>,
    fallback: Option<Fallback>,
    /// `None`: a thread works on it.
    tls: Option<Box<Tls>>,
    /// When the handshake has to be over; `None`: it is.
    due: Option<Duration>,
    /// It was in plain text before, and whether any of that lies where TLS begins is still to be looked at.
    may_have_plain_text: bool,
    protection: Option<Protection>,
    /// What the carrier has not taken.
    records: Kept,
    /// What the session has not taken.
    incoming: Kept,
    /// What H has not taken.
    plain: Kept,
    /// The program sends no more.
    has_ended: bool,
    /// `close_notify` is behind the records.
    has_closed: bool,
    /// So has the carrier.
    peer_is_told: bool,
    /// The peer sends no more.
    peer_has_ended: bool,
    /// Nor does the carrier bring any.
    carrier_has_ended: bool,
    /// H has ended.
    is_told: bool,
    has_failed: bool,
}

/// Why it ends before its time.
enum Stop {
    Failed(Failure),
    /// H is gone.
    Program,
    /// The carrier is.
    Network,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Protected {
    /// Its handshake [begins](Self::begin) later.
    pub(super) fn new(ends: Ends, setup: &Setup) -> Self {
        let rule = setup.rule();
        Self {
            of: (rule.scope.role, rule.name()),
            ends,
            within_host: rule.within_host,
            half_close: rule.half_close,
            is_enforced: rule.enforce,
            is_settled: false,
            exchange: None,
            fallback: None,
            tls: None,
            due: None,
            may_have_plain_text: rule.scope.begin == Begin::Asked,
            protection: None,
            records: Kept::default(),
            incoming: Kept::default(),
            plain: Kept::default(),
            has_ended: false,
            has_closed: false,
            peer_is_told: false,
            peer_has_ended: false,
            carrier_has_ended: false,
            is_told: false,
            has_failed: false,
        }
    }

    /// A thread begins its handshake.
    pub(super) fn begin(&mut self, now: Duration) {
        self.due = Some(now + HANDSHAKE_PATIENCE);
    }

    /// CLC has come to nothing, for this reason, and its bytes may not be over: of those that come first it knows which are.
    pub(super) fn stay_tcp(&mut self, exchange: Exchange, fallback: Fallback) {
        (self.exchange, self.fallback) = (Some(exchange), Some(fallback));
    }

    /// Why its records go by TCP, though both hosts know SMC.
    pub(super) const fn fallback(&self) -> Option<&Fallback> {
        self.fallback.as_ref()
    }

    /// A thread has worked on the handshake.
    pub(super) fn handle_handshake(&mut self, done: Done, reports: &mut Vec<Report>) {
        self.tls = done.session;
        if let Err(failure) = done.result {
            self.fail(failure, reports);
        }
    }

    /// Whether the handshake goes on.
    pub(super) const fn is_shaking_hands(&self) -> bool {
        self.due.is_some()
    }

    /// Whether its bytes may stay in memory if this is its other side: not one of either program's has been taken yet.
    pub(super) fn may_join(&self, other: &Ends) -> bool {
        self.within_host == WithinHost::Memory
            && self.is_shaking_hands()
            && self.ends.is_other_side_of(other)
    }

    /// By which it is protected.
    pub(super) const fn rule(&self) -> RuleName {
        self.of.1
    }

    /// The peer sends no more, not even records.
    pub(super) const fn carrier_has_ended(&self) -> bool {
        self.carrier_has_ended
    }

    /// It is refused, and the peer is told.
    pub(super) const fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Does what can be done, once N is [as it has to be](Self::settle).
    pub(super) fn advance(
        &mut self,
        number: u64,
        (h, h_is): (&TcpStream, &mut Ready),
        carrier: &mut impl Carrier,
        apart: &mut Apart<'_>,
    ) -> Fate {
        match self.go_on(number, (h, h_is), carrier, apart) {
            Ok(fate) => fate,
            Err(Stop::Program) => Fate::Over(End::ResetBoth),
            Err(Stop::Network) => {
                if self.due.is_some() {
                    self.fail(Failure::Unfinished, apart.reports);
                }
                Fate::Over(End::Reset)
            }
            Err(Stop::Failed(failure)) => {
                self.fail(failure, apart.reports);
                self.say_why(carrier)
            }
        }
    }

    pub(super) fn status(&self) -> status::Protection {
        let (_, rule) = self.of;
        status::Protection {
            rule: rule.to_string(),
            version: self.protection.map(|it| it.version.to_string()),
            cipher: self.protection.map(|it| it.cipher.to_string()),
        }
    }

    /// What a program hears that asks.
    pub(super) fn protection(&self) -> ProtectionStatus {
        let rule = Some(self.rule());
        let Some(protection) = self.protection else {
            return ProtectionStatus {
                state: State::Handshake,
                rule,
                ..ProtectionStatus::default()
            };
        };
        let shown = self.tls.as_ref().and_then(|tls| tls.peer_certificate());
        ProtectionStatus {
            state: State::Protected,
            is_resumed: protection.is_resumed,
            version: protection.version.number(),
            cipher: protection.cipher.number().to_be_bytes(),
            rule,
            certificate: shown.map(|it| PeerCertificate::new(it.sha256, &it.subject)),
        }
    }

    pub(super) const fn poll_timeout(&self) -> Option<Duration> {
        self.due
    }

    fn go_on(
        &mut self,
        number: u64,
        (h, h_is): (&TcpStream, &mut Ready),
        carrier: &mut impl Carrier,
        apart: &mut Apart<'_>,
    ) -> Result<Fate, Stop> {
        if self.has_failed {
            return Ok(self.say_why(carrier));
        }
        if self.due.is_some() {
            if self.shake_hands(carrier, apart)? {
                return Ok(Fate::Waits);
            }
            log::debug!("connection {number}: {:?} by rule {}", self.protection, self.of.1);
        }
        let outward = self.carry_out((h, h_is), carrier, apart.chunk);
        // Even if the way out is cut, the program is to have what has come.
        let inward = self.carry_in(carrier, (h, h_is), apart.chunk);
        let (more_inward, more_outward) = (inward?, outward?);
        if self.peer_is_told && self.is_told {
            return Ok(Fate::Over(End::InOrder));
        }
        Ok(if more_outward || more_inward { Fate::HasMore } else { Fate::Waits })
    }

    /// Before the first byte: N is marked for the kernel's filters, and its records leave at once. It fails where it cannot be
    /// marked and has to be.
    pub(super) fn settle(&mut self, n: &TcpStream, reports: &mut Vec<Report>) {
        if mem::replace(&mut self.is_settled, true) {
            return;
        }
        if let Err(error) = mark(n) {
            let (ends, of) = (self.ends, self.of);
            reports.push(Report::Unmarked { ends, of, is_enforced: self.is_enforced, error });
            if self.is_enforced {
                (self.due, self.has_failed) = (None, true);
            }
        }
        // Records are whole already. If these cannot be set, the connection has ended, and says so.
        let _ = n.set_nodelay(true);
        let _ = sockopt::set_socket_oobinline(n, true);
    }

    /// True: the handshake goes on.
    fn shake_hands(
        &mut self,
        carrier: &mut impl Carrier,
        apart: &mut Apart<'_>,
    ) -> Result<bool, Stop> {
        if self.due.is_some_and(|due| due <= apart.now) {
            return Err(Failure::TooLate.into());
        }
        let Some(mut tls) = self.tls.take() else { return Ok(true) };
        self.look_for_plain_text(carrier)?;
        self.collect(&mut tls);
        let is_flushed = self.flush(carrier)?;
        if !tls.is_handshaking() {
            self.due = None;
            self.protection = tls.protection();
            let is_resumed = self.protection.is_some_and(|it| it.is_resumed);
            apart.reports.push(Report::Handshake { of: self.of, is_resumed });
            self.tls = Some(tls);
            return Ok(false);
        }
        let has_news = is_flushed && self.listen(&mut tls, carrier, apart.chunk)?;
        match has_news {
            true => apart.reports.push(Report::Process(tls)),
            false => self.tls = Some(tls),
        }
        Ok(true)
    }

    /// Refuses what the peer has sent ahead of TLS, before anything of it goes to a session or ours goes out.
    fn look_for_plain_text(&mut self, carrier: &mut impl Carrier) -> Result<(), Failure> {
        if !self.may_have_plain_text {
            return Ok(());
        }
        let is_client = self.of.0 == Role::Outbound;
        let first = carrier.first();
        // A server that waits for TLS is silent until the client has spoken.
        self.may_have_plain_text = !is_client && first.is_none();
        match first {
            Some(first) if is_client || first != HANDSHAKE => Err(Failure::Ahead),
            _ => Ok(()),
        }
    }

    /// Takes what has come. False: nothing has.
    fn listen(
        &mut self,
        tls: &mut Tls,
        carrier: &mut impl Carrier,
        chunk: &mut [u8],
    ) -> Result<bool, Stop> {
        let mut fresh = 0..0;
        let has_news = self.take_records(tls, carrier, chunk, &mut fresh);
        self.incoming.keep(&chunk[fresh]);
        has_news
    }

    /// Has the session take what was kept, or else the `fresh` part of `room`, which is read anew where it is empty.
    /// False: there is nothing.
    fn take_records(
        &mut self,
        tls: &mut Tls,
        carrier: &mut impl Carrier,
        room: &mut [u8],
        fresh: &mut Range<usize>,
    ) -> Result<bool, Stop> {
        if !self.incoming.is_empty() {
            let taken = tls.take(self.incoming.left());
            self.incoming.take(taken);
            return Ok(taken > 0);
        }
        if fresh.start == fresh.end {
            if self.carrier_has_ended || !carrier.may_receive() {
                return Ok(false);
            }
            match carrier.receive(room).map_err(|Cut| Stop::Network)? {
                Intake::Bytes { count, .. } => {
                    let crossed = self.exchange.take().map_or(0, |it| it.crossed(&room[..count]));
                    *fresh = crossed..count;
                    if crossed == count {
                        return Ok(true);
                    }
                }
                Intake::End => {
                    self.carrier_has_ended = true;
                    tls.handle_end();
                    return Ok(true);
                }
                Intake::Nothing => return Ok(false),
            }
        }
        let taken = tls.take(&room[fresh.clone()]);
        fresh.start += taken;
        Ok(taken > 0)
    }

    /// From the program to its peer. True: there is more.
    fn carry_out(
        &mut self,
        (h, h_is): (&TcpStream, &mut Ready),
        carrier: &mut impl Carrier,
        chunk: &mut [u8],
    ) -> Result<bool, Stop> {
        let Some(mut tls) = self.tls.take() else { return Ok(false) };
        let result = self.encrypt(&mut tls, (h, h_is), carrier, chunk);
        self.tls = Some(tls);
        result
    }

    fn encrypt(
        &mut self,
        tls: &mut Tls,
        (h, h_is): (&TcpStream, &mut Ready),
        carrier: &mut impl Carrier,
        chunk: &mut [u8],
    ) -> Result<bool, Stop> {
        let mut moved = 0;
        loop {
            self.collect(tls);
            if !self.flush(carrier)? {
                return Ok(false);
            }
            if self.has_closed {
                self.tell_peer(carrier);
                return Ok(false);
            }
            if self.has_ended {
                if self.half_close == HalfClose::Hold && !self.peer_has_ended {
                    return Ok(false);
                }
                self.has_closed = true;
                tls.close();
            } else if !h_is.read || moved >= TURN {
                return Ok(h_is.read);
            } else {
                moved += self.take_in(tls, (h, h_is), chunk)?;
            }
        }
    }

    /// `close_notify` has gone, and the carrier ends behind it.
    fn tell_peer(&mut self, carrier: &mut impl Carrier) {
        if !mem::replace(&mut self.peer_is_told, true) {
            carrier.end();
        }
    }

    /// Takes what the program has sent. Returns how many bytes it was.
    fn take_in(
        &mut self,
        tls: &mut Tls,
        (h, h_is): (&TcpStream, &mut Ready),
        chunk: &mut [u8],
    ) -> Result<usize, Stop> {
        match intake::take(h, chunk).map_err(|_| Stop::Program)? {
            Intake::Bytes { count, .. } => {
                let written = tls.write(&chunk[..count]);
                debug_assert_eq!(written, count, "the handshake is over");
                return Ok(count);
            }
            Intake::End => self.has_ended = true,
            Intake::Nothing => h_is.read = false,
        }
        Ok(0)
    }

    /// From the peer to the program. True: there is more.
    fn carry_in(
        &mut self,
        carrier: &mut impl Carrier,
        (h, h_is): (&TcpStream, &mut Ready),
        chunk: &mut [u8],
    ) -> Result<bool, Stop> {
        let Some(mut tls) = self.tls.take() else { return Ok(false) };
        let result = self.decrypt(&mut tls, carrier, (h, h_is), chunk);
        // What the session answers by itself, such as a refused renegotiation: the peer may wait for it.
        self.collect(&mut tls);
        self.tls = Some(tls);
        let mut more = result?;
        if self.peer_has_ended && self.plain.is_empty() && !self.is_told {
            self.is_told = true;
            h.shutdown(Shutdown::Write).map_err(|_| Stop::Program)?;
            // What was held back goes now.
            more |= self.has_ended && !self.has_closed;
        }
        if !self.peer_is_told {
            self.flush(carrier)?;
        }
        Ok(more)
    }

    /// What the session has not taken of what was read stays where it is until the turn is over.
    fn decrypt(
        &mut self,
        tls: &mut Tls,
        carrier: &mut impl Carrier,
        (h, h_is): (&TcpStream, &mut Ready),
        chunk: &mut [u8],
    ) -> Result<bool, Stop> {
        let (plain, records) = chunk.split_at_mut(PLAIN_LEN_MAX);
        let mut fresh = 0..0;
        let mut moved = 0;
        let result = loop {
            if !self.give_kept(h, h_is)? || self.peer_has_ended {
                break Ok(false);
            }
            if moved >= TURN {
                break Ok(true);
            }
            let (count, result) = self.gather(tls, carrier, (plain, records), &mut fresh);
            moved += count;
            if count > 0 {
                self.give(h, h_is, &plain[..count])?;
            }
            match result {
                Ok(true) => {}
                ended => break ended,
            }
        };
        self.incoming.keep(&records[fresh]);
        result
    }

    /// Puts what the peer has sent to the front of `plain`, of several records and readings where more comes meanwhile: each time
    /// that a program is given something costs more than a short record. Returns how many bytes there are, also where
    /// something is wrong behind them; false: there are no more for now.
    fn gather(
        &mut self,
        tls: &mut Tls,
        carrier: &mut impl Carrier,
        (plain, records): (&mut [u8], &mut [u8]),
        fresh: &mut Range<usize>,
    ) -> (usize, Result<bool, Stop>) {
        let (mut count, mut readings) = (0, 0);
        while count < plain.len() && readings < READINGS_MAX {
            match tls.read(&mut plain[count..]) {
                Ok(Got::Bytes(more)) => count += more,
                Ok(Got::End) => {
                    self.peer_has_ended = true;
                    break;
                }
                Ok(Got::Nothing) => match self.take_records(tls, carrier, records, fresh) {
                    Ok(true) => {
                        readings += 1;
                        if let Err(failure) = tls.process() {
                            return (count, Err(failure.into()));
                        }
                    }
                    nothing => return (count, nothing),
                },
                Err(failure) => return (count, Err(failure.into())),
            }
        }
        (count, Ok(true))
    }

    /// Gives the program bytes, and keeps those that it has no room for.
    fn give(&mut self, h: &TcpStream, h_is: &mut Ready, bytes: &[u8]) -> Result<(), Stop> {
        let stretches = [bytes.into(), Stretch::NONE];
        let given = match h_is.write {
            true => pass_on(h, h_is, stretches, false).map_err(|Cut| Stop::Program)?,
            false => 0,
        };
        self.plain.keep(&bytes[given..]);
        Ok(())
    }

    /// False: the program has no room for what was kept.
    fn give_kept(&mut self, h: &TcpStream, h_is: &mut Ready) -> Result<bool, Stop> {
        while !self.plain.is_empty() {
            if !h_is.write {
                return Ok(false);
            }
            let bytes = [self.plain.left().into(), Stretch::NONE];
            let given = pass_on(h, h_is, bytes, false).map_err(|Cut| Stop::Program)?;
            self.plain.take(given);
        }
        Ok(true)
    }

    fn collect(&mut self, tls: &mut Tls) {
        self.records.keep_by(|records| tls.transmit(records));
    }

    /// False: the carrier has not taken all.
    fn flush(&mut self, carrier: &mut impl Carrier) -> Result<bool, Stop> {
        while !self.records.is_empty() {
            if !carrier.may_send() {
                return Ok(false);
            }
            let sent = carrier.send(self.records.left()).map_err(|Cut| Stop::Network)?;
            self.records.take(sent);
        }
        Ok(true)
    }

    fn fail(&mut self, failure: Failure, reports: &mut Vec<Report>) {
        if !mem::replace(&mut self.has_failed, true) {
            self.due = None;
            reports.push(Report::Failure { ends: self.ends, of: self.of, failure });
        }
    }

    /// Tells the peer by an alert, as far as the carrier takes it at once, and ends.
    fn say_why(&mut self, carrier: &mut impl Carrier) -> Fate {
        if let Some(mut tls) = self.tls.take() {
            self.collect(&mut tls);
        }
        let _ = self.flush(carrier);
        // An end in order, so that the alert is read. The program has no N any more.
        carrier.end();
        Fate::Over(End::Reset)
    }
}

#[cfg(test)]
mod tests;
