//! What is measured: every workload starts its own server, runs once over
//! one transport, and answers with one number for each of its rows.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::lab::{Lab, RUN_PATIENCE};
use super::launch::{self, Dialogue, Transport};
use super::measure::{Bound, Compare, Spread};
use super::modeled::Report;
use super::report::Pair;
use super::{
    brokers, databases, distributor, files, filter, ftp, hosts, musl, namespaces, published,
    syslog, tap, top, vip, web,
};
use crate::cpus;

/// One line of the table: a promise and how it is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    pub(crate) name: &'a str,
    /// Of the samples, not of a ratio made of them.
    pub(crate) unit: &'static str,
    pub(crate) compare: Compare,
    pub(crate) bound: Bound,
    pub(crate) must: f64,
    pub(crate) aim: f64,
}

impl<'a> Row<'a> {
    pub(super) const fn ratio(
        name: &'a str,
        unit: &'static str,
        compare: Compare,
        must: f64,
        aim: f64,
    ) -> Self {
        Self { name, unit, compare, bound: Bound::AtLeast, must, aim }
    }

    /// For a cost, of which SMC may have this part of TCP's.
    pub(super) const fn part(name: &'a str, unit: &'static str, must: f64, aim: f64) -> Self {
        Self { name, unit, compare: Compare::SmcOverTcp, bound: Bound::AtMost, must, aim }
    }

    /// For two ways that are to be equal: see [`namespaces`].
    const fn same(name: &'a str) -> Self {
        Self::ratio(name, "tran/s", Compare::SmcOverTcp, 0.95, 0.98)
    }

    /// For TCP under a filter, against TCP without one: see [`filter`].
    const fn under_filter(name: &'a str, must: f64, aim: f64) -> Self {
        Self::ratio(name, "tran/s", Compare::SmcOverTcp, must, aim)
    }

    /// For TCP through a VIP, against TCP to the listener itself: see [`vip`].
    const fn by_vip(name: &'a str) -> Self {
        Self::ratio(name, "tran/s", Compare::SmcOverTcp, 0.97, 1.0)
    }

    /// For requests through a distributor: see [`distributor`].
    const fn through(name: &'a str, must: f64, aim: f64) -> Self {
        Self::ratio(name, "tran/s", Compare::SmcOverTcp, must, aim)
    }

    /// What is promised beside endless loops: not slower than TCP and not dearer, whatever SMC is on a
    /// quiet machine. What is no ratio is promised there, too.
    pub(crate) fn beside_neighbours(self) -> Self {
        match (self.compare, self.bound) {
            (Compare::SmcMinusTcp, _) => self,
            (_, Bound::AtLeast) => {
                Self { must: self.must.min(1.0), aim: self.aim.min(1.5), ..self }
            }
            (_, Bound::AtMost) => Self { must: self.must.max(1.0), aim: self.aim.max(0.5), ..self },
        }
    }

    /// What is promised against another build, which has the place of TCP: what it has, within 3 %.
    pub(crate) fn against_build(self) -> Self {
        const SLACK: f64 = 0.03;
        match (self.compare, self.bound) {
            (Compare::SmcMinusTcp, _) => Self { must: SLACK * self.must, aim: 0.0, ..self },
            (_, Bound::AtLeast) => Self { must: 1.0 - SLACK, aim: 1.0, ..self },
            (_, Bound::AtMost) => Self { must: 1.0 + SLACK, aim: 1.0, ..self },
        }
    }

    const fn added(name: &'a str, unit: &'static str, must: f64, aim: f64) -> Self {
        Self { name, unit, compare: Compare::SmcMinusTcp, bound: Bound::AtMost, must, aim }
    }
}

/// Two hosts with two routers between them, as IBM has measured SMC-Rv2 at a distance.
const DISTANT: [Row; 12] = [
    Row::ratio("RR10(32kB/32kB), RMBE 64 KB", "tran/s", Compare::SmcOverTcp, 1.0, 2.0),
    Row::part("  CPU", "µs/tran", 1.0, 0.8),
    Row::ratio("STR1(1B/20MB), RMBE 64 KB", "MB/s", Compare::SmcOverTcp, 0.85, 1.0),
    Row::part("  CPU", "µs/tran", 1.0, 0.8),
    Row::ratio("STR3(1B/20MB), RMBE 64 KB", "MB/s", Compare::SmcOverTcp, 0.85, 1.0),
    Row::part("  CPU", "µs/tran", 1.0, 0.8),
    Row::ratio("RR10(32kB/32kB), RMBE 1 MB", "tran/s", Compare::SmcOverTcp, 1.0, 2.0),
    Row::part("  CPU", "µs/tran", 1.0, 0.8),
    Row::ratio("STR1(1B/20MB), RMBE 1 MB", "MB/s", Compare::SmcOverTcp, 0.85, 1.0),
    Row::part("  CPU", "µs/tran", 1.0, 0.8),
    Row::ratio("STR3(1B/20MB), RMBE 1 MB", "MB/s", Compare::SmcOverTcp, 0.85, 1.0),
    Row::part("  CPU", "µs/tran", 1.0, 0.8),
];

/// Something to run over both transports.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// Debian packages without which it is skipped.
    pub(crate) packages: &'static [&'static str],
    pub(crate) rows: &'static [Row<'static>],
    pub(crate) sampling: Sampling,
}

