//! Worlds by seed: three distributors and a store, with messages that are lost or late, a store that is slow or gone,
//! cables that are cut, processes that stand still or die, clocks of which each has its own time and rate. There are
//! never two owners, and when all of that has ended there is one. Then single laws, by hand.

use std::cmp::Reverse as Least;
use std::collections::{BinaryHeap, HashMap};
use std::net::Ipv4Addr;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const NODES: usize = 3;
/// Nanoseconds of the world.
const MS: u64 = 1_000_000;
const TICK: u64 = 50 * MS;
/// When trouble ends, and when all must be well again.
const TROUBLE_ENDS: u64 = 20_000 * MS;
const END: u64 = 32_000 * MS;
const STORE_TIMEOUT: u64 = 700 * MS;

fn host(node: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, node as u8 + 1).into()
}

#[derive(Clone, Debug)]
enum Event {
    Tick,
    Told(IpAddr, Message),
    /// The store has answered this request, or was not waited for any longer.
    Answered(u64, Answer),
}

#[derive(Clone, Debug)]
enum Answer {
    Read(Option<Snapshot>),
    Written(Written),
    Registered(bool),
}

/// Something that happens to a process, or at the store.
#[derive(Clone, Debug)]
enum Happening {
    StoreGoes,
    StandsStill,
    At { node: usize, life: u64, event: Event },
    Store { node: usize, life: u64, request: u64, action: Action },
    Trouble,
}

struct Node {
    election: Election,
    life: u64,
    request: u64,
    offset: u64,
    /// Of its clock, in thousandths of true time.
    rate: u64,
    stands_until: u64,
    is_dead_until: Option<u64>,
    /// What the kernel was told.
    fence: Duration,
    has_cable: bool,
    reaches_store: bool,
}

impl Node {
    fn clock(&self, now: u64) -> Duration {
        Duration::from_nanos(self.offset + now / 1000 * self.rate)
    }

    fn serves(&self, now: u64, is_fenced: bool) -> bool {
        let is_within = self.fence > self.clock(now);
        self.is_dead_until.is_none() && if is_fenced { is_within } else { self.election.owns }
    }
}

