//! The connections of all Sidestep programs on this host, seen from outside.
//!
//! A program keeps its connections in a memory file ([`state`]) that it holds open:
//! `/proc/PID/fd` shows it as `/memfd:sidestep-state`. Whoever may look at those
//! descriptors may open the file and read it. The program is not asked, so a stopped
//! or busy one is seen like any other, and it is never kept waiting.
//!
//! ```text
//!   /proc/PID/fd/N ──> state ── header: process that made it, slots ever used,
//!   /proc/PID/fd/N ──┘    │             sums over ended connections
//!                         ├──── decisions of the last hour, traffic by server port
//!                         └──── slots: one per connection
//!   (parent and forked child hold the same one)
//! ```
//!
//! It is only read, but for one word of an operator ([`hold`]).
//!
//! All of it is a stranger's memory: it is read into memory of our own ([`Mirror`]), which
//! makes no page of it, each word is checked before it means anything, and a process number
//! in it is believed only if that process holds this very state. How much there is to read
//! is the stranger's doing, too, so each user has an [`allowance`].
//!
//! This crate runs in `sidestep` and never inside somebody else's call, so it may allocate. The
//! library does not depend on it.

mod allowance;
mod kernel;
mod run_queue;

use allowance::{Allowance, Allowances};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use sidestep_device::channel::SLOTS;
use sidestep_device::mirror::{Mirror, NotRead};
use sidestep_device::state::{self, RING_SIZES, Slot, State, mode};
use sidestep_device::sys;
use sidestep_device::young::{self, About, Traffic, YOUNG_MAX};
use sidestep_proto::autosmc::Patience;
use sidestep_proto::fallback::Reason;
use sidestep_wire::diagnosis::Diagnosis;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

mod holds;
mod recorded;
mod shown;
mod sock_diag;
mod watch;

pub use holds::{Reached, Whose, hold, release};
pub use recorded::{Decision, Handshakes, Rings, Service, Sizes, Verdict};
pub use shown::Shown;
pub use watch::{Watch, Watched};

/// What could be seen at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// All connections: by process, then in the order of their slots.
    pub connections: Vec<Connection>,
    /// In the order of the processes that hold them.
    pub programs: Vec<Program>,
    /// States that could not be understood, of another version of Sidestep: the processes that
    /// hold each.
    pub incompatible: Vec<Vec<u32>>,
    /// Processes at whose descriptors we may not look.
    pub unreadable: Vec<u32>,
    /// Users of whom there was more than a look may cost, so that not all of it is here.
    pub curtailed: Vec<u32>,
}

/// A state and those who hold it. A program has one from its first TCP connection to
/// its end; children that have opened none of their own share their parent's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Which state it is.
    pub state: StateId,
    /// Who holds it: the process that made it first, if it lives. Never empty.
    pub pids: Vec<u32>,
    /// What the kernel calls the first of them, without control characters.
    pub program: String,
    /// All its connections since its start.
    pub totals: Totals,
    /// Connections that have ended on TCP, by reason; [`Reason::None`]: nothing was decided.
    pub ended_on_tcp: Vec<(Reason, u64)>,
    /// What AUTOSMC has learned: servers' ports at which connections have to live longer than
    /// elsewhere before they are moved.
    pub patience: Vec<(u16, Patience)>,
    /// What AUTOCACHE remembers.
    pub left_alone: Vec<LeftAlone>,
    /// What was decided in the last hour.
    pub decisions: Vec<Decision>,
    /// Decisions of the last hour that found no place among these.
    pub decisions_untold: u64,
    /// Its traffic by server, if it only counts.
    pub services: Vec<Service>,
    /// Connections that found no place among these.
    pub services_untold: u64,
}

/// A server with which agreeing has failed, and that is not asked for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftAlone {
    /// Its address.
    pub server: SocketAddr,
    /// Why it failed last.
    pub reason: Reason,
    /// Failures in a row.
    pub failures: u32,
    /// When it is asked again.
    pub again_in: Duration,
}

/// Connections of a program, those that have ended included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections of which bytes went through shared memory.
    pub smc: u64,
    /// Connections to other hosts that were handed to the gateway: by SMC-R, if it came to that.
    pub handed_over: u64,
    /// Connections on TCP for a reason, with their number; the reasons all differ.
    pub fallbacks: Vec<(Fallback, u64)>,
    /// Connections on TCP without a reason: where they go is not decided yet, or no
    /// byte went through shared memory before they ended.
    pub undecided: u64,
    /// Sums over all of them.
    pub counters: Counters,
    /// Lengths of what was sent.
    pub sent: Sizes,
    /// Lengths of what was received.
    pub received: Sizes,
    /// Attempts to move them.
    pub handshakes: Handshakes,
    /// Rings they were given, by length: see [`Rings::len_at`].
    pub rings: [Rings; RING_SIZES],
    /// Nanoseconds for which threads that could run have waited for a CPU: all threads that
    /// the program has now. `None`: the kernel does not say, or
    /// [`Snapshot::find_run_queue_delays`] was not called.
    pub run_queue_delay_ns: Option<u64>,
}

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
    pub passage: Option<u16>,
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
    /// Closed here; the peer still reads our ring.
    Lingering,
}

