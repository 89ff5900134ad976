//! The client's decisions: what to propose, and whether an Accept is what was proposed.

use sidestep_wire::RoceGid;
use sidestep_wire::clc::proposal::{IpPrefixes, IsmDevice, Types, V1Offer, V2Offer, V2Types};
use sidestep_wire::clc::{
    AcceptConfirm, AcceptConfirmR, FirstContact, FirstContactR, FormR, Proposal, Release, Version,
};

use super::eligibility::{Adapter, Eligible, FEATURES, LocalHost, Roce, Route, Versions};
use super::outcome::Cause;
use super::terms::{CONNS_MIN, Terms, Wording, check_end};

/// All that this host can do for the connection.
///
/// Peer ID and MAC are there in any case: a server takes from the Proposal whom its packets go to.
/// (Linux leaves them out of an offer of version 2 alone.)
///
/// # Errors
///
/// Why that is nothing; of the versions that are allowed, the later one's cause.
pub(super) fn propose(local: &LocalHost, route: &Route) -> Result<Proposal, Cause> {
    let (v1, v2) = match (offer_v1(local, route), offer_v2(local, route)) {
        (Err(cause), Err(Cause::NotAllowed)) | (Err(_), Err(cause)) => return Err(cause),
        (v1, v2) => (v1.ok(), v2.ok()),
    };
    let preferred = v1.as_ref().map(|(adapter, _)| adapter.mac);
    Ok(Proposal {
        // What RFC 7609 knows is said in its words.
        version: if v2.is_some() { Version::V2 } else { Version::V1 },
        peer_id: local.peer_id,
        roce_gid: v1.as_ref().map_or(RoceGid::default(), |(adapter, _)| adapter.gid),
        mac: preferred.or(v2.map(|adapter| adapter.mac)).unwrap_or_default(),
        // Zero: Linux may look there for something else.
        smc_d_area: v2.map(|_| IsmDevice::default()),
        v1: v1.map(|(_, prefixes)| V1Offer { types: Types::SmcR, prefixes }),
        v2: v2.map(|adapter| V2Offer {
            types: V2Types::SmcR,
            ueids: local.ueids.iter().copied().collect(),
            release: Release::V2_1,
            roce_gid: adapter.gid,
            max_conns: local.max_conns,
            max_links: local.max_links,
            feature_mask: FEATURES,
        }),
    })
}

fn offer_v1<'a>(local: &'a LocalHost, route: &Route) -> Result<(&'a Adapter, IpPrefixes), Cause> {
    if !local.versions.v1 {
        return Err(Cause::NotAllowed);
    }
    let adapter = local.adapters(route, Roce::V1).preferred().ok_or(Cause::NoAdapter)?;
    let prefixes = route.prefixes().ok_or(Cause::NoSubnet)?;
    if route.is_within_subnet() { Ok((adapter, prefixes)) } else { Err(Cause::OtherSubnet) }
}

fn offer_v2<'a>(local: &'a LocalHost, route: &Route) -> Result<&'a Adapter, Cause> {
    if !local.versions.v2 {
        return Err(Cause::NotAllowed);
    }
    if local.ueids.is_empty() {
        return Err(Cause::NoEid);
    }
    local.adapters(route, Roce::V2).preferred().ok_or(Cause::NoAdapter)
}

/// The Accept, if all in it was `offered`, and what our Confirm will say.
///
/// # Errors
///
/// Why it is declined.
pub(super) fn check_accept(
    accept: AcceptConfirm,
    offered: Versions,
    local: &LocalHost,
    route: &Route,
) -> Result<(AcceptConfirmR, Terms), Cause> {
    let AcceptConfirm::SmcR(accept) = accept else {
        return Err(Cause::NotOffered);
    };
    let roce = match accept.version() {
        Version::V1 if offered.v1 => Roce::V1,
        Version::V2 if offered.v2 => Roce::V2,
        _ => return Err(Cause::NotOffered),
    };
    check_end(&accept)?;
    if !route.reaches(accept.gid, roce) || local.has(accept.gid) {
        return Err(Cause::NoRoute);
    }
    let adapters = local.adapters(route, roce);
    let wording = match &accept.form {
        FormR::V1 { .. } => Wording::V1,
        FormR::V2 { eid, .. } if !local.ueids.contains(eid) => return Err(Cause::ForeignEid),
        FormR::V2 { eid, first_contact } => Wording::V2 {
            eid: *eid,
            hello: match first_contact {
                Some(theirs) => {
                    check_hello(theirs, local)?;
                    let is_near =
                        adapters.preferred().is_some_and(|it| it.is_neighbour(accept.gid));
                    if is_near && !theirs.direct {
                        return Err(Cause::Indirect);
                    }
                    answer(theirs, local, &adapters)
                }
                None => local.hello(Release::V2_1),
            },
        },
    };
    Ok((
        accept,
        Terms { own_id: local.peer_id, adapters: adapters.ids(), vlan: route.vlan, wording },
    ))
}

/// Whether the server has kept within our offer.
fn check_hello(theirs: &FirstContactR, local: &LocalHost) -> Result<(), Cause> {
    match theirs.common.release {
        Release::V2_0 => Ok(()),
        Release::V2_1 if !(CONNS_MIN..=local.max_conns).contains(&theirs.max_conns) => {
            Err(Cause::Connections)
        }
        Release::V2_1 if !(1..=local.max_links).contains(&theirs.max_links) => Err(Cause::Links),
        Release::V2_1 => Ok(()),
        _ => Err(Cause::Release),
    }
}

/// The server's release and limits hold for both.
fn answer(theirs: &FirstContactR, local: &LocalHost, adapters: &Eligible<'_>) -> FirstContactR {
    let ours = local.hello(theirs.common.release);
    FirstContactR {
        common: FirstContact { feature_mask: FEATURES & theirs.common.feature_mask, ..ours.common },
        direct: theirs.direct,
        max_conns: theirs.max_conns,
        max_links: theirs.max_links,
        gids: adapters.gids(),
    }
}