struct World {
    random: StdRng,
    now: u64,
    order: u64,
    happenings: BinaryHeap<Least<(u64, u64)>>,
    what: HashMap<u64, Happening>,
    nodes: Vec<Node>,
    revision: u64,
    record: Option<(u64, Record)>,
    registered: Vec<Candidate>,
    store_is_gone: bool,
    store_delay: u64,
    takeovers: u32,
    /// Its cable stays cut when all other trouble has ended.
    cut_off: Option<usize>,
    owned_when_cut: bool,
    switches_back: bool,
    /// A mistake: each promise is taken for a word.
    believes_promises: bool,
    /// When nothing was served any more since the store has gone, if that was ever so.
    unserved: Option<u64>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let switches_back = random.random();
        let nodes = (0..NODES).map(|node| Node {
            election: Election::new(candidate(node, 1)),
            life: 1,
            request: 0,
            offset: random.random_range(10_000..1_000_000) * MS,
            rate: random.random_range(965..=1035),
            stands_until: 0,
            is_dead_until: None,
            fence: Duration::ZERO,
            has_cable: true,
            reaches_store: true,
        });
        let nodes = nodes.collect();
        let mut world = Self {
            random,
            now: 0,
            order: 0,
            happenings: BinaryHeap::new(),
            what: HashMap::new(),
            nodes,
            revision: 0,
            record: None,
            registered: Vec::new(),
            store_is_gone: false,
            store_delay: 20,
            takeovers: 0,
            cut_off: None,
            owned_when_cut: false,
            switches_back,
            believes_promises: false,
            unserved: None,
        };
        for node in 0..NODES {
            let at = world.random.random_range(0..TICK);
            world.push(at, Happening::At { node, life: 1, event: Event::Tick });
        }
        world.push(500 * MS, Happening::Trouble);
        world
    }

    fn push(&mut self, at: u64, happening: Happening) {
        self.order += 1;
        self.happenings.push(Least((at, self.order)));
        self.what.insert(self.order, happening);
    }

    /// Until the end; the most owners that there were at a time.
    fn run(&mut self, is_fenced: bool) -> usize {
        let mut most = 0;
        while let Some(Least((at, order))) = self.happenings.pop() {
            if at > END {
                break;
            }
            self.now = at;
            match self.what.remove(&order).unwrap() {
                Happening::Trouble => self.trouble(),
                Happening::StoreGoes => self.store_is_gone = true,
                Happening::StandsStill => {
                    let node = self.random.random_range(0..NODES);
                    let time = self.random.random_range(1500..3000) * MS;
                    self.nodes[node].stands_until = self.now + time;
                }
                Happening::Store { node, life, request, action } => {
                    self.at_store(node, life, request, action);
                }
                Happening::At { node, life, event } => self.at(node, life, event),
            }
            let owners = self.owners(is_fenced);
            if owners == 0 && self.store_is_gone && self.now > TROUBLE_ENDS {
                self.unserved.get_or_insert(self.now);
            }
            most = most.max(owners);
        }
        most
    }

    fn owners(&self, is_fenced: bool) -> usize {
        self.nodes.iter().filter(|node| node.serves(self.now, is_fenced)).count()
    }

    fn trouble(&mut self) {
        let is_over = self.now >= TROUBLE_ENDS;
        let node = self.random.random_range(0..NODES);
        let kind = if is_over { 99 } else { self.random.random_range(0..10) };
        let time = self.random.random_range(100..4000) * MS;
        if let (true, Some(at)) = (is_over, self.cut_off) {
            self.owned_when_cut = self.nodes[at].election.owns;
        }
        match kind {
            0 | 1 => self.nodes[node].stands_until = self.now + time,
            2 => self.die(node, self.now + time),
            3 => self.store_is_gone = !self.store_is_gone,
            4 => self.store_delay = self.random.random_range(1..1500),
            5 => self.nodes[node].has_cable ^= true,
            6 => self.nodes[node].reaches_store ^= true,
            7 => self.nodes[node].election.give_up(None),
            8 => self.nodes[node].election.give_up(Some(host(self.random.random_range(0..NODES)))),
            _ => {
                (self.store_is_gone, self.store_delay) = (false, 20);
                for (at, node) in self.nodes.iter_mut().enumerate() {
                    (node.has_cable, node.reaches_store) = (self.cut_off != Some(at), true);
                }
            }
        }
        if !is_over {
            let next = self.now + self.random.random_range(50..1500) * MS;
            self.push(next.max(self.now), Happening::Trouble);
            if next >= TROUBLE_ENDS {
                self.push(TROUBLE_ENDS, Happening::Trouble);
            }
        }
    }

    fn die(&mut self, node: usize, until: u64) {
        let it = &mut self.nodes[node];
        if it.is_dead_until.is_some() {
            return;
        }
        it.life += 1;
        (it.is_dead_until, it.fence) = (Some(until), Duration::ZERO);
        it.election = Election::new(candidate(node, it.life));
        let life = it.life;
        self.push(until, Happening::At { node, life, event: Event::Tick });
    }

    fn at(&mut self, node: usize, life: u64, event: Event) {
        if life != self.nodes[node].life {
            return;
        }
        let stands_until = self.nodes[node].stands_until;
        if self.now < stands_until {
            // It comes to it later: what was sent to it waits meanwhile.
            return self.push(stands_until, Happening::At { node, life, event });
        }
        if matches!(event, Event::Tick) {
            let next = Happening::At { node, life, event: Event::Tick };
            self.push(self.now + TICK, next);
        }
        let it = &mut self.nodes[node];
        let event = match event {
            Event::Told(from, Message::Promise(number)) if self.believes_promises => {
                let instance = it.election.own.process.instance;
                Event::Told(from, Message::Word(number, instance))
            }
            event => event,
        };
        it.is_dead_until = None;
        let (now, owned) = (it.clock(self.now), it.election.owns);
        it.election.ready();
        if self.switches_back && it.election.is_outranked(now) {
            it.election.give_up(None);
        }
        let actions = it.handle(now, event);
        it.fence = it.election.serves_until();
        self.takeovers += u32::from(it.election.owns && !owned);
        for action in actions {
            self.act(node, action);
        }
    }

    fn act(&mut self, node: usize, action: Action) {
        let life = self.nodes[node].life;
        if let Action::Send(to, message) = action {
            let to = (0..NODES).find(|it| host(*it) == to).unwrap();
            let is_cut = !self.nodes[node].has_cable || !self.nodes[to].has_cable;
            if !is_cut && !self.is_lost() {
                let at = self.now + self.delay(5);
                let (life, event) = (self.nodes[to].life, Event::Told(host(node), message));
                self.push(at, Happening::At { node: to, life, event });
            }
            return;
        }
        let request = self.nodes[node].request;
        let in_vain = match action {
            Action::Read => Answer::Read(None),
            Action::Write { .. } => Answer::Written(Written::Unknown),
            _ => Answer::Registered(false),
        };
        if !self.nodes[node].reaches_store && self.random.random() {
            // Its members refuse the connection.
            let nothing = match in_vain {
                Answer::Written(_) => Answer::Written(Written::NotSent),
                nothing => nothing,
            };
            let event = Event::Answered(request, nothing);
            return self.push(self.now + 5 * MS, Happening::At { node, life, event });
        }
        let event = Event::Answered(request, in_vain);
        // A connection may break at once, with the question on its way.
        let breaks = self.is_lost();
        let at = self.now + if breaks { 5 * MS } else { STORE_TIMEOUT };
        self.push(at, Happening::At { node, life, event });
        if self.nodes[node].reaches_store && !self.is_lost() {
            let at = self.now + self.delay(self.store_delay);
            self.push(at, Happening::Store { node, life, request, action });
        }
    }

    fn is_lost(&mut self) -> bool {
        self.now < TROUBLE_ENDS && self.random.random_ratio(1, 20)
    }

    /// Most often a short time, now and then a long one.
    fn delay(&mut self, most_ms: u64) -> u64 {
        let is_long = self.now < TROUBLE_ENDS && self.random.random_ratio(1, 20);
        let most = if is_long { 3000 } else { most_ms };
        self.random.random_range(0..most * MS)
    }

    fn at_store(&mut self, node: usize, life: u64, request: u64, action: Action) {
        if self.store_is_gone {
            // It comes to it when it is back.
            let at = self.now + 300 * MS;
            return self.push(at, Happening::Store { node, life, request, action });
        }
        let answer = match action {
            Action::Read => Answer::Read(Some(Snapshot {
                record: self.record.clone(),
                candidates: self.registered.clone(),
            })),
            Action::Write { expected, record } => {
                let is_expected = self.record.as_ref().map_or(0, |it| it.0) == expected;
                if is_expected {
                    self.revision += 1;
                    self.record = Some((self.revision, record));
                }
                Answer::Written(match is_expected {
                    true => Written::Done(self.revision),
                    false => Written::Conflict,
                })
            }
            Action::Register(candidate) => {
                self.registered.retain(|it| it.process.host != candidate.process.host);
                self.registered.push(candidate);
                Answer::Registered(true)
            }
            Action::Send(..) => unreachable!(),
        };
        if self.nodes[node].reaches_store && !self.is_lost() {
            let at = self.now + self.delay(self.store_delay);
            let event = Event::Answered(request, answer);
            self.push(at, Happening::At { node, life, event });
        }
    }
}

