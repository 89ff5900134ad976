//! Connections that have moved, and that the rules of the IP filter deny since these have changed: they end by reset.
//!
//! A packet meets new rules by itself. What goes by shared memory does not, and an end that sleeps would not hear of
//! them. So the command that has put rules into force comes here at once, once:
//!
//! ```text
//!   state ── slot: addresses, interface ─┐
//!                                        ├── the same connection ── what does the filter say? ── denied
//!   /proc/PID/fd ── socket: addresses ───┘                                                         │
//!                                     its other end on this host, by the addresses ── denied, too ─┤
//!                                                                                                  v
//!                                 slot: the generation that is denied; a hint;  socket: shut down, which wakes
//! ```
//!
//! The socket is taken from the process (`pidfd_getfd`), and asked: what the kernel answers is what packets of this
//! very socket would meet, in whatever network namespace and control group it is. A program may lie in its
//! state: what it says is believed only of a socket that it has, and the other end is the one that this socket has.
//!
//! A program may hold the lock of its socket: a `send` does, as long as the kernel waits for the memory that is sent. The kernel answers nothing
//! about the socket then, and the thread that asks cannot be ended. So the caller hears of each process before that process is
//! asked, has a process of its own do all this, and begins anew without a process that does not answer: the ends of that process are
//! denied, since nothing says that they are permitted ([`Held`]).
//!
//! What an end does then stands in `socket::connection::denial`. A program that does not obey, because it is no
//! Sidestep that we know, keeps its memory and cannot be made to give it up; but its peer lets go.

use crate::host::allowance::Allowances;
use crate::host::process::{self, processes};
use crate::host::state_file::{self, Access, StateFile};
use crate::program::address::address;
use core::net::SocketAddr;
use core::sync::atomic::{Ordering, fence};
use rustix::net::{self, Shutdown, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use sidestep_device::mirror::{Mirror, NotRead};
use sidestep_device::state::{self, Slot, State, mode};
use sidestep_device::sys;
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// What has come of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Denied {
    /// Connections within this host that were in shared memory and are reset. One of which both ends were found is one.
    pub connections: usize,
    /// A process in each network namespace where Sidestep programs are.
    pub namespaces: Vec<u32>,
    /// Processes that run another version of Sidestep.
    pub incompatible: Vec<u32>,
    /// Users of whom there was more than a look may cost.
    pub curtailed: Vec<u32>,
}

/// Programs whose sockets are not asked, because a program has held the lock of a socket. Their connections end.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Held {
    /// Processes.
    pub processes: Vec<u32>,
    /// Users, with all their processes.
    pub users: Vec<u32>,
}

impl Held {
    /// Adds a process that has not answered, and all others of its user: each of them could make the caller wait again. Root is no
    /// attacker, so a process of root is added alone.
    pub fn add(&mut self, pid: u32) {
        match process::user(pid) {
            // A process that has ended keeps no command waiting.
            Ok(0) | Err(_) => self.processes.push(pid),
            Ok(user) => self.users.push(user),
        }
    }

    fn has(&self, pid: u32, user: u32) -> bool {
        self.processes.contains(&pid) || self.users.contains(&user)
    }
}

/// Ends the connections in shared memory that are denied. `is_denied`: what the filter says of the connection
/// of a socket whose packets take the interface of this index (0: not known). `goes_to` hears which process is asked next, or woken:
/// that process may never answer.
///
/// # Errors
/// `/proc` cannot be listed, or there is no address space.
pub fn end_denied(
    held: &Held,
    is_denied: impl Fn(BorrowedFd<'_>, u32) -> bool,
    goes_to: impl Fn(u32),
) -> io::Result<Denied> {
    let mut walk = Walk {
        held,
        is_denied,
        goes_to,
        states: Vec::new(),
        ends: Vec::new(),
        unasked: Vec::new(),
        namespaces: HashMap::new(),
        outcome: Denied::default(),
        allowances: Allowances::new(sys::effective_uid()),
        mirror: state_file::mirror()?,
    };
    for pid in processes()? {
        // An error: it has ended, or not even who may change the rules may look at it.
        _ = walk.visit(pid);
    }
    Ok(walk.end())
}

/// A network namespace: device and inode of its file.
type Namespace = (u64, u64);

/// The two addresses of an end, its own first.
type Addresses = [SocketAddr; 2];

struct Walk<'a, F, G> {
    held: &'a Held,
    is_denied: F,
    goes_to: G,
    states: Vec<Known>,
    ends: Vec<End>,
    unasked: Vec<Unasked>,
    namespaces: HashMap<Namespace, u32>,
    outcome: Denied,
    allowances: Allowances,
    mirror: Mirror,
}

