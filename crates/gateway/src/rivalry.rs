//! SMC-R and TCP set side by side, server by server: AUTOSMC between hosts.
//!
//! ```text
//!   Gathering ── SMC-R has carried enough ──> Trial: for some seconds new connections go by TCP,
//!      ^                                        │     and the kernel says what they carry
//!      │              gains, or not known       v
//!      ├───────── after a pause ────────────── judged
//!      └── when the server is asked again ──── gains nothing: left to TCP for a pause
//! ```
//!
//! Pauses double with each verdict in a row that is the same, as those of AUTOCACHE. Programs learn of it from
//! the lessons, so connections are plain TCP from their first SYN on, and `sidestep why` says so.
//!
//! A trial sees connections that begin in it and live for more than one look. A program that keeps its
//! connections for ever makes none, and is never judged.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags,
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use sidestep_proto::autocache;
use sidestep_proto::paths::{Carried, Verdict, compare};
use sidestep_wire::lessons::Cause;

use crate::lessons::{self, Lessons};
use crate::limits::{RIVALS_MAX, TRIAL, TRIAL_LOOK};
use crate::netlink;

/// A server, and whose connections go there.
type Key = (SocketAddr, u32);

/// All servers of which something is known.
#[derive(Debug, Default)]
pub(crate) struct Rivalry {
    courses: HashMap<Key, Course>,
}

/// What is known of one.
#[derive(Debug, Default)]
struct Course {
    smc: Carried,
    tcp: Carried,
    stage: Stage,
    /// The last verdict, and how often it has come in a row.
    judged: Option<(Verdict, u32)>,
    /// The TCP connections of the trial, by their cookies.
    seen: HashMap<u64, Seen>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    #[default]
    Gathering,
    Trial {
        until: Duration,
        next_look: Duration,
    },
    /// Nothing is to be found out before that.
    Resting {
        until: Duration,
    },
}

/// A TCP connection in a trial: its bytes when it was seen first, and when it was seen last.
#[derive(Clone, Copy, Debug)]
struct Seen {
    first: Look,
    last: Look,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    at: Duration,
    sent: u64,
    received: u64,
}

impl Seen {
    fn carried(&self) -> Carried {
        Carried {
            time: self.last.at.saturating_sub(self.first.at),
            sent: self.last.sent.saturating_sub(self.first.sent),
            received: self.last.received.saturating_sub(self.first.received),
        }
    }
}

impl Rivalry {
    /// A connection has ended that was long enough: this is what SMC-R has carried. Says whether a trial begins.
    pub(crate) fn note(
        &mut self,
        key: Key,
        carried: Carried,
        lessons: &Lessons,
        now: Duration,
    ) -> bool {
        if !self.courses.contains_key(&key) && self.courses.len() >= RIVALS_MAX {
            return false;
        }
        let course = self.courses.entry(key).or_default();
        if let Stage::Resting { until } = course.stage
            && until <= now
        {
            course.begin_anew();
        }
        if !matches!(course.stage, Stage::Gathering) {
            return false;
        }
        course.smc.add(carried);
        if !course.smc.is_enough() {
            return false;
        }
        course.stage = Stage::Trial { until: now + TRIAL, next_look: now };
        let (server, user) = key;
        lessons.leave_out(server, user, Cause::Compared, TRIAL, lessons::now());
        true
    }

    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        let of = |course: &Course| match course.stage {
            Stage::Trial { until, next_look } => Some(until.min(next_look)),
            Stage::Gathering | Stage::Resting { .. } => None,
        };
        self.courses.values().filter_map(of).min()
    }

    /// Takes what was [seen](look) of the connections of trials, and judges where one is over. `ours` are the local addresses
    /// of connections that go by the gateway.
    pub(crate) fn handle_timeout(
        &mut self,
        seen: io::Result<Vec<Sight>>,
        ours: &HashSet<SocketAddr>,
        lessons: &Lessons,
        now: Duration,
    ) {
        match seen {
            Ok(seen) => seen.iter().for_each(|sight| self.take(sight, ours, now)),
            Err(error) => log::warn!("the kernel does not tell what TCP carries: {error}"),
        }
        for (key, course) in &mut self.courses {
            if let Stage::Trial { until, next_look } = &mut course.stage {
                *next_look = now + TRIAL_LOOK;
                if *until <= now {
                    course.judge(*key, lessons, now);
                }
            }
        }
    }

    fn take(&mut self, sight: &Sight, ours: &HashSet<SocketAddr>, now: Duration) {
        let Some(course) = self.courses.get_mut(&sight.key) else { return };
        if !matches!(course.stage, Stage::Trial { .. }) || ours.contains(&sight.local) {
            return;
        }
        let look = Look { at: now, sent: sight.sent, received: sight.received };
        let seen = course.seen.entry(sight.cookie);
        seen.or_insert(Seen { first: look, last: look }).last = look;
    }
}

/// A TCP connection, as the kernel tells of it.
#[derive(Debug)]
pub(crate) struct Sight {
    key: Key,
    local: SocketAddr,
    cookie: u64,
    sent: u64,
    received: u64,
}

