//! Link groups with their sessions go to the gateway that has this one's place, one after the other.
//!
//! ```text
//!   predecessor                                              successor
//!      │ <── Admits: it knows the state ──────────────────── │
//!      │ a group comes to rest, and leaves the host          │
//!      │ ── Ends, Migrant ─────────────────────────────────> │ the host takes it
//!      │ <── Taken, before anything of it is sent ────────── │ its sessions go on
//!      │ or NotTaken: it comes back                          │
//! ```
//!
//! Whose it is hangs on one message. The successor sends nothing of the group before Taken lies in the socket, and the
//! predecessor takes the group back only when no Taken can come any more: it was told NotTaken, the successor is gone,
//! or it has closed the line in that direction and read what was there.
//!
//! What does not come to rest is tried again later, and drains meanwhile: connections that CLC is not through with,
//! links by RDMA devices, connections that a peer has closed and their program has not. Connections that TLS protects
//! stay, and what is in a link group with one by SMC-R does, too: a server gives those groups of their own. Those that stay TCP are none
//! of the host's, and drain.

use std::collections::BTreeSet;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use sidestep_engine::{Host, Migrant};
use sidestep_wire::AlertToken;
use sidestep_wire::hand_over::Message;

use super::Gateway;
use crate::foreign::RIGHTS_MAX;
use crate::limits::{ANSWER_PATIENCE, FREEZE_PATIENCE, FREEZE_PAUSE};
use crate::migration;
use crate::nic::Nic;
use crate::session::{End, Session, SessionAtRest};
use crate::status::say;
use crate::succession::{Departure, Drain, Gone, exactly, receive_if_any, send};

// ---- leaving ------------------------------------------------------------------------------------

impl Gateway {
    /// Has the next link group leave, as far as that can be now.
    pub(super) fn migrate(&mut self, now: Duration) {
        loop {
            let staying = self.staying_groups_if_due(now);
            let Some(Drain { departure, behind, refused, .. }) = &mut self.drain else { return };
            match departure {
                Departure::Due(at) if *at <= now => {
                    let next = next_group(&self.host, *behind, |it| {
                        !refused.contains(it) && !staying.contains(it)
                    });
                    *behind = next.unwrap_or_default();
                    *departure = match next {
                        Some(group) => {
                            self.host.freeze(group);
                            Departure::Frozen { group, until: now + FREEZE_PATIENCE }
                        }
                        None => Departure::Due(now + FREEZE_PAUSE),
                    };
                }
                Departure::Frozen { group, until } => {
                    let (group, is_late) = (*group, *until <= now);
                    if let Some(gone) = self.leave(group, now) {
                        return self.send_off(gone, now);
                    } else if !is_late {
                        return;
                    }
                    self.host.thaw(group, now);
                    self.set_departure(Departure::Due(now));
                }
                Departure::Sent(gone) if gone.until <= now => return self.close_line(now),
                _ => return,
            }
        }
    }

    /// It is looked for when one is about to leave.
    fn staying_groups_if_due(&self, now: Duration) -> BTreeSet<u32> {
        match &self.drain {
            Some(Drain { departure: Departure::Due(at), .. }) if *at <= now => {
                self.staying_groups()
            }
            _ => BTreeSet::new(),
        }
    }

    /// Link groups with a connection that cannot leave this process.
    pub(super) fn staying_groups(&self) -> BTreeSet<u32> {
        let stays = |(token, number): (&AlertToken, &u64)| {
            let session = self.sessions.get(number)?.session.as_ref()?;
            let view = self.host.connection(*token)?;
            session.stays().then_some(view.group_number)
        };
        self.owners.iter().filter_map(stays).collect()
    }

    fn set_departure(&mut self, stage: Departure) {
        if let Some(drain) = &mut self.drain {
            drain.departure = stage;
        }
    }

    /// Takes a link group and its sessions out of this process, if it is at rest.
    pub(super) fn leave(&mut self, group: u32, now: Duration) -> Option<Gone> {
        let of_group = self.host.connections().filter(|it| it.group_number == group);
        let numbers = of_group.filter_map(|it| self.owners.get(&it.token).copied());
        let numbers: Vec<u64> = numbers.filter(|it| self.sessions.contains_key(it)).collect();
        let at_rest =
            numbers.iter().map(|number| self.sessions[number].session.as_ref()?.at_rest(now));
        let at_rest: Vec<SessionAtRest> = at_rest.collect::<Option<_>>()?;
        let migrant = self.host.emigrate(group, now)?;
        for stream in &migrant.streams {
            self.owners.remove(&stream.token);
            self.lingering.remove(&stream.token);
        }
        let mut sessions: Vec<Session> =
            numbers.into_iter().filter_map(|number| self.release(number)).collect();
        sessions.iter_mut().for_each(Session::part);
        Some(Gone { migrant, at_rest, sessions, until: now + ANSWER_PATIENCE })
    }

