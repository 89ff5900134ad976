//! One end of a TCP connection, as the slot says in which its program keeps it, or the place of
//! its descriptor while it has no slot.

use super::address::address;
use super::counters::Counters;
use super::fallback::Fallback;
use crate::host::state_file::StateId;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use sidestep_device::state::{Slot, mode};
use sidestep_device::untracked::About;
use sidestep_proto::fallback::{ProgramDid, Reason};

/// One end of a TCP connection of a Sidestep program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The state it is in.
    pub state: StateId,
    /// The process that used it last or, if that one is gone, another that holds it.
    pub pid: u32,
    /// What the kernel calls this process, without control characters.
    pub program: String,
    /// Our address; `None` while it is not known.
    pub local: Option<SocketAddr>,
    /// The peer's address; `None` while it is not known.
    pub peer: Option<SocketAddr>,
    /// Who opened it.
    pub role: Role,
    /// The path of its bytes.
    pub mode: Mode,
    /// Length in bytes of our RMBE, 0 on TCP.
    pub rmbe_local: u32,
    /// Length in bytes of the peer's RMBE, 0 on TCP.
    pub rmbe_peer: u32,
    /// What has happened on it so far.
    pub counters: Counters,
    /// Why it stays on TCP. `None` on TCP: not decided yet.
    pub fallback: Option<Fallback>,
    /// A descriptor of the process that leads to it, while its addresses are not known.
    pub descriptor: Option<i32>,
    /// Of a connection to another host, that goes by the gateway: our port on the way there.
    /// `mode` is about that way, the addresses and the role about where it leads.
    pub session: Option<u16>,
    /// `None`: it is untracked, and has no slot.
    pub place: Option<Place>,
}

/// Where a connection is in its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Index of its slot.
    pub slot: usize,
    /// Which of the connections that the slot has had, one after the other, it is.
    pub generation: u32,
}

/// Who opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This end, by `connect`.
    Client,
    /// The peer: this end accepted it.
    Server,
}

/// The path of a connection's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// TCP.
    Tcp,
    /// TCP, while the two ends are agreeing on more.
    Negotiating,
    /// Shared memory.
    SmcD,
    /// Closed here; the peer still reads our ring, or, where the bytes have gone by TCP alone, a forked child has
    /// gone on with it.
    Lingering,
}

impl Connection {
    /// The address of the end that accepted it, if it is known.
    #[must_use]
    pub fn server(&self) -> Option<SocketAddr> {
        match self.role {
            Role::Server => self.local,
            Role::Client => self.peer,
        }
    }

    /// Whether its bytes go, or went until it was closed, through shared memory.
    #[must_use]
    pub fn is_smc(&self) -> bool {
        match self.mode {
            Mode::SmcD => true,
            Mode::Lingering => self.rmbe_peer != 0,
            Mode::Tcp | Mode::Negotiating => false,
        }
    }
}

impl Role {
    pub(crate) fn of(is_server: bool) -> Self {
        if is_server { Self::Server } else { Self::Client }
    }
}

/// A connection as it was read: plain values, all of them checked, except `user_pid`.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The process that used it last, as its program says.
    pub(crate) user_pid: u32,
    descriptor: Option<i32>,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    role: Role,
    mode: Mode,
    rmbe_local: u32,
    rmbe_peer: u32,
    counters: Counters,
    fallback: Option<Fallback>,
    session: Option<u16>,
    /// Of its slot, if it has one.
    generation: Option<u32>,
}

impl Seen {
    /// Reads a slot of a mirrored state. `None`: it is free.
    pub(crate) fn read(slot: &Slot) -> Option<Self> {
        // Acquire: pairs with the Release that sets the mode after what belongs to it.
        let mode = match slot.mode.load(Ordering::Acquire) {
            mode::TCP => Mode::Tcp,
            mode::NEGOTIATING => Mode::Negotiating,
            mode::SMC_D => Mode::SmcD,
            mode::LINGERING => Mode::Lingering,
            _ => return None,
        };
        let session = slot.session.load(Ordering::Relaxed);
        let has_accepted = match session {
            0 => slot.is_server.load(Ordering::Relaxed) != 0,
            word => word >> 16 != 0,
        };
        let reason = Reason::of_word(slot.reason.load(Ordering::Relaxed));
        // What has come back from shared memory still has its rings, and is on TCP all the same.
        let is_back = mode == Mode::SmcD && reason != Reason::None;
        let mode = if is_back { Mode::Tcp } else { mode };
        // What becomes of it is decided where the child goes on with it.
        let is_elsewhere = !slot.is_counted_here();
        let fallback = match mode {
            Mode::Tcp | Mode::Lingering if !is_elsewhere => Fallback::of(reason),
            _ => None,
        };
        // A connection that fell back may have been given rings that it never used.
        let ring_len = |len: &AtomicU32| match mode {
            Mode::SmcD | Mode::Lingering if fallback.is_none() => len.load(Ordering::Relaxed),
            _ => 0,
        };
        // Acquire: pairs with the Release that sets the family after the addresses.
        let family = slot.family.load(Ordering::Acquire);
        Some(Self {
            user_pid: slot.user_pid.load(Ordering::Relaxed),
            descriptor: match family {
                0 => Some(slot.descriptor.load(Ordering::Relaxed)).filter(|fd| *fd >= 0),
                _ => None,
            },
            local: address(family, &slot.local_ip, &slot.local_port),
            peer: address(family, &slot.peer_ip, &slot.peer_port),
            role: Role::of(has_accepted),
            mode,
            rmbe_local: ring_len(&slot.receive_ring_len),
            rmbe_peer: ring_len(&slot.send_ring_len),
            counters: Counters::read(&slot.counters),
            fallback,
            session: Some(session as u16).filter(|port| *port != 0),
            generation: Some(slot.generation.load(Ordering::Relaxed)),
        })
    }

