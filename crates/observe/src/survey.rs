//! A look at all processes: which states there are, which processes hold them, what they say.
//!
//! Parent and forked child hold the same state, so a state is read once, and each of its
//! connections belongs to the holder that is [meant](Holders::meant_by).

use crate::holders::Holders;
use crate::host::allowance::{Allowance, Allowances};
use crate::host::process::{self, is_kernel_thread, is_refusal};
use crate::host::state_file::{self, Access, StateFile, StateId};
use crate::program::connection::{Connection, Seen};
use crate::program::{self, Program};
use crate::snapshot::Snapshot;
use core::sync::atomic::Ordering;
use sidestep_device::mirror::{Mirror, NotRead};
use sidestep_device::sys;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

impl Snapshot {
    /// Looks at every process of the host.
    ///
    /// # Errors
    /// `/proc` cannot be listed, or there is no address space. Processes that end meanwhile are no
    /// error.
    pub fn take() -> io::Result<Self> {
        Self::of(&process::processes()?)
    }

    /// Looks at these processes only. A process that does not exist is not among the
    /// unreadable.
    ///
    /// # Errors
    /// There is no address space.
    pub fn of(pids: &[u32]) -> io::Result<Self> {
        Ok(Survey::of(pids)?.end().0)
    }
}

/// The states found so far, and the processes that hold them.
pub(crate) struct Survey {
    states: HashMap<StateId, Found>,
    unreadable: Vec<u32>,
    allowances: Allowances,
    mirror: Mirror,
}

/// Finds the states that a process holds, as far as its user's allowance reaches.
pub(crate) trait PathsOf: FnMut(u32, &mut Allowance) -> io::Result<Vec<PathBuf>> {}

impl<F: FnMut(u32, &mut Allowance) -> io::Result<Vec<PathBuf>>> PathsOf for F {}

/// A state that was found.
pub(crate) struct Found {
    pub(crate) source: StateFile,
    /// Its place in the order of discovery.
    number: usize,
    content: Content,
    holders: Holders,
}

/// What is in a state.
enum Content {
    /// Something that only another version understands.
    Other,
    /// It was not read, or was used already.
    NotRead,
    Read(Box<SeenAll>),
}

/// All that was read of a state.
struct SeenAll {
    /// The process that made it, as it says.
    owner: u32,
    /// Without the processes.
    program: Program,
    /// Each with its place, to sort by.
    connections: Vec<(usize, Seen)>,
}

impl Survey {
    /// Looks at these processes.
    ///
    /// # Errors
    /// There is no address space.
    pub(crate) fn of(pids: &[u32]) -> io::Result<Self> {
        Self::by(pids, state_file::paths_of)
    }

    /// The same, where `paths_of` finds the states that a process holds.
    pub(crate) fn by(pids: &[u32], mut paths_of: impl PathsOf) -> io::Result<Self> {
        let mut survey = Self {
            states: HashMap::new(),
            unreadable: Vec::new(),
            allowances: Allowances::new(sys::effective_uid()),
            mirror: state_file::mirror()?,
        };
        for &pid in pids {
            match survey.visit(pid, &mut paths_of) {
                Err(error) if is_refusal(&error) && !is_kernel_thread(pid) => {
                    survey.unreadable.push(pid);
                }
                // Any other error: it has ended.
                Ok(()) | Err(_) => {}
            }
        }
        Ok(survey)
    }

    /// Adds what one process holds.
    fn visit(&mut self, pid: u32, paths_of: &mut impl PathsOf) -> io::Result<()> {
        let allowance = self.allowances.of(process::user(pid)?);
        for path in paths_of(pid, allowance)? {
            let Some(source) = StateFile::open(&path, Access::Read)? else { continue };
            let number = self.states.len();
            let found = self.states.entry(source.id).or_insert_with(|| {
                let content = read(&source, &mut self.mirror, self.allowances.of(source.user));
                Found { source, number, content, holders: Holders::default() }
            });
            found.holders.add(pid);
        }
        Ok(())
    }

    /// Whether a state was found.
    pub(crate) fn has(&self, state: StateId) -> bool {
        self.states.contains_key(&state)
    }

