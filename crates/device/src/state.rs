//! The state of a process: one slot for every TCP connection of the program.
//!
//! It is shared memory for two reasons. A child inherits connections by `fork`,
//! and both processes must agree on locks, ledger and flags: the mapping is
//! inherited and stays shared. And `sidestep ss` reads it from outside, through
//! `/proc/PID/fd`, without asking the process anything: it works on a stopped or
//! busy program, and nothing is left behind when the program dies.
//!
//! Peers never see this memory.

use crate::channel::SLOTS;
use crate::counts::{LISTS, count};
use crate::history::History;
use crate::lock::Lock;
use crate::map::{self, Created, Mapping};
use crate::services::{self, Ended, Services, Tally};
use crate::sizes::Sizes;
use crate::stamp::{Kind, Stamp};
use crate::sys::Result;
use crate::untracked::{Batch, Traffic, UNTRACKED_MAX, Untracked};
use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use sidestep_derive::{Renew, Shared};

/// Name of the memory file: how `sidestep ss` recognises it in `/proc/PID/fd`.
pub const STATE_NAME: &CStr = c"sidestep-state";
/// Length in bytes; sparse.
pub const STATE_LEN: usize = UNTRACKED_AT + UNTRACKED_MAX * size_of::<Untracked>();

const HISTORY_AT: usize = 28 << 10;
const SERVICES_AT: usize = 288 << 10;
pub(crate) const SLOTS_AT: usize = 340 << 10;
pub(crate) const UNTRACKED_AT: usize =
    (SLOTS_AT + SLOTS * size_of::<Slot>()).next_multiple_of(4096);
const _: () = assert!((UNTRACKED_MAX * size_of::<Untracked>()).is_multiple_of(4096));

const _: () = assert!(size_of::<Slot>() <= 704);
const _: () = assert!(size_of::<Header>() <= HISTORY_AT);
const _: () = assert!(HISTORY_AT + size_of::<History>() <= SERVICES_AT);
const _: () = assert!(SERVICES_AT + size_of::<Services>() <= SLOTS_AT);

/// Start of the state.
#[derive(Shared)]
#[repr(C)]
pub struct Header {
    /// Programs whose states have different versions still talk to each other, if what
    /// peers share is the same.
    stamp: Stamp,
    /// Process that created the state.
    pub pid: AtomicU32,
    /// Instance of the process: its 128-bit GID.
    pub instance: [AtomicU64; 2],
    /// Slots that were ever used: readers look no further.
    pub slots_used: AtomicU32,
    /// Places of untracked connections that were ever used: readers look no further.
    pub untracked_used: AtomicU32,
    /// Forked children of its holders that have not entered it yet ([`crate::holders`]).
    pub unborn: AtomicU32,
    /// Connections that have ended: where a CPU adds is in no other's cache, and what they
    /// say together counts.
    pub ended: [Totals; LISTS],
    /// What AUTOSMC has learned: `proto::autosmc`.
    pub ports: [Port; PORTS_MAX],
    /// What AUTOCACHE remembers: `proto::autocache`.
    pub failures: [Failure; FAILURES_MAX],
    /// Attempts to move a connection.
    pub handshakes: Handshakes,
    /// Rings of its connections, by the code of their length (`wire::RmbeSize`).
    pub rings: [Rings; RING_SIZES],
    /// Which connections the operator wants on TCP.
    pub holds: Holds,
}

/// Servers' ports whose connections an operator keeps on TCP (`sidestep demote`).
///
/// Each new connection asks, and nearly always nothing is held: that is one look.
#[derive(Shared)]
#[repr(C)]
pub struct Holds {
    /// Not 0: something is or was held.
    ever: AtomicU32,
    words: [AtomicU32; HOLDS_MAX],
}

/// Ports that can be held one by one.
pub const HOLDS_MAX: usize = 16;
/// In a word of [`Holds`]: all ports.
const ALL_PORTS: u32 = 1 << 16;
/// In a word of [`Holds`]: this port.
const ONE_PORT: u32 = 1 << 17;

impl Holds {
    fn word(port: Option<u16>) -> u32 {
        port.map_or(ALL_PORTS, |port| ONE_PORT | u32::from(port))
    }

    /// Whether connections of a server's port are held.
    #[must_use]
    pub fn has(&self, port: u16) -> bool {
        self.ever.load(Ordering::Acquire) != 0
            && self.iter().any(|held| held.is_none_or(|held| held == port))
    }

    /// What is held: a server's port, or all (`None`).
    pub fn iter(&self) -> impl Iterator<Item = Option<u16>> {
        let words =
            self.words.iter().map(|word| word.load(Ordering::Acquire)).filter(|word| *word != 0);
        words.map(|word| (word & ALL_PORTS == 0).then_some(word as u16))
    }