/// Why a connection stays on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Never [`Reason::None`].
    pub reason: Reason,
    /// The peer's own reason, when it was the peer that declined.
    pub peer: Option<Diagnosis>,
}

impl Fallback {
    /// The standard's code for it.
    #[must_use]
    pub fn diagnosis(&self) -> Diagnosis {
        self.reason.diagnosis().unwrap_or(Diagnosis::INTERR)
    }

    /// In words.
    #[must_use]
    pub fn words(&self) -> &'static str {
        self.reason.words()
    }
}

/// Counters of a connection since its start; see [`state::Counters`] for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "explained where they are counted")]
pub struct Counters {
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub messages_sent: u64,
    pub messages_received: u64,
    pub ring_bytes_sent: u64,
    pub ring_bytes_received: u64,
    pub waits: u64,
    pub waits_beside_strangers: u64,
    pub spins: u64,
    pub spins_in_vain: u64,
    pub spin_ns: u64,
    pub yields: u64,
    pub strangers: u64,
    pub strangers_ns: u64,
    pub parks: u64,
    pub wakeups: u64,
}

impl Snapshot {
    /// Looks at every process of the host.
    ///
    /// # Errors
    /// `/proc` cannot be listed, or there is no address space. Processes that end meanwhile are no
    /// error.
    pub fn take() -> io::Result<Self> {
        Self::of(&processes()?)
    }

    /// Asks the kernel for the addresses of connections whose programs have not. Reads its
    /// tables of all TCP sockets, those in TIME_WAIT included, so a busy host takes long.
    pub fn find_addresses(&mut self) {
        kernel::fill_in_addresses(&mut self.connections);
    }

    /// Asks the kernel for how long the threads of the programs have waited for a CPU, and adds to
    /// `curtailed` whose threads are too many.
    pub fn find_run_queue_delays(&mut self) {
        let mut allowances = Allowances::new(sys::effective_uid());
        run_queue::fill_in_delays(&mut self.programs, &mut allowances);
        self.curtailed.extend(allowances.exceeded());
        self.curtailed.sort_unstable();
        self.curtailed.dedup();
    }

    /// Whether a process runs another version of Sidestep, so that nothing is known of its
    /// connections.
    #[must_use]
    pub fn is_incompatible(&self, pid: u32) -> bool {
        self.incompatible.iter().any(|pids| pids.contains(&pid))
    }

    /// Looks at these processes only. One that does not exist is none of the
    /// unreadable ones.
    ///
    /// # Errors
    /// There is no address space.
    pub fn of(pids: &[u32]) -> io::Result<Self> {
        Ok(Survey::of(pids)?.end().0)
    }
}

impl Survey {
    fn of(pids: &[u32]) -> io::Result<Self> {
        let mut survey = Self {
            states: HashMap::new(),
            unreadable: Vec::new(),
            allowances: Allowances::new(sys::effective_uid()),
            mirror: mirror()?,
        };
        for &pid in pids {
            match survey.visit(pid) {
                Err(error) if is_refusal(&error) && !is_kernel_thread(pid) => {
                    survey.unreadable.push(pid);
                }
                // Any other error: it has ended.
                Ok(()) | Err(_) => {}
            }
        }
        Ok(survey)
    }

    /// What was seen, and who holds which state, in the order of discovery.
    fn end(self) -> (Snapshot, Vec<Found>) {
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
                    let all = seen.connections.into_iter().filter_map(|(place, seen_one)| {
                        let holder = found.holder(seen_one.user_pid, seen.owner)?;
                        Some((place, seen_one.into_connection(found.id, holder)))
                    });
                    connections.extend(all.map(|(place, it)| (found.number, place, it)));
                    snapshot.programs.extend(found.program_of(seen.owner, seen.program));
                }
                Content::Other => {
                    let pids = found.holders.iter().map(|holder| holder.pid);
                    snapshot.incompatible.push(pids.collect());
                }
                Content::NotRead => {}
            }
        }
        snapshot.programs.sort_by_key(|program| program.pids[0]);
        connections.sort_by_key(|(state, place, it): &(_, _, Connection)| (it.pid, *state, *place));
        snapshot.connections = connections.into_iter().map(|(_, _, it)| it).collect();
        (snapshot, all)
    }
}

impl Totals {
    /// Connections whose bytes went, or have gone so far, by TCP alone.
    #[must_use]
    pub fn tcp(&self) -> u64 {
        let fallbacks = self.fallbacks.iter().map(|(_, connections)| *connections);
        fallbacks.fold(self.undecided, u64::saturating_add)
    }

    /// What two programs had together.
    pub fn add(&mut self, other: &Self) {
        self.smc = self.smc.saturating_add(other.smc);
        self.handed_over = self.handed_over.saturating_add(other.handed_over);
        self.undecided = self.undecided.saturating_add(other.undecided);
        for &(fallback, connections) in &other.fallbacks {
            self.add_fallback(fallback, connections);
        }
        self.counters.add(&other.counters);
        self.sent += other.sent;
        self.received += other.received;
        self.handshakes += other.handshakes;
        for (sum, rings) in self.rings.iter_mut().zip(other.rings) {
            *sum += rings;
        }
        let delays = [self.run_queue_delay_ns, other.run_queue_delay_ns];
        self.run_queue_delay_ns = delays.into_iter().flatten().reduce(u64::saturating_add);
    }

