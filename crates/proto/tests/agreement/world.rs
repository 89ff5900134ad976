//! What the ends share, what the kernel has of them, and what an observer outside sees.
//!
//! Every state of a machine that is carried out is one step, so another end, another thread or a
//! death can come between any two. Words are sequentially consistent here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::RngExt;
use rand::rngs::StdRng;
use sidestep_proto::fallback::{Lack, OperatorSaid, PeerCannot, Reason};
use sidestep_proto::rendezvous::Refusal;
use sidestep_proto::rendezvous::agreement::{
    Answer, Client, Confirm, Givers, Greeter, Greeting, Letter, LookedUp, Seen, Server, Shown,
    Standing, Token, Traces, begin::Begin, client, seek, server,
};
use sidestep_wire::clc::Decline;
use sidestep_wire::diagnosis::Diagnosis;
use sidestep_wire::host_control::{ControlMessage, Hello, Instance, Side};
use sidestep_wire::ids::PeerId;
use sidestep_wire::rmbe_size::RmbeSize;

/// A mistake that is planted, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server believes a Confirm without its check.
    BelievesConfirms,
    /// The server does not wait for the Confirm.
    EntersUnconfirmed,
    /// The client takes an Accept that is another client's for its own.
    TakesAnyAccept,
    /// The server takes any proposal, whatever token it shows.
    OverlooksTokens,
    /// The client takes a greeting of another connection for its own.
    TakesAnyGreeting,
    /// A hello of another user is believed.
    BelievesStrangers,
    /// The phase is turned before the CLC message is written.
    ShowsBeforeItPuts,
    /// The server shows that it has accepted before it reads by the ledger.
    ShowsBeforeItReads,
    /// An end begins to read by the ledger beside a thread in a plain receive.
    ReadsBesideReaders,
    /// An end goes on although the IP filter objects.
    OverlooksDenials,
    /// An end begins although another process may use the connection.
    BeginsBesideHolders,
    /// A ring that was not needed is given back twice.
    GivesBackTwice,
    /// It is not given back.
    KeepsRing,
    /// A claim is not withdrawn.
    KeepsClaim,
    /// The connection's name stays bound.
    KeepsName,
    /// An attempt that is over still counts.
    KeepsAttempt,
    /// The clock of an end stands still.
    LosesTime,
}

/// All of them, each with a world that finds it.
pub(crate) const FAULTS: [(Fault, u64); 17] = [
    (Fault::BelievesConfirms, 1),
    (Fault::EntersUnconfirmed, 1),
    (Fault::TakesAnyAccept, 181),
    (Fault::OverlooksTokens, 115),
    (Fault::TakesAnyGreeting, 12_113),
    (Fault::BelievesStrangers, 5),
    (Fault::ShowsBeforeItPuts, 0),
    (Fault::ShowsBeforeItReads, 2),
    (Fault::ReadsBesideReaders, 2),
    (Fault::OverlooksDenials, 0),
    (Fault::BeginsBesideHolders, 0),
    (Fault::GivesBackTwice, 4),
    (Fault::KeepsRing, 4),
    (Fault::KeepsClaim, 0),
    (Fault::KeepsName, 0),
    (Fault::KeepsAttempt, 0),
    (Fault::LosesTime, 0),
];

/// A process, by its place in the world.
pub(crate) type Process = usize;
/// An end of a connection: twice the number of the connection, and one more at the server.
pub(crate) type End = usize;

/// A byte of a program: of which end, and its place in what that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Byte(pub(crate) End, pub(crate) u64);

/// What is in a CLC box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clc {
    Nothing,
    Proposal,
    Accept(RmbeSize),
    Confirm(RmbeSize),
    Decline,
    /// What cannot be read.
    Nonsense,
}

/// How far an end shows that it has come, in a record. `None`: it is free, or detached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) shown: Option<Shown>,
    generation: u32,
    pub(crate) peer_slot: Option<usize>,
    pub(crate) token: Token,
    ring: Option<u64>,
    wished: RmbeSize,
    clc: Clc,
    /// The offset from which on its owner sends through the ring.
    pub(crate) turn: Option<u64>,
}

impl Record {
    fn new(wished: RmbeSize) -> Self {
        Self {
            shown: None,
            generation: 0,
            peer_slot: None,
            token: [0; 16],
            ring: None,
            wished,
            clc: Clc::Nothing,
            turn: None,
        }
    }
}

/// Where a hint leads: to a slot of a process.
pub(crate) type Hint = (Process, usize);

/// A connection slot of a process.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    generation: u32,
    pub(crate) end: Option<End>,
    /// The ring that it has, in the memory that is shared with whom.
    ring: Option<(u64, Process)>,
}

/// A process.
#[derive(Debug, Default)]
pub(crate) struct Room {
    pub(crate) is_dead: bool,
    network: u64,
    pub(crate) slots: Vec<Slot>,
    pub(crate) cells: BTreeMap<usize, Hint>,
    pub(crate) claims: BTreeMap<Token, Hint>,
    /// Whose memory it has.
    pub(crate) knows: BTreeSet<Process>,
    /// Which servers it has met.
    serve_it: BTreeSet<Process>,
    introduced_to: BTreeSet<Process>,
    mail: VecDeque<Mail>,
    refused: BTreeSet<Process>,
    refusals: u32,
    /// Attempts that are under way.
    pub(crate) attempts: i64,
    answers: VecDeque<Process>,
    acquainting: BTreeSet<Process>,
}

#[derive(Clone, Copy, Debug)]
enum Mail {
    Introduction(Process),
    /// There is no room for the other's memory.
    Refusal(Process),
}

/// How far an end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Undecided,
    Plain,
    Smc,
}

/// The agreement of an end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rendezvous {
    Client(Client),
    Server(Server),
}

/// An end of a connection.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) process: Process,
    slot: Option<usize>,
    after: Option<usize>,
    pub(crate) rendezvous: Rendezvous,
    pub(crate) is_locked: bool,
    pub(crate) phase: Phase,
    pub(crate) reason: Option<Reason>,
    is_closed: bool,
    pub(crate) holders: u32,
    /// The process that has passed it on still has it.
    pub(crate) has_giver: bool,
    /// The IP filter has objected.
    is_denied: bool,
    /// What it says to its peer is wrong, though it does what it should.
    lies: bool,
    size: RmbeSize,
    /// The next question before its attempt.
    question: Begin,
    /// What a hint has led to, while it is followed.
    at: Option<Hint>,
    clc: Clc,
    pub(crate) plain_receives: u32,
    pub(crate) plain_sends: u32,
    /// Bytes that the program takes out of TCP, as the kernel counts; and as the ledger does.
    taken: u64,
    pub(crate) consumed: u64,
    pub(crate) messages: u64,
    pub(crate) received: u64,
    /// Bytes that its program is about to send, that it has sent, of these by TCP, and that it has got.
    pub(crate) promised: u64,
    pub(crate) sending: u64,
    pub(crate) sent: u64,
    pub(crate) sent_by_tcp: u64,
    pub(crate) got: u64,
    pub(crate) turned: bool,
    pub(crate) queue: VecDeque<Byte>,
    /// Looks since the attempt is under way, and the time that they have taken.
    looks: u64,
    looks_allowed: u64,
    looked_ns: u64,
    waited_ns: u64,
}

