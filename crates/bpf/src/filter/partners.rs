//! Links to other hosts: RoCEv2 passes between their two ends, and from nowhere else.
//!
//! Which addresses these are no list can say in advance, so the gateway tells the filter of each partner of its links, by
//! an option of `setsockopt` on the two UDP sockets of its soft RNIC ([`sidestep_wire::verdict`]). The gate of questions keeps
//! them with the socket, as a table, and a judge asks for them before it walks the rules:
//!
//! | Packet | from or to a partner | otherwise |
//! |---|---|---|
//! | arrives at port 4791 of such a socket | passes | is dropped |
//! | leaves such a socket to port 4791 | passes | the rules say |
//!
//! A socket without partners has none of this.
//!
//! Nothing is left of a gateway that has died: its sockets are gone, and what was kept with them. A gateway and the one that
//! replaces it share the socket that receives, so an entry bears the process that has told it.
//!
//! Packets are judged while entries are written. An entry is an address in two words behind each other, so one in the making
//! matches no packet, or that of an address that two others make up, which no link has.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::socket::setsockopt;
use sidestep_filter::graph::{DENIES, field};
use sidestep_wire::roce;
use sidestep_wire::verdict::{LINKED, Partner, UNLINKED};

use super::frame::{Way, key, skb, sock};
use crate::assembler::Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use crate::assembler::{Assembler, Helper};
use crate::key::sockopt;
use crate::map::{MapDefinition, MapKind};

const PARTNERS: &str = "partners";
const ENTRY_LEN: i16 = Partner::LEN as i16;
const PROCESS: i16 = Partner::PROCESS_AT as i16;

// What is kept with a socket: how many entries are in use, and the entries.
const COUNT: i16 = 0;
const ENTRIES: i16 = 8;
/// Where an entry's search may begin: a power of two.
const PLACES: usize = 256;
/// Entries that it looks at. A loop through all of them would take the verifier, which knows none of them apart, a minute.
const PROBES: usize = 8;

/// With each socket of a soft RNIC: the partners, in a hash table; an entry that is free is of process 0.
pub(super) const MAP: MapDefinition = MapDefinition {
    name: PARTNERS,
    kind: MapKind::SkStorage,
    key_len: 4,
    value_len: ENTRIES as u32 + (PLACES + PROBES - 1) as u32 * Partner::LEN as u32,
    entries_max: 0,
    on_demand: true,
};

mod option {
    use nix::{setsockopt_impl, sockopt_impl};
    use sidestep_wire::verdict::{self, Partner};

    sockopt_impl!(
        /// There are links to a partner.
        Linked, SetOnly, verdict::LEVEL, verdict::LINKED, [u8; Partner::LEN]
    );
    sockopt_impl!(
        /// There are none any more.
        Unlinked, SetOnly, verdict::LEVEL, verdict::UNLINKED, [u8; Partner::LEN]
    );
}

