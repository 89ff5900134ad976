//! The programs at both ends, and what the world does to them: tasks that give way after every step.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sidestep_proto::cut_over::is_ring;
use sidestep_proto::ends::{
    Call, Closing, Hearing, Leaving, Note, Reset, Shutting, Telling, Told, What, Words,
};

use crate::checker::{Act, Answer, Checker};
use crate::tcp::{EAGAIN, ECONNABORTED, ECONNRESET, ENOTCONN, EPIPE, ETIMEDOUT, Tcp};
use crate::world::{End, Fault, Hand, World};
use crate::worlds::Step;

/// More steps than any world takes.
const STEPS_MAX: u64 = 100_000;

/// What happens in a world differs from seed to seed.
#[derive(Clone, Copy)]
struct Habits {
    /// Calls of a thread.
    calls: u64,
    /// The longest pause between two calls in steps.
    pause: u64,
    /// For how long a thread loses its CPU at most.
    stop: u64,
    /// One call in so many looks at the kernel without a hint, as a timer has it.
    timer: u64,
    /// Directions move between TCP and the ring.
    moves: bool,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A thread of one end's program, or what the world does to it.
#[derive(Clone)]
struct Thread {
    hand: Hand,
    random: Rc<RefCell<StdRng>>,
    habits: Habits,
}

/// A task, and the end with whose process it dies.
struct Scheduled {
    end: Option<usize>,
    task: Task,
}

/// Plays a world by its seed. `is_traced`: writes down what comes to pass, and prints the end of that if the world goes
/// wrong.
///
/// **Panics**: a program is told what TCP would not have told it, a byte is lost, or a thread does not end.
pub(crate) fn play(seed: u64, calls_max: u64, fault: Option<Fault>, is_traced: bool) -> World {
    let mut random = StdRng::seed_from_u64(seed);
    let habits = Habits {
        calls: random.random_range(2..10).min(calls_max),
        pause: random.random_range(1..40),
        stop: random.random_range(1..120),
        timer: random.random_range(1..6),
        moves: random.random_range(0..3) == 0,
    };
    let turns = [0, 1].map(|_| u32::from(!habits.moves || random.random_range(0..2) == 0));
    let ends = turns.map(|turns| End { turns, runs: true, ..End::default() });
    let mut world = World {
        ends,
        kernel: Tcp::default(),
        checker: Checker::new(),
        fault,
        trace: is_traced.then(Vec::new),
        calls: 0,
        resets: 0,
        ended: 0,
    };
    for end in 0..2 {
        world.ends[end].followed = turns[1 - end];
    }
    let (world, random) = (Rc::new(RefCell::new(world)), Rc::new(RefCell::new(random)));
    let told = tell_if_wrong(&world);
    let mut tasks = Vec::new();
    for end in 0..2 {
        let thread = |random: &Rc<RefCell<StdRng>>| Thread {
            hand: Hand::new(world.clone(), end),
            random: random.clone(),
            habits,
        };
        let first = thread(&random);
        // By TCP the kernel tells one thread of a reset while the library tells another one: a difference as well.
        let threads = if habits.moves { 1 } else { 1 + first.chance(2) };
        world.borrow_mut().ends[end].has_threads = threads > 1;
        for _ in 0..threads {
            let task: Task = Box::pin(thread(&random).calls());
            tasks.push(Scheduled { end: Some(end), task });
        }
        match first.chance(8) {
            0 | 1 => tasks.push(Scheduled { end: None, task: Box::pin(thread(&random).kills()) }),
            // With directions that move it would be one of the differences that `checker` names.
            2 if !habits.moves => {
                tasks.push(Scheduled { end: None, task: Box::pin(thread(&random).breaks()) });
            }
            3 => tasks.push(Scheduled { end: Some(end), task: Box::pin(thread(&random).exits()) }),
            _ => tasks.push(Scheduled { end: Some(end), task: Box::pin(thread(&random).closes()) }),
        }
    }
    run(&world, &random, habits, tasks);
    settle(&world, &random, habits);
    drop(told);
    Rc::into_inner(world).expect("no task is left").into_inner()
}

fn run(
    world: &Rc<RefCell<World>>,
    random: &Rc<RefCell<StdRng>>,
    habits: Habits,
    mut tasks: Vec<Scheduled>,
) {
    let chance = |of: usize| random.borrow_mut().random_range(0..of);
    let mut context = Context::from_waker(Waker::noop());
    // Now and then a thread loses its CPU for a while, in the middle of anything.
    let (mut stopped, mut left, mut steps) = (0, 0, 0);
    while !tasks.is_empty() {
        steps += 1;
        assert!(steps < STEPS_MAX, "threads hang");
        let next = chance(tasks.len());
        if left == 0 {
            (stopped, left) = (chance(tasks.len()), chance(habits.stop as usize));
        }
        left = left.saturating_sub(1);
        if next == stopped && tasks.len() > 1 && left > 0 {
            continue;
        }
        if tasks[next].task.as_mut().poll(&mut context).is_ready() {
            drop(tasks.swap_remove(next));
        }
        // A killed process has no threads.
        tasks.retain(|it| it.end.is_none_or(|end| world.borrow().ends[end].runs));
    }
}

/// In the end an end that is still there has been told everything: it receives until there is nothing more.
fn settle(world: &Rc<RefCell<World>>, random: &Rc<RefCell<StdRng>>, habits: Habits) {
    for end in 0..2 {
        let (is_there, is_locked) = {
            let world = world.borrow();
            (world.ends[end].runs && !world.kernel.ends[end].closed, world.ends[end].is_locked)
        };
        if !is_there {
            continue;
        }
        assert!(!is_locked, "a lock is left");
        let habits = Habits { timer: 1, ..habits };
        let thread = Thread { hand: Hand::new(world.clone(), end), random: random.clone(), habits };
        let task: Task = Box::pin(thread.drains());
        run(world, random, habits, vec![Scheduled { end: Some(end), task }]);
    }
}

/// Prints the end of the trace when a world goes wrong.
fn tell_if_wrong(world: &Rc<RefCell<World>>) -> impl Drop + use<> {
    struct ToldIfWrong(Rc<RefCell<World>>);
    impl Drop for ToldIfWrong {
        fn drop(&mut self) {
            if std::thread::panicking()
                && let Ok(mut world) = self.0.try_borrow_mut()
                && let Some(trace) = world.trace.take()
            {
                let from = trace.len().saturating_sub(80);
                eprintln!("{}\n{:#?}\n{:#?}", trace[from..].join("\n"), world.ends, world.kernel);
            }
        }
    }
    ToldIfWrong(world.clone())
}

/// Answers that count as well as this one, by those of the differences that `checker` names that are about several threads.
fn others_like(world: &World, end: usize, answer: Answer, was_alone: bool) -> Vec<Answer> {
    let own = &world.ends[end];
    match answer {
        Answer::Shut(Ok(())) if !was_alone => vec![Answer::Shut(Err(ENOTCONN))],
        Answer::Count(Err(ECONNRESET | EPIPE)) if own.misses_error => {
            [ECONNABORTED, ETIMEDOUT].map(|errno| Answer::Count(Err(errno))).into()
        }
        Answer::Errno(ECONNRESET | EPIPE) if own.misses_error => {
            [ECONNABORTED, ETIMEDOUT].map(Answer::Errno).into()
        }
        _ => Vec::new(),
    }
}

impl Thread {
    fn chance(&self, of: u64) -> u64 {
        self.random.borrow_mut().random_range(0..of)
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        let end = self.hand.end;
        self.hand.with(|world| world.note(|| format!("{end}: {}", what())));
    }

