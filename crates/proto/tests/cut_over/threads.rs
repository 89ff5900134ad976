//! The threads of both ends, each a task that gives way after every step.
//!
//! Signals interrupt the threads of programs, between any two steps but those that the thread does not let itself be
//! interrupted in. A handler sends or receives on the same connection, and its thread goes on when it has ended.

use std::cell::{Ref, RefCell, RefMut};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sidestep_proto::cut_over::{
    self, BeforeEntering, BeforeLeaving, Bell, Enter, Follow, Leave, Machine, Permit, Queue,
    Receiving, Source,
};
use sidestep_proto::ledger::Parts;

use crate::world::{Byte, Fault, Why, World};
use crate::worlds::Step;

/// Room of the ring in bytes: small, so that senders wait for it.
const RING: usize = 6;
/// Bytes that a reader looks at together.
const CHUNK: usize = 5;
/// So many steps after another in which no byte moves, and threads hang.
const PATIENCE: u64 = 10_000;

/// What the tasks of a world share, as one thread has it.
#[derive(Clone)]
pub(crate) struct Table {
    world: Rc<RefCell<World>>,
    random: Rc<RefCell<StdRng>>,
    habits: Habits,
    thread: Thread,
}

/// A thread, by its number.
pub(crate) type Thread = usize;

/// A thread of a program, and the signal handler that it is in.
struct Interruptible {
    table: Table,
    thread: Task,
    /// Begins a handler.
    begins: fn(Table) -> Task,
    handler: Option<Task>,
}

impl Future for Interruptible {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let table = &self.table;
        let is_open = !table.look().unbroken.contains(&table.thread);
        if self.handler.is_none() && is_open && table.chance(table.habits.signals) == 0 {
            let begins = self.begins;
            let handler = begins(table.clone());
            self.handler = Some(handler);
        }
        let Some(handler) = &mut self.handler else { return self.thread.as_mut().poll(context) };
        if handler.as_mut().poll(context).is_ready() {
            self.handler = None;
        }
        Poll::Pending
    }
}

/// What happens how often differs from world to world: one in so many.
#[derive(Clone, Copy)]
struct Habits {
    /// Sends that wait for an answer.
    asks: u64,
    /// Sends by TCP that find no room.
    is_refused: u64,
    /// The longest pause of a thread between two calls, in steps.
    pause: u64,
    /// For how long a thread loses its CPU at most.
    stop: u64,
    /// The longest send in bytes.
    send: u64,
    /// The longest pause of a thread that rings for others, in steps.
    silence: u64,
    /// Bells of such a thread at most.
    bells: u64,
    /// Steps of a thread in which a signal comes.
    signals: u64,
    /// The last byte of this send into the ring is urgent, counted from 0. By the seed itself: it binds the direction to the
    /// ring, which few worlds are to be about.
    urgent: Option<u64>,
}

