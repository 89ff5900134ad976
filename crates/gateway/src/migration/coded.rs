//! The state of a link group as bytes: field by field, in the order of the lists here.
//!
//! Integers are big-endian. A list has its length before it, in four bytes; an optional value has one byte, 0 or 1. The
//! macro takes a type apart and puts it together by the same list, so a field that is missing there does not compile,
//! and a list that has changed is another [version](super::version).
//!
//! What is taken need not make sense: bytes that are cut off, or no value of a type, are `None`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use sidestep_engine::{Caller, Migrant, MigrantBuffer, MigrantStream, PeerEnd};
use sidestep_proto::connection::{self, Wish};
use sidestep_proto::link_group::{
    self, Connection, LinkAtRest, LinkEnd, PeerRmbId, RmbId, Role, Rtoken,
};
use sidestep_rdma::device::{AtRest, Peer};
use sidestep_rdma::memory::Shared;
use sidestep_wire::cdc::StateFlags;
use sidestep_wire::llc::{Form, LengthOrder};
use sidestep_wire::{
    AlertToken, LinkNumber, LinkUserId, Mac, Mtu, PeerId, Psn, QpNumber, Rkey, RmbAddress,
    RmbeSize, RoceGid,
};

use crate::session::{LeaveAtRest, SessionAtRest};

/// Of a receive buffer: as long as a program may want one.
const BUFFER_LEN_MAX: u32 = RmbeSize::MAX.bytes() as u32;

/// A value as bytes.
pub(super) trait Coded: Sized {
    fn put(&self, out: &mut Vec<u8>);

    /// Takes it from the front.
    fn take(from: &mut &[u8]) -> Option<Self>;
}

fn split<'a>(from: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (front, rest) = from.split_at_checked(len)?;
    *from = rest;
    Some(front)
}

/// Integers, types that wrap one value, and structures.
macro_rules! coded {
    (integers: $($type:ty),+) => {$(
        impl Coded for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                let bytes = split(from, size_of::<Self>())?;
                bytes.try_into().ok().map(Self::from_be_bytes)
            }
        }
    )+};
    (wrappers: $($type:ident),+) => {$(
        impl Coded for $type {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                Coded::take(from).map(Self)
            }
        }
    )+};
    (codes: $($type:ty as $($value:path = $code:literal),+;)+) => {$(
        impl Coded for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(match self { $($value => $code),+ });
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                match u8::take(from)? {
                    $($code => Some($value),)+
                    _ => None,
                }
            }
        }
    )+};
    ($($type:ty { $($field:ident),+ $(,)? })+) => {$(
        impl Coded for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let Self { $($field),+ } = self;
                $($field.put(out);)+
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: Coded::take(from)?),+ })
            }
        }
    )+};
}

coded!(integers: u8, u16, u32, u64);
coded!(wrappers: AlertToken, LinkNumber, LinkUserId, Mac, PeerId, PeerRmbId, Psn, QpNumber, Rkey, RmbAddress);
coded!(wrappers: RmbId, RoceGid);

coded!(codes:
    Role as Role::Server = 1, Role::Client = 2;
    Wish as Wish::GoOn = 0, Wish::WriteNoMore = 1, Wish::Close = 2, Wish::Abort = 3;
);

