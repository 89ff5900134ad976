//! Which of several distributors owns the VIPs: a machine without I/O and without a clock.
//!
//! ```text
//!            the store: one record, replaced by compare-and-swap
//!            { owner, backups }
//!              ^            ^
//!        write │            │ write, when the owner is silent
//!           owner ──ask──> backup
//!                 <promise──
//! ```
//!
//! The record says who owns the VIPs, and which other distributors, its *backups*, may replace it. The owner asks each
//! backup several times a second to promise that it takes nothing over for [`LEASE`]; it serves as long as it has
//! the promise of **all** of them. A backup that is silent is taken off the record, through the store; an owner that can
//! do neither ends to serve. So the store is written when a distributor comes or goes, and not while all of them live:
//! VIPs go on without it.
//!
//! # Never two owners
//!
//! Let `r` be the owner's latest record, sent to the store at `w`. The owner serves at a moment only if, for each
//! backup `b` of `r` and of each record that may be in force in its place because its fate is not known,
//! that moment is before `g + USABLE`, where `g` is the later of `w` and the moment at which the last question was asked that `b`
//! answered. Another distributor serves only once the store has replaced `r` by its record. The store accepts
//! that of none but a backup of `r`, since it compares revisions, and since a distributor tries to replace no record that does
//! not list it. A backup `b` sends it at `s`, when [`LEASE`] has passed since it first saw `r`, which is after `w`, and since its last
//! promise, which is after it was asked; from then on it promises nothing until it knows what became of it. So
//! `g + LEASE <= s`, and the owner ended at `g + USABLE < s`. A lease that has ended is not revived by promises, which an owner
//! that was replaced meanwhile could get as well, but by a record that the store accepts. Messages may be lost, late or repeated, and each
//! distributor may stand still at any point. What is asked of clocks is that none gains a tenth on another;
//! what they show does not matter.
//!
//! Without the store such a lease is revived by the backups' *words*. A backup that gives its word promises, and says besides that the last record it has
//! seen is this very process's, and that it has sent the store nothing whose fate it does not know. If each backup of `r` and of each record
//! that may be in force in its place does, none of them has replaced it, and none does for [`LEASE`]. A restarted backup could have sent
//! something before, which replaces no record later than the first one that it sees; so it gives its word for later ones only. An owner that does not
//! know whether it has given the VIPs up serves on no terms.
//!
//! A distributor that has restarted replaces its own record at once: what served before has ended with its process. It waits for as long as
//! it has promised, if the record was written by its earlier process and came into force after that. A record
//! without owner was given up by an owner that had ended to serve.
//!
//! # Who stood still
//!
//! A process that gets no CPU, or whose host stands still, hears nothing meanwhile. It does not take that for its peer's silence: time counts
//! towards [`SILENCE`] as far as this process has lived through it, from tick to tick. An owner takes off no backup, and a backup takes nothing over,
//! before that. What is about safety goes by true time all the same.
//!
//! An owner whose link is gone, and which reaches the store, gives the VIPs up in the same way, and so does a distributor for
//! a process of its host before: without a backup the lease would never end, and a distributor that comes to the link cannot be put on
//! the record, since it is not heard.
//!
//! # Back to the highest rank
//!
//! An owner that is to switch back gives the VIPs up once it is [outranked](Election::is_outranked): its first backup has a higher rank than
//! its own, and has been on the record for [`SWITCH_BACK_AFTER`]. VIPs that the operator has moved stay where they are, until
//! that owner is gone. A distributor promises nothing, and so is no backup, before it is [ready](Election::ready).

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