/// A state that was read.
struct Known {
    source: StateFile,
    /// Its connections whose sockets were not met yet.
    connections: HashMap<Addresses, Place>,
}

/// Where a connection is in a state.
#[derive(Clone, Copy)]
struct Place {
    state: usize,
    slot: usize,
    generation: u32,
    interface: u32,
}

/// A process that is not asked, and the states that it has, by their numbers.
struct Unasked {
    pid: u32,
    namespace: Namespace,
    states: Vec<usize>,
}

/// An end of a connection.
struct End {
    place: Place,
    pid: u32,
    /// `None`: its process was not asked.
    descriptor: Option<i32>,
    namespace: Namespace,
    addresses: Addresses,
    is_denied: bool,
}

impl<F: Fn(BorrowedFd<'_>, u32) -> bool, G: Fn(u32)> Walk<'_, F, G> {
    fn visit(&mut self, pid: u32) -> io::Result<()> {
        let states = self.states_of(pid)?;
        if states.is_empty() {
            return Ok(());
        }
        let namespace = fs::metadata(format!("/proc/{pid}/ns/net"))?;
        let namespace = (namespace.dev(), namespace.ino());
        self.namespaces.entry(namespace).or_insert(pid);
        if self.held.has(pid, process::user(pid)?) {
            self.unasked.push(Unasked { pid, namespace, states });
            return Ok(());
        }
        (self.goes_to)(pid);
        let process = open(pid)?;
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            let allowance = self.allowances.of(process::user(pid)?);
            if !allowance.takes_descriptor() {
                break;
            }
            let path = entry?.path();
            let is_socket = fs::read_link(&path)
                .is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(b"socket:"));
            let descriptor = path.file_name().and_then(|name| name.to_str()?.parse().ok());
            let Some(descriptor) = descriptor.filter(|_| is_socket) else { continue };
            let Some((socket, addresses)) = take(process.as_fd(), descriptor) else { continue };
            let place =
                states.iter().find_map(|&it| self.states[it].connections.remove(&addresses));
            let Some(place) = place else { continue };
            let is_denied = (self.is_denied)(socket.as_fd(), place.interface);
            let descriptor = Some(descriptor);
            self.ends.push(End { place, pid, descriptor, namespace, addresses, is_denied });
        }
        Ok(())
    }

    /// Adds the ends of processes that are not asked, but for those whose socket was met in another process.
    fn deny_unasked(&mut self) {
        for Unasked { pid, namespace, states } in std::mem::take(&mut self.unasked) {
            for number in states {
                let left = self.states[number].connections.drain();
                self.ends.extend(left.map(|(addresses, place)| End {
                    place,
                    pid,
                    descriptor: None,
                    namespace,
                    addresses,
                    is_denied: true,
                }));
            }
        }
    }

    /// The states that a process holds, by their numbers; those that are not held yet are read.
    fn states_of(&mut self, pid: u32) -> io::Result<Vec<usize>> {
        let allowance = self.allowances.of(process::user(pid)?);
        let mut numbers = Vec::new();
        for path in state_file::paths_of(pid, allowance)? {
            let Some(source) = StateFile::open(&path, Access::Read)? else { continue };
            let known = self.states.iter().position(|known| known.source.id == source.id);
            let number = known.unwrap_or(self.states.len());
            if known.is_none() {
                let allowance = self.allowances.of(source.user);
                match state_file::read(&source.file, &mut self.mirror, allowance) {
                    Ok(state) => {
                        let connections = connections(state, number);
                        self.states.push(Known { source, connections });
                    }
                    Err(NotRead::Other) => {
                        self.outcome.incompatible.push(pid);
                        continue;
                    }
                    Err(NotRead::Beyond) => continue,
                }
            }
            numbers.push(number);
        }
        Ok(numbers)
    }

    /// All are told before any is woken: the end of one TCP socket is seen at the other, which would take it for
    /// an end in order if it had not been told.
    fn end(mut self) -> Denied {
        self.deny_unasked();
        let told: Vec<&End> = self
            .with_other_ends()
            .into_iter()
            .map(|number| &self.ends[number])
            .filter(|end| self.tell(end).unwrap_or(false))
            .collect();
        for end in &told {
            let Some(descriptor) = end.descriptor else { continue };
            (self.goes_to)(end.pid);
            // One that cannot be woken has ended.
            _ = end.wake(descriptor);
        }
        let connections: BTreeSet<Addresses> = told
            .iter()
            .map(|end| end.addresses)
            .map(|[local, peer]| [local.min(peer), local.max(peer)])
            .collect();
        self.outcome.connections = connections.len();
        self.outcome.namespaces = self.namespaces.into_values().collect();
        self.outcome.curtailed = self.allowances.exceeded();
        self.outcome.incompatible.dedup();
        self.outcome
    }

    /// The ends that are denied, and those at their other side: what rules say of the packets of one end
    /// they need not say of those of the other, and a reset by TCP would meet the rules.
    fn with_other_ends(&self) -> BTreeSet<usize> {
        let mut by_addresses: HashMap<Addresses, Vec<usize>> = HashMap::new();
        for (number, end) in self.ends.iter().enumerate() {
            by_addresses.entry(end.addresses).or_default().push(number);
        }
        let mut all = BTreeSet::new();
        for (number, end) in self.ends.iter().enumerate().filter(|(_, end)| end.is_denied) {
            all.insert(number);
            // The addresses of an end that was not asked are the word of its state, and may be those of others.
            if end.descriptor.is_none() {
                continue;
            }
            let [local, peer] = end.addresses;
            let others = by_addresses.get(&[peer, local]).map_or(&[][..], Vec::as_slice);
            let near = others.iter().find(|&&it| self.ends[it].namespace == end.namespace);
            // In another namespace, if only one can be meant.
            all.extend(near.or(Some(&others).filter(|it| it.len() == 1).and_then(|it| it.first())));
        }
        all
    }

    /// Tells an end that it is denied. False: it is not in shared memory, or not any more.
    fn tell(&self, end: &End) -> io::Result<bool> {
        let file = &self.states[end.place.state].source.file;
        // Open for writing for this moment only: a process that is left behind is no holder.
        let file = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let state =
            state::visit(file.as_raw_fd()).map_err(|it| io::Error::from_raw_os_error(it.0))?;
        Ok(deny(state.slot(end.place.slot), end.place.generation))
    }
}