/// How the numbers of a workload come about.
#[derive(Debug)]
pub(crate) enum Sampling {
    /// By single runs; the answer has a number for each row, in their order.
    Runs(fn(&Lab, Transport) -> Result<Vec<f64>>),
    /// The same for what scatters so much that it takes [`MANY`] times as many.
    ManyRuns(fn(&Lab, Transport) -> Result<Vec<f64>>),
    /// By the modeler, which interleaves runs itself; asked for so many pairs, it may make
    /// more that are shorter. For workloads of one row.
    Pairs(fn(&Lab, u32) -> Result<Vec<Pair>>),
}

/// Runs for each that was asked for, of workloads that scatter.
pub(crate) const MANY: u32 = 4;

/// The table of the project's promises, in the order of its rows.
pub(crate) const WORKLOADS: &[Workload] = &[
    Workload {
        name: "sockperf",
        packages: &["sockperf"],
        rows: &[Row::ratio("sockperf 64 B, p50 RTT", "µs", Compare::TcpOverSmc, 30.0, 100.0)],
        sampling: Sampling::Runs(|lab, transport| sockperf(lab, transport, None)),
    },
    Workload {
        name: "sockperf-one-cpu",
        packages: &["sockperf"],
        rows: &[Row::ratio("sockperf 64 B, p50, one CPU", "µs", Compare::TcpOverSmc, 1.0, 2.5)],
        sampling: Sampling::Runs(|lab, transport| sockperf(lab, transport, Some(cpus::first()?))),
    },
    Workload {
        name: "redis-c1",
        packages: &["redis-server", "redis-tools"],
        rows: &[
            Row::ratio("redis 2 KiB SET, -c 1", "req/s", Compare::SmcOverTcp, 5.0, 10.0),
            Row::ratio("redis 2 KiB GET, -c 1", "req/s", Compare::SmcOverTcp, 5.0, 10.0),
            Row::part("redis server CPU/request, -c 1", "µs", 0.5, 0.3),
        ],
        sampling: Sampling::Runs(|lab, transport| Ok(redis(lab, transport, 1)?.into())),
    },
    Workload {
        name: "redis-c10",
        packages: &["redis-server", "redis-tools"],
        rows: &[
            Row::ratio("redis 2 KiB SET, -c 10", "req/s", Compare::SmcOverTcp, 2.5, 4.0),
            Row::ratio("redis 2 KiB GET, -c 10", "req/s", Compare::SmcOverTcp, 2.5, 4.0),
            Row::part("redis server CPU/request, -c 10", "µs", 0.5, 0.3),
        ],
        sampling: Sampling::Runs(|lab, transport| Ok(redis(lab, transport, 10)?.into())),
    },
    Workload {
        name: "redis-musl",
        packages: &["redis-server", "musl-tools"],
        rows: &[Row::ratio(
            "redis 2 KiB GET, -c 10, gain by musl / glibc",
            "×",
            Compare::SmcOverTcp,
            0.9,
            1.0,
        )],
        sampling: Sampling::Runs(musl::gain),
    },
    Workload {
        name: "redis-c50",
        packages: &["redis-server", "redis-tools"],
        rows: &[
            Row::ratio("redis 2 KiB SET, -c 50", "req/s", Compare::SmcOverTcp, 2.5, 4.0),
            Row::ratio("redis 2 KiB GET, -c 50", "req/s", Compare::SmcOverTcp, 2.5, 4.0),
            Row::part("redis server CPU/request, -c 50", "µs", 0.5, 0.3),
        ],
        sampling: Sampling::Runs(|lab, transport| Ok(redis(lab, transport, 50)?.into())),
    },
    Workload {
        name: "nginx-c10",
        packages: &["nginx-light", "wrk"],
        rows: &[
            Row::ratio("nginx 1 KiB, wrk -c 10", "req/s", Compare::SmcOverTcp, 1.7, 2.5),
            Row::part("  CPU/request, all programs", "µs", 1.0, 0.6),
        ],
        sampling: Sampling::Runs(|lab, transport| Ok(web::nginx(lab, transport, 10)?.into())),
    },
    Workload {
        name: "nginx-c50",
        packages: &["nginx-light", "wrk"],
        rows: &[
            Row::ratio("nginx 1 KiB, wrk -c 50", "req/s", Compare::SmcOverTcp, 1.7, 2.5),
            Row::part("  CPU/request, all programs", "µs", 1.0, 0.6),
        ],
        sampling: Sampling::Runs(|lab, transport| Ok(web::nginx(lab, transport, 50)?.into())),
    },
    Workload {
        name: "haproxy-c10",
        packages: &["haproxy", "nginx-light", "wrk"],
        rows: &[
            Row::ratio("wrk -c 10, HAProxy, nginx", "req/s", Compare::SmcOverTcp, 1.7, 2.5),
            Row::part("  CPU/request, all programs", "µs", 1.0, 0.6),
        ],
        sampling: Sampling::Runs(|lab, transport| Ok(web::haproxy(lab, transport, 10)?.into())),
    },
    Workload {
        name: "haproxy-c50",
        packages: &["haproxy", "nginx-light", "wrk"],
        rows: &[
            Row::ratio("wrk -c 50, HAProxy, nginx", "req/s", Compare::SmcOverTcp, 1.7, 2.5),
            Row::part("  CPU/request, all programs", "µs", 1.0, 0.6),
        ],
        sampling: Sampling::Runs(|lab, transport| Ok(web::haproxy(lab, transport, 50)?.into())),
    },
    Workload {
        name: "memcached-c10",
        packages: &["memcached", "libmemcached-tools"],
        rows: &[
            Row::ratio("memcached 1 KiB, -c 10", "op/s", Compare::SmcOverTcp, 2.0, 4.0),
            Row::part("  CPU/operation, both ends", "µs", 1.0, 0.5),
        ],
        sampling: Sampling::Runs(|lab, transport| {
            Ok(databases::memcached(lab, transport, 10)?.into())
        }),
    },
    Workload {
        name: "memcached-c50",
        packages: &["memcached", "libmemcached-tools"],
        rows: &[
            Row::ratio("memcached 1 KiB, -c 50", "op/s", Compare::SmcOverTcp, 2.0, 4.0),
            Row::part("  CPU/operation, both ends", "µs", 1.0, 0.5),
        ],
        sampling: Sampling::Runs(|lab, transport| {
            Ok(databases::memcached(lab, transport, 50)?.into())
        }),
    },
    Workload {
        name: "pgbench-c10",
        packages: &["postgresql-15"],
        // Over AF_UNIX it is 1.5.
        rows: &[
            Row::ratio("pgbench -S, -c 10", "tran/s", Compare::SmcOverTcp, 1.3, 1.5),
            Row::part("  CPU/transaction, both ends", "µs", 1.0, 0.8),
        ],
        sampling: Sampling::Runs(|lab, transport| {
            Ok(databases::pgbench(lab, transport, 10)?.into())
        }),
    },
    Workload {
        name: "pgbench-c50",
        packages: &["postgresql-15"],
        rows: &[
            Row::ratio("pgbench -S, -c 50", "tran/s", Compare::SmcOverTcp, 1.0, 1.3),
            Row::part("  CPU/transaction, both ends", "µs", 1.0, 0.8),
        ],
        sampling: Sampling::Runs(|lab, transport| {
            Ok(databases::pgbench(lab, transport, 50)?.into())
        }),
    },
    Workload {
        name: "rabbitmq",
        packages: &["rabbitmq-server", "openjdk-17-jdk-headless", "maven"],
        rows: &[
            Row::ratio("RabbitMQ 1 KB, confirmed", "msg/s", Compare::SmcOverTcp, 1.0, 1.3),
            Row::part("  CPU/message, all programs", "µs", 1.0, 0.8),
            Row::ratio("RabbitMQ 32 KB, confirmed", "msg/s", Compare::SmcOverTcp, 1.0, 1.3),
            Row::part("  CPU/message, all programs", "µs", 1.0, 0.8),
        ],
        sampling: Sampling::Runs(brokers::rabbitmq),
    },
    Workload {
        name: "artemis",
        packages: &["openjdk-17-jdk-headless", "maven"],
        rows: &[
            Row::ratio("Artemis 2 KB, 6 requesters", "req/s", Compare::SmcOverTcp, 1.0, 1.3),
            Row::part("  CPU/request, all programs", "µs", 1.0, 0.8),
        ],
        sampling: Sampling::Runs(brokers::artemis),
    },
    Workload {
        name: "scp",
        packages: &["openssh-server", "openssh-client"],
        // "Not slower", as far as this can be told.
        rows: &[Row::ratio("scp, 1 GB", "GB/s", Compare::SmcOverTcp, 0.97, 1.0)],
        sampling: Sampling::Runs(files::scp),
    },
    Workload {
        name: "ftp",
        packages: &["python3-pyftpdlib", "curl"],
        rows: &[
            Row::ratio("FTP GET by sendfile, 1 GB", "GB/s", Compare::SmcOverTcp, 1.0, 1.3),
            Row::part("  CPU/GB, both ends", "s", 1.0, 0.8),
            Row::ratio("FTP PUT, 1 GB", "GB/s", Compare::SmcOverTcp, 1.0, 1.3),
            Row::part("  CPU/GB, both ends", "s", 1.0, 0.8),
            // Python translates, whatever carries the bytes.
            Row::ratio("FTP GET, ASCII, 100 MB", "GB/s", Compare::SmcOverTcp, 0.97, 1.0),
            Row::part("  CPU/GB, both ends", "s", 1.03, 1.0),
        ],
        sampling: Sampling::Runs(ftp::transfers),
    },
    Workload {
        name: "iperf3",
        packages: &["iperf3"],
        rows: &[Row::ratio("iperf3, one stream", "GB/s", Compare::SmcOverTcp, 1.5, 2.5)],
        sampling: Sampling::Runs(|lab, transport| iperf3(lab, transport, &[])),
    },
    Workload {
        name: "iperf3-1m",
        packages: &["iperf3"],
        rows: &[Row::ratio("iperf3, one stream, -l 1M", "GB/s", Compare::SmcOverTcp, 1.5, 2.5)],
        sampling: Sampling::Runs(|lab, transport| iperf3(lab, transport, &["-l", "1M"])),
    },
    Workload {
        name: "rr-threads",
        packages: &["gcc"],
        rows: &[Row::ratio("RR10(2KB/2KB), threads", "tran/s", Compare::SmcOverTcp, 3.0, 8.3)],
        sampling: Sampling::ManyRuns(|lab, transport| request_response(lab, transport, "threads")),
    },
    Workload {
        name: "rr-epoll",
        packages: &["gcc"],
        rows: &[Row::ratio("RR10(2KB/2KB), epoll", "tran/s", Compare::SmcOverTcp, 8.3, 20.0)],
        sampling: Sampling::Runs(|lab, transport| request_response(lab, transport, "epoll")),
    },
    Workload {
        name: "crr10",
        packages: &[],
        rows: &[Row::ratio("CRR10(64B/8kB)", "tran/s", Compare::SmcOverTcp, 0.97, 1.2)],
        sampling: Sampling::Pairs(|lab, pairs| connect_request_response(lab, pairs, 10, "lazy")),
    },
    Workload {
        name: "crr40",
        packages: &[],
        rows: &[Row::ratio("CRR40(64B/8kB)", "tran/s", Compare::SmcOverTcp, 0.97, 1.2)],
        sampling: Sampling::Pairs(|lab, pairs| connect_request_response(lab, pairs, 40, "lazy")),
    },
    Workload {
        name: "crr10-early",
        packages: &[],
        rows: &[Row::ratio("CRR10(64B/8kB), early", "tran/s", Compare::SmcOverTcp, 0.7, 1.0)],
        sampling: Sampling::Pairs(|lab, pairs| connect_request_response(lab, pairs, 10, "early")),
    },
    Workload {
        name: "crr40-early",
        packages: &[],
        rows: &[Row::ratio("CRR40(64B/8kB), early", "tran/s", Compare::SmcOverTcp, 0.7, 1.0)],
        sampling: Sampling::Pairs(|lab, pairs| connect_request_response(lab, pairs, 40, "early")),
    },
    Workload {
        name: "nginx-close",
        packages: &["nginx-light", "wrk"],
        rows: &[Row::ratio(
            "nginx, one request each, -c 10",
            "req/s",
            Compare::SmcOverTcp,
            0.97,
            1.2,
        )],
        sampling: Sampling::ManyRuns(|lab, transport| {
            Ok(vec![web::nginx_short(lab, transport, 10)?.requests_per_s])
        }),
    },
    Workload {
        name: "namespaces-setup",
        packages: &["gcc", "iproute2"],
        rows: &[Row::part("set-up, two namespaces / one", "µs", 1.5, 1.1)],
        sampling: Sampling::Runs(namespaces::set_up),
    },
    Workload {
        name: "namespaces-rr10",
        packages: &["iproute2"],
        rows: &[Row::same("RR10(1kB/1kB), two / one")],
        sampling: Sampling::Runs(|lab, transport| {
            namespaces::modeled(lab, transport, "RR10(1kB/1kB)")
        }),
    },
    Workload {
        name: "namespaces-str3",
        packages: &["iproute2"],
        rows: &[Row::same("STR3(20MB/1B), two / one")],
        sampling: Sampling::Runs(|lab, transport| {
            namespaces::modeled(lab, transport, "STR3(20MB/1B)")
        }),
    },
    Workload {
        name: "namespaces-crr10",
        packages: &["iproute2"],
        rows: &[Row::same("CRR10(64B/8kB), two / one")],
        sampling: Sampling::Runs(|lab, transport| {
            namespaces::modeled(lab, transport, "CRR10(64B/8kB)")
        }),
    },
    Workload {
        name: "namespaces-service",
        packages: &["iproute2", "nftables"],
        rows: &[Row::same("RR10(1kB/1kB), by a Service / direct")],
        sampling: Sampling::Runs(|lab, transport| {
            namespaces::translated(lab, transport, "RR10(1kB/1kB)")
        }),
    },
    Workload {
        name: "published",
        packages: &["redis-server", "redis-tools"],
        rows: &[Row::ratio(
            "redis 2 KiB GET, -c 1, published port",
            "req/s",
            Compare::SmcOverTcp,
            5.0,
            10.0,
        )],
        sampling: Sampling::Runs(published::redis),
    },
    // With an onlooker, against without.
    Workload {
        name: "tap-stream",
        packages: &["iperf3"],
        rows: &[
            Row::ratio("iperf3, tapped / not", "GB/s", Compare::SmcOverTcp, 0.85, 0.95),
            Row::ratio("  after the tap / never", "GB/s", Compare::SmcOverTcp, 0.97, 1.0),
        ],
        sampling: Sampling::Runs(tap::stream),
    },
    Workload {
        name: "tap-rr10",
        packages: &["gcc"],
        rows: &[Row::ratio(
            "RR10(2KB/2KB), tapped / not",
            "tran/s",
            Compare::SmcOverTcp,
            0.85,
            0.95,
        )],
        sampling: Sampling::Runs(tap::requests),
    },
    Workload {
        name: "top",
        packages: &["gcc", "bsdutils"],
        rows: &[Row::added("top beside 10 000 connection ends, CPU", "%", 5.0, 3.0)],
        sampling: Sampling::Runs(top::cpu),
    },
    // Between hosts, over soft RNICs, which are a convenience and not the fast path.
    Workload {
        name: "hosts-rr10",
        packages: &["iproute2"],
        rows: &[
            Row::ratio("RR10(2KB/2KB), two hosts", "tran/s", Compare::SmcOverTcp, 0.5, 0.8),
            Row::ratio("  by event loops", "tran/s", Compare::SmcOverTcp, 0.5, 0.8),
            Row::ratio("  each with its own CPUs", "tran/s", Compare::SmcOverTcp, 0.5, 0.8),
        ],
        sampling: Sampling::Runs(hosts::requests),
    },
    Workload {
        name: "hosts-stream",
        packages: &["iproute2"],
        rows: &[Row::ratio("STR1(1B/20MB), two hosts", "MB/s", Compare::SmcOverTcp, 0.3, 0.5)],
        sampling: Sampling::Runs(hosts::stream),
    },
    Workload {
        name: "hosts-loss",
        packages: &["iproute2"],
        rows: &[Row::ratio("  0.1 % of loss / none", "MB/s", Compare::SmcOverTcp, 0.5, 0.8)],
        sampling: Sampling::Runs(hosts::loss),
    },
    Workload {
        name: "hosts-rmbe",
        packages: &["iproute2"],
        // IBM saw 18 % less, with RDMA adapters.
        rows: &[Row::part("  sender, RMBE 1 MB / 256 KB", "µs/MB", 1.0, 0.82)],
        sampling: Sampling::Runs(hosts::rmbe),
    },
    Workload {
        name: "distance-0km",
        packages: &["iproute2", "iputils-ping"],
        rows: &DISTANT,
        sampling: Sampling::Runs(|lab, transport| hosts::distance(lab, transport, 0)),
    },
    Workload {
        name: "distance-10km",
        packages: &["iproute2", "iputils-ping"],
        rows: &DISTANT,
        sampling: Sampling::Runs(|lab, transport| hosts::distance(lab, transport, 1)),
    },
    Workload {
        name: "distance-100km",
        packages: &["iproute2", "iputils-ping"],
        rows: &DISTANT,
        sampling: Sampling::Runs(|lab, transport| hosts::distance(lab, transport, 2)),
    },
    Workload {
        name: "hosts-failover",
        packages: &["iproute2"],
        rows: &[
            Row::added("longest wait, cable unplugged", "ms", 500.0, 200.0),
            Row::added("longest wait, cable silent", "ms", 500.0, 200.0),
        ],
        sampling: Sampling::Runs(hosts::failover),
    },
    Workload {
        name: "filter-short",
        packages: &["iproute2"],
        rows: &[
            Row::under_filter("CRR40(64B/8kB), 1 000 filter rules", 0.91, 0.95),
            Row::part("  client and server", "µs/tran", 1.1, 1.05),
            Row::under_filter("CRR40(64B/8kB), 10 000 filter rules", 0.91, 0.95),
            Row::part("  client and server", "µs/tran", 1.1, 1.05),
            Row::under_filter("CRR40(64B/8kB), 100 000 filter rules", 0.91, 0.95),
            Row::part("  client and server", "µs/tran", 1.1, 1.05),
        ],
        sampling: Sampling::Runs(filter::short_connections),
    },
    Workload {
        name: "filter-length",
        packages: &["iproute2"],
        rows: &[Row::under_filter("CRR40(64B/8kB), 100 000 / 1 000 filter rules", 0.95, 1.0)],
        sampling: Sampling::Runs(filter::length),
    },
    Workload {
        name: "filter-nft",
        packages: &["iproute2", "nftables"],
        // For comparison, and no promise of ours: z/OS has a fifth, too.
        rows: &[
            Row::under_filter("CRR40(64B/8kB), 10 000 rules of nftables", 0.0, 0.2),
            Row::part("  client and server", "µs/tran", 100.0, 5.0),
        ],
        sampling: Sampling::Runs(filter::nft),
    },
    Workload {
        name: "filter-change",
        packages: &["iproute2"],
        rows: &[
            Row::added("100 000 filter rules, in force after", "ms", 2000.0, 1000.0),
            Row::added("one filter rule more, in force after", "ms", 10.0, 5.0),
            Row::added("100 000 filter rules, in the kernel", "MB", 16.0, 10.0),
        ],
        sampling: Sampling::Runs(filter::change),
    },
    Workload {
        name: "filter-long",
        packages: &["iproute2"],
        rows: &[
            Row::under_filter("RR10(100B/800B), 100 000 filter rules", 0.97, 0.99),
            Row::part("  client and server", "µs/tran", 1.03, 1.01),
        ],
        sampling: Sampling::Runs(filter::long_connections),
    },
    Workload {
        name: "vip",
        packages: &["gcc", "iproute2"],
        rows: &[Row::by_vip("CRR40(64B/8kB), by a VIP / direct")],
        sampling: Sampling::ManyRuns(vip::short_connections),
    },
    Workload {
        name: "vip-hosts",
        packages: &["haproxy", "iproute2", "redis-server", "redis-tools"],
        rows: &[
            Row::through("redis GET of 800 B, TCP by a distributor / direct", 0.85, 0.95),
            Row::through("redis GET of 800 B, TCP by a distributor / by HAProxy", 4.0, 7.0),
            Row::through("redis GET of 800 B, SMC-D / TCP, both by a distributor", 3.95, 10.0),
            Row::through("redis GET of 800 B, SMC-D by a distributor / direct", 0.95, 1.0),
            Row::added("distributor's program, per packet", "ns", 500.0, 300.0),
            Row::added("distributor's packets per 1000 transactions, SMC-D", "", 20.0, 7.0),
            Row::added("error of shares, 10 000 connections at 4:2:1", "points", 2.0, 2.0),
        ],
        sampling: Sampling::Runs(distributor::requests),
    },
    Workload {
        name: "syslog",
        packages: &["iproute2", "openssl", "rsyslog", "rsyslog-openssl"],
        rows: &[
            Row::part("syslog collector, TCP / UDP", "µs/msg", 1.1, 1.0),
            // IBM's syslogd with AT-TLS took about 5 % more.
            Row::part("  TLS by rule / TCP", "µs/msg", 1.15, 1.05),
            Row::part("  TLS by rule / rsyslog's own TLS", "µs/msg", 1.1, 1.0),
            Row::part("  one host, shared memory / TCP", "µs/msg", 1.0, 0.9),
        ],
        sampling: Sampling::Runs(syslog::costs),
    },
    Workload {
        name: "foreign",
        packages: &["gcc"],
        rows: &[Row::added("send/recv on a foreign fd, added", "ns", 10.0, 3.0)],
        sampling: Sampling::Runs(foreign),
    },
    // Last: it leaves thousands of connections in TIME_WAIT behind.
    Workload {
        name: "idle",
        packages: &["gcc"],
        rows: &[
            // "No CPU": what is left is a timer tick that hit a sleeper's CPU.
            Row::added("10 000 idle, CPU of both ends", "µs/s", 100.0, 100.0),
            Row::added("10 000 idle, memory per end", "KB", 16.0, 8.0),
        ],
        sampling: Sampling::Runs(idle),
    },
];

