//! Two devices that are turned by one thread, as their owner would, with nothing in their way.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sidestep_rdma::device::Device;
use sidestep_rdma::soft::Rnic;
use sidestep_rdma::verbs;

use crate::suite::Bench;

/// A device and what its owner has to do for it.
pub(crate) trait Live: Device + AsFd {
    /// Takes what has come, and sends. True: there is more to do at once.
    fn turn(&mut self, now: Duration) -> bool;

    /// When it is to be turned though nothing has come.
    fn poll_timeout(&self) -> Option<Duration>;
}

impl Live for Rnic {
    fn turn(&mut self, now: Duration) -> bool {
        self.turn(now)
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.poll_timeout()
    }
}

impl Live for verbs::Adapter {
    fn turn(&mut self, now: Duration) -> bool {
        self.turn(now)
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.poll_timeout()
    }
}

/// Two devices that find each other by themselves.
pub(crate) struct LiveBench<D> {
    devices: [D; 2],
    addresses: [IpAddr; 2],
    mtu: u16,
    begin: Instant,
}

impl<D: Live> LiveBench<D> {
    pub(crate) fn new(devices: [D; 2], addresses: [IpAddr; 2], mtu: u16) -> Self {
        Self { devices, addresses, mtu, begin: Instant::now() }
    }

    /// Until one of them has something to do, but not long: the case may have something to say.
    fn sleep(&self) {
        const LONGEST: Duration = Duration::from_millis(20);
        let deadline = self.devices.iter().filter_map(Live::poll_timeout).min();
        let now = self.begin.elapsed();
        let rest = deadline.map_or(LONGEST, |it| it.saturating_sub(now).min(LONGEST));
        let rest = Timespec { tv_sec: 0, tv_nsec: i64::from(rest.subsec_nanos()) };
        let [one, other] = &self.devices;
        let mut fds =
            [one.as_fd(), other.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        poll(&mut fds, Some(&rest)).expect("poll");
    }
}

impl<D: Live> Bench for LiveBench<D> {
    fn device(&mut self, end: usize) -> &mut dyn Device {
        &mut self.devices[end]
    }

    fn address(&self, end: usize) -> IpAddr {
        self.addresses[end]
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn progress(&mut self) {
        let now = self.begin.elapsed();
        let [one, other] = &mut self.devices;
        if !(one.turn(now) | other.turn(now)) {
            self.sleep();
            let now = self.begin.elapsed();
            self.devices.iter_mut().for_each(|device| {
                device.turn(now);
            });
        }
    }
}