    async fn pause(&self) {
        for _ in 0..=self.chance(self.habits.pause) {
            Step::default().await;
        }
    }

    async fn until(&self, is_so: impl Fn(&World) -> bool) {
        loop {
            Step::default().await;
            if self.hand.with(|world| is_so(world)) {
                return;
            }
        }
    }

    /// The parts of a look, before a step of a machine that may be one.
    async fn looks(&self) {
        Step::default().await;
        self.hand.looks_at_own();
        Step::default().await;
        self.hand.looks_at_peer();
        Step::default().await;
    }

    // The library, carried out step by step

    async fn hears(&self, first: Option<Hearing>) {
        let mut next = first;
        while let Some(hearing) = next {
            self.looks().await;
            self.is_about_to_hear(hearing).await;
            next = hearing.step(&self.hand, &self.hand);
        }
    }

    /// Before a step of hearing: the fault of that, if it is planted.
    async fn is_about_to_hear(&self, hearing: Hearing) {
        let is_reset = matches!(hearing, Hearing::NotesReset { .. });
        if is_reset && self.hand.with(|world| world.has(Fault::NotesGoneFirst)) {
            self.hand.note(Note::PeerGone);
            self.pause().await;
        }
        self.trace(|| format!("hears {hearing:?}"));
    }

