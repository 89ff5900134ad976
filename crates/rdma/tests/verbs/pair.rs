//! Two adapters over the model with a link between them, for tests that look closer than the suite.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sidestep_rdma::device::{Device, Event, Peer, Readiness, Source};
use sidestep_rdma::memory::{Registration, Shared};
use sidestep_rdma::verbs::Adapter;
use sidestep_wire::QpNumber;

use crate::{model, open};

pub(crate) const MEMORY_LEN: usize = 1 << 16;

/// Has a queue pair look for its peer, and waits for what becomes of that.
pub(crate) fn hears(adapter: &mut Adapter, qp: QpNumber, address: IpAddr, peer: Peer) -> bool {
    match adapter.ready_to_receive(qp, address, peer) {
        Readiness::Pending => is_found(adapter, qp),
        readiness => readiness == Readiness::Ready,
    }
}

/// Waits for the end of a search.
pub(crate) fn is_found(adapter: &mut Adapter, qp: QpNumber) -> bool {
    loop {
        adapter.turn(Duration::ZERO);
        if let Some(event) = adapter.poll_event() {
            return event == (qp, Event::Ready) && adapter.poll_event().is_none();
        }
        thread::yield_now();
    }
}

pub(crate) struct Pair {
    pub(crate) adapters: [Adapter; 2],
    pub(crate) qps: [QpNumber; 2],
    /// Memory of the first, to be sent from, and of the second, to be written into.
    pub(crate) source: Source,
    pub(crate) target: Arc<Shared>,
    pub(crate) door: Registration,
    pub(crate) posted: u64,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let mut adapters = [(); 2].map(|()| open());
        let made = adapters.each_mut().map(|adapter| adapter.create().unwrap());
        for (end, adapter) in adapters.iter_mut().enumerate() {
            let ((own, _), (qp, first_psn)) = (made[end], made[1 - end]);
            let (address, mtu) = (adapter.gid().address, adapter.mtu());
            assert!(hears(adapter, own, address, Peer { qp, first_psn, mtu }));
            assert!(adapter.ready_to_send(own));
        }
        let qps = made.map(|(qp, _)| qp);
        let source = adapters[0].lend(&Arc::new(Shared::zeroed(MEMORY_LEN))).unwrap();
        let target = Arc::new(Shared::zeroed(MEMORY_LEN));
        let door = adapters[1].register(&target, qps[1]).unwrap();
        let mut this = Self { adapters, qps, source, target, door, posted: 0 };
        // New queues are looked at once.
        this.settle();
        this
    }

    /// A WRITE of so many bytes from there, and a SEND of so many.
    pub(crate) fn post(&mut self, (at, len): (usize, u32), message: &[u8]) {
        let to = (self.door.rkey, self.door.address);
        self.adapters[0].post_write(self.qps[0], self.posted, (&self.source, at, len), to).unwrap();
        self.adapters[0].post_send(self.qps[0], self.posted + 1, message).unwrap();
        self.posted += 2;
    }

    /// Turns both until neither has more to do.
    pub(crate) fn settle(&mut self) {
        for adapter in &mut self.adapters {
            while adapter.turn(Duration::ZERO) {}
        }
    }

    pub(crate) fn events(&mut self, of: usize) -> Vec<Event> {
        let next = || self.adapters[of].poll_event().map(|(_, event)| event);
        std::iter::from_fn(next).collect()
    }

    /// Lets everything arrive that was posted, and forgets what is told of it.
    pub(crate) fn run(&mut self) {
        for _ in 0..4 {
            model::step();
            self.settle();
            for adapter in &mut self.adapters {
                while adapter.poll_event().is_some() {}
            }
        }
    }

    /// The number of a queue pair as the model has it.
    pub(crate) fn number(&self, of: usize) -> u32 {
        let [high, middle, low] = self.qps[of].0;
        u32::from_be_bytes([0, high, middle, low])
    }
}