    /// Holds a port, or all. False: there is no place left.
    #[must_use]
    pub fn add(&self, port: Option<u16>) -> bool {
        let word = Self::word(port);
        let is_it = |place: &AtomicU32| place.load(Ordering::Relaxed) == word;
        let take = |place: &AtomicU32| {
            place.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let is_held = self.words.iter().any(is_it) || self.words.iter().any(take);
        // Release: a reader that sees it sees the word.
        self.ever.store(1, Ordering::Release);
        is_held
    }

    /// Lets go of a port, or (`None`) of everything.
    pub fn remove(&self, port: Option<u16>) {
        let goes = |word: u32| port.is_none() || word == Self::word(port);
        for place in &self.words {
            let held = place.load(Ordering::Relaxed);
            if goes(held) {
                let _ = place.compare_exchange(held, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

/// Servers that are remembered with which agreeing has failed.
pub const FAILURES_MAX: usize = 16;

/// A server with which agreeing has failed, also if it has succeeded since.
#[derive(Shared)]
#[repr(C)]
pub struct Failure {
    /// Its address, 16 bytes in network order; IPv4 in the first four.
    pub ip: [AtomicU64; 2],
    /// Instance of its process, 0 = not known.
    pub peer: [AtomicU64; 2],
    /// Left alone until then, by `CLOCK_MONOTONIC`; 0: it is not.
    pub until_ns: AtomicU64,
    /// Its port.
    pub port: AtomicU32,
    /// Address family: 4 or 6; 0: the place is of no server.
    pub family: AtomicU32,
    /// Failures in a row, 0 = none.
    pub in_a_row: AtomicU32,
    /// 1: agreeing has succeeded since the first failure.
    pub has_succeeded: AtomicU32,
    /// `proto::fallback::Reason` as its word.
    pub reason: AtomicU64,
}

/// Servers' ports of which something is known: more than a program has use for.
pub const PORTS_MAX: usize = 64;

/// A server's port, and how long its connections must have lived to be moved.
///
/// One word, so that a reader sees either port whole while it changes hands. Which
/// place a port has is told by its number; the second of two that meet in one place gets it
/// when nothing is known about the first any more.
#[derive(Shared)]
#[repr(transparent)]
pub struct Port(AtomicU64);

impl Port {
    /// Number of the port, 0 = none, and doublings of the first patience.
    #[must_use]
    pub fn get(&self) -> (u16, u8) {
        let word = self.0.load(Ordering::Relaxed);
        (word as u16, (word >> 16) as u8)
    }

    fn set(&self, port: u16, doublings: u8) {
        self.0.store(u64::from(port) | u64::from(doublings) << 16, Ordering::Relaxed);
    }
}

impl Header {
    /// Doublings of the first patience with a server's port.
    #[must_use]
    pub fn patience(&self, port: u16) -> u8 {
        match self.place_of(port).get() {
            (known, doublings) if known == port => doublings,
            _ => 0,
        }
    }

    /// Writes them down.
    pub fn set_patience(&self, port: u16, doublings: u8) {
        let place = self.place_of(port);
        let (known, learned) = place.get();
        if known == port || learned == 0 {
            place.set(port, doublings);
        }
    }

    fn place_of(&self, port: u16) -> &Port {
        &self.ports[usize::from(port) % PORTS_MAX]
    }

    /// Whether no slot was being freed when this header was read, nor has been until it was read
    /// once more (`later`).
    pub(crate) fn is_in_peace_until(&self, later: &Self) -> bool {
        let sequence = |sums: &Totals| sums.sequence.load(Ordering::Relaxed);
        self.ended.iter().zip(&later.ended).all(|(before, after)| {
            sequence(before).is_multiple_of(2) && sequence(before) == sequence(after)
        })
    }
}

/// Attempts to move a connection: those that are in neither of the last two are under way.
#[derive(Shared)]
#[repr(C)]
pub struct Handshakes {
    /// This end has begun to look for the other.
    pub attempted: AtomicU64,
    /// Both ends have agreed.
    pub agreed: AtomicU64,
    /// They have not, or the connection ended before.
    pub failed: AtomicU64,
}

/// Rings of one length that connections were given.
#[derive(Shared)]
#[repr(C)]
pub struct Rings {
    /// To send through: from memory that no connection had before.
    pub fresh: AtomicU64,
    /// To send through: one that another connection had.
    pub reused: AtomicU64,
    /// To receive from: it lies in the peer's memory, which knows if it is fresh.
    pub incoming: AtomicU64,
}

/// Lengths of rings.
pub const RING_SIZES: usize = 7;

/// Sums over connections whose slots were freed: what is in a slot and what is
/// in here are together all that the process ever had.
#[derive(Shared)]
#[repr(C, align(64))]
pub struct Totals {
    /// Odd while a slot is being freed.
    sequence: AtomicU32,
    /// Connections within the host of which bytes went through shared memory.
    pub smc: AtomicU64,
    /// Connections to other hosts that were handed to the gateway.
    pub handed_over: AtomicU64,
    /// All others, by the code of their reason (`proto::fallback::Reason`); with 0
    /// nothing was decided, or no byte followed.
    pub tcp: [AtomicU64; CODES],
    /// Their counters.
    pub counters: Counters,
    /// Lengths of what they sent.
    pub sent: Sizes,
    /// Lengths of what they received.
    pub received: Sizes,
}

/// Codes of reasons: a counter for each that the byte can hold, whether this version knows it or
/// not.
pub const CODES: usize = 1 << u8::BITS;

/// What a slot describes: [`Slot::mode`].
pub mod mode {
    /// Nothing.
    pub const FREE: u32 = 0;
    /// A connection on TCP.
    pub const TCP: u32 = 1;
    /// On TCP, and the two ends are agreeing.
    pub const NEGOTIATING: u32 = 2;
    /// A connection in shared memory.
    pub const SMC_D: u32 = 3;
    /// Closed here; the peer still reads our ring.
    pub const LINGERING: u32 = 4;
}

/// Bits of [`Slot::flags`]. Each says which module of the crate `socket` writes it, and why it is a bit of memory that the
/// processes of an end share.
pub mod flag {
    /// Our sends go into the ring. Written by `switch`; all processes of the end send by one path, and a warm send looks here.
    pub const SEND_SWITCHED: u32 = 1 << 0;
    /// The peer's bytes come from its ring alone, and what comes by TCP is bells. Written by `switch`; the first receive that
    /// finds no TCP byte left saves all later ones, in each process, the question.
    pub const RECEIVE_SWITCHED: u32 = 1 << 1;
    /// `shutdown(SHUT_RD)`. Written by `ends`; all processes of the end have shut down with it.
    pub const READ_SHUT: u32 = 1 << 2;
    /// `shutdown(SHUT_WR)`. Written by `ends`; the record says the same to the peer, and here it is in the word that a warm
    /// send looks at.
    pub const WRITE_SHUT: u32 = 1 << 3;
    /// The peer's TCP end is gone (FIN or RST). Written by `ends`; the kernel tells it to one process, and a warm send looks
    /// here.
    pub const PEER_GONE: u32 = 1 << 4;
    /// The connection was reset. Written by `ends`, behind [`Slot::reset`](super::Slot::reset), which decides: here it is in
    /// the word that a warm send looks at.
    pub const RESET: u32 = 1 << 5;
    /// `SO_OOBINLINE`. Written by `urgent`; the option belongs to the socket, so to all processes that have it.
    pub const OOB_INLINE: u32 = 1 << 6;
    /// The urgent byte was read out of band. Written by `urgent`; whichever process reads the stream next leaves it out.
    pub const URGENT_TAKEN: u32 = 1 << 7;
    /// The peer's side of the TCP stream ended before it switched to its ring. Written by `ends`; the kernel's 0 is the same for
    /// a whole close, and what the peer's words said when it came decides.
    pub const TCP_ENDED: u32 = 1 << 8;
    /// The program has set `TCP_NODELAY`. Written by `socket_options`; the kernel's is always set (a bell must not wait for the
    /// acknowledgement of the last one), so no process can ask the kernel.
    pub const NO_DELAY: u32 = 1 << 9;
    /// The program has set `TCP_CORK`. Written by `socket_options`; the kernel's is never set.
    pub const CORK: u32 = 1 << 10;
    /// `O_NONBLOCK`, as far as a process of this end has set or seen it. Written by `sock`; it belongs to the open file, and the
    /// kernel is not asked for each call.
    pub const NONBLOCKING: u32 = 1 << 11;
    /// `O_ASYNC`: every arrival rings, because the bell raises SIGIO. Written by `sock` when a program sets it, and by
    /// `socket_options` when a connection moves; it belongs to the open file.
    pub const ASYNC: u32 = 1 << 12;
    /// We read by the ledger, for good. Written by `switch`; the count of consumed bytes lies in the slot, so each process of
    /// the end has to keep it.
    pub const BY_LEDGER: u32 = 1 << 13;
    /// The peer has shut down both directions: it answers data with a reset. Written by `ends`; the peer's record says it, and
    /// here it is in the word that a warm send looks at.
    pub const PEER_REFUSES: u32 = 1 << 14;
    /// `SO_PEEK_OFF` is not negative. Written by `socket_options`; the place itself lies in the slot.
    pub const PEEK_OFFSET: u32 = 1 << 15;
    /// The peer's direction is to go by TCP: the next receive permits it. Written by `switch`; the process that follows the
    /// peer's hint need not be the one that receives next.
    pub const TURN_WANTED: u32 = 1 << 16;
    /// The peer permits that our direction goes by TCP: the next send turns. Written by `switch`; as for [`TURN_WANTED`], and a
    /// warm send looks here.
    pub const LEAVES_RING: u32 = 1 << 17;
    /// A bell was not rung while a turn was tried. Written by `wait`, and taken off by `switch`; the thread that allows bells
    /// again pays for all processes of the end.
    pub const BELL_OWED: u32 = 1 << 18;
    /// The program has begun TLS on a connection that was in plain text. Written by `controlled`; the gateway has the connection
    /// then, and no other process of the end may send on it.
    pub const TLS_BEGUN: u32 = 1 << 19;
}

/// One TCP connection of the program.
#[derive(Renew, Shared)]
#[repr(C, align(64))]
pub struct Slot {
    /// [`mode`].
    pub mode: AtomicU32,
    /// Rises with every use of the slot.
    pub generation: AtomicU32,
    /// Taken by a thread that sends.
    pub send_lock: Lock,
    /// Taken by a thread that receives.
    pub receive_lock: Lock,
    /// The thread that sleeps on the TCP connection ([`crate::lock::Owner`]), 0 = none.
    /// Only it may take bells from the TCP queue.
    pub sleeper: AtomicU64,
    /// Where on its stack the sleeper sleeps: tells a handler that has interrupted the
    /// sleep from a later call of a thread that jumped out of it.
    pub sleeper_at: AtomicU64,
    /// Rises whenever the sleeper leaves: others of this end wait for it here.
    pub turn: AtomicU32,
    /// Threads that wait for the sleeper to leave.
    pub queued: AtomicU32,
    /// [`flag`] bits.
    pub flags: AtomicU32,
    /// Processes that hold a descriptor of this connection.
    pub holders: AtomicU32,
    /// Readers and polls that have asked for a bell when there is something to read:
    /// a thread that stops waiting withdraws the request only if it was the last.
    pub read_waiters: AtomicU32,
    /// Source of arm numbers.
    pub arm_numbers: AtomicU32,
    /// The peer's read arm that we answered last.
    pub read_rung: crate::arm::Rung,
    /// The peer's write arm that we answered last.
    pub write_rung: crate::arm::Rung,
    /// The peer's nap arm that we answered last.
    pub nap_rung: crate::arm::Rung,
    /// `proto::ends::Reset` as its word: whether there was a reset, its error number, and whether the program was told.
    /// Written by `socket::ends`; of all threads and processes of the end one is told.
    pub reset: AtomicU32,
    /// `SO_RCVLOWAT`.
    pub low_water: AtomicU32,
    /// `SO_PEEK_OFF`, valid once read by the ledger.
    pub peek_offset: AtomicI32,
    /// Plain receive calls under way (only before the switch).
    pub plain_receives: AtomicU32,
    /// Plain send calls under way (only before the switch).
    pub plain_sends: AtomicU32,
    /// `SO_RCVBUF` the program set, 0 = none.
    pub receive_buffer: AtomicU32,
    /// Bytes taken from the TCP stream, once read by the ledger.
    pub tcp_consumed: AtomicU64,
    /// Last urgent mark of the peer that was dealt with (its ring position + 1).
    pub urgent_seen: AtomicU64,
    /// 0, or 1 + the offset in the TCP stream at which a read has stopped before an
    /// urgent byte.
    pub tcp_mark: AtomicU64,
    /// Turns of the peer's direction that were followed: [`crate::way`].
    pub followed: AtomicU32,
    /// Offset in the TCP stream from which on it carried bytes of the program last: what
    /// lies before is bells.
    pub tcp_from: AtomicU64,
    /// The part of `tcp_consumed` that was bells, as far as they were counted.
    pub tcp_bells: AtomicU64,
    /// Bells being rung.
    pub bells: AtomicU32,
    /// Sends that have put a part into the ring and wait for room for the rest.
    pub unfinished: AtomicU32,
    /// Not 0: the operator wants the connection on TCP.
    pub held: AtomicU32,
    /// Generation of the connection that a rule of the IP filter denies: while it is the slot's, the
    /// connection may not be in shared memory. 0: none. Written by the command that changes the rules.
    pub denied: AtomicU32,
    /// Index of the interface that its packets take, 0 = not known. Written before it moves, for a later question to the IP filter.
    pub interface: AtomicU32,
    /// Value of the peer's `closes` when TCP was last asked.
    pub closes_seen: AtomicU32,
    /// Process that used the connection last.
    pub user_pid: AtomicU32,
    /// Address family: 4 or 6.
    pub family: AtomicU8,
    /// 1: this side accepted the connection.
    pub is_server: AtomicU8,
    /// 1: a forked child goes on with the connection in a slot of its own, in its own
    /// state, and counts it there.
    pub is_elsewhere: AtomicU8,
    /// `proto::fallback::Reason` as its word: the code in the lowest byte, and in the upper half which
    /// field of the peer's was wrong, or the diagnosis that the peer sent with its Decline.
    pub reason: AtomicU64,
    /// A descriptor of `user_pid` through which the kernel can be asked for the addresses,
    /// -1 = none. They are written down only when they are needed here: until then
    /// `family` is 0.
    pub descriptor: AtomicI32,
    /// Local port.
    pub local_port: AtomicU32,
    /// Peer port.
    pub peer_port: AtomicU32,
    /// Local address, 16 bytes in network order; IPv4 in the first four.
    pub local_ip: [AtomicU64; 2],
    /// Peer address.
    pub peer_ip: [AtomicU64; 2],
    /// Length in bytes of the ring we send through (the peer's RMBE).
    pub send_ring_len: AtomicU32,
    /// Length in bytes of the ring we receive from (our RMBE).
    pub receive_ring_len: AtomicU32,
    /// What counts for `sidestep assess`.
    pub tally: Tally,
    /// Number of the bundle in which the connection was given away last, 0 = none.
    pub bundle: AtomicU64,
    /// `TCP_NOTSENT_LOWAT` of the program.
    pub not_sent_low_water: AtomicU32,
    /// Port of the server's end, 0 = not known.
    pub server_port: AtomicU32,
    /// Of a connection to another host: our port on the way to the gateway, and above it
    /// (`<< 16`) 1 if this end has accepted it. 0: it does not go by the gateway.
    pub session: AtomicU32,
    /// 0, or 1 + the messages that had passed when the connection moved.
    pub moved_after: AtomicU64,
    /// What `sidestep ss` shows. From here on all is zero as long as the slot is free.
    #[renew(kept)]
    pub counters: Counters,
    /// Lengths of what was sent.
    #[renew(kept)]
    pub sent: Sizes,
    /// Lengths of what was received.
    #[renew(kept)]
    pub received: Sizes,
}

/// Counters of one connection, since its start.
#[derive(Renew, Shared)]
#[repr(C)]
pub struct Counters {
    /// Bytes the program sent, by either path.
    pub bytes_sent: AtomicU64,
    /// Bytes the program received, by either path.
    pub bytes_received: AtomicU64,
    /// Send calls that moved something.
    pub messages_sent: AtomicU64,
    /// Receive calls that moved something.
    pub messages_received: AtomicU64,
    /// The part of `bytes_sent` that went through the ring.
    pub ring_bytes_sent: AtomicU64,
    /// The part of `bytes_received` that came through the ring.
    pub ring_bytes_received: AtomicU64,
    /// Waits for the peer in which it was to choose whether to spin, yield or sleep.
    pub waits: AtomicU64,
    /// Waits that began when the process knew of strangers (`proto::contention`).
    pub waits_beside_strangers: AtomicU64,
    /// Waits that began with spinning.
    pub spins: AtomicU64,
    /// Spins that ended without what the wait was for.
    pub spins_in_vain: AtomicU64,
    /// CPU nanoseconds spent spinning.
    pub spin_ns: AtomicU64,
    /// Yields of the CPU while waiting.
    pub yields: AtomicU64,
    /// Yields that have met a stranger.
    pub strangers: AtomicU64,
    /// Nanoseconds for which these strangers had the CPU.
    pub strangers_ns: AtomicU64,
    /// Waits that ended in a kernel sleep.
    pub parks: AtomicU64,
    /// Bells rung for the peer.
    pub wakeups: AtomicU64,
}

impl Counters {
    /// Messages and bytes of both directions.
    #[must_use]
    pub fn traffic(&self) -> (u64, u64) {
        let sum =
            |a: &AtomicU64, b: &AtomicU64| a.load(Ordering::Relaxed) + b.load(Ordering::Relaxed);
        let messages = sum(&self.messages_sent, &self.messages_received);
        (messages, sum(&self.bytes_sent, &self.bytes_received))
    }

    /// All of them, in the order of their declaration.
    #[must_use]
    pub fn all(&self) -> [&AtomicU64; 16] {
        [
            &self.bytes_sent,
            &self.bytes_received,
            &self.messages_sent,
            &self.messages_received,
            &self.ring_bytes_sent,
            &self.ring_bytes_received,
            &self.waits,
            &self.waits_beside_strangers,
            &self.spins,
            &self.spins_in_vain,
            &self.spin_ns,
            &self.yields,
            &self.strangers,
            &self.strangers_ns,
            &self.parks,
            &self.wakeups,
        ]
    }
}

impl Slot {
    /// Goes on with a connection that grows. No other thread uses the slot yet.
    pub fn take_untracked(&self, untracked: &Untracked) {
        if let Some(traffic) = untracked.take() {
            add(&self.counters, [&self.sent, &self.received], traffic);
        }
    }

    /// Whether a rule of the IP filter denies this connection, and not one that had the slot before.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        let denied = self.denied.load(Ordering::Acquire);
        denied != 0 && denied == self.generation.load(Ordering::Relaxed)
    }

    /// The code of the reason that keeps it on TCP, 0 = none.
    #[must_use]
    pub fn reason_code(&self) -> u8 {
        self.reason.load(Ordering::Relaxed) as u8
    }

    /// Whether the connection is to be counted as one of this state's.
    #[must_use]
    pub fn is_counted_here(&self) -> bool {
        self.is_elsewhere.load(Ordering::Relaxed) == 0
    }

    /// Address and port of the end that accepted; without the address while no call has
    /// needed it.
    #[must_use]
    pub fn server_address(&self) -> ([u64; 2], u16) {
        let (ip, port) = match self.is_server.load(Ordering::Relaxed) {
            0 => (&self.peer_ip, &self.peer_port),
            _ => (&self.local_ip, &self.local_port),
        };
        if self.family.load(Ordering::Relaxed) == 0 {
            return ([0; 2], self.server_port.load(Ordering::Relaxed) as u16);
        }
        let ip = ip.each_ref().map(|half| half.load(Ordering::Relaxed));
        (ip, port.load(Ordering::Relaxed) as u16)
    }

    /// What the connection belongs to in the table of [`services`].
    #[must_use]
    pub fn service(&self) -> services::Kind {
        let (server_ip, server_port) = self.server_address();
        services::Kind {
            server_ip,
            server_port,
            family: self.family.load(Ordering::Acquire),
            is_server: self.is_server.load(Ordering::Relaxed) != 0,
            is_here: self.tally.is_here(),
        }
    }

    /// What the connection has had, for that table.
    pub(crate) fn what_it_had(&self) -> Ended<'_> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { bytes_sent, bytes_received, .. } = &self.counters;
        let Counters { messages_sent, messages_received, .. } = &self.counters;
        Ended {
            tally: &self.tally,
            bytes: [bytes_sent, bytes_received].map(load),
            messages: [messages_sent, messages_received].map(load),
            lengths: [&self.sent, &self.received],
        }
    }

    /// Whether it is a connection to another host, of which this is the way to the gateway, and is
    /// counted here.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.session.load(Ordering::Relaxed) != 0 && self.is_counted_here()
    }

    /// Whether bytes of the connection went through shared memory.
    #[must_use]
    pub fn has_used_rings(&self) -> bool {
        let Counters { ring_bytes_sent, ring_bytes_received, .. } = &self.counters;
        [ring_bytes_sent, ring_bytes_received].iter().any(|n| n.load(Ordering::Relaxed) > 0)
    }
}

impl Totals {
    /// Makes the sequence odd; what it was.
    pub(crate) fn begin_change(&self) -> u32 {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        // Release: what follows is seen with the odd sequence or a later one.
        fence(Ordering::Release);
        sequence
    }

    /// Counts a connection that stays on TCP for the reason of this code, which no slot
    /// has.
    pub fn count_tcp(&self, reason: u8) {
        self.place_of(reason).fetch_add(1, Ordering::Relaxed);
    }

    /// Takes what a slot has counted. One at a time: the sums have no other writer meanwhile.
    fn take(&self, slot: &Slot) {
        let has_used_rings = slot.has_used_rings();
        if slot.is_handed_over() {
            count(&self.handed_over, 1);
        } else if has_used_rings {
            count(&self.smc, 1);
        } else if slot.is_counted_here() {
            count(self.place_of(slot.reason_code()), 1);
        }
        // A message of a ring is counted in two steps, which a handler may interrupt.
        let messages = |n: &AtomicU64| match has_used_rings {
            true => u64::MAX,
            false => n.load(Ordering::Relaxed),
        };
        self.sent.take(&slot.sent, messages(&slot.counters.messages_sent));
        self.received.take(&slot.received, messages(&slot.counters.messages_received));
        for (sum, counter) in self.counters.all().into_iter().zip(slot.counters.all()) {
            // Most are 0 on a connection that never moved.
            let n = counter.load(Ordering::Relaxed);
            if n > 0 {
                count(sum, n);
                counter.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Takes untracked connections that have ended, on TCP for the reason of this code. One at a
    /// time, as [`Totals::take`].
    pub fn take_untracked(&self, batch: &Batch, reason: u8) {
        count(self.place_of(reason), u64::from(batch.connections));
        add(&self.counters, [&self.sent, &self.received], batch.traffic);
    }

    fn place_of(&self, reason: u8) -> &AtomicU64 {
        &self.tcp[usize::from(reason)]
    }
}

/// Adds what an untracked connection has carried.
fn add(counters: &Counters, [sent, received]: [&Sizes; 2], traffic: Traffic) {
    let Counters { messages_sent, bytes_sent, messages_received, bytes_received, .. } = counters;
    let places = [(messages_sent, bytes_sent, sent), (messages_received, bytes_received, received)];
    for ((messages, bytes, sizes), carried) in
        places.into_iter().zip([traffic.sent, traffic.received])
    {
        count(messages, carried.messages);
        count(bytes, carried.bytes);
        carried.each_class(|class, n| count(&sizes.0[class], n));
    }
}

/// Mapped state: ours, that of a process which has given us a connection, or a
/// [mirrored](crate::mirror) one.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct State(Mapping);

/// Creates the state of this process; returns it and its descriptor, which stays
/// open for `sidestep ss`.
///
/// # Errors
/// As [`map::create`].
pub fn create(pid: u32, instance: [u64; 2]) -> Result<(State, i32)> {
    let Created { mapping, fd } = map::create(STATE_NAME, STATE_LEN)?;
    let state = State(mapping);
    let header = state.header();
    header.pid.store(pid, Ordering::Relaxed);
    header.instance[0].store(instance[0], Ordering::Relaxed);
    header.instance[1].store(instance[1], Ordering::Relaxed);
    header.stamp.put(Kind::State);
    Ok((state, fd))
}

/// Maps the state behind `fd`, to go on with a connection that lies in it. Who only looks reads it
/// by a [`Mirror`](crate::mirror::Mirror).
///
/// # Errors
/// As [`map::adopt_kind`].
pub fn adopt(fd: i32) -> Result<State> {
    Ok(State(map::adopt_kind(fd, Kind::State, STATE_LEN, true)?))
}

/// The state of another process, mapped while an operator's word is written into it.
#[derive(Debug)]
pub struct Visit(State);

/// Maps the state behind `fd` to write an operator's word into it.
///
/// # Errors
/// As [`map::adopt_kind`].
pub fn visit(fd: i32) -> Result<Visit> {
    adopt(fd).map(Visit)
}

impl Visit {
    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        self.0.header()
    }

    /// A slot.
    ///
    /// # Panics
    /// There are no more than [`SLOTS`].
    #[must_use]
    pub fn slot(&self, index: usize) -> &Slot {
        self.0.slot(index)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        // SAFETY: what `header` and `slot` lend lives no longer than the visit, which alone has
        // this mapping.
        unsafe { self.0.unmap() }
    }
}

impl State {
    /// The state that lies in a mapping.
    ///
    /// # Safety
    /// The mapping has [`STATE_LEN`] bytes, and nothing of the state is used when it is unmapped.
    pub(crate) unsafe fn at(mapping: &Mapping) -> &Self {
        // SAFETY: a transparent wrapper.
        unsafe { &*core::ptr::from_ref(mapping).cast() }
    }

    pub(crate) fn is_of_this_version(&self) -> bool {
        self.header().stamp.check(Kind::State).is_ok()
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &'static Header {
        self.0.get(0)
    }

    /// Whether something lies in it.
    #[must_use]
    pub fn contains(&self, at: *const u8) -> bool {
        self.0.contains(at)
    }

    /// What was decided in the last hour.
    #[must_use]
    pub fn history(&self) -> &'static History {
        self.0.get(HISTORY_AT)
    }

    /// What was counted by server port.
    #[must_use]
    pub fn services(&self) -> &'static Services {
        self.0.get(SERVICES_AT)
    }

    /// A slot.
    #[must_use]
    pub fn slot(&self, index: usize) -> &'static Slot {
        assert!(index < SLOTS);
        self.0.get(SLOTS_AT + index * size_of::<Slot>())
    }

    /// The slots that were ever used, from the first one on. A state that claims more than there
    /// are has no more.
    pub fn slots(&self) -> impl Iterator<Item = &'static Slot> {
        // Acquire: pairs with the Release of the process that used a slot for the first time.
        let used = self.header().slots_used.load(Ordering::Acquire) as usize;
        (0..used.min(SLOTS)).map(|index| self.slot(index))
    }

    /// The places of untracked connections that were ever used, with their descriptors.
    pub fn untracked_places(&self) -> impl Iterator<Item = (i32, &'static Untracked)> {
        // Relaxed: a place is believed only as far as it says of itself.
        let used = self.header().untracked_used.load(Ordering::Relaxed);
        (0..used.min(UNTRACKED_MAX as u32) as i32).filter_map(|fd| Some((fd, self.untracked(fd)?)))
    }

    /// Frees a slot: what it has counted goes to these of the totals. A
    /// [`Mirror`](crate::mirror::Mirror) shows it here or there.
    ///
    /// Called once for each use of a slot, by the process that made the state, which alone
    /// knows when its children have let go, too; and one call at a time for each of the totals.
    pub fn free_slot(&self, index: usize, list: usize) {
        let slot = self.slot(index);
        self.change(list, |totals| {
            if slot.tally.is_established() {
                self.services().add(&slot.service(), &slot.what_it_had());
            }
            totals.take(slot);
            slot.mode.store(mode::FREE, Ordering::Release);
        });
    }

    /// Changes what counts in two places at once; no mirror shows it in between. One
    /// call at a time for each of the totals.
    pub fn change<T>(&self, list: usize, f: impl FnOnce(&Totals) -> T) -> T {
        let totals = &self.header().ended[list];
        let sequence = totals.begin_change();
        let result = f(totals);
        totals.sequence.store(sequence.wrapping_add(2), Ordering::Release);
        result
    }

    /// The place of a descriptor's untracked connection; large numbers have none.
    #[must_use]
    #[inline]
    pub fn untracked(&self, fd: i32) -> Option<&'static Untracked> {
        let index = usize::try_from(fd).ok().filter(|index| *index < UNTRACKED_MAX)?;
        Some(self.0.get(UNTRACKED_AT + index * size_of::<Untracked>()))
    }