    fn add_fallback(&mut self, fallback: Fallback, connections: u64) {
        match self.fallbacks.iter_mut().find(|(known, _)| *known == fallback) {
            Some((_, sum)) => *sum = sum.saturating_add(connections),
            None => self.fallbacks.push((fallback, connections)),
        }
    }

    fn add_tcp(&mut self, reason: Reason, connections: u64) {
        match reason {
            _ if connections == 0 => {}
            Reason::None => self.undecided = self.undecided.saturating_add(connections),
            reason => self.add_fallback(Fallback { reason, peer: None }, connections),
        }
    }
}

impl Counters {
    fn of_young(traffic: Traffic) -> Self {
        Self {
            bytes_sent: traffic.sent.bytes,
            bytes_received: traffic.received.bytes,
            messages_sent: traffic.sent.messages,
            messages_received: traffic.received.messages,
            ..Self::default()
        }
    }

    fn read(from: &state::Counters) -> Self {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            bytes_sent: load(&from.bytes_sent),
            bytes_received: load(&from.bytes_received),
            messages_sent: load(&from.messages_sent),
            messages_received: load(&from.messages_received),
            ring_bytes_sent: load(&from.ring_bytes_sent),
            ring_bytes_received: load(&from.ring_bytes_received),
            waits: load(&from.waits),
            waits_beside_strangers: load(&from.waits_beside_strangers),
            spins: load(&from.spins),
            spins_in_vain: load(&from.spins_in_vain),
            spin_ns: load(&from.spin_ns),
            yields: load(&from.yields),
            strangers: load(&from.strangers),
            strangers_ns: load(&from.strangers_ns),
            parks: load(&from.parks),
            wakeups: load(&from.wakeups),
        }
    }

    fn add(&mut self, other: &Self) {
        let sum = u64::saturating_add;
        *self = Self {
            bytes_sent: sum(self.bytes_sent, other.bytes_sent),
            bytes_received: sum(self.bytes_received, other.bytes_received),
            messages_sent: sum(self.messages_sent, other.messages_sent),
            messages_received: sum(self.messages_received, other.messages_received),
            ring_bytes_sent: sum(self.ring_bytes_sent, other.ring_bytes_sent),
            ring_bytes_received: sum(self.ring_bytes_received, other.ring_bytes_received),
            waits: sum(self.waits, other.waits),
            waits_beside_strangers: sum(self.waits_beside_strangers, other.waits_beside_strangers),
            spins: sum(self.spins, other.spins),
            spins_in_vain: sum(self.spins_in_vain, other.spins_in_vain),
            spin_ns: sum(self.spin_ns, other.spin_ns),
            yields: sum(self.yields, other.yields),
            strangers: sum(self.strangers, other.strangers),
            strangers_ns: sum(self.strangers_ns, other.strangers_ns),
            parks: sum(self.parks, other.parks),
            wakeups: sum(self.wakeups, other.wakeups),
        };
    }
}

/// The standard's code and the reason in words, with the peer's own if it was the
/// peer that declined.
impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x} {}", self.diagnosis().0, self.words())?;
        match self.peer {
            Some(diagnosis) => write!(f, ": {diagnosis}"),
            None => Ok(()),
        }
    }
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

/// The states found so far and who holds them.
struct Survey {
    states: HashMap<StateId, Found>,
    unreadable: Vec<u32>,
    allowances: Allowances,
    mirror: Mirror,
}

/// Which state something belongs to: device and inode of its file. As long as somebody holds
/// the state, no other has the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StateId {
    device: u64,
    inode: u64,
}

struct Found {
    id: StateId,
    /// Its place in the order of discovery.
    number: usize,
    /// The user who made it.
    user: u32,
    file: File,
    content: Content,
    /// Never empty.
    holders: Vec<Holder>,
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

/// A process that holds a state.
struct Holder {
    pid: u32,
    /// Its number as itself knows it: another one in a PID namespace.
    own_pid: u32,
    program: String,
}

impl Survey {
    /// Adds what one process holds.
    fn visit(&mut self, pid: u32) -> io::Result<()> {
        let allowance = self.allowances.of(user(pid)?);
        for path in state_descriptors(pid, allowance)? {
            let (id, file, user) = match open(&path) {
                Ok(opened) => opened,
                Err(error) if is_refusal(&error) => return Err(error),
                // Closed meanwhile.
                Err(_) => continue,
            };
            let number = self.states.len();
            let found = self.states.entry(id).or_insert_with(|| {
                let content = read_all(&file, id, &mut self.mirror, self.allowances.of(user));
                Found { id, number, user, file, content, holders: Vec::new() }
            });
            if found.holders.last().is_none_or(|holder| holder.pid != pid) {
                found.holders.push(Holder::new(pid));
            }
        }
        Ok(())
    }
}

fn mirror() -> io::Result<Mirror> {
    Mirror::new().map_err(|errno| io::Error::from_raw_os_error(errno.0))
}

fn read_all(file: &File, id: StateId, mirror: &mut Mirror, allowance: &mut Allowance) -> Content {
    let state = match read_state(file, mirror, allowance) {
        Ok(state) => state,
        Err(NotRead::Other) => return Content::Other,
        Err(NotRead::Beyond) => return Content::NotRead,
    };
    let owner = state.header().pid.load(Ordering::Relaxed);
    let grown = (0..slots_used(state)).filter_map(|index| Some((index, read(state.slot(index))?)));
    let young = young(state).filter_map(|(fd, (open, _))| {
        let (about, traffic) = open?;
        let counters = Counters::of_young(traffic);
        Some((SLOTS + fd as usize, Seen::young(owner, fd, about, &counters)))
    });
    let connections = grown.chain(young).take_while(|_| allowance.takes_connection()).collect();
    let program = Program::read(state, id, Vec::new(), String::new());
    Content::Read(Box::new(SeenAll { owner, program, connections }))
}

fn read_state<'a>(
    file: &File,
    mirror: &'a mut Mirror,
    allowance: &mut Allowance,
) -> Result<&'a State, NotRead> {
    if !allowance.takes_state() {
        return Err(NotRead::Beyond);
    }
    mirror.read(file.as_raw_fd(), &mut allowance.bytes).inspect_err(|not_read| {
        if *not_read == NotRead::Beyond {
            allowance.exceed();
        }
    })
}