/// For how long a promise binds a backup, by its clock.
pub const LEASE: Duration = Duration::from_millis(1000);
/// For how long the owner relies on it, by its own.
pub const USABLE: Duration = Duration::from_millis(900);
/// From one question to the next.
const ASK_EVERY: Duration = Duration::from_millis(150);
/// A backup that has not answered for so long is taken off the record, and an owner that has not asked for so long is not replaced before.
const SILENCE: Duration = Duration::from_millis(500);
/// What lies between two ticks counts as lived through up to this: three ticks.
const LIVED_MAX: Duration = Duration::from_millis(150);
/// From one look into the store to the next.
const READ_EVERY: Duration = Duration::from_millis(500);
/// From one look to the next while a takeover waits for it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The second backup leaves the first so long to take over, and so on.
const STAGGER: Duration = Duration::from_millis(300);
/// For how long VIPs that were given up wait for the distributor that is to have them. It has to hear of it, and to reach the store.
const RESERVED: Duration = LEASE;
/// A backup of a higher rank has been on the record for so long before it outranks the owner.
pub const SWITCH_BACK_AFTER: Duration = Duration::from_millis(3000);
/// An owner whose link is gone for so long gives the VIPs up.
const CUT_OFF: Duration = LEASE;
/// Questions whose answers still count.
const ASKED_MAX: usize = 16;
/// Distributors that take part.
pub const CANDIDATES_MAX: usize = 16;

/// A process of a distributor: its address on the link, and a number that no other process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Of the distributor's host.
    pub host: IpAddr,
    /// Drawn when it starts.
    pub instance: u64,
}

/// What the store has of ownership.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// `None`: it was given up.
    pub owner: Option<Process>,
    /// Who may replace it, the first one first.
    pub backups: Vec<IpAddr>,
    /// Targets that the operator has drained, as `VIP/TARGET`.
    pub drained: Vec<String>,
    /// The owner has the VIPs, or gets them, by the operator's word.
    pub is_moved: bool,
}

/// A distributor that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Who it is.
    pub process: Process,
    /// The higher one takes over.
    pub rank: u32,
}

/// What a look into the store has found, all of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// With its revision, which is above 0; the store gives each record another, higher one.
    pub record: Option<(u64, Record)>,
    /// Who has registered.
    pub candidates: Vec<Candidate>,
}

/// What became of a record that was sent to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is in force, with this revision.
    Done(u64),
    /// Another revision than the expected one was in force.
    Conflict,
    /// The store was not reached: it is not in force, and never will be.
    NotSent,
    /// There was no answer: it may be in force, now or later, or not.
    Unknown,
}

/// What one distributor tells another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The owner asks for a promise; the number comes back with it.
    Ask(u64),
    /// Nothing is taken over for [`LEASE`].
    Promise(u64),
    /// The owner has given the VIPs up: the store has a record without owner.
    GaveUp,
    /// The owner, whose lease has ended, asks for a word; the number comes back with it.
    AskWord(u64),
    /// A promise to the process with this number ([`Process::instance`]), which as far as the backup knows owns the VIPs, and which it has not replaced.
    Word(u64, u64),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Look into the store; then [`Election::read`].
    Read,
    /// Have the store replace the record of this revision, 0 if there is none; then [`Election::written`].
    Write {
        /// What it compares.
        expected: u64,
        /// What it writes.
        record: Record,
    },
    /// Have the store note this candidate; then [`Election::registered`].
    Register(Candidate),
    /// Tell another distributor.
    Send(IpAddr, Message),
}

/// What a distributor is to the VIPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It owns them, and serves as long as its lease runs.
    Owner,
    /// It takes over when the owner is gone.
    Backup,
    /// The record does not name it.
    Stranger,
}