/// Tells the filter of the host that the soft RNIC of a UDP socket has links to the adapter at this address, or none any
/// more. False: no filter is in force for the socket.
///
/// # Errors
/// The filter does not take it: this process is not root's, or the socket has too many partners
/// ([`io::ErrorKind::PermissionDenied`]); or it is no socket.
pub fn tell_partner(socket: impl AsFd, address: IpAddr, is_linked: bool) -> io::Result<bool> {
    let value = Partner { address, process: std::process::id() }.to_bytes();
    let told = match is_linked {
        true => setsockopt(&socket, option::Linked, &value),
        false => setsockopt(&socket, option::Unlinked, &value),
    };
    match told {
        Ok(()) => Ok(true),
        Err(Errno::ENOPROTOOPT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A part of the gate of questions, which goes on behind it: notes what the option `R7` says of the socket of context `R6`.
pub(super) fn note(a: &mut Assembler) {
    const VALUE: i16 = -ENTRY_LEN;
    a.load_64(R2, R6, sockopt::VALUE);
    a.load_64(R3, R6, sockopt::VALUE_END);
    a.address(R4, R2, ENTRY_LEN);
    a.jump_if_beyond(R4, R3, "refused");
    for word in (0..ENTRY_LEN).step_by(8) {
        a.load_64(R1, R2, word);
        a.store_64(R10, VALUE + word, R1);
    }
    a.load_map(R1, PARTNERS);
    a.load_64(R2, R6, sockopt::SK);
    a.mov_immediate(R3, 0);
    a.mov_immediate(R4, 1);
    a.call(Helper::SkStorageGet);
    a.jump_if_equal(R0, 0, "refused");
    a.mov(R8, R0);
    a.load_64(R1, R10, VALUE);
    a.load_64(R2, R10, VALUE + 8);
    a.load_64(R3, R10, VALUE + PROCESS);
    address_place(a);
    a.mov(R9, R0);
    find_entry(a, "known", |a| {
        for (at, register) in [(0, R1), (8, R2), (PROCESS, R3)] {
            a.load_64(R5, R0, at);
            a.jump_if_different(R5, register, "another");
        }
    });
    a.jump_if_equal(R7, UNLINKED, "noted");
    a.mov(R0, R9);
    find_free_entry(a);
    a.label("known");
    a.jump_if_equal(R7, LINKED, "noted");
    a.mov_immediate(R1, 0);
    a.mov(R2, R1);
    a.mov(R3, R1);
    a.mov_immediate(R4, -1);
    a.jump("write");
    a.label("free");
    a.mov_immediate(R4, 1);
    a.label("write");
    for (at, register) in [(0, R1), (8, R2), (PROCESS, R3)] {
        a.store_64(R0, at, register);
    }
    a.load_64(R1, R8, COUNT);
    a.add(R1, R4);
    a.store_64(R8, COUNT, R1);
}

/// `R0`, which points at the value, points at the first entry where address `R1` and `R2` may be.
fn address_place(a: &mut Assembler) {
    /// The golden ratio of 32 bits, without its sign: odd, and of many bits.
    const SPREAD: i32 = 0x1e37_79b1;
    a.mov(R4, R1);
    a.xor(R4, R2);
    a.mov(R5, R4);
    a.shift_right_immediate(R5, 32);
    a.xor(R4, R5);
    a.mul_immediate(R4, SPREAD);
    a.shift_right_immediate(R4, 24);
    a.and_immediate(R4, PLACES as i32 - 1);
    a.mul_immediate(R4, ENTRY_LEN.into());
    a.add(R0, R4);
    a.add_immediate(R0, ENTRIES.into());
}

/// Goes to the label with the first entry from `R0` on that `matches`, which jumps to `another` if it does not.
fn find_entry(a: &mut Assembler, found: &'static str, matches: impl FnOnce(&mut Assembler)) {
    a.mov_immediate(R4, PROBES as i32);
    a.label("entry");
    matches(a);
    a.jump(found);
    a.label("another");
    a.add_immediate(R0, ENTRY_LEN.into());
    a.add_immediate(R4, -1);
    a.jump_if_not_equal(R4, 0, "entry");
}

/// Goes to `free` with the first entry from `R0` on that is.
fn find_free_entry(a: &mut Assembler) {
    a.mov_immediate(R4, PROBES as i32);
    a.label("taken");
    a.load_64(R5, R0, PROCESS);
    a.jump_if_equal(R5, 0, "free");
    a.add_immediate(R0, ENTRY_LEN.into());
    a.add_immediate(R4, -1);
    a.jump_if_not_equal(R4, 0, "taken");
    a.jump("refused");
}

/// If the packet of the key is RoCEv2 from or to a partner of its socket, or arrives at one that has others, `R7` is its verdict
/// where it goes to the label.
pub(super) fn judge(a: &mut Assembler, way: Way, judged: &'static str) {
    let is_arriving = way.number == 0;
    a.load_32(R1, R10, key(field::DESTINATION_PORT));
    a.jump_if_not_equal(R1, roce::PORT.into(), "rules");
    a.load_32(R1, R10, key(field::PROTOCOL));
    a.jump_if_not_equal(R1, sock::UDP, "rules");
    a.load_64(R1, R6, skb::SK);
    a.jump_if_equal(R1, 0, "rules");
    a.call(Helper::SkFullsock);
    a.jump_if_equal(R0, 0, "rules");
    a.mov(R2, R0);
    a.load_map(R1, PARTNERS);
    a.mov_immediate(R3, 0);
    a.mov_immediate(R4, 0);
    a.call(Helper::SkStorageGet);
    a.jump_if_equal(R0, 0, "rules");
    let remote = if is_arriving { field::SOURCE } else { field::DESTINATION };
    a.load_64(R3, R0, COUNT);
    a.jump_if_equal(R3, 0, "rules");
    a.load_64(R1, R10, key(remote));
    a.load_64(R2, R10, key(remote + 2));
    address_place(a);
    find_entry(a, "partner", |a| {
        a.load_64(R5, R0, PROCESS);
        a.jump_if_equal(R5, 0, "another");
        for (at, register) in [(0, R1), (8, R2)] {
            a.load_64(R5, R0, at);
            a.jump_if_different(R5, register, "another");
        }
    });
    if is_arriving {
        a.mov_immediate(R7, DENIES as i32);
        a.jump(judged);
    } else {
        a.jump("rules");
    }
    a.label("partner");
    a.mov_immediate(R7, 0);
    a.jump(judged);
    a.label("rules");
}