impl End {
    /// Shuts its TCP socket down, on which a thread of it may sleep.
    fn wake(&self, descriptor: i32) -> io::Result<()> {
        let process = open(self.pid)?;
        // The number may be another file's by now.
        let socket = take(process.as_fd(), descriptor);
        if let Some((socket, _)) = socket.filter(|(_, addresses)| *addresses == self.addresses) {
            net::shutdown(&socket, Shutdown::Both)?;
        }
        Ok(())
    }
}

/// Writes that the connection of this generation is denied. True: it is in shared memory. Otherwise it looks
/// at the word itself when it has moved.
fn deny(slot: &Slot, generation: u32) -> bool {
    if slot.generation.load(Ordering::Acquire) != generation {
        return false;
    }
    slot.denied.store(generation, Ordering::SeqCst);
    // As in `socket::connection::denial`.
    fence(Ordering::SeqCst);
    let has_moved = slot.mode.load(Ordering::SeqCst) == mode::SMC_D;
    if has_moved {
        // Any other value than before is a hint. Release: a call that follows it sees the word.
        slot.closes_seen.fetch_xor(1 << 31, Ordering::AcqRel);
    }
    has_moved
}

/// The connections of a state that have moved or may. Ways to the gateway are not among them: it is asked about
/// where they lead. Nor are those whose addresses are not known, for they ask the filter before they move.
fn connections(state: &State, number: usize) -> HashMap<Addresses, Place> {
    let place = |(index, slot): (usize, &Slot)| {
        let mode = slot.mode.load(Ordering::Acquire);
        let may_move = matches!(mode, mode::TCP | mode::NEGOTIATING | mode::SMC_D);
        let is_way = slot.session.load(Ordering::Relaxed) != 0;
        let family = slot.family.load(Ordering::Acquire);
        let local = address(family, &slot.local_ip, &slot.local_port)?;
        let peer = address(family, &slot.peer_ip, &slot.peer_port)?;
        let place = Place {
            state: number,
            slot: index,
            generation: slot.generation.load(Ordering::Acquire),
            interface: slot.interface.load(Ordering::Relaxed),
        };
        (may_move && !is_way).then_some(([local, peer], place))
    };
    state.slots().enumerate().filter_map(place).collect()
}