/// One distributor's part in the election. Times are of one clock that never jumps and goes on in suspension.
#[derive(Debug)]
pub struct Election {
    own: Candidate,
    /// It could serve.
    is_ready: bool,
    /// The record as it was seen last, and since when it is known.
    seen: Option<Seen>,
    /// Something else may be in force: nothing is written before that is known.
    is_outdated: bool,
    candidates: Vec<Candidate>,
    /// What the store is doing for us.
    pending: Option<Pending>,
    /// The revision that a record of ours, whose fate is unknown, would replace.
    doubt: Option<u64>,
    /// That record gives the VIPs up: they may be another's at any time.
    may_be_given_up: bool,
    owns: bool,
    /// The backups of each record of ours that may be in force, and the `g` of the proof for each.
    granted: BTreeMap<IpAddr, Duration>,
    /// Who has answered, and when it was asked, by what was lived through.
    heard: BTreeMap<IpAddr, Duration>,
    asked: VecDeque<Moment>,
    /// The processes of the backups when the record was sent.
    backers: Vec<Process>,
    /// Since when each backup is on a record of ours.
    backed: BTreeMap<IpAddr, Duration>,
    /// Our own last promise.
    promised: Option<Moment>,
    /// How much time this process has lived through, and the last tick.
    lived: Duration,
    ticked: Option<Duration>,
    /// The revision that was found first.
    first: Option<u64>,
    ask_due: Duration,
    read_due: Duration,
    /// The owner has given the VIPs up since the last look began.
    is_told: bool,
    /// When the last look began.
    read_begun: Duration,
    /// The host that is to have the VIPs; ours to give up, and whether the operator says so.
    successor: Option<IpAddr>,
    is_moving: bool,
    drained: Vec<String>,
    is_connected: bool,
    /// Since when it is not.
    cut_off: Option<Duration>,
}

/// A moment, also by what this process had lived through then.
#[derive(Clone, Copy, Debug)]
struct Moment {
    at: Duration,
    lived: Duration,
}

#[derive(Debug)]
struct Seen {
    /// 0: there is none.
    revision: u64,
    record: Record,
    since: Moment,
    /// When it was last found in force.
    confirmed: Duration,
}

#[derive(Debug)]
enum Pending {
    Read,
    Register,
    Write { expected: u64, record: Record, sent: Duration, backers: Vec<Process> },
}

impl Election {
    /// That of a distributor which knows nothing yet.
    #[must_use]
    pub fn new(own: Candidate) -> Self {
        Self {
            own,
            is_ready: false,
            seen: None,
            is_outdated: false,
            candidates: Vec::new(),
            pending: None,
            doubt: None,
            may_be_given_up: false,
            owns: false,
            granted: BTreeMap::new(),
            heard: BTreeMap::new(),
            asked: VecDeque::new(),
            backers: Vec::new(),
            backed: BTreeMap::new(),
            promised: None,
            lived: Duration::ZERO,
            ticked: None,
            first: None,
            ask_due: Duration::ZERO,
            read_due: Duration::ZERO,
            is_told: false,
            read_begun: Duration::ZERO,
            successor: None,
            is_moving: false,
            drained: Vec::new(),
            is_connected: true,
            cut_off: None,
        }
    }

    /// Until when it may serve; [`Duration::MAX`]: there is no backup. Past: not any more.
    #[must_use]
    pub fn serves_until(&self) -> Duration {
        if !self.owns || self.successor.is_some() || self.may_be_given_up {
            return Duration::ZERO;
        }
        let ends = self.granted.values().map(|granted| granted.saturating_add(USABLE));
        ends.min().unwrap_or(Duration::MAX)
    }

    /// What it is to the VIPs.
    #[must_use]
    pub fn role(&self) -> Role {
        match &self.seen {
            _ if self.owns => Role::Owner,
            Some(seen) if seen.record.backups.contains(&self.own.process.host) => Role::Backup,
            _ => Role::Stranger,
        }
    }

