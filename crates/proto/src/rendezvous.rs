//! Rendezvous: Proposal, Accept, Confirm, or Decline.
//!
//! ```text
//!   client                                      server
//!   propose()        -- Proposal -->            expect_proposal()
//!   expect_accept()  <-- Accept, Decline --
//!   confirm()        -- Confirm, Decline -->    expect_confirm()
//! ```
//!
//! What comes instead of an expected message leads to a [`Refusal`], by the rules of RFC 7609
//! Appendix C, each of which has a test in `appendix_c.rs`. C.2, C.7 and C.8 are about links,
//! which SMC-D has not. The RFC ends the TCP connection after protocol errors and timeouts,
//! because there CLC messages are its bytes: what is lost in them, the program would miss.
//! Here they go beside it, so it is as good as ever and just stays TCP.
//!
//! That is between two processes of one host. Between hosts there is no beside: [`hosts`].
//!
//! Two processes of one host speak SMC-D version 2, release 2.1, as two
//! Emulated-ISM devices of the loopback kind: every process is a device with a
//! random 128-bit GID, the channel is [`Chid::LOOPBACK`], and a common UEID, or the
//! SEID of their machine if both have it, admits one to the other. The bytes are the standard's; where the DMB behind a token
//! lies is told beside them, by the device.
//!
//! *Source*: RFC 7609 §3.5.1, Appendix A.1 and C; SMC version 2 as in the wire
//! reference §2.5 and §2.10.

pub mod agreement;
pub mod hosts;
mod refusal;
mod wait;

pub use refusal::Refusal;
pub use wait::{AnswerWait, CLC_WAIT_NS, LOOKS_IN_TIME, PAUSE_MAX_NS};

#[cfg(test)]
mod appendix_c;

use crate::fallback::{Field, OperatorSaid, PeerCannot, Reason};
use arrayvec::ArrayVec;
use sidestep_wire::Error;
use sidestep_wire::clc::{
    AcceptConfirm, AcceptConfirmD, Decline, FEATURE_EMULATED_ISM, FirstContact, Hostname, Message,
    OsType, Proposal, Release, Role,
};
use sidestep_wire::diagnosis::Diagnosis;
use sidestep_wire::ids::{Chid, DmbToken, Eid, ExtendedGid, LinkId, PeerId};
use sidestep_wire::rmbe_size::RmbeSize;

/// Our identity.
#[derive(Clone, Debug)]
pub struct Local {
    /// GID of this process's device.
    pub gid: ExtendedGid,
    /// The UEIDs we admit, the preferred first.
    pub ueids: ArrayVec<Eid, UEIDS_MAX>,
    /// The SEID of this machine, if we admit its programs whatever their UEIDs.
    pub seid: Option<Eid>,
}

impl Local {
    fn admits(&self, eid: &Eid) -> bool {
        self.ueids.contains(eid) || self.seid.as_ref() == Some(eid)
    }
}

/// UEIDs of a host, as many as Linux allows. A message has room for eight.
pub const UEIDS_MAX: usize = 4;

/// What this side brings to one connection.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// Names our receive buffer.
    pub token: DmbToken,
    /// Its size.
    pub size: RmbeSize,
    /// Our link group with the peer.
    pub link_id: LinkId,
    /// No connection of this link group was accepted before: the name of this host, which the
    /// peer is shown then.
    pub first_contact: Option<Hostname>,
}

/// The client's offer.
#[must_use]
pub fn propose(local: &Local) -> Proposal {
    let ueids = local.ueids.iter().copied().collect();
    Proposal::smc_d_v2(ueids, local.seid, local.gid, Chid::LOOPBACK)
}

/// The server's answer to a Proposal that came from the device `peer`.
///
/// # Errors
/// The [`Decline`] to send, and whose fault it is: nothing of SMC-Dv2 offered, no loopback device,
/// or one with another GID than that of the process that sent it, no EID offered (NOUEID), or none
/// in common, of which Linux says that there is no device (NOSMCDEV).
fn answer(
    proposal: &Proposal,
    peer: ExtendedGid,
    local: &Local,
    buffer: Buffer,
) -> Result<AcceptConfirmD, Refusal> {
    let cannot = |diagnosis| refuse(diagnosis, PeerCannot::NothingInCommon);
    let offer = proposal.v2.as_ref().ok_or_else(|| cannot(Diagnosis::PEERNOSMC))?;
    let smc_d = offer.smc_d().ok_or_else(|| cannot(Diagnosis::NOSMCDDEV))?;
    let is_loopback = |(_, chid): &(ExtendedGid, Chid)| *chid == Chid::LOOPBACK;
    if !proposal.emulated_devices().any(|device| is_loopback(&device)) {
        return Err(cannot(Diagnosis::NOSMCD2DEV));
    }
    if !proposal.emulated_devices().any(|device| device == (peer, Chid::LOOPBACK)) {
        return Err(refuse(Diagnosis::NOSMCD2DEV, Reason::PeerBroke(Field::GID_ENTRY)));
    }
    if offer.ueids.is_empty() && smc_d.seid.is_none() {
        return Err(cannot(Diagnosis::NOUEID));
    }
    // The machine's goes first; then the client's order decides.
    let machine = smc_d.seid.as_ref().filter(|seid| local.seid.as_ref() == Some(seid));
    let common = machine.or_else(|| offer.ueids.iter().find(|ueid| local.ueids.contains(ueid)));
    let eid = *common.ok_or_else(|| refuse(Diagnosis::NOSMCDEV, OperatorSaid::NoCommonEid))?;
    let release = offer.release.min(Release::V2_1);
    Ok(message(Role::Accept, local, eid, buffer, release))
}