fn open(pid: u32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// A connected TCP socket of a process, and its addresses; `None`: it is none, or not any more.
fn take(process: BorrowedFd<'_>, descriptor: i32) -> Option<(OwnedFd, Addresses)> {
    let socket = pidfd_getfd(process, descriptor, PidfdGetfdFlags::empty()).ok()?;
    if sockopt::socket_type(&socket).ok()? != SocketType::STREAM {
        return None;
    }
    let local = SocketAddr::try_from(net::getsockname(&socket).ok()?).ok()?;
    let peer = SocketAddr::try_from(net::getpeername(&socket).ok()??).ok()?;
    let canonical = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
    Some((socket, [canonical(local), canonical(peer)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Maker, alone, set, set8};
    use std::cell::RefCell;
    use std::io::Read;
    use std::net::{IpAddr, TcpListener, TcpStream};

    /// A connection within this process, and a state for each of its ends.
    struct Pair {
        sockets: [TcpStream; 2],
        makers: [Maker; 2],
    }

    impl Pair {
        fn new() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let sockets = [client, listener.accept().unwrap().0];
            let makers = [(); 2].map(|()| Maker::new(sys::pid()));
            for (maker, socket) in makers.iter().zip(&sockets) {
                let ends = [socket.local_addr().unwrap(), socket.peer_addr().unwrap()];
                let slot = maker.connect(3, (ends[0].port(), ends[1].port()), mode::SMC_D);
                for (ip, end) in [&slot.local_ip, &slot.peer_ip].into_iter().zip(ends) {
                    let IpAddr::V4(address) = end.ip() else { panic!() };
                    ip[0].store(u32::from(address).into(), Ordering::Relaxed);
                }
                set(&slot.generation, 7);
                set(&slot.interface, 1);
                set8(&slot.is_server, 0);
            }
            Self { sockets, makers }
        }

        fn slots(&self) -> [&'static Slot; 2] {
            self.makers.each_ref().map(|maker| maker.state.slot(3))
        }

        /// Ends what the client's end is denied.
        fn deny_client(&self) -> Denied {
            let client = self.sockets[0].local_addr().unwrap();
            let is_client = |socket: BorrowedFd<'_>, interface| {
                let local = net::getsockname(socket).unwrap();
                interface == 1 && SocketAddr::try_from(local).unwrap() == client
            };
            end_denied(&Held::default(), is_client, |_| {}).unwrap()
        }

        fn is_open(&self) -> bool {
            let [client, _] = &self.sockets;
            client.set_nonblocking(true).unwrap();
            (&mut &*client).read(&mut [0]).is_err_and(|it| it.kind() == io::ErrorKind::WouldBlock)
        }
    }

    fn denied(slots: [&Slot; 2]) -> [bool; 2] {
        slots.map(Slot::is_denied)
    }

    #[test]
    fn both_ends_of_a_connection_are_told_and_woken() {
        let _alone = alone();
        let (pair, other) = (Pair::new(), Pair::new());
        let outcome = pair.deny_client();
        // Programs of other tests may be in namespaces of their own.
        assert!(outcome.connections == 1 && !outcome.namespaces.is_empty());
        assert_eq!(denied(pair.slots()), [true, true]);
        assert!(pair.slots().iter().all(|slot| slot.closes_seen.load(Ordering::Relaxed) != 0));
        assert!(!pair.is_open());
        assert_eq!((denied(other.slots()), other.is_open()), ([false, false], true));
    }

    #[test]
    fn what_has_not_moved_is_told_and_left_open() {
        let _alone = alone();
        let pair = Pair::new();
        pair.slots().iter().for_each(|slot| set(&slot.mode, mode::NEGOTIATING));
        assert_eq!(pair.deny_client().connections, 0);
        assert_eq!((denied(pair.slots()), pair.is_open()), ([true, true], true));
    }

    #[test]
    fn who_holds_the_locks_of_sockets_is_denied_unasked() {
        let _alone = alone();
        let (pair, own) = (Pair::new(), sys::pid());
        // No user: the processes of other tests may be this one's.
        let held = Held { processes: vec![own], users: Vec::new() };
        let goes_to = |pid| assert_ne!(pid, own, "it is asked or woken");
        let outcome = end_denied(&held, |_, _| false, goes_to).unwrap();
        assert_eq!(outcome.connections, 1);
        assert_eq!((denied(pair.slots()), pair.is_open()), ([true, true], true));
    }

    #[test]
    fn a_process_or_all_of_a_user_are_held() {
        let held = Held { processes: vec![7], users: vec![1000] };
        let has = [(7, 0), (8, 1000), (8, 0)].map(|(pid, user)| held.has(pid, user));
        assert_eq!(has, [true, true, false]);
    }

    #[test]
    fn a_process_of_root_is_held_alone() {
        let mut held = Held::default();
        held.add(1);
        assert_eq!(held, Held { processes: vec![1], users: vec![] });
    }

    #[test]
    fn who_is_not_asked_cannot_have_a_stranger_denied() {
        let addresses: Addresses = ["10.0.0.1:1", "10.0.0.2:2"].map(|it| it.parse().unwrap());
        let unasked = End {
            place: Place { state: 0, slot: 3, generation: 7, interface: 1 },
            pid: 1,
            descriptor: None,
            namespace: (0, 0),
            addresses,
            is_denied: true,
        };
        let asked = End {
            pid: 2,
            descriptor: Some(0),
            addresses: [addresses[1], addresses[0]],
            is_denied: false,
            ..unasked
        };
        let held = Held::default();
        let walk = Walk {
            held: &held,
            is_denied: |_: BorrowedFd<'_>, _| false,
            goes_to: |_| {},
            states: Vec::new(),
            ends: vec![unasked, asked],
            unasked: Vec::new(),
            namespaces: HashMap::new(),
            outcome: Denied::default(),
            allowances: Allowances::new(sys::effective_uid()),
            mirror: state_file::mirror().unwrap(),
        };
        assert_eq!(walk.with_other_ends(), BTreeSet::from([0]));
    }

    #[test]
    fn a_process_is_named_before_it_is_asked_and_before_it_is_woken() {
        let _alone = alone();
        let (pair, named) = (Pair::new(), RefCell::new(Vec::new()));
        let ends = pair.sockets.each_ref().map(|socket| socket.local_addr().unwrap());
        let is_denied = |socket: BorrowedFd<'_>, _| {
            let is_ours = |local: SocketAddr| ends.contains(&local);
            let is_ours =
                SocketAddr::try_from(net::getsockname(socket).unwrap()).is_ok_and(is_ours);
            assert!(!is_ours || named.borrow().last() == Some(&sys::pid()));
            is_ours
        };
        end_denied(&Held::default(), is_denied, |pid| named.borrow_mut().push(pid)).unwrap();
        let own = named.borrow().iter().filter(|pid| **pid == sys::pid()).count();
        assert_eq!((own, pair.is_open()), (3, false), "once for its sockets, once for each end");
    }

    #[test]
    fn the_word_is_for_one_connection_of_a_slot() {
        let _alone = alone();
        let pair = Pair::new();
        let slot = pair.slots()[0];
        assert!(!deny(slot, 6) && !slot.is_denied(), "the slot has another connection by now");
        assert!(deny(slot, 7) && slot.is_denied());
        set(&slot.generation, 8);
        assert!(!slot.is_denied());
    }

    #[test]
    fn a_slot_whose_socket_nobody_has_ends_nothing() {
        let _alone = alone();
        let (pair, liar) = (Pair::new(), Maker::new(sys::pid()));
        let slot = liar.connect(0, (1, 2), mode::SMC_D);
        set(&slot.generation, 1);
        assert_eq!(pair.deny_client().connections, 1);
        assert!(!slot.is_denied());
    }
}
