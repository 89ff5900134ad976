//! The generator in a world of the tests' own: its clock moves when a thread waits.

use super::*;
use crate::control::{Address, Role, Usage};
use crate::plan::{self, Conduct, Model};
use crate::worker::record::tests::from_hex;
use crate::worker::transport::Transport;
use crate::workload::{Kind, Workload};
use proptest::prelude::*;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// A server that replies after a fixed time, except while it stalls.
struct World {
    now_ns: u64,
    service_ns: u64,
    stall: Range<u64>,
    connections: Vec<Connection>,
    opened: usize,
}

#[derive(Clone, Default)]
struct Connection {
    token: Option<usize>,
    reply_at_ns: Option<u64>,
    /// The reply has been taken: what follows is the end, if the generator asks.
    replied: bool,
    broken: bool,
}

#[derive(Clone)]
struct WorldPoller(Rc<RefCell<World>>);

struct End {
    world: Rc<RefCell<World>>,
    number: usize,
}

impl WorldPoller {
    fn new(service_ns: u64, stall: Range<u64>) -> Self {
        Self(Rc::new(RefCell::new(World {
            now_ns: 0,
            service_ns,
            stall,
            connections: Vec::new(),
            opened: 0,
        })))
    }
}

impl World {
    fn reply_at(&self) -> u64 {
        let begins = if self.stall.contains(&self.now_ns) { self.stall.end } else { self.now_ns };
        begins + self.service_ns
    }
}

impl Transport for End {
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut world = self.world.borrow_mut();
        let reply_at_ns = world.reply_at();
        let connection = &mut world.connections[self.number];
        assert_eq!(bytes.len(), REQUEST_LEN);
        connection.reply_at_ns = Some(reply_at_ns);
        connection.replied = false;
        Ok(bytes.len())
    }

    fn recv(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let mut world = self.world.borrow_mut();
        let now_ns = world.now_ns;
        let connection = &mut world.connections[self.number];
        if connection.broken || connection.replied {
            return Ok(0);
        }
        if connection.reply_at_ns.is_none_or(|at| at > now_ns) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        assert_eq!(room.len(), REPLY_LEN);
        connection.reply_at_ns = None;
        connection.replied = true;
        Ok(REPLY_LEN)
    }
}

impl Poller for WorldPoller {
    type Transport = End;

    fn now_ns(&self) -> u64 {
        self.0.borrow().now_ns
    }

    fn open(&mut self) -> io::Result<End> {
        let mut world = self.0.borrow_mut();
        world.connections.push(Connection::default());
        world.opened += 1;
        Ok(End { world: Rc::clone(&self.0), number: world.connections.len() - 1 })
    }

    fn register(&mut self, token: usize, end: &End, _: Interest) -> io::Result<()> {
        self.0.borrow_mut().connections[end.number].token = Some(token);
        Ok(())
    }

    fn reregister(&mut self, _: usize, _: &End, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, until_ns: Option<u64>, ready: &mut Vec<usize>) -> io::Result<()> {
        let mut world = self.0.borrow_mut();
        let replies = world.connections.iter().filter_map(|connection| connection.reply_at_ns);
        let next_ns = replies.chain(until_ns).min().expect("somebody waits for something");
        world.now_ns = world.now_ns.max(next_ns);
        let now_ns = world.now_ns;
        for connection in &world.connections {
            if connection.broken || connection.reply_at_ns.is_some_and(|at| at <= now_ns) {
                ready.extend(connection.token);
            }
        }
        Ok(())
    }
}

const REQUEST_LEN: usize = 3;
const REPLY_LEN: usize = 5;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

fn job(kind: Kind, clients: u32, pace: plan::Pace) -> Job {
    Job {
        role: Role::Client(Address::Unix("none".into())),
        workload: Workload {
            kind,
            clients,
            request_len: REQUEST_LEN as u64,
            reply_len: REPLY_LEN as u64,
        },
        model: Model::EventLoop,
        connections: clients,
        first_client: 0,
        conduct: Conduct { pace, ..Conduct::default() },
    }
}

fn generator(poller: &WorldPoller, job: &Job) -> Generator<WorldPoller> {
    Generator::new(poller.clone(), job, 0..job.connections, Arc::default())
}

fn run(poller: &WorldPoller, job: &Job, stage: &Stage) -> Recorder {
    let mut generator = generator(poller, job);
    generator.connect().expect("connections");
    generator.run(stage).expect("a run")
}

fn p99_ns(recorder: Recorder) -> u64 {
    let report = recorder.into_report(8, Usage::default());
    from_hex(&report.response_ns).value_at_quantile(0.99)
}

#[test]
fn a_stall_shows_in_p99_of_an_open_loop_and_hides_in_a_closed_one() {
    let stage = Stage::timed(0, 0, 10 * SECOND);
    let stall = 4 * SECOND..5 * SECOND;

    let open = job(Kind::RequestResponse, 4, plan::Pace::Open { per_second: 1000.0 });
    let recorder = run(&WorldPoller::new(MS / 10, stall.clone()), &open, &stage);
    assert_eq!(recorder.transactions(), 10_000);
    // A tenth of all were due in the stall and waited for the rest of it: the worst
    // hundredth at least nine tenths of it, and no longer than all of it and the
    // backlog of 250 transactions of 0.1 ms that every client then works off.
    let p99 = p99_ns(recorder);
    assert!((900 * MS..=1030 * MS).contains(&p99), "{p99}");

    let closed = job(Kind::RequestResponse, 4, plan::Pace::Closed);
    let recorder = run(&WorldPoller::new(MS / 10, stall), &closed, &stage);
    assert!(recorder.transactions() > 100_000);
    assert!(p99_ns(recorder) < MS);
}

