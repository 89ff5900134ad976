//! The log: packets about which a rule with `log` has decided.
//!
//! The judge writes a line into a ring buffer that all sets share, so a reader hears on when the rules change. Lines
//! stay there until a reader takes them, up to [`RING_LEN`] bytes; when it is full, new lines are lost, and counted.
//!
//! # The rate
//!
//! Any sender of packets could fill the ring with the lines of one rule. So each rule has [`LINES_MAX`] lines in a
//! second (of 2^30 ns, which a shift finds); what is more is lost, and counted. Rules share that in so far as their
//! places in the list differ by a multiple of [`RATES`].
//!
//! # A line
//!
//! | Off | Len | Field, in the machine's order |
//! |---|---|---|
//! | 0 | 8 | when, in nanoseconds of the monotonic clock |
//! | 8 | 7 | the set's [`Identity`] |
//! | 16 | 4 | bytes of the packet |
//! | 20 | 4 | Ethernet's number for its family, in the network's order |
//! | 24 | 8 | the control group of the socket; 0: not known |
//! | 32 | 64 | the [`Key`], with the verdict at [`field::BEST`] |

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use aya::maps::{MapData, PerCpuArray, RingBuf};
use sidestep_filter::graph::{KEY_WORDS, Key, LOGS, RULE_SHIFT, Verdict, field};
use sidestep_filter::{Graph, Packet};

use super::frame::{Hook, KEY, PLACE, key, skb};
use super::pins::{of_map, open_map};
use crate::assembler::Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10};
use crate::assembler::{Assembler, Helper};
use crate::error::BpfError;
use crate::map::{MapDefinition, MapKind};

pub(super) const LOG: &str = "log";
const LOG_RATES: &str = "log_rates";
const TOTALS: &str = "totals";

/// Bytes of the ring: two thousand lines.
const RING_LEN: u32 = 256 << 10;
/// Lines of a rule in a second.
pub const LINES_MAX: i32 = 100;
/// Rules that are held to it each by itself: a power of two.
const RATES: u32 = 1024;
/// Of a rate: the second, and how many lines it has had by then.
const SECOND: i16 = 0;
const LINES: i16 = 8;
const SECOND_BITS: i32 = 30;

/// Places of totals, behind those of packets of sockets: permitted and denied, which are a verdict's lowest bit.
const LOST_BY_RATE: i32 = 2;
const LOST_FOR_ROOM: i32 = 3;
/// The first of the two places of forwarded packets.
const FORWARDED: u32 = 4;

// Where the stack has the line: its head stands before the key.
const HEAD: i16 = KEY - HEAD_LEN as i16;
const HEAD_LEN: usize = 32;
const LINE_LEN: usize = HEAD_LEN + 4 * KEY_WORDS;
const TIME: usize = 0;
const IDENTITY: usize = 8;
const LEN: usize = 16;
const PROTOCOL: usize = 20;
const CGROUP: usize = 24;

/// What all sets of a filter write to.
pub(super) const MAPS: [MapDefinition; 3] = [
    MapDefinition {
        name: LOG,
        kind: MapKind::RingBuf,
        key_len: 0,
        value_len: 0,
        entries_max: RING_LEN,
        on_demand: false,
    },
    MapDefinition {
        name: LOG_RATES,
        kind: MapKind::Array,
        key_len: 4,
        value_len: 16,
        entries_max: RATES,
        on_demand: false,
    },
    MapDefinition {
        name: TOTALS,
        kind: MapKind::PerCpuArray,
        key_len: 4,
        value_len: 8,
        entries_max: 6,
        on_demand: false,
    },
];

/// What its maker calls a set of rules: a part of a hash of it.
pub type Identity = [u8; 7];

/// What a filter has done since it was attached, under whatever rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets of sockets that passed, of those for which the rules were searched.
    pub permitted: u64,
    /// Packets of sockets that were dropped, of those.
    pub denied: u64,
    /// Forwarded packets that passed.
    pub forwarded_permitted: u64,
    /// Forwarded packets that were dropped.
    pub forwarded_denied: u64,
    /// Lines of the log that were more than a rule may have in a second.
    pub lost_by_rate: u64,
    /// Lines of the log for which there was no room: no reader had taken those before.
    pub lost_for_room: u64,
}

/// A packet about which a rule with `log` has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// When, in nanoseconds of the monotonic clock.
    pub time_ns: u64,
    /// The set that was in force.
    pub identity: Identity,
    /// What became of it.
    pub verdict: Verdict,
    /// The packet; user and interface are told whatever the rules look at. The length of a forwarded one is that
    /// of its frame.
    pub packet: Packet,
    /// Its bytes, from the header of IP on.
    pub len: u32,
    /// The number of the socket's control group (its directory's inode); 0: not known.
    pub cgroup: u64,
}

/// The lines, each for one reader.
pub struct Log {
    ring: RingBuf<MapData>,
    pin: PathBuf,
    /// The number of that file.
    number: u64,
}

impl Totals {
    pub(super) fn of(pins: &Path) -> Result<Self, BpfError> {
        let totals: PerCpuArray<MapData, u64> = open_map(pins, TOTALS)?;
        let sum = |place: u32| of_map(totals.get(&place, 0)).map(|of_cpus| of_cpus.iter().sum());
        Ok(Self {
            permitted: sum(0)?,
            denied: sum(1)?,
            forwarded_permitted: sum(FORWARDED)?,
            forwarded_denied: sum(FORWARDED + 1)?,
            lost_by_rate: sum(LOST_BY_RATE.cast_unsigned())?,
            lost_for_room: sum(LOST_FOR_ROOM.cast_unsigned())?,
        })
    }
}