impl Node {
    fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        match event {
            Event::Tick => {
                self.election.connected(self.has_cable);
                self.election.tick(now)
            }
            Event::Told(from, message) => {
                self.election.told(now, from, message).into_iter().collect()
            }
            Event::Answered(request, _) if request != self.request => Vec::new(),
            Event::Answered(_, answer) => {
                self.request += 1;
                match answer {
                    Answer::Read(snapshot) => self.election.read(now, snapshot),
                    Answer::Registered(is_done) => self.election.registered(now, is_done),
                    Answer::Written(written) => return self.election.written(now, written),
                }
                Vec::new()
            }
        }
    }
}

fn candidate(node: usize, life: u64) -> Candidate {
    let process = Process { host: host(node), instance: life * 10 + node as u64 };
    Candidate { process, rank: 300 - node as u32 }
}

/// As many as `SIDESTEP_WORLDS` says.
fn worlds() -> u64 {
    std::env::var("SIDESTEP_WORLDS").ok().and_then(|it| it.parse().ok()).unwrap_or(300)
}

#[test]
fn there_are_never_two_owners_and_in_the_end_there_is_one() {
    let (mut takeovers, mut came_back) = (0, 0);
    for seed in 0..worlds() {
        let mut world = World::new(seed);
        let most = world.run(true);
        assert!(most < 2, "seed {seed}: {most} owners");
        assert_eq!(world.owners(true), 1, "seed {seed}: in the end");
        let record = &world.record.as_ref().unwrap().1;
        assert_eq!(record.backups.len(), NODES - 1, "seed {seed}: the others are backups");
        let is_best = record.owner.map(|owner| owner.host) == Some(host(0));
        let may_stay = !world.switches_back || record.is_moved;
        assert!(is_best || may_stay, "seed {seed}: {record:?}");
        came_back += u32::from(is_best && !may_stay);
        takeovers += world.takeovers;
    }
    assert!(u64::from(takeovers) > 2 * worlds(), "{takeovers} takeovers: worlds without trouble");
    assert!(u64::from(came_back) > worlds() / 4, "in {came_back} worlds the best one has them");
}

