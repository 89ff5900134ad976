//! What a message costs once its buffer is registered: one call of the driver for the WRITE and the
//! SEND, no copy, no allocation, no system call.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use sidestep_rdma::device::Device;

use crate::model;
use crate::pair::Pair;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts for each thread.
struct Counting;

// SAFETY: everything is the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's word.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's word.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes of a message, and of its CDC.
const LEN: u32 = 2048;
const CDC: [u8; 44] = [7; 44];

/// What a child says by its exit status.
const ALL_WELL: i32 = 10;
const HAS_ALLOCATED: i32 = 11;
const HAS_CALLED_TOO_OFTEN: i32 = 12;
const NO_FILTER: i32 = 13;

#[test]
fn the_way_of_a_message() {
    let mut pair = Pair::new();
    // Warm: the buffer is registered when the first WRITE comes from it.
    pair.post((0, LEN), &CDC);
    pair.run();
    let how = in_a_child_without_system_calls(|| {
        let before = (ALLOCATIONS.get(), model::world(|world| world.posts));
        const ROUNDS: u64 = 100;
        for round in 0..ROUNDS {
            pair.post((round as usize * 100, LEN), &CDC);
        }
        let (calls, works) = model::world(|world| world.posts);
        if ALLOCATIONS.get() != before.0 {
            return HAS_ALLOCATED;
        }
        let (calls_before, works_before) = before.1;
        match (calls - calls_before, works - works_before) == (ROUNDS, 2 * ROUNDS) {
            true => ALL_WELL,
            false => HAS_CALLED_TOO_OFTEN,
        }
    });
    match how {
        Ended::By(status) if status == NO_FILTER => println!("skipped: the kernel has no seccomp"),
        how => assert_eq!(how, Ended::By(ALL_WELL)),
    }
}

/// The guard of the test above does bite.
#[test]
fn a_system_call_would_be_seen() {
    let how = in_a_child_without_system_calls(|| {
        // SAFETY: no arguments.
        unsafe { libc::getppid() };
        ALL_WELL
    });
    if how == Ended::By(NO_FILTER) {
        println!("skipped: the kernel has no seccomp");
    } else {
        assert_eq!(how, Ended::Killed);
    }
}

#[test]
fn bytes_are_taken_from_where_they_are_by_one_key() {
    let mut pair = Pair::new();
    pair.post((0, LEN), &CDC);
    pair.run();
    let first = model::world(|world| {
        // Only the same registration is granted from now on.
        world.keys_left = 0;
        world.pieces.pop_front().unwrap()
    });
    for at in [1, 100, 5000] {
        pair.post((at, LEN), &CDC);
        let piece = model::world(|world| world.pieces.pop_front().unwrap());
        let addr = first.addr + at as u64;
        assert_eq!((piece.addr, piece.length, piece.lkey), (addr, LEN, first.lkey));
    }
}

#[test]
fn receiving_allocates_nothing_once_warm() {
    let mut pair = Pair::new();
    let mut round = || {
        pair.post((0, LEN), &CDC);
        pair.run();
    };
    (0..20).for_each(|_| round());
    let step = {
        // What the model itself takes for a step.
        let before = ALLOCATIONS.get();
        (0..4).for_each(|_| {
            model::step();
        });
        ALLOCATIONS.get() - before
    };
    let before = ALLOCATIONS.get();
    (0..200).for_each(|_| round());
    assert_eq!(ALLOCATIONS.get() - before, 200 * step);
}

/// While messages come, the kernel is asked for nothing but now and then.
#[test]
fn a_busy_adapter_is_looked_at_in_memory() {
    const TURNS: u64 = 160;
    let mut pair = Pair::new();
    let turn = |pair: &mut Pair| {
        pair.post((0, LEN), &CDC);
        model::step();
        for adapter in &mut pair.adapters {
            assert!(adapter.turn(Duration::ZERO), "there may be more");
            while adapter.poll_event().is_some() {}
        }
    };
    // Asleep until now.
    turn(&mut pair);
    let before = model::world(|world| world.questions);
    (0..TURNS).for_each(|_| turn(&mut pair));
    let questions = model::world(|world| world.questions) - before;
    // Two adapters, each with two questions in sixteen turns.
    assert!((1..=2 * 2 * TURNS / 16).contains(&questions), "{questions}");
    // It is found empty, perhaps in a turn that asks, and then only the kernel knows.
    pair.settle();
    let before = model::world(|world| world.questions);
    pair.settle();
    assert_eq!(model::world(|world| world.questions) - before, 2 * 2);
}

#[derive(Debug, PartialEq)]
enum Ended {
    By(i32),
    Killed,
}

/// Does something in a copy of this process that the kernel kills at its first system call but the
/// one that ends it.
fn in_a_child_without_system_calls(action: impl FnOnce() -> i32) -> Ended {
    // SAFETY: the child runs the action only, which takes no locks: it neither allocates nor prints.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let status = if forbid_system_calls() { action() } else { NO_FILTER };
        // SAFETY: an integer; nothing of the parent's is run.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
    let mut status = 0;
    // SAFETY: the child of just now; the place is written during the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    match libc::WIFEXITED(status) {
        true => Ended::By(libc::WEXITSTATUS(status)),
        false => Ended::Killed,
    }
}

/// False: the kernel cannot.
fn forbid_system_calls() -> bool {
    let step = |code: u32, jump_if: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: jump_if,
        jf: 0,
        k,
    };
    // seccomp_data begins with the number of the call.
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_exit_group as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: integers; the program is read during the second call.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    }
}