// ---- short connections ---------------------------------------------------

/// What is near 1 and scatters by a tenth needs many pairs: so many short ones for each.
const SHORT_PAIRS: u32 = 20;
/// The part of a run's time that a short one measures.
const SHORT_PART: f64 = 0.25;

/// A connection for each transaction, by the modeler: `sidestep run` starts its workers. They
/// begin anew for each pair that was asked for: where their memory happens to lie makes some
/// percent, for as long as they live.
fn connect_request_response(
    lab: &Lab,
    pairs: u32,
    clients: u32,
    promotion: &str,
) -> Result<Vec<Pair>> {
    let config = lab.write("crr.toml", format!("[smc]\npromotion = \"{promotion}\"\n"))?;
    let workload = format!("CRR{clients}(64B/8kB)");
    let some = (0..pairs).map(|pair| match lab.launcher.against() {
        Some(other) => pair_of_builds(lab, other, pair, &workload, &config),
        None => short_pairs(lab, &workload, &config),
    });
    some.collect::<Result<Vec<_>>>().map(|all| all.into_iter().flatten().collect())
}

fn short_pairs(lab: &Lab, workload: &str, config: &str) -> Result<Vec<Pair>> {
    let sidestep = lab.launcher.observer().context("the modeler is in `sidestep`")?;
    let report = short_runs(lab, (sidestep, None), "tcp,smc", workload, config)?;
    let (pairs, missing) = report.pairs(SHORT_PAIRS)?;
    if let Some(missing) = missing {
        lab.note(format!("{workload}: {missing}"));
    }
    Ok(pairs)
}

