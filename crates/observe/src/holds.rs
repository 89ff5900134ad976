//! `sidestep demote` and `promote`: an operator's word to programs that run.
//!
//! What is held is written into the state of each program ([`state::Holds`]), the one thing
//! that is ever written there from outside. New connections read it when they get their
//! slot; those that exist have a word of their own in it, and a hint, which their next
//! call follows (`socket::switch`). The operator does not wait for that: a connection without
//! calls carries no bytes either way.

use crate::host::allowance::Allowances;
use crate::host::process::{self, is_kernel_thread, is_refusal, processes};
use crate::host::state_file::{self, Access, StateFile, StateId};
use core::sync::atomic::{AtomicU64, Ordering};
use sidestep_device::mirror::Mirror;
use sidestep_device::state::{self, Holds, Slot, flag, mode};
use sidestep_device::sys;
use sidestep_proto::fallback::{OperatorSaid, ProgramDid, Reason};
use std::collections::{BTreeSet, HashSet};
use std::io;
use std::os::fd::AsRawFd;

/// Whose connections are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// All of one process.
    Process(u32),
    /// Those of a server's port, in all processes.
    Port(u16),
    /// All.
    All,
}

/// What the operator's word has reached.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Processes.
    pub pids: BTreeSet<u32>,
    /// Connections whose way it changes, or will when they would have moved.
    pub connections: usize,
    /// Processes to which we may not say it.
    pub refused: Vec<u32>,
    /// Processes that hold as many ports as they can.
    pub full: Vec<u32>,
    /// Processes in which everything is held, so that one port cannot be let go.
    pub all_held: Vec<u32>,
    /// Users of whom there was more than it may cost to tell, so that not all of it was reached.
    pub curtailed: Vec<u32>,
}

/// Keeps connections on TCP, and takes those back that have moved.
///
/// # Errors
/// `/proc` cannot be listed.
pub fn hold(whose: Whose) -> io::Result<Reached> {
    tell(whose, |holds, port| if holds.add(port) { Told::Yes } else { Told::Full })
}

/// Lets them move again.
///
/// # Errors
/// `/proc` cannot be listed.
pub fn release(whose: Whose) -> io::Result<Reached> {
    tell(whose, |holds, port| {
        if port.is_some() && holds.iter().any(|held| held.is_none()) {
            return Told::AllHeld;
        }
        holds.remove(port);
        Told::Yes
    })
}

enum Told {
    Yes,
    Full,
    AllHeld,
}

fn tell(whose: Whose, say: impl Fn(&Holds, Option<u16>) -> Told) -> io::Result<Reached> {
    let (pids, port) = match whose {
        Whose::Process(pid) => (vec![pid], None),
        Whose::Port(port) => (processes()?, Some(port)),
        Whose::All => (processes()?, None),
    };
    let mut teller = Teller {
        known: HashSet::new(),
        reached: Reached::default(),
        allowances: Allowances::new(sys::effective_uid()),
        mirror: state_file::mirror()?,
    };
    for pid in pids {
        match teller.tell(pid, port, &say) {
            Err(error) if is_refusal(&error) && !is_kernel_thread(pid) => {
                teller.reached.refused.push(pid);
            }
            // Any other error: it has ended.
            Ok(()) | Err(_) => {}
        }
    }
    Ok(Reached { curtailed: teller.allowances.exceeded(), ..teller.reached })
}

struct Teller {
    known: HashSet<StateId>,
    reached: Reached,
    allowances: Allowances,
    mirror: Mirror,
}

impl Teller {
    fn tell(
        &mut self,
        pid: u32,
        port: Option<u16>,
        say: &impl Fn(&Holds, Option<u16>) -> Told,
    ) -> io::Result<()> {
        let allowance = self.allowances.of(process::user(pid)?);
        for path in state_file::paths_of(pid, allowance)? {
            let Some(StateFile { id, file, user }) = StateFile::open(&path, Access::Write)? else {
                continue;
            };
            if self.known.contains(&id) {
                self.reached.pids.insert(pid);
                continue;
            }
            // Read first, which makes no page, so that it is known for a state.
            let allowance = self.allowances.of(user);
            if state_file::read(&file, &mut self.mirror, allowance).is_err() {
                continue;
            }
            let Ok(state) = state::visit(file.as_raw_fd()) else { continue };
            self.known.insert(id);
            self.reached.pids.insert(pid);
            match say(&state.header().holds, port) {
                Told::Yes => {}
                Told::Full => self.reached.full.push(pid),
                Told::AllHeld => self.reached.all_held.push(pid),
            }
            // A connection that takes a slot from now on reads what is held by itself. Of the others
            // only slots are touched that were there a moment ago: a program that takes their pages
            // away meanwhile makes us pay for no more than what was read.
            if let Ok(seen) = state_file::read(&file, &mut self.mirror, allowance) {
                let is_used = |slot: &Slot| slot.mode.load(Ordering::Relaxed) != mode::FREE;
                let used = seen.slots().enumerate().filter(|(_, slot)| is_used(slot));
                self.reached.connections += used
                    .filter(|(index, _)| pass_on(&state.header().holds, state.slot(*index)))
                    .count();
            }
        }
        Ok(())
    }
}

/// Writes what is held now into a slot, for the connection that has it in the end. True:
/// that is news to it.
fn pass_on(holds: &Holds, slot: &Slot) -> bool {
    let mut is_news = false;
    for _ in 0..READS_MAX {
        // Acquire: what follows is of this generation or a later one.
        let generation = slot.generation.load(Ordering::Acquire);
        is_news = slot.mode.load(Ordering::Acquire) != mode::FREE && pass_on_once(holds, slot);
        if slot.generation.load(Ordering::SeqCst) == generation {
            break;
        }
    }
    is_news
}

