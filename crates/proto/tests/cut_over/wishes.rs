//! All orders in which two ends can follow the wishes of operators: not drawn by a seed, but all there are.
//!
//! A direction is its turns, those that the receiver has followed, and what both have written down of it. Each call of a
//! program is one step here, with all bytes received at once: how a turn is taken word by word is what the worlds of
//! this test are about. *Laws*, for each pair of wishes:
//!
//! * no turn is two ahead of the receiver ([`Follow`](sidestep_proto::cut_over::Follow) knows of one);
//! * no direction sends by TCP what a thread of the receiver takes for a bell, without asking;
//! * when no operator changes a wish any more, both directions come to where it wants them, and stay.

use std::collections::HashSet;

use sidestep_proto::cut_over::{
    BeforeEntering, BeforeLeaving, Enter, Leave, Permit, Wished, is_ring, wishes,
};

/// Changes of wishes, of both operators together: into the ring, back to TCP, and there again.
const CHANGES_MAX: u8 = 4;

/// Rounds after which wishes that no operator changes are fulfilled.
const ROUNDS_MAX: usize = 12;

/// What one end has written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct End {
    is_held: bool,
    /// It tells the peer that it wants TCP.
    says_tcp: bool,
    wants_permit: bool,
    leaves: bool,
    turns: u32,
    followed: u32,
    /// The last turn that it permits the peer.
    permit: u32,
    /// All that comes by TCP is taken for bells.
    takes_unasked: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct World {
    ends: [End; 2],
    changes: u8,
}

/// What an end does.
#[derive(Clone, Copy, Debug)]
enum Step {
    FollowsWishes,
    Sends,
    Receives,
    OperatorChanges,
}

/// Those of its programs.
const CALLS: [Step; 3] = [Step::FollowsWishes, Step::Sends, Step::Receives];

impl World {
    fn after(mut self, at: usize, step: Step) -> Self {
        let peer = self.ends[1 - at];
        let own = &mut self.ends[at];
        match step {
            Step::OperatorChanges if self.changes == CHANGES_MAX => return self,
            Step::OperatorChanges => {
                own.is_held = !own.is_held;
                self.changes += 1;
            }
            Step::FollowsWishes => own.follow_wishes(&peer),
            Step::Sends => own.send(&peer),
            Step::Receives => own.receive(&peer),
        }
        self
    }

    fn is_on_tcp(&self) -> bool {
        self.ends.iter().all(|end| !is_ring(end.turns))
    }

    fn is_in_ring(&self) -> bool {
        self.ends.iter().all(|end| is_ring(end.turns))
    }

    /// Is where the operators want it, when they change nothing and the programs go on.
    fn comes_where_it_is_wanted(&self) {
        let wants_tcp = self.ends.iter().any(|end| end.is_held);
        let mut world = *self;
        for round in 0..2 * ROUNDS_MAX {
            for (at, step) in (0..2).flat_map(|at| CALLS.map(|step| (at, step))) {
                world = world.after(at, step);
            }
            let is_there = if wants_tcp { world.is_on_tcp() } else { world.is_in_ring() };
            assert!(
                round < ROUNDS_MAX || is_there,
                "TCP is wanted: {wants_tcp}, {self:?}: {world:?}"
            );
        }
    }

    fn keeps_the_law(&self) {
        for (sender, receiver) in [(0, 1), (1, 0)].map(|(a, b)| (&self.ends[a], &self.ends[b])) {
            assert!(sender.turns - receiver.followed <= 1, "two turns ahead: {self:?}");
            let sends_data = sender.turns > 0 && !is_ring(sender.turns);
            assert!(!sends_data || !receiver.takes_unasked, "data for bells: {self:?}");
        }
    }
}

impl End {
    fn is_permitted(&self, peer: &Self) -> bool {
        peer.permit == self.turns + 1
    }

    fn follow_wishes(&mut self, peer: &Self) {
        let wishes = wishes(&Wished {
            is_held: self.is_held,
            peer_wants_tcp: peer.says_tcp,
            takes_unasked: self.takes_unasked,
            followed: self.followed,
            turns: self.turns,
            is_permitted: self.is_permitted(peer),
        });
        self.says_tcp = wishes.says_tcp;
        self.wants_permit = wishes.wants_permit;
        self.permit = wishes.grants.unwrap_or(self.permit);
        self.leaves = wishes.leaves;
    }

    fn send(&mut self, peer: &Self) {
        if self.leaves {
            let leave = Leave::begin(&BeforeLeaving {
                turns: self.turns,
                is_open: is_ring(self.turns),
                is_over: false,
                is_permitted: self.is_permitted(peer),
                is_marked: false,
                unfinished: 0,
            });
            if let Leave::Wakes { turn } = leave {
                (self.turns, self.leaves) = (turn, false);
            }
        }
        let seen = BeforeEntering {
            turns: self.turns,
            is_settled: true,
            plain_sends: 0,
            is_held: self.is_held,
            is_permitted: self.is_permitted(peer),
        };
        if let Enter::Measures { turn } = Enter::begin(&seen, || true) {
            self.turns = turn;
        }
    }

    fn receive(&mut self, peer: &Self) {
        if self.wants_permit {
            self.wants_permit = false;
            if Permit::begin(self.followed, false) == Permit::Secludes {
                self.takes_unasked = false;
                self.permit = self.followed + 1;
            }
        }
        if !self.takes_unasked && peer.turns > self.followed {
            self.followed += 1;
            self.takes_unasked = is_ring(self.followed);
            self.follow_wishes(peer);
        }
    }
}

#[test]
fn both_directions_come_to_where_operators_want_them_from_every_state() {
    let first = World::default();
    let (mut known, mut open) = (HashSet::from([first]), vec![first]);
    while let Some(world) = open.pop() {
        world.keeps_the_law();
        world.comes_where_it_is_wanted();
        for (at, step) in (0..2).flat_map(|at| CALLS.map(|step| (at, step))) {
            open.extend(Some(world.after(at, step)).filter(|next| known.insert(*next)));
        }
        for at in 0..2 {
            let next = world.after(at, Step::OperatorChanges);
            open.extend(Some(next).filter(|next| known.insert(*next)));
        }
    }
    println!("{} states", known.len());
}