impl Place {
    pub(crate) fn is_closed_here(&self) -> bool {
        self.is_closed
    }

    /// The attempt is under way.
    pub(crate) fn is_engaged(&self) -> bool {
        self.looks_allowed < u64::MAX
    }

    pub(crate) fn promised_or_under_way(&self) -> u64 {
        self.promised + self.sending
    }
}

/// A datagram that lies under a name, or is on its way there.
#[derive(Clone, Copy, Debug)]
struct Posted {
    from_step: u64,
    letter: Letter,
}

/// A bound name.
#[derive(Debug, Default)]
struct Name {
    /// `None`: a stranger's.
    owner: Option<End>,
    letters: VecDeque<Posted>,
}

/// What happens how often differs from world to world: one in so many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) full: u64,
    pub(crate) late: u64,
    pub(crate) pause_ns: u64,
    pub(crate) patience: u64,
}

/// All of it.
pub(crate) struct World {
    pub(crate) rooms: Vec<Room>,
    pub(crate) ends: Vec<Place>,
    pub(crate) records: BTreeMap<(Process, Process, usize), Record>,
    rings: BTreeMap<u64, VecDeque<Byte>>,
    names: BTreeMap<usize, Name>,
    /// Pairs of processes that cannot have each other's memory.
    strange: BTreeSet<(Process, Process)>,
    lookups: BTreeMap<Token, Vec<(Side, Process)>>,
    next_ring: u64,
    pub(crate) now_ns: u64,
    pub(crate) step: u64,
    pub(crate) random: StdRng,
    pub(crate) habits: Habits,
    pub(crate) fault: Option<Fault>,
    pub(crate) trace: Option<Vec<String>>,
    /// Ends that have moved, and bytes that have.
    pub(crate) joined: u64,
    pub(crate) moved: u64,
    pub(crate) through_rings: u64,
}

fn instance(process: Process) -> Instance {
    Instance([process as u8 + 1; 16])
}

fn process_of(instance: Instance) -> Process {
    usize::from(instance.0[0]) - 1
}

fn ring_size(code: u64) -> RmbeSize {
    RmbeSize::from_bytes(16 << 10 << (1 + code % 3)).expect("a size")
}