    /// The record that was seen last.
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        self.seen.as_ref().filter(|seen| seen.revision != 0).map(|seen| &seen.record)
    }

    /// Whether its link carries. An owner whose link does not takes no backup off, and gives the VIPs up after a while; a
    /// backup takes nothing over.
    pub fn connected(&mut self, is_connected: bool) {
        self.is_connected = is_connected;
    }

    /// Whether its link carries, as far as it was told.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// It could serve, from now on. Before it is no backup.
    pub fn ready(&mut self) {
        self.is_ready = true;
    }

    /// The owner's drained targets, for the record.
    pub fn drain(&mut self, drained: Vec<String>) {
        self.drained = drained;
    }

    /// The targets that are to be drained here: by the owner's word, or the record's.
    #[must_use]
    pub fn drained_here(&self) -> Option<&[String]> {
        let record = self.record().map(|record| &record.drained[..]);
        if self.owns { Some(&self.drained) } else { record }
    }

    /// The owner ends to serve, and gives the VIPs up, to a backup if there is one: to `to`, if the operator names one, otherwise
    /// to its first.
    pub fn give_up(&mut self, to: Option<IpAddr>) {
        if self.owns {
            let first = self.record().and_then(|record| record.backups.first().copied());
            self.successor = to.or(first).or(Some(self.own.process.host));
            self.is_moving = to.is_some();
        }
    }

    /// Whether this is the owner, and a backup that could replace it has a higher rank. Backups are by rank, the highest first.
    #[must_use]
    pub fn is_outranked(&self, now: Duration) -> bool {
        let record = self.record().filter(|record| self.owns && !record.is_moved);
        let first = record.and_then(|record| record.backups.first());
        first.is_some_and(|first| {
            let has_stayed = |since: &Duration| now.saturating_sub(*since) >= SWITCH_BACK_AFTER;
            let is_above = |it: Candidate| it.process.host == *first && it.rank > self.own.rank;
            self.backed.get(first).is_some_and(has_stayed)
                && self.others().any(is_above)
                && now < self.serves_until()
        })
    }

    /// Whether it has ended to serve in order to give the VIPs up.
    #[must_use]
    pub fn gives_up(&self) -> bool {
        self.owns && self.successor.is_some()
    }

    /// Time has passed: what is to be done now.
    pub fn tick(&mut self, now: Duration) -> Vec<Action> {
        let mut actions = Vec::new();
        let before = self.ticked.replace(now).unwrap_or(now);
        self.lived += now.saturating_sub(before).min(LIVED_MAX);
        self.note_link(now);
        if self.owns && self.successor.is_none() && now >= self.ask_due {
            self.ask_due = now + ASK_EVERY;
            self.ask(now, &mut actions);
        }
        if self.pending.is_none() {
            actions.extend(self.next_of_store(now));
        }
        actions
    }

    fn moment(&self, now: Duration) -> Moment {
        Moment { at: now, lived: self.lived }
    }

    fn note_link(&mut self, now: Duration) {
        self.cut_off = if self.is_connected { None } else { self.cut_off.or(Some(now)) };
        if self.is_cut_off(now) && self.successor.is_none() {
            self.give_up(None);
        }
    }

    /// What is given up has to be noted, so it takes a store that has answered since.
    fn is_cut_off(&self, now: Duration) -> bool {
        let answered = self.seen.as_ref().map(|seen| seen.confirmed);
        self.cut_off
            .is_some_and(|since| now.saturating_sub(since) >= CUT_OFF && answered > Some(since))
    }

    fn note_backups(&mut self, now: Duration) {
        let Some(Seen { record, .. }) = &self.seen else { return };
        self.backed.retain(|host, _| record.backups.contains(host));
        for backup in &record.backups {
            self.backed.entry(*backup).or_insert(now);
        }
    }

    fn ask(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.asked.push_back(self.moment(now));
        if self.asked.len() > ASKED_MAX {
            self.asked.pop_front();
        }
        let mut all: Vec<IpAddr> = self.candidates.iter().map(|it| it.process.host).collect();
        all.extend(self.granted.keys());
        all.sort();
        all.dedup();
        let others = all.into_iter().filter(|host| *host != self.own.process.host);
        let number = now.as_nanos() as u64;
        actions.extend(others.map(|host| Action::Send(host, Message::Ask(number))));
        if now >= self.serves_until() {
            let backups = self.granted.keys();
            actions.extend(backups.map(|host| Action::Send(*host, Message::AskWord(number))));
        }
    }

    fn next_of_store(&mut self, now: Duration) -> Option<Action> {
        if let Some(record) = self.record_due(now) {
            let expected = self.seen.as_ref().map_or(0, |seen| seen.revision);
            for backup in &record.backups {
                self.granted.entry(*backup).or_insert(now);
                // From when it was put on the record it has time to answer.
                self.heard.insert(*backup, self.lived);
            }
            let (record_sent, backers) = (record.clone(), self.processes_of(&record.backups));
            self.pending =
                Some(Pending::Write { expected, record: record_sent, sent: now, backers });
            return Some(Action::Write { expected, record });
        }
        if self.seen.is_some() && !self.candidates.contains(&self.own) {
            self.pending = Some(Pending::Register);
            return Some(Action::Register(self.own));
        }
        let wants_proof = self.seen.as_ref().is_some_and(|seen| self.is_free(seen, now));
        let is_due = self.is_told
            || now >= self.read_due
            || (wants_proof && now >= self.read_begun + LOOK_AGAIN);
        is_due.then(|| {
            (self.pending, self.read_begun, self.is_told) = (Some(Pending::Read), now, false);
            Action::Read
        })
    }

    /// The record that is to replace the one that was seen.
    fn record_due(&self, now: Duration) -> Option<Record> {
        let seen = self.seen.as_ref().filter(|_| !self.is_outdated)?;
        if self.owns {
            return self.successor.map_or_else(
                || self.renewal(seen, now),
                |successor| Some(self.without_owner(seen, successor)),
            );
        }
        let own = |owner: Process| owner.host == self.own.process.host;
        if self.is_cut_off(now) && seen.record.owner.is_some_and(own) {
            return Some(self.without_owner(seen, self.own.process.host));
        }
        // The store has answered since: a record that it may write later, or never, is not sent in vain.
        let is_proven = self.takes_over_at(seen).is_some_and(|due| seen.confirmed >= due);
        (self.is_free(seen, now) && is_proven).then(|| {
            let others = seen.record.backups.iter().filter(|it| **it != self.own.process.host);
            Record {
                owner: Some(self.own.process),
                backups: others.copied().collect(),
                drained: seen.record.drained.clone(),
                is_moved: seen.record.is_moved && self.was_left(&seen.record),
            }
        })
    }

    /// The owner's own record, if another one is to be in force, or this one anew.
    fn renewal(&self, seen: &Seen, now: Duration) -> Option<Record> {
        let answers = |host: &IpAddr| {
            self.heard.get(host).is_some_and(|last| self.lived.saturating_sub(*last) < SILENCE)
        };
        let mut backups: Vec<Candidate> = self.others().collect();
        backups.retain(|it| answers(&it.process.host));
        backups.sort_by_key(|it| (Reverse(it.rank), it.process.host));
        let backups: Vec<IpAddr> = backups.iter().map(|it| it.process.host).collect();
        // A backup that has restarted gives its word for a later record than the one that it found.
        let have_restarted = self.processes_of(&backups) != self.backers;
        let has_changed =
            backups != seen.record.backups || have_restarted || self.drained != seen.record.drained;
        let is_over = now >= self.serves_until();
        (self.is_connected && (has_changed || is_over)).then(|| Record {
            owner: Some(self.own.process),
            backups,
            drained: self.drained.clone(),
            is_moved: seen.record.is_moved,
        })
    }

    fn processes_of(&self, hosts: &[IpAddr]) -> Vec<Process> {
        let of = |host: &IpAddr| self.others().find(|it| it.process.host == *host);
        hosts.iter().filter_map(of).map(|it| it.process).collect()
    }

    /// Whether the owner before has given the VIPs up, or was a process of this host.
    fn was_left(&self, record: &Record) -> bool {
        record.owner.is_none_or(|owner| owner.host == self.own.process.host)
    }

    fn without_owner(&self, seen: &Seen, successor: IpAddr) -> Record {
        let mut backups = vec![successor];
        backups.extend(seen.record.backups.iter().filter(|host| **host != successor));
        if !backups.contains(&self.own.process.host) {
            backups.push(self.own.process.host);
        }
        let drained = if self.owns { &self.drained } else { &seen.record.drained };
        let is_moved = self.owns && self.is_moving;
        Record { owner: None, backups, drained: drained.clone(), is_moved }
    }

    fn others(&self) -> impl Iterator<Item = Candidate> + '_ {
        self.candidates.iter().filter(|it| it.process.host != self.own.process.host).copied()
    }

    /// Whether it may replace a record that is another's.
    fn is_free(&self, seen: &Seen, now: Duration) -> bool {
        let is_due = || self.takes_over_at(seen).is_some_and(|due| now >= due);
        !self.owns && self.is_connected && is_due() && self.has_listened(seen)
    }

    /// Whether it was there to hear an owner on another host, and has not.
    fn has_listened(&self, seen: &Seen) -> bool {
        let is_elsewhere = |owner: Process| owner.host != self.own.process.host;
        let promised = self.promised.map(|it| it.lived).unwrap_or_default();
        let silent = self.lived.saturating_sub(promised.max(seen.since.lived));
        !seen.record.owner.is_some_and(is_elsewhere) || silent >= SILENCE
    }

    /// When it may replace a record that is another's, if nothing changes until then.
    fn takes_over_at(&self, seen: &Seen) -> Option<Duration> {
        let host = self.own.process.host;
        let place = seen.record.backups.iter().position(|it| *it == host);
        let after = |places: usize| STAGGER * places as u32;
        let (since, promised) = (seen.since.at, self.promised.map(|it| it.at));
        match seen.record.owner {
            _ if seen.revision == 0 => {
                let own = (Reverse(self.own.rank), host);
                let precedes = |it: &Candidate| (Reverse(it.rank), it.process.host) < own;
                Some(since + LEASE + after(self.others().filter(precedes).count()))
            }
            None if place == Some(0) => Some(since),
            None => Some(since + RESERVED + after(place.unwrap_or(seen.record.backups.len()))),
            Some(owner) if owner.host == host => {
                Some(promised.map_or(since, |promised| since.max(promised + LEASE)))
            }
            Some(_) => {
                let free = promised.unwrap_or_default().max(since);
                Some(free + LEASE + after(place?))
            }
        }
    }

    /// A look into the store has ended; `None`: there was no answer.
    pub fn read(&mut self, now: Duration, snapshot: Option<Snapshot>) {
        debug_assert!(matches!(self.pending, Some(Pending::Read)));
        self.pending = None;
        self.read_due = now + READ_EVERY;
        let Some(mut snapshot) = snapshot else {
            self.read_due = now + LOOK_AGAIN;
            return;
        };
        self.is_outdated = false;
        // Our own first: it is not to be missed among too many.
        snapshot.candidates.sort_by_key(|it| it.process.host != self.own.process.host);
        snapshot.candidates.truncate(CANDIDATES_MAX);
        self.candidates = snapshot.candidates;
        let (revision, record) = snapshot.record.unwrap_or_default();
        if self.doubt.is_some_and(|expected| expected != revision) {
            (self.doubt, self.may_be_given_up) = (None, false);
        }
        self.see(now, revision, record);
        let Some(Seen { record, .. }) = &self.seen else { return };
        if record.owner != Some(self.own.process) {
            self.lose();
        } else if self.doubt.is_none() {
            // What is in force is known: what else was sent can replace it no more.
            if !self.owns {
                self.owns = true;
                self.drained.clone_from(&record.drained);
            }
            self.granted.retain(|host, _| record.backups.contains(host));
            for backup in &record.backups {
                self.granted.entry(*backup).or_insert(Duration::ZERO);
            }
            self.note_backups(now);
        }
    }

    fn see(&mut self, now: Duration, revision: u64, record: Record) {
        let since = match &self.seen {
            Some(seen) if seen.revision == revision => seen.since,
            _ => self.moment(now),
        };
        self.first.get_or_insert(revision);
        self.seen = Some(Seen { revision, record, since, confirmed: now });
    }

    fn lose(&mut self) {
        (self.owns, self.successor) = (false, None);
        if self.doubt.is_none() {
            self.granted.clear();
        }
        self.asked.clear();
        self.heard.clear();
        self.backed.clear();
    }

    /// The store has noted us, or not.
    pub fn registered(&mut self, now: Duration, is_done: bool) {
        debug_assert!(matches!(self.pending, Some(Pending::Register)));
        self.pending = None;
        self.read_due = if is_done { now } else { now + READ_EVERY };
        if is_done {
            self.candidates.retain(|it| it.process.host != self.own.process.host);
            self.candidates.push(self.own);
        }
    }

    /// A record was sent to the store.
    pub fn written(&mut self, now: Duration, written: Written) -> Vec<Action> {
        let Some(Pending::Write { expected, record, sent, backers }) = self.pending.take() else {
            debug_assert!(false, "nothing was sent");
            return Vec::new();
        };
        match written {
            Written::Done(revision) => {
                self.backers = backers;
                return self.in_force(now, revision, record, sent);
            }
            // Nothing is given up that cannot be noted.
            Written::NotSent => self.successor = None,
            Written::Conflict => {}
            Written::Unknown => {
                self.doubt = Some(expected);
                self.may_be_given_up |= record.owner.is_none();
            }
        }
        (self.is_outdated, self.read_due) = (true, now);
        Vec::new()
    }

    fn in_force(
        &mut self,
        now: Duration,
        revision: u64,
        record: Record,
        sent: Duration,
    ) -> Vec<Action> {
        self.see(now, revision, record.clone());
        (self.doubt, self.may_be_given_up) = (None, false);
        if record.owner.is_none() {
            self.lose();
            let others = record.backups.into_iter().filter(|it| *it != self.own.process.host);
            return others.map(|host| Action::Send(host, Message::GaveUp)).collect();
        }
        if !self.owns {
            self.drained.clone_from(&record.drained);
            self.ask_due = now;
        }
        self.owns = true;
        let before = std::mem::take(&mut self.granted);
        let granted = |host: &IpAddr| before.get(host).copied().unwrap_or_default().max(sent);
        self.granted = record.backups.iter().map(|host| (*host, granted(host))).collect();
        self.note_backups(now);
        Vec::new()
    }

    /// Another distributor has said something.
    pub fn told(&mut self, now: Duration, from: IpAddr, message: Message) -> Option<Action> {
        match message {
            Message::Ask(number) => {
                self.promise(now).then_some(Action::Send(from, Message::Promise(number)))
            }
            Message::AskWord(number) => {
                let instance = self.owner_by_our_word(from)?;
                let word = Message::Word(number, instance);
                self.promise(now).then_some(Action::Send(from, word))
            }
            Message::Promise(number) => {
                self.answered(from, number, now < self.serves_until());
                None
            }
            Message::Word(number, instance) => {
                self.answered(from, number, instance == self.own.process.instance);
                None
            }
            Message::GaveUp => {
                self.is_told = true;
                None
            }
        }
    }

    /// Binds itself to take nothing over for [`LEASE`], if it may.
    fn promise(&mut self, now: Duration) -> bool {
        let takes_over = matches!(self.pending, Some(Pending::Write { .. }));
        let may = !self.owns && !takes_over && self.doubt.is_none() && self.is_ready;
        if may {
            self.promised = Some(self.moment(now));
        }
        may
    }

    /// The process at that host which owns the VIPs as far as is known here; `None`: none does, or an earlier process of this host
    /// may have replaced its record.
    fn owner_by_our_word(&self, host: IpAddr) -> Option<u64> {
        let seen = self.seen.as_ref().filter(|seen| Some(seen.revision) > self.first)?;
        seen.record.owner.filter(|owner| owner.host == host).map(|owner| owner.instance)
    }

    /// A backup has answered a question, and if that counts, is bound.
    fn answered(&mut self, from: IpAddr, number: u64, is_bound: bool) {
        let at = Duration::from_nanos(number);
        let Some(asked) = self.asked.iter().find(|it| it.at == at).filter(|_| self.owns) else {
            return;
        };
        if is_bound {
            self.granted.entry(from).and_modify(|known| *known = at.max(*known));
        }
        let heard = self.heard.entry(from).or_insert(asked.lived);
        *heard = asked.lived.max(*heard);
    }
}
