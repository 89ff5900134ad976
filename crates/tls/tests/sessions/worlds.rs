//! Worlds by seed: two sessions, and a network between them that cuts what they say into pieces, is late, and in
//! some worlds damages a byte or ends in the middle.
//!
//! In every world: what a program gets is the beginning of what the other one has sent; without damage it is all
//! of it, with a clean end; and nothing goes on for ever.

use std::collections::VecDeque;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sidestep_proto::protection::Role;
use sidestep_tls::rule::{Rule, UncleanEnd, Versions};
use sidestep_tls::session::Got;
use sidestep_tls::{Failure, Session};

use crate::authority::{Authority, pair, peer, rule};

/// What is wrong with a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    None,
    /// This byte, counted from the first of both ways, is another.
    Damage(u64),
    /// It ends before this byte.
    Cut(u64),
}

/// A program with its session.
struct End {
    session: Session,
    to_send: Vec<u8>,
    sent: usize,
    has_closed: bool,
    got: Vec<u8>,
    outcome: Option<Result<(), Failure>>,
}

/// One way.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    has_ended: bool,
}

struct World {
    random: StdRng,
    ends: [End; 2],
    pipes: [Pipe; 2],
    carried: u64,
    harm: Harm,
}

impl World {
    fn new(seed: u64, sessions: [Session; 2], harm: Harm) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let ends = sessions.map(|session| {
            let len = random.random_range(0..40_000);
            let to_send = (0..len).map(|_| random.random()).collect();
            let (sent, has_closed, got, outcome) = (0, false, Vec::new(), None);
            End { session, to_send, sent, has_closed, got, outcome }
        });
        Self { random, ends, pipes: Default::default(), carried: 0, harm }
    }

    fn play(&mut self) {
        for _ in 0..100_000 {
            let who = self.random.random_range(0..2);
            self.say(who);
            self.hear(who);
            if self.ends.iter().all(|end| end.outcome.is_some()) {
                return;
            }
        }
        panic!("it goes on for ever: {:?}", self.ends.each_ref().map(|end| &end.outcome));
    }

    /// The program says something, and its session sends.
    fn say(&mut self, who: usize) {
        let end = &mut self.ends[who];
        let most = (end.to_send.len() - end.sent).min(20_000);
        let len = if most == 0 { 0 } else { self.random.random_range(1..=most) };
        end.sent += end.session.write(&end.to_send[end.sent..end.sent + len]);
        let is_over = end.sent == end.to_send.len() && !end.session.is_handshaking();
        if is_over && !end.has_closed {
            end.has_closed = true;
            end.session.close();
        }
        let mut records = Vec::new();
        end.session.transmit(&mut records);
        let has_failed = matches!(end.outcome, Some(Err(_)));
        let pipe = &mut self.pipes[who];
        for byte in records {
            self.carried += 1;
            match self.harm {
                Harm::Damage(at) if at == self.carried => pipe.bytes.push_back(byte ^ 0x40),
                Harm::Cut(at) if at <= self.carried => pipe.has_ended = true,
                _ if pipe.has_ended => {}
                _ => pipe.bytes.push_back(byte),
            }
        }
        // Its TCP connection ends with it, behind the alert.
        pipe.has_ended |= has_failed || end.has_closed && end.outcome.is_some();
    }

    /// Some of what is under way arrives.
    fn hear(&mut self, who: usize) {
        let pipe = &mut self.pipes[1 - who];
        let end = &mut self.ends[who];
        if end.outcome.is_some() {
            return pipe.bytes.clear();
        }
        let len = self.random.random_range(0..=pipe.bytes.len().min(9_000));
        let piece: Vec<u8> = pipe.bytes.iter().take(len).copied().collect();
        let taken = end.session.take(&piece);
        pipe.bytes.drain(..taken);
        if pipe.bytes.is_empty() && pipe.has_ended {
            end.session.handle_end();
        }
        end.outcome = end.listen().transpose();
    }
}

impl End {
    fn listen(&mut self) -> Result<Option<()>, Failure> {
        self.session.process()?;
        let mut room = [0; 3_000];
        loop {
            match self.session.read(&mut room)? {
                Got::Bytes(count) => self.got.extend_from_slice(&room[..count]),
                Got::End => return Ok(Some(())),
                Got::Nothing => return Ok(None),
            }
        }
    }
}

fn versions(tls13: bool) -> Versions {
    Versions { tls12: !tls13, tls13 }
}

fn play(seed: u64, harm: Harm, unclean_end: UncleanEnd) -> World {
    let versions = versions(seed.is_multiple_of(2));
    let rule = |role| Rule { versions, unclean_end, ..rule(role) };
    let setups = pair(&Authority::new(), rule(Role::Outbound), rule(Role::Inbound));
    let sessions = setups.map(|setup| setup.begin(&peer(None)).unwrap());
    let mut world = World::new(seed, sessions, harm);
    world.play();
    for who in 0..2 {
        let (got, sent) = (&world.ends[who].got, &world.ends[1 - who].to_send);
        assert!(sent.starts_with(got), "seed {seed}: bytes that were not sent, with {harm:?}");
    }
    world
}

#[test]
fn all_bytes_arrive_in_order_and_then_the_end() {
    for seed in 0..60 {
        let world = play(seed, Harm::None, UncleanEnd::Reset);
        for who in 0..2 {
            assert_eq!(world.ends[who].outcome, Some(Ok(())), "seed {seed}");
            assert_eq!(world.ends[who].got.len(), world.ends[1 - who].to_send.len(), "{seed}");
        }
    }
}

#[test]
fn a_damaged_byte_is_noticed_by_at_least_one_end() {
    let mut noticed = 0;
    for seed in 0..120 {
        let at = StdRng::seed_from_u64(seed).random_range(1..30_000);
        let world = play(seed, Harm::Damage(at), UncleanEnd::Reset);
        let has_failed = world.ends.iter().any(|end| matches!(end.outcome, Some(Err(_))));
        // A world with fewer bytes has no damage. Damage behind the end of a stream does none either: an end that has
        // ended does not read.
        let is_whole =
            (0..2).all(|who| world.ends[who].got.len() == world.ends[1 - who].to_send.len());
        assert!(has_failed || is_whole, "seed {seed}: less than was sent, and no failure");
        noticed += usize::from(has_failed);
    }
    assert!(noticed > 60, "only {noticed} of 120 worlds were damaged");
}

#[test]
fn a_connection_that_is_cut_is_no_end() {
    for seed in 0..80 {
        let at = StdRng::seed_from_u64(seed).random_range(1..20_000);
        let world = play(seed, Harm::Cut(at), UncleanEnd::Reset);
        for who in 0..2 {
            let is_whole = world.ends[who].got.len() == world.ends[1 - who].to_send.len();
            assert!(
                is_whole || world.ends[who].outcome != Some(Ok(())),
                "seed {seed}: a clean end, and bytes are missing"
            );
        }
    }
}

#[test]
fn where_the_rule_says_so_a_cut_is_an_end() {
    let is_end = |seed| {
        let world = play(seed, Harm::Cut(9_000), UncleanEnd::Eof);
        world.ends.iter().filter(|end| end.outcome == Some(Ok(()))).count()
    };
    assert!((0..20).map(is_end).sum::<usize>() > 10);
}
