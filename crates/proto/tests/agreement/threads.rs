//! The threads of the programs, each a task that gives way after every step, and what comes over them.

use std::cell::{Ref, RefCell, RefMut};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sidestep_proto::fallback::{ProgramDid, Reason};
use sidestep_proto::rendezvous::agreement::{Call, Illegal, Moment, client, server};

use crate::world::{End, Fault, Habits, Phase, Process, Rendezvous, World};
use crate::worlds::Step;

/// So many steps after another in which no byte moves, and threads hang.
const PATIENCE: u64 = 60_000;

/// What the tasks of a world share.
#[derive(Clone)]
struct Table(Rc<RefCell<World>>);

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A task, and the process that it is a thread of.
struct Thread {
    process: Option<Process>,
    task: Task,
}

fn habits(random: &mut StdRng) -> Habits {
    Habits {
        lost: random.random_range(4..40),
        doubled: random.random_range(3..30),
        full: random.random_range(0..6),
        late: random.random_range(1..200),
        pause_ns: 1 << random.random_range(10..28),
        patience: random.random_range(0..12),
    }
}

/// Plays a world by its seed. `is_traced`: writes down what comes to pass, and prints the end of that
/// if the world goes wrong.
///
/// **Panics**: an end is joined with another than its own, a byte is lost, something is left, or
/// an end looks for ever.
pub(crate) fn play(
    seed: u64,
    connections_max: u64,
    fault: Option<Fault>,
    is_traced: bool,
) -> World {
    let mut random = StdRng::seed_from_u64(seed);
    let habits = habits(&mut random);
    let mut world = World::new(random, habits, fault, is_traced);
    let liar = furnish(&mut world, connections_max);
    let table = Table(Rc::new(RefCell::new(world)));
    let told = tell_if_wrong(&table);
    let mut threads = table.threads(liar);
    let mut context = Context::from_waker(Waker::noop());
    let (mut seen, mut idle) = (0, 0);
    while threads.iter().any(|thread| thread.process.is_some()) {
        let next = table.change().chance(threads.len() as u64) as usize;
        let is_over = {
            let mut world = table.change();
            world.step += 1;
            threads[next].process.is_some_and(|process| world.rooms[process].is_dead)
        };
        if is_over || threads[next].task.as_mut().poll(&mut context).is_ready() {
            drop(threads.swap_remove(next));
        }
        let moved = table.look().moved;
        idle = if moved == seen { idle + 1 } else { 0 };
        seen = moved;
        assert!(idle < PATIENCE, "threads hang");
    }
    drop(threads);
    {
        let mut world = table.change();
        let ends = world.ends.len();
        (0..ends).for_each(|end| world.close_if_alive(end));
        world.kill(liar);
        world.check_leaks();
    }
    drop(told);
    Rc::into_inner(table.0).expect("no task is left").into_inner()
}

/// Processes and connections, and one process that has none. It is known to all others.
fn furnish(world: &mut World, connections_max: u64) -> Process {
    let networks = 1 + world.chance(2);
    let processes = 2 + world.chance(3) as usize;
    for _ in 0..processes {
        let network = world.chance(networks);
        world.add_process(network);
    }
    for a in 0..processes {
        for b in 0..a {
            match world.chance(12) {
                0 => world.estrange(a, b),
                1..5 => world.acquaint(a, b),
                _ => {}
            }
        }
    }
    let connections = (1 + world.chance(5)).min(connections_max) as usize;
    for connection in 0..connections {
        if connection > 0 && world.happens(2) {
            // Slots, cells and records are used again.
            let [client, server] = [2, 1].map(|back| world.ends[2 * connection - back].process);
            world.add_connection(client, server, Some(connection - 1));
            continue;
        }
        let client = world.chance(processes as u64) as usize;
        let server = world.chance(processes as u64) as usize;
        world.add_connection(client, server, None);
    }
    let liar = world.add_process(0);
    for process in 0..processes {
        world.acquaint(process, liar);
    }
    liar
}

/// Prints the end of the trace when a world goes wrong.
fn tell_if_wrong(table: &Table) -> impl Drop + use<> {
    struct Told(Rc<RefCell<World>>);
    impl Drop for Told {
        fn drop(&mut self) {
            if std::thread::panicking()
                && let Ok(mut world) = self.0.try_borrow_mut()
                && let Some(trace) = world.trace.take()
            {
                let from = trace.len().saturating_sub(120);
                eprintln!("{}", trace[from..].join("\n"));
                world.ends.iter().enumerate().for_each(|(n, end)| eprintln!("{n}: {end:?}"));
            }
        }
    }
    Told(table.0.clone())
}

