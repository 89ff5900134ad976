//! What a socket has to do with the gateway: whether it is to be handed over, what for, what came of that, and where it leads.
//!
//! ```text
//!   told what for ── connect ──> offered ── known what came of it ──> its descriptors mean a connection to the gateway
//!                                                                └──> an ordinary connection
//! ```
//!
//! While a socket is offered, not a byte of the program's may go by it, because the other host waits for CLC, or for TLS. What
//! comes of it may be known at any moment, and then the descriptors stand for another object. This module alone knows
//! the phase; the rest of the library asks here, and so does a call that is about to use the socket:
//!
//! | The caller is about to | and asks |
//! |---|---|
//! | use the socket, tell of it, or heed what the kernel reports | [`settle_offer`](Sock::settle_offer) |
//! | send or receive | the same, and [waits](crate::program::hand_over) |
//! | sleep until the kernel reports something | [`is_offered`](Sock::is_offered): the end of the handshake is news |
//! | leave it to the kernel, or to another program | [`is_beyond_tcp`](Sock::is_beyond_tcp) |
//!
//! [`gateway`](crate::rendezvous::gateway) says why connections are handed over, [`hand_over`](crate::program::hand_over) does it.

use crate::process::tcp;
use crate::table::session::Session;
use crate::table::sock::{Phase, Sock};
use core::sync::atomic::Ordering;
use sidestep_proto::protection::RULES_MAX;
use std::sync::OnceLock;

/// Words of [`Sock::handed_for`].
const FOR_NOTHING: u8 = 0;
const FOR_HOSTS: u8 = 1;
/// By a rule of TLS, once the program asks for it.
const FOR_RULES_LATER: u8 = 2;
/// This and the place of the rule.
const FOR_RULES: u8 = 3;
/// The same, and SMC-R with another host if that agrees.
const FOR_RULES_AND_HOSTS: u8 = FOR_RULES + RULES_MAX as u8;

const _: () = assert!(2 * RULES_MAX < (u8::MAX - FOR_RULES) as usize);

/// Finds out what came of it: said by the room that offers.
static SETTLE: OnceLock<fn(&'static Sock, i32)> = OnceLock::new();

impl Sock {
    /// From now on no byte of the program's goes by it, until `settle` knows what becomes of it.
    pub(crate) fn offer(&self, fd: i32, settle: fn(&'static Self, i32)) {
        let _ = SETTLE.set(settle);
        self.offered_cookie.store(tcp::socket_cookie(fd), Ordering::Relaxed);
        self.set_phase(Phase::Offered);
    }

    /// Whether it is offered, and not known what comes of that.
    #[inline]
    pub(crate) fn is_offered(&self) -> bool {
        self.phase() == Phase::Offered
    }

    /// Whether it is, and the kernel calls it so.
    pub(crate) fn is_offered_as(&self, cookie: u64) -> bool {
        self.is_offered() && self.offered_cookie.load(Ordering::Relaxed) == cookie
    }

    /// Looks what came of it, where no thread waits for that: if it is known by now, the descriptors stand for another object.
    /// False: it was not offered.
    #[inline]
    pub fn settle_offer(&'static self, fd: i32) -> bool {
        let is_offered = self.is_offered();
        if is_offered && let Some(settle) = SETTLE.get() {
            settle(self, fd);
        }
        is_offered
    }

    /// Whether the TCP socket is not all of the connection, or may not be used as one: neither the kernel nor another
    /// program can serve it alone.
    #[inline]
    pub(crate) fn is_beyond_tcp(&self) -> bool {
        matches!(self.phase(), Phase::Smc | Phase::Offered)
    }

    /// Where a connection leads that begins now, and goes by the gateway.
    pub(crate) fn set_session(&self, session: Session) {
        self.session.set(session);
    }

    /// If it goes by the gateway.
    pub(crate) fn session(&self) -> Option<Session> {
        self.session.get()
    }

    /// Whether the gateway may get the connection that is made now.
    pub(crate) fn is_to_be_offered(&self) -> bool {
        self.is_for_hosts() || self.rule().is_some()
    }

    /// The mark for the TCP option was also for other hosts, or for them alone, and whether one of them has agreed was not
    /// asked yet.
    pub(crate) fn is_for_hosts(&self) -> bool {
        let what = self.handed_for.load(Ordering::Relaxed);
        what == FOR_HOSTS || what >= FOR_RULES_AND_HOSTS
    }

    /// Says so, or that nothing is asked.
    pub(crate) fn set_for_hosts(&self, is_for_hosts: bool) {
        self.hand_over_for(if is_for_hosts { FOR_HOSTS } else { FOR_NOTHING });
    }

    /// Whether that was to be asked; from now on it is not.
    pub(crate) fn take_for_hosts(&self) -> bool {
        let asked = |what| match what {
            FOR_HOSTS => Some(FOR_NOTHING),
            FOR_RULES_AND_HOSTS.. => Some(what - RULES_MAX as u8),
            _ => None,
        };
        self.handed_for.fetch_update(Ordering::Relaxed, Ordering::Relaxed, asked).is_ok()
    }

    /// The place of the rule of TLS that has it, among those of the process.
    pub(crate) fn rule(&self) -> Option<usize> {
        let at = usize::from(self.handed_for.load(Ordering::Relaxed).checked_sub(FOR_RULES)?);
        Some(if at < RULES_MAX { at } else { at - RULES_MAX })
    }

    /// A rule has it, or none. It is not to be asked whether another host has agreed on SMC.
    pub(crate) fn set_rule(&self, at: Option<usize>) {
        self.hand_over_for(at.map_or(FOR_NOTHING, |at| at as u8 + FOR_RULES));
    }

    /// A rule has it, and another host may have agreed on SMC.
    pub(crate) fn set_rule_and_for_hosts(&self, at: usize) {
        self.hand_over_for(at as u8 + FOR_RULES_AND_HOSTS);
    }

    /// A rule of TLS has it, and TLS has not begun, as far as this process knows.
    #[inline]
    pub(crate) fn is_for_rule_later(&self) -> bool {
        self.handed_for.load(Ordering::Relaxed) == FOR_RULES_LATER
    }

    /// Says so.
    pub(crate) fn set_for_rule_later(&self) {
        self.hand_over_for(FOR_RULES_LATER);
    }

    fn hand_over_for(&self, what: u8) {
        self.handed_for.store(what, Ordering::Relaxed);
    }
}
