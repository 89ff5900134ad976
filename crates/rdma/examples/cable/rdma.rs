//! The workloads over one link of two soft RNICs.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sidestep_rdma::memory::{Registration, Shared};
use sidestep_rdma::soft::port::Settings;
use sidestep_rdma::soft::queue_pair::Peer;
use sidestep_rdma::soft::{Event, Rnic};
use sidestep_wire::{Psn, QpNumber, RmbAddress};

use crate::scene::Scene;
use crate::{BLOCK, MESSAGE, Workload};

/// WRITEs of a stream that are posted and not completed.
const DEPTH: u64 = 8;
/// As long as a CDC message.
const NOTE: usize = 44;
/// The note that ends it.
const FAREWELL: u8 = 0xFF;

/// What either end tells the other before it begins.
type Introduction = (QpNumber, Psn, Registration);

struct End {
    rnic: Rnic,
    qp: QpNumber,
    memory: Arc<Shared>,
    to: Registration,
    begin: Instant,
}

impl End {
    fn new(
        [own, other]: [IpAddr; 2],
        tell: &Sender<Introduction>,
        hear: &Receiver<Introduction>,
        barrier: &Barrier,
    ) -> Self {
        let mut rnic = Rnic::open(own, &Settings::default()).expect("a port");
        let len = BLOCK * DEPTH as usize;
        let bytes = Box::leak(vec![7; len].into_boxed_slice());
        // SAFETY: leaked, and not used otherwise.
        let memory = Arc::new(unsafe { Shared::new(bytes.as_mut_ptr(), len) });
        let (qp, first_psn) = rnic.adapter().create();
        let registration = rnic.adapter().regions().register(Arc::clone(&memory), qp);
        tell.send((qp, first_psn, registration)).expect("a peer");
        let (peer, first_psn, to) = hear.recv().expect("a peer");
        let mtu = rnic.port().mtu_to(other).expect("a way");
        let peer = Peer { qp: peer, first_psn, mtu };
        assert!(rnic.adapter().ready_to_receive(qp, other, peer));
        rnic.adapter().queue_pair(qp).expect("just made").ready_to_send();
        barrier.wait();
        Self { rnic, qp, memory, to, begin: Instant::now() }
    }

    fn write(&mut self, id: u64, place: usize, len: usize) {
        let at = place * len;
        let to = (self.to.rkey, RmbAddress(self.to.address.0 + at as u64));
        let qp = self.rnic.adapter().queue_pair(self.qp).expect("it is there");
        qp.post_write(id, (&self.memory, at, len as u32), to).expect("room");
    }

    fn note(&mut self, note: u8) {
        let qp = self.rnic.adapter().queue_pair(self.qp).expect("it is there");
        qp.post_send(u64::from(note), &[note; NOTE]).expect("room");
    }

    fn say_farewell(&mut self) {
        self.note(FAREWELL);
        self.drive(
            |_, event| !matches!(event, Event::Completed { id, .. } if id == FAREWELL.into()),
        );
    }

    /// Sleeps until something is to be done.
    fn sleep(&self) {
        let now = self.begin.elapsed();
        let rest = self.rnic.poll_timeout().map(|deadline| deadline.saturating_sub(now));
        let rest = rest.map(|rest| Timespec {
            tv_sec: rest.as_secs() as i64,
            tv_nsec: i64::from(rest.subsec_nanos()),
        });
        let mut fds = [PollFd::from_borrowed_fd(self.rnic.as_fd(), PollFlags::IN)];
        poll(&mut fds, rest.as_ref()).expect("poll");
    }

    /// Takes events until the function returns false.
    fn drive(&mut self, mut on_event: impl FnMut(&mut Self, Event) -> bool) {
        loop {
            let has_come = self.rnic.receive(self.begin.elapsed());
            while let Some((_, event)) = self.rnic.adapter().poll_event() {
                if !on_event(self, event) {
                    self.rnic.transmit(self.begin.elapsed());
                    return;
                }
            }
            let is_left = self.rnic.transmit(self.begin.elapsed());
            if !has_come && !is_left {
                self.sleep();
            }
        }
    }
}

pub(crate) fn run(scene: &Scene, workload: Workload, time: Duration) -> f64 {
    let ((to_server, from_client), (to_client, from_server)) = (channel(), channel());
    // A receiver is not for two threads; each is for one.
    let (from_client, from_server) = (Mutex::new(from_client), Mutex::new(from_server));
    let server = |addresses: [IpAddr; 2], barrier: &Barrier| {
        let hear = from_client.lock().expect("one thread");
        let mut end = End::new(addresses, &to_client, &hear, barrier);
        end.drive(|end, event| match event {
            Event::Received(note) if note[0] == FAREWELL => false,
            Event::Received(note) => {
                end.write(0, note[0].into(), MESSAGE);
                end.note(note[0]);
                true
            }
            Event::Completed { result, .. } => result.is_ok(),
            Event::Ready | Event::Silent => true,
            Event::Broken(failure) => panic!("{failure:?}"),
        });
        barrier.wait();
    };
    let client = |addresses: [IpAddr; 2], barrier: &Barrier| {
        let hear = from_server.lock().expect("one thread");
        let mut end = End::new(addresses, &to_server, &hear, barrier);
        let rate = match workload {
            Workload::Stream => stream(&mut end, time),
            Workload::Exchanges(count) => exchange(&mut end, count, time),
        };
        end.say_farewell();
        barrier.wait();
        rate
    };
    scene.run(server, client)
}

fn stream(end: &mut End, time: Duration) -> f64 {
    let mut blocks = 0;
    (0..DEPTH).for_each(|id| end.write(id, id as usize, BLOCK));
    end.rnic.transmit(end.begin.elapsed());
    let begin = Instant::now();
    end.drive(|end, event| {
        if let Event::Completed { id, result: Ok(()) } = event {
            blocks += 1;
            end.write(id, id as usize, BLOCK);
        }
        begin.elapsed() < time
    });
    (blocks * BLOCK) as f64 / begin.elapsed().as_secs_f64() / 1e6
}

fn exchange(end: &mut End, count: usize, time: Duration) -> f64 {
    let mut exchanges = 0;
    for place in 0..count {
        end.write(0, place, MESSAGE);
        end.note(place as u8);
    }
    end.rnic.transmit(end.begin.elapsed());
    let begin = Instant::now();
    end.drive(|end, event| {
        if let Event::Received(note) = event {
            exchanges += 1;
            end.write(0, note[0].into(), MESSAGE);
            end.note(note[0]);
        }
        begin.elapsed() < time
    });
    f64::from(exchanges) / begin.elapsed().as_secs_f64()
}
