//! A distributor's part among several: carries out what [`Election`] decides, and has the kernel serve no longer than the
//! lease runs.
//!
//! The program in the kernel gets the end of the lease before anything else is done, by `CLOCK_BOOTTIME`: it needs no
//! more of this process to end in time, and no wall clock.
//!
//! A thread of its own does this: the daemon's may read a table of a quarter of a million flows, which takes
//! longer than a lease.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sidestep_bpf::Lease;
use sidestep_distributor::election::{
    Action, Candidate, Election, Message, Process, Role, Snapshot, Written,
};
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::announce::Announcer;
use super::copies::{self, Copy, Entries, ServiceKey};
use super::link::LinkAddress;
use super::peers::{self, Ends};
use super::priority;
use super::store::{Contents, Secret, Store, StoreError};
use crate::commands::vip::error::VipError;

/// The rank of a distributor that says none.
const RANK: u32 = 100;
const TICK: Duration = Duration::from_millis(50);
/// From one tick to the next, what is worth a line: an owner has that much to spare twice before its lease ends.
const STOOD_STILL: Duration = Duration::from_millis(300);
/// Datagrams of one tick. What comes beyond waits for the next one: a flood does not have a CPU before all other threads.
const HEARD_MAX: u32 = 4096;
/// After a takeover, when the link is told: a frame may be lost.
const ANNOUNCE_AT: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(3),
];

/// One distributor's part, of the daemon's thread and of the election's.
pub(super) struct Ownership(Arc<Mutex<Part>>);

pub(super) struct Part {
    pub(super) election: Election,
    own: Candidate,
    lease: Lease,
    socket: UdpSocket,
    announcer: Announcer,
    /// The link's number, and our address there.
    pub(super) link: (u32, Option<LinkAddress>),
    /// Addresses of VIPs.
    pub(super) vips: Vec<IpAddr>,
    /// That of all distributors, as soon as it is known.
    secret: Option<Secret>,
    /// The one that is offered if there is none.
    drawn: Secret,
    /// Why the store is not at hand.
    fault: Option<String>,
    /// Until when the kernel serves.
    pub(super) fence: Duration,
    is_serving: bool,
    /// Since when it serves, and how often the link was told.
    announced: (Duration, usize),
    /// Copies of flows that were written, and those of the owner that the daemon's thread has not taken yet.
    copies_written: u64,
    pub(super) copied: Vec<Copy>,
    /// The process of each host whose copies were taken, and the number of the latest.
    taken: HashMap<IpAddr, (u64, u64)>,
}