    async fn tells(&self, call: Call) -> Told {
        let mut telling = Telling::begin(call);
        loop {
            if let Telling::Answers(told) = telling {
                return told;
            }
            self.looks().await;
            match telling {
                Telling::Hears(_, hearing) => self.is_about_to_hear(hearing).await,
                _ => self.trace(|| format!("tells {telling:?}")),
            }
            telling = telling.step(&self.hand, &self.hand);
        }
    }

    async fn follows_hint(&self) {
        Step::default().await;
        let hints = self.hand.theirs(|end| end.hints);
        Step::default().await;
        let followed = self.hand.mine(|end| end.followed_hints);
        if followed == hints {
            return;
        }
        let is_hasty = self.hand.with(|world| world.has(Fault::FollowsHintsFirst));
        if is_hasty {
            self.hand.mine(|end| end.followed_hints = hints);
        }
        self.hears(Some(Hearing::Hinted)).await;
        Step::default().await;
        self.hand.mine(|end| {
            if end.followed_hints == followed {
                end.followed_hints = hints;
            }
        });
    }

    /// Where the next bytes are, after following the turns that are due.
    async fn settles(&self) -> bool {
        loop {
            Step::default().await;
            let turns = self.hand.theirs(|end| end.turns);
            Step::default().await;
            let followed = self.hand.mine(|end| end.followed);
            let is_empty = self.hand.theirs(|end| match is_ring(followed) {
                true => end.ring.is_empty(),
                false => end.by_tcp.is_empty(),
            });
            if turns == followed || !is_empty {
                return is_ring(followed);
            }
            self.hand.mine(|end| end.followed += 1);
        }
    }

    async fn locks(&self) {
        self.until(|world| !world.ends[self.hand.end].is_locked).await;
        self.hand.mine(|end| end.is_locked = true);
    }