impl World {
    pub(crate) fn new(
        seed_random: StdRng,
        habits: Habits,
        fault: Option<Fault>,
        is_traced: bool,
    ) -> Self {
        Self {
            rooms: Vec::new(),
            ends: Vec::new(),
            records: BTreeMap::new(),
            rings: BTreeMap::new(),
            names: BTreeMap::new(),
            strange: BTreeSet::new(),
            lookups: BTreeMap::new(),
            next_ring: 1,
            now_ns: 1,
            step: 0,
            random: seed_random,
            habits,
            fault,
            trace: is_traced.then(Vec::new),
            joined: 0,
            moved: 0,
            through_rings: 0,
        }
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    pub(crate) fn chance(&mut self, of: u64) -> u64 {
        self.random.random_range(0..of.max(1))
    }

    /// One in so many.
    pub(crate) fn happens(&mut self, of: u64) -> bool {
        self.chance(of) == 0
    }

    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(what());
        }
    }

    pub(crate) fn add_process(&mut self, network: u64) -> Process {
        self.rooms.push(Room { network, ..Room::default() });
        let it = self.rooms.len() - 1;
        self.rooms[it].knows.insert(it);
        it
    }

    /// The two cannot have each other's memory.
    pub(crate) fn estrange(&mut self, a: Process, b: Process) {
        self.strange.insert((a.min(b), a.max(b)));
    }

    fn are_strange(&self, a: Process, b: Process) -> bool {
        self.strange.contains(&(a.min(b), a.max(b)))
    }

    /// `after`: it begins when the client has closed that connection.
    pub(crate) fn add_connection(
        &mut self,
        client: Process,
        server: Process,
        after: Option<usize>,
    ) {
        for (process, side) in [(client, Side::Client), (server, Side::Server)] {
            let size = ring_size(self.chance(3));
            let lies = self.happens(6);
            let has_giver = side == Side::Server && self.happens(8);
            self.ends.push(Place {
                process,
                slot: None,
                after,
                rendezvous: match side {
                    Side::Client => Rendezvous::Client(Client::new()),
                    Side::Server => Rendezvous::Server(Server::new()),
                },
                is_locked: false,
                phase: Phase::Undecided,
                reason: None,
                is_closed: false,
                holders: 1,
                has_giver,
                lies,
                size,
                at: None,
                clc: Clc::Nothing,
                plain_receives: 0,
                plain_sends: 0,
                taken: 0,
                consumed: 0,
                messages: 0,
                received: 0,
                promised: 0,
                sending: 0,
                sent: 0,
                sent_by_tcp: 0,
                got: 0,
                turned: false,
                queue: VecDeque::new(),
                looks: 0,
                looks_allowed: u64::MAX,
                looked_ns: 0,
                waited_ns: 0,
                is_denied: false,
                question: Begin::new(),
            });
        }
    }

    /// Whether the connection of an end is established, or has been. It is if its time has come and both processes
    /// live.
    pub(crate) fn has_begun(&mut self, end: End) -> bool {
        if self.ends[end].slot.is_some() || self.ends[end].is_closed {
            return true;
        }
        let is_over = |connection: usize| self.ends[2 * connection].is_closed;
        if !self.ends[end].after.is_none_or(is_over) {
            return false;
        }
        let both = [end & !1, end | 1];
        let lives = both.iter().all(|end| !self.rooms[self.ends[*end].process].is_dead);
        for end in both {
            if lives {
                self.ends[end].slot = Some(self.take_slot(self.ends[end].process, end));
            } else {
                self.ends[end].is_closed = true;
            }
        }
        true
    }

    fn take_slot(&mut self, process: Process, end: End) -> usize {
        self.sweep(process);
        let slots = &mut self.rooms[process].slots;
        let is_free = |slot: &Slot| slot.end.is_none() && slot.ring.is_none();
        let index = slots.iter().position(is_free).unwrap_or_else(|| {
            slots.push(Slot::default());
            slots.len() - 1
        });
        slots[index].generation += 1;
        slots[index].end = Some(end);
        index
    }

    pub(crate) fn side(&self, end: End) -> Side {
        if end.is_multiple_of(2) { Side::Client } else { Side::Server }
    }

    fn slot(&self, end: End) -> usize {
        self.ends[end].slot.expect("a slot")
    }

    fn generation(&self, end: End) -> u32 {
        self.rooms[self.ends[end].process].slots[self.slot(end)].generation
    }

    fn network(&self, end: End) -> u64 {
        self.rooms[self.ends[end].process].network
    }

    fn is_distant(&self, end: End) -> bool {
        self.network(end) != self.network(end ^ 1)
    }

    /// What both ends call the connection. Every process could know it.
    pub(crate) fn token_of(&self, end: End) -> Token {
        let mut token = [if self.is_distant(end) { 0xdd } else { 0xcc }; 16];
        token[0] = (end / 2) as u8;
        token
    }

    fn is_established(&self, end: End) -> bool {
        !self.ends[end].is_closed && !self.is_closed_by_peer(end)
    }

    /// The other end has closed the connection.
    pub(crate) fn is_closed_by_peer(&self, end: End) -> bool {
        self.ends[end ^ 1].is_closed
    }

    fn record(&mut self, owner: Process, peer: Process, slot: usize) -> &mut Record {
        let wished = ring_size(0);
        self.records.entry((owner, peer, slot)).or_insert_with(|| Record::new(wished))
    }

    /// The own record of an end, towards this peer.
    fn own(&mut self, end: End, peer: Process) -> &mut Record {
        let (process, slot) = (self.ends[end].process, self.slot(end));
        self.record(process, peer, slot)
    }

    /// A record of a peer, read once.
    fn read(&mut self, end: End, (peer, slot): Hint) -> Seen {
        let (process, own) = (self.ends[end].process, self.slot(end));
        let record = *self.record(peer, process, slot);
        Seen {
            shown: record.shown.unwrap_or(Shown::Otherwise),
            generation: record.generation,
            token: record.token,
            is_for_us: record.peer_slot == Some(own),
        }
    }

    fn follow(&mut self, end: End, hint: Option<Hint>) -> Option<(Hint, Seen)> {
        let process = self.ends[end].process;
        let hint = hint.filter(|(peer, _)| self.rooms[process].knows.contains(peer))?;
        Some((hint, self.read(end, hint)))
    }

    // What an attempt does, and leaves behind

    fn show(&mut self, end: End, peer: Process, shown: Option<Shown>) -> Answer {
        let generation = self.generation(end);
        let record = self.own(end, peer);
        (record.shown, record.generation) = (shown, generation);
        Answer::Done
    }

    /// A CLC message of this end, or what it says instead if it lies.
    fn put(&mut self, end: End, peer: Process, message: Clc) -> Answer {
        let message = if self.ends[end].lies {
            match (self.chance(4), message) {
                (0, _) => Clc::Nonsense,
                (1, Clc::Accept(size)) => Clc::Accept(ring_size(u64::from(size.code()))),
                (1, Clc::Confirm(size)) => Clc::Confirm(ring_size(u64::from(size.code()))),
                (2, _) => Clc::Decline,
                _ => message,
            }
        } else {
            message
        };
        self.own(end, peer).clc = message;
        Answer::Done
    }

    fn claims(&mut self, end: End, is_meant: impl Fn(&Self, Process) -> bool) -> bool {
        let (process, slot, token) = (self.ends[end].process, self.slot(end), self.token_of(end));
        let servers: Vec<Process> = self.rooms[process].serve_it.iter().copied().collect();
        let mut any = false;
        for server in servers {
            if self.rooms[process].knows.contains(&server) && is_meant(self, server) {
                let record = self.own(end, server);
                (record.token, record.peer_slot) = (token, None);
                self.show(end, server, Some(Shown::Claimed));
                self.rooms[server].claims.insert(token, (process, slot));
                any = true;
            }
        }
        any
    }

    /// The claim on the connection, and whose it is.
    fn find_claim(&mut self, end: End) -> Option<Seen> {
        let (process, token) = (self.ends[end].process, self.token_of(end));
        let hint = self.rooms[process].claims.get(&token).copied();
        let (at, seen) = self.follow(end, hint)?;
        self.ends[end].at = Some(at);
        Some(seen)
    }

    fn greet(&mut self, end: End, token: Token) -> Answer {
        let Some((peer, peer_slot)) = self.ends[end].at else { panic!("no claim was found") };
        let (process, slot, size) = (self.ends[end].process, self.slot(end), self.ends[end].size);
        self.rooms[process].cells.remove(&slot);
        let record = self.own(end, peer);
        (record.token, record.peer_slot, record.wished) = (token, Some(peer_slot), size);
        self.show(end, peer, Some(Shown::Greeted));
        self.rooms[peer].cells.insert(peer_slot, (process, slot));
        Answer::Done
    }

    fn find_greeting(&mut self, end: End) -> Answer {
        let (process, slot, token) = (self.ends[end].process, self.slot(end), self.token_of(end));
        let hint = self.rooms[process].cells.get(&slot).copied();
        let Some(((peer, peer_slot), mut seen)) = self.follow(end, hint) else {
            return Answer::Greeting(None);
        };
        if self.has(Fault::TakesAnyGreeting) {
            (seen.token, seen.is_for_us) = (token, true);
        }
        let rmbe_len = self.record(peer, process, peer_slot).wished.bytes() as u32;
        let hello = Hello {
            instance: instance(peer),
            slot: peer_slot as u32,
            generation: seen.generation,
            token: self.record(peer, process, peer_slot).token,
            socket_cookie: 0,
            netns_cookie: 0,
            rmbe_len,
        };
        Answer::Greeting(Some((seen, hello)))
    }

    fn send_hello(&mut self, end: End) -> Answer {
        if self.habits.full > 0 && self.happens(self.habits.full) {
            return Answer::Hello(Greeting::NoRoom);
        }
        let (process, slot) = (self.ends[end].process, self.slot(end));
        let token = std::array::from_fn(|_| self.chance(256) as u8);
        self.rooms[process].cells.remove(&slot);
        let hello = Hello {
            instance: instance(process),
            slot: slot as u32,
            generation: self.generation(end),
            token,
            socket_cookie: 0,
            netns_cookie: self.network(end),
            rmbe_len: self.ends[end].size.bytes() as u32,
        };
        let times = match (self.happens(self.habits.lost), self.happens(self.habits.doubled)) {
            (true, _) => 0,
            (_, true) => 2,
            _ => 1,
        };
        let letter = self.letter(hello, true);
        let connection = end / 2;
        if !self.names.contains_key(&connection) {
            return Answer::Hello(Greeting::NobodyThere);
        }
        for _ in 0..times {
            self.post(connection, letter);
        }
        Answer::Hello(Greeting::Sent(token))
    }

    fn letter(&mut self, hello: Hello, is_friend: bool) -> Letter {
        Letter {
            message: Ok(ControlMessage::Hello(hello)),
            netns_cookie: hello.netns_cookie,
            is_friend,
            is_stranger: !is_friend,
        }
    }

    /// A datagram to a connection's name. It may be late.
    pub(crate) fn post(&mut self, connection: usize, letter: Letter) {
        let late = self.chance(self.habits.late);
        let from_step = self.step + late;
        if let Some(name) = self.names.get_mut(&connection) {
            name.letters.push_back(Posted { from_step, letter });
        }
    }

    fn bind_name(&mut self, end: End) -> Answer {
        if self.names.contains_key(&(end / 2)) {
            return Answer::Failed(Lack::NameTaken.into());
        }
        self.names.insert(end / 2, Name { owner: Some(end), ..Name::default() });
        Answer::Done
    }

    fn read_name(&mut self, end: End) -> Answer {
        let now = self.step;
        let believes = self.has(Fault::BelievesStrangers);
        let Some(name) = self.names.get_mut(&(end / 2)) else { return Answer::Letter(None) };
        let is_there = name.letters.front().is_some_and(|posted| posted.from_step <= now);
        let letter = if is_there { name.letters.pop_front() } else { None };
        Answer::Letter(letter.map(|posted| Letter {
            is_friend: posted.letter.is_friend || believes,
            ..posted.letter
        }))
    }

    fn engage(&mut self, end: End) -> Answer {
        let it = &mut self.ends[end];
        (it.looks, it.waited_ns, it.looked_ns) = (0, 0, self.now_ns);
        it.looks_allowed = 64.max(4 * it.messages.min(4_096));
        let (process, messages) = (it.process, it.messages);
        self.rooms[process].attempts += 1;
        Answer::Engaged { messages, now_ns: self.now_ns }
    }

    // Acquaintances

    fn send_mail(&mut self, to: Process, mail: Mail) -> bool {
        let is_full = self.habits.full > 0 && self.happens(self.habits.full);
        if is_full && !self.rooms[to].is_dead {
            return false;
        }
        self.rooms[to].mail.push_back(mail);
        true
    }

    /// False: try again later.
    fn introduce(&mut self, process: Process, peer: Process) -> bool {
        if self.rooms[process].introduced_to.contains(&peer) {
            return true;
        }
        let is_sent = self.send_mail(peer, Mail::Introduction(process));
        if is_sent {
            self.rooms[process].introduced_to.insert(peer);
        }
        is_sent
    }

    fn refuse(&mut self, process: Process, peer: Process) {
        let _ = self.send_mail(peer, Mail::Refusal(process));
        self.rooms[process].refusals += 1;
        self.rooms[process].refused.insert(peer);
    }

    fn read_mail(&mut self, process: Process) {
        while let Some(mail) = self.rooms[process].mail.pop_front() {
            match mail {
                Mail::Introduction(peer) if self.are_strange(process, peer) => {
                    self.refuse(process, peer);
                }
                Mail::Introduction(peer) => {
                    self.rooms[process].knows.insert(peer);
                    self.rooms[process].acquainting.remove(&peer);
                    self.introduce(process, peer);
                }
                Mail::Refusal(peer) => {
                    self.rooms[process].refusals += 1;
                    self.rooms[process].refused.insert(peer);
                }
            }
        }
    }

    fn introduces(&mut self, end: End, hello: &Greeter) -> Answer {
        let (process, peer) = (self.ends[end].process, process_of(hello.instance));
        if !self.rooms[process].knows.contains(&peer) {
            self.introduce(process, peer);
            self.read_mail(process);
        }
        if self.rooms[process].knows.contains(&peer) {
            self.rooms[process].serve_it.insert(peer);
            Answer::Done
        } else if self.rooms[process].refused.contains(&peer) {
            Answer::Failed(Lack::NoMemory.into())
        } else {
            Answer::NotYet
        }
    }

    fn lookup(&mut self, end: End) -> Answer {
        if self.happens(8) {
            return Answer::LookedUp(if self.happens(2) {
                LookedUp::Later
            } else {
                LookedUp::Away
            });
        }
        let (process, side, token) = (self.ends[end].process, self.side(end), self.token_of(end));
        let waiting = self.lookups.entry(token).or_default();
        if let Some((_, other)) = waiting.iter().copied().find(|(of, _)| *of != side) {
            self.rooms[process].answers.push_back(other);
            self.rooms[other].answers.push_back(process);
        }
        self.lookups.entry(token).or_default().push((side, process));
        Answer::LookedUp(LookedUp::Sent)
    }

    fn read_answers(&mut self, end: End) -> Answer {
        let process = self.ends[end].process;
        while let Some(peer) = self.rooms[process].answers.pop_front() {
            if !self.rooms[process].knows.contains(&peer) {
                self.rooms[process].acquainting.insert(peer);
            }
            if self.side(end) == Side::Client {
                self.rooms[process].serve_it.insert(peer);
            }
        }
        for peer in self.rooms[process].acquainting.clone() {
            self.introduce(process, peer);
        }
        self.read_mail(process);
        Answer::Is(false)
    }

    fn seek(&mut self, end: End, step: seek::Step) -> Answer {
        let process = self.ends[end].process;
        match step {
            seek::Step::LooksForNews => Answer::News {
                is_acquainting: !self.rooms[process].acquainting.is_empty(),
                is_strangers: false,
                now_ns: self.now_ns,
            },
            seek::Step::ReadsAnswers => self.read_answers(end),
            seek::Step::CountsAcquaintances => {
                Answer::Count(self.rooms[process].knows.len() as u32)
            }
            seek::Step::Claims => {
                let network = self.network(end);
                let is_meant = |world: &Self, server: Process| {
                    world.rooms[server].network != network || server == process
                };
                Answer::Is(self.claims(end, is_meant))
            }
            seek::Step::Lookups => self.lookup(end),
            seek::Step::NotesReason(reason) => {
                self.ends[end].reason = Some(reason);
                Answer::Done
            }
            seek::Step::Rests | seek::Step::GivesUp(_) => unreachable!("it has ended"),
        }
    }

    // Rings

    fn take_ring(&mut self, end: End, peer: Process) -> Answer {
        if self.happens(40) {
            return Answer::Failed(OperatorSaid::MemoryLimit.into());
        }
        let (process, slot, ring) = (self.ends[end].process, self.slot(end), self.next_ring);
        self.next_ring += 1;
        self.rings.insert(ring, VecDeque::new());
        let place = &mut self.rooms[process].slots[slot].ring;
        assert!(place.is_none(), "a slot with two rings");
        *place = Some((ring, peer));
        Answer::Done
    }

    fn free_ring(&mut self, process: Process, slot: usize) {
        let (ring, _) =
            self.rooms[process].slots[slot].ring.take().expect("a ring is given back twice");
        self.rings.remove(&ring);
    }

    fn fill(&mut self, end: End, peer: Process, peer_slot: usize, token: Option<Token>) -> Answer {
        let (process, slot, wished) = (self.ends[end].process, self.slot(end), self.ends[end].size);
        let ring = self.rooms[process].slots[slot].ring.map(|(ring, _)| ring);
        let is_wrong = self.ends[end].lies && self.happens(6);
        self.show(end, peer, None);
        let record = self.own(end, peer);
        record.ring = if is_wrong { None } else { ring };
        (record.peer_slot, record.wished, record.turn) = (Some(peer_slot), wished, None);
        if let Some(token) = token {
            record.token = token;
        }
        Answer::Done
    }

    fn read_by_ledger(&mut self, end: End) -> Answer {
        let has_readers = self.ends[end].plain_receives > 0 && !self.has(Fault::ReadsBesideReaders);
        if has_readers || !self.is_established(end) {
            return Answer::Is(false);
        }
        let it = &mut self.ends[end];
        assert_eq!(it.holders, 1, "end {end} moves beside another process");
        (it.phase, it.consumed) = (Phase::Smc, it.taken);
        Answer::Is(true)
    }

    /// An end says that its peer has broken the protocol. Has it?
    pub(crate) fn check_blame(&self, end: End) {
        let is_known_liar = self.ends[end].at.is_none_or(|(peer, _)| self.is_liar(peer));
        assert!(self.ends[end ^ 1].lies || is_known_liar, "end {end} blames an honest peer");
    }

    /// What an end makes of the peer's CLC box.
    fn judge(
        &mut self,
        end: End,
        (peer, peer_slot): Hint,
        expected: impl Fn(Clc) -> Option<RmbeSize>,
    ) -> Answer {
        let process = self.ends[end].process;
        let clc = self.record(peer, process, peer_slot).clc;
        self.ends[end].clc = clc;
        Answer::Clc(match (expected(clc), clc) {
            (Some(size), _) => Ok(size),
            (None, Clc::Decline) => {
                Err(Refusal::Declined(Decline::v2(PeerId::default(), Diagnosis::CNFERR)))
            }
            (None, Clc::Nonsense) => Err(Refusal::Decline(
                Decline::v2(PeerId::default(), Diagnosis::MODEUNSUPP),
                PeerCannot::NothingInCommon.into(),
            )),
            (None, _) => Err(Refusal::Protocol(sidestep_proto::fallback::Field::CLC_TYPE)),
        })
    }

    /// The peer's record and ring, as an end has read them that joins.
    fn ring_named_by(&mut self, end: End, (peer, peer_slot): Hint) -> bool {
        let process = self.ends[end].process;
        self.record(peer, process, peer_slot).ring.is_some()
    }

    /// An end has shown that it is in shared memory. Who is at the other end?
    fn check_joined(&mut self, end: End) {
        self.joined += 1;
        let (peer, peer_slot) = self.ends[end].at.expect("a peer");
        let other = self.rooms[peer].slots[peer_slot].end;
        let is_pair = other == Some(end ^ 1);
        // That of a process that has died, or an end that has been closed, belongs to no end.
        let is_over = self.ends[end ^ 1].is_closed;
        assert!(is_pair || is_over, "end {end} is joined with {other:?} of {peer}");
        assert!(!self.ends[end].is_denied, "end {end} moves, and the IP filter denies it");
    }

    // Carrying out

    fn begin(&mut self, end: End, question: Begin) -> Answer {
        let overlooks = self.has(Fault::BeginsBesideHolders);
        let it = &self.ends[end];
        match question {
            Begin::LooksAtItself => Answer::Standing(Standing {
                has_slot: true,
                is_never_promoted: false,
                is_tcp_only: false,
                is_memory_strict: false,
                is_congested: false,
                is_shared: it.holders > 1 && !overlooks,
                is_received: it.has_giver,
            }),
            Begin::LooksForMemory | Begin::MovesHome { .. } => Answer::Is(true),
            Begin::AsksGivers => {
                Answer::Givers(if self.happens(3) { Givers::Gone } else { Givers::Here })
            }
            Begin::LearnsAddresses => Answer::Is(!self.happens(6)),
            Begin::AsksRules
            | Begin::AsksGateway
            | Begin::AsksNetwork { .. }
            | Begin::AsksMemoryOfFailures { .. } => Answer::Objection(None),
            Begin::LooksWhere if self.is_distant(end) => {
                Answer::Elsewhere(PeerCannot::OtherNamespace.into())
            }
            Begin::LooksWhere => Answer::Here(self.token_of(end)),
            Begin::LearnsIdentity { .. } => Answer::Token(Some(self.token_of(end))),
            Begin::AsksTcpOption { .. } => Answer::Is(false),
            Begin::Over(_) => unreachable!("all are answered"),
        }
    }

    /// Asks the next question before an attempt. `None`: that was not the last.
    pub(crate) fn ask(&mut self, end: End) -> Option<Answer> {
        let (question, side) = (self.ends[end].question, self.side(end));
        let answer = self.begin(end, question);
        if answer == Answer::Givers(Givers::Gone) && side == Side::Server {
            self.ends[end].has_giver = false;
        }
        self.note(|| format!("end {end} {question:?}: {answer:?}"));
        let next = question.answered(side, &answer).expect("an answer to it");
        let begun = if let Begin::Over(what) = next { Some(Answer::Begun(what)) } else { None };
        self.ends[end].question = if begun.is_some() { Begin::new() } else { next };
        begun
    }

    /// Carries out a state of a client; `None`: it rests, or has ended.
    pub(crate) fn client(&mut self, end: End, state: client::State) -> Option<Answer> {
        use client::State as S;
        let process = self.ends[end].process;
        let at = |hello: &Greeter| (process_of(hello.instance), hello.slot as usize);
        Some(match state {
            S::Start
            | S::AwaitsHello(_)
            | S::AwaitsGreeting(_)
            | S::AwaitsIntroduction(_)
            | S::AwaitsAccept(_)
            | S::Moved
            | S::Stays(_)
            | S::Abandoned => return None,
            S::Begins => unreachable!("its questions are asked one by one"),
            S::LooksWhetherAlone(_) => Answer::Is(self.ends[end].holders == 1),
            S::Withdraws => {
                self.withdraw(end);
                Answer::Done
            }
            S::LooksAfar(_) | S::LooksForGreeting(_) => self.find_greeting(end),
            S::Seeks(_, step) => self.seek(end, step),
            S::Claims(_) => {
                let network = self.network(end);
                let is_meant =
                    |world: &Self, server: Process| world.rooms[server].network == network;
                Answer::Is(self.claims(end, is_meant))
            }
            S::LooksForMarker(_) => Answer::Is(!self.happens(30)),
            S::BindsName(_) => self.bind_name(end),
            S::Engages(_) | S::EngagesAfar(_) => self.engage(end),
            S::ReadsName(_) => self.read_name(end),
            S::LooksWhetherOpen(_) | S::LooksWhetherOpenAfar(_) => {
                Answer::Is(self.is_established(end))
            }
            S::Introduces(hello) => self.introduces(end, &hello),
            S::TellsRefusal { hello, .. } => {
                self.refuse(process, process_of(hello.instance));
                Answer::Done
            }
            S::TakesRing(to) => {
                self.ends[end].at = Some(at(&to.hello));
                self.take_ring(end, at(&to.hello).0)
            }
            S::PutsProposal(to) if self.has(Fault::ShowsBeforeItPuts) => {
                self.fill(end, at(&to.hello).0, to.hello.slot as usize, Some(to.hello.token));
                self.show(end, at(&to.hello).0, Some(Shown::Proposed));
                let own = self.slot(end);
                self.rooms[at(&to.hello).0].cells.insert(at(&to.hello).1, (process, own));
                Answer::Done
            }
            S::ShowsProposed(to) if self.has(Fault::ShowsBeforeItPuts) => {
                self.put(end, at(&to.hello).0, Clc::Proposal)
            }
            S::PutsProposal(to) => self.put(end, at(&to.hello).0, Clc::Proposal),
            S::FillsRecord(_) if self.has(Fault::ShowsBeforeItPuts) => Answer::Done,
            S::FillsRecord(to) => {
                let (peer, slot) = at(&to.hello);
                self.fill(end, peer, slot, Some(to.hello.token))
            }
            S::ShowsProposed(to) => self.show(end, at(&to.hello).0, Some(Shown::Proposed)),
            S::LeavesHint(to) => {
                let (peer, slot) = at(&to.hello);
                let own = self.slot(end);
                self.rooms[peer].cells.insert(slot, (process, own));
                Answer::Done
            }
            S::ReadsRecord(to) => {
                let mut seen = self.read(end, at(&to.hello));
                if self.has(Fault::TakesAnyAccept) {
                    seen.is_for_us = true;
                }
                Answer::Record(Some(seen))
            }
            S::ReadsAnswer(to) => self.judge(end, at(&to.hello), |clc| match clc {
                Clc::Accept(size) => Some(size),
                _ => None,
            }),
            S::LooksAtRing { to, .. } => Answer::Is(self.ring_named_by(end, at(&to.hello))),
            S::AsksFilter(_) => self.ask_filter(end),
            S::AdmitsRing(_) => self.admit(),
            S::ReadsByLedger(_) => self.read_by_ledger(end),
            S::PutsConfirm => {
                let (peer, size) = (self.ends[end].at.expect("a peer").0, self.ends[end].size);
                self.put(end, peer, Clc::Confirm(size))
            }
            S::ShowsConfirmed => {
                let (peer, _) = self.ends[end].at.expect("a peer");
                self.check_joined(end);
                self.show(end, peer, Some(Shown::Confirmed))
            }
            S::PutsDecline { server, .. } => self.put(end, process_of(server), Clc::Decline),
            S::ShowsDeclined { server, .. } => {
                self.show(end, process_of(server), Some(Shown::Declined))
            }
        })
    }

    fn admit(&mut self) -> Answer {
        if self.happens(40) {
            Answer::Failed(OperatorSaid::MemoryLimit.into())
        } else {
            Answer::Done
        }
    }

    fn ask_filter(&mut self, end: End) -> Answer {
        let is_denied = self.happens(50);
        self.ends[end].is_denied |= is_denied;
        let is_told = is_denied && !self.has(Fault::OverlooksDenials);
        Answer::Objection(is_told.then_some(OperatorSaid::Denied.into()))
    }

    /// Carries out a state of a server; `None`: it rests, or has ended.
    pub(crate) fn server(&mut self, end: End, state: server::State) -> Option<Answer> {
        use server::State as S;
        let process = self.ends[end].process;
        Some(match state {
            S::Start
            | S::AwaitsClaim
            | S::AwaitsReply(_)
            | S::Moved
            | S::Stays(_)
            | S::Abandoned => return None,
            S::Begins => unreachable!("its questions are asked one by one"),
            S::CountsRefusals(_) => {
                Answer::Strangers { refusals: self.rooms[process].refusals, breaches: 0 }
            }
            S::LooksForClaim(_) | S::LooksAfar => Answer::Record(self.find_claim(end)),
            S::GreetsClient(to) => self.greet(end, to.token),
            S::LooksWhetherBeset(_) => Answer::Is(false),
            S::Buries => Answer::Done,
            S::SendsHello(_) => self.send_hello(end),
            S::NotesReason(reason) => {
                self.ends[end].reason = Some(reason);
                Answer::Done
            }
            S::Engages(_) => self.engage(end),
            S::LooksWhetherAlone => Answer::Is(self.ends[end].holders == 1),
            S::Withdraws => {
                self.withdraw(end);
                Answer::Done
            }
            S::Seeks(step) => self.seek(end, step),
            S::LooksForProposal(to) => {
                let slot = self.slot(end);
                let hint = self.rooms[process].cells.get(&slot).copied();
                let found = self.follow(end, hint);
                self.ends[end].at = found.map(|(at, _)| at);
                let ignores = self.has(Fault::OverlooksTokens);
                Answer::Record(found.map(|(_, seen)| Seen {
                    token: if ignores { to.token } else { seen.token },
                    ..seen
                }))
            }
            S::ReadsMailIfAny(_) => {
                self.read_mail(process);
                Answer::Done
            }
            S::ReadsMail(_) => {
                self.read_mail(process);
                Answer::Count(self.rooms[process].refusals)
            }
            S::LooksForBreach { .. } => Answer::NotYet,
            S::ReadsRefusal(_) => Answer::Failed(Lack::NoMemory.into()),
            S::LooksForReaders(_) => {
                let ignores = self.has(Fault::ReadsBesideReaders);
                Answer::Is(self.ends[end].plain_receives > 0 && !ignores)
            }
            S::ReadsProposal(_) => {
                let at = self.ends[end].at.expect("a peer");
                let size = self.ends[end].size;
                self.judge(end, at, |clc| (clc == Clc::Proposal).then_some(size))
            }
            S::AsksRules(_) => Answer::Is(!self.happens(60)),
            S::AsksFilter(_) => self.ask_filter(end),
            S::ReadsSize(_) => {
                let (peer, slot) = self.ends[end].at.expect("a peer");
                Answer::Size(Some(self.record(peer, process, slot).wished))
            }
            S::LooksAtRing(_) => {
                let at = self.ends[end].at.expect("a peer");
                Answer::Is(self.ring_named_by(end, at))
            }
            S::AdmitsRing(_) => self.admit(),
            S::TakesRing(_) => {
                let (peer, _) = self.ends[end].at.expect("a peer");
                self.take_ring(end, peer)
            }
            S::FillsRecord(_) => {
                let (peer, slot) = self.ends[end].at.expect("a peer");
                self.fill(end, peer, slot, None)
            }
            S::PutsAccept(it) => {
                let (peer, _) = self.ends[end].at.expect("a peer");
                if self.has(Fault::ShowsBeforeItReads) {
                    self.show(end, peer, Some(Shown::Accepted));
                }
                let _ = it;
                let size = self.ends[end].size;
                self.put(end, peer, Clc::Accept(size))
            }
            S::LooksWhetherOpen(_) => Answer::Is(self.is_established(end)),
            S::ReadsByLedger(_) => self.read_by_ledger(end),
            S::GivesRingBack(_) => {
                let slot = self.slot(end);
                if !self.has(Fault::KeepsRing) {
                    self.free_ring(process, slot);
                }
                if self.has(Fault::GivesBackTwice) {
                    self.free_ring(process, slot);
                }
                Answer::Done
            }
            S::ShowsAccepted => {
                let (peer, _) = self.ends[end].at.expect("a peer");
                self.check_joined(end);
                self.show(end, peer, Some(Shown::Accepted))
            }
            S::PutsDecline(_) => {
                let (peer, peer_slot) = self.ends[end].at.expect("a peer");
                self.own(end, peer).peer_slot = Some(peer_slot);
                self.put(end, peer, Clc::Decline)
            }
            S::ShowsDeclined(_) => {
                let (peer, _) = self.ends[end].at.expect("a peer");
                self.show(end, peer, Some(Shown::Declined))
            }
        })
    }

    // The end of an attempt, and of a connection

    fn withdraw(&mut self, end: End) {
        if self.has(Fault::KeepsClaim) {
            return;
        }
        let (process, slot, generation) =
            (self.ends[end].process, self.slot(end), self.generation(end));
        for peer in 0..self.rooms.len() {
            if let Some(record) = self.records.get_mut(&(process, peer, slot))
                && record.generation == generation
                && matches!(record.shown, Some(Shown::Claimed | Shown::Greeted))
            {
                record.shown = None;
            }
        }
    }

    /// Takes back what an attempt has left.
    pub(crate) fn take_back(&mut self, end: End, traces: Traces) {
        if traces.claims {
            self.withdraw(end);
        }
        if traces.name && !self.has(Fault::KeepsName) {
            self.names.remove(&(end / 2));
        }
        if traces.attempt && !self.has(Fault::KeepsAttempt) {
            let process = self.ends[end].process;
            self.rooms[process].attempts -= 1;
        }
    }

    pub(crate) fn abandon(&mut self, end: End) {
        let traces = match &mut self.ends[end].rendezvous {
            Rendezvous::Client(client) => client.abandon(),
            Rendezvous::Server(server) => server.abandon(),
        };
        self.take_back(end, traces);
    }

    /// The program closes its end.
    pub(crate) fn close(&mut self, end: End) {
        if self.ends[end].is_closed || self.ends[end].slot.is_none() {
            return;
        }
        self.note(|| format!("end {end} closes"));
        self.ends[end].is_closed = true;
        self.abandon(end);
        let (process, slot) = (self.ends[end].process, self.slot(end));
        if let Some((_, peer)) = self.rooms[process].slots[slot].ring {
            self.show(end, peer, None);
        }
        self.rooms[process].slots[slot].end = None;
        self.sweep(process);
    }

    /// Frees the rings that peers need no more.
    fn sweep(&mut self, process: Process) {
        for slot in 0..self.rooms[process].slots.len() {
            let Slot { end: None, ring: Some((_, peer)), .. } = self.rooms[process].slots[slot]
            else {
                continue;
            };
            let own = *self.record(process, peer, slot);
            let needs = own.peer_slot.is_some_and(|peer_slot| {
                let theirs = *self.record(peer, process, peer_slot);
                theirs.peer_slot == Some(slot) && theirs.shown.is_some_and(Shown::may_need_ring)
            });
            if !needs || self.rooms[peer].is_dead {
                self.free_ring(process, slot);
            }
        }
    }

    /// A process dies: the kernel closes what it has.
    pub(crate) fn kill(&mut self, process: Process) {
        self.note(|| format!("process {process} dies"));
        self.rooms[process].is_dead = true;
        for end in 0..self.ends.len() {
            if self.ends[end].process == process {
                self.ends[end].is_closed = true;
                self.ends[end].is_locked = false;
            }
        }
        let ends = &self.ends;
        self.names.retain(|_, name| name.owner.is_none_or(|owner| ends[owner].process != process));
    }

    /// After everything: is anything left?
    pub(crate) fn check_leaks(&mut self) {
        for process in 0..self.rooms.len() {
            if !self.rooms[process].is_dead {
                self.sweep(process);
            }
        }
        for process in 0..self.rooms.len() {
            let room = &self.rooms[process];
            if room.is_dead {
                continue;
            }
            assert_eq!(room.attempts, 0, "attempts of {process} that are over still count");
            let is_used = |slot: &Slot| slot.ring.is_some() || slot.end.is_some();
            assert!(!room.slots.iter().any(is_used), "a slot of {process} is not free: {room:?}");
        }
        let names: Vec<_> = self.names.iter().filter(|(_, name)| name.owner.is_some()).collect();
        assert!(names.is_empty(), "names are left: {names:?}");
        let is_honest =
            |process: &Process| *process < self.rooms.len() && !self.rooms[*process].is_dead;
        for ((owner, peer, slot), record) in &self.records {
            let is_claim = matches!(record.shown, Some(Shown::Claimed | Shown::Greeted));
            let is_left = is_claim && is_honest(owner) && !self.is_liar(*owner);
            assert!(!is_left, "slot {slot} of {owner} still claims before {peer}");
        }
    }

    /// A process without connections: it only writes what it should not.
    pub(crate) fn is_liar(&self, process: Process) -> bool {
        !self.ends.iter().any(|end| end.process == process)
    }

    /// The look that begins is one of an attempt that should be over, as long as it has been waited for.
    pub(crate) fn count_look(&mut self, end: End) -> u64 {
        let now = self.now_ns;
        let has_no_clock = self.has(Fault::LosesTime);
        let it = &mut self.ends[end];
        it.looks += 1;
        it.waited_ns += (now - it.looked_ns).min(100_000_000);
        it.looked_ns = now;
        let is_due = it.looks > it.looks_allowed && it.waited_ns > 6_100_000_000;
        let is_under_way = it.is_engaged() && it.phase == Phase::Undecided;
        assert!(!(is_due && is_under_way), "end {end} still waits after {} looks", it.looks);
        if has_no_clock { 1 } else { now }
    }

    // The programs' bytes

    /// Whether the direction of an end is in the ring, after it has tried to enter.
    pub(crate) fn enters(&mut self, end: End) -> bool {
        if self.ends[end].turned {
            return true;
        }
        let it = &self.ends[end];
        let is_settled = it.phase == Phase::Smc && it.plain_sends == 0;
        if !is_settled || !self.is_confirmed(end) {
            return false;
        }
        let (peer, peer_slot) = self.ends[end].at.expect("a peer");
        let other = &self.ends[end ^ 1];
        let is_read = other.is_closed
            || (other.phase == Phase::Smc
                && other.process == peer
                && other.slot == Some(peer_slot));
        assert!(is_read, "end {end} enters a ring that the peer does not read");
        let sent = self.ends[end].sent_by_tcp;
        self.own(end, peer).turn = Some(sent);
        self.ends[end].turned = true;
        true
    }

    fn is_confirmed(&mut self, end: End) -> bool {
        if self.side(end) == Side::Client {
            return true;
        }
        let (peer, peer_slot) = self.ends[end].at.expect("a peer");
        let seen = self.read(end, (peer, peer_slot));
        let process = self.ends[end].process;
        let record = *self.record(peer, process, peer_slot);
        let judged = match record.clc {
            Clc::Confirm(size) => Ok(size),
            Clc::Decline => {
                Err(Refusal::Declined(Decline::v2(PeerId::default(), Diagnosis::CNFERR)))
            }
            _ => Err(Refusal::Protocol(sidestep_proto::fallback::Field::CLC_TYPE)),
        };
        let confirm = match Confirm::of(seen.shown, record.wished, || judged) {
            Confirm::Wrong(_) if self.has(Fault::BelievesConfirms) => Confirm::Right,
            Confirm::Awaited if self.has(Fault::EntersUnconfirmed) => Confirm::Right,
            confirm => confirm,
        };
        if confirm == Confirm::Right {
            assert_eq!(
                record.clc,
                Clc::Confirm(record.wished),
                "end {end} believes what is no Confirm"
            );
        }
        confirm == Confirm::Right
    }

    pub(crate) fn promise(&mut self, end: End, bytes: u64) {
        self.ends[end].promised = bytes;
    }

    /// A thread is about to send one of them by TCP.
    pub(crate) fn promise_one_less(&mut self, end: End) {
        self.ends[end].promised -= 1;
        self.ends[end].sending += 1;
    }

    pub(crate) fn note_server(&mut self, client: Process, server: Process) {
        self.rooms[client].serve_it.insert(server);
    }

    pub(crate) fn push(&mut self, end: End, by_ring: bool) {
        if by_ring {
            self.ends[end].promised -= 1;
        } else {
            self.ends[end].sending -= 1;
        }
        let byte = Byte(end, self.ends[end].sent);
        self.ends[end].sent += 1;
        self.ends[end].messages += 1;
        self.moved += 1;
        if by_ring {
            let slot = self.slot(end);
            let (ring, _) = self.rooms[self.ends[end].process].slots[slot].ring.expect("a ring");
            self.through_rings += 1;
            self.rings.get_mut(&ring).expect("a ring").push_back(byte);
        } else {
            self.ends[end].sent_by_tcp += 1;
            self.ends[end ^ 1].queue.push_back(byte);
        }
    }

    /// The next byte of the program, if it is there: through the ring when all that came before by
    /// TCP was taken.
    pub(crate) fn pull(&mut self, end: End, by_ledger: bool) -> bool {
        let mut byte = None;
        if by_ledger {
            let (peer, peer_slot) = self.ends[end].at.expect("a peer");
            let process = self.ends[end].process;
            let record = *self.record(peer, process, peer_slot);
            if record.turn.is_some_and(|turn| self.ends[end].consumed >= turn) {
                let ring = record.ring.and_then(|ring| self.rings.get_mut(&ring));
                byte = ring.and_then(VecDeque::pop_front);
                return self.give(end, byte);
            }
        }
        if let Some(it) = self.ends[end].queue.pop_front() {
            byte = Some(it);
            self.ends[end].taken += 1;
            self.ends[end].consumed += u64::from(by_ledger);
        }
        self.give(end, byte)
    }

    fn give(&mut self, end: End, byte: Option<Byte>) -> bool {
        let Some(byte) = byte else { return false };
        let it = &mut self.ends[end];
        assert_eq!(byte, Byte(end ^ 1, it.got), "end {end} gets another byte than its next");
        it.got += 1;
        it.messages += 1;
        it.received += 1;
        self.moved += 1;
        true
    }

    // Strangers

    /// A process that is no end of it binds the connection's name.
    pub(crate) fn take_name(&mut self, connection: usize) {
        self.names.entry(connection).or_default();
    }

    /// A datagram of another user: the hello of a process of its own, or of ours.
    pub(crate) fn forge_foreign_hello(&mut self, connection: usize, by: Process) {
        let mut hello = self.forged(connection, by);
        hello.slot = 0;
        let letter = self.letter(hello, false);
        self.post(connection, letter);
        // It accepts what a client would propose to it.
        let client = 2 * connection;
        if let Some(slot) = self.ends[client].slot {
            let size = RmbeSize::from_bytes(hello.rmbe_len as usize).expect("a size");
            let record = self.record(by, self.ends[client].process, 0);
            record.peer_slot = Some(slot);
            (record.shown, record.generation) = (Some(Shown::Accepted), hello.generation);
            (record.ring, record.clc) = (Some(0), Clc::Accept(size));
        }
    }

    /// A process of the same user, known to all, sends the hello of a slot that it has heard of. It does
    /// not know its token.
    pub(crate) fn forge_hello(&mut self, connection: usize) {
        let ends = self.ends.len() as u64;
        let end = self.chance(ends) as usize | 1;
        if self.ends[end].slot.is_none() {
            return;
        }
        let mut hello = self.forged(connection, self.ends[end].process);
        (hello.slot, hello.generation) = (self.slot(end) as u32, self.generation(end));
        let letter = self.letter(hello, true);
        self.post(connection, letter);
    }

    fn forged(&mut self, connection: usize, by: Process) -> Hello {
        Hello {
            instance: instance(by),
            slot: self.chance(4) as u32,
            generation: self.chance(4) as u32,
            token: std::array::from_fn(|_| self.chance(256) as u8),
            socket_cookie: 0,
            netns_cookie: self.network(2 * connection),
            rmbe_len: 65_536,
        }
    }

    /// It writes into the wake memory of others, and shows what it likes in its own records. It knows
    /// the tokens of connections, and not those of hellos.
    pub(crate) fn forge_hints(&mut self, by: Process) {
        let processes = self.rooms.len() as u64;
        let victim = self.chance(processes) as usize;
        let slots = self.rooms[victim].slots.len().max(1) as u64;
        let slot = self.chance(slots) as usize;
        let end = self.chance(self.ends.len() as u64) as usize;
        let token = self.token_of(end);
        let shown = [Shown::Claimed, Shown::Declined, Shown::Proposed, Shown::Accepted];
        let shown = shown[self.chance(4) as usize];
        let record = self.record(by, victim, 0);
        (record.shown, record.token, record.peer_slot) = (Some(shown), token, Some(slot));
        if self.happens(2) {
            self.rooms[victim].cells.insert(slot, (by, 0));
        } else {
            self.rooms[victim].claims.insert(token, (by, 0));
        }
    }
}
