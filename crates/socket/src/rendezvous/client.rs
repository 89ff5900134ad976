//! The client's end, carried out.

use super::{afar, begin, denial, marker, record};
use crate::connection::{ledger, switch};
use crate::process::group::Group;
use crate::process::home::Home;
use crate::process::{clc, groups, mail, tcp};
use crate::rendezvous::attempt::{Look, Outcome};
use crate::rendezvous::claim;
use crate::table::rendezvous::{Held, Peer};
use core::sync::atomic::Ordering;
use sidestep_device::rights::{self, NotTaken};
use sidestep_device::slab::{CLC_LEN_MAX, phase};
use sidestep_device::sys::{self, UnixName};
use sidestep_proto::fallback::{Lack, OperatorSaid, Reason};
use sidestep_proto::rendezvous;
use sidestep_proto::rendezvous::agreement::client::{Proposing, State};
use sidestep_proto::rendezvous::agreement::{Answer, Client, Greeter, Illegal, Letter, Moment};
use sidestep_wire::host_control::{ControlMessage, Side, connection_name};

/// One look of a client.
pub(super) fn look(
    client: &mut Client,
    held: &mut Held,
    look: &mut Look,
    moment: Moment,
) -> Result<Outcome, Illegal> {
    client.look(&look.call(moment, client.counts_time()))?;
    loop {
        let answer = match client.state() {
            State::Start
            | State::AwaitsHello(_)
            | State::AwaitsGreeting(_)
            | State::AwaitsIntroduction(_)
            | State::AwaitsAccept(_)
            | State::Abandoned => return Ok(Outcome::Rests),
            State::Moved => return Ok(Outcome::Moved),
            State::Stays(failure) => return Ok(Outcome::Stays(failure)),
            state => carry_out(held, look, state),
        };
        match &answer {
            Ok(answer) => client.answered(answer)?,
            Err(reason) => client.answered(&Answer::Failed(*reason))?,
        }
    }
}

/// Apart from the loop, so that an answer is written once, where the machine reads it.
#[inline(never)]
fn carry_out(held: &mut Held, look: &mut Look, state: State) -> Result<Answer, Reason> {
    let (sock, fd) = (look.sock, look.fd);
    match state {
        State::Begins => {
            let answer = begin::carry_out(look);
            held.server_port = look.addresses.map_or(held.server_port, |(_, peer)| peer.port());
            answer
        }
        State::Claims(token) => {
            let is_near = |group: &&Group| !group.is_distant();
            let process = look.process()?;
            Ok(Answer::Is(claim::post(process, sock, held.server_port, token, is_near)))
        }
        State::LooksForMarker(_) => {
            Ok(Answer::Is(marker::is_there(look.process()?, look.addresses()?.1.port())))
        }
        State::BindsName(_) => {
            let (local, peer) = look.addresses()?;
            if rights::is_beset() {
                return Err(Lack::Beset.into());
            }
            held.name_fd = bind(&UnixName::new(&connection_name(local, peer)))?;
            Ok(Answer::Done)
        }
        State::Engages(_) | State::EngagesAfar(_) => Ok(look.engage()),
        State::LooksWhetherAlone(_) => Ok(Answer::Is(look.is_alone())),
        State::Withdraws => look.withdraw(),
        State::LooksForGreeting(_) | State::LooksAfar(_) => {
            Ok(Answer::Greeting(claim::greeting(look.process()?, sock)))
        }
        State::Seeks(token, step) => {
            afar::carry_out(step, look, token, Side::Client, held.server_port)
        }
        State::ReadsName(_) => read_name(look.process()?, held.name_fd),
        State::LooksWhetherOpen(_) | State::LooksWhetherOpenAfar(_) => {
            Ok(Answer::Is(ledger::is_established(fd)))
        }
        State::Introduces(hello) => introduce(held, look, &hello),
        State::TellsRefusal { hello, reason } => {
            mail::refuse(look.groups()?, hello.instance, reason);
            Ok(Answer::Done)
        }
        State::TakesRing(to) => {
            let group = held.peer()?.group;
            let (ring_at, ring) = look.process()?.take_ring(group, sock.slot_index(), to.size)?;
            (look.ring_at, held.outgoing) = (ring_at, ring);
            Ok(Answer::Done)
        }
        State::PutsProposal(_) => {
            let mut bytes = [0; CLC_LEN_MAX];
            let proposal = rendezvous::propose(&look.process()?.local());
            let len = proposal.emit(&mut bytes).map_err(|error| record::unwritten(&error))?;
            held.peer()?.group.slab().clc(sock.slot_index()).put(&bytes[..len]);
            Ok(Answer::Done)
        }
        State::FillsRecord(to) => fill(held, look, &to),
        State::ShowsProposed(_) => look.show(held.peer()?, phase::PROPOSED),
        State::LeavesHint(to) => {
            let (_, wake) = held.peer()?.group.theirs().ok_or(Reason::Lack(Lack::NoMemory))?;
            let key = look.process()?.key();
            wake.cell(to.hello.slot as usize).put(key, sock.slot_index() as u32);
            Ok(Answer::Done)
        }
        State::ReadsRecord(_) => {
            let Peer { group, slot } = held.peer()?;
            let theirs = group.theirs().map(|(slab, _)| &slab.record(slot).identity);
            let own = sock.slot_index();
            Ok(Answer::Record(theirs.map(|identity| clc::read(identity, own))))
        }
        State::ReadsAnswer(_) => {
            let Peer { group, slot } = held.peer()?;
            let message = clc::read_clc(group, slot);
            let local = look.process()?.local();
            let (peer, link_id) = (group.peer.into(), group.peer_link_id());
            let accept = rendezvous::expect_accept(message, peer, link_id, &local);
            let size = accept.as_ref().map(|accept| accept.size).map_err(|refusal| *refusal);
            look.accept = accept.ok();
            Ok(Answer::Clc(size))
        }
        State::LooksAtRing { .. } => look.find_ring(held.peer()?),
        State::AsksFilter(_) => Ok(Answer::Objection(denial::objection(look.slot()?, fd))),
        State::AdmitsRing(_) => look.admit_ring(held.peer()?),
        State::ReadsByLedger(_) => {
            let conn = look.conn(held, held.peer()?)?;
            Ok(Answer::Is(switch::read_by_ledger(sock, fd, conn)))
        }
        State::PutsConfirm => {
            let group = held.peer()?.group;
            let accept = look.accept.as_ref().ok_or(Reason::Lack(Lack::Contradiction))?;
            let buffer = record::buffer(sock, group, accept.first_contact.is_some());
            let confirm = rendezvous::confirm(accept, &look.process()?.local(), buffer);
            clc::put_clc(group, sock.slot_index(), &confirm);
            Ok(Answer::Done)
        }
        State::ShowsConfirmed => {
            look.show(held.peer()?, phase::CONFIRMED)?;
            crate::polling::epoll::adopt(sock);
            Ok(Answer::Done)
        }
        State::PutsDecline { declining, .. } => {
            record::put_decline(look, held.peer()?, &declining.message());
            Ok(Answer::Done)
        }
        State::ShowsDeclined { .. } => look.show(held.peer()?, phase::DECLINED),
        State::Start
        | State::AwaitsHello(_)
        | State::AwaitsGreeting(_)
        | State::AwaitsIntroduction(_)
        | State::AwaitsAccept(_)
        | State::Moved
        | State::Stays(_)
        | State::Abandoned => Err(Lack::Contradiction.into()),
    }
}