impl Log {
    pub(super) fn of(pins: &Path) -> Result<Self, BpfError> {
        let ring = open_map(pins, LOG)?;
        let pin = pins.join(LOG);
        let number = fs::metadata(&pin).map_err(|error| BpfError::of_file(&pin, error))?.ino();
        Ok(Self { ring, pin, number })
    }

    /// Whether the filter is still there; the log of one that was removed gets no more lines.
    #[must_use]
    pub fn is_live(&self) -> bool {
        fs::metadata(&self.pin).is_ok_and(|file| file.ino() == self.number)
    }

    /// Takes the oldest line that is left.
    pub fn take(&mut self) -> Option<LogLine> {
        self.ring.next().map(|item| LogLine::of_item(&item))
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}

/// Becomes readable with a line.
impl AsFd for Log {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl LogLine {
    /// **Panics** if it is shorter than a line.
    pub(super) fn of_item(item: &[u8]) -> Self {
        Self::of_bytes(item.first_chunk().expect("programs write whole lines"))
    }

    fn of_bytes(bytes: &[u8; LINE_LEN]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let key: Key = std::array::from_fn(|place| word(HEAD_LEN + 4 * place));
        Self {
            time_ns: long(TIME),
            identity: bytes[IDENTITY..IDENTITY + 7].try_into().expect("7 bytes"),
            verdict: Verdict::of_word(key[field::BEST]),
            packet: Packet::of_key(&key, word(PROTOCOL) == skb::IPV6.cast_unsigned()),
            len: word(LEN),
            cgroup: long(CGROUP),
        }
    }
}

/// Counts verdict `R7`.
pub(super) fn count_total(a: &mut Assembler, hook: Hook) {
    a.mov(R1, R7);
    a.and_immediate(R1, 1);
    if hook == Hook::Interface {
        a.add_immediate(R1, FORWARDED.cast_signed());
    }
    add_to_total(a, "totals");
}

/// Tells the packet with verdict `R7`, if that is to be told.
pub(super) fn tell(a: &mut Assembler, graph: &Graph, identity: Identity, hook: Hook) {
    if !graph.has(LOGS) {
        return;
    }
    a.mov(R1, R7);
    a.and_immediate(R1, LOGS as i32);
    a.jump_if_equal(R1, 0, "told");
    hold_to_rate(a);
    store_head(a, identity, hook);
    a.load_map(R1, LOG);
    a.address(R2, R10, HEAD);
    a.mov_immediate(R3, LINE_LEN as i32);
    a.mov_immediate(R4, 0);
    a.call(Helper::RingBufOutput);
    a.jump_if_equal(R0, 0, "told");
    a.mov_immediate(R1, LOST_FOR_ROOM);
    a.jump("lost");
    a.label("too many");
    a.mov_immediate(R1, LOST_BY_RATE);
    a.label("lost");
    add_to_total(a, "told");
}

/// `R9` = the time, if the rule of verdict `R7` may have another line. Two CPUs that begin a second together can
/// give it a few more.
fn hold_to_rate(a: &mut Assembler) {
    a.mov(R1, R7);
    a.shift_right_immediate(R1, RULE_SHIFT as i32);
    a.and_immediate(R1, RATES as i32 - 1);
    a.store_32(R10, PLACE, R1);
    a.load_map(R1, LOG_RATES);
    a.address(R2, R10, PLACE);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "told");
    a.mov(R8, R0);
    a.call(Helper::KtimeGetNs);
    a.mov(R9, R0);
    a.shift_right_immediate(R0, SECOND_BITS);
    a.load_64(R1, R8, SECOND);
    a.jump_if_different(R0, R1, "another second");
    a.jump("this second");
    a.label("another second");
    a.store_64(R8, SECOND, R0);
    a.mov_immediate(R1, 0);
    a.store_64(R8, LINES, R1);
    a.label("this second");
    a.mov_immediate(R1, 1);
    a.atomic_fetch_add_64(R8, LINES, R1);
    a.jump_if_above(R1, LINES_MAX - 1, "too many");
}

/// Writes what stands before the key, at time `R9`, and what of the key no rule had to look at.
fn store_head(a: &mut Assembler, identity: Identity, hook: Hook) {
    let at = |offset: usize| HEAD + offset as i16;
    a.store_64(R10, at(TIME), R9);
    let [b0, b1, b2, b3, b4, b5, b6] = identity;
    for (word, bytes) in [[b0, b1, b2, b3], [b4, b5, b6, 0]].into_iter().enumerate() {
        a.store_immediate_32(R10, at(IDENTITY + 4 * word), i32::from_ne_bytes(bytes));
    }
    for (offset, member) in [(LEN, skb::LEN), (PROTOCOL, skb::PROTOCOL)] {
        a.load_32(R1, R6, member);
        a.store_32(R10, at(offset), R1);
    }
    a.load_32(R1, R6, skb::IFINDEX);
    a.store_32(R10, key(field::INTERFACE), R1);
    if hook == Hook::Interface {
        a.mov_immediate(R0, 0);
        a.store_64(R10, at(CGROUP), R0);
        return;
    }
    a.mov(R1, R6);
    a.call(Helper::SocketUid);
    a.store_32(R10, key(field::USER), R0);
    a.mov(R1, R6);
    a.call(Helper::SkbCgroupId);
    a.store_64(R10, at(CGROUP), R0);
}

/// Adds 1 to the total at place `R1`, and goes on at the label, which it sets.
fn add_to_total(a: &mut Assembler, end: &'static str) {
    a.store_32(R10, PLACE, R1);
    a.load_map(R1, TOTALS);
    a.address(R2, R10, PLACE);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, end);
    // A packet that arrives can come between, on the same CPU.
    a.mov_immediate(R1, 1);
    a.atomic_add_64(R0, 0, R1);
    a.label(end);
}
