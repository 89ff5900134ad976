//! Lookups: how a process finds, by the agent of the host, which one holds the other end of a
//! connection that cannot be found by its name ([`super::whereabouts`]).
//!
//! ```text
//!   lookup: token, side ───>  agent  <─── lookup: token, the other side
//!   match: who, a socket  <───         ───> match: who, a socket
//! ```
//!
//! The answer makes the two processes *acquainted*: the socket is their line, by which they
//! show each other their memory ([`groups::begin_distant`]). It is about processes and not
//! about the connection; how its ends agree is the same as ever ([`crate::rendezvous::claim`]).
//!
//! The agent's socket is a file, so who answers there is whom the owner of its directory lets
//! serve; that is root for the default. No call waits for it: a lookup is sent, and answers
//! are taken, at the program's own calls. A call to the agent is tried once a second at most.

use crate::process::agent_line::{AgentLine, STRANGERS_MAX};
use crate::process::groups::{self, Look};
use crate::process::home::Home;
use crate::process::owner::Held;
use crate::process::tcp::halves;
use crate::process::{group, options};
use core::sync::atomic::Ordering;
use sidestep_device::rights;
use sidestep_device::sys::{self, Errno, Sender};
use sidestep_proto::rendezvous::agreement::LookedUp;
use sidestep_wire::host_control::{ControlMessage, EMITTED_LEN_MAX, Lookup, Match, Side};

/// Answers taken in one look.
const ANSWERS_MAX: usize = 16;

/// Asks which process holds the other end of a connection.
pub(super) fn submit(process: &'static Home, token: [u8; 16], side: Side, port: u16) -> LookedUp {
    let agent_line = &process.tables.agent_line;
    let Some(_held) = Held::try_enter(agent_line.lock.get()) else { return LookedUp::Later };
    if !agent_line.has_room() {
        return LookedUp::Later;
    }
    agent_line.follow_user();
    let lookup = Lookup { instance: process.instance, token, side, port };
    let mut bytes = [0; EMITTED_LEN_MAX];
    let Ok(len) = lookup.emit(&mut bytes) else { return LookedUp::Later };
    // A line on which nothing was said for long is closed by the agent.
    for line in [agent_line.line(), None] {
        let Some(line) = line.or_else(|| agent_line.call()) else { continue };
        match sys::send_over(line, &bytes[..len], &[]) {
            Ok(_) => return LookedUp::Sent,
            Err(Errno(libc::EAGAIN)) => return LookedUp::Later,
            Err(_) => agent_line.hang_up(),
        }
    }
    LookedUp::Away
}

/// Whether there is an agent to ask, or one that another thread is talking to.
pub(super) fn is_possible(process: &'static Home) -> bool {
    let agent_line = &process.tables.agent_line;
    let Some(_held) = Held::try_enter(agent_line.lock.get()) else { return true };
    agent_line.follow_user();
    agent_line.line().or_else(|| agent_line.call()).is_some()
}

/// Takes the answers that have come.
pub(super) fn take_answers(process: &'static Home) {
    let agent_line = &process.tables.agent_line;
    let Some(_held) = Held::try_enter(agent_line.lock.get()) else { return };
    let mut bytes = [0; EMITTED_LEN_MAX];
    for _ in 0..ANSWERS_MAX {
        let Some(line) = agent_line.line() else { return };
        match sys::recv_with_fds(line, &mut bytes) {
            Ok(received) if received.len > 0 => {
                match ControlMessage::parse(&bytes[..received.len]) {
                    Ok(ControlMessage::Match(answer)) if agent_line.is_strangers(&answer) => {
                        // The stranger may have sent something by then.
                        received.fds().iter().copied().for_each(rights::close);
                        continue;
                    }
                    Ok(ControlMessage::Match(answer)) => {
                        agent_line.meet(process, &answer, received.fds())
                    }
                    Ok(_) => agent_line.hang_up(),
                    Err(error) => {
                        crate::log!(Warn, "the agent makes no sense: {error}");
                        agent_line.hang_up();
                    }
                }
                // Who keeps one has a copy.
                received.close_fds();
            }
            Err(Errno(libc::EAGAIN | libc::EINTR)) => return,
            // It has gone without having read all; what it has said comes behind.
            Err(Errno(libc::ECONNRESET)) => {}
            Ok(_) | Err(_) => agent_line.hang_up(),
        }
    }
}

/// Whether the other end of a connection is of a user with whom no memory is shared.
pub(super) fn is_strangers(process: &Home, token: [u8; 16]) -> bool {
    let [first, _] = halves(&token);
    process.tables.agent_line.strangers.iter().any(|known| known.load(Ordering::Relaxed) == first)
}

impl AgentLine {
    /// Whether the other end of a connection of ours is of a user with whom no memory is shared; such
    /// connections are remembered.
    fn is_strangers(&self, answer: &Match) -> bool {
        let Match { uid, gid, own_uid, is_granted, .. } = *answer;
        // A process that is met here may be of another network namespace.
        let objection = options::current().policy.objection_to_user(own_uid, uid, gid, false);
        let is_strangers = objection.is_some() && !is_granted;
        if is_strangers {
            let place = self.next_stranger.fetch_add(1, Ordering::Relaxed) as usize % STRANGERS_MAX;
            let [first, _] = halves(&answer.token);
            self.strangers[place].store(first, Ordering::Relaxed);
        }
        is_strangers
    }

    /// A friend holds the other end of a connection of ours.
    fn meet(&self, process: &'static Home, answer: &Match, fds: &[i32]) {
        let Match { uid, gid, own_uid, .. } = *answer;
        let &[line] = fds else { return };
        let look = Look::at(process);
        let users = group::Users { own_uid, peer: Sender { uid, gid } };
        match groups::begin_distant(&look, answer.instance, line, users) {
            Ok(group) => {
                group.note_grant(answer.is_granted);
                if answer.side == Side::Client {
                    group.note_port(answer.port);
                }
            }
            Err(errno) => {
                crate::log!(Warn, "no memory to share with {}: errno {}", answer.instance, errno.0);
            }
        }
    }
}
