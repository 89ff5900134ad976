//! A VIP at work: the states of its targets, and the plan that they come to.

use std::cmp::Reverse;

use thiserror::Error;

use crate::health::Health;
use crate::maglev::{self, Taker};
use crate::state::{Event, State};
use crate::terms::{Method, OptLocal, Vip};

/// A VIP and its targets, in the order of its terms.
#[derive(Clone, Debug)]
pub struct Distribution {
    vip: Vip,
    members: Vec<Member>,
}

#[derive(Clone, Debug)]
struct Member {
    state: State,
    health: Health,
}

/// The state of a target has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which one, by its place in the terms.
    pub target: usize,
    /// Before.
    pub from: State,
    /// Now.
    pub to: State,
}

/// The target that the host of the VIP is itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnTarget {
    /// Which one, by its place in the terms.
    pub target: usize,
    /// Its server accepts what comes ([`has_room`]).
    pub has_room: bool,
}

/// Whether a server accepts what comes: at least three quarters of the connections that may wait for it are not there. From memory
/// IBM's threshold of the efficiency of accepting is as high, 75 of 100.
#[must_use]
pub fn has_room(waiting: u32, waiting_max: u32) -> bool {
    u64::from(waiting) * 4 <= u64::from(waiting_max)
}

/// What the operator wants is so already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// To drain it.
    #[error("it is drained already; `sidestep vip resume` takes that back")]
    IsDrained,
    /// To resume it.
    #[error("it is not drained, so there is nothing to take back")]
    IsNotDrained,
}

/// How a data path chooses among the places of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// By the hash of the client's end ([`crate::hash`]).
    Hash,
    /// The next one.
    Turn,
    /// The one with the fewest live connections for its weight; among equals the hash says which.
    Least,
    /// The one with the fewest live connections for its weight; among equals the first.
    LeastInOrder,
    /// The first that listens.
    First,
}

/// Who takes new connections, for a data path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How a place is chosen.
    pub choice: Choice,
    /// Targets: a Maglev table for [`Choice::Hash`], otherwise each once. Without any, clients are refused.
    /// Of a place whose target does not listen any more, the next place takes the connection.
    pub places: Vec<u8>,
    /// The weight of each target of the VIP, taker or not.
    pub weights: Vec<u16>,
}

impl Distribution {
    /// One of which nothing was seen: all targets are down.
    #[must_use]
    pub fn new(vip: Vip) -> Self {
        let health = Health::new(&vip);
        let member = || Member { state: State::Down, health: health.clone() };
        let members = vip.targets.iter().map(|_| member()).collect();
        Self { vip, members }
    }

    /// The same VIP by new terms. A target that stays where it was, probed as it was, keeps its state; each
    /// target of a name keeps that the operator has drained it.
    #[must_use]
    pub fn succeeded_by(&self, vip: Vip) -> Self {
        let mut next = Self::new(vip);
        for (target, member) in next.vip.targets.iter().zip(&mut next.members) {
            let before = self.vip.targets.iter().position(|it| it.name == target.name);
            let Some(before) = before else { continue };
            let is_same = self.vip.targets[before].address == target.address;
            let is_asked_alike = self.vip.probe == next.vip.probe && self.vip.smc == next.vip.smc;
            if is_same && is_asked_alike {
                *member = self.members[before].clone();
            } else if self.members[before].state.is_drained() {
                member.state = State::Drained;
            }
        }
        next.settle();
        next
    }

    /// Its terms.
    #[must_use]
    pub fn vip(&self) -> &Vip {
        &self.vip
    }

    /// What a target does.
    #[must_use]
    pub fn state(&self, target: usize) -> State {
        self.members[target].state
    }

    /// What all of them do: as long as that stays, so does the plan.
    #[must_use]
    pub fn states(&self) -> Vec<State> {
        self.members.iter().map(|member| member.state).collect()
    }

    /// It was seen whether a target listens.
    pub fn listens(&mut self, target: usize, is_listening: bool) -> Vec<Change> {
        let event = self.members[target].health.listens(is_listening);
        self.take(target, event)
    }

    /// A probe of a target has passed, or failed.
    pub fn probed(&mut self, target: usize, has_passed: bool) -> Vec<Change> {
        let event = self.members[target].health.probed(has_passed);
        self.take(target, event)
    }

    /// The operator wants a target to take no new connections.
    ///
    /// # Errors
    /// It does not.
    pub fn drain(&mut self, target: usize) -> Result<Vec<Change>, Refusal> {
        if self.state(target).is_drained() {
            return Err(Refusal::IsDrained);
        }
        Ok(self.take(target, Some(Event::Drain)))
    }

    /// The operator wants a target back.
    ///
    /// # Errors
    /// It was not drained.
    pub fn resume(&mut self, target: usize) -> Result<Vec<Change>, Refusal> {
        if !self.state(target).is_drained() {
            return Err(Refusal::IsNotDrained);
        }
        Ok(self.take(target, Some(Event::Resume)))
    }