impl Table {
    fn look(&self) -> Ref<'_, World> {
        self.0.borrow()
    }

    fn change(&self) -> RefMut<'_, World> {
        self.0.borrow_mut()
    }

    fn chance(&self, of: u64) -> u64 {
        self.change().chance(of)
    }

    fn threads(&self, liar: Process) -> Vec<Thread> {
        let ends = self.look().ends.len();
        let mut threads: Vec<Thread> = Vec::new();
        for end in 0..ends {
            let process = Some(self.look().ends[end].process);
            let bytes = 20 + self.chance(60);
            self.change().promise(end, bytes);
            let left = Rc::new(RefCell::new(1 + self.chance(2)));
            for _ in 0..*left.borrow() {
                let task = Box::pin(self.clone().runs(end, left.clone()));
                threads.push(Thread { process, task });
            }
            if self.look().ends[end].has_giver && self.chance(2) == 0 {
                threads.push(Thread { process: None, task: Box::pin(self.clone().lets_go(end)) });
            }
        }
        let processes = self.look().rooms.len() - 1;
        if self.chance(5) == 0 {
            let process = self.chance(processes as u64) as usize;
            threads.push(Thread { process: None, task: Box::pin(self.clone().kills(process)) });
        }
        if self.chance(3) == 0 {
            let process = self.chance(processes as u64) as usize;
            threads.push(Thread { process: None, task: Box::pin(self.clone().forks(process)) });
        }
        if self.chance(2) == 0 {
            threads.push(Thread { process: None, task: Box::pin(self.clone().forges(liar)) });
        }
        threads
    }

    async fn pause(&self, most: u64) {
        for _ in 0..self.chance(most) {
            Step::default().await;
        }
    }

    /// A thread of the program at an end. The last of them closes it.
    async fn runs(self, end: End, left: Rc<RefCell<u64>>) {
        while !self.change().has_begun(end) {
            Step::default().await;
        }
        loop {
            self.pause(8).await;
            let pause = self.look().habits.pause_ns;
            self.change().now_ns += pause;
            let (may_send, awaits) = {
                let world = self.look();
                (world.has_to_send(end), world.awaits(end))
            };
            match (may_send, awaits) {
                (false, false) => break,
                (true, _) if self.chance(2) == 0 => self.sends(end).await,
                (_, true) => {
                    let waits = if self.chance(2) == 0 { self.chance(150) } else { 0 };
                    self.receives(end, waits).await;
                }
                _ => self.sends(end).await,
            }
        }
        *left.borrow_mut() -= 1;
        if *left.borrow() == 0 {
            self.change().close(end);
        }
    }

    async fn sends(&self, end: End) {
        let may_move = self.looks(end, Moment::BeforeSend).await;
        let is_moved = self.look().ends[end].phase == Phase::Smc;
        if is_moved && self.change().enters(end) {
            if self.look().has_to_send(end) {
                self.change().push(end, true);
            }
            return;
        }
        {
            let mut world = self.change();
            if !world.has_to_send(end) {
                return;
            }
            // It is this thread's from now on.
            world.promise_one_less(end);
            world.ends[end].plain_sends += 1;
        }
        self.pause(6).await;
        self.change().push(end, false);
        self.change().ends[end].plain_sends -= 1;
        if may_move {
            self.looks(end, Moment::AfterSend).await;
        }
    }

    /// `waits`: for so many steps.
    async fn receives(&self, end: End, mut waits: u64) {
        let may_move = self.looks(end, Moment::BeforeReceive).await;
        let is_plain = {
            let mut world = self.change();
            let is_plain = world.ends[end].phase != Phase::Smc;
            world.ends[end].plain_receives += u32::from(is_plain);
            is_plain
        };
        if !is_plain {
            Step::default().await;
            self.change().pull(end, true);
            return;
        }
        loop {
            Step::default().await;
            let got = self.change().pull(end, false);
            let is_over = {
                let world = self.look();
                !world.awaits(end) || world.is_closed_by_peer(end)
            };
            if got || waits == 0 || is_over {
                break;
            }
            waits -= 1;
        }
        self.change().ends[end].plain_receives -= 1;
        if may_move {
            self.looks(end, Moment::AfterReceive).await;
        }
    }

    /// One look for progress. False: the connection is not to move now.
    async fn looks(&self, end: End, moment: Moment) -> bool {
        {
            let mut world = self.change();
            let patience = world.habits.patience;
            let it = &mut world.ends[end];
            if it.phase != Phase::Undecided || it.messages < patience {
                return false;
            }
            if core::mem::replace(&mut it.is_locked, true) {
                return true;
            }
            let now_ns = world.count_look(end);
            let it = &mut world.ends[end];
            let call = Call { moment, messages: it.messages, received: it.received, now_ns };
            let looked = match &mut it.rendezvous {
                Rendezvous::Client(client) => client.look(&call),
                Rendezvous::Server(server) => server.look(&call),
            };
            assert_eq!(looked, Ok(()), "a look in the middle of another one");
        }
        loop {
            Step::default().await;
            let mut world = self.change();
            if world.ends[end].is_closed_here() {
                return false;
            }
            if world.carry_out(end) != Ok(true) {
                world.ends[end].is_locked = false;
                return true;
            }
        }
    }

    // What comes over them

    /// The process that has passed a connection on closes it.
    async fn lets_go(self, end: End) {
        self.pause(3_000).await;
        self.change().ends[end].has_giver = false;
    }

    async fn kills(self, process: Process) {
        self.pause(4_000).await;
        self.change().kill(process);
    }

    /// A process forks: its child has what it has, and lets go of it after a while.
    async fn forks(self, process: Process) {
        self.pause(1_500).await;
        let ends: Vec<End> = {
            let world = self.look();
            (0..world.ends.len()).filter(|end| world.ends[*end].process == process).collect()
        };
        for end in ends.iter().copied() {
            // A thread that is in the middle of a look finishes it first.
            loop {
                Step::default().await;
                let world = self.look();
                if !world.ends[end].is_locked || world.rooms[process].is_dead {
                    break;
                }
            }
            let mut world = self.change();
            if world.ends[end].is_closed_here() {
                continue;
            }
            if world.is_under_way(end) {
                world.abandon(end);
                world.ends[end].phase = Phase::Plain;
                world.ends[end].reason = Some(Reason::Program(ProgramDid::ForkedMeanwhile));
            }
            world.ends[end].holders += 1;
            world.note(|| format!("end {end} has one more holder"));
        }
        self.pause(3_000).await;
        for end in ends {
            let mut world = self.change();
            world.ends[end].holders = 1;
        }
    }

    async fn forges(self, liar: Process) {
        for _ in 0..self.chance(30) {
            self.pause(200).await;
            let mut world = self.change();
            let connections = world.ends.len() as u64 / 2;
            let connection = world.chance(connections) as usize;
            match world.chance(8) {
                0 => world.take_name(connection),
                1..3 => world.forge_foreign_hello(connection, liar),
                3..5 => world.forge_hello(connection),
                _ => world.forge_hints(liar),
            }
        }
    }
}

