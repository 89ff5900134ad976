//! Terms: what the two sides have agreed on, and what Accept and Confirm say of it.

use arrayvec::ArrayVec;
use sidestep_wire::clc::{AcceptConfirmR, FirstContactR, FormR, Version};
use sidestep_wire::{Eid, Mac, PeerId, QpNumber, RoceGid};

use super::outcome::Cause;
use crate::link_group::{ADAPTERS_MAX, AdapterId, Agreement};

/// The client, as its Proposal tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposer {
    /// Its identity. Zero from a Linux client that offers only version 2.
    pub peer_id: PeerId,
    /// Its adapter for the version that was chosen.
    pub gid: RoceGid,
    /// The same. Zero from a Linux client that offers only version 2.
    pub mac: Mac,
}

/// What the two sides have agreed on, and which of our adapters go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Our identity: as our Proposal has told, or as it will be in our Accept if a new link group is made.
    pub own_id: PeerId,
    /// The adapters that links can be over: that of the first link, others that are up, and last those that
    /// are down, for when they are up again. One at least.
    pub adapters: ArrayVec<AdapterId, ADAPTERS_MAX>,
    /// The VLAN of the connection and of these adapters; 0 for none.
    pub vlan: u16,
    /// What our Accept or Confirm says.
    pub wording: Wording,
}

/// What Accept and Confirm say beyond links and buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one for each connection")]
pub enum Wording {
    /// Nothing.
    V1,
    /// In version 2.
    V2 {
        /// The EID that both sides have.
        eid: Eid,
        /// What is said at first contact. A server's limits hold, and a client says the same.
        hello: FirstContactR,
    },
}

impl Wording {
    /// The version of CLC, LLC and CDC.
    #[must_use]
    pub const fn version(&self) -> Version {
        match self {
            Self::V1 => Version::V1,
            Self::V2 { .. } => Version::V2,
        }
    }

    /// Server: the terms of a new link group.
    #[must_use]
    pub const fn agreement(&self) -> Agreement {
        match self {
            Self::V1 => Agreement::standard(Version::V1),
            Self::V2 { hello: FirstContactR { max_conns, max_links, .. }, .. } => {
                Agreement { version: Version::V2, max_conns: *max_conns, max_links: *max_links }
            }
        }
    }

    /// The end of an Accept or Confirm. The limits are those of its link group.
    #[must_use]
    pub fn form(&self, is_first_contact: bool, max_conns: u8, max_links: u8) -> FormR {
        match self {
            Self::V1 => FormR::V1 { first_contact: is_first_contact },
            Self::V2 { eid, hello } => FormR::V2 {
                eid: *eid,
                first_contact: is_first_contact.then(|| FirstContactR {
                    max_conns,
                    max_links,
                    ..hello.clone()
                }),
            },
        }
    }
}

/// The fewest connections that a link group may be restricted to.
pub(super) const CONNS_MIN: u8 = 16;

/// Whether an Accept or Confirm tells of an end of a link and of a buffer that can be.
pub(super) fn check_end(message: &AcceptConfirmR) -> Result<(), Cause> {
    if message.mtu.bytes().is_none() {
        return Err(Cause::Reserved);
    }
    if message.qp_number < QpNumber::FIRST {
        return Err(Cause::NoLinkEnd);
    }
    // Elements count from 1, and the last byte of this one has an address.
    let end = u64::from(message.rmbe_index) * message.size.bytes() as u64;
    match message.rmb_address.0.checked_add(end) {
        Some(_) if message.rmbe_index > 0 => Ok(()),
        _ => Err(Cause::NoBuffer),
    }
}