/// All TCP connections of this network namespace. The kernel waits for the lock of each.
pub(crate) fn look() -> io::Result<Vec<Sight>> {
    let mut seen = Vec::new();
    for family in [AF_INET, AF_INET6] {
        netlink::ask_all(NETLINK_SOCK_DIAG, established(family), |answer| {
            if let SockDiagMessage::InetResponse(response) = answer {
                seen.extend(Sight::of(&response));
            }
        })?;
    }
    Ok(seen)
}

impl Sight {
    fn of(response: &InetResponse) -> Option<Self> {
        let InetResponse { header, nlas } = response;
        let SocketId { source_address, source_port, .. } = header.socket_id;
        let SocketId { destination_address, destination_port, cookie, .. } = header.socket_id;
        let server = SocketAddr::new(destination_address.to_canonical(), destination_port);
        let info = nlas.iter().find_map(|nla| match nla {
            Nla::TcpInfo(info) => Some(info),
            _ => None,
        })?;
        Some(Self {
            key: (server, header.uid),
            local: SocketAddr::new(source_address.to_canonical(), source_port),
            cookie: u64::from_ne_bytes(cookie),
            sent: info.bytes_acked,
            received: info.bytes_received,
        })
    }
}

impl Course {
    fn begin_anew(&mut self) {
        *self = Self { judged: self.judged, ..Self::default() };
    }

    /// The trial is over.
    fn judge(&mut self, (server, user): Key, lessons: &Lessons, now: Duration) {
        self.seen.values().for_each(|seen| self.tcp.add(seen.carried()));
        let verdict = compare(self.smc, self.tcp);
        let in_a_row = match self.judged {
            Some((before, count)) if before == verdict => count + 1,
            _ => 1,
        };
        let pause = autocache::pause(in_a_row);
        log::info!(
            "server {server}: SMC-R has carried {}, TCP {}: {verdict:?}; the next comparison is in {} s",
            in_words(self.smc),
            in_words(self.tcp),
            pause.as_secs()
        );
        if verdict == Verdict::GainsNothing {
            lessons.leave_out(server, user, Cause::NoGain, pause, lessons::now());
        }
        self.begin_anew();
        self.judged = Some((verdict, in_a_row));
        self.stage = Stage::Resting { until: now + pause };
    }
}

fn in_words(carried: Carried) -> String {
    let Carried { time, sent, received } = carried;
    let per_second = |bytes: u64| bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9);
    format!("{:.1} and {:.1} MB/s there and back", per_second(sent), per_second(received))
}

/// All TCP connections of a family that are established, with what they have carried.
fn established(family: u8) -> SockDiagMessage {
    SockDiagMessage::InetRequest(InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::INFO,
        states: StateFlags::ESTABLISHED,
        socket_id: if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn key() -> Key {
        (([10, 0, 0, 1], 80).into(), 7)
    }

    fn carried(mb_per_s: u64) -> Carried {
        Carried { time: seconds(2), sent: mb_per_s * MB, received: mb_per_s * MB }
    }

    /// A trial in which TCP carries so much, and what is then learned.
    fn judged(
        rivalry: &mut Rivalry,
        lessons: &Lessons,
        mb_per_s: u64,
        now: Duration,
    ) -> Option<Cause> {
        assert!(rivalry.note(key(), carried(100), lessons, now));
        assert_eq!(lessons.cause(key().0, key().1), Some(Cause::Compared));
        let course = rivalry.courses.get_mut(&key()).unwrap();
        let look = |at, bytes| Look { at, sent: bytes, received: bytes };
        let [first, last] = [look(now, 0), look(now + seconds(2), mb_per_s * MB)];
        course.seen.insert(1, Seen { first, last });
        course.judge(key(), lessons, now + TRIAL);
        lessons.cause(key().0, key().1)
    }

    #[test]
    fn a_server_where_smc_gains_nothing_is_left_to_tcp_for_longer_and_longer() {
        let (mut rivalry, lessons) = (Rivalry::default(), Lessons::new().unwrap());
        let mut now = seconds(10);
        for pause in [30, 60, 120] {
            assert_eq!(judged(&mut rivalry, &lessons, 200, now), Some(Cause::NoGain));
            // Connections of before end: they are no reason for another trial.
            assert!(!rivalry.note(key(), carried(100), &lessons, now + TRIAL + seconds(pause - 1)));
            now += TRIAL + seconds(pause);
        }
        // It has got better, and is judged as if for the first time.
        assert_eq!(judged(&mut rivalry, &lessons, 50, now), Some(Cause::Compared));
        assert_eq!(rivalry.courses[&key()].judged, Some((Verdict::Gains, 1)));
    }

    #[test]
    fn what_has_carried_little_is_not_tried() {
        let (mut rivalry, lessons) = (Rivalry::default(), Lessons::new().unwrap());
        let little = Carried { time: seconds(1), sent: 1000, received: 1000 };
        assert!(!rivalry.note(key(), little, &lessons, seconds(1)));
        assert_eq!(rivalry.poll_timeout(), None);
        assert!(rivalry.note(key(), carried(100), &lessons, seconds(2)));
        assert_eq!(rivalry.poll_timeout(), Some(seconds(2)));
        rivalry.handle_timeout(look(), &HashSet::new(), &lessons, seconds(2));
        assert_eq!(rivalry.poll_timeout(), Some(seconds(2) + TRIAL_LOOK));
    }
}