impl World {
    /// One step of the machine of an end. `Ok(true)`: there is more.
    fn carry_out(&mut self, end: End) -> Result<bool, Illegal> {
        let begins = match &self.ends[end].rendezvous {
            Rendezvous::Client(client) => client.state() == client::State::Begins,
            Rendezvous::Server(server) => server.state() == server::State::Begins,
        };
        let begun = if begins { self.ask(end) } else { None };
        let (state, answer) = match self.ends[end].rendezvous {
            _ if begins && begun.is_none() => return Ok(true),
            _ if begins => ("Begins".to_owned(), begun),
            Rendezvous::Client(client) => {
                (format!("{:?}", client.state()), self.client(end, client.state()))
            }
            Rendezvous::Server(server) => {
                (format!("{:?}", server.state()), self.server(end, server.state()))
            }
        };
        let Some(answer) = answer else {
            self.settle(end);
            return Ok(false);
        };
        self.note(|| {
            let name = state.split(['(', ' ']).next().unwrap_or_default();
            format!("end {end} {name}: {answer:?}")
        });
        let answered = match &mut self.ends[end].rendezvous {
            Rendezvous::Client(client) => client.answered(&answer),
            Rendezvous::Server(server) => server.answered(&answer),
        };
        assert_eq!(answered, Ok(()), "{answer:?} is no answer to {state}");
        Ok(true)
    }

    /// A look is over: what has become of the attempt?
    fn settle(&mut self, end: End) {
        let reason = match &self.ends[end].rendezvous {
            Rendezvous::Client(client) => match client.state() {
                client::State::Stays(failure) => Some(failure.reason),
                client::State::Moved => None,
                _ => return,
            },
            Rendezvous::Server(server) => match server.state() {
                server::State::Stays(failure) => Some(failure.reason),
                server::State::Moved => None,
                _ => return,
            },
        };
        self.note(|| format!("end {end} has decided: {reason:?}"));
        self.abandon(end);
        if matches!(reason, Some(Reason::PeerBroke(_))) {
            self.check_blame(end);
        }
        match reason {
            Some(_) => (self.ends[end].phase, self.ends[end].reason) = (Phase::Plain, reason),
            None => assert_eq!(self.ends[end].phase, Phase::Smc),
        }
    }

    fn is_under_way(&self, end: End) -> bool {
        let it = &self.ends[end];
        it.phase == Phase::Undecided && it.is_engaged()
    }

    fn close_if_alive(&mut self, end: End) {
        if !self.rooms[self.ends[end].process].is_dead {
            self.close(end);
        }
    }

    fn has_to_send(&self, end: End) -> bool {
        self.ends[end].promised > 0 && !self.is_closed_by_peer(end)
    }

    /// Whether there will be bytes for the program. When the peer has closed, what it has sent is there.
    fn awaits(&self, end: End) -> bool {
        let other = &self.ends[end ^ 1];
        let is_dead = self.rooms[other.process].is_dead;
        let comes =
            other.sent + if other.is_closed_here() { 0 } else { other.promised_or_under_way() };
        self.ends[end].got < comes && !is_dead
    }

    fn acquaint(&mut self, a: Process, b: Process) {
        self.rooms[a].knows.insert(b);
        self.rooms[b].knows.insert(a);
        if self.happens(2) {
            self.note_server(a, b);
            self.note_server(b, a);
        }
    }
}