    /// One send of the program.
    async fn sends(&self, len: usize) -> Result<usize, i32> {
        let by_ring = |end: &mut End| is_ring(end.turns);
        self.follows_hint().await;
        if !self.hand.mine(by_ring) && self.hand.mine(|end| end.own.reset == Reset::None) {
            self.locks().await;
            if !self.hand.mine(by_ring) {
                // Plain sends are counted: nothing turns meanwhile.
                let sent = self.sends_by_tcp(len);
                self.hand.mine(|end| end.is_locked = false);
                let Err(errno) = sent else { return sent };
                // One of the differences that `checker` names: here it is told what the machine says.
                let mut told = errno;
                if self.hand.with(|world| world.kernel.ends[self.hand.end].reset) {
                    self.looks().await;
                    let seen = self.hand.look();
                    if seen.own.reset == Reset::None {
                        told = seen.error_of_tcp(errno);
                    }
                    self.hears(Some(Hearing::OwnCallFailed)).await;
                }
                return Err(told);
            }
            self.hand.mine(|end| end.is_locked = false);
        }
        self.locks().await;
        self.follows_hint().await;
        Step::default().await;
        let own = self.hand.mine(|end| end.own);
        let is_over =
            own.write_shut || own.peer_gone || own.peer_refuses || own.reset != Reset::None;
        if is_over {
            self.hand.mine(|end| end.is_locked = false);
            // One of the differences that `checker` names.
            self.until(|world| !world.ends[self.hand.end].is_shutting).await;
            return match self.tells(Call::Sends { len }).await {
                Told::Sent(n) => Ok(n),
                Told::Errno(errno) => Err(errno),
                other => panic!("a send is told {other:?}"),
            };
        }
        Step::default().await;
        // One of the differences that `checker` names: here the send looks once more.
        let hints = self.hand.theirs(|end| end.hints);
        let has_hint = self.hand.mine(|end| end.followed_hints) != hints;
        let is_refused = has_hint && self.hand.theirs(|end| end.record.refuses);
        let is_late = is_refused || self.hand.mine(|end| end.own.peer_gone);
        if is_late || !self.hand.mine(by_ring) {
            self.hand.mine(|end| end.is_locked = false);
            return Box::pin(self.sends(len)).await;
        }
        // One of the differences that `checker` names: here such a byte gets lost, as in TCP.
        let is_reset = self.hand.theirs(|end| end.own.reset != Reset::None);
        self.hand.mine(|end| {
            for _ in 0..len {
                if !is_reset {
                    end.ring.push_back(end.sent);
                }
                end.sent += 1;
            }
            end.is_locked = false;
        });
        self.hand.theirs(|end| end.has_bell = true);
        Ok(len)
    }

    fn sends_by_tcp(&self, len: usize) -> Result<usize, i32> {
        let end = self.hand.end;
        self.hand.with(|world| {
            let before = world.kernel.ends[1 - end].queue;
            let sent = world.kernel.send(end, len)?;
            if world.kernel.ends[1 - end].queue > before {
                let own = &mut world.ends[end];
                own.by_tcp.push_back(own.sent);
            }
            world.ends[end].sent += sent as u64;
            Ok(sent)
        })
    }

    /// One receive of the program.
    async fn receives(&self) -> Result<usize, i32> {
        loop {
            let by_ring = self.settles().await;
            let found = match by_ring {
                true => self.receives_by_ring().await,
                false => self.receives_by_tcp().await,
            };
            if let Some(found) = found {
                return found;
            }
            Step::default().await;
            // There may be more where the stream goes on.
            let has_turned =
                self.hand.theirs(|end| end.turns) != self.hand.mine(|end| end.followed);
            // One of the differences that `checker` names: here it looks again.
            let is_over = self.hand.mine(|end| end.own.read_shut || end.own.reset != Reset::None);
            if has_turned || is_over {
                continue;
            }
            // With one direction by TCP and one through the ring, the first may notice a death before the second: a difference.
            let is_half = !self.hand.mine(|end| is_ring(end.turns));
            let looks = self.chance(self.habits.timer) == 0 || is_half;
            if looks && !self.hand.mine(|end| end.own.peer_gone) {
                self.hears(Some(Hearing::AsksWhetherGone)).await;
                if self.hand.mine(|end| end.own.peer_gone || end.own.input_ended) {
                    continue;
                }
            }
            return Err(EAGAIN);
        }
    }

    async fn receives_by_ring(&self) -> Option<Result<usize, i32>> {
        Step::default().await;
        if let Some(byte) = self.hand.theirs(|end| end.ring.pop_front()) {
            self.gets(byte);
            return Some(Ok(1));
        }
        self.hand.looks_at_cursors();
        self.ends_input().await
    }

    async fn ends_input(&self) -> Option<Result<usize, i32>> {
        self.follows_hint().await;
        match self.tells(Call::Receives).await {
            Told::Nothing => None,
            Told::End => Some(Ok(0)),
            Told::Errno(errno) => Some(Err(errno)),
            other => panic!("a receive is told {other:?}"),
        }
    }