/// One pair, of medians: this build's modeler starts workers under the one library and under the other, so that what
/// differs is the library.
fn pair_of_builds(
    lab: &Lab,
    other: &Path,
    number: u32,
    workload: &str,
    config: &str,
) -> Result<Vec<Pair>> {
    let this = lab.launcher.observer().context("the modeler is in `sidestep`")?;
    let median = |sidestep: &Path| {
        let library = sidestep.with_file_name("libsidestep.so");
        let runs = short_runs(lab, (this, Some(&library)), "smc", workload, config)?;
        let rates = runs.rates("smc")?;
        Spread::of(rates.into_values()).map(|rates| rates.median).context("no run has a rate")
    };
    let (tcp, smc) = if number.is_multiple_of(2) {
        (median(other)?, median(this)?)
    } else {
        let smc = median(this)?;
        (median(other)?, smc)
    };
    Ok(vec![Pair { tcp, smc }])
}

/// A modeler's report of [`SHORT_PAIRS`] short runs over each transport, under its own library or another one.
fn short_runs(
    lab: &Lab,
    (sidestep, library): (&Path, Option<&Path>),
    over: &str,
    workload: &str,
    config: &str,
) -> Result<Report> {
    let json = lab.path("crr.json");
    let seconds = lab.seconds * SHORT_PART;
    let (count, duration) = (SHORT_PAIRS.to_string(), format!("{}ms", (seconds * 1e3).round()));
    let mut command = Command::new(sidestep);
    command
        .args(["bench", "--runs", &count, "--duration", &duration, "--warmup", "50ms"])
        .args(["--over", over, "--json", &json, workload])
        .env("SIDESTEP_CONFIG", config);
    if let Some(library) = library {
        command.env("SIDESTEP_LIBRARY", library);
    }
    let patience = RUN_PATIENCE + Duration::from_secs(u64::from(SHORT_PAIRS) * 2);
    Report::read(launch::run(command, patience), &json)
}

