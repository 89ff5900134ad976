//! Receive buffers (RMBs) of both sides, and their keys on each link.
//!
//! An RMB is registered once for each link, so it has as many keys as there are links, and each side
//! has to know which keys of the other open the same buffer. Of our own RMBs:
//!
//! ```text
//!   New ──────────────> Announced ───────────────> gone
//!    registered on all     │      DELETE RKEY
//!    links, CONFIRM RKEY   └─ connections use it
//! ```
//!
//! The RMB of a first contact begins as `Announced`: Accept and Confirm tell its key.
//!
//! Of the peer's RMBs there is a table of *RTokens* (key and address), by link. Only what comes over
//! a link, and the exchange that makes the group, enters it: an Accept or Confirm of a further contact
//! comes over TCP, where a local user of the peer's host can speak as well, and merely names an entry.
//! It holds, whatever the peer says:
//!
//! - an RMB has at most one RToken on a link, and no two RMBs have the same key on a link;
//! - an RMB without any RToken is not in the table;
//! - there are at most [`RMBS_MAX`].

extern crate alloc;

use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::time::Duration;
use sidestep_wire::{LinkUserId, Rkey, RmbAddress};

use super::limits::{LINK_SLOTS, RMBS_MAX};

/// A receive buffer of ours, in the numbering of the engine's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RmbId(pub u32);

/// A receive buffer of the peer, in our numbering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerRmbId(pub u32);

/// How a receive buffer is reached over one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rtoken {
    /// The key.
    pub rkey: Rkey,
    /// Where the buffer starts.
    pub address: RmbAddress,
}

/// The RTokens of one RMB, at most one for each link.
pub(super) type Keys = ArrayVec<(LinkUserId, Rtoken), LINK_SLOTS>;

fn key_on(keys: &Keys, link: LinkUserId) -> Option<Rtoken> {
    keys.iter().find(|(on, _)| *on == link).map(|(_, rtoken)| *rtoken)
}

/// Puts the RToken for a link in the place of the one that was there. False: no place.
fn set_key(keys: &mut Keys, link: LinkUserId, rtoken: Rtoken) -> bool {
    match keys.iter_mut().find(|(on, _)| *on == link) {
        Some((_, known)) => *known = rtoken,
        None => return keys.try_push((link, rtoken)).is_ok(),
    }
    true
}

/// How far an RMB of ours has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RmbState {
    /// The peer does not know all of its keys yet.
    New,
    /// Connections can use it.
    Announced,
    /// The peer is told, or will be, that it goes.
    Leaving,
}

/// A receive buffer of ours.
#[derive(Debug, Clone)]
pub(super) struct Rmb {
    pub(super) id: RmbId,
    pub(super) state: RmbState,
    pub(super) keys: Keys,
    /// Links on which the device is registering it.
    pub(super) registering: ArrayVec<LinkUserId, LINK_SLOTS>,
    /// The peer may know it.
    pub(super) is_told: bool,
    /// How often the peer was told without success.
    pub(super) tries: u8,
    /// The peer wants to be left alone until then.
    pub(super) not_before: Duration,
}

impl Rmb {
    pub(super) fn new(id: RmbId, state: RmbState) -> Self {
        Self {
            id,
            state,
            keys: Keys::new(),
            registering: ArrayVec::new(),
            is_told: state != RmbState::New,
            tries: 0,
            not_before: Duration::ZERO,
        }
    }

    pub(super) fn key_on(&self, link: LinkUserId) -> Option<Rtoken> {
        key_on(&self.keys, link)
    }

    /// Whether the device has neither registered it on this link nor been told to.
    pub(super) fn is_missing_on(&self, link: LinkUserId) -> bool {
        self.key_on(link).is_none() && !self.registering.contains(&link)
    }

    /// The device has registered it.
    pub(super) fn registered(&mut self, link: LinkUserId, rtoken: Rtoken) {
        self.registering.retain(|on| *on != link);
        set_key(&mut self.keys, link, rtoken);
    }

    /// The link is gone, and with it the registration.
    pub(super) fn forget_link(&mut self, link: LinkUserId) {
        self.registering.retain(|on| *on != link);
        self.keys.retain(|(on, _)| *on != link);
    }
}

/// The peer's RMBs.
#[derive(Debug, Clone, Default)]
pub(super) struct PeerRmbs {
    known: Vec<(PeerRmbId, Keys)>,
    last_id: u32,
    /// There was no room for one since the last one was taken or withdrawn.
    has_refused: bool,
}

/// Why an RToken of the peer was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// There are [`RMBS_MAX`] already.
    Full,
    /// Another RMB has the key, or this one has another.
    Contradiction,
}