impl Habits {
    fn of(seed: u64, random: &mut StdRng) -> Self {
        Self {
            urgent: (seed % 8 == 6).then_some(seed / 8 % 16),
            asks: random.random_range(1..5),
            is_refused: random.random_range(2..6),
            pause: random.random_range(1..30),
            stop: random.random_range(1..300),
            send: random.random_range(1..12),
            silence: 1 << random.random_range(0..9),
            bells: 1 << random.random_range(0..7),
            signals: match random.random_range(0..4) {
                0 => 1 << random.random_range(2..9),
                _ => u64::MAX,
            },
        }
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Plays a world by its seed: the sender's program sends `bytes` bytes. `is_traced`: writes down what comes to
/// pass, and prints the end of that if the world goes wrong.
///
/// **Panics**: a byte is lost, doubled or out of order, or threads hang.
pub(crate) fn play(seed: u64, bytes: u64, fault: Option<Fault>, is_traced: bool) -> World {
    let world = World { bytes, fault, trace: is_traced.then(Vec::new), ..World::default() };
    let mut random = StdRng::seed_from_u64(seed);
    let habits = Habits::of(seed, &mut random);
    let (world, random) = (Rc::new(RefCell::new(world)), Rc::new(RefCell::new(random)));
    let mut table = Table { world, random, habits, thread: 0 };
    let told = tell_if_wrong(&table);
    let mut tasks: Vec<Task> =
        vec![Box::pin(table.clone().delivers()), Box::pin(table.clone().operates(bytes))];
    for _ in 0..=table.chance(3) {
        let sends: Task = Box::pin(table.next_thread().sends());
        tasks.push(table.interruptible(sends, |table| Box::pin(table.sends_in_a_handler())));
    }
    for _ in 0..=table.chance(2) {
        let receives: Task = Box::pin(table.next_thread().receives(bytes));
        tasks.push(table.interruptible(receives, |table| Box::pin(table.receives_in_a_handler())));
    }
    for _ in 0..table.chance(3) {
        tasks.push(Box::pin(table.next_thread().rings()));
    }
    if table.chance(2) == 0 {
        tasks.push(Box::pin(table.next_thread().polls(bytes)));
    }
    let mut context = Context::from_waker(Waker::noop());
    let (mut seen, mut idle) = (0, 0);
    // Now and then a thread loses its CPU for a while, in the middle of anything.
    let (mut stopped, mut steps) = (0, 0);
    while table.look().got < bytes || table.look().expected > 0 {
        let next = table.chance(tasks.len() as u64) as usize;
        if steps == 0 {
            stopped = table.chance(tasks.len() as u64) as usize;
            steps = table.chance(table.habits.stop);
        }
        steps = steps.saturating_sub(1);
        if next == stopped {
            continue;
        }
        if tasks[next].as_mut().poll(&mut context).is_ready() {
            drop(tasks.swap_remove(next));
        }
        let moved = table.look().moved;
        idle = if moved == seen { idle + 1 } else { 0 };
        seen = moved;
        assert!(idle < PATIENCE, "threads hang");
    }
    drop(tasks);
    drop(told);
    let Table { world, .. } = table;
    Rc::into_inner(world).expect("no task is left").into_inner()
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
                let from = trace.len().saturating_sub(60);
                eprintln!("{}\n{world:#?}", trace[from..].join("\n"));
            }
        }
    }
    Told(table.world.clone())
}