// ---- sockperf ------------------------------------------------------------

/// How fast sockperf asks at most. It gives up beyond 600 000 requests a second, which it is
/// answered in shared memory; over TCP the pace is never reached.
pub(crate) const SOCKPERF_PACE: &str = "--mps=250000";

fn sockperf(lab: &Lab, transport: Transport, cpu: Option<String>) -> Result<Vec<f64>> {
    let port = launch::free_port()?;
    let port_text = port.to_string();
    let address = ["--tcp", "-i", "127.0.0.1", "-p", &port_text];
    let pin = cpu.as_ref().map_or(vec![], |cpu| vec!["taskset", "-c", cpu]);
    // It counts whole seconds, of which it spends 0.4 on warming up.
    let seconds = lab.whole_seconds();

    let server = [&pin[..], &["sockperf", "sr"], &address].concat();
    let mut server = lab.serve(port, lab.command(transport, &server)?)?;
    let client = ["sockperf", "ping-pong", "-m", "64", "--full-rtt", SOCKPERF_PACE, "-t", &seconds];
    let output = lab.run(transport, &[&pin[..], &client, &address].concat())?;
    server.must_be_alive()?;
    Ok(vec![median_us(&output).context("sockperf printed no percentile 50")?])
}

/// From `sockperf: ---> percentile 50.000 =   54.480`.
fn median_us(output: &str) -> Option<f64> {
    let line = output.lines().find(|line| line.contains("percentile 50.000"))?;
    line.rsplit_once('=')?.1.trim().parse().ok()
}