    /// Gives it to the successor. If that cannot be, it comes back.
    fn send_off(&mut self, gone: Gone, now: Duration) {
        let line = self.drain.as_ref().and_then(|drain| drain.successor.as_ref());
        let sent =
            line.map_or(Err(io::ErrorKind::NotConnected.into()), |line| gone.send(line.as_fd()));
        self.set_departure(Departure::Sent(Box::new(gone)));
        if let Err(error) = sent {
            log::warn!("a link group cannot be given to the other gateway: {error}");
            self.come_back(now);
        }
    }

    /// The successor has something to say.
    pub(super) fn hear_successor(&mut self, now: Duration) {
        while let Some(drain) = &mut self.drain
            && let Some(line) = &drain.successor
        {
            match (receive_if_any(line), &drain.departure) {
                (Ok(None), _) => return,
                (Ok(Some((Message::Admits(version), _))), Departure::Unasked) => {
                    if version == migration::version() {
                        drain.departure = Departure::Due(now);
                    } else {
                        log::info!(
                            "the other gateway is of a build to which no connections can go: they stay here"
                        );
                    }
                }
                (Ok(Some((Message::Taken, _))), Departure::Sent(_)) => self.part_for_good(now),
                (Ok(Some((Message::NotTaken, _))), Departure::Sent(_)) => self.come_back(now),
                (Ok(Some((other, _))), _) => {
                    log::warn!("the other gateway says {other:?} in between");
                }
                (Err(_), _) => {
                    self.poller.forget(line);
                    self.come_back(now);
                    return self.set_departure(Departure::Unasked);
                }
            }
        }
    }

    /// The successor has taken too long. From now on it can say nothing more; what it has said counts.
    fn close_line(&mut self, now: Duration) {
        let Some(line) = self.drain.as_ref().and_then(|drain| drain.successor.as_ref()) else {
            return;
        };
        log::warn!("the other gateway has not answered for a link group");
        // One that has gone has closed it.
        let _ = shutdown(line, Shutdown::Read);
        self.hear_successor(now);
    }

    /// What was sent goes on in the successor.
    fn part_for_good(&mut self, now: Duration) {
        let Some(Drain { departure, .. }) = &mut self.drain else { return };
        if let Departure::Sent(gone) = std::mem::replace(departure, Departure::Due(now)) {
            log::info!(
                "a link group with {} connections goes on in the other gateway",
                gone.sessions.len()
            );
        }
    }

    /// What was sent, or was to be, goes on here as if nothing had been.
    fn come_back(&mut self, now: Duration) {
        let Some(Drain { departure, .. }) = &mut self.drain else { return };
        match std::mem::replace(departure, Departure::Due(now)) {
            Departure::Sent(gone) => self.take_back(*gone, now),
            Departure::Frozen { group, .. } => self.host.thaw(group, now),
            Departure::Unasked | Departure::Due(_) => {}
        }
    }

    fn take_back(&mut self, gone: Gone, now: Duration) {
        let Gone { migrant, at_rest, sessions, .. } = gone;
        let first = migrant.streams.first().map(|stream| stream.token);
        let has_come = self.host.immigrate(migrant, now);
        let is_back = has_come.is_ok();
        if let Err(unfit) = has_come {
            log::warn!("{} connections are reset: {unfit}", sessions.len());
        }
        for (SessionAtRest { token, .. }, mut session) in at_rest.into_iter().zip(sessions) {
            session.handle_return();
            match is_back {
                true => self.own(token, session, now),
                false => drop(session.end(End::Reset)),
            }
        }
        let group = first.and_then(|token| self.host.connection(token)).map(|it| it.group_number);
        if let Some(drain) = &mut self.drain {
            drain.refused.extend(group);
        }
    }

    /// Begins to watch a session whose connection the host has.
    fn own(&mut self, token: AlertToken, session: Session, now: Duration) {
        let number = session.number();
        self.owners.insert(token, number);
        if !self.admit(number, session) {
            self.host.abort(token, now);
        }
    }

    /// Whether something is on its way that may come back.
    pub(super) fn is_something_away(&self) -> bool {
        matches!(&self.drain, Some(Drain { departure: Departure::Sent(_), .. }))
    }
}

impl Gone {
    /// Gives it to the successor, which answers if it is there.
    ///
    /// # Errors
    ///
    /// The line is closed, or the successor does not read.
    pub(super) fn send(&self, to: BorrowedFd<'_>) -> io::Result<()> {
        self.try_send(to).or_else(|error| {
            log::warn!("a link group cannot be described to the other gateway: {error}");
            // It has descriptors perhaps, and lets go of them when it answers that this is none.
            send(to, Message::Migrant, &[])
        })
    }