impl Table {
    fn look(&self) -> Ref<'_, World> {
        self.world.borrow()
    }

    fn change(&self) -> RefMut<'_, World> {
        self.world.borrow_mut()
    }

    fn chance(&self, of: u64) -> u64 {
        self.random.borrow_mut().random_range(0..of)
    }

    fn has(&self, fault: Fault) -> bool {
        self.look().has(fault)
    }

    /// The table of one thread more.
    fn next_thread(&mut self) -> Self {
        self.thread += 1;
        self.clone()
    }

    fn interruptible(&self, thread: Task, begins: fn(Self) -> Task) -> Task {
        Box::pin(Interruptible { table: self.clone(), thread, begins, handler: None })
    }

    /// Does something in which no signal handler interrupts this thread, except by mistake.
    async fn unbroken<T>(&self, breaks: Fault, act: impl Future<Output = T>) -> T {
        if !self.has(breaks) {
            self.change().unbroken.insert(self.thread);
        }
        let done = act.await;
        self.change().unbroken.remove(&self.thread);
        done
    }

    async fn until(&self, is_so: impl Fn(&World) -> bool) {
        loop {
            Step::default().await;
            if is_so(&self.look()) {
                return;
            }
        }
    }

    async fn pause(&self) {
        for _ in 0..self.chance(self.habits.pause) {
            Step::default().await;
        }
    }

    // The sender

    /// Whether this thread has not had the lock already, which a handler of its asks for again.
    async fn lock_sending(&self) -> bool {
        let me = Some(self.thread);
        self.until(|world| [None, me].contains(&world.sender.locked_by)).await;
        self.change().sender.locked_by.replace(self.thread).is_none()
    }

    fn unlock_sending(&self, is_outermost: bool) {
        if is_outermost {
            self.change().sender.locked_by = None;
        }
    }

    async fn enters(&self) -> bool {
        let seen = {
            let world = self.look();
            BeforeEntering {
                turns: world.sender.turns,
                is_settled: true,
                plain_sends: if world.has(Fault::OverlooksPlainSends) {
                    0
                } else {
                    world.sender.plain_sends
                },
                is_held: world.sender.is_held,
                is_permitted: world.is_permitted() || world.has(Fault::EntersUnpermitted),
            }
        };
        let mut enter = Enter::begin(&seen, || true);
        loop {
            Step::default().await;
            if self.has(Fault::AllowsBellsBeforeTurning) && matches!(enter, Enter::Turns { .. }) {
                self.change().sender.may_ring = true;
                self.pause().await;
            }
            if enter == Enter::Rings {
                self.rings_once(Why::Anyway).await;
            }
            let Some(answer) = self.change().enter(enter) else { return enter == Enter::Entered };
            enter = enter.answered(answer).unwrap();
        }
    }

    async fn leaves(&self) -> bool {
        let seen = {
            let world = self.look();
            BeforeLeaving {
                turns: world.sender.turns,
                is_open: world.sender.may_ring,
                is_over: false,
                is_permitted: world.is_permitted() || world.has(Fault::LeavesUnpermitted),
                is_marked: world.sender.is_marked && !world.has(Fault::LeavesItsMark),
                unfinished: match world.fault {
                    Some(Fault::LeavesInTheMiddle) => 0,
                    _ => world.sender.unfinished,
                },
            }
        };
        let mut leave = Leave::begin(&seen);
        loop {
            Step::default().await;
            match leave {
                Leave::Wakes { .. } if !self.has(Fault::LeavesReadersAsleep) => {
                    self.wakes_readers().await;
                }
                Leave::Rings => self.rings_once(Why::Anyway).await,
                Leave::Turns { .. } if self.has(Fault::TurnsTooLate) => {
                    // The byte that follows goes first.
                    self.change().tcp.send(Byte::Data(u64::MAX));
                    self.pause().await;
                }
                _ => {}
            }
            let Some(answer) = self.change().leave(leave) else { return leave == Leave::Left };
            leave = leave.answered(answer).unwrap();
        }
    }

    /// After something was published.
    async fn wakes_readers(&self) {
        Step::default().await;
        if self.has(Fault::ClaimsUnseen) {
            if self.change().answers_request() {
                self.rings_once(Why::Anyway).await;
            }
        } else if self.look().is_asked() {
            self.rings_once(Why::Asked).await;
        }
    }

    async fn rings_once(&self, why: Why) {
        let mut bell = Bell::begin();
        loop {
            Step::default().await;
            let Some(answer) = self.change().bell(bell, why) else { return };
            bell = bell.answered(answer).unwrap();
        }
    }

    /// A thread of the sender's program. What it sends is numbered when it goes.
    async fn sends(self) {
        loop {
            self.pause().await;
            let len = 1 + self.chance(self.habits.send);
            let len = self.change().promises(len);
            if len == 0 {
                return;
            }
            self.sends_one(len).await;
            if self.chance(self.habits.asks) == 0 {
                // What it has sent was a question, and the answer needs the room that was made known.
                self.until(|world| world.got == world.gone && world.expected == 0).await;
            }
        }
    }

    /// One send of the program.
    async fn sends_one(&self, len: u64) {
        let (mut left, mut is_part) = (len, false);
        while left > 0 {
            self.change().follow_wishes_sending();
            let is_outermost = self.lock_sending().await;
            let may_leave = is_outermost || self.has(Fault::LeavesInAHandler);
            let goes_by_ring = if !self.look().sender.may_ring {
                self.unbroken(Fault::BreaksEntering, self.enters()).await
            } else if self.look().sender.leaves && may_leave {
                !self.unbroken(Fault::BreaksLeaving, self.leaves()).await
            } else {
                true
            };
            if !goes_by_ring {
                assert!(!is_part, "the direction leaves the ring in the middle of a send");
                Step::default().await;
                self.change().sender.plain_sends += 1;
                Step::default().await;
                if cut_over::is_ring(self.look().sender.turns) && !self.has(Fault::SendsUnasked) {
                    // A handler has entered meanwhile.
                    self.change().sender.plain_sends -= 1;
                    self.unlock_sending(is_outermost);
                    continue;
                }
                self.unlock_sending(is_outermost);
                self.pause().await;
                let is_refused = self.chance(self.habits.is_refused) == 0;
                for _ in 0..if is_refused { 0 } else { left } {
                    Step::default().await;
                    let byte = self.change().next_byte();
                    self.change().tcp.send(byte);
                }
                self.change().sender.plain_sends -= 1;
                if !is_refused {
                    return;
                }
                // Without room the program does something else first: it reads an answer.
                self.until(|world| world.got == world.gone).await;
                continue;
            }
            Step::default().await;
            let n = ((RING - self.look().ring.len()) as u64).min(left);
            for _ in 0..n {
                let byte = self.change().next_byte();
                self.change().ring.push_back(byte);
            }
            left -= n;
            if left > 0 && !is_part {
                is_part = true;
                self.change().sender.unfinished += 1;
            }
            if left == 0 {
                self.finishes(&mut is_part);
                self.change().sent_into_ring(self.habits.urgent);
            }
            self.unlock_sending(is_outermost);
            self.wakes_readers().await;
            if left > 0 {
                self.until(|world| world.ring.len() < RING).await;
            }
        }
    }

    fn finishes(&self, is_part: &mut bool) {
        if core::mem::take(is_part) {
            self.change().sender.unfinished -= 1;
        }
    }

    async fn sends_in_a_handler(self) {
        let len = 1 + self.chance(self.habits.send);
        let len = self.change().promises(len);
        self.sends_one(len).await;
    }

    /// Another thread of the sender's program makes room known, or wakes for another reason.
    async fn rings(self) {
        // Not for ever: such bells wake a reader whose own bell was lost.
        for _ in 0..self.chance(self.habits.bells) {
            for _ in 0..self.chance(self.habits.silence) {
                Step::default().await;
            }
            let (sent, turns) = self.change().expects_bell();
            self.rings_once(Why::Anyway).await;
            // A direction by TCP has no bells: its bytes wake.
            let has_come = |world: &World| {
                let turned = world.sender.turns != turns || !cut_over::is_ring(turns);
                turned || world.tcp.sent > sent
            };
            self.until(has_come).await;
            self.change().expected -= 1;
        }
    }

    // The receiver

    async fn lock_receiving(&self) -> bool {
        let me = Some(self.thread);
        self.until(|world| [None, me].contains(&world.receiver.locked_by)).await;
        self.change().receiver.locked_by.replace(self.thread).is_none()
    }

    fn unlock_receiving(&self, is_outermost: bool) {
        if is_outermost {
            self.change().receiver.locked_by = None;
        }
    }

    async fn permits(&self) {
        let mut permit = {
            let world = self.look();
            let is_marked = world.sender.is_marked && !world.has(Fault::LeavesItsMark);
            Permit::begin(world.receiver.followed, is_marked)
        };
        loop {
            Step::default().await;
            if self.has(Fault::ReturnsBeforeAsking) && permit == Permit::Asks {
                self.change().permit(Permit::Grants);
                self.change().permit(Permit::Returns);
                self.pause().await;
            }
            let Some(answer) = self.change().permit(permit) else { return };
            permit = permit.answered(answer).unwrap();
        }
    }

    /// What the bytes at the front of the queue are. Looks at them first.
    async fn parts(&self) -> (Parts, usize) {
        let early = self.look().peer_turn();
        Step::default().await;
        let n = self.look().tcp.queue.len().min(CHUNK);
        Step::default().await;
        let world = self.look();
        let turn = match world.fault {
            Some(Fault::LooksForTheTurnFirst) => early,
            _ => world.peer_turn(),
        };
        let receiver = &world.receiver;
        let queue = Queue {
            consumed: receiver.consumed,
            followed: receiver.followed,
            from: receiver.from,
            turn,
        };
        (cut_over::parts(n as u64, &queue), n)
    }

    async fn skips_bells(&self) {
        loop {
            let may_have = {
                let receiver = &self.look().receiver;
                cut_over::is_ring(receiver.followed) || receiver.consumed < receiver.from
            };
            let (parts, n) = self.parts().await;
            if !may_have || n == 0 || parts.bells == 0 {
                return;
            }
            Step::default().await;
            let mut world = self.change();
            for _ in 0..parts.bells {
                assert_eq!(world.tcp.queue.pop_front(), Some(Byte::Bell), "taken for a bell");
            }
            world.receiver.consumed += parts.bells;
        }
    }

    /// The same, for a thread that does not sleep: bells are there for the one that does.
    async fn skips_bells_alone(&self) {
        Step::default().await;
        if self.has(Fault::TakesBellsOfSleepers) {
            return self.skips_bells().await;
        }
        if !core::mem::replace(&mut self.change().receiver.is_secluded, true) {
            self.skips_bells().await;
            self.change().receiver.is_secluded = false;
        }
    }

    /// Where the next bytes are. Under the receive lock.
    async fn settles(&self) -> Source {
        if self.look().receiver.wants_permit {
            self.permits().await;
        }
        loop {
            if self.look().receiver.takes_unasked {
                return Source::Ring;
            }
            self.skips_bells_alone().await;
            let was_empty = self.look().ring.is_empty();
            if self.has(Fault::LooksAtTheRingFirst) {
                self.pause().await;
            }
            Step::default().await;
            let turn = self.look().peer_turn();
            Step::default().await;
            let seen = {
                let world = self.look();
                let is_ring_empty = match world.fault {
                    Some(Fault::LeavesBytesInTheRing) => true,
                    Some(Fault::LooksAtTheRingFirst) => was_empty,
                    _ => world.ring.is_empty(),
                };
                let receiver = &world.receiver;
                let consumed = match world.fault {
                    Some(Fault::LeavesBytesInTcp) => u64::MAX,
                    _ => receiver.consumed,
                };
                let consumed =
                    if cut_over::is_ring(receiver.followed) { receiver.consumed } else { consumed };
                Receiving { consumed, followed: receiver.followed, turn, is_ring_empty }
            };
            let follow = cut_over::follow(&seen);
            let mut world = self.change();
            match follow {
                Follow::Reads(source) => return source,
                Follow::Breaks => panic!("a turn that was passed"),
                Follow::IntoRing => {
                    world.receiver.followed += 1;
                    world.receiver.takes_unasked = true;
                }
                Follow::IntoTcp { from } => {
                    world.receiver.from = from;
                    world.receiver.followed += 1;
                }
            }
            world.follow_wishes_receiving();
            world.note(|| format!("receiver follows {follow:?}"));
        }
    }

    async fn receives(self, bytes: u64) {
        while self.look().got < bytes {
            self.pause().await;
            self.change().follow_wishes_receiving();
            if self.looks_once().await == 0 {
                self.sleeps().await;
            }
        }
    }

    /// How many bytes are there: takes them.
    async fn looks_once(&self) -> u64 {
        let is_outermost = self.lock_receiving().await;
        let from_either = async {
            let source = self.settles().await;
            self.takes(source).await
        };
        let is_usual = {
            let receiver = &self.look().receiver;
            receiver.takes_unasked && !receiver.wants_permit
        };
        let got = if is_usual {
            self.takes(Source::Ring).await
        } else {
            self.unbroken(Fault::BreaksReceiving, from_either).await
        };
        self.unlock_receiving(is_outermost);
        got
    }

    /// It may not wait: its thread may be the one that sleeps.
    async fn receives_in_a_handler(self) {
        self.change().follow_wishes_receiving();
        self.looks_once().await;
    }

    async fn takes(&self, source: Source) -> u64 {
        let before = self.look().got;
        if source == Source::Ring {
            Step::default().await;
            let mut world = self.change();
            let n = world.ring.len().min(CHUNK);
            let bytes: Vec<Byte> = world.ring.drain(..n).collect();
            bytes.into_iter().for_each(|byte| world.give(byte));
            return world.got - before;
        }
        let (parts, _) = self.parts().await;
        if parts.bells > 0 {
            return 0;
        }
        Step::default().await;
        let mut world = self.change();
        for _ in 0..parts.data {
            let byte = world.tcp.queue.pop_front().expect("seen before");
            world.give(byte);
        }
        world.receiver.consumed += parts.data;
        parts.data
    }

    /// In the kernel, until a byte comes.
    async fn sleeps(&self) {
        Step::default().await;
        if core::mem::replace(&mut self.change().receiver.is_secluded, true) {
            // Behind the one that sleeps.
            return self.until(|world| !world.receiver.is_secluded).await;
        }
        {
            let mut world = self.change();
            world.receiver.arms += 1;
            world.receiver.arm = world.receiver.arms;
        }
        Step::default().await;
        if self.look().ring.is_empty() {
            self.until(|world| !world.tcp.queue.is_empty()).await;
            self.takes_news().await;
        }
        let mut world = self.change();
        (world.receiver.arm, world.receiver.is_secluded) = (0, false);
    }

    /// The sleeper takes the bell that has ended its sleep.
    async fn takes_news(&self) {
        Step::default().await;
        let takes = self.look().receiver.takes_unasked;
        Step::default().await;
        if takes {
            let mut world = self.change();
            if let Some(byte) = world.tcp.queue.pop_front() {
                assert_eq!(byte, Byte::Bell, "taken for a bell, without asking");
            }
            return;
        }
        let is_outermost = self.lock_receiving().await;
        self.unbroken(Fault::BreaksReceiving, self.skips_bells()).await;
        self.unlock_receiving(is_outermost);
    }

    /// Another thread of the receiver clears bells away.
    async fn polls(self, bytes: u64) {
        while self.look().got < bytes {
            self.pause().await;
            let is_outermost = self.lock_receiving().await;
            if !core::mem::replace(&mut self.change().receiver.is_secluded, true) {
                if self.look().receiver.takes_unasked {
                    self.takes_unasked().await;
                } else {
                    self.skips_bells().await;
                }
                self.change().receiver.is_secluded = false;
            }
            self.unlock_receiving(is_outermost);
        }
    }

    async fn takes_unasked(&self) {
        Step::default().await;
        let mut world = self.change();
        if let Some(byte) = world.tcp.queue.pop_front() {
            assert_eq!(byte, Byte::Bell, "drained for a bell");
        }
    }

    // The world around them

    async fn delivers(self) {
        loop {
            Step::default().await;
            if self.chance(3) == 0 {
                self.change().tcp.deliver();
            }
        }
    }

    /// Operators change their minds at both ends, and in the end want shared memory.
    async fn operates(self, bytes: u64) {
        let longest = 1 + self.chance(300);
        while self.look().got < bytes * 3 / 4 {
            for _ in 0..=self.chance(longest) {
                Step::default().await;
            }
            let holds = self.chance(2) == 0;
            let mut world = self.change();
            match self.chance(2) {
                0 => world.sender.is_held = holds,
                _ => world.receiver.is_held = holds,
            }
            world.note(|| format!("operator: {holds}"));
        }
        let mut world = self.change();
        (world.sender.is_held, world.receiver.is_held) = (false, false);
    }
}