/// Server: what to answer to what came in place of a Proposal.
///
/// # Errors
/// [`Refusal`].
pub fn expect_proposal(
    received: Result<Message, Error>,
    peer: ExtendedGid,
    local: &Local,
    buffer: Buffer,
) -> Result<AcceptConfirmD, Refusal> {
    match received {
        Ok(Message::Proposal(proposal)) => answer(&proposal, peer, local, buffer),
        other => Err(unexpected(other)),
    }
}

/// Client: what came in place of an Accept, if it is one that we can confirm. `link_id`:
/// what the peer calls our link group.
///
/// # Errors
/// [`Refusal`]. Of a link group that is not ours, the Decline says that we are out of sync
/// (C.4).
pub fn expect_accept(
    received: Result<Message, Error>,
    peer: ExtendedGid,
    link_id: LinkId,
    local: &Local,
) -> Result<AcceptConfirmD, Refusal> {
    let accept = match received {
        Ok(Message::Accept(AcceptConfirm::SmcD(accept))) => accept,
        Ok(Message::Accept(_)) => {
            let not_offered = Reason::PeerBroke(Field::CLC_TYPE_BITS);
            return Err(refuse(Diagnosis::MODEUNSUPP, not_offered));
        }
        other => return Err(unexpected(other)),
    };
    check_accept(&accept, peer, local)
        .map_err(|(diagnosis, field)| refuse(diagnosis, Reason::PeerBroke(field)))?;
    if accept.link_id != link_id {
        let out_of_sync = Decline::v2(PeerId::default(), Diagnosis::SYNCERR);
        let decline = Decline { out_of_sync: true, ..out_of_sync };
        return Err(Refusal::Decline(decline, Reason::PeerBroke(Field::LINK_ID)));
    }
    Ok(accept)
}

/// Server: the size of the client's receive buffer, by what came in place of a Confirm after
/// our `accept`. On the side that has sent its last message there is no way to decline (C.3).
///
/// # Errors
/// [`Refusal`], of which [`Refusal::Decline`] is none.
pub fn expect_confirm(
    received: Result<Message, Error>,
    peer: ExtendedGid,
    accept: &AcceptConfirmD,
) -> Result<RmbeSize, Refusal> {
    match received {
        Ok(Message::Confirm(AcceptConfirm::SmcD(confirm))) => {
            check_confirm(&confirm, peer, accept).map_err(|(_, field)| Refusal::Protocol(field))
        }
        Ok(Message::Decline(decline)) => Err(Refusal::Declined(decline)),
        Ok(_) => Err(Refusal::Protocol(Field::CLC_TYPE)),
        Err(error) => Err(Refusal::Protocol(Field::of(&error))),
    }
}

fn refuse(diagnosis: Diagnosis, reason: impl Into<Reason>) -> Refusal {
    Refusal::Decline(Decline::v2(PeerId::default(), diagnosis), reason.into())
}

/// What a reserved value says is that the peer knows more than we do, which is no error.
fn unexpected(received: Result<Message, Error>) -> Refusal {
    match received {
        Ok(Message::Decline(decline)) => Refusal::Declined(decline),
        Ok(_) => Refusal::Protocol(Field::CLC_TYPE),
        Err(error) if error.is_reserved_value() => {
            refuse(Diagnosis::MODEUNSUPP, Reason::of_unread(&error))
        }
        Err(error) => Refusal::Protocol(Field::of(&error)),
    }
}