impl Found {
    /// Who holds it and what they had.
    fn program_of(&self, owner: u32, program: Program) -> Option<Program> {
        let maker = self.holder(owner, owner)?;
        let others = self.holders.iter().map(|holder| holder.pid).filter(|pid| *pid != maker.pid);
        let pids = [maker.pid].into_iter().chain(others).collect();
        Some(Program { pids, program: maker.program.clone(), ..program })
    }

    /// The process that is called `user` in this state, else the one called `owner`,
    /// else any.
    fn holder(&self, user: u32, owner: u32) -> Option<&Holder> {
        let called = |pid| self.holders.iter().find(|holder| holder.own_pid == pid);
        called(user).or_else(|| called(owner)).or(self.holders.first())
    }
}

impl Program {
    /// Of a mirrored state.
    fn read(state: &State, id: StateId, pids: Vec<u32>, program: String) -> Self {
        let young: Vec<_> = young(state).map(|(_, seen)| seen).collect();
        let (services, services_untold) = recorded::services(state);
        let (decisions, decisions_untold) = recorded::decisions(state);
        Self {
            state: id,
            pids,
            program,
            totals: totals(state, &young),
            ended_on_tcp: ended_on_tcp(state, &young),
            patience: patience(state),
            left_alone: left_alone(state),
            decisions,
            decisions_untold,
            services,
            services_untold,
        }
    }
}

impl Holder {
    fn new(pid: u32) -> Self {
        let own_pid = own_pid(pid).unwrap_or(pid);
        Self { pid, own_pid, program: program(pid) }
    }
}

/// A slot as it was read: plain values, all of them checked, except `user_pid`.
#[derive(Debug)]
struct Seen {
    user_pid: u32,
    descriptor: Option<i32>,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    role: Role,
    mode: Mode,
    rmbe_local: u32,
    rmbe_peer: u32,
    counters: Counters,
    fallback: Option<Fallback>,
    passage: Option<u16>,
}

impl Seen {
    fn young(owner: u32, fd: i32, about: About, counters: &Counters) -> Self {
        Self {
            user_pid: owner,
            descriptor: Some(fd),
            local: None,
            peer: None,
            role: if about.is_server { Role::Server } else { Role::Client },
            mode: Mode::Tcp,
            rmbe_local: 0,
            rmbe_peer: 0,
            counters: *counters,
            fallback: fallback_of(Reason::TooShort, Diagnosis(0)),
            passage: None,
        }
    }

    fn into_connection(self, state: StateId, holder: &Holder) -> Connection {
        Connection {
            state,
            pid: holder.pid,
            program: holder.program.clone(),
            local: self.local,
            peer: self.peer,
            role: self.role,
            mode: self.mode,
            rmbe_local: self.rmbe_local,
            rmbe_peer: self.rmbe_peer,
            counters: self.counters,
            fallback: self.fallback,
            descriptor: self.descriptor,
            passage: self.passage,
        }
    }
}

fn patience(state: &State) -> Vec<(u16, Patience)> {
    let learned = state.header().ports.iter().map(state::Port::get);
    let learned = learned.filter(|(port, doublings)| *port != 0 && *doublings != 0);
    let mut ports: Vec<_> =
        learned.map(|(port, doublings)| (port, Patience::new(doublings))).collect();
    ports.sort_by_key(|(port, _)| *port);
    ports
}

fn left_alone(state: &State) -> Vec<LeftAlone> {
    let now = sys::now_ns();
    let failure = |failure: &state::Failure| {
        // Acquire: pairs with the Release after what it is about.
        let left = failure.until_ns.load(Ordering::Acquire).checked_sub(now)?;
        let family = u8::try_from(failure.family.load(Ordering::Relaxed)).ok()?;
        let reason = u8::try_from(failure.reason.load(Ordering::Relaxed)).ok()?;
        Some(LeftAlone {
            server: address(family, &failure.ip, &failure.port)?,
            reason: Reason::from_number(reason),
            failures: failure.in_a_row.load(Ordering::Relaxed),
            again_in: Duration::from_nanos(left),
        })
    };
    state.header().failures.iter().filter_map(failure).collect()
}

