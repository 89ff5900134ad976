//! Distance: two routers between two hosts, and a line between the routers on which each frame takes its time.
//!
//! ```text
//!   server ── cable ── router ── tap ═══ line ═══ tap ── router ── cable ── client
//!                                 a thread each way:
//!                                 read, hold until sent + delay, write
//! ```
//!
//! Each host is in a subnet of its own, of two addresses: its own and its router's.
//!
//! The kernel that this runs on has no netem, so the line is a program. Frames keep their order and have all the
//! same delay, whatever they carry: the same for TCP and for RDMA. A run of datagrams and what TCP lets be parted on
//! its way pass as one frame, as over a cable between namespaces. The line can lose frames and carry so many bytes a
//! second, as [`Plan`] says.
//!
//! Light takes 5 µs for a kilometre of fibre. A thread sleeps until a frame is due, so each takes some ten
//! microseconds more than it should: what `ping` says is the truth, and is checked.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sidestep_rdma::faults::{Faults, Plan};

use crate::bench::launch;
use crate::enclosure::Namespace;
use crate::suite::{HANG, Lacking};

/// What light takes for a kilometre of fibre, one way.
pub(crate) const PER_KM: Duration = Duration::from_micros(5);

/// Between the routers.
const LINE: &str = "line";
const ENDS: [&str; 2] = ["10.92.9.1", "10.92.9.2"];

/// Two routers and the line between them, until this is dropped.
pub(crate) struct Distance {
    // In this order: the threads have the taps of the namespaces.
    stop: Option<UnixStream>,
    threads: Vec<JoinHandle<()>>,
    _routers: [Namespace; 2],
}

impl Distance {
    /// Puts it between two hosts, which get these addresses, in the place of a cable. Neither address is of the other's subnet.
    pub(crate) fn lay(
        hosts: [&Namespace; 2],
        cable: &str,
        at: [&str; 2],
        plan: Plan,
    ) -> Result<Self> {
        let routers = [
            Namespace::make(&format!("{}-router", hosts[0].name()))?,
            Namespace::make(&format!("{}-router", hosts[1].name()))?,
        ];
        let mut taps = Vec::new();
        for (end, (host, router)) in hosts.into_iter().zip(&routers).enumerate() {
            host.join(cable, router.name())?;
            taps.push(open_tap(router)?);
            let next = neighbour(at[end])?;
            for (namespace, interface, address) in [
                (host, cable, format!("{}/31", at[end])),
                (router, cable, format!("{next}/31")),
                (router, LINE, format!("{}/30", ENDS[end])),
            ] {
                namespace.ip(&["address", "add", &address, "dev", interface])?;
                namespace.ip(&["link", "set", interface, "up"])?;
            }
            host.ip(&["route", "add", "default", "via", &next])?;
            router.ip(&["route", "add", &format!("{}/32", at[1 - end]), "via", ENDS[1 - end]])?;
            let mut forward = Command::new("sh");
            forward.args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
            router.enclose(&mut forward);
            launch::run(forward, HANG)?;
        }
        let (stop, stopped) = UnixStream::pair()?;
        let mut threads = Vec::new();
        for [from, to] in [[0, 1], [1, 0]] {
            let (from, to, stopped) =
                (taps[from].try_clone()?, taps[to].try_clone()?, stopped.try_clone()?);
            threads.push(thread::spawn(move || carry(&from, &to, &stopped, plan)));
        }
        Ok(Self { stop: Some(stop), threads, _routers: routers })
    }
}

/// The other address of a subnet of two.
fn neighbour(address: &str) -> Result<String> {
    let address: Ipv4Addr = address.parse().context("of a host at a distance")?;
    Ok(Ipv4Addr::from_bits(address.to_bits() ^ 1).to_string())
}

