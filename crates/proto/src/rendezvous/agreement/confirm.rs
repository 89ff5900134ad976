//! The server has accepted: what it makes of the client's last message.
//!
//! It is looked for before each send until it has come. A byte enters the ring only behind a Confirm that was
//! checked; without one the direction goes by TCP, for good.

use super::other_end::Shown;
use crate::fallback::{Field, Reason};
use crate::rendezvous::refusal::Refusal;
use sidestep_wire::rmbe_size::RmbeSize;

/// What the client has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirm {
    /// Nothing yet.
    Awaited,
    /// It has confirmed what was accepted, and reads by the ledger.
    Right,
    /// It has not, and nothing that comes later means anything (RFC 7609 C.3).
    Wrong(Reason),
}

impl Confirm {
    /// `shown`: how far the client shows that it has come. `read`: what is in its CLC box, as
    /// [`expect_confirm`](crate::rendezvous::expect_confirm) judges it; asked only if there is something. `ring`: what it is to read.
    #[must_use]
    pub fn of(
        shown: Shown,
        ring: RmbeSize,
        read: impl FnOnce() -> Result<RmbeSize, Refusal>,
    ) -> Self {
        if !matches!(shown, Shown::Confirmed | Shown::Declined) {
            return Self::Awaited;
        }
        match (read(), shown) {
            (Ok(size), Shown::Confirmed) if size == ring => Self::Right,
            (Ok(_), Shown::Confirmed) => Self::Wrong(Reason::PeerBroke(Field::SIZE_CODE)),
            (Ok(_), _) => Self::Wrong(Reason::PeerBroke(Field::CLC_TYPE)),
            (Err(refusal), _) => Self::Wrong(refusal.reason()),
        }
    }
}