// ---- redis ---------------------------------------------------------------

/// Enough requests to learn the rate from, few enough to take a moment.
const REDIS_PROBE_REQUESTS: u64 = 2_000;

struct RedisRun {
    set_per_s: f64,
    get_per_s: f64,
    server_cpu_us_per_request: f64,
}

/// In the order of the rows.
impl From<RedisRun> for Vec<f64> {
    fn from(run: RedisRun) -> Self {
        vec![run.set_per_s, run.get_per_s, run.server_cpu_us_per_request]
    }
}

fn redis(lab: &Lab, transport: Transport, clients: u32) -> Result<RedisRun> {
    let port = launch::free_port()?;
    let text = port.to_string();
    let options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    let command = [&["redis-server", "--port", &text][..], &options].concat();
    let mut server = lab.serve(port, lab.command(transport, &command)?)?;

    let requests = redis_requests(lab, transport, clients, &text)?;
    let cpu_before_s = launch::cpu_s(&server.family());
    let (set_per_s, get_per_s) = redis_benchmark(lab, transport, clients, &text, requests)?;
    let cpu_s = launch::cpu_s(&server.family()) - cpu_before_s;
    server.must_be_alive()?;

    let key = (transport == Transport::Smc, clients);
    lab.redis_rates.borrow_mut().insert(key, set_per_s.min(get_per_s));
    // As many SETs as GETs were made.
    let server_cpu_us_per_request = cpu_s * 1e6 / (2 * requests) as f64;
    Ok(RedisRun { set_per_s, get_per_s, server_cpu_us_per_request })
}