impl PeerRmbs {
    /// The RMB with this RToken on the link: a known one, or a new one.
    pub(super) fn learn(
        &mut self,
        link: LinkUserId,
        rtoken: Rtoken,
    ) -> Result<PeerRmbId, NotTaken> {
        if self.find(link, rtoken.rkey).is_some() {
            return self.known_as(link, rtoken).ok_or(NotTaken::Contradiction);
        }
        self.has_refused = self.known.len() >= RMBS_MAX;
        if self.has_refused {
            return Err(NotTaken::Full);
        }
        // Not one in use, however long the group lives.
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            if !self.known.iter().any(|(id, _)| id.0 == self.last_id) {
                break;
            }
        }
        let id = PeerRmbId(self.last_id);
        let mut keys = Keys::new();
        set_key(&mut keys, link, rtoken);
        self.known.push((id, keys));
        Ok(id)
    }

    /// One that another process has learnt under this number. False: it contradicts another, or has no RToken.
    pub(super) fn resume(&mut self, id: PeerRmbId, tokens: &[(LinkUserId, Rtoken)]) -> bool {
        let is_new = self.known.len() < RMBS_MAX && self.known.iter().all(|(it, _)| *it != id);
        if !is_new || tokens.is_empty() {
            return false;
        }
        self.last_id = self.last_id.max(id.0);
        self.known.push((id, Keys::new()));
        tokens.iter().all(|(link, rtoken)| {
            self.rtoken(id, *link).is_none() && self.extend(id, *link, *rtoken).is_ok()
        })
    }

    /// Whether the peer has wanted one more than there can be, as another process has noted.
    pub(super) const fn set_refused(&mut self, has_refused: bool) {
        self.has_refused = has_refused;
    }

    /// The RToken of a known RMB on a further link, or once more on the same.
    pub(super) fn extend(
        &mut self,
        id: PeerRmbId,
        link: LinkUserId,
        rtoken: Rtoken,
    ) -> Result<(), NotTaken> {
        if self.find(link, rtoken.rkey).is_some_and(|other| other != id) {
            return Err(NotTaken::Contradiction);
        }
        let known = self.known.iter_mut().find(|(known, _)| *known == id);
        let is_set = known.is_some_and(|(_, keys)| set_key(keys, link, rtoken));
        if is_set { Ok(()) } else { Err(NotTaken::Full) }
    }

    /// The RMB that has exactly this RToken on the link.
    pub(super) fn known_as(&self, link: LinkUserId, rtoken: Rtoken) -> Option<PeerRmbId> {
        self.find(link, rtoken.rkey).filter(|id| self.rtoken(*id, link) == Some(rtoken))
    }

    /// The RMB that this key opens on the link.
    pub(super) fn find(&self, link: LinkUserId, rkey: Rkey) -> Option<PeerRmbId> {
        let has_it = |keys: &Keys| key_on(keys, link).is_some_and(|known| known.rkey == rkey);
        self.known.iter().find(|(_, keys)| has_it(keys)).map(|(id, _)| *id)
    }

    /// How this RMB is reached over the link.
    pub(super) fn rtoken(&self, id: PeerRmbId, link: LinkUserId) -> Option<Rtoken> {
        let (_, keys) = self.known.iter().find(|(known, _)| *known == id)?;
        key_on(keys, link)
    }

    /// The peer has withdrawn it, on all links.
    pub(super) fn remove(&mut self, id: PeerRmbId) {
        self.known.retain(|(known, _)| *known != id);
        self.has_refused = false;
    }

    /// The peer has wanted one more than there can be, and has withdrawn none since.
    pub(super) const fn has_refused(&self) -> bool {
        self.has_refused
    }

    pub(super) fn forget_link(&mut self, link: LinkUserId) {
        for (_, keys) in &mut self.known {
            keys.retain(|(on, _)| *on != link);
        }
        self.known.retain(|(_, keys)| !keys.is_empty());
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PeerRmbId, &Keys)> {
        self.known.iter().map(|(id, keys)| (*id, keys))
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn clear(&mut self) {
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: LinkUserId = LinkUserId(1);
    const TWO: LinkUserId = LinkUserId(2);

    fn rtoken(n: u32) -> Rtoken {
        Rtoken { rkey: Rkey(n), address: RmbAddress(u64::from(n) << 16) }
    }

    #[test]
    fn a_token_told_twice_is_one_buffer() {
        let mut peer = PeerRmbs::default();
        let id = peer.learn(ONE, rtoken(7)).unwrap();
        assert_eq!(peer.learn(ONE, rtoken(7)), Ok(id));
        let elsewhere = Rtoken { address: RmbAddress(1), ..rtoken(7) };
        assert_eq!(peer.learn(ONE, elsewhere), Err(NotTaken::Contradiction));
        assert_ne!(peer.learn(TWO, rtoken(7)), Ok(id), "keys of another link are other keys");
    }

    #[test]
    fn no_key_opens_two_buffers() {
        let mut peer = PeerRmbs::default();
        let first = peer.learn(ONE, rtoken(1)).unwrap();
        let second = peer.learn(ONE, rtoken(2)).unwrap();
        assert_eq!(peer.extend(first, TWO, rtoken(3)), Ok(()));
        assert_eq!(peer.extend(second, TWO, rtoken(3)), Err(NotTaken::Contradiction));
        assert_eq!(peer.find(TWO, Rkey(3)), Some(first));
        assert_eq!(peer.rtoken(second, TWO), None);
    }

    #[test]
    fn a_buffer_lives_as_long_as_a_link_leads_to_it() {
        let mut peer = PeerRmbs::default();
        let both = peer.learn(ONE, rtoken(1)).unwrap();
        peer.extend(both, TWO, rtoken(2)).unwrap();
        peer.learn(ONE, rtoken(3)).unwrap();
        peer.forget_link(ONE);
        assert_eq!((peer.len(), peer.rtoken(both, TWO)), (1, Some(rtoken(2))));
        peer.forget_link(TWO);
        assert_eq!(peer.len(), 0);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut peer = PeerRmbs::default();
        for n in 0..RMBS_MAX as u32 {
            peer.learn(ONE, rtoken(n)).unwrap();
        }
        assert_eq!(peer.learn(ONE, rtoken(999)), Err(NotTaken::Full));
        let id = peer.find(ONE, Rkey(0)).unwrap();
        peer.remove(id);
        assert!(peer.learn(ONE, rtoken(999)).is_ok());
    }
}
