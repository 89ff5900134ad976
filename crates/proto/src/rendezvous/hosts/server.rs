//! The server's decisions: what to choose of a Proposal, and whether a Confirm agrees to it.
//!
//! Version 2 is preferred. When nothing can be chosen, the cause is the first of these, as Linux
//! has it: the subnets differ; version 2 cannot be; there is no adapter for version 1.

use core::net::Ipv4Addr;

use sidestep_wire::RoceGid;
use sidestep_wire::clc::proposal::{Types, V1Offer, V2Offer};
use sidestep_wire::clc::{AcceptConfirm, AcceptConfirmR, FirstContactR, FormR, Proposal, Release};

use super::eligibility::{LocalHost, Roce, Route};
use super::outcome::Cause;
use super::terms::{CONNS_MIN, Proposer, Terms, Wording, check_end};

/// What the Accept is to say, and to whom.
///
/// # Errors
///
/// Why the server declines.
pub(super) fn choose(
    proposal: &Proposal,
    local: &LocalHost,
    route: &Route,
) -> Result<(Proposer, Terms), Cause> {
    let allowed = local.versions;
    if !allowed.v1 && !allowed.v2 {
        return Err(Cause::NotAllowed);
    }
    let has_smc_r = |types: Types| types.has_smc_r();
    let v1 = proposal.v1.as_ref().filter(|offer| has_smc_r(offer.types));
    let v2 = proposal.v2.as_ref().filter(|offer| has_smc_r(offer.types.types()));
    if v1.is_none() && v2.is_none() {
        return Err(Cause::OnlySmcD);
    }
    let v1 = v1.filter(|_| allowed.v1).map(|offer| check_subnet(offer, route));
    let v2 = v2.filter(|_| allowed.v2).map(|offer| choose_v2(offer, proposal, local, route));
    match (v1, v2) {
        (_, Some(Ok(chosen))) => Ok(chosen),
        (Some(Ok(())), Some(Err(cause))) => choose_v1(proposal, local, route).map_err(|_| cause),
        (Some(Ok(())), None) => choose_v1(proposal, local, route),
        (Some(Err(cause)), _) | (None, Some(Err(cause))) => Err(cause),
        (None, None) => Err(Cause::NothingUsable),
    }
}

fn check_subnet(offer: &V1Offer, route: &Route) -> Result<(), Cause> {
    if route.shares_subnet(&offer.prefixes) { Ok(()) } else { Err(Cause::OtherSubnet) }
}

fn choose_v1(
    proposal: &Proposal,
    local: &LocalHost,
    route: &Route,
) -> Result<(Proposer, Terms), Cause> {
    let Proposal { peer_id, roce_gid: gid, mac, .. } = *proposal;
    let adapters = local.adapters(route, Roce::V1);
    if adapters.preferred().is_none() || !route.reaches(gid, Roce::V1) || local.has(gid) {
        return Err(Cause::NoAdapter);
    }
    let terms = Terms {
        own_id: local.peer_id,
        adapters: adapters.ids(),
        vlan: route.vlan,
        wording: Wording::V1,
    };
    Ok((Proposer { peer_id, gid, mac }, terms))
}

fn choose_v2(
    offer: &V2Offer,
    proposal: &Proposal,
    local: &LocalHost,
    route: &Route,
) -> Result<(Proposer, Terms), Cause> {
    if offer.ueids.is_empty() {
        return Err(Cause::PeerWithoutEid);
    }
    // The client's order decides.
    let common = offer.ueids.iter().find(|ueid| local.ueids.contains(ueid));
    let eid = *common.ok_or(Cause::NoCommonEid)?;
    let gid = mapped(offer.roce_gid);
    let adapters = local.adapters(route, Roce::V2);
    let adapter = adapters.preferred().ok_or(Cause::NoRoutedAdapter)?;
    if !route.reaches(gid, Roce::V2) || local.has(gid) {
        return Err(Cause::NoRoutedAdapter);
    }
    let ours = local.hello(offer.release.min(Release::V2_1));
    let hello = FirstContactR { direct: adapter.is_neighbour(gid), ..limited(ours, offer)? };
    let proposer = Proposer { peer_id: proposal.peer_id, gid, mac: proposal.mac };
    let wording = Wording::V2 { eid, hello };
    Ok((
        proposer,
        Terms { own_id: local.peer_id, adapters: adapters.ids(), vlan: route.vlan, wording },
    ))
}

/// With the lower of both sides' limits. Release 2.0 has none to tell.
fn limited(ours: FirstContactR, offer: &V2Offer) -> Result<FirstContactR, Cause> {
    if offer.release < Release::V2_1 {
        return Ok(ours);
    }
    if offer.max_conns < CONNS_MIN {
        return Err(Cause::Connections);
    }
    if offer.max_links < 1 {
        return Err(Cause::Links);
    }
    Ok(FirstContactR {
        max_conns: ours.max_conns.min(offer.max_conns),
        max_links: ours.max_links.min(offer.max_links),
        ..ours
    })
}

/// An IPv4 address as z/OS once wrote it, with zeros in front, in the form of today.
fn mapped(gid: RoceGid) -> RoceGid {
    match gid.0 {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, first, rest @ ..] if first != 0 => {
            let [b, c, d] = rest;
            RoceGid(Ipv4Addr::new(first, b, c, d).to_ipv6_mapped().octets())
        }
        _ => gid,
    }
}

/// The Confirm, if it agrees to our `accept`. Whether it has the limits of our Accept is for the
/// engine to check, which has written them there.
///
/// # Errors
///
/// Why it is declined, if it is not too late for that.
pub(super) fn check_confirm(
    confirm: AcceptConfirm,
    accept: &AcceptConfirmR,
) -> Result<AcceptConfirmR, Cause> {
    let AcceptConfirm::SmcR(mut confirm) = confirm else {
        return Err(Cause::NotOffered);
    };
    check_end(&confirm)?;
    match (&mut confirm.form, &accept.form) {
        // RFC 7609 has this flag only in the Accept; Linux repeats it.
        (FormR::V1 { first_contact }, FormR::V1 { first_contact: ours }) => *first_contact = *ours,
        (FormR::V2 { eid, .. }, FormR::V2 { eid: ours, .. }) if eid != ours => {
            return Err(Cause::ForeignEid);
        }
        (FormR::V2 { first_contact, .. }, FormR::V2 { first_contact: ours, .. }) => {
            let release =
                |hello: &Option<FirstContactR>| hello.as_ref().map(|it| it.common.release);
            if release(first_contact) != release(ours) {
                return Err(Cause::Release);
            }
        }
        _ => return Err(Cause::NotOffered),
    }
    Ok(confirm)
}