    /// A connection that has no slot yet, open in the process `owner` as `fd`.
    pub(crate) fn untracked(owner: u32, fd: i32, about: About, counters: &Counters) -> Self {
        Self {
            user_pid: owner,
            descriptor: Some(fd),
            local: None,
            peer: None,
            role: Role::of(about.is_server),
            mode: Mode::Tcp,
            rmbe_local: 0,
            rmbe_peer: 0,
            counters: *counters,
            fallback: Fallback::of(ProgramDid::TooShort.into()),
            session: None,
            generation: None,
        }
    }

    /// A connection of this state, at this index of its slots, used by this process.
    pub(crate) fn into_connection(
        self,
        (state, slot): (StateId, usize),
        pid: u32,
        program: String,
    ) -> Connection {
        Connection {
            state,
            pid,
            program,
            local: self.local,
            peer: self.peer,
            role: self.role,
            mode: self.mode,
            rmbe_local: self.rmbe_local,
            rmbe_peer: self.rmbe_peer,
            counters: self.counters,
            fallback: self.fallback,
            descriptor: self.descriptor,
            session: self.session,
            place: self.generation.map(|generation| Place { slot, generation }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Maker, set, set8};
    use sidestep_device::sys;
    use sidestep_proto::fallback::{Field, OperatorSaid};
    use sidestep_wire::Diagnosis;

    #[test]
    fn a_connection_on_tcp_has_a_reason_or_is_not_decided() {
        let program = Maker::new(sys::pid());
        let slot = program.connect(0, (1003, 2003), mode::TCP);
        set(&slot.send_ring_len, 65_536);
        let seen = Seen::read(slot).unwrap();
        assert_eq!((seen.mode, seen.fallback, seen.rmbe_peer), (Mode::Tcp, None, 0));

        // Each comes through the slot with its detail.
        let declined = Reason::PeerDeclined(Diagnosis::NOSMCD2DEV);
        let broke = Reason::PeerBroke(Field::HELLO_RMBE_LEN);
        for reason in Reason::all().chain([declined, broke, Reason::Unknown(250)]) {
            slot.reason.store(reason.word(), Ordering::Relaxed);
            let expected = (reason != Reason::None).then_some(Fallback { reason });
            assert_eq!(Seen::read(slot).unwrap().fallback, expected);
        }

        // An old reason of a connection that is being moved after all.
        set(&slot.mode, mode::NEGOTIATING);
        let seen = Seen::read(slot).unwrap();
        assert_eq!((seen.mode, seen.fallback), (Mode::Negotiating, None));
    }

    #[test]
    fn a_connection_that_came_back_is_on_tcp_though_it_has_its_rings() {
        let program = Maker::new(sys::pid());
        let slot = program.connect(0, (1004, 2004), mode::SMC_D);
        set(&slot.send_ring_len, 65_536);
        assert_eq!(Seen::read(slot).unwrap().rmbe_peer, 65_536);
        let demoted = Reason::from(OperatorSaid::Demoted);
        slot.reason.store(demoted.word(), Ordering::Relaxed);
        let seen = Seen::read(slot).unwrap();
        assert_eq!((seen.mode, seen.rmbe_peer), (Mode::Tcp, 0));
        assert_eq!(seen.fallback.unwrap().reason, demoted);
    }

    #[test]
    fn a_closed_connection_was_what_it_was() {
        let program = Maker::new(sys::pid());
        let slot = program.connect(0, (1004, 2004), mode::LINGERING);
        set(&slot.send_ring_len, 65_536);
        let is_smc = || {
            let seen = Seen::read(slot).unwrap();
            seen.into_connection((StateId::default(), 0), 1, String::new()).is_smc()
        };
        assert!(is_smc());
        slot.reason.store(Reason::PeerBroke(Field::UNTOLD).word(), Ordering::Relaxed);
        assert!(!is_smc());
    }

    #[test]
    fn what_a_child_goes_on_with_has_no_reason_here() {
        let program = Maker::new(sys::pid());
        let slot = program.connect(0, (1004, 2004), mode::LINGERING);
        slot.reason.store(Reason::from(ProgramDid::TooShort).word(), Ordering::Relaxed);
        assert!(Seen::read(slot).unwrap().fallback.is_some());
        set8(&slot.is_elsewhere, 1);
        let seen = Seen::read(slot).unwrap();
        assert_eq!((seen.mode, seen.fallback, seen.rmbe_peer), (Mode::Lingering, None, 0));
    }

    #[test]
    fn a_way_to_the_gateway_has_the_role_of_what_it_leads_to() {
        let program = Maker::new(sys::pid());
        let slot = program.connect(0, (1005, 2005), mode::TCP);
        set8(&slot.is_server, 1);
        set(&slot.session, 40_000);
        let role = || Seen::read(slot).map(|seen| (seen.role, seen.session)).unwrap();
        assert_eq!(role(), (Role::Client, Some(40_000)));
        set(&slot.session, 1 << 16 | 40_000);
        assert_eq!(role(), (Role::Server, Some(40_000)));
    }

    #[test]
    fn a_slot_in_a_mode_that_there_is_not_is_free() {
        let program = Maker::new(sys::pid());
        for mode in [mode::FREE, 5, 77, u32::MAX] {
            assert!(Seen::read(program.connect(0, (1006, 2006), mode)).is_none());
        }
    }
}