/// How many requests fill the time of one run; a short run finds out first
/// when nothing is known yet.
fn redis_requests(lab: &Lab, transport: Transport, clients: u32, port: &str) -> Result<u64> {
    let known = lab.redis_rates.borrow().get(&(transport == Transport::Smc, clients)).copied();
    let rate = match known {
        Some(rate) => rate,
        None => redis_benchmark(lab, transport, clients, port, REDIS_PROBE_REQUESTS)?.0,
    };
    Ok(((rate * lab.seconds) as u64).max(REDIS_PROBE_REQUESTS))
}

/// SETs, then GETs of the same key; returns the rate of each.
fn redis_benchmark(
    lab: &Lab,
    transport: Transport,
    clients: u32,
    port: &str,
    requests: u64,
) -> Result<(f64, f64)> {
    let (clients, requests) = (clients.to_string(), requests.to_string());
    let what = ["-t", "set,get", "-d", "2048", "-n", &requests, "-c", &clients, "--csv"];
    let command = [&["redis-benchmark", "-h", "127.0.0.1", "-p", port][..], &what].concat();
    let output = lab.run(transport, &command)?;
    let rate = |test| redis_rate(&output, test).context("redis-benchmark printed no rate");
    Ok((rate("SET")?, rate("GET")?))
}

/// From `"SET","16129.03",...`.
pub(crate) fn redis_rate(csv: &str, test: &str) -> Option<f64> {
    let mut rows = csv.lines().map(|line| line.split(',').map(|cell| cell.trim_matches('"')));
    rows.find_map(|mut cells| (cells.next()? == test).then(|| cells.next()?.parse().ok())?)
}

// ---- iperf3 --------------------------------------------------------------

fn iperf3(lab: &Lab, transport: Transport, extra: &[&str]) -> Result<Vec<f64>> {
    const BITS_PER_GIGABYTE: f64 = 8e9;
    let port = launch::free_port()?;
    let text = port.to_string();
    let seconds = lab.whole_seconds();
    let server = ["iperf3", "-s", "-B", "127.0.0.1", "-p", &text];
    let mut server = lab.serve(port, lab.command(transport, &server)?)?;
    let client = ["iperf3", "-c", "127.0.0.1", "-p", &text, "-t", &seconds, "-J"];
    let output = lab.run(transport, &[&client, extra].concat())?;
    server.must_be_alive()?;
    let report: Value = serde_json::from_str(&output).context("iperf3's report")?;
    Ok(vec![number(&report, "/end/sum_received/bits_per_second")? / BITS_PER_GIGABYTE])
}