    /// Gives the address range back.
    ///
    /// # Safety
    /// Nothing obtained from it is used again.
    pub unsafe fn unmap(self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.unmap() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
    use std::os::unix::fs::MetadataExt;

    struct Made(State, i32);

    impl Made {
        fn new() -> Self {
            let (state, fd) = create(1, [2, 3]).unwrap();
            Self(state, fd)
        }

        fn use_slot(&self, index: usize, reason: u8, ring_bytes: u64) -> &'static Slot {
            let slot = self.0.slot(index);
            slot.mode.store(mode::LINGERING, Ordering::Relaxed);
            // The detail of a reason does not count.
            slot.reason.store(u64::from(reason) | 7 << 32, Ordering::Relaxed);
            for (n, counter) in (0..).zip(slot.counters.all()) {
                counter.store(n, Ordering::Relaxed);
            }
            slot.counters.ring_bytes_sent.store(ring_bytes, Ordering::Relaxed);
            slot.counters.ring_bytes_received.store(0, Ordering::Relaxed);
            slot
        }
    }

    impl Drop for Made {
        fn drop(&mut self) {
            sys::close(self.1);
            // SAFETY: tests keep nothing of it.
            unsafe { self.0.unmap() }
        }
    }

    fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    #[test]
    fn what_a_slot_has_counted_stays_when_it_is_freed() {
        let made = Made::new();
        let totals = &made.0.header().ended[0];
        let slot = made.use_slot(0, 0, 7);
        made.0.free_slot(0, 0);
        assert_eq!(slot.mode.load(Ordering::Relaxed), mode::FREE);
        made.use_slot(5, 0, 8);
        made.0.free_slot(5, 0);
        assert_eq!((get(&totals.smc), get(&totals.tcp[0])), (2, 0));
        let twice: [u64; 10] = core::array::from_fn(|n| 2 * (n as u64 + 6));
        let sums = totals.counters.all().map(get);
        assert_eq!((&sums[..6], &sums[6..]), (&[0, 2, 4, 6, 15, 0][..], &twice[..]));
    }