#[test]
fn an_open_loop_that_cannot_keep_up_says_how_much_is_unfinished() {
    let stage = Stage::timed(0, SECOND, SECOND);
    let slow = job(Kind::RequestResponse, 1, plan::Pace::Open { per_second: 100.0 });
    let recorder = run(&WorldPoller::new(20 * MS, 0..0), &slow, &stage);
    // 50 a second end. By the end at 2 s the 99 first did, those due before 0.99 s;
    // the one that would end at 2 s is too late. The other 100 were due from 1 s on,
    // and the one before them was not due in the measured time.
    assert_eq!(recorder.transactions(), 50);
    let report = recorder.into_report(8, Usage::default());
    assert_eq!(report.unfinished, 100);
}

#[test]
fn a_closed_loop_ends_as_many_as_fit() {
    let stage = Stage::timed(5 * SECOND, SECOND, 2 * SECOND);
    let job = job(Kind::RequestResponse, 3, plan::Pace::Closed);
    let poller = WorldPoller::new(10 * MS, 0..0);
    let recorder = run(&poller, &job, &stage);
    // Ends at 6.00, 6.01 … 7.99 s.
    assert_eq!(recorder.transactions(), 3 * 200);
    assert_eq!(poller.0.borrow().opened, 3);
    // The last ones are finished, not broken off.
    assert_eq!(poller.now_ns(), 8 * SECOND);
}

#[test]
fn think_time_is_not_response_time() {
    let stage = Stage::timed(0, 0, SECOND);
    let mut job = job(Kind::RequestResponse, 2, plan::Pace::Closed);
    job.conduct.think = Duration::from_millis(9);
    let recorder = run(&WorldPoller::new(MS, 0..0), &job, &stage);
    // Ends at 1, 11 … 991 ms.
    assert_eq!(recorder.transactions(), 2 * 100);
    assert!(p99_ns(recorder).abs_diff(MS) < MS / 500);
}

#[test]
fn crr_connects_for_each_transaction() {
    let job = job(Kind::ConnectRequestResponse, 2, plan::Pace::Closed);
    let poller = WorldPoller::new(MS, 0..0);
    let mut generator = generator(&poller, &job);
    generator.connect().expect("a first transaction of each");
    assert_eq!(poller.0.borrow().opened, 2);
    let stage = Stage::counted(poller.now_ns(), 5);
    let recorder = generator.run(&stage).expect("a run");
    assert_eq!(recorder.transactions(), 10);
    assert_eq!(recorder.elapsed_ns(), 5 * MS);
    assert_eq!(poller.0.borrow().opened, 2 + 10);
}

#[test]
fn a_server_that_leaves_is_named() {
    let mut job = job(Kind::RequestResponse, 2, plan::Pace::Closed);
    job.first_client = 40;
    let poller = WorldPoller::new(MS, 0..0);
    let mut generator = Generator::new(poller.clone(), &job, 40..42, Arc::default());
    generator.connect().expect("connections");
    poller.0.borrow_mut().connections[1].broken = true;
    let error = generator.run(&Stage::timed(0, 0, SECOND)).expect_err("it left");
    assert_eq!(
        error.to_string(),
        "the server closed the connection during the reply to transaction 0 of client 41, \
         after 0 of 5 bytes"
    );
}

#[test]
fn a_pulse_tells_beats_and_waiting() {
    let pulse = Pulse::default();
    assert_eq!(pulse.feel(), (0, false));
    pulse.beat(true);
    pulse.beat(true);
    assert_eq!(pulse.feel(), (2, true));
    pulse.beat(false);
    assert_eq!(pulse.feel(), (3, false));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_counted_stage_makes_just_these_transactions(
        clients in 1u32..20, count in 1u64..50, per_second in prop::option::of(10.0..1e5),
        service_ns in 0..10 * MS,
    ) {
        let pace = match per_second {
            None => plan::Pace::Closed,
            Some(per_second) => plan::Pace::Open { per_second },
        };
        let job = job(Kind::RequestResponse, clients, pace);
        let recorder = run(&WorldPoller::new(service_ns, 0..0), &job, &Stage::counted(0, count));
        prop_assert_eq!(recorder.transactions(), u64::from(clients) * count);
    }

    #[test]
    fn an_open_loop_loses_no_transaction(
        clients in 1u32..10, per_second in 10.0..3000f64, service_ns in 1..5 * MS,
        stall_from in 0..SECOND, stall in 0..SECOND,
    ) {
        let job = job(Kind::RequestResponse, clients, plan::Pace::Open { per_second });
        let world = WorldPoller::new(service_ns, stall_from..stall_from + stall);
        let stage = Stage::timed(0, 0, 2 * SECOND);
        let report = run(&world, &job, &stage).into_report(8, Usage::default());
        let due = (0..clients)
            .map(|i| Schedule::new(Pace::of(&job), i, 0).unfinished(0, 2 * SECOND, 0))
            .sum::<u64>();
        prop_assert_eq!(report.transactions + report.unfinished, due);
    }
}
