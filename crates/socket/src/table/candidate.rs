//! A connected socket that may move: its slot, its addresses, and why it stays on TCP.

use crate::process::home::{self, Home};
use crate::process::options::{self, Options, Promotion};
use crate::process::unseen;
use crate::table::account;
use crate::table::sock::{Phase, Sock};
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use sidestep_device::state::{flag, mode};
use sidestep_device::untracked::Untracked;
use sidestep_proto::autosmc::Patience;
use sidestep_proto::fallback::{OperatorSaid, ProgramDid, Reason};
use sidestep_wire::RmbeSize;

impl Sock {
    pub(crate) fn release_slot(&self) {
        let Some(slot) = self.slot() else { return };
        if self.phase() == Phase::Smc {
            // Who still looks at the object finds no connection that may soon be another's.
            self.set_phase(Phase::Plain);
        }
        self.slot.set(None);
        let index = self.slot_index();
        let Some(home) = self.home() else { return };
        // As long as we hold it, it goes to no other connection. If two let go
        // at once, the home finds that none is left.
        if slot.holders.load(Ordering::Acquire) == 1 && !home.is_under_way(index) {
            home.detach(index);
        }
        slot.holders.fetch_sub(1, Ordering::AcqRel);
        home.forget_received(index);
        if self.is_at_home() {
            home.release_slot(index);
        }
    }