/// Checks an Accept that came from the device `peer`; returns the size of the
/// server's receive buffer.
///
/// # Errors
/// The diagnosis to decline with, and the field in which something was not offered.
fn check_accept(
    accept: &AcceptConfirmD,
    peer: ExtendedGid,
    local: &Local,
) -> Result<RmbeSize, (Diagnosis, Field)> {
    check_form(accept, Role::Accept, peer)?;
    if !local.admits(&accept.eid) {
        return Err((Diagnosis::NOUEID, Field::EID));
    }
    match &accept.first_contact {
        Some(contact) if contact.release > Release::V2_1 => {
            Err((Diagnosis::RELEASEERR, Field::RELEASE))
        }
        _ => Ok(accept.size),
    }
}

/// What has to be so in an Accept and in a Confirm of the device `peer`.
fn check_form(
    message: &AcceptConfirmD,
    role: Role,
    peer: ExtendedGid,
) -> Result<(), (Diagnosis, Field)> {
    let wrong = |field| Err((Diagnosis::MODEUNSUPP, field));
    if message.role != role {
        wrong(Field::CLC_TYPE)
    } else if message.chid != Chid::LOOPBACK {
        wrong(Field::CHID)
    } else if message.gid != peer {
        wrong(Field::GID)
    } else {
        Ok(())
    }
}

/// The client's agreement: echoes what the server has chosen. `buffer` has the name of this host if
/// the server's Accept is a first contact.
#[must_use]
pub fn confirm(accept: &AcceptConfirmD, local: &Local, buffer: Buffer) -> AcceptConfirmD {
    let release = accept.first_contact.as_ref().map_or(Release::V2_1, |contact| contact.release);
    message(Role::Confirm, local, accept.eid, buffer, release)
}

/// Checks a Confirm that came from the device `peer` after our `accept`; returns the size
/// of the client's receive buffer.
///
/// # Errors
/// The diagnosis, and the field that is not what was accepted.
fn check_confirm(
    confirm: &AcceptConfirmD,
    peer: ExtendedGid,
    accept: &AcceptConfirmD,
) -> Result<RmbeSize, (Diagnosis, Field)> {
    check_form(confirm, Role::Confirm, peer)?;
    if confirm.eid != accept.eid {
        return Err((Diagnosis::NOUEID, Field::EID));
    }
    let release = |message: &AcceptConfirmD| message.first_contact.as_ref().map(|it| it.release);
    if release(confirm) != release(accept) {
        return Err((Diagnosis::RELEASEERR, Field::RELEASE));
    }
    Ok(confirm.size)
}

