//! The other end cannot be found by its name: how the ends find each other, carried out.
//!
//! Addresses say nothing here: two networks of one host may
//! use the same ones at the same moment, and behind a translation each end sees others. What both ends know, and no other process does, is which connection
//! it is: the sequence numbers with which it began ([`sidestep_wire::tcp_option::Identity`]),
//! as the kernel tells them through the agent's programs. They make the
//! token, and the token stands in a claim of the client, where the server greets it
//! ([`crate::rendezvous::claim`]). That takes two processes that share memory; those that do not yet ask
//! the agent for each other ([`lookup`]).
//!
//! ```text
//!   client                        agent                        server
//!   claim ── to the servers that it has met at the port ──────> found? then it is greeted,
//!   no greeting: lookup ──────>       <────── lookup: no claim     and all is as ever
//!          <── match, a line ───        ─── match, a line ──>
//!          <════════════ Introductions, by that line ═══════>
//!   claim, as above
//! ```
//!
//! When an end looks it up, and when it gives up: [`sidestep_proto::rendezvous::agreement::seek`].

use crate::process::mail;
use crate::rendezvous::attempt::Look;
use crate::rendezvous::{claim, lookup};
use core::sync::atomic::Ordering;
use sidestep_device::sys;
use sidestep_proto::fallback::{Lack, Reason};
use sidestep_proto::rendezvous::agreement::seek::Step;
use sidestep_proto::rendezvous::agreement::{Answer, Token};
use sidestep_wire::host_control::Side;

/// Carries out a step of an end of this side, whose connection has this token and goes to a server
/// at this port.
pub(super) fn carry_out(
    step: Step,
    look: &Look,
    token: Token,
    side: Side,
    server_port: u16,
) -> Result<Answer, Reason> {
    let process = look.process()?;
    let is_acquainting = || process.acquainting.load(Ordering::Relaxed) != 0;
    Ok(match step {
        Step::LooksForNews => Answer::News {
            is_acquainting: is_acquainting(),
            is_strangers: lookup::is_strangers(process, token),
            now_ns: sys::coarse_ns(),
        },
        Step::ReadsAnswers => {
            lookup::take_answers(process);
            if is_acquainting() {
                mail::read_lines(process);
            }
            Answer::Is(lookup::is_strangers(process, token))
        }
        Step::CountsAcquaintances => Answer::Count(process.partners.load(Ordering::Relaxed)),
        Step::Claims => {
            // Processes that have met by name may have a connection that has none.
            Answer::Is(claim::post(process, look.sock, server_port, token, |_| true))
        }
        Step::Lookups => Answer::LookedUp(lookup::submit(process, token, side, server_port)),
        Step::NotesReason(reason) => {
            look.sock.note_reason(reason);
            Answer::Done
        }
        Step::Rests | Step::GivesUp(_) => return Err(Lack::Contradiction.into()),
    })
}
