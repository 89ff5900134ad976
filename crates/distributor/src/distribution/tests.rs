//! VIPs in seeded worlds: probes that are lost, targets that flap, operators who drain what is down.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::State::{Active, Down, Drained, Draining, Standby};
use super::*;
use crate::terms::tests::vip;
use crate::terms::{OptLocal, Probe, ProbeKind};

fn up(method: Method, weights: &[u16]) -> Distribution {
    let mut distribution = Distribution::new(vip(method, weights));
    for target in 0..weights.len() {
        distribution.listens(target, true);
    }
    distribution
}

#[test]
fn a_target_that_listens_takes_connections() {
    let mut distribution = Distribution::new(vip(Method::RoundRobin, &[4, 1]));
    assert!(distribution.plan().places.is_empty());
    let change = Change { target: 1, from: Down, to: Active };
    assert_eq!(distribution.listens(1, true), [change]);
    assert_eq!(distribution.listens(1, true), []);
    let plan = Plan { choice: Choice::Turn, places: vec![1], weights: vec![4, 1] };
    assert_eq!(distribution.plan(), plan);
}

#[test]
fn one_that_is_drained_takes_none_until_it_is_resumed() {
    let mut distribution = up(Method::WeightedActive, &[1, 1]);
    distribution.drain(0).unwrap();
    assert_eq!(distribution.drain(0), Err(Refusal::IsDrained));
    assert_eq!(distribution.plan().places, [1]);
    distribution.listens(0, false);
    assert_eq!(distribution.states(), [Drained, Active]);
    distribution.listens(0, true);
    assert_eq!(distribution.states(), [Draining, Active], "a restart does not resume it");
    distribution.resume(0).unwrap();
    assert_eq!(distribution.resume(0), Err(Refusal::IsNotDrained));
    assert_eq!(distribution.states(), [Active, Active]);
}

#[test]
fn one_may_be_drained_and_resumed_while_it_is_down() {
    let mut distribution = Distribution::new(vip(Method::BaseWlm, &[1]));
    distribution.drain(0).unwrap();
    assert_eq!(distribution.states(), [Drained]);
    distribution.resume(0).unwrap();
    assert_eq!(distribution.states(), [Down]);
}

#[test]
fn hot_standby_leads_by_weight_and_switches_back_if_it_may() {
    for (switch_back, then) in
        [(true, [Active, Standby, Standby]), (false, [Standby, Standby, Active])]
    {
        let mut distribution =
            Distribution::new(Vip { switch_back, ..vip(Method::HotStandby, &[9, 1, 5]) });
        (0..3).for_each(|target| drop(distribution.listens(target, true)));
        assert_eq!(distribution.states(), [Active, Standby, Standby]);
        distribution.listens(0, false);
        assert_eq!(distribution.states(), [Down, Standby, Active]);
        let plan = distribution.plan();
        assert_eq!((plan.choice, plan.places), (Choice::First, vec![2, 1]));
        distribution.listens(0, true);
        assert_eq!(distribution.states(), then);
        distribution.drain(2).unwrap();
        assert_eq!(distribution.states(), [Active, Standby, Draining]);
    }
}

#[test]
fn new_terms_keep_what_stays() {
    let mut before = up(Method::BaseWlm, &[1, 1, 1]);
    before.drain(1).unwrap();
    let mut terms = vip(Method::RoundRobin, &[5, 1, 1, 1]);
    terms.targets[1].address.set_port(9000);
    let after = before.succeeded_by(terms);
    assert_eq!(after.states(), [Active, Drained, Active, Down]);
    assert_eq!(after.plan().places, [0, 2]);
}

#[test]
fn a_plan_of_other_terms_leads_to_the_same_targets() {
    let before = up(Method::BaseWlm, &[4, 2, 1]);
    let mut terms = vip(Method::RoundRobin, &[9, 1, 4, 2]);
    // The first one is gone, the others are behind two new ones.
    for (target, port) in terms.targets.iter_mut().zip([9000, 9001, 7003, 7002]) {
        target.address.set_port(port);
    }
    let after = before.succeeded_by(terms);
    let (old, new) = (before.plan(), after.renumbered(&before.plan(), before.vip()));
    assert_eq!((new.choice, &new.weights[..]), (Choice::Hash, &[9, 1, 4, 2][..]));
    let moved = old.places.iter().map(|target| [0, 3, 2][usize::from(*target)]);
    assert!(moved.eq(new.places.iter().copied()));
}