impl Ownership {
    /// That of the distributor whose host has this address on the link. Waits for the store.
    pub(super) fn begin(
        host: IpAddr,
        store: &Store,
        rank: Option<u32>,
        lease: Lease,
    ) -> Result<Self, VipError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(VipError::of("cannot wait for the store"))?;
        let first = LocalSet::new().block_on(&runtime, store.read());
        let first = first.map_err(|error| {
            VipError::Refused(match error {
                StoreError::Refused(_) => error.to_string(),
                _ => format!(
                    "{error}; a distributor with `store` begins only when a majority of etcd's members is there"
                ),
            })
        })?;
        let address = SocketAddr::new(host, peers::PORT);
        let socket =
            UdpSocket::bind(address).map_err(VipError::of("cannot hear other distributors"))?;
        socket.set_nonblocking(true).map_err(VipError::of("cannot hear other distributors"))?;
        let announcer = Announcer::new().map_err(VipError::of(
            "cannot tell the link whose the VIPs are, which takes root or CAP_NET_RAW",
        ))?;
        let drawn = random().map_err(VipError::of("there are no random numbers"))?;
        let instance = random().map_err(VipError::of("there are no random numbers"))?;
        let process = Process { host, instance: u64::from_ne_bytes(instance) };
        let own = Candidate { process, rank: rank.unwrap_or(RANK) };
        let mut election = Election::new(own);
        let now = boot_time();
        election.tick(now);
        election.read(now, Some(first.snapshot));
        Ok(Self(Arc::new(Mutex::new(Part {
            election,
            own,
            lease,
            socket,
            announcer,
            link: (0, None),
            vips: Vec::new(),
            secret: first.secret,
            drawn,
            fault: None,
            fence: Duration::ZERO,
            is_serving: false,
            announced: (Duration::ZERO, ANNOUNCE_AT.len()),
            copies_written: 0,
            copied: Vec::new(),
            taken: HashMap::new(),
        }))))
    }

    /// Has the election go on, for as long as the process lives.
    pub(super) fn start(&self, store: Store) -> Result<(), VipError> {
        let part = Arc::clone(&self.0);
        let begin = move || -> io::Result<()> {
            if let Err(error) = priority::run_first() {
                log::info!(
                    "the election has no real-time priority ({error}): on a host whose CPUs are taken a takeover may come unasked; \
                     LimitRTPRIO=1 in the unit lets it have one"
                );
            }
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let socket = lock(&part).socket.try_clone()?;
            LocalSet::new().block_on(&runtime, go_on(part, Rc::new(store), socket))
        };
        let run = move || {
            // What it held ends with the lease.
            if let Err(error) = begin() {
                log::error!("the election does not go on: {error}");
            }
        };
        let started = thread::Builder::new().name("election".to_owned()).spawn(run);
        started.map(drop).map_err(VipError::of("cannot start a thread"))
    }

    pub(super) fn part(&self) -> MutexGuard<'_, Part> {
        lock(&self.0)
    }

    /// The host that owns the VIPs.
    pub(super) fn owner(&self) -> Option<IpAddr> {
        self.part().owner()
    }

    /// Those that take over when it is gone.
    pub(super) fn backups(&self) -> Vec<IpAddr> {
        self.part().backups()
    }

    /// Why the store is not at hand, if it is not.
    pub(super) fn fault(&self) -> Option<String> {
        self.part().fault.clone()
    }

    /// Whether the VIPs are served here now.
    pub(super) fn serves(&self) -> bool {
        self.part().fence > boot_time()
    }

    /// Whether the operator's word may be taken here.
    pub(super) fn may_change(&self) -> Result<(), String> {
        self.part().may_change()
    }
}

impl Part {
    /// By which address the others know this host.
    pub(super) fn host(&self) -> IpAddr {
        self.own.process.host
    }

    fn owner(&self) -> Option<IpAddr> {
        self.election.record().and_then(|record| record.owner).map(|owner| owner.host)
    }

    pub(super) fn backups(&self) -> Vec<IpAddr> {
        self.election.record().map(|record| record.backups.clone()).unwrap_or_default()
    }

    pub(super) fn may_change(&self) -> Result<(), String> {
        match (&self.fault, self.election.role()) {
            (Some(fault), _) => Err(format!("{fault}; nothing is changed until it answers")),
            (None, Role::Owner) if self.fence > boot_time() => Ok(()),
            (None, Role::Owner) => {
                Err("this host gives the VIPs up, or its lease has ended and the \
                 store has not renewed it yet; nothing is changed until one serves them: try again"
                    .to_owned())
            }
            (None, _) => Err(self.owner().map_or_else(
                || "no distributor owns the VIPs yet; try again".to_owned(),
                |owner| format!("{owner} owns the VIPs: say it there"),
            )),
        }
    }

    /// Whether it may turn out soon who owns the VIPs, or that the store answers.
    pub(super) fn is_unsettled(&self) -> bool {
        let is_elsewhere = self.owner().is_some_and(|owner| owner != self.host());
        self.fault.is_some() || (!is_elsewhere && self.may_change().is_err())
    }

    fn send(&self, to: IpAddr, message: Message) {
        let Some(secret) = &self.secret else { return };
        let bytes = peers::written(message, &Ends { from: self.own.process.host, to }, secret);
        // One that is lost is asked for again.
        _ = self.socket.send_to(&bytes, SocketAddr::new(to, peers::PORT));
    }