impl Drop for Distance {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Frames that are read before those that are due are looked at.
const AT_ONCE: usize = 32;
/// The longest frame with what the kernel puts before it.
const FRAME_MAX: usize = 1 << 17;

/// Carries frames one way until something is to be read from `stopped`.
fn carry(from: &File, to: &File, stopped: &UnixStream, plan: Plan) {
    // SAFETY: integers. A thread is woken when it asked to be, and not up to 50 µs later.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let (begin, mut line) = (Instant::now(), Faults::<Vec<u8>>::new(plan));
    let mut room = vec![0; FRAME_MAX];
    loop {
        let now = begin.elapsed();
        while let Some(frame) = line.pop(now) {
            // The other router may have no room: lost, as on any line.
            let _ = (&*to).write(&frame);
        }
        let rest = line.poll_timeout().map(|due| due.saturating_sub(begin.elapsed()));
        let rest = rest.map(|rest| Timespec { tv_sec: 0, tv_nsec: rest.as_nanos() as i64 });
        let mut sources = [
            PollFd::from_borrowed_fd(from.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN),
        ];
        let _ = poll(&mut sources, rest.as_ref());
        if !sources[1].revents().is_empty() {
            return;
        }
        for _ in 0..AT_ONCE {
            match (&*from).read(&mut room) {
                Ok(len) => line.push(room[..len].to_vec(), begin.elapsed()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    }
}

/// `ifreq` of `linux/if.h`.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    rest: [u8; 22],
}

/// `TUN_F_*` of `linux/if_tun.h`: checksums and runs of TCP and UDP are left to who is behind the tap.
const OFFLOADS: libc::c_ulong = 0x01 | 0x02 | 0x04 | 0x20 | 0x40;

/// What makes taps.
const TUN: &str = "/dev/net/tun";

/// A tap of this name in a namespace, which lives as long as the file.
fn open_tap(namespace: &Namespace) -> Result<File> {
    let namespace = File::open(format!("/run/netns/{}", namespace.name()))?;
    let open = || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        tap()
    };
    let opened = thread::scope(|scope| scope.spawn(open).join());
    opened.map_err(|_| anyhow!("the thread that opens a tap has panicked"))?.context("a tap")
}

fn tap() -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    if !fs::exists(TUN)? {
        bail!(Lacking(format!("there is no {TUN}")));
    }
    let tap = options.open(TUN)?;
    let mut name = [0; libc::IFNAMSIZ];
    name[..LINE.len()].copy_from_slice(LINE.as_bytes());
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    let mut request = InterfaceRequest { name, flags: flags as libc::c_short, rest: [0; 22] };
    // SAFETY: the kernel reads and writes an `ifreq`, which this is; the other argument is a number.
    let done = unsafe {
        libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request) == 0
            && libc::ioctl(tap.as_raw_fd(), libc::TUNSETOFFLOAD, OFFLOADS) == 0
    };
    ensure!(done, std::io::Error::last_os_error());
    Ok(tap)
}

/// How much longer than it should a way to and fro may take.
const SLACK: Duration = Duration::from_micros(500);

/// The shortest time to and fro of some pings, as the first words of a line by `ping -q` tell.
///
/// **Errors**: it is shorter than twice the delay, or longer by more than [`SLACK`].
pub(crate) fn check(ping: &str, delay: Duration) -> Result<Duration> {
    let times = ping.lines().find_map(|line| line.split_once(" = ")).context("ping: no times")?.1;
    let shortest_ms: f64 = times.split('/').next().context("ping: no time")?.parse()?;
    let shortest = Duration::from_secs_f64(shortest_ms / 1e3);
    let expected = 2 * delay..=2 * delay + SLACK;
    ensure!(expected.contains(&shortest), "to and fro takes {shortest:?}, not {expected:?}");
    Ok(shortest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_at_a_distance_are_in_subnets_of_their_own() {
        let next = ["10.92.1.1", "10.92.1.2"].map(|host| neighbour(host).unwrap());
        assert_eq!(next, ["10.92.1.0", "10.92.1.3"]);
        assert!(neighbour("fd92:1::1").is_err());
    }

    #[test]
    fn a_distance_that_is_another_is_told() {
        let ping = |ms: &str| {
            let line = format!("5 packets transmitted\nrtt min/avg/max/mdev = {ms}/9.9/9.9/0.1 ms");
            check(&line, 10 * PER_KM)
        };
        assert_eq!(ping("0.130").unwrap(), Duration::from_micros(130));
        assert!(ping("0.099").is_err() && ping("0.601").is_err());
        assert!(check("nothing", PER_KM).is_err());
    }
}