#[test]
fn a_target_that_is_resumed_has_its_places_again() {
    let mut distribution = up(Method::BaseWlm, &[4, 2, 1]);
    let all = distribution.plan();
    distribution.drain(2).unwrap();
    let before = distribution.plan();
    distribution.drain(0).unwrap();
    distribution.resume(2).unwrap();
    let restored = distribution.with_resumed(&before, 2);
    let is_same =
        |of: &Plan| of.places.iter().zip(&restored.places).filter(|(a, b)| a == b).count();
    assert!(all.places.iter().zip(&restored.places).all(|(a, b)| (*a == 2) == (*b == 2)));
    assert!(is_same(&all) > maglev::PLACES * 98 / 100, "the others' hardly change");
    // Where there was none it has all.
    let none = Plan { places: Vec::new(), ..before };
    assert!(distribution.with_resumed(&none, 2).places.iter().all(|target| *target == 2));
}

fn local(method: Method, weights: &[u16], number: u32) -> Distribution {
    let mut distribution = up(method, weights);
    distribution.vip.opt_local = OptLocal::new(number);
    distribution
}

const ROOM: OwnTarget = OwnTarget { target: 1, has_room: true };
const NO_ROOM: OwnTarget = OwnTarget { target: 1, has_room: false };

/// Whether the first target of a plan takes all.
fn keeps(plan: &Plan) -> bool {
    plan.choice == Choice::First && plan.places.first() == Some(&1)
}

#[test]
fn by_optlocal_0_the_own_server_takes_all_as_long_as_it_serves() {
    for method in [Method::BaseWlm, Method::RoundRobin, Method::WeightedActive] {
        let mut distribution = local(method, &[100, 1, 7], 0);
        for own in [ROOM, NO_ROOM] {
            let plan = distribution.plan_of_own(Some(own));
            assert_eq!((plan.choice, plan.places), (Choice::First, vec![1, 0, 2]), "{method}");
        }
        assert_eq!(distribution.plan_of_own(None), distribution.plan(), "it does not listen");
        distribution.drain(1).unwrap();
        assert_eq!(distribution.plan_of_own(Some(ROOM)), distribution.plan(), "it is drained");
        assert!(!distribution.plan().places.contains(&1));
    }
}

#[test]
fn by_optlocal_1_it_needs_room() {
    for method in [Method::BaseWlm, Method::RoundRobin, Method::WeightedActive] {
        let distribution = local(method, &[100, 1, 7], 1);
        assert!(keeps(&distribution.plan_of_own(Some(ROOM))), "{method}");
        assert_eq!(distribution.plan_of_own(Some(NO_ROOM)), distribution.plan(), "{method}");
    }
    assert!([(0, 0), (0, 4), (1, 4), (128, 512)].iter().all(|(now, max)| has_room(*now, *max)));
    assert!([(2, 4), (129, 512), (1, 0)].iter().all(|(now, max)| !has_room(*now, *max)));
}

#[test]
fn from_2_on_its_weight_counts_so_many_times() {
    for (number, own, other, is_kept) in
        [(2, 5, 10, true), (2, 5, 11, false), (16, 6, 96, true), (16, 6, 97, false)]
    {
        let mut distribution = local(Method::BaseWlm, &[other, own, 1], number);
        let plan = distribution.plan_of_own(Some(ROOM));
        assert_eq!(keeps(&plan), is_kept, "{own} times {number} beside {other}");
        assert!(is_kept || plan == distribution.plan());
        // The one that is heavier takes nothing any more.
        distribution.drain(0).unwrap();
        assert!(keeps(&distribution.plan_of_own(Some(ROOM))));
    }
    let plan = local(Method::RoundRobin, &[100, 1], 2).plan_of_own(Some(ROOM));
    assert!(keeps(&plan), "each has its turn, whatever it weighs");
    let plan = local(Method::WeightedActive, &[100, 100, 7], 16).plan_of_own(Some(ROOM));
    let due =
        Plan { choice: Choice::LeastInOrder, places: vec![1, 0, 2], weights: vec![100, 1600, 7] };
    assert_eq!(plan, due);
}