    #[test]
    fn a_connection_without_ring_bytes_is_tcp_for_its_reason() {
        let made = Made::new();
        let totals = &made.0.header().ended[0];
        for reason in [3, 3, 0, 31, 48, 255] {
            made.use_slot(0, reason, 0);
            made.0.free_slot(0, 0);
        }
        totals.count_tcp(12);
        assert_eq!(get(&totals.smc), 0);
        let counted = totals.tcp.each_ref().map(get);
        let mut expected = [0; CODES];
        (expected[0], expected[3], expected[12], expected[31]) = (1, 2, 1, 1);
        // Codes of another version are counted as what they are.
        (expected[48], expected[255]) = (1, 1);
        assert_eq!(counted, expected);
    }

    /// How often the state is mapped in this process.
    fn mappings(made: &Made) -> usize {
        let inode = std::fs::metadata(std::format!("/proc/self/fd/{}", made.1)).unwrap().ino();
        let inode = std::format!("{inode}");
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode)).count()
    }

    #[test]
    fn a_visit_writes_into_the_state_and_leaves_it() {
        let made = Made::new();
        let before = mappings(&made);
        let visit = visit(made.1).unwrap();
        assert!(visit.header().holds.add(Some(80)));
        visit.slot(3).held.store(1, Ordering::Relaxed);
        assert_eq!(mappings(&made), before + 1);
        drop(visit);
        assert!(made.0.header().holds.has(80) && !made.0.header().holds.has(81));
        assert_eq!(made.0.slot(3).held.load(Ordering::Relaxed), 1);
        assert_eq!(mappings(&made), before);
    }

    #[test]
    fn a_state_has_no_more_than_there_is_room_for() {
        let made = Made::new();
        let header = made.0.header();
        assert_eq!((made.0.slots().count(), made.0.untracked_places().count()), (0, 0));
        header.slots_used.store(3, Ordering::Relaxed);
        header.untracked_used.store(4, Ordering::Relaxed);
        assert!(core::ptr::eq(made.0.slots().nth(2).unwrap(), made.0.slot(2)));
        assert_eq!((made.0.slots().count(), made.0.untracked_places().count()), (3, 4));
        header.slots_used.store(u32::MAX, Ordering::Relaxed);
        header.untracked_used.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(
            (made.0.slots().count(), made.0.untracked_places().count()),
            (SLOTS, UNTRACKED_MAX)
        );
    }

    #[test]
    fn a_connection_to_another_host_is_one_whatever_the_way_to_the_gateway() {
        let made = Made::new();
        let totals = &made.0.header().ended[0];
        for (ring_bytes, is_elsewhere) in [(7, 0), (0, 0), (0, 1)] {
            let slot = made.use_slot(0, 0, ring_bytes);
            slot.session.store(40_000, Ordering::Relaxed);
            slot.is_elsewhere.store(is_elsewhere, Ordering::Relaxed);
            made.0.free_slot(0, 0);
            slot.session.store(0, Ordering::Relaxed);
            slot.is_elsewhere.store(0, Ordering::Relaxed);
        }
        assert_eq!((get(&totals.handed_over), get(&totals.smc)), (2, 0));
        assert_eq!(totals.tcp.iter().map(get).sum::<u64>(), 0);
    }

    #[test]
    fn a_connection_that_a_child_counts_has_counters_only() {
        let made = Made::new();
        let totals = &made.0.header().ended[0];
        made.use_slot(0, 0, 0).is_elsewhere.store(1, Ordering::Relaxed);
        made.0.free_slot(0, 0);
        assert_eq!((get(&totals.smc), totals.tcp.iter().map(get).sum()), (0, 0u64));
        assert_eq!(get(&totals.counters.wakeups), 15);
    }
}