fn message(
    role: Role,
    local: &Local,
    eid: Eid,
    buffer: Buffer,
    release: Release,
) -> AcceptConfirmD {
    let first_contact = buffer.first_contact.map(|hostname| FirstContact {
        os_type: OsType::LINUX,
        release,
        hostname,
        feature_mask: FEATURE_EMULATED_ISM,
    });
    AcceptConfirmD {
        role,
        gid: local.gid,
        token: buffer.token,
        dmbe_index: 0,
        size: buffer.size,
        link_id: buffer.link_id,
        chid: Chid::LOOPBACK,
        eid,
        first_contact,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_wire::ids::Gid;

    fn local(n: u64, ueids: &str) -> Local {
        Local {
            gid: ExtendedGid { gid: Gid(n), gid_ext: !n },
            ueids: ueids.split(',').map(|name| Eid::ueid(name).unwrap()).collect(),
            seid: None,
        }
    }

    /// One that has the SEID of this machine, too.
    fn with_seid(n: u64, ueids: &str, machine: u64) -> Local {
        Local { seid: Some(Eid::seid(machine)), ..local(n, ueids) }
    }

    fn buffer(size: usize) -> Buffer {
        Buffer {
            token: DmbToken(7),
            size: RmbeSize::from_bytes(size).unwrap(),
            link_id: LinkId(1),
            first_contact: Some(Hostname::new(b"host")),
        }
    }

    #[test]
    fn two_sides_agree_and_learn_each_others_buffer() {
        let (client, server) = (local(1, "SIDESTEP"), local(2, "SIDESTEP"));
        let proposal = propose(&client);
        let accept = answer(&proposal, client.gid, &server, buffer(131_072)).unwrap();
        assert_eq!(check_accept(&accept, server.gid, &client).unwrap().bytes(), 131_072);
        let confirm = confirm(&accept, &client, buffer(65_536));
        assert_eq!(check_confirm(&confirm, client.gid, &accept).unwrap().bytes(), 65_536);
        assert_eq!(confirm.first_contact.map(|c| c.release), Some(Release::V2_1));
    }

    #[test]
    fn declines_when_no_ueid_is_common() {
        let (client, server) = (local(1, "PROD"), local(2, "TEST"));
        let declined = answer(&propose(&client), client.gid, &server, buffer(65_536));
        assert_eq!(declined, Err(refuse(Diagnosis::NOSMCDEV, OperatorSaid::NoCommonEid)));
        let mut proposal = propose(&client);
        proposal.v2.as_mut().unwrap().ueids.clear();
        let declined = answer(&proposal, client.gid, &server, buffer(65_536));
        assert_eq!(declined, Err(refuse(Diagnosis::NOUEID, PeerCannot::NothingInCommon)));
    }

    #[test]
    fn of_several_common_ueids_the_clients_first_is_chosen() {
        let (client, server) = (local(1, "A,PROD,TEST"), local(2, "TEST,B,PROD"));
        let accept = answer(&propose(&client), client.gid, &server, buffer(65_536)).unwrap();
        assert_eq!(accept.eid, Eid::ueid("PROD").unwrap());
        let confirm = confirm(&accept, &client, buffer(65_536));
        assert!(check_confirm(&confirm, client.gid, &accept).is_ok());
        let other = AcceptConfirmD { eid: client.ueids[2], ..confirm };
        let other_eid = Err((Diagnosis::NOUEID, Field::EID));
        assert_eq!(check_confirm(&other, client.gid, &accept), other_eid);
        let foreign = AcceptConfirmD { eid: server.ueids[1], ..accept };
        assert_eq!(check_accept(&foreign, server.gid, &client), other_eid);
    }

    #[test]
    fn the_seid_of_a_machine_goes_before_ueids_where_both_ends_have_it() {
        let [client, server] = [(1, "A"), (2, "B,A")].map(|(n, ueids)| with_seid(n, ueids, 7));
        let accept = answer(&propose(&client), client.gid, &server, buffer(65_536)).unwrap();
        assert_eq!(accept.eid, Eid::seid(7));
        assert!(check_accept(&accept, server.gid, &client).is_ok());
        let confirm = confirm(&accept, &client, buffer(65_536));
        assert!(check_confirm(&confirm, client.gid, &accept).is_ok());
    }

    #[test]
    fn the_seid_admits_ends_that_have_no_ueid_in_common() {
        let agree = |client: &Local, server: &Local| {
            let accept = answer(&propose(client), client.gid, server, buffer(65_536))?;
            assert!(check_accept(&accept, server.gid, client).is_ok());
            Ok(accept.eid)
        };
        let [client, server] = [(1, "A"), (2, "B")].map(|(n, ueids)| with_seid(n, ueids, 7));
        assert_eq!(agree(&client, &server), Ok(Eid::seid(7)));
        // Only one has it, or it is another machine's.
        let none = Err(refuse(Diagnosis::NOSMCDEV, OperatorSaid::NoCommonEid));
        for [client, server] in [
            [client.clone(), local(2, "B")],
            [local(1, "A"), server.clone()],
            [client.clone(), with_seid(2, "B", 8)],
        ] {
            assert_eq!(agree(&client, &server), none);
        }
        let with_common = [with_seid(1, "A,C", 7), with_seid(2, "C", 8)];
        assert_eq!(agree(&with_common[0], &with_common[1]), Ok(Eid::ueid("C").unwrap()));
        // A peer may have no UEID at all.
        let mut proposal = propose(&client);
        proposal.v2.as_mut().unwrap().ueids.clear();
        let answered = |server| answer(&proposal, client.gid, server, buffer(65_536));
        assert_eq!(answered(&server).unwrap().eid, Eid::seid(7));
        assert_eq!(answered(&local(2, "B")).map(|accept| accept.eid), none);
    }

    #[test]
    fn a_seid_that_was_not_offered_is_refused() {
        let (client, server) = (local(1, "X"), with_seid(2, "X", 7));
        let accept = answer(&propose(&client), client.gid, &server, buffer(65_536)).unwrap();
        assert_eq!(accept.eid, Eid::ueid("X").unwrap());
        let accept = AcceptConfirmD { eid: Eid::seid(7), ..accept };
        let refused = Err((Diagnosis::NOUEID, Field::EID));
        assert_eq!(check_accept(&accept, server.gid, &client), refused);
    }

    #[test]
    fn declines_a_device_that_is_not_the_senders() {
        let (client, server) = (local(1, "X"), local(2, "X"));
        let declined = answer(&propose(&client), local(3, "X").gid, &server, buffer(65_536));
        let breach = Reason::PeerBroke(Field::GID_ENTRY);
        assert_eq!(declined, Err(refuse(Diagnosis::NOSMCD2DEV, breach)));
    }

    #[test]
    fn an_accept_from_somebody_else_is_refused() {
        let (client, server) = (local(1, "X"), local(2, "X"));
        let accept = answer(&propose(&client), client.gid, &server, buffer(65_536)).unwrap();
        let other = local(9, "X").gid;
        let refused = Err((Diagnosis::MODEUNSUPP, Field::GID));
        assert_eq!(check_accept(&accept, other, &client), refused);
    }
}
