//! The server's end, carried out.

use super::{afar, begin, denial, record};
use crate::connection::{ledger, switch};
use crate::process::tcp::socket_cookie;
use crate::process::{clc, groups};
use crate::rendezvous::attempt::{Look, Outcome};
use crate::rendezvous::claim;
use crate::table::rendezvous::{Held, Peer};
use core::sync::atomic::Ordering;
use sidestep_device::ring::Ring;
use sidestep_device::slab::phase;
use sidestep_device::sys::{self, Errno, UnixName};
use sidestep_proto::fallback::{Lack, Reason};
use sidestep_proto::rendezvous;
use sidestep_proto::rendezvous::agreement::server::{Accepts, State};
use sidestep_proto::rendezvous::agreement::{Answer, Greeting, Illegal, Moment, Server, Token};
use sidestep_wire::RmbeSize;
use sidestep_wire::host_control::{EMITTED_LEN_MAX, Hello, Side, connection_name};

/// One look of a server.
pub(super) fn look(
    server: &mut Server,
    held: &mut Held,
    look: &mut Look,
    moment: Moment,
) -> Result<Outcome, Illegal> {
    server.look(&look.call(moment, server.counts_time()))?;
    loop {
        let answer = match server.state() {
            State::Start | State::AwaitsClaim | State::AwaitsReply(_) | State::Abandoned => {
                return Ok(Outcome::Rests);
            }
            State::Moved => return Ok(Outcome::Moved),
            State::Stays(failure) => return Ok(Outcome::Stays(failure)),
            state => carry_out(server, held, look, state),
        };
        match &answer {
            Ok(answer) => server.answered(answer)?,
            Err(reason) => server.answered(&Answer::Failed(*reason))?,
        }
    }
}

/// Apart from the loop, so that an answer is written once, where the machine reads it.
#[inline(never)]
fn carry_out(
    server: &Server,
    held: &mut Held,
    look: &mut Look,
    state: State,
) -> Result<Answer, Reason> {
    let (sock, fd) = (look.sock, look.fd);
    match state {
        State::Begins => {
            let answer = begin::carry_out(look);
            held.server_port = look.addresses.map_or(held.server_port, |(local, _)| local.port());
            answer
        }
        State::CountsRefusals(_) => {
            let process = look.process()?;
            let refusals = process.refusals.load(Ordering::Relaxed);
            Ok(Answer::Strangers { refusals, breaches: process.breaches() })
        }
        State::LooksForClaim(to) => find_claim(held, look, to.token),
        State::LooksAfar => find_claim(held, look, server.token()),
        State::GreetsClient(to) => {
            let Peer { group, slot } = held.peer()?;
            claim::greet(look.process()?, sock, (group, slot), to.token);
            Ok(Answer::Done)
        }
        State::LooksWhetherBeset(_) => Ok(Answer::Is(look.process()?.is_beset())),
        State::Buries => {
            groups::bury(look.groups()?);
            Ok(Answer::Done)
        }
        State::SendsHello(_) => send_hello(look),
        State::NotesReason(reason) => {
            sock.note_reason(reason);
            Ok(Answer::Done)
        }
        State::Engages(_) => Ok(look.engage()),
        State::LooksWhetherAlone => Ok(Answer::Is(look.is_alone())),
        State::Withdraws => look.withdraw(),
        State::Seeks(step) => {
            afar::carry_out(step, look, server.token(), Side::Server, held.server_port)
        }
        State::LooksForProposal(_) => find_proposal(held, look),
        State::ReadsMailIfAny(_) => {
            // Peers that have died meanwhile can be buried while letters are read.
            look.groups = None;
            look.process()?.read_mail_if_any();
            Ok(Answer::Done)
        }
        State::ReadsMail(_) => {
            look.groups = None;
            let process = look.process()?;
            process.read_mail();
            Ok(Answer::Count(process.refusals.load(Ordering::Acquire)))
        }
        State::LooksForBreach { breaches } => {
            let process = look.process()?;
            let is_breached = process.breaches() != breaches;
            Ok(if is_breached { Answer::Instead(process.last_breach()) } else { Answer::NotYet })
        }
        State::ReadsRefusal(_) => {
            Err(Reason::of_word(look.process()?.last_refusal.load(Ordering::Relaxed)))
        }
        State::LooksForReaders(_) => {
            Ok(Answer::Is(look.slot()?.plain_receives.load(Ordering::SeqCst) != 0))
        }
        State::ReadsProposal(_) => read_proposal(held, look),
        State::AsksRules(_) => Ok(Answer::Is(held.peer()?.group.may_go_on())),
        State::AsksFilter(_) => Ok(Answer::Objection(denial::objection(look.slot()?, fd))),
        State::ReadsSize(_) => {
            let Peer { group, slot } = held.peer()?;
            let (theirs, _) = group.theirs().ok_or(Reason::Lack(Lack::NoSlot))?;
            let wished = theirs.record(slot).identity.rmbe_len.load(Ordering::Relaxed);
            Ok(Answer::Size(RmbeSize::from_bytes(wished as usize)))
        }
        State::LooksAtRing(_) => look.find_ring(held.peer()?),
        State::AdmitsRing(_) => look.admit_ring(held.peer()?),
        State::TakesRing(it) => {
            let group = held.peer()?.group;
            let (ring_at, ring) = look.process()?.take_ring(group, sock.slot_index(), it.size)?;
            (look.ring_at, held.outgoing) = (ring_at, ring);
            Ok(Answer::Done)
        }
        State::FillsRecord(it) => fill(held, look, &it),
        State::PutsAccept(_) => {
            let accept = look.accept.as_ref().ok_or(Reason::Lack(Lack::Contradiction))?;
            clc::put_clc(held.peer()?.group, sock.slot_index(), accept);
            Ok(Answer::Done)
        }
        State::LooksWhetherOpen(_) => Ok(Answer::Is(ledger::is_established(fd))),
        State::ReadsByLedger(_) => {
            let conn = look.conn(held, held.peer()?)?;
            Ok(Answer::Is(switch::read_by_ledger(sock, fd, conn)))
        }
        State::GivesRingBack(_) => {
            held.outgoing = Ring::NONE;
            look.process()?.give_ring_back(held.peer()?.group, sock.slot_index());
            Ok(Answer::Done)
        }
        State::ShowsAccepted => {
            look.show(held.peer()?, phase::ACCEPTED)?;
            crate::polling::epoll::adopt(sock);
            Ok(Answer::Done)
        }
        State::PutsDecline(declining) => {
            record::put_decline(look, held.peer()?, &declining.message());
            Ok(Answer::Done)
        }
        State::ShowsDeclined(_) => look.show(held.peer()?, phase::DECLINED),
        State::Start
        | State::AwaitsClaim
        | State::AwaitsReply(_)
        | State::Moved
        | State::Stays(_)
        | State::Abandoned => Err(Lack::Contradiction.into()),
    }
}