    /// Who takes new connections.
    #[must_use]
    pub fn plan(&self) -> Plan {
        let is_in = |states: &'static [State]| {
            (0..self.members.len()).filter(move |&target| states.contains(&self.state(target)))
        };
        let active: Vec<usize> = is_in(&[State::Active]).collect();
        let each_once = |targets: &[usize]| targets.iter().map(|target| *target as u8).collect();
        let (choice, places) = match self.vip.method {
            Method::BaseWlm => (Choice::Hash, self.table(&active)),
            Method::RoundRobin => (Choice::Turn, each_once(&active)),
            Method::WeightedActive => (Choice::Least, each_once(&active)),
            Method::HotStandby => {
                let mut ranked: Vec<usize> = is_in(&[State::Active, State::Standby]).collect();
                ranked.sort_by_key(|&target| {
                    (self.state(target) != State::Active, Reverse(self.vip.targets[target].weight))
                });
                (Choice::First, each_once(&ranked))
            }
        };
        let weights = self.vip.targets.iter().map(|target| target.weight).collect();
        Plan { choice, places, weights }
    }

    /// Who takes the connections that begin on the very host that has the VIP, by `optlocal`. `own` is the target that this host is,
    /// if its server listens.
    #[must_use]
    pub fn plan_of_own(&self, own: Option<OwnTarget>) -> Plan {
        let factor = self.vip.opt_local.map_or(1, OptLocal::factor);
        let own = own.filter(|own| self.state(own.target) == State::Active && self.may_keep(*own));
        let Some(own) = own else { return self.plan() };
        let others = (0..self.members.len())
            .filter(|&other| other != own.target && self.state(other) == State::Active);
        let places = [own.target].into_iter().chain(others).map(|target| target as u8).collect();
        let mut weights: Vec<u16> = self.vip.targets.iter().map(|target| target.weight).collect();
        // `factor` times the weight decides for each connection anew where live ones do.
        let by_load = self.vip.method == Method::WeightedActive && factor > 1;
        if by_load {
            weights[own.target] *= factor;
        }
        let choice = if by_load { Choice::LeastInOrder } else { Choice::First };
        Plan { choice, places, weights }
    }

    /// Whether the own server comes before the others.
    fn may_keep(&self, own: OwnTarget) -> bool {
        let Some(opt_local) = self.vip.opt_local else { return false };
        if opt_local == OptLocal::ALWAYS {
            return true;
        }
        let weight = |target: usize| self.vip.targets[target].weight;
        let is_active = |&target: &usize| self.state(target) == State::Active;
        let heaviest = (0..self.members.len()).filter(is_active).map(weight).max().unwrap_or(0);
        let is_heavy = match self.vip.method {
            // 1 asks for room alone.
            Method::BaseWlm if opt_local.number() > 1 => {
                weight(own.target) * opt_local.factor() >= heaviest
            }
            _ => true,
        };
        own.has_room && is_heavy
    }

    /// A plan that was made by other terms of this VIP, by the numbers which its targets have now. A place of a target that
    /// is gone becomes the first one's: no other knows its connections, so any resets them.
    #[must_use]
    pub fn renumbered(&self, plan: &Plan, before: &Vip) -> Plan {
        let now = |target: &u8| {
            let address = before.targets[usize::from(*target)].address;
            self.vip.targets.iter().position(|it| it.address == address).unwrap_or(0) as u8
        };
        let weights = self.vip.targets.iter().map(|target| target.weight).collect();
        Plan { choice: plan.choice, places: plan.places.iter().map(now).collect(), weights }
    }

    /// A plan with the places that a target would have in it, which was drained when it was made and is not any more.
    #[must_use]
    pub fn with_resumed(&self, plan: &Plan, target: usize) -> Plan {
        let target = target as u8;
        let is_in = |it: &usize| plan.places.contains(&(*it as u8)) || *it as u8 == target;
        let takers: Vec<usize> = (0..self.members.len()).filter(is_in).collect();
        let mut plan = plan.clone();
        if plan.choice == Choice::Hash {
            plan.places.resize(maglev::PLACES, target);
            for (place, now) in plan.places.iter_mut().zip(self.table(&takers)) {
                *place = if now == target { now } else { *place };
            }
        }
        plan
    }

    fn table(&self, takers: &[usize]) -> Vec<u8> {
        let taker = |&target: &usize| {
            let terms = &self.vip.targets[target];
            let identity = maglev::identity(&terms.name);
            Taker { target: target as u8, identity, weight: terms.weight }
        };
        maglev::table(&takers.iter().map(taker).collect::<Vec<_>>())
    }

    /// What an event of one target changes, and what follows from it for all.
    fn take(&mut self, target: usize, event: Option<Event>) -> Vec<Change> {
        let before = self.states();
        if let Some(event) = event {
            self.pass(target, event);
        }
        self.settle();
        let states = before.into_iter().zip(&self.members).enumerate();
        states
            .filter(|(_, (from, member))| *from != member.state)
            .map(|(target, (from, member))| Change { target, from, to: member.state })
            .collect()
    }

    fn pass(&mut self, target: usize, event: Event) {
        let member = &mut self.members[target];
        // Health and the operator's word are tracked beside the state, so it expects the event.
        let next = member.state.on(event);
        debug_assert!(next.is_some(), "{} does not expect {event:?}", member.state);
        member.state = next.unwrap_or(member.state);
    }

    /// Engages those that the method wants.
    fn settle(&mut self) {
        let leader = self.leader();
        for target in 0..self.members.len() {
            let is_wanted = self.vip.method != Method::HotStandby || Some(target) == leader;
            match self.state(target) {
                State::Standby if is_wanted => self.pass(target, Event::Engage),
                State::Active if !is_wanted => self.pass(target, Event::Relieve),
                _ => {}
            }
        }
    }

    /// Under `HOTSTANDBY`: who takes all connections.
    fn leader(&self) -> Option<usize> {
        let available = (0..self.members.len()).filter(|&target| self.state(target).is_available());
        let leads = |&target: &usize| self.state(target) == State::Active;
        if !self.vip.switch_back
            && let Some(leader) = available.clone().find(leads)
        {
            return Some(leader);
        }
        // The first of those that weigh most.
        available.rev().max_by_key(|&target| self.vip.targets[target].weight)
    }
}

#[cfg(test)]
mod tests;