fn ended_on_tcp(state: &State, young: &[young::Seen]) -> Vec<(Reason, u64)> {
    let load = |number: usize| {
        let ended = state.header().ended.iter().map(|ended| &ended.tcp[number]);
        ended.fold(0u64, |sum, n| sum.saturating_add(n.load(Ordering::Relaxed)))
    };
    let young: u64 =
        young.iter().flat_map(|(_, ended)| ended).map(|ended| u64::from(ended.connections)).sum();
    let numbers = 0..state::REASONS_MAX as u8;
    let ended = numbers.map(|number| {
        let reason = Reason::from_number(number);
        let more = if reason == Reason::TooShort { young } else { 0 };
        (reason, load(usize::from(number)).saturating_add(more))
    });
    ended.filter(|(_, connections)| *connections > 0).collect()
}

/// All connections of a state: those that have ended and those in its slots.
fn totals(state: &State, young: &[young::Seen]) -> Totals {
    let mut totals = Totals {
        handshakes: Handshakes::read(&state.header().handshakes),
        rings: Rings::read(&state.header().rings),
        ..Totals::default()
    };
    for ended in &state.header().ended {
        totals.smc = totals.smc.saturating_add(ended.smc.load(Ordering::Relaxed));
        let handed_over = ended.handed_over.load(Ordering::Relaxed);
        totals.handed_over = totals.handed_over.saturating_add(handed_over);
        totals.counters.add(&Counters::read(&ended.counters));
        totals.sent += Sizes::read(&ended.sent);
        totals.received += Sizes::read(&ended.received);
    }
    for (reason, connections) in ended_on_tcp(state, young) {
        totals.add_tcp(reason, connections);
    }
    for slot in (0..slots_used(state)).map(|index| state.slot(index)) {
        // Acquire: pairs with the Release that sets the mode after what belongs to it.
        if slot.mode.load(Ordering::Acquire) == mode::FREE {
            continue;
        }
        if slot.is_handed_over() {
            totals.handed_over = totals.handed_over.saturating_add(1);
        } else if slot.has_used_rings() {
            totals.smc = totals.smc.saturating_add(1);
        } else if slot.is_counted_here() {
            totals.add_tcp(Reason::from_number(slot.reason.load(Ordering::Relaxed)), 1);
        }
        totals.counters.add(&Counters::read(&slot.counters));
        totals.sent += Sizes::read(&slot.sent);
        totals.received += Sizes::read(&slot.received);
    }
    for (open, ended) in young {
        if open.is_some() {
            totals.add_tcp(Reason::TooShort, 1);
        }
        let carried = [open.map(|(_, traffic)| traffic), ended.map(|ended| ended.traffic)];
        for traffic in carried.into_iter().flatten() {
            totals.counters.add(&Counters::of_young(traffic));
            totals.sent += Sizes::of_young(traffic.sent);
            totals.received += Sizes::of_young(traffic.received);
        }
    }
    totals
}

/// Descriptors, and the connections at their places.
fn young(state: &State) -> impl Iterator<Item = (i32, young::Seen)> {
    // Relaxed: what is said there is believed only as far as it says of itself.
    let used = state.header().young_used.load(Ordering::Relaxed).min(YOUNG_MAX as u32);
    (0..used as i32).filter_map(|fd| Some((fd, state.young(fd)?.look())))
}

fn slots_used(state: &State) -> usize {
    // Acquire: pairs with the Release in `Process::take_slot`.
    let used = state.header().slots_used.load(Ordering::Acquire) as usize;
    used.min(SLOTS)
}

/// Reads a slot of a mirrored state. `None`: it is free.
fn read(slot: &Slot) -> Option<Seen> {
    // Acquire: pairs with the Release that sets the mode after what belongs to it.
    let mode = match slot.mode.load(Ordering::Acquire) {
        mode::TCP => Mode::Tcp,
        mode::NEGOTIATING => Mode::Negotiating,
        mode::SMC_D => Mode::SmcD,
        mode::LINGERING => Mode::Lingering,
        _ => return None,
    };
    let passage = slot.passage.load(Ordering::Relaxed);
    let has_accepted = match passage {
        0 => slot.is_server.load(Ordering::Relaxed) != 0,
        word => word >> 16 != 0,
    };
    let role = if has_accepted { Role::Server } else { Role::Client };
    let reason = Reason::from_number(slot.reason.load(Ordering::Relaxed));
    // What has come back from shared memory still has its rings, and is on TCP all the same.
    let is_back = mode == Mode::SmcD && reason != Reason::None;
    let mode = if is_back { Mode::Tcp } else { mode };
    let fallback = match mode {
        Mode::Tcp | Mode::Lingering => {
            fallback_of(reason, Diagnosis(slot.peer_diagnosis.load(Ordering::Relaxed)))
        }
        Mode::Negotiating | Mode::SmcD => None,
    };
    // A connection that fell back may have been given rings that it never used.
    let ring_len = |len: &AtomicU32| match mode {
        Mode::SmcD | Mode::Lingering if fallback.is_none() => len.load(Ordering::Relaxed),
        _ => 0,
    };
    // Acquire: pairs with the Release that sets the family after the addresses.
    let family = slot.family.load(Ordering::Acquire);
    Some(Seen {
        user_pid: slot.user_pid.load(Ordering::Relaxed),
        descriptor: match family {
            0 => Some(slot.descriptor.load(Ordering::Relaxed)).filter(|fd| *fd >= 0),
            _ => None,
        },
        local: address(family, &slot.local_ip, &slot.local_port),
        peer: address(family, &slot.peer_ip, &slot.peer_port),
        role,
        mode,
        rmbe_local: ring_len(&slot.receive_ring_len),
        rmbe_peer: ring_len(&slot.send_ring_len),
        counters: Counters::read(&slot.counters),
        fallback,
        passage: Some(passage as u16).filter(|port| *port != 0),
    })
}