    fn try_send(&self, to: BorrowedFd<'_>) -> io::Result<()> {
        let file = migration::write(&self.migrant, &self.at_rest)?;
        let ends: Vec<BorrowedFd<'_>> =
            self.sessions.iter().flat_map(|it| it.sockets().map(AsFd::as_fd)).collect();
        // Both of one connection go together.
        for some in ends.chunks(RIGHTS_MAX / 2 * 2) {
            send(to, Message::Ends, some)?;
        }
        send(to, Message::Migrant, &[file.as_fd()])
    }
}

/// The next link group with connections that may leave, in the order of their numbers.
fn next_group(host: &Host<Nic>, behind: u32, may_leave: impl Fn(&u32) -> bool) -> Option<u32> {
    let groups = host.connections().map(|it| it.group_number);
    groups.filter(|group| *group > behind && may_leave(group)).min()
}

// ---- coming -------------------------------------------------------------------------------------

impl Gateway {
    /// The predecessor has something to say, or one of them has ended.
    pub(super) fn hear_predecessors(&mut self, now: Duration) {
        while let Some(latest) = self.predecessors.first_mut()
            && let Ok(Some((message, rights))) = receive_if_any(&latest.line)
        {
            match message {
                Message::Ends => latest.ends.extend(rights),
                Message::Migrant => {
                    let (ends, process) = (std::mem::take(&mut latest.ends), latest.process);
                    self.answer_migrant(rights, ends, process, now);
                }
                other => log::warn!("process {} says {other:?} in between", latest.process),
            }
        }
        self.look_at_predecessors();
    }

    fn answer_migrant(
        &mut self,
        rights: Vec<OwnedFd>,
        ends: Vec<OwnedFd>,
        process: u32,
        now: Duration,
    ) {
        let taken = self.take_in(rights, ends.len(), now);
        let answer = if taken.is_ok() { Message::Taken } else { Message::NotTaken };
        let latest = self.predecessors.first().filter(|latest| latest.hears);
        let told = latest.map_or(Ok(()), |latest| say(latest.line.as_fd(), answer, &[]));
        let otherwise = if latest.is_some() { "goes on there" } else { "is reset" };
        match (taken, told) {
            (Ok(sessions), Ok(())) => {
                log::info!(
                    "a link group of process {process} goes on here, with {} connections",
                    sessions.len()
                );
                self.resume(&sessions, ends, now);
            }
            // It goes on there, and nothing of it was sent here.
            (Ok(sessions), Err(error)) => {
                log::warn!("process {process} takes its link group back: {error}");
                let first = sessions.first().and_then(|it| self.host.connection(it.token));
                if let Some(group) = first.map(|it| it.group_number) {
                    self.host.freeze(group);
                    self.host.emigrate(group, now);
                }
            }
            (Err(error), _) => {
                log::warn!("a link group of process {process} {otherwise}: {error}");
            }
        }
    }

    /// Takes a link group into the host, and returns its sessions.
    fn take_in(
        &mut self,
        rights: Vec<OwnedFd>,
        ends: usize,
        now: Duration,
    ) -> io::Result<Vec<SessionAtRest>> {
        let [file] = exactly(rights)?;
        let (migrant, sessions) = migration::read(file)?;
        if !is_complete(&migrant, &sessions) || ends != 2 * sessions.len() {
            return Err(io::Error::other("its sessions are not those of its connections"));
        }
        self.host.immigrate(migrant, now).map_err(io::Error::other)?;
        Ok(sessions)
    }

    fn resume(&mut self, sessions: &[SessionAtRest], ends: Vec<OwnedFd>, now: Duration) {
        let mut ends = ends.into_iter().map(TcpStream::from);
        for at_rest in sessions {
            match (ends.next(), ends.next()) {
                (Some(h), Some(n)) => {
                    self.last_session += 1;
                    let session = Session::resume(self.last_session, at_rest, [h, n], now);
                    self.own(at_rest.token, session, now);
                }
                _ => self.host.abort(at_rest.token, now),
            }
        }
    }
}

/// Whether each connection that a program has is a session's, and each session has one.
fn is_complete(migrant: &Migrant, sessions: &[SessionAtRest]) -> bool {
    let held = migrant.streams.iter().filter(|it| it.is_held).map(|it| it.token);
    let held: BTreeSet<AlertToken> = held.collect();
    let owned: BTreeSet<AlertToken> = sessions.iter().map(|it| it.token).collect();
    owned.len() == sessions.len() && held == owned
}