#[test]
fn a_distributor_whose_cable_stays_cut_owns_nothing_in_the_end() {
    let mut owned = 0;
    for seed in 0..worlds() {
        let mut world = World::new(seed);
        let cut_off = world.random.random_range(0..NODES);
        world.cut_off = Some(cut_off);
        let most = world.run(true);
        assert!(most < 2, "seed {seed}: {most} owners");
        assert_eq!(world.owners(true), 1, "seed {seed}: in the end");
        let served = world.nodes[cut_off].serves(END, true);
        assert!(!served, "seed {seed}: {:?}", world.record);
        owned += u32::from(world.owned_when_cut);
    }
    assert!(owned > 0, "none has owned them when its cable was cut");
}

#[test]
fn among_too_many_candidates_the_own_one_is_known() {
    let own = candidate(200, 1);
    let mut election = Election::new(own);
    let now = Duration::from_secs(1);
    assert_eq!(election.tick(now), [Action::Read]);
    let candidates = (0..100).map(|node| candidate(node, 1)).chain([own]).collect();
    election.read(now, Some(Snapshot { record: None, candidates }));
    assert_eq!(election.candidates.len(), CANDIDATES_MAX);
    assert_eq!(election.tick(now), [], "it has registered");
}

#[test]
fn a_world_without_a_fence_has_two_owners() {
    assert!((0..100).any(|seed| World::new(seed).run(false) > 1));
}

#[test]
fn promises_in_the_place_of_words_make_two_owners() {
    let has_two = |seed| {
        let mut world = World::new(seed);
        world.believes_promises = true;
        world.run(true) > 1
    };
    assert!((0..3000).any(has_two));
}

#[test]
fn without_the_store_a_lease_that_has_ended_is_revived() {
    /// All is well again before.
    const STORE_GOES: u64 = TROUBLE_ENDS + 6000 * MS;
    let mut ended = 0;
    for seed in 0..worlds() {
        let mut world = World::new(seed);
        // Whose VIPs are given up in the very moment in which the store goes does not know whether they were.
        world.switches_back = false;
        world.push(STORE_GOES, Happening::StoreGoes);
        world.push(STORE_GOES + 100 * MS, Happening::StandsStill);
        let most = world.run(true);
        assert!(most < 2, "seed {seed}: {most} owners");
        assert_eq!(world.owners(true), 1, "seed {seed}: in the end");
        ended += u64::from(world.unserved.is_some());
    }
    assert!(ended > worlds() / 2, "in {ended} worlds a lease has ended");
}

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// A backup that has seen a record of host 0, of revision 7, at second 100; its first one was another.
fn backup() -> Election {
    let mut election = Election::new(candidate(1, 1));
    election.ready();
    for (at, revision) in [(99_500, 6), (100_000, 7)] {
        assert_eq!(election.tick(ms(at)), [Action::Read]);
        election.read(ms(at), Some(snapshot(revision, Some(candidate(0, 1).process))));
    }
    election
}

fn snapshot(revision: u64, owner: Option<Process>) -> Snapshot {
    let record = Record { owner, backups: vec![host(1), host(2)], ..Record::default() };
    let candidates = vec![candidate(0, 1), candidate(1, 1), candidate(2, 1)];
    Snapshot { record: Some((revision, record)), candidates }
}

/// Ticks from one moment to another, with a store that always has the same. Returns when it first wrote, and what.
fn first_write(
    election: &mut Election,
    from: u64,
    until: u64,
    store: &Snapshot,
) -> Option<(u64, Record)> {
    for at in (from..until).step_by(50) {
        for action in election.tick(ms(at)) {
            match action {
                Action::Read => election.read(ms(at), Some(store.clone())),
                Action::Write { record, .. } => return Some((at, record)),
                _ => {}
            }
        }
    }
    None
}

#[test]
fn what_is_told_while_a_look_is_under_way_has_another_look_follow() {
    let mut election = backup();
    let owned = snapshot(7, Some(candidate(0, 1).process));
    assert_eq!(election.tick(ms(100_500)), [Action::Read]);
    election.told(ms(100_510), host(0), Message::GaveUp);
    // The store has answered before the owner gave up.
    election.read(ms(100_520), Some(owned));
    assert_eq!(election.tick(ms(100_550)), [Action::Read]);
}

