//! Two RNICs with a link between them, turned by one thread.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sidestep_rdma::memory::{Registration, Shared};
use sidestep_rdma::soft::queue_pair::Peer;
use sidestep_rdma::soft::{Event, Rnic};
use sidestep_wire::{QpNumber, RmbAddress};

pub(crate) const MEMORY_LEN: usize = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(300);

/// Memory that is never given back.
pub(crate) fn memory(len: usize) -> Arc<Shared> {
    let bytes = Box::leak(vec![0; len].into_boxed_slice());
    // SAFETY: leaked, and not used otherwise.
    Arc::new(unsafe { Shared::new(bytes.as_mut_ptr(), len) })
}

pub(crate) struct End {
    pub(crate) rnic: Rnic,
    pub(crate) address: IpAddr,
    pub(crate) qp: QpNumber,
    pub(crate) memory: Arc<Shared>,
    pub(crate) registration: Registration,
    pub(crate) received: Vec<Vec<u8>>,
    pub(crate) completed: Vec<u64>,
}

impl End {
    pub(crate) fn post_send(&mut self, id: u64, message: &[u8]) {
        let qp = self.rnic.adapter().queue_pair(self.qp).unwrap();
        qp.post_send(id, message).unwrap();
    }

    fn take_events(&mut self) {
        while let Some((number, event)) = self.rnic.adapter().poll_event() {
            assert_eq!(number, self.qp);
            match event {
                Event::Received(bytes) => self.received.push(bytes.to_vec()),
                Event::Completed { id, result } => {
                    assert_eq!(result, Ok(()));
                    self.completed.push(id);
                }
                // A busy machine.
                Event::Silent => {}
                event @ (Event::Ready | Event::Broken(_)) => panic!("{event:?}"),
            }
        }
    }
}

pub(crate) struct Pair {
    pub(crate) ends: [End; 2],
    begin: Instant,
}

impl Pair {
    /// Connects one QP of either.
    pub(crate) fn new(rnics: [Rnic; 2], mtu: u16) -> Self {
        let mut ends = rnics.map(|mut rnic| {
            let (qp, first_psn) = rnic.adapter().create();
            let memory = memory(MEMORY_LEN);
            let registration = rnic.adapter().regions().register(Arc::clone(&memory), qp);
            let address = rnic.port().address();
            let end = End {
                rnic,
                address,
                qp,
                memory,
                registration,
                received: vec![],
                completed: vec![],
            };
            (end, first_psn)
        });
        let others = [1, 0].map(|other: usize| {
            let (end, first_psn) = &ends[other];
            (end.address, Peer { qp: end.qp, first_psn: *first_psn, mtu })
        });
        for ((end, _), (address, peer)) in ends.iter_mut().zip(others) {
            assert!(end.rnic.adapter().ready_to_receive(end.qp, address, peer));
            end.rnic.adapter().queue_pair(end.qp).unwrap().ready_to_send();
        }
        Self { ends: ends.map(|(end, _)| end), begin: Instant::now() }
    }

    pub(crate) fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Writes bytes of one's own memory to the same place of the other's.
    pub(crate) fn post_write(&mut self, from: usize, id: u64, at: usize, len: usize) {
        let Registration { rkey, address } = self.ends[1 - from].registration;
        let End { rnic, qp, memory, .. } = &mut self.ends[from];
        let to = (rkey, RmbAddress(address.0 + at as u64));
        let qp = rnic.adapter().queue_pair(*qp).unwrap();
        qp.post_write(id, (memory, at, len as u32), to).unwrap();
    }

    pub(crate) fn turn(&mut self) {
        for index in [0, 1] {
            let now = self.begin.elapsed();
            let end = &mut self.ends[index];
            while end.rnic.turn(now) {}
            end.take_events();
        }
    }

    /// Turns, and sleeps between, until what is expected has come.
    pub(crate) fn run_until(&mut self, is_done: impl Fn(&[End; 2]) -> bool) {
        let end = self.now() + PATIENCE;
        loop {
            self.turn();
            if is_done(&self.ends) {
                return;
            }
            assert!(
                self.now() < end,
                "{:?}",
                self.ends.each_mut().map(|e| e.rnic.adapter().drops())
            );
            self.sleep();
        }
    }

    fn sleep(&self) {
        let deadline = self.ends.iter().filter_map(|end| end.rnic.poll_timeout()).min();
        let most = Duration::from_millis(100);
        let rest = deadline.map_or(most, |it| it.saturating_sub(self.now()).min(most));
        let rest = Timespec { tv_sec: 0, tv_nsec: rest.as_nanos() as i64 };
        let [one, other] = &self.ends;
        let mut fds =
            [one, other].map(|end| PollFd::from_borrowed_fd(end.rnic.as_fd(), PollFlags::IN));
        poll(&mut fds, Some(&rest)).unwrap();
    }

    /// Messages and WRITEs of many lengths in both directions, compared.
    pub(crate) fn exchange(&mut self, rounds: usize) {
        for end in &mut self.ends {
            end.received.clear();
            end.completed.clear();
        }
        let mut expected = [vec![], vec![]];
        let mut ids = [0; 2];
        for round in 0..rounds {
            for from in [0, 1] {
                let len = round * 997 % 30_000;
                let at = from * MEMORY_LEN / 2 + round * 409 % (MEMORY_LEN / 2 - 30_000);
                let bytes = pattern(len, round * 2 + from);
                assert!(self.ends[from].memory.copy_in(at, &bytes));
                self.post_write(from, ids[from], at, len);
                let message = pattern(round * 131 % 3000, round);
                self.ends[from].post_send(ids[from] + 1, &message);
                expected[1 - from].push(message);
                ids[from] += 2;
                let ids = ids[from];
                // The bytes stay as they are until they were written.
                self.run_until(|ends| ends[from].completed.len() as u64 == ids);
                let mut written = vec![0; len];
                assert!(self.ends[1 - from].memory.copy_out(at, &mut written));
                assert!(written == bytes, "round {round}");
            }
        }
        for (end, expected) in self.ends.iter().zip(expected) {
            assert!(end.received == expected, "every message once, and in order");
            assert_eq!(end.completed, (0..2 * rounds as u64).collect::<Vec<_>>());
        }
    }
}

pub(crate) fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + salt * 7 + at / 251) as u8).collect()
}
