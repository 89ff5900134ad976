//! Yields of real threads, by `sched_switch` and `sched_yield` on Linux 6.18 with ticks of 4 ms, before
//! there was a rule against them: what [`Contention`] would have made of them.

use sidestep_proto::contention::{Company, Contention};

use crate::Ns;

/// When a thread has yielded and when it ran again, in microseconds.
type Trace = [(Ns, Ns)];

/// The server of one pair, two loops on two CPUs.
const TWO_LOOPS: &Trace = &[
    (0, 3955),
    (3959, 3969),
    (3970, 7944),
    (7946, 15988),
    (15999, 16006),
    (16007, 19943),
    (19945, 23942),
    (23943, 23949),
    (23950, 31962),
    (31972, 35944),
    (35945, 39966),
    (39968, 39975),
    (39977, 47984),
    (47991, 51935),
    (51938, 59964),
    (59981, 60000),
    (60001, 63963),
    (63965, 67944),
    (67946, 67951),
    (67953, 71940),
    (71942, 75939),
    (75941, 75946),
    (75948, 78570),
    (78576, 87979),
    (87987, 91942),
    (91944, 91950),
];

/// The server of one pair with an event loop, four loops on two CPUs.
const FOUR_LOOPS: &Trace = &[
    (0, 3907),
    (3946, 15992),
    (16013, 22101),
    (22125, 27977),
    (28002, 47966),
    (47990, 47999),
    (48002, 55944),
    (55963, 71924),
    (71944, 71953),
    (71956, 78009),
    (78021, 87875),
    (87888, 101234),
    (101251, 108133),
    (108146, 122291),
    (122309, 123925),
    (123932, 130605),
];

/// A server among ten pairs that share a CPU and hand it to each other.
const FRIENDS: &Trace = &[
    (0, 105),
    (25, 113),
    (65, 117),
    (71, 120),
    (103, 139),
    (106, 143),
    (115, 150),
    (118, 154),
    (122, 157),
    (141, 174),
    (144, 177),
    (152, 184),
    (155, 188),
    (158, 191),
    (176, 209),
    (179, 213),
    (186, 219),
    (189, 223),
    (193, 226),
];

/// What yields would have cost if the trace came again and again for ten seconds, of which a
/// thread yields only when it may; and what they have cost without a rule.
fn replay(trace: &Trace) -> (Ns, Ns) {
    const LENGTH_NS: Ns = 10_000_000_000;
    let mut contention = Contention::new();
    let (mut by_rule, mut without) = (0, 0);
    let (mut now, mut gap, mut which) = (1_000_000, 0, 0);
    while now < LENGTH_NS {
        let (from, to) = trace[which % trace.len()];
        let late = (to - from) * 1000;
        without += late;
        which += 1;
        if contention.company(now, gap) == Company::Alone {
            by_rule += late;
            contention.resumed(now + late, late, 0);
        }
        now += late;
        gap = late;
    }
    (by_rule, without)
}

#[test]
fn yields_beside_loops_cost_a_tenth_at_most() {
    for trace in [TWO_LOOPS, FOUR_LOOPS] {
        let (by_rule, without) = replay(trace);
        assert!(by_rule < without / 10, "{by_rule} of {without}");
    }
}

#[test]
fn friends_that_share_a_cpu_go_on_yielding() {
    let (by_rule, without) = replay(FRIENDS);
    assert_eq!(by_rule, without);
}
