//! The way of a message from a program to an adapter of hardware, as the two processes on it take it: what the library
//! does in the program, what the gateway does, and the model of an adapter that `rdma` is tested with. Copies are
//! counted, and the kernel ends the process at any system call.
//!
//! ```text
//!   send ──copy──> ring ── lent ── WRITE and CDC, one call of the driver
//! ```

#[path = "../../engine/examples/verbs/hosts.rs"]
#[expect(dead_code, reason = "the tests of `engine` let hosts converse")]
mod hosts;
#[path = "../../rdma/tests/verbs/model.rs"]
#[expect(dead_code, reason = "the tests of `rdma` ask more of it")]
mod model;
#[path = "../../socket/tests/support/pair.rs"]
#[expect(dead_code, reason = "the tests of `socket` ask more of it")]
mod pair;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hosts::{CLIENT, ID, Place};
use pair::{MESSAGE, Pair, without_system_calls};
use sidestep_engine::InPlace;
use sidestep_rdma::memory::Shared;
use sidestep_rdma::verbs::{self, Adapter, By, Kind};
use sidestep_socket::program::lending;
use sidestep_wire::{AlertToken, Mtu, RoceGid};

/// Copies of at least half a message.
static COPIES: AtomicUsize = AtomicUsize::new(0);

/// The C library's, by which Rust copies bytes: in this executable, this is it.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    // SAFETY: what `memcpy` may do, `memmove` may.
    unsafe { memmove(to, from, len) }
}

/// The same for bytes that may overlap.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    if len >= MESSAGE.len() / 2 {
        COPIES.fetch_add(1, Ordering::Relaxed);
    }
    let (into, out_of) = (to.cast::<u8>(), from.cast::<u8>());
    // Forwards, unless that would write over what is still to be copied.
    let is_forwards = to.addr().wrapping_sub(from.addr()) >= len;
    for step in 0..len {
        let at = if is_forwards { step } else { len - 1 - step };
        // SAFETY: the caller's word. Volatile: a loop that the compiler knows would become a call of this function.
        unsafe { into.add(at).write_volatile(out_of.add(at).read_volatile()) };
    }
    to
}

/// An adapter at one of the model's addresses: hosts do not have the same.
fn place(last: u8) -> Place {
    let verbs = model::verbs();
    let ports = verbs::ports(&verbs).unwrap();
    let (port, gid) =
        verbs::choose(&ports, By::Address([10, 9, 0, last].into()), Kind::RoceV2).unwrap();
    let device = Adapter::open(&verbs, port, gid).unwrap();
    let gid = RoceGid(model::world(|world| world.gids[usize::from(last) - 1].gid));
    Place { device, gid, mtu: Mtu::from_low_bits(3) }
}

/// A program's connection to its gateway, and that to the other host.
struct Way {
    h: Pair,
    hosts: hosts::Pair<'static>,
    token: AlertToken,
    ring: Arc<Shared>,
    /// Bytes of the ring that may not have arrived, and where the first of them is.
    under_way: usize,
    begin: u64,
}

impl Way {
    /// One that has carried messages before.
    fn warm() -> Self {
        let step = Box::leak(Box::new(|| _ = model::step()));
        let mut hosts = hosts::Pair::new([place(2), place(3)], step);
        let [_, token] = hosts.connect();
        let h = Pair::new();
        assert!(h.send(b"m", 0).is_ok());
        let lent = lending::look(h.reader, 0).unwrap();
        // SAFETY: the ring is mapped as long as the pair is there, and only read.
        let ring = Arc::new(unsafe { Shared::new(lent.memory.0.cast_mut(), lent.memory.1) });
        lending::pass(h.reader, lent.position, 1);
        let begin = lent.position + 1;
        let mut way = Self { h, hosts, token, ring, under_way: 0, begin };
        for _ in 0..MESSAGES {
            assert!(way.pass_message());
            way.hosts.turn();
        }
        way
    }

    /// What the program does, and what the gateway does in a turn.
    fn pass_message(&mut self) -> bool {
        let is_sent = self.h.send(&MESSAGE, 0) == Ok(MESSAGE.len());
        let (now, host) = (self.hosts.now(), &mut self.hosts.hosts[CLIENT]);
        let kept = host.kept(self.token).map_or(self.under_way, |kept| kept as usize);
        lending::pass(self.h.reader, self.begin, self.under_way - kept);
        self.begin += (self.under_way - kept) as u64;
        let Ok(lent) = lending::look(self.h.reader, kept) else { return false };
        let (position, len) = (lent.position, lent.len());
        let bytes = InPlace { ring: &self.ring, position, len, is_urgent: lent.is_urgent };
        let is_under_way = host.send_in_place(self.token, &bytes, now) == Ok(true);
        self.under_way = kept + len;
        host.transmit(now);
        host.device(ID).is_some_and(|device| {
            device.transmit(now);
            is_sent && is_under_way && len == MESSAGE.len()
        })
    }
}

/// As many as no buffer on the way is full of, nor at its end, after as many before.
const MESSAGES: usize = 3;

#[test]
fn a_message_is_copied_once_and_the_kernel_is_not_called() {
    let count = |way: &mut Way| {
        let before = (COPIES.load(Ordering::Relaxed), model::world(|world| world.posts));
        let are_passed = (0..MESSAGES).all(|_| way.pass_message());
        let copies = COPIES.load(Ordering::Relaxed) - before.0;
        let (calls, works) = model::world(|world| world.posts);
        let (calls, works) = (calls - before.1.0, works - before.1.1);
        // One call for the WRITE and the CDC message.
        let each = MESSAGES as u64;
        are_passed && copies == MESSAGES && (calls, works) == (each, 2 * each)
    };
    let name = "a_message_is_copied_once_and_the_kernel_is_not_called";
    without_system_calls(name, Way::warm, count);
}