    /// Tells the backups what goes to a target of a service.
    pub(super) fn copy(&mut self, service: ServiceKey, target: IpAddr, entries: Entries) {
        let Some(secret) = &self.secret else { return };
        let Process { host: from, instance } = self.own.process;
        self.copies_written += 1;
        let copy = Copy { instance, number: self.copies_written, service, target, entries };
        for to in self.backups() {
            let bytes = copy.written(&Ends { from, to }, secret);
            // One that is lost is repeated.
            _ = self.socket.send_to(&bytes, SocketAddr::new(to, peers::PORT));
        }
    }

    /// Leaves a copy of the owner's to the daemon's thread, unless it is an old one.
    fn take_copy(&mut self, from: IpAddr, copy: Copy) {
        /// Some more than of a full table; what is too much is repeated.
        const WAITING_MAX: usize = 8192;
        let owner = self.election.record().and_then(|record| record.owner);
        let is_owners = owner == Some(Process { host: from, instance: copy.instance });
        let is_backup = self.election.role() == Role::Backup;
        if !is_owners || !is_backup || self.copied.len() == WAITING_MAX {
            return;
        }
        let latest = self.taken.entry(from).or_default();
        if latest.0 != copy.instance || latest.1 < copy.number {
            *latest = (copy.instance, copy.number);
            self.copied.push(copy);
        }
    }

    fn read(&mut self, now: Duration, read: Result<Contents, StoreError>) {
        let contents = self.heard_of_store(read);
        let snapshot: Option<Snapshot> = contents.map(|contents| {
            self.secret = contents.secret;
            contents.snapshot
        });
        self.election.read(now, snapshot);
    }

    /// Notes whether the store has answered.
    fn heard_of_store<T>(&mut self, answer: Result<T, StoreError>) -> Option<T> {
        match answer {
            Ok(answer) => {
                if self.fault.take().is_some() {
                    log::info!("the store answers again");
                }
                Some(answer)
            }
            Err(error) => {
                let fault = error.to_string();
                if self.fault.is_none() {
                    log::warn!("{fault}; the VIPs stay where they are");
                }
                self.fault = Some(fault);
                None
            }
        }
    }

    fn written(&mut self, now: Duration, written: Result<Written, StoreError>) -> Vec<Action> {
        let is_unsent = matches!(written, Err(StoreError::NotReached(_) | StoreError::Refused(_)));
        let in_vain = if is_unsent { Written::NotSent } else { Written::Unknown };
        let written = self.heard_of_store(written).unwrap_or(in_vain);
        self.election.written(now, written)
    }

    fn is_announcement_due(&mut self, now: Duration) -> bool {
        let (since, times) = self.announced;
        let is_due =
            self.is_serving && ANNOUNCE_AT.get(times).is_some_and(|after| now >= since + *after);
        self.announced.1 += usize::from(is_due);
        is_due
    }

    /// Tells the election something, and the kernel until when to serve. Returns what is to be done.
    fn turn(&mut self, input: impl FnOnce(&mut Self, Duration) -> Vec<Action>) -> Vec<Action> {
        let now = boot_time();
        let actions = input(self, now);
        let until = self.election.serves_until();
        if until != self.fence {
            match self.lease.serve_until(until, self.link.1) {
                Ok(()) => self.fence = until,
                Err(error) => log::error!("the kernel serves as before: {error}"),
            }
        }
        self.note_turn(now);
        actions
    }

    /// Ends to serve, and has another host own the VIPs.
    pub(super) fn give_up(&mut self, to: Option<IpAddr>) {
        self.turn(|part, _| {
            part.election.give_up(to);
            Vec::new()
        });
    }

    fn announce(&mut self) {
        let (index, Some(own)) = self.link else { return };
        if !self.is_announcement_due(boot_time()) {
            return;
        }
        for ip in &self.vips {
            if let Err(error) = self.announcer.announce(index, own, *ip) {
                log::error!("the link is not told where {ip} is: {error}");
            }
        }
    }