/// Connections in a row that may have a slot while it is written to: a later one reads what is held
/// by itself, and no program keeps an operator waiting.
const READS_MAX: usize = 64;

fn pass_on_once(holds: &Holds, slot: &Slot) -> bool {
    let (_, port) = slot.server_address();
    let is_held = holds.has(port);
    if slot.held.swap(u32::from(is_held), Ordering::AcqRel) == u32::from(is_held) {
        return false;
    }
    explain(&slot.reason, is_held);
    if is_held && slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0 {
        slot.flags.fetch_or(flag::TURN_WANTED, Ordering::SeqCst);
    }
    // Any other value than before is a hint. Release: a call that follows it sees what is held.
    slot.closes_seen.fetch_xor(1 << 31, Ordering::AcqRel);
    true
}

/// What is on TCP is there because an operator keeps it there, or has just not moved yet. What
/// goes through its ring has no reason, and gets one when it has left.
fn explain(reason: &AtomicU64, is_held: bool) {
    let (free, held) =
        (Reason::from(ProgramDid::TooShort).word(), Reason::from(OperatorSaid::Demoted).word());
    let (from, to) = if is_held { (free, held) } else { (held, free) };
    let _ = reason.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;
    use sidestep_device::state::State;
    use std::os::unix::fs::MetadataExt;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// A word for this process reaches all its states: one test at a time has any.
    fn alone() -> MutexGuard<'static, ()> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn used(state: &State, index: usize, port: u16) -> &'static Slot {
        let slot = state.slot(index);
        slot.mode.store(mode::TCP, Ordering::Relaxed);
        slot.server_port.store(port.into(), Ordering::Relaxed);
        state.header().slots_used.fetch_max(index as u32 + 1, Ordering::Relaxed);
        slot
    }

    fn is_set(word: &AtomicU32) -> bool {
        word.load(Ordering::Relaxed) != 0
    }

    #[test]
    fn a_word_reaches_the_connections_that_it_is_for_and_new_ones() {
        let _alone = alone();
        let (state, fd) = state::create(sys::pid(), [7, 7]).unwrap();
        let [web, cache] = [(0, 80), (1, 6379)].map(|(index, port)| used(&state, index, port));
        let say = |whose| hold(whose).unwrap();
        let reached = say(Whose::Process(sys::pid()));
        assert_eq!(reached.pids, BTreeSet::from([sys::pid()]));
        assert!(is_set(&web.held) && is_set(&cache.held) && is_set(&web.closes_seen));
        assert!(state.header().holds.has(1));
        let refused = release(Whose::Port(80)).unwrap();
        assert!(refused.all_held.contains(&sys::pid()), "one port of all cannot be let go");
        release(Whose::Process(sys::pid())).unwrap();
        assert!(!is_set(&web.held) && !state.header().holds.has(80));
        say(Whose::Port(6379));
        assert!(is_set(&cache.held) && !is_set(&web.held) && state.header().holds.has(6379));
        sys::close(fd);
    }

    #[test]
    fn a_word_makes_no_page_where_no_connection_is() {
        let _alone = alone();
        let (state, fd) = state::create(sys::pid(), [6, 6]).unwrap();
        state.header().slots_used.store(u32::MAX, Ordering::Relaxed);
        used(&state, 9000, 80);
        // The word itself has a page.
        state.header().holds.remove(None);
        let blocks = || std::fs::metadata(format!("/proc/self/fd/{fd}")).unwrap().blocks();
        let before = blocks();
        hold(Whose::Process(sys::pid())).unwrap();
        assert!(is_set(&state.slot(9000).held));
        assert_eq!(blocks(), before);
        sys::close(fd);
    }

    #[test]
    fn what_is_held_again_before_it_has_moved_says_why_it_is_on_tcp() {
        let _alone = alone();
        let (state, fd) = state::create(sys::pid(), [9, 9]).unwrap();
        let [back, moved] = [(0, 80), (1, 80)].map(|(index, port)| used(&state, index, port));
        for slot in [back, moved] {
            slot.mode.store(mode::SMC_D, Ordering::Relaxed);
        }
        back.reason.store(Reason::from(OperatorSaid::Demoted).word(), Ordering::Relaxed);
        let reasons = || [back, moved].map(|it| Reason::of_word(it.reason.load(Ordering::Relaxed)));
        hold(Whose::Process(sys::pid())).unwrap();
        assert_eq!(reasons(), [Reason::Operator(OperatorSaid::Demoted), Reason::None]);
        release(Whose::Process(sys::pid())).unwrap();
        assert_eq!(reasons(), [Reason::Program(ProgramDid::TooShort), Reason::None]);
        hold(Whose::Process(sys::pid())).unwrap();
        assert_eq!(reasons(), [Reason::Operator(OperatorSaid::Demoted), Reason::None]);
        sys::close(fd);
    }

    #[test]
    fn there_is_room_for_so_many_ports() {
        let (state, fd) = state::create(sys::pid(), [8, 8]).unwrap();
        let holds = &state.header().holds;
        assert!((0..state::HOLDS_MAX as u16).all(|port| holds.add(Some(port))));
        assert!(holds.add(Some(3)), "held already");
        assert!(!holds.add(Some(99)) && !holds.has(99));
        holds.remove(Some(5));
        assert!(holds.add(Some(99)) && !holds.has(5));
        sys::close(fd);
    }
}