/// A socket of this name, for a hello. That there is none is no fault of the peer's, which has not
/// been asked yet.
fn bind(name: &UnixName) -> Result<i32, Reason> {
    let name_fd = sys::unix_datagram().map(sys::move_up).map_err(|_| Lack::NoMemory)?;
    // A Hello has none.
    rights::refuse(name_fd);
    let bound = sys::set_socket_option(name_fd, libc::SOL_SOCKET, libc::SO_PASSCRED, 1)
        .and_then(|_| sys::bind_unix(name_fd, name));
    if let Err(errno) = bound {
        crate::log!(Warn, "the name of a connection cannot be bound: errno {}", errno.0);
        sys::close(name_fd);
        return Err(Lack::NameTaken.into());
    }
    Ok(name_fd)
}

/// What lies under the connection's name, and whose it is.
fn read_name(process: &Home, name_fd: i32) -> Result<Answer, Reason> {
    let mut bytes = [0; 256];
    let received = match rights::receive(name_fd, &mut bytes, mail::takes_from) {
        Ok(received) => received,
        Err(NotTaken::Errno(_)) => return Ok(Answer::Letter(None)),
        Err(NotTaken::Foreign) => return Err(Reason::Operator(OperatorSaid::OtherUser)),
    };
    let is_friend = mail::shares_with(&received);
    let is_stranger = received.sender.is_none_or(|sender| sender.uid != sys::uid());
    received.close_fds();
    let message = ControlMessage::parse(&bytes[..received.len]);
    if let Err(error) = &message
        && is_friend
    {
        crate::log!(Warn, "hello refused: {error}");
    }
    let netns_cookie = process.netns_cookie;
    Ok(Answer::Letter(Some(Letter { message, netns_cookie, is_friend, is_stranger })))
}

/// Begins a link group with the server's process, and looks whether that has introduced itself.
fn introduce(held: &mut Held, look: &mut Look, hello: &Greeter) -> Result<Answer, Reason> {
    let process = look.process()?;
    let Ok(group) = groups::begin(look.groups()?, hello.instance) else {
        return Err(if process.is_beset() { Lack::Beset } else { Lack::NoMemory }.into());
    };
    if group.theirs().is_none() {
        group.introduce(true);
        process.read_mail();
    }
    if let Some(reason) = group.refusal() {
        return Err(reason);
    }
    if group.theirs().is_none() {
        return Ok(group.breach().map_or(Answer::NotYet, Answer::Instead));
    }
    group.note_port(look.sock.server_port.load(Ordering::Relaxed));
    held.follow(Some(Peer { group, slot: hello.slot as usize }));
    Ok(Answer::Done)
}

fn fill(held: &Held, look: &Look, to: &Proposing) -> Result<Answer, Reason> {
    let own = held.peer()?.group.record(look.sock.slot_index());
    record::prepare(own, look.slot()?, look.fd, look.ring_at, to.size, look.sock.rmbe());
    own.identity.peer_slot.store(to.hello.slot, Ordering::Relaxed);
    let token = tcp::halves(&to.hello.token);
    own.identity.token[0].store(token[0], Ordering::Relaxed);
    own.identity.token[1].store(token[1], Ordering::Relaxed);
    Ok(Answer::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_cannot_be_bound_is_lacking_here() {
        let ends = ["127.0.0.1:1", "127.0.0.1:2"].map(|end| end.parse().unwrap());
        let name = UnixName::new(&connection_name(ends[0], ends[1]));
        let first = bind(&name).unwrap();
        assert_eq!(bind(&name), Err(Lack::NameTaken.into()));
        sys::close(first);
        sys::close(bind(&name).unwrap());
    }
}