    async fn receives_by_tcp(&self) -> Option<Result<usize, i32>> {
        Step::default().await;
        let end = self.hand.end;
        match self.hand.with(|world| world.kernel.receive(end)) {
            Ok(1..) => {
                let byte =
                    self.hand.theirs(|end| end.by_tcp.pop_front()).expect("as the kernel has it");
                self.gets(byte);
                Some(Ok(1))
            }
            Ok(0) => {
                self.hears(Some(Hearing::TcpEnded)).await;
                if self.settles().await {
                    return None;
                }
                Some(self.ends_input().await.unwrap_or(Ok(0)))
            }
            // TCP may know nothing of a reset that the peer says.
            Err(EAGAIN) if self.hand.mine(|end| end.own.reset != Reset::None) => {
                self.ends_input().await
            }
            Err(EAGAIN) => None,
            Err(errno) => {
                self.hears(Hearing::failed(errno)).await;
                self.ends_input().await
            }
        }
    }

    fn gets(&self, byte: u64) {
        self.hand.mine(|end| {
            assert_eq!(byte, end.got, "not the next byte of the program");
            end.got += 1;
        });
    }

    // The program

    /// A call begins and ends; the checker sees both.
    async fn calls_one(&self, act: Act) -> Answer {
        let end = self.hand.end;
        let id = self.hand.with(|world| world.checker.begin(end, act));
        let here = match act {
            Act::Shut { reading, writing } => {
                let act = Act::ShutHere { of: id, reading, writing };
                Some(self.hand.with(|world| world.checker.begin(end, act)))
            }
            _ => None,
        };
        let (before, others) = self.hand.mine(|end| {
            end.calls += 1;
            end.begun += 1;
            (end.begun, end.calls > 1)
        });
        self.trace(|| format!("begins {act:?}"));
        let answer = match act {
            Act::Send(len) => Answer::Count(self.sends(len).await),
            Act::Receive => Answer::Count(self.receives().await),
            Act::TakeError => match self.tells(Call::AsksError).await {
                Told::Errno(errno) => Answer::Errno(errno),
                other => panic!("SO_ERROR is told {other:?}"),
            },
            Act::Poll => self.polls().await,
            Act::Shut { reading, writing } => self.shuts(reading, writing).await,
            Act::Linger(zero) => self.lingers(zero).await,
            Act::ShutHere { .. } | Act::Exit | Act::Close | Act::Breaks(_) => {
                unreachable!("no call")
            }
        };
        self.trace(|| format!("ends {act:?}: {answer:?}"));
        let was_alone = self.hand.mine(|end| {
            end.calls -= 1;
            end.begun == before && !others
        });
        self.hand.with(|world| {
            world.calls += 1;
            world.ended += u64::from(answer == Answer::Count(Ok(0)));
            world.resets += u64::from(answer == Answer::Count(Err(ECONNRESET)));
            if let Some(here) = here {
                world.checker.answered(here, &[Answer::Done]);
            }
            let mut answers = vec![answer];
            answers.extend(others_like(world, end, answer, was_alone));
            world.checker.answered(id, &answers);
        });
        answer
    }

    async fn polls(&self) -> Answer {
        self.follows_hint().await;
        if !self.hand.mine(|end| is_ring(end.followed) && is_ring(end.turns)) {
            // The kernel's own poll says that something has ended; and see `receives`.
            self.hears(Some(Hearing::AsksWhetherGone)).await;
        }
        let Told::Polled(polled) = self.tells(Call::Polls).await else { panic!("poll is told") };
        Step::default().await;
        let own = self.hand.mine(|end| end.own);
        let no_input = polled.peer_done || own.read_shut || polled.reset;
        let hung_up = polled.reset || (own.write_shut && no_input);
        Answer::Mask([no_input, hung_up, polled.error_pending])
    }

    async fn shuts(&self, reading: bool, writing: bool) -> Answer {
        let what = match (reading, writing) {
            (true, true) => What::Both,
            (true, false) => What::Input,
            _ => What::Output,
        };
        self.hears(Some(Hearing::Hinted)).await;
        self.tells(Call::Polls).await;
        let mut shutting = Shutting::begin(what);
        loop {
            match shutting {
                Shutting::Shut => return Answer::Shut(Ok(())),
                Shutting::Refused => return Answer::Shut(Err(ENOTCONN)),
                Shutting::Hears(hearing) => {
                    self.looks().await;
                    self.is_about_to_hear(hearing).await;
                }
                Shutting::Locks(_) => {
                    self.until(|world| !world.ends[self.hand.end].is_locked).await;
                    self.hand.mine(|end| end.is_locked = true);
                }
                _ => self.looks().await,
            }
            self.trace(|| format!("shuts {shutting:?}"));
            shutting = shutting.step(&self.hand, &self.hand, &self.hand);
        }
    }

