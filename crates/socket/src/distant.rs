//! How the ends of a connection between two network namespaces find each other.
//!
//! No name is known to both, and addresses say nothing alone: two networks of one host may
//! use the same ones at the same moment. What both know, and nobody else, is which connection
//! it is: the sequence numbers with which it began ([`sidestep_wire::tcp_option::Identity`]),
//! as the kernel tells them through the agent's programs. Addresses and identity make the
//! token, and the token stands in a claim of the client, where the server greets it
//! ([`crate::claim`]). That takes two processes that share memory; those that do not yet ask
//! the agent for each other ([`petition`]).
//!
//! ```text
//!   client                        agent                        server
//!   claim ── to the servers that it has met at the port ──────> found? then it is greeted,
//!   no greeting: petition ──────>       <────── petition: no claim     and all is as ever
//!          <── match, a line ───        ─── match, a line ──>
//!          <════════════ Introductions, by that line ═══════>
//!   claim, as above
//! ```
//!
//! Until it is greeted the connection is an ordinary one. Each end asks again when its
//! messages have doubled in number, and when it is in use a second later: the agent
//! keeps a petition for longer than that, so two ends that both ask meet. An end that nobody
//! answers gives up after so many messages as within one namespace.

use crate::claim::{self, Token};
use crate::group::{self, Look};
use crate::meeting::{self, MESSAGES_MAX, Moment};
use crate::petition::{self, Submitted};
use crate::process::Process;
use crate::sock::Sock;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use sidestep_device::sys;
use sidestep_proto::fallback::{Lack, OperatorSaid, PeerCannot, Reason};
use sidestep_wire::host_control::{Hello, Side, distant_token};
use sidestep_wire::tcp_option::Identity;

/// An end in use asks again after this.
const AGAIN_NS: u64 = 1_000_000_000;
/// So often; then only with the number of its messages.
const TIMES_MAX: u32 = 64;
/// Looks after a petition that all read its answer; then those whose number is a power of
/// two do, and those that come [`READ_INTERVAL_NS`] after the last.
const LOOKS_FOR_ANSWER: u32 = 32;
const READ_INTERVAL_NS: u64 = 10_000_000;

/// One end that looks for the other.
pub(crate) struct Seek {
    token: Token,
    side: Side,
    port: u16,
    /// Petitions so far, and looks since the last one.
    times: u32,
    looks: u32,
    read_at: u64,
    /// When it asks again: after so many messages, or from this time on.
    next_messages: u64,
    next_at: u64,
    /// Acquaintances of the process when the connection was claimed last, + 1.
    claimed_before: u32,
    /// It was claimed before somebody.
    pub(crate) has_claimed: bool,
}

impl Seek {
    /// `local` and `peer` as this end sees them.
    pub(crate) fn new(side: Side, local: SocketAddr, peer: SocketAddr, identity: Identity) -> Self {
        let (client, server) = match side {
            Side::Client => (local, peer),
            Side::Server => (peer, local),
        };
        Self {
            token: distant_token(client, server, identity),
            side,
            port: server.port(),
            times: 0,
            looks: 0,
            read_at: 0,
            next_messages: 0,
            next_at: u64::MAX,
            claimed_before: 0,
            has_claimed: false,
        }
    }

    /// What both ends call the connection.
    pub(crate) fn token(&self) -> Token {
        self.token
    }

    /// Client: the greeting of the server, if it has come.
    pub(crate) fn find_greeting(
        &mut self,
        process: &'static Process,
        sock: &Sock,
        fd: i32,
        moment: Moment,
    ) -> Result<Option<Hello>, Reason> {
        if let Some(hello) = claim::greeting(process, sock, self.token) {
            return meeting::follow_greeting(sock, fd, hello, moment);
        }
        self.read_answers(process)?;
        self.claim(process, sock);
        // Who has sent this would have greeted us, if it were one that we know.
        if moment == Moment::AfterReceive || !self.has_claimed {
            self.ask(process, sock)?;
        }
        Ok(None)
    }

    /// Server: greets the client, if it has claimed the connection.
    pub(crate) fn greet(&mut self, process: &'static Process, sock: &Sock) -> Result<bool, Reason> {
        if self.has_greeted(process, sock) {
            return Ok(true);
        }
        self.read_answers(process)?;
        self.ask(process, sock)?;
        Ok(false)
    }

    fn has_greeted(&self, process: &'static Process, sock: &Sock) -> bool {
        let look = Look::at(process);
        let Some(client) = claim::find(process, &look, self.token) else { return false };
        claim::greet(process, sock, client, self.token);
        true
    }

    /// Claims the connection before the servers that are known, if there are more than before.
    fn claim(&mut self, process: &'static Process, sock: &Sock) {
        let known = process.partners.load(Ordering::Relaxed) + 1;
        if known != self.claimed_before {
            self.claimed_before = known;
            let servers = |group: &&group::Group| group.is_distant() || group.is_self();
            self.has_claimed |= claim::post(process, sock, self.port, self.token, servers);
        }
    }

    fn read_answers(&mut self, process: &'static Process) -> Result<(), Reason> {
        let is_acquainting = process.acquainting.load(Ordering::Relaxed) != 0;
        if self.times == 0 && !is_acquainting {
            return Ok(());
        }
        self.looks += 1;
        let now = sys::coarse_ns();
        let is_due = self.looks <= LOOKS_FOR_ANSWER
            || self.looks.is_power_of_two()
            || now >= self.read_at + READ_INTERVAL_NS;
        if is_due {
            self.read_at = now;
            petition::take_answers(process);
            if process.acquainting.load(Ordering::Relaxed) != 0 {
                group::read_lines(process);
            }
        }
        let is_strangers = petition::is_strangers(process, self.token);
        if is_strangers { Err(Reason::Operator(OperatorSaid::OtherUser)) } else { Ok(()) }
    }

    /// Petitions, if it is time to.
    fn ask(&mut self, process: &'static Process, sock: &Sock) -> Result<(), Reason> {
        let messages = sock.traffic().messages;
        let is_late = || self.times < TIMES_MAX && sys::coarse_ns() >= self.next_at;
        if messages < self.next_messages && !is_late() {
            return Ok(());
        }
        let reason = match petition::submit(process, self.token, self.side, self.port) {
            Submitted::Sent => Reason::Peer(PeerCannot::PetitionUnanswered),
            Submitted::Away => Reason::Lack(Lack::AgentAway),
            Submitted::Later => return Ok(()),
        };
        if messages >= MESSAGES_MAX {
            return Err(reason);
        }
        sock.note_reason(reason);
        (self.times, self.looks) = (self.times + 1, 0);
        self.next_messages = (2 * messages).max(1);
        self.next_at = sys::coarse_ns() + AGAIN_NS;
        Ok(())
    }
}