// ---- our own programs ----------------------------------------------------

/// Requests per second that IBM's RR10(2KB/2KB) would count.
fn request_response(lab: &Lab, transport: Transport, mode: &str) -> Result<Vec<f64>> {
    let (program, seconds) = (lab.own("rr"), lab.seconds.to_string());
    let words = [&program, "--mode", mode, "--connections", "10", "--seconds", &seconds];
    let report: Value = serde_json::from_str(&lab.run(transport, &words)?)?;
    Ok(vec![number(&report, "/transactions_per_s")?])
}

/// The dearest of the calls whose own time is steady enough to see a
/// nanosecond in (a byte through a socket pair is not).
fn foreign(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let (program, seconds) = (lab.own("foreign"), lab.seconds.to_string());
    let output = lab.run(transport, &[&program, "--seconds", &seconds])?;
    let report: Value = serde_json::from_str(&output)?;
    let mut dearest = f64::NEG_INFINITY;
    for call in ["unix_recv_empty", "null_recv", "null_send"] {
        dearest = dearest.max(number(&report, &format!("/{call}/added_ns"))?);
    }
    Ok(vec![dearest])
}

/// Connections of the promise about idle ones.
const IDLE_CONNECTIONS: u64 = 10_000;

/// CPU of both ends in µs per second, and memory per connection end in KB. They move early: idle
/// ones would stay on TCP.
fn idle(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let (program, seconds) = (lab.own("idle"), lab.seconds.to_string());
    let count = IDLE_CONNECTIONS.to_string();
    let words = [&program, "--connections", &count, "--seconds", &seconds, "--hold", "yes"];
    let config = lab.write("idle.toml", "[smc]\npromotion = \"early\"\n")?;
    let mut command = lab.command(transport, &words)?;
    command.env("SIDESTEP_CONFIG", config);
    let mut dialogue = Dialogue::start(command)?;
    let report: Value = serde_json::from_str(&dialogue.await_line("{", RUN_PATIENCE)?)?;
    if transport == Transport::Smc {
        // Memory of connections that stayed TCP would look splendid.
        lab.note_connections("idle", number(&report, "/client/pid")? as u32)?;
    }
    dialogue.finish(RUN_PATIENCE)?;

    let connections = number(&report, "/connections")?;
    ensure!(
        connections >= IDLE_CONNECTIONS as f64,
        "RLIMIT_NOFILE allows only {connections} connections: raise it with `ulimit -Hn`"
    );
    let cpu_s = number(&report, "/server/cpu_s")? + number(&report, "/client/cpu_s")?;
    let memory_kb = resident_kb(&report)? / (2.0 * connections);
    Ok(vec![cpu_s * 1e6 / number(&report, "/seconds")?, memory_kb])
}

/// Memory of both processes together, each shared page counted once. Shared
/// memory is taken from the host's total when that has grown by more: pages
/// of a segment which nobody maps are resident too.
fn resident_kb(report: &Value) -> Result<f64> {
    let both = |field: &str| -> Result<f64> {
        Ok(number(report, &format!("/server/{field}"))?
            + number(report, &format!("/client/{field}"))?)
    };
    let private = both("pss_anon_kb")? + both("pss_file_kb")?;
    Ok(private + both("pss_shmem_kb")?.max(number(report, "/shmem_growth_kb")?))
}

fn number(report: &Value, pointer: &str) -> Result<f64> {
    report
        .pointer(pointer)
        .and_then(Value::as_f64)
        .with_context(|| format!("no number at {pointer} in the report"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockperf_s_median_is_found_behind_its_colours() {
        let output = "x\nsockperf: ---> percentile 75.000 =   58.346\n\
                      sockperf: ---> percentile 50.000 =   54.480\n";
        assert_eq!(median_us(output), Some(54.48));
        assert_eq!(median_us("nothing"), None);
    }

    #[test]
    fn redis_rates_are_read_by_name() {
        let csv = "\"test\",\"rps\"\n\"SET\",\"16129.03\",\"0.058\"\n\"GET\",\"16680.57\",\"0.05\"";
        assert_eq!(redis_rate(csv, "GET"), Some(16680.57));
        assert_eq!(redis_rate(csv, "PING"), None);
    }

    #[test]
    fn every_aim_is_at_least_as_hard_as_its_must() {
        for row in WORKLOADS.iter().flat_map(|workload| workload.rows) {
            match row.bound {
                Bound::AtLeast => assert!(row.aim >= row.must, "{}", row.name),
                Bound::AtMost => assert!(row.aim <= row.must, "{}", row.name),
            }
        }
    }

    #[test]
    fn unmapped_segments_count_as_memory() -> Result<()> {
        let process = r#"{"pss_anon_kb":10,"pss_file_kb":1,"pss_shmem_kb":5}"#;
        let report = |growth: u32| {
            let text =
                format!(r#"{{"server":{process},"client":{process},"shmem_growth_kb":{growth}}}"#);
            serde_json::from_str::<Value>(&text)
        };
        assert_eq!(resident_kb(&report(0)?)?, 32.0);
        assert_eq!(resident_kb(&report(100)?)?, 122.0);
        Ok(())
    }
}