    /// Another program is about to begin in this process, which is no holder any more if
    /// at least so many others are left: how many are.
    pub(crate) fn let_go(&self, others_least: u32) -> Option<u32> {
        let less = |holders: u32| holders.checked_sub(1).filter(|left| *left >= others_least);
        let holders = &self.slot()?.holders;
        let before = holders.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less).ok()?;
        self.let_go.store(true, Ordering::Relaxed);
        Some(before - 1)
    }

    /// The other program could not be begun.
    pub(crate) fn hold_again(&self) {
        self.naming.stays_open.store(false, Ordering::Relaxed);
        if let Some(slot) = self.slot().filter(|_| self.let_go.swap(false, Ordering::Relaxed)) {
            slot.holders.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Why it stays on TCP.
    pub fn stay_plain(&self, reason: Reason) {
        account::stays(self, reason);
        if let Some(slot) = self.slot() {
            slot.reason.store(reason.word(), Ordering::Relaxed);
            slot.mode.store(mode::TCP, Ordering::Release);
        }
        self.set_phase(Phase::Plain);
        crate::log!(Info, "connection stays on TCP: {reason}");
    }

    /// Whatever the ends are about to agree on, it stays on TCP, if it has not moved yet.
    pub(crate) fn keep_plain(&self, reason: Reason) {
        // A thread in the middle of it finishes first.
        let _rendezvous = self.rendezvous.enter();
        match self.phase() {
            Phase::Candidate | Phase::Rendezvous => self.stay_plain(reason),
            Phase::Listener => self.withdraw_marker(),
            // What comes of an offer is decided elsewhere.
            _ => {}
        }
    }

    /// Whether the two ends have not decided yet, and may move to shared memory.
    #[inline]
    pub fn is_undecided(&self) -> bool {
        matches!(self.phase(), Phase::Candidate | Phase::Rendezvous)
    }

    /// Gives a connected socket its slot and writes down its addresses. Called
    /// when `connect` or `accept` has done its work.
    pub fn begin(&'static self, fd: i32) {
        self.begin_with(fd, None);
    }

    /// The same; the slot goes on with what an untracked connection has carried.
    pub(crate) fn begin_with(&'static self, fd: i32, untracked: Option<&Untracked>) {
        if self.slot().is_some() {
            return;
        }
        let Some(process) = home::current() else { return self.set_phase(Phase::Plain) };
        if process.take_slot(untracked, &|index| self.settle(process, index)).is_none() {
            account::without_slot(process, self, fd);
            return self.set_phase(Phase::Plain);
        }
        if let Some(slot) = self.slot() {
            slot.descriptor.store(fd, Ordering::Relaxed);
            if options::current().promotion == Promotion::Lazy {
                self.note_reason(Reason::Program(ProgramDid::TooShort));
            }
        }
        if let Some(reason) = self.objection(fd) {
            if reason == Reason::Operator(OperatorSaid::ModeTcp) {
                let addresses = self.learn_addresses(fd);
                self.slot().inspect(|slot| account::begin_tally(slot, addresses));
            }
            self.stay_plain(reason);
        }
    }

    /// Why the connection may not move, by the operator's rules or by what the program does.
    /// Without rules about ports and peers its addresses need not be known yet.
    pub(crate) fn objection(&self, fd: i32) -> Option<Reason> {
        let Options { smc, policy, .. } = options::current();
        if !smc {
            return Some(Reason::Operator(OperatorSaid::ModeTcp));
        }
        let by_policy = || {
            let (local, peer) = self.learn_addresses(fd)?;
            self.objection_by_policy(local, peer)
        };
        let by_policy = if policy.is_empty() { None } else { by_policy() };
        by_policy.or_else(unseen::unseen_use)
    }

    /// What the operator has against it.
    pub(crate) fn objection_by_policy(
        &self,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Option<Reason> {
        let is_server = self.is_server.load(Ordering::Relaxed);
        let server_port = if is_server { local.port() } else { peer.port() };
        options::current().policy.objection(server_port, peer.ip())
    }

    /// It goes on with a slot of another process, or of its own that it had let go of.
    pub(crate) fn take_up(&self, home: &'static Home, index: usize) {
        self.slot_index.store(index as u32, Ordering::Relaxed);
        self.home.set(Some(home));
        self.slot.set(Some(home.state.slot(index)));
    }

    /// A slot was taken for it. Under the lock of a list of free slots.
    pub(crate) fn settle(&self, process: &'static Home, index: usize) {
        let slot = process.state.slot(index);
        let port = self.server_port.load(Ordering::Relaxed);
        slot.server_port.store(u32::from(port), Ordering::Relaxed);
        slot.is_server.store(u8::from(self.is_server.load(Ordering::Relaxed)), Ordering::Relaxed);
        slot.held.store(u32::from(process.state.header().holds.has(port)), Ordering::Relaxed);
        slot.session.store(self.session().map_or(0, |session| session.word()), Ordering::Relaxed);
        self.slot_index.store(index as u32, Ordering::Relaxed);
        self.home.set(Some(process));
        let nonblocking = self.nonblocking.load(Ordering::Relaxed);
        slot.flags.store(if nonblocking { flag::NONBLOCKING } else { 0 }, Ordering::Relaxed);
        self.slot.set(Some(slot));
        // A thread that changes it from now on finds the slot.
        let is_now = self.nonblocking.load(Ordering::Relaxed);
        if is_now != nonblocking {
            self.set_nonblocking(is_now);
        }
    }

    /// A forked child continues alone with a connection that was not decided when
    /// its parent forked: with a slot of its own.
    pub fn move_home(&'static self, fd: i32) {
        if self.is_at_home() || self.slot().is_none() {
            return;
        }
        let server = self.is_server.load(Ordering::Relaxed);
        self.nonblocking.store(self.is_known_nonblocking(), Ordering::Relaxed);
        self.slot().inspect(|slot| slot.is_elsewhere.store(1, Ordering::Relaxed));
        self.release_slot();
        self.is_server.store(server, Ordering::Relaxed);
        self.begin(fd);
    }

    /// Our receive buffer: by z/OS's rule ([`RmbeSize::for_receive_buffer`]) if the program set
    /// `SO_RCVBUF` before connecting or listening, else the configured default.
    pub(crate) fn rmbe(&self) -> RmbeSize {
        match self.receive_buffer.load(Ordering::Relaxed) {
            0 => options::current().rmbe,
            bytes => RmbeSize::for_receive_buffer(bytes as usize),
        }
    }

    /// Whether it has lived long enough: see [`sidestep_proto::autosmc`].
    #[inline]
    pub(crate) fn is_worth_moving(&self) -> bool {
        let options = options::current();
        if options.promotion != Promotion::Lazy {
            return true;
        }
        let traffic = self.traffic();
        if !Patience::default().is_over(traffic) {
            return false;
        }
        let port = self.server_port.load(Ordering::Relaxed);
        let doublings = match self.home() {
            Some(home) if options.autosmc => home.state.header().patience(port),
            _ => 0,
        };
        Patience::new(doublings).is_over(traffic)
    }

    /// Whether an operator keeps it on TCP for now.
    pub(crate) fn is_held(&self) -> bool {
        let is_held = self.slot().is_some_and(|slot| slot.held.load(Ordering::Relaxed) != 0);
        if is_held {
            self.note_reason(Reason::Operator(OperatorSaid::Demoted));
        }
        is_held
    }

    /// Why it is on TCP as things stand.
    pub(crate) fn note_reason(&self, reason: Reason) {
        self.slot().inspect(|slot| slot.reason.store(reason.word(), Ordering::Relaxed));
    }
}

/// What a plain call has moved, for the counters.
pub fn count_plain(sock: &Sock, sent: bool, moved: isize) {
    if let (Some(slot), Ok(bytes)) = (sock.slot(), u64::try_from(moved)) {
        let counters = &slot.counters;
        let (bytes_at, messages_at, sizes) = if sent {
            (&counters.bytes_sent, &counters.messages_sent, &slot.sent)
        } else {
            (&counters.bytes_received, &counters.messages_received, &slot.received)
        };
        if bytes > 0 {
            bytes_at.fetch_add(bytes, Ordering::Relaxed);
            messages_at.fetch_add(1, Ordering::Relaxed);
            sizes.count_among_others(bytes);
            if slot.tally.is_on() {
                slot.tally.note(sock.is_server.load(Ordering::Relaxed), sent);
            }
        }
    }
}
