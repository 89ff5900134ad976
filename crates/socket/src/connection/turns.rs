//! Which way the next bytes of a direction go, as far as this end knows, and how the machines of the
//! cut-over are carried out.

use crate::table::conn::Conn;
use core::sync::atomic::Ordering;
use sidestep_device::state::Slot;
use sidestep_proto::cut_over::{self, Answer, Machine};

/// Whether the next bytes of the peer are in its ring, as far as we have followed it.
#[inline]
pub(crate) fn comes_by_ring(slot: &Slot) -> bool {
    cut_over::is_ring(slot.followed.load(Ordering::Relaxed))
}

/// Whether the peer has been sending by TCP when it turned last.
pub(super) fn peer_sends_by_tcp(conn: &Conn) -> bool {
    !cut_over::is_ring(conn.theirs.sending.way.turns())
}

/// Takes a machine to its last state. `None`: it was told what it had not asked, which is a fault of
/// this library; the direction stays where it is, and the next call begins anew.
pub(crate) fn carry_out<M: Machine>(
    first: M,
    carry_out: impl FnMut(M) -> Option<Answer>,
) -> Option<M> {
    let end = cut_over::carry_out(first, carry_out);
    end.inspect_err(|unasked| crate::log!(Error, "cut-over: {unasked}")).ok()
}

/// Does what has no answer.
pub(crate) fn done<T>(carry_out: impl FnOnce() -> T) -> Option<Answer> {
    carry_out();
    Some(Answer::Done)
}