/// What is kept with one number is kept with each greater one, and with 0; what is not kept goes as any client's.
#[test]
fn a_greater_number_never_keeps_less() {
    for seed in 0..150 {
        let mut random = StdRng::seed_from_u64(seed);
        let method = [Method::BaseWlm, Method::RoundRobin][random.random_range(0..2)];
        let weights: Vec<u16> =
            (0..random.random_range(1..6)).map(|_| random.random_range(1..=100)).collect();
        let mut distribution = up(method, &weights);
        for target in 0..weights.len() {
            if random.random_bool(0.3) {
                distribution.listens(target, false);
            }
        }
        let target = random.random_range(0..weights.len());
        let own = OwnTarget { target, has_room: random.random_bool(0.8) };
        let plans: Vec<Plan> = (2..=16)
            .chain([0])
            .map(|number| {
                distribution.vip.opt_local = OptLocal::new(number);
                distribution.plan_of_own(Some(own))
            })
            .collect();
        let any = distribution.plan();
        let kept: Vec<bool> = plans.iter().map(|plan| plan.choice == Choice::First).collect();
        assert!(kept.is_sorted(), "seed {seed}: {kept:?}");
        for (plan, is_kept) in plans.iter().zip(kept) {
            let is_active = |place: &u8| distribution.state((*place).into()) == Active;
            assert!(plan.places.iter().all(is_active), "seed {seed}");
            assert!(if is_kept { usize::from(plan.places[0]) == target } else { *plan == any });
        }
    }
}

/// What is true after each step, whatever came before.
fn check(distribution: &Distribution, listening: &[bool], drained: &[bool]) {
    let states = distribution.states();
    for (target, state) in states.iter().enumerate() {
        assert_eq!(state.is_drained(), drained[target], "target {target}");
        assert!(listening[target] || matches!(state, Down | Drained), "target {target} is gone");
    }
    let active = states.iter().filter(|state| **state == Active).count();
    let available = states.iter().filter(|state| state.is_available()).count();
    if distribution.vip.method == Method::HotStandby {
        assert_eq!(active, available.min(1));
    } else {
        assert_eq!(active, available);
    }
    if distribution.vip.method != Method::BaseWlm {
        check_plan(distribution, &states);
    }
}

fn check_plan(distribution: &Distribution, states: &[State]) {
    let plan = distribution.plan();
    let is_taker = |place: &u8| match plan.choice {
        Choice::First => states[usize::from(*place)].is_available(),
        _ => states[usize::from(*place)] == Active,
    };
    assert!(plan.places.iter().all(is_taker));
    let first = plan.places.first().map(|place| states[usize::from(*place)]);
    assert_eq!(first, states.contains(&Active).then_some(Active));
}

fn play(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let method = Method::ALL[random.random_range(0..Method::ALL.len())];
    let weights: Vec<u16> =
        (0..random.random_range(1..6)).map(|_| random.random_range(1..=100)).collect();
    let mut terms = vip(method, &weights);
    terms.switch_back = random.random();
    if random.random() {
        let (rise, fall) = (random.random_range(1..4), random.random_range(1..4));
        terms.probe = Probe { kind: ProbeKind::Tcp, rise, fall, ..Probe::default() };
    }
    let mut distribution = Distribution::new(terms);
    let (mut listening, mut drained) = (vec![false; weights.len()], vec![false; weights.len()]);
    // How often a probe is lost in this world, and how often a target flaps.
    let (loss, flap) = (random.random_range(0.0..1.0), random.random_range(0.0..0.5));
    for _ in 0..300 {
        let target = random.random_range(0..weights.len());
        match random.random_range(0..10) {
            0 => {
                drained[target] = true;
                _ = distribution.drain(target);
            }
            1 => {
                drained[target] = false;
                _ = distribution.resume(target);
            }
            2..5 => {
                listening[target] = !random.random_bool(flap);
                distribution.listens(target, listening[target]);
            }
            5 => distribution = distribution.succeeded_by(distribution.vip.clone()),
            _ => drop(distribution.probed(target, !random.random_bool(loss))),
        }
        check(&distribution, &listening, &drained);
    }
    // Of a table by weight once: it takes a while to make.
    check_plan(&distribution, &distribution.states());
}

#[test]
fn no_world_sends_a_client_to_who_is_gone_or_drained() {
    (0..500).for_each(play);
}

/// A world that has calmed down: everything that listens and answers takes connections.
#[test]
fn after_the_storm_all_are_back() {
    for seed in 0..100 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut terms = vip(Method::BaseWlm, &[1, 2, 3]);
        terms.probe = Probe { kind: ProbeKind::Tcp, rise: 3, fall: 2, ..Probe::default() };
        let mut distribution = Distribution::new(terms);
        for _ in 0..200 {
            let target = random.random_range(0..3);
            distribution.listens(target, random.random());
            distribution.probed(target, random.random());
        }
        for target in [0, 1, 2].repeat(3) {
            distribution.listens(target, true);
            distribution.probed(target, true);
        }
        assert_eq!(distribution.states(), [Active; 3], "seed {seed}");
    }
}