fn fallback_of(reason: Reason, peer_diagnosis: Diagnosis) -> Option<Fallback> {
    let has_said = reason == Reason::PeerDeclined && peer_diagnosis.0 != 0;
    let peer = has_said.then_some(peer_diagnosis);
    (reason != Reason::None).then_some(Fallback { reason, peer })
}

/// The address in a slot's words, if they hold one.
fn address(family: u8, ip: &[AtomicU64; 2], port: &AtomicU32) -> Option<SocketAddr> {
    let ip = ip.each_ref().map(|half| half.load(Ordering::Relaxed));
    address_of(family, ip, port.load(Ordering::Relaxed))
}

fn address_of(family: u8, [high, low]: [u64; 2], port: u32) -> Option<SocketAddr> {
    let ip = match family {
        4 => IpAddr::V4(Ipv4Addr::from(u32::try_from(high).ok()?)),
        6 => IpAddr::V6(Ipv6Addr::from(u128::from(high) << 64 | u128::from(low))),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::try_from(port).ok()?))
}

/// The processes of this host, in the order of their numbers.
fn processes() -> io::Result<Vec<u32>> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let mut pids: Vec<u32> = fs::read_dir("/proc")?.flatten().filter_map(number).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// The paths of the states that a process holds, as far as its user's allowance reaches.
fn state_descriptors(pid: u32, allowance: &mut Allowance) -> io::Result<Vec<PathBuf>> {
    let name = format!("/memfd:{} (deleted)", state::STATE_NAME.to_string_lossy());
    let mut paths = Vec::new();
    if !allowance.takes_process() {
        return Ok(paths);
    }
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        if !allowance.takes_descriptor() {
            break;
        }
        let path = entry?.path();
        match fs::read_link(&path) {
            // Who only looks has opened it read-only, and is no holder.
            Ok(target) if target.as_os_str() == name.as_str() && is_writable(&path) => {
                paths.push(path);
            }
            Err(error) if is_refusal(&error) => return Err(error),
            // Another file, or closed meanwhile.
            Ok(_) | Err(_) => {}
        }
        if paths.len() == STATES_MAX {
            break;
        }
    }
    Ok(paths)
}

/// Whether a descriptor is open for writing, as the mode of its link says.
fn is_writable(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.mode() & 0o200 != 0)
}

/// Opens a file that was a state a moment ago: if it is a FIFO or terminal by now,
/// nothing happens to it or to us. Returns the user who made it as well.
fn open(path: &Path) -> io::Result<(StateId, File, u32)> {
    open_with(path, false)
}

fn open_with(path: &Path, write: bool) -> io::Result<(StateId, File, u32)> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).write(write).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    Ok((StateId { device: metadata.dev(), inode: metadata.ino() }, file, metadata.uid()))
}

/// Whose process it is: the user who began it, whatever it has become since.
fn user(pid: u32) -> io::Result<u32> {
    let owner = fs::metadata(format!("/proc/{pid}"))?.uid();
    // To root belongs also what others may not look at: a program with more rights than its user,
    // and one that wants it so.
    match owner {
        0 => real_user(pid).ok_or_else(|| io::ErrorKind::NotFound.into()),
        user => Ok(user),
    }
}

fn real_user(pid: u32) -> Option<u32> {
    status_numbers(pid, b"Uid:")?.into_iter().next()
}

/// The name of a process, fit for a terminal.
fn program(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    let printable = |c: char| if c.is_control() { '?' } else { c };
    match name {
        b"" => "?".to_owned(),
        name => String::from_utf8_lossy(name).chars().map(printable).collect(),
    }
}

/// The number of a process in the innermost PID namespace it lives in.
fn own_pid(pid: u32) -> Option<u32> {
    status_numbers(pid, b"NSpid:")?.pop()
}

/// The numbers behind a word of `/proc/PID/status`.
fn status_numbers(pid: u32, word: &[u8]) -> Option<Vec<u32>> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.split(|&c| c == b'\n').find_map(|line| line.strip_prefix(word))?;
    str::from_utf8(numbers).ok()?.split_ascii_whitespace().map(|n| n.parse().ok()).collect()
}