/// Does a client claim the connection of this token?
fn find_claim(held: &mut Held, look: &mut Look, token: Token) -> Result<Answer, Reason> {
    let (process, own) = (look.process()?, look.sock.slot_index());
    let found = claim::find(process, look.groups()?, token, own);
    held.follow(found.map(|(group, slot, _)| Peer { group, slot }));
    Ok(Answer::Record(found.map(|(.., seen)| seen)))
}

/// What the hint in our cell leads to: who proposes, and in which of its slots.
fn find_proposal(held: &mut Held, look: &mut Look) -> Result<Answer, Reason> {
    let (process, own) = (look.process()?, look.sock.slot_index());
    let hint = process.wake.cell(own).take();
    let found = claim::follow(look.groups()?, hint, own);
    held.follow(found.map(|(group, slot, _)| Peer { group, slot }));
    Ok(Answer::Record(found.map(|(.., seen)| seen)))
}

fn send_hello(look: &mut Look) -> Result<Answer, Reason> {
    let (process, slot, sock) = (look.process()?, look.slot()?, look.sock);
    let (local, peer) = look.addresses()?;
    let mut token = [0; 16];
    sys::random(&mut token).map_err(|_| Reason::Lack(Lack::NoMemory))?;
    let hello = Hello {
        instance: process.instance,
        slot: sock.slot_index() as u32,
        generation: slot.generation.load(Ordering::Relaxed),
        token,
        socket_cookie: socket_cookie(look.fd),
        netns_cookie: process.netns_cookie,
        rmbe_len: sock.rmbe().bytes() as u32,
    };
    let mut bytes = [0; EMITTED_LEN_MAX];
    let len = hello.emit(&mut bytes).map_err(|error| record::unwritten(&error))?;
    process.wake.cell(sock.slot_index()).clear();
    let name = UnixName::new(&connection_name(peer, local));
    let sent = sys::send_with_fds(process.mailbox, &name, &bytes[..len], &[]);
    Ok(Answer::Hello(match sent {
        Ok(_) => Greeting::Sent(token),
        Err(Errno(libc::EAGAIN)) => Greeting::NoRoom,
        Err(_) => Greeting::NobodyThere,
    }))
}

/// Reads the Proposal, and prepares the Accept that is the answer to it.
fn read_proposal(held: &Held, look: &mut Look) -> Result<Answer, Reason> {
    let Peer { group, slot } = held.peer()?;
    let message = clc::read_clc(group, slot);
    let local = look.process()?.local();
    let buffer = record::buffer(look.sock, group, group.is_first_contact());
    let accept = rendezvous::expect_proposal(message, group.peer.into(), &local, buffer);
    let size = accept.as_ref().map(|accept| accept.size).map_err(|refusal| *refusal);
    look.accept = accept.ok();
    Ok(Answer::Clc(size))
}

fn fill(held: &Held, look: &Look, it: &Accepts) -> Result<Answer, Reason> {
    let Peer { group, slot: peer_slot } = held.peer()?;
    let own = group.record(look.sock.slot_index());
    record::prepare(own, look.slot()?, look.fd, look.ring_at, it.size, look.sock.rmbe());
    own.identity.peer_slot.store(peer_slot as u32, Ordering::Relaxed);
    Ok(Answer::Done)
}