    /// Reports what has changed, once the kernel knows it.
    fn note_turn(&mut self, now: Duration) {
        let is_serving = self.fence > now;
        if is_serving == self.is_serving {
            return;
        }
        self.is_serving = is_serving;
        if is_serving {
            self.announced = (now, 0);
            log::info!("this host owns the VIPs; backups: {}", in_a_row(&self.backups()));
        } else if self.election.gives_up() {
            log::info!("this host gives the VIPs up");
        } else if self.election.role() == Role::Owner {
            log::warn!(
                "the VIPs are not served: the lease has ended, and the store has not renewed it"
            );
        } else {
            log::info!("this host does not own the VIPs any more");
        }
    }
}

/// The thread of the election.
async fn go_on(part: Arc<Mutex<Part>>, store: Rc<Store>, socket: UdpSocket) -> io::Result<()> {
    let socket = tokio::net::UdpSocket::from_std(socket)?;
    spawn_local(listen(Arc::clone(&part), Rc::clone(&store), socket));
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = boot_time();
    loop {
        ticks.tick().await;
        let now = boot_time();
        let passed = now.saturating_sub(std::mem::replace(&mut before, now));
        if passed >= STOOD_STILL {
            log::warn!("this process or its host has stood still for {passed:.1?}");
        }
        drive(&part, &store, |part, now| part.election.tick(now));
        lock(&part).announce();
    }
}

async fn listen(part: Arc<Mutex<Part>>, store: Rc<Store>, socket: tokio::net::UdpSocket) {
    // One more than a copy has: a longer one is not taken for its beginning.
    let mut bytes = [0; copies::LEN_MAX + 1];
    let (mut heard, mut begun) = (0, Instant::now());
    loop {
        if begun.elapsed() >= TICK {
            (heard, begun) = (0, Instant::now());
        }
        if heard == HEARD_MAX {
            sleep_until(begun + TICK).await;
        }
        heard += 1;
        // An error is that of a peer which is not there.
        let Ok((len, from)) = socket.recv_from(&mut bytes).await else { continue };
        drive(&part, &store, |part, now| {
            let Some(secret) = &part.secret else { return Vec::new() };
            let (bytes, from) = (&bytes[..len], from.ip());
            let ends = Ends { from, to: part.own.process.host };
            if let Some(copy) = Copy::read(bytes, &ends, secret) {
                part.take_copy(from, copy);
                return Vec::new();
            }
            let message = peers::read(bytes, &ends, secret);
            message.and_then(|it| part.election.told(now, from, it)).into_iter().collect()
        });
    }
}

/// Tells the election something, then the kernel until when to serve, and does what is to be done.
fn drive(
    part: &Arc<Mutex<Part>>,
    store: &Rc<Store>,
    input: impl FnOnce(&mut Part, Duration) -> Vec<Action>,
) {
    let actions = lock(part).turn(input);
    for action in actions {
        match action {
            Action::Send(to, message) => lock(part).send(to, message),
            request => drop(spawn_local(ask_store(Arc::clone(part), Rc::clone(store), request))),
        }
    }
}

async fn ask_store(part: Arc<Mutex<Part>>, store: Rc<Store>, request: Action) {
    match request {
        Action::Send(..) => {}
        Action::Read => {
            let read = store.read().await;
            drive(&part, &store, |part, now| {
                part.read(now, read);
                Vec::new()
            });
        }
        Action::Register(candidate) => {
            let drawn = lock(&part).drawn;
            let registered = store.register(candidate, drawn).await;
            drive(&part, &store, |part, now| {
                let is_done = part.heard_of_store(registered).is_some();
                part.election.registered(now, is_done);
                Vec::new()
            });
        }
        Action::Write { expected, record } => {
            let written = store.write(expected, &record).await;
            drive(&part, &store, |part, now| part.written(now, written));
        }
    }
}

fn lock(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    part.lock().expect("neither thread panics with it")
}

pub(super) fn in_a_row(hosts: &[IpAddr]) -> String {
    if hosts.is_empty() {
        return "none".to_owned();
    }
    hosts.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}

pub(super) fn random<const LEN: usize>() -> io::Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The clock that never jumps, and stands still in suspension: that of affinities.
pub(super) fn monotonic_time() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}

/// How long this thread was on a CPU.
pub(super) fn own_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// The clock that never jumps, and goes on in suspension.
pub(super) fn boot_time() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}
