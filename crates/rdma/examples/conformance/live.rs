//! Two devices that are turned by one thread, as their owner would, with nothing in their way.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sidestep_rdma::device::{Device, Driven};

use crate::suite::Bench;

/// Two devices that find each other by themselves.
pub(crate) struct LiveBench {
    devices: [Box<dyn Driven>; 2],
    addresses: [IpAddr; 2],
    mtu: u16,
    begin: Instant,
}

impl LiveBench {
    pub(crate) fn new(devices: [Box<dyn Driven>; 2], addresses: [IpAddr; 2], mtu: u16) -> Self {
        Self { devices, addresses, mtu, begin: Instant::now() }
    }

    /// True: one has more to do at once.
    fn turn(&mut self) -> bool {
        let now = self.begin.elapsed();
        let turn = |device: &mut Box<dyn Driven>| device.receive(now) | device.transmit(now);
        self.devices.each_mut().map(turn).contains(&true)
    }

    /// Until one of them has something to do, but not long: the case may have something to say.
    fn sleep(&self) {
        const LONGEST: Duration = Duration::from_millis(20);
        let deadline = self.devices.iter().filter_map(|device| device.poll_timeout()).min();
        let now = self.begin.elapsed();
        let rest = deadline.map_or(LONGEST, |it| it.saturating_sub(now).min(LONGEST));
        let rest = Timespec { tv_sec: 0, tv_nsec: i64::from(rest.subsec_nanos()) };
        let [one, other] = &self.devices;
        let mut fds =
            [one.as_fd(), other.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        poll(&mut fds, Some(&rest)).expect("poll");
    }
}

impl Bench for LiveBench {
    fn device(&mut self, end: usize) -> &mut dyn Device {
        &mut *self.devices[end]
    }

    fn address(&self, end: usize) -> IpAddr {
        self.addresses[end]
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn progress(&mut self) {
        if !self.turn() {
            self.sleep();
            self.turn();
        }
    }
}