#[test]
fn what_was_given_up_is_left_to_the_first_backup_for_a_while() {
    let given_up = snapshot(8, None);
    let taken = [1, 2].map(|node| {
        let mut election = Election::new(candidate(node, 1));
        assert_eq!(election.tick(ms(100_000)), [Action::Read]);
        election.read(ms(100_000), Some(given_up.clone()));
        first_write(&mut election, 100_050, 105_000, &given_up).unwrap().0 - 100_000
    });
    assert!(taken[0] <= 100 && taken[1] >= 1000, "{taken:?}");
}

#[test]
fn a_backup_that_stood_still_listens_before_it_takes_over() {
    let owned = snapshot(7, Some(candidate(0, 1).process));
    for (stood_still, waited) in [(0, 1000..1200), (5000, 5300..5600)] {
        let mut election = backup();
        assert!(election.told(ms(100_000), host(0), Message::Ask(1)).is_some());
        let woken = 100_050 + stood_still;
        let taken = first_write(&mut election, woken, 110_000, &owned).unwrap().0 - 100_000;
        assert!(waited.contains(&taken), "{taken}");
    }
}

#[test]
fn an_owner_that_stood_still_takes_no_backup_off() {
    let mut given_up = snapshot(7, None);
    given_up.record.as_mut().unwrap().1.backups.insert(0, host(0));
    let owned = snapshot(8, Some(candidate(0, 1).process));
    for (stood_still, waited, backups) in [(0, 500..600, 0), (5000, 5000..5200, 2)] {
        let mut election = Election::new(candidate(0, 1));
        assert_eq!(election.tick(ms(100_000)), [Action::Read]);
        election.read(ms(100_000), Some(given_up.clone()));
        let written = first_write(&mut election, 100_050, 100_100, &given_up);
        assert!(written.is_some_and(|(_, record)| record.backups.len() == 2));
        election.written(ms(100_060), Written::Done(8));
        let woken = 100_100 + stood_still;
        let (at, record) = first_write(&mut election, woken, 110_000, &owned).unwrap();
        assert!(waited.contains(&(at - 100_000)), "{at}");
        assert_eq!(record.backups.len(), backups);
    }
}

#[test]
fn a_word_is_for_the_owner_that_is_known_since_a_later_record_than_the_first() {
    let word =
        |election: &mut Election, from| election.told(ms(100_000), from, Message::AskWord(5));
    let given = Some(Action::Send(host(0), Message::Word(5, candidate(0, 1).process.instance)));
    assert_eq!(word(&mut backup(), host(0)), given);
    assert_eq!(word(&mut backup(), host(2)), None, "it is not the owner");
    let mut restarted = Election::new(candidate(1, 1));
    restarted.ready();
    restarted.tick(ms(100_000));
    restarted.read(ms(100_000), Some(snapshot(7, Some(candidate(0, 1).process))));
    assert!(restarted.told(ms(100_000), host(0), Message::Ask(4)).is_some());
    assert_eq!(word(&mut restarted, host(0)), None, "what it sent before may replace this one");
}

#[test]
fn a_record_of_an_earlier_process_does_not_end_a_promise() {
    let mut election = backup();
    assert!(election.told(ms(100_400), host(0), Message::Ask(1)).is_some());
    let late = snapshot(8, Some(candidate(1, 0).process));
    let taken = first_write(&mut election, 100_500, 110_000, &late).unwrap().0 - 100_400;
    assert!((1000..1200).contains(&taken), "{taken}");
}

#[test]
fn vips_that_may_be_given_up_are_not_served() {
    let mut given_up = snapshot(7, None);
    given_up.record.as_mut().unwrap().1.backups.insert(0, host(0));
    let mut election = Election::new(candidate(0, 1));
    assert_eq!(election.tick(ms(100_000)), [Action::Read]);
    election.read(ms(100_000), Some(given_up.clone()));
    assert!(first_write(&mut election, 100_050, 100_100, &given_up).is_some());
    election.written(ms(100_060), Written::Done(8));
    assert!(election.serves_until() > ms(100_060));

    election.give_up(None);
    let owned = snapshot(8, Some(candidate(0, 1).process));
    for (at, written) in [(100_100, Written::Unknown), (100_200, Written::NotSent)] {
        let record = first_write(&mut election, at, at + 100, &owned).unwrap().1;
        assert_eq!(record.owner, None);
        election.written(ms(at + 60), written);
        assert_eq!(election.serves_until(), Duration::ZERO, "the first one may be in force");
    }
    let record = first_write(&mut election, 100_300, 100_500, &owned).unwrap().1;
    assert_eq!(record.owner, Some(candidate(0, 1).process));
    election.written(ms(100_400), Written::Done(9));
    assert!(election.serves_until() > ms(100_400), "that one replaces no record any more");
}