    /// What is in a state that no process was found to hold any more.
    pub(crate) fn read_again(&mut self, found: &Found) -> Option<Program> {
        let allowance = self.allowances.of(found.source.user);
        match read(&found.source, &mut self.mirror, allowance) {
            Content::Read(seen) => found.program_of(seen.owner, seen.program),
            Content::Other | Content::NotRead => None,
        }
    }

    /// What was seen, and the states, in the order of discovery.
    pub(crate) fn end(self) -> (Snapshot, Vec<Found>) {
        let mut snapshot = Snapshot {
            unreadable: self.unreadable,
            curtailed: self.allowances.exceeded(),
            ..Snapshot::default()
        };
        let mut all: Vec<Found> = self.states.into_values().collect();
        all.sort_by_key(|found| found.number);
        let mut connections = Vec::new();
        for found in &mut all {
            match core::mem::replace(&mut found.content, Content::NotRead) {
                Content::Read(seen) => {
                    let SeenAll { owner, program, connections: seen } = *seen;
                    snapshot.programs.extend(found.program_of(owner, program));
                    connections.extend(found.connections_of(owner, seen));
                }
                Content::Other => snapshot.incompatible.push(found.holders.pids().collect()),
                Content::NotRead => {}
            }
        }
        snapshot.programs.sort_by_key(|program| program.pids[0]);
        connections.sort_by_key(|(state, place, it): &(_, _, Connection)| (it.pid, *state, *place));
        snapshot.connections = connections.into_iter().map(|(_, _, it)| it).collect();
        (snapshot, all)
    }
}

impl Found {
    /// The program whose state this is, with the processes that hold it.
    fn program_of(&self, owner: u32, program: Program) -> Option<Program> {
        let (maker, pids) = self.holders.owner_first(owner)?;
        let (name, user) = (maker.program.clone(), self.source.user);
        Some(Program { pids, program: name, user, ..program })
    }

    /// Its connections, with the state's number and their places in it, to sort by.
    fn connections_of(
        &self,
        owner: u32,
        seen: Vec<(usize, Seen)>,
    ) -> impl Iterator<Item = (usize, usize, Connection)> {
        seen.into_iter().filter_map(move |(place, seen)| {
            let holder = self.holders.meant_by(seen.user_pid, owner)?;
            let (pid, program) = (holder.pid, holder.program.clone());
            let connection = seen.into_connection((self.source.id, place), pid, program);
            Some((self.number, place, connection))
        })
    }
}