/// Kernel threads hold no descriptors; that we may not look is no loss.
fn is_kernel_thread(pid: u32) -> bool {
    /// `PF_KTHREAD` of `linux/sched.h`.
    const KERNEL_THREAD: u32 = 0x0020_0000;
    let flags = || {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The second field is the name, in parentheses, with anything in it; `flags` is
        // the ninth.
        let fields = stat.rsplit(|&c| c == b')').next()?;
        str::from_utf8(fields).ok()?.split_ascii_whitespace().nth(6)?.parse::<u32>().ok()
    };
    flags().is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// States looked at in one process: its own and, after forks of forks, those of its
/// ancestors. More is no Sidestep program.
const STATES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU8;
    use sidestep_device::{map, sys};
    use std::process::{Child, Command};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// A state as a Sidestep program has it; gone with the test.
    pub(super) struct Maker {
        pub(super) state: State,
        pub(super) fd: i32,
    }

    impl Maker {
        pub(super) fn new(pid: u32) -> Self {
            let (state, fd) = state::create(pid, [1, 2]).unwrap();
            Self { state, fd }
        }

        fn slot(&self, index: usize) -> &'static Slot {
            let used = &self.state.header().slots_used;
            used.fetch_max(index as u32 + 1, Ordering::Relaxed);
            self.state.slot(index)
        }

        /// Fills a slot with an IPv4 connection from 10.0.0.`index` to 10.0.0.99, made
        /// known by its ports.
        pub(super) fn connect(&self, index: usize, ports: (u16, u16), mode: u32) -> &'static Slot {
            let slot = self.slot(index);
            set(&slot.user_pid, sys::pid());
            set(&slot.local_port, ports.0.into());
            set(&slot.peer_port, ports.1.into());
            slot.local_ip[0].store(0x0a00_0000 + index as u64, Ordering::Relaxed);
            slot.peer_ip[0].store(0x0a00_0063, Ordering::Relaxed);
            set8(&slot.family, 4);
            set(&slot.mode, mode);
            slot
        }

        /// A process that holds this state, too, as a forked child does.
        pub(super) fn child(&self) -> Heir {
            let _alone = alone();
            sys::fcntl(self.fd, libc::F_SETFD, 0).unwrap();
            let child = Command::new("sleep").arg("60").spawn().unwrap();
            sys::fcntl(self.fd, libc::F_SETFD, libc::FD_CLOEXEC as usize).unwrap();
            Heir(child)
        }
    }

    impl Drop for Maker {
        fn drop(&mut self) {
            sys::close(self.fd);
            // SAFETY: tests keep nothing of it.
            unsafe { self.state.unmap() }
        }
    }

    pub(super) struct Heir(pub(super) Child);

    impl Drop for Heir {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn set(word: &AtomicU32, value: u32) {
        word.store(value, Ordering::Relaxed);
    }

    fn set8(word: &AtomicU8, value: u8) {
        word.store(value, Ordering::Relaxed);
    }

    /// A number that no process has: beyond the kernel's `PID_MAX_LIMIT` of 2^22.
    const DEAD: u32 = 1 << 30;

    /// Tests share a process: another test's child would inherit our state, and another
    /// test's look would hold it open.
    fn alone() -> MutexGuard<'static, ()> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
            state::count(counter, n);
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
            passage: None,
        };
        assert_eq!(only(1001), expected);
    }

    #[test]
    fn addresses_are_known_or_absent() {
        let program = Maker::new(sys::pid());
        let slot = program.connect(0, (1002, 2002), mode::TCP);
        assert_eq!(local_address(slot).unwrap().to_string(), "10.0.0.0:1002");
        // 2001:db8::7
        slot.local_ip[0].store(0x2001_0db8_0000_0000, Ordering::Relaxed);
        slot.local_ip[1].store(7, Ordering::Relaxed);
        set8(&slot.family, 6);
        assert_eq!(local_address(slot).unwrap().to_string(), "[2001:db8::7]:1002");

        for family in [0, 1, 5, 255] {
            set8(&slot.family, family);
            assert_eq!(local_address(slot), None);
        }
        set8(&slot.family, 4);
        assert_eq!(local_address(slot), None, "more than 32 bits");
        slot.local_ip[0].store(1, Ordering::Relaxed);
        set(&slot.local_port, 65_536);
        assert_eq!(local_address(slot), None, "no such port");
    }

    fn local_address(slot: &Slot) -> Option<SocketAddr> {
        address(slot.family.load(Ordering::Relaxed), &slot.local_ip, &slot.local_port)
    }

    #[test]
    fn a_connection_on_tcp_has_a_reason_or_is_not_decided() {
        let program = Maker::new(sys::pid());
        let slot = program.connect(0, (1003, 2003), mode::TCP);
        set(&slot.send_ring_len, 65_536);
        let seen = read(slot).unwrap();
        assert_eq!((seen.mode, seen.fallback, seen.rmbe_peer), (Mode::Tcp, None, 0));

        set8(&slot.reason, Reason::PeerNotSmc as u8);
        set(&slot.peer_diagnosis, 0x0303_0007);
        let fallback = read(slot).unwrap().fallback.unwrap();
        assert_eq!(fallback.diagnosis(), Diagnosis(0x0301_0000));
        assert_eq!(fallback.words(), "the peer does not run Sidestep");
        assert_eq!(fallback.peer, None, "nobody declined");

        set8(&slot.reason, Reason::PeerDeclined as u8);
        let fallback = read(slot).unwrap().fallback.unwrap();
        assert_eq!(fallback.peer, Some(Diagnosis::NOSMCD2DEV));
        set(&slot.peer_diagnosis, 0);
        assert_eq!(read(slot).unwrap().fallback.unwrap().peer, None);

        // An old reason of a connection that is being moved after all.
        set(&slot.mode, mode::NEGOTIATING);
        let seen = read(slot).unwrap();
        assert_eq!((seen.mode, seen.fallback), (Mode::Negotiating, None));
    }

    #[test]
    fn a_closed_connection_was_what_it_was() {
        let program = Maker::new(sys::pid());
        let slot = program.connect(0, (1004, 2004), mode::LINGERING);
        set(&slot.send_ring_len, 65_536);
        assert!(only(1004).is_smc());
        set8(&slot.reason, Reason::PeerMisbehaved as u8);
        assert!(!only(1004).is_smc());
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
        set8(&slot.reason, 255);
        set8(&slot.is_server, 255);
        set(&program.state.slot(SLOTS - 1).mode, u32::MAX);
        slot.counters.bytes_sent.store(u64::MAX, Ordering::Relaxed);
        let connection = only(1006);
        assert_eq!(connection.pid, sys::pid());
        assert_eq!(connection.counters.bytes_sent, u64::MAX);
        assert_eq!((connection.role, connection.fallback), (Role::Server, None));
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
        Fallback { reason, peer: None }
    }

    #[test]
    fn totals_are_what_has_ended_and_what_is_there() {
        const YIELDS: u64 = 1011 << 32;
        let program = Maker::new(sys::pid());
        let ended = &program.state.header().ended[3];
        ended.counters.yields.store(YIELDS, Ordering::Relaxed);
        let connect = |index, mode, ring_bytes, reason| {
            let slot = program.connect(index, (1011, 2011), mode);
            set8(&slot.reason, reason as u8);
            for counter in slot.counters.all() {
                counter.store(10, Ordering::Relaxed);
            }
            slot.counters.ring_bytes_sent.store(0, Ordering::Relaxed);
            slot.counters.ring_bytes_received.store(ring_bytes, Ordering::Relaxed);
        };
        // Slot 0 has four connections one after the other.
        for (ring_bytes, reason) in
            [(5, Reason::None), (0, Reason::NoMemory), (0, Reason::PeerNotSmc), (0, Reason::None)]
        {
            connect(0, mode::LINGERING, ring_bytes, reason);
            program.state.free_slot(0, 7);
        }
        connect(1, mode::SMC_D, 2, Reason::None);
        connect(2, mode::SMC_D, 0, Reason::None);
        connect(3, mode::TCP, 0, Reason::PeerNotSmc);
        connect(4, mode::LINGERING, 1, Reason::None);
        connect(5, mode::LINGERING, 0, Reason::None);
        set8(&program.state.slot(5).is_elsewhere, 1);
        ended.count_tcp(Reason::NoSlot as u8);

        let [program] = programs(&[sys::pid()], YIELDS + 90).try_into().unwrap();
        let Totals { smc, fallbacks, undecided, counters, .. } = program.totals;
        assert_eq!((smc, undecided), (3, 2));
        let expected = [(Reason::PeerNotSmc, 2), (Reason::NoMemory, 1), (Reason::NoSlot, 1)];
        assert_eq!(fallbacks, expected.map(|(reason, n)| (fallback(reason), n)));
        assert_eq!((counters.bytes_sent, counters.wakeups), (90, 90));
        assert_eq!((counters.ring_bytes_sent, counters.ring_bytes_received), (0, 8));
    }

    #[test]
    fn totals_of_two_programs_add_up() {
        let of = |smc, fallbacks: &[(Reason, u64)], spin_ns| Totals {
            smc,
            handed_over: 2 * smc,
            fallbacks: fallbacks.iter().map(|(reason, n)| (fallback(*reason), *n)).collect(),
            undecided: smc,
            counters: Counters { spin_ns, ..Counters::default() },
            run_queue_delay_ns: Some(spin_ns),
            ..Totals::default()
        };
        let mut sum = of(1, &[(Reason::NoSlot, 2)], 3);
        sum.add(&of(10, &[(Reason::OtherUser, 30), (Reason::NoSlot, 20)], u64::MAX));
        let both = [(Reason::NoSlot, 22), (Reason::OtherUser, 30)];
        assert_eq!(sum, of(11, &both, u64::MAX));
        assert_eq!(sum.tcp(), 63);
        sum.add(&Totals::default());
        assert_eq!(sum.run_queue_delay_ns, Some(u64::MAX), "of one nothing is known");
        assert_eq!(
            sum.fallbacks[1].0.to_string(),
            "0x03000000 the peer runs as another user or as root elsewhere, with whom no memory is shared"
        );
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
        header.young_used.store(u32::MAX, Ordering::Relaxed);
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

    #[test]
    fn processes_have_names_and_numbers() {
        assert_eq!(own_pid(sys::pid()), Some(sys::pid()));
        assert!(processes().unwrap().contains(&sys::pid()));
        assert!(!is_kernel_thread(sys::pid()));
        assert_eq!(program(DEAD), "?");
        assert_eq!(own_pid(DEAD), None);
        let mut allowances = Allowances::new(0);
        assert!(state_descriptors(DEAD, allowances.of(0)).is_err());
        assert_eq!(user(sys::pid()).unwrap(), sys::uid());
        assert!(user(DEAD).is_err());
    }
}