coded! {
    Migrant { group, founder, queue_pairs, buffers, streams }
    link_group::AtRest {
        role, form, max_conns, max_links, peer_id, proposer, own_id, vlan, direct, adapters, links, last, rmbs,
        peer_rmbs, has_refused_rmb, connections, counts,
    }
    LinkAtRest { user_id, number, gid, qp, peer, peer_user_id }
    LinkEnd { gid, mac, qp, psn, mtu }
    Rtoken { rkey, address }
    Connection { token, rmb, link, peer_rmb }
    Caller { uid, local, remote }
    AtRest { number, next_psn, peer, address, completed }
    Peer { qp, first_psn, mtu }
    MigrantBuffer { id, size, uid, memory }
    MigrantStream {
        token, role, peer, connection, heard_over, rmb, send_buffer_len, unsent, is_held, patience, is_blocked,
        counts,
    }
    PeerEnd { token, size, rtoken, offset }
    connection::AtRest {
        peer, lens, queued, written, furthest, consumed_by_peer, urgent_out, has_told_urgent, produced, consumed,
        told, writer_is_blocked, update_requested, urgent_is_pending, urgent_in, has_read_urgent, said, is_passive,
        wish, seqnos, must_validate, must_repeat,
    }
    StateFlags { done_writing, closed, abnormal_close }
    SessionAtRest {
        token, uid, is_client, ends, sizes, age, has_ended, peer_has_ended, is_told, leave,
    }
    LeaveAtRest { left, is_reset, was_heard }
}

impl Coded for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        match u8::take(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Coded for Form {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::V1 => 1,
            Self::V2(LengthOrder::BigEndian) => 2,
            Self::V2(LengthOrder::LittleEndian) => 3,
        });
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        match u8::take(from)? {
            1 => Some(Self::V1),
            2 => Some(Self::V2(LengthOrder::BigEndian)),
            3 => Some(Self::V2(LengthOrder::LittleEndian)),
            _ => None,
        }
    }
}

impl Coded for Mtu {
    fn put(&self, out: &mut Vec<u8>) {
        self.code().put(out);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        u8::take(from).map(Self::from_low_bits)
    }
}

impl Coded for RmbeSize {
    fn put(&self, out: &mut Vec<u8>) {
        self.code().put(out);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        u8::take(from).map(Self::from_low_bits)
    }
}

/// In nanoseconds.
impl Coded for Duration {
    fn put(&self, out: &mut Vec<u8>) {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX).put(out);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        u64::take(from).map(Self::from_nanos)
    }
}

impl Coded for IpAddr {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::V4(address) => (4_u8, address.octets()).put(out),
            Self::V6(address) => (6_u8, address.octets()).put(out),
        }
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        match u8::take(from)? {
            4 => <[u8; 4]>::take(from).map(Self::from),
            6 => <[u8; 16]>::take(from).map(Self::from),
            _ => None,
        }
    }
}

impl Coded for SocketAddr {
    fn put(&self, out: &mut Vec<u8>) {
        (self.ip(), self.port()).put(out);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        Coded::take(from).map(|(address, port): (IpAddr, u16)| Self::new(address, port))
    }
}

impl<T: Coded> Coded for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        if bool::take(from)? { T::take(from).map(Some) } else { Some(None) }
    }
}

impl<T: Coded, U: Coded> Coded for (T, U) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        Some((T::take(from)?, U::take(from)?))
    }
}

impl<T: Coded, const N: usize> Coded for [T; N] {
    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|value| value.put(out));
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let values: Vec<T> = (0..N).map(|_| T::take(from)).collect::<Option<_>>()?;
        values.try_into().ok()
    }
}

impl<T: Coded> Coded for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let len = u32::take(from)?;
        // Each takes a byte at least: what is claimed beyond the end is found there.
        (0..len).map(|_| T::take(from)).collect()
    }
}

/// Its length, and whether there is another byte than 0; the bytes only then.
impl Coded for Arc<Shared> {
    fn put(&self, out: &mut Vec<u8>) {
        let mut bytes = vec![0; self.len()];
        let is_all = self.copy_out(0, &mut bytes);
        debug_assert!(is_all, "there are so many");
        let is_used = bytes.iter().any(|byte| *byte != 0);
        (self.len() as u32, is_used).put(out);
        if is_used {
            out.extend_from_slice(&bytes);
        }
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let (len, is_used) = <(u32, bool)>::take(from)?;
        if len > BUFFER_LEN_MAX {
            return None;
        }
        let memory = Shared::zeroed(len as usize);
        let is_there = !is_used || memory.copy_in(0, split(from, len as usize)?);
        is_there.then(|| Self::new(memory))
    }
}