fn read(source: &StateFile, mirror: &mut Mirror, allowance: &mut Allowance) -> Content {
    let state = match state_file::read(&source.file, mirror, allowance) {
        Ok(state) => state,
        Err(NotRead::Other) => return Content::Other,
        Err(NotRead::Beyond) => return Content::NotRead,
    };
    let owner = state.header().pid.load(Ordering::Relaxed);
    let connections = program::connections(state);
    let connections = connections.take_while(|_| allowance.takes_connection()).collect();
    let program = Program::read(state, source.id);
    Content::Read(Box::new(SeenAll { owner, program, connections }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{DEAD, Maker, alone, set, set8};
    use crate::program::connection::{Mode, Role};
    use crate::program::counters::Counters;
    use crate::program::fallback::Fallback;
    use crate::program::totals::Totals;
    use crate::watch::Watch;
    use sidestep_device::channel::SLOTS;
    use sidestep_device::map;
    use sidestep_device::state::{self, mode};
    use sidestep_proto::fallback::{Lack, PeerCannot, Reason};
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    fn snapshot() -> Snapshot {
        let _alone = alone();
        Snapshot::take().unwrap()
    }

    /// All connections with this local port.
    fn look(port: u16) -> Vec<Connection> {
        let of_port = |c: &Connection| c.local.is_some_and(|local| local.port() == port);
        snapshot().connections.into_iter().filter(of_port).collect()
    }

    fn only(port: u16) -> Connection {
        let [connection] = look(port).try_into().unwrap();
        connection
    }

    #[test]
    fn a_connection_in_shared_memory_is_seen_with_all_it_has() {
        let program = Maker::new(sys::pid());
        let slot = program.connect(0, (1001, 2001), mode::SMC_D);
        set(&slot.receive_ring_len, 65_536);
        set(&slot.send_ring_len, 32_768);
        set8(&slot.is_server, 1);
        let counters = [
            &slot.counters.bytes_sent,
            &slot.counters.bytes_received,
            &slot.counters.messages_sent,
            &slot.counters.messages_received,
            &slot.counters.ring_bytes_sent,
            &slot.counters.ring_bytes_received,
            &slot.counters.waits,
            &slot.counters.waits_beside_strangers,
            &slot.counters.spins,
            &slot.counters.spins_in_vain,
            &slot.counters.spin_ns,
            &slot.counters.yields,
            &slot.counters.strangers,
            &slot.counters.strangers_ns,
            &slot.counters.parks,
            &slot.counters.wakeups,
        ];
        for (counter, n) in counters.into_iter().zip(1..) {
            sidestep_device::counts::count(counter, n);
        }
        let comm = fs::read_to_string("/proc/self/comm").unwrap();
        let expected = Connection {
            state: only(1001).state,
            pid: sys::pid(),
            program: comm.trim_end().to_owned(),
            local: Some("10.0.0.0:1001".parse().unwrap()),
            peer: Some("10.0.0.99:2001".parse().unwrap()),
            role: Role::Server,
            mode: Mode::SmcD,
            rmbe_local: 65_536,
            rmbe_peer: 32_768,
            counters: Counters {
                bytes_sent: 1,
                bytes_received: 2,
                messages_sent: 3,
                messages_received: 4,
                ring_bytes_sent: 5,
                ring_bytes_received: 6,
                waits: 7,
                waits_beside_strangers: 8,
                spins: 9,
                spins_in_vain: 10,
                spin_ns: 11,
                yields: 12,
                strangers: 13,
                strangers_ns: 14,
                parks: 15,
                wakeups: 16,
            },
            fallback: None,
            descriptor: None,
            session: None,
            place: only(1001).place,
        };
        assert_eq!(only(1001), expected);
    }

    #[test]
    fn free_and_unused_slots_are_no_connections() {
        let program = Maker::new(sys::pid());
        program.connect(0, (1005, 2005), mode::FREE);
        program.connect(1, (1005, 2005), 77);
        program.connect(2, (1005, 2005), mode::TCP);
        set(&program.state.slot(3).mode, mode::TCP);
        assert_eq!(only(1005).local, Some("10.0.0.2:1005".parse().unwrap()));
    }

    #[test]
    fn absurd_words_do_no_harm() {
        let program = Maker::new(DEAD);
        let slot = program.connect(0, (1006, 2006), mode::TCP);
        set(&program.state.header().slots_used, u32::MAX);
        set(&slot.user_pid, u32::MAX);
        set(&slot.generation, u32::MAX);
        slot.reason.store(u64::MAX, Ordering::Relaxed);
        set8(&slot.is_server, 255);
        set(&program.state.slot(SLOTS - 1).mode, u32::MAX);
        slot.counters.bytes_sent.store(u64::MAX, Ordering::Relaxed);
        let connection = only(1006);
        assert_eq!(connection.pid, sys::pid());
        assert_eq!(connection.counters.bytes_sent, u64::MAX);
        assert_eq!(connection.role, Role::Server);
        // Another version may have written it: that is said, and nothing guessed.
        assert_eq!(connection.fallback, Some(fallback(Reason::Unknown(255))));
    }

    #[test]
    fn a_process_number_counts_only_if_that_process_holds_the_state() {
        let program = Maker::new(sys::pid());
        let slot = program.connect(0, (1007, 2007), mode::TCP);
        let pid_for = |user| {
            set(&slot.user_pid, user);
            only(1007).pid
        };
        assert_eq!(pid_for(0), sys::pid());
        assert_eq!(pid_for(1), sys::pid(), "a process, but a stranger");
        assert_eq!(pid_for(DEAD), sys::pid());
    }

    #[test]
    fn a_state_shared_with_a_child_is_listed_once() {
        let program = Maker::new(sys::pid());
        let parents = program.connect(0, (1008, 2008), mode::TCP);
        let childs = program.connect(1, (1008, 2008), mode::TCP);
        let child = program.child();
        set(&childs.user_pid, child.0.id());
        let connections = look(1008);
        assert_eq!(connections.len(), 2);
        let of = |pid| connections.iter().find(|connection| connection.pid == pid).unwrap();
        assert_eq!(of(sys::pid()).local.unwrap().ip().to_string(), "10.0.0.0");
        assert_eq!(of(child.0.id()).local.unwrap().ip().to_string(), "10.0.0.1");

        // The child is gone: what it used belongs to its parent now.
        drop(child);
        set(&parents.user_pid, DEAD);
        assert!(look(1008).iter().all(|connection| connection.pid == sys::pid()));
    }

    #[test]
    fn a_state_outlives_its_maker_in_a_child() {
        let program = Maker::new(DEAD);
        let slot = program.connect(0, (1009, 2009), mode::TCP);
        set(&slot.user_pid, DEAD);
        let child = program.child();
        drop(program);
        let connection = only(1009);
        assert_eq!(connection.pid, child.0.id());
        assert_eq!(connection.program, "sleep");
    }

    /// The programs among those of these processes that have yielded so many times: how
    /// a test knows its own.
    fn programs(pids: &[u32], yields: u64) -> Vec<Program> {
        let _alone = alone();
        let mut programs = Snapshot::of(pids).unwrap().programs;
        programs.retain(|program| program.totals.counters.yields == yields);
        programs
    }

    fn fallback(reason: Reason) -> Fallback {
        Fallback { reason }
    }

    #[test]
    fn totals_are_what_has_ended_and_what_is_there() {
        const YIELDS: u64 = 1011 << 32;
        let program = Maker::new(sys::pid());
        let ended = &program.state.header().ended[3];
        ended.counters.yields.store(YIELDS, Ordering::Relaxed);
        let connect = |index, mode, ring_bytes, reason: Reason| {
            let slot = program.connect(index, (1011, 2011), mode);
            slot.reason.store(reason.word(), Ordering::Relaxed);
            for counter in slot.counters.all() {
                counter.store(10, Ordering::Relaxed);
            }
            slot.counters.ring_bytes_sent.store(0, Ordering::Relaxed);
            slot.counters.ring_bytes_received.store(ring_bytes, Ordering::Relaxed);
        };
        // Slot 0 has four connections one after the other.
        for (ring_bytes, reason) in [
            (5, Reason::None),
            (0, Reason::Lack(Lack::NoMemory)),
            (0, Reason::Peer(PeerCannot::PeerNotSmc)),
            (0, Reason::None),
        ] {
            connect(0, mode::LINGERING, ring_bytes, reason);
            program.state.free_slot(0, 7);
        }
        connect(1, mode::SMC_D, 2, Reason::None);
        connect(2, mode::SMC_D, 0, Reason::None);
        connect(3, mode::TCP, 0, Reason::Peer(PeerCannot::PeerNotSmc));
        connect(4, mode::LINGERING, 1, Reason::None);
        connect(5, mode::LINGERING, 0, Reason::None);
        set8(&program.state.slot(5).is_elsewhere, 1);
        ended.count_tcp(Reason::Lack(Lack::NoSlot).code());
        ended.count_tcp(200);

        let [program] = programs(&[sys::pid()], YIELDS + 90).try_into().unwrap();
        let Totals { smc, fallbacks, undecided, counters, .. } = program.totals;
        assert_eq!((smc, undecided), (3, 2));
        let expected = [
            (Reason::Peer(PeerCannot::PeerNotSmc), 2),
            (Reason::Lack(Lack::NoMemory), 1),
            (Reason::Lack(Lack::NoSlot), 1),
            (Reason::Unknown(200), 1),
        ];
        assert_eq!(fallbacks, expected.map(|(reason, n)| (fallback(reason), n)));
        assert_eq!((counters.bytes_sent, counters.wakeups), (90, 90));
        assert_eq!((counters.ring_bytes_sent, counters.ring_bytes_received), (0, 8));
    }

    #[test]
    fn a_program_is_everybody_who_holds_its_state() {
        const YIELDS: u64 = 1012 << 32;
        let maker = Maker::new(sys::pid());
        maker.state.header().ended[0].counters.yields.store(YIELDS, Ordering::Relaxed);
        let child = maker.child();
        let [both] = programs(&[child.0.id(), sys::pid()], YIELDS).try_into().unwrap();
        assert_eq!(both.pids, [sys::pid(), child.0.id()], "the maker first");
        let [childs] = programs(&[child.0.id()], YIELDS).try_into().unwrap();
        assert_eq!((childs.pids, childs.program), (vec![child.0.id()], "sleep".to_owned()));
        assert!(Snapshot::of(&[DEAD]).unwrap().programs.is_empty());
    }

    #[test]
    fn another_version_is_counted_and_not_read() {
        let other = map::create(state::STATE_NAME, state::STATE_LEN).unwrap();
        let short = map::create(state::STATE_NAME, 4096).unwrap();
        let snapshot = snapshot();
        assert!(snapshot.incompatible.len() >= 2 && snapshot.is_incompatible(sys::pid()));
        assert!(!snapshot.is_incompatible(DEAD));
        sys::close(other.fd);
        sys::close(short.fd);
    }

    /// KiB that exist of a state.
    fn kib(maker: &Maker) -> u64 {
        fs::metadata(format!("/proc/self/fd/{}", maker.fd)).unwrap().blocks() / 2
    }

    #[test]
    fn looking_makes_no_page_of_what_a_program_claims_to_use() {
        let maker = Maker::new(sys::pid());
        let header = maker.state.header();
        header.slots_used.store(u32::MAX, Ordering::Relaxed);
        header.untracked_used.store(u32::MAX, Ordering::Relaxed);
        maker.connect(SLOTS - 1, (1013, 2013), mode::TCP);
        let before = kib(&maker);
        assert_eq!(only(1013).pid, sys::pid());
        let mut watch = Watch::default();
        watch.look().unwrap();
        watch.look().unwrap();
        let after = kib(&maker);
        assert_eq!(after, before, "KiB of {}", state::STATE_LEN >> 10);
        println!("{before} KiB before and {after} KiB after looks, of {}", state::STATE_LEN >> 10);
    }

    #[test]
    fn a_user_who_has_too_much_is_cut_short_and_others_are_seen() {
        /// States that are full: each costs some 50 MB of an allowance.
        const FULL: usize = 7;
        const GREEDY: u32 = 54_321;
        const MODEST: u32 = 54_322;
        const YIELDS: u64 = 1014 << 32;
        if sys::effective_uid() != 0 {
            return println!("skipped: only root can give files to other users");
        }
        let belongs_to = |maker: &Maker, user| {
            std::os::unix::fs::chown(format!("/proc/self/fd/{}", maker.fd), Some(user), None)
                .unwrap();
        };
        let mut children = Vec::new();
        for _ in 0..FULL {
            let maker = Maker::new(DEAD);
            belongs_to(&maker, GREEDY);
            (0..SLOTS).for_each(|index| _ = maker.connect(index, (1014, 2014), mode::TCP));
            children.push(maker.child());
        }
        let maker = Maker::new(DEAD);
        belongs_to(&maker, MODEST);
        maker.state.header().ended[0].counters.yields.store(YIELDS, Ordering::Relaxed);
        children.push(maker.child());
        let pids: Vec<u32> = children.iter().map(|child| child.0.id()).collect();
        let snapshot = {
            let _alone = alone();
            Snapshot::of(&pids).unwrap()
        };
        assert_eq!(snapshot.curtailed, [GREEDY]);
        assert!((1..FULL * SLOTS).contains(&snapshot.connections.len()));
        let is_modest = |program: &Program| program.totals.counters.yields == YIELDS;
        assert!(snapshot.programs.iter().any(is_modest), "the last one that was looked at");
    }
}