    async fn lingers(&self, zero: bool) -> Answer {
        Step::default().await;
        self.hand.with(|world| world.kernel.ends[self.hand.end].linger_zero = zero);
        Step::default().await;
        if !self.hand.with(|world| world.has(Fault::ForgetsLinger)) {
            self.hand.mine(|end| end.record.linger_zero = zero);
        }
        Answer::Done
    }

    async fn calls(self) {
        for _ in 0..self.habits.calls {
            self.pause().await;
            if self.hand.mine(|end| end.is_over) {
                return;
            }
            let act = match self.chance(24) {
                0..9 => Act::Send(usize::from(self.chance(8) > 0)),
                9..18 => Act::Receive,
                18 => Act::TakeError,
                19 | 20 => Act::Poll,
                21 => Act::Shut { reading: false, writing: true },
                // Behind a demotion a peer that refuses is not seen: docs/limitations.md.
                22 if !self.habits.moves => {
                    let writing = self.chance(2) == 0;
                    Act::Shut { reading: true, writing }
                }
                22 => {
                    self.turns().await;
                    continue;
                }
                _ => Act::Linger(self.chance(3) > 0),
            };
            let shuts = matches!(act, Act::Shut { .. });
            if shuts && self.hand.mine(|end| core::mem::replace(&mut end.is_shutting, true)) {
                // One of the differences that `checker` names.
                continue;
            }
            self.calls_one(act).await;
            if shuts {
                self.hand.mine(|end| end.is_shutting = false);
            }
        }
    }

    /// An operator: the direction leaves the ring, or comes back to it, if the peer permits it.
    async fn turns(&self) {
        self.locks().await;
        Step::default().await;
        let has_followed = self.hand.theirs(|end| end.followed) == self.hand.mine(|end| end.turns);
        let end = self.hand.end;
        let is_open = self.hand.with(|world| {
            let own = &world.ends[end].own;
            let is_over = own.write_shut || own.peer_gone || own.reset != Reset::None;
            let kernel = &world.kernel.ends;
            !is_over && !kernel.iter().any(|it| it.reset || it.fin || it.closed || it.write_shut)
        });
        // With bytes unread in TCP it would be one of the differences that `checker` names.
        if has_followed && is_open && self.hand.mine(|end| end.by_tcp.is_empty()) {
            self.hand.mine(|end| end.turns += 1);
            self.trace(|| "turns".into());
        }
        self.hand.mine(|end| end.is_locked = false);
    }

    /// Receives until there is an end, or nothing more can come.
    async fn drains(self) {
        for _ in 0..self.hand.theirs(|end| end.sent) + 4 {
            let answer = self.calls_one(Act::Receive).await;
            if answer == Answer::Count(Ok(0)) {
                break;
            }
        }
        self.calls_one(Act::Poll).await;
        self.calls_one(Act::TakeError).await;
        let sent = self.calls_one(Act::Send(1)).await;
        if sent != Answer::Count(Ok(1)) {
            let again = self.calls_one(Act::Send(1)).await;
            assert!(matches!(again, Answer::Count(Err(EPIPE) | Ok(1))), "{again:?}");
        }
        let last = self.calls_one(Act::Receive).await;
        // An end of TCP that can be told of nothing any more has been told all.
        let end = self.hand.end;
        let is_gone = self
            .hand
            .with(|world| world.kernel.ends[1 - end].closed || world.kernel.ends[end].reset);
        assert!(!is_gone || last != Answer::Count(Err(EAGAIN)), "an end is never told");
    }

    // How it ends

