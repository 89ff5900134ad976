//! One queue of EEVDF: who may run, and who runs next.
//!
//! Each entity has a *virtual runtime*, which grows while it runs, the slower the heavier it is. Its
//! *lag* is how far that lies behind the weighted average of the queue. An entity with lag is
//! *eligible*; of the eligible ones the one with the earliest *deadline* runs, which lies one slice
//! after the virtual runtime with which the entity has begun its slice. A sleeper keeps its lag, so
//! one that has run little preempts on its wake-up one that has run much.

use crate::Ns;

/// The weight of an ordinary thread.
pub(crate) const ORDINARY: i64 = 1024;

/// What a yield of an eligible entity does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Yielding {
    /// It forfeits the rest of its slice, as since Linux 6.18.
    MovesRuntime,
    /// Its deadline is put off by a slice, as before.
    MovesDeadline,
}

/// Whether an entity is in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Away,
    Here,
    /// It sleeps, but has run more than its share: it stays until the others have caught up.
    Leaving,
}

#[derive(Clone, Debug)]
struct Entity {
    weight: i64,
    runtime: i64,
    deadline: i64,
    lag: i64,
    presence: Presence,
}

/// All entities that may ever be in it, by their number.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    entities: Vec<Entity>,
    slice: i64,
    lag_max: i64,
    /// The average when it was last empty.
    resting: i64,
}

impl Queue {
    pub(crate) const fn new(slice: Ns, tick: Ns) -> Self {
        let slice = slice as i64;
        let lag_max = if slice * 2 > tick as i64 { slice * 2 } else { tick as i64 };
        Self { entities: Vec::new(), slice, lag_max, resting: 0 }
    }

    pub(crate) fn add(&mut self, weight: i64) -> usize {
        let presence = Presence::Away;
        self.entities.push(Entity { weight, runtime: 0, deadline: 0, lag: 0, presence });
        self.entities.len() - 1
    }

    /// How many are ready to run.
    pub(crate) fn ready(&self) -> usize {
        self.entities.iter().filter(|it| it.presence == Presence::Here).count()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entities.iter().all(|it| it.presence == Presence::Away)
    }

    pub(crate) fn is_here(&self, which: usize) -> bool {
        self.entities[which].presence == Presence::Here
    }

    fn weight(&self) -> i64 {
        let present = self.entities.iter().filter(|it| it.presence != Presence::Away);
        present.map(|it| it.weight).sum()
    }

    fn average(&self) -> i64 {
        let mut present = self.entities.iter().filter(|it| it.presence != Presence::Away);
        let Some(first) = present.next() else { return self.resting };
        let (mut sum, mut weight) = (0, first.weight);
        for it in present {
            sum += (it.runtime - first.runtime) * it.weight;
            weight += it.weight;
        }
        first.runtime + sum.div_euclid(weight)
    }

    fn scaled(&self, which: usize, ns: i64) -> i64 {
        ns * ORDINARY / self.entities[which].weight
    }

    /// It is ready: with the lag it has left with.
    pub(crate) fn enter(&mut self, which: usize) {
        match self.entities[which].presence {
            Presence::Here => return,
            Presence::Leaving => {
                self.entities[which].presence = Presence::Here;
                return;
            }
            Presence::Away => {}
        }
        let (average, others) = (self.average(), self.weight());
        let slice = self.scaled(which, self.slice);
        let it = &mut self.entities[which];
        // It moves the average itself.
        let lag = if others == 0 { 0 } else { it.lag * (others + it.weight) / others };
        it.runtime = average - lag;
        it.deadline = it.runtime + slice;
        it.presence = Presence::Here;
    }

    /// It sleeps.
    pub(crate) fn leave(&mut self, which: usize) {
        let lag = self.average() - self.entities[which].runtime;
        if lag < 0 {
            self.entities[which].presence = Presence::Leaving;
            return;
        }
        self.remove(which, lag);
    }

    /// It goes at once, with its debts.
    pub(crate) fn withdraw(&mut self, which: usize) {
        if self.entities[which].presence != Presence::Away {
            self.remove(which, self.average() - self.entities[which].runtime);
        }
    }

    fn remove(&mut self, which: usize, lag: i64) {
        self.resting = self.average();
        let lag_max = self.scaled(which, self.lag_max);
        let it = &mut self.entities[which];
        it.lag = lag.clamp(-lag_max, lag_max);
        it.presence = Presence::Away;
    }

    /// Who is to run.
    pub(crate) fn best(&self) -> Option<usize> {
        let average = self.average();
        let present = self
            .entities
            .iter()
            .enumerate()
            .filter(|(_, it)| it.presence != Presence::Away && it.runtime <= average);
        present.min_by_key(|(_, it)| it.deadline).map(|(which, _)| which)
    }

    /// As [`Self::best`]; a sleeper whose turn it is has no debts any more, and goes.
    pub(crate) fn pick(&mut self) -> Option<usize> {
        loop {
            let best = self.best()?;
            if self.entities[best].presence == Presence::Here {
                return Some(best);
            }
            self.remove(best, 0);
        }
    }

    /// It has run. True: its slice is over.
    pub(crate) fn charge(&mut self, which: usize, ns: Ns) -> bool {
        let (ran, slice) = (self.scaled(which, ns as i64), self.scaled(which, self.slice));
        let it = &mut self.entities[which];
        it.runtime += ran;
        let is_over = it.runtime >= it.deadline;
        if is_over {
            it.deadline = it.runtime + slice;
        }
        is_over
    }

    pub(crate) fn yields(&mut self, which: usize, yielding: Yielding) {
        let (average, slice) = (self.average(), self.scaled(which, self.slice));
        let it = &mut self.entities[which];
        match yielding {
            Yielding::MovesRuntime if it.runtime <= average => {
                it.runtime = it.deadline;
                it.deadline += slice;
            }
            Yielding::MovesRuntime => {}
            Yielding::MovesDeadline => it.deadline += slice,
        }
    }
}
