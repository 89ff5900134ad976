//! The questions before an attempt ([`Begin`]), asked to the end, as this process and the kernel answer them.

use crate::process::home;
use crate::process::memory;
use crate::process::options::{self, Promotion};
use crate::rendezvous::attempt::{Look, PENDING};
use crate::rendezvous::whereabouts::{self, Whereabouts};
use crate::rendezvous::{autocache, denial, gateway, listeners, passed, pnet, tcp_option};
use core::sync::atomic::Ordering;
use sidestep_proto::fallback::{Lack, Reason};
use sidestep_proto::rendezvous::agreement::begin::{Begin, Standing};
use sidestep_proto::rendezvous::agreement::{Answer, Givers};
use sidestep_wire::host_control::{Side, connection_token, distant_token};

/// Asks one after the other.
pub(super) fn carry_out(look: &mut Look) -> Result<Answer, Reason> {
    let side = if look.is_server { Side::Server } else { Side::Client };
    let mut question = Begin::new();
    loop {
        question = match question {
            Begin::Over(what) => return Ok(Answer::Begun(what)),
            asked => asked.answered(side, &answer(look, asked)?)?,
        };
    }
}

fn answer(look: &mut Look, question: Begin) -> Result<Answer, Reason> {
    let Look { sock, fd, .. } = *look;
    Ok(match question {
        Begin::LooksAtItself => Answer::Standing(standing(look)),
        Begin::LooksForMemory => Answer::Is(home::current().is_some()),
        Begin::MovesHome { .. } => {
            listeners::follow_settings();
            sock.move_home(fd);
            Answer::Is(home::current().is_some())
        }
        Begin::AsksGivers => {
            let givers = passed::givers(look.process()?, fd);
            if givers == Givers::Gone {
                sock.is_received.store(false, Ordering::Relaxed);
            }
            Answer::Givers(givers)
        }
        Begin::LearnsAddresses => {
            look.addresses = sock.learn_addresses(fd);
            Answer::Is(look.addresses.is_some())
        }
        Begin::AsksRules => {
            // They were not known to `begin` if the connection was still being established.
            let (local, peer) = look.addresses()?;
            Answer::Objection(sock.objection_by_policy(local, peer))
        }
        Begin::LooksWhere => {
            let (process, (client, server)) = (look.process()?, look.client_and_server()?);
            match whereabouts::of_other_end(look)? {
                Whereabouts::Named => {
                    Answer::Here(connection_token(client, server, process.netns_cookie))
                }
                Whereabouts::NoProgramYet => Answer::NotYet,
                Whereabouts::Nameless(reason) => Answer::Elsewhere(reason),
            }
        }
        Begin::AsksGateway => Answer::Objection(gateway::objection(look.addresses()?.1)),
        Begin::LearnsIdentity { .. } => {
            let identity = tcp_option::identity(fd, look.is_server);
            Answer::Token(identity.map(distant_token))
        }
        // The agent's programs tell listeners by the addresses that clients see.
        Begin::AsksTcpOption { .. } => {
            Answer::Is(!look.is_translated && tcp_option::is_refused(sock, fd))
        }
        Begin::AsksNetwork { .. } => {
            let (slot, (local, _)) = (look.slot()?, look.addresses()?);
            denial::note_interface(slot, fd, local.ip(), !look.is_by_loopback);
            let by_pnet = pnet::objection(fd, local.ip());
            Answer::Objection(by_pnet.or_else(|| denial::early_objection(slot, fd)))
        }
        Begin::AsksMemoryOfFailures { .. } => {
            Answer::Objection(autocache::why_left_alone(look.process()?, look.addresses()?.1))
        }
        Begin::Over(_) => return Err(Lack::Contradiction.into()),
    })
}

fn standing(look: &Look) -> Standing {
    let sock = look.sock;
    if sock.slot().is_none() {
        listeners::follow_settings();
        sock.begin(look.fd);
    }
    let options = options::current();
    let limit = options.handshake_limit;
    Standing {
        has_slot: sock.slot().is_some(),
        is_never_promoted: options.promotion == Promotion::Never,
        is_tcp_only: sock.tcp_only.load(Ordering::Relaxed),
        is_memory_strict: memory::is_strict(),
        is_congested: limit != 0 && PENDING.load(Ordering::Relaxed) >= limit,
        is_shared: sock.slot().is_some_and(|slot| slot.holders.load(Ordering::Acquire) > 1),
        is_received: sock.is_received.load(Ordering::Relaxed),
    }
}