    /// The last close. No call is under way then.
    async fn closes(self) {
        for _ in 0..self.chance(8) {
            self.pause().await;
        }
        self.hand.mine(|end| end.is_over = true);
        let end = self.hand.end;
        self.until(|world| world.ends[end].calls == 0 && !world.ends[end].is_locked).await;
        let id = self.hand.with(|world| world.checker.begin(end, Act::Close));
        self.trace(|| "closes".into());
        Step::default().await;
        let leaves_unread = self.hand.with(|world| {
            let by_ring = is_ring(world.ends[end].followed);
            (by_ring && !world.ends[1 - end].ring.is_empty()) || world.kernel.ends[end].queue > 0
        });
        let mut next = Some(Closing::begin(leaves_unread));
        while let Some(closing) = next {
            self.looks().await;
            self.trace(|| format!("closes {closing:?}"));
            next = closing.step(&self.hand, &self.hand);
        }
        Step::default().await;
        self.kernel_closes();
        Step::default().await;
        self.hand.hint();
        self.hand.with(|world| world.checker.answered(id, &[Answer::Done]));
    }

    /// The process ends by itself. The world does not ask when: the peer may notice at any later moment.
    async fn exits(self) {
        for _ in 0..self.chance(8) {
            self.pause().await;
        }
        self.hand.mine(|end| end.is_over = true);
        let end = self.hand.end;
        self.until(|world| world.ends[end].calls == 0 && !world.ends[end].is_locked).await;
        self.hand.with(|world| {
            world.checker.begin(end, Act::Exit);
            world.checker.begin(end, Act::Close);
        });
        self.trace(|| "exits".into());
        Step::default().await;
        let (by_ring, unread) = (
            self.hand.mine(|end| is_ring(end.followed)),
            !self.hand.theirs(|end| end.ring.is_empty()),
        );
        let mut next = by_ring.then_some(Leaving::by_exit(unread));
        while let Some(leaving) = next {
            self.looks().await;
            self.trace(|| format!("exits {leaving:?}"));
            next = leaving.step(&self.hand);
        }
        self.pause().await;
        self.hand.mine(|end| end.runs = false);
        // The kernel closes; a task of a process that does not run any more is dropped, so at once.
        self.kernel_closes();
    }

    fn kernel_closes(&self) {
        let end = self.hand.end;
        // With the peer's direction by TCP it would be one of the differences that `checker` names.
        let comes_by_ring = self.hand.theirs(|end| is_ring(end.turns));
        let has_bell = self.hand.mine(|end| end.has_bell) && self.chance(2) == 0 && comes_by_ring;
        self.hand.with(|world| {
            world.kernel.close(end, has_bell);
            world.note(|| {
                format!("{end}: the kernel has closed, by a reset for a bell: {has_bell}")
            });
        });
    }

    /// SIGKILL, at any step.
    async fn kills(self) {
        for _ in 0..self.chance(12) {
            self.pause().await;
        }
        let end = self.hand.end;
        self.hand.with(|world| world.checker.begin(end, Act::Close));
        self.trace(|| "is killed".into());
        self.hand.mine(|end| end.runs = false);
        self.pause().await;
        self.kernel_closes();
    }

    /// A reset from outside, or the peer does not answer.
    async fn breaks(self) {
        for _ in 0..self.chance(12) {
            self.pause().await;
        }
        let end = self.hand.end;
        let errno = [ECONNRESET, ECONNABORTED, ETIMEDOUT][self.chance(3) as usize];
        self.trace(|| format!("breaks: {errno}"));
        self.hand.with(|world| {
            let has_fin = world.kernel.ends[end].fin && errno != ECONNRESET;
            if has_fin || world.ends.iter().any(|end| end.record.abort) {
                // Two of the differences that `checker` names.
                return;
            }
            world.checker.begin(end, Act::Breaks(errno));
            world.checker.begin(1 - end, Act::Breaks(ECONNRESET));
            world.breaks(end, errno);
            if errno == ECONNABORTED {
                world.breaks(1 - end, ECONNRESET);
            }
        });
    }
}
