//! The programs: one line of table for each, quick and different ones first.

use anyhow::Result;

use super::site::Site;
use super::{databases, messages, runtimes, tools, transfer, web};

/// A program, how it serves its clients, and how it is tried.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    /// Debian packages without which it is skipped; the first one's version is
    /// the program's.
    pub(crate) packages: &'static [&'static str],
    /// How it uses its sockets.
    pub(crate) model: &'static str,
    /// Whose connections are looked at, by the names of processes.
    pub(crate) observed: &'static [&'static str],
    /// Why Sidestep can do nothing for it, if so.
    pub(crate) stays_on_tcp: Option<&'static str>,
    /// Whether it takes a few seconds only.
    pub(crate) short: bool,
    /// Whether it does not run as root.
    pub(crate) refuses_root: bool,
    /// Tries it out; returns what was compared.
    pub(crate) play: fn(&Site<'_>) -> Result<String>,
}

impl Entry {
    const fn new(
        name: &'static str,
        packages: &'static [&'static str],
        observed: &'static [&'static str],
        model: &'static str,
        play: fn(&Site<'_>) -> Result<String>,
    ) -> Self {
        Self {
            name,
            packages,
            model,
            observed,
            stays_on_tcp: None,
            short: true,
            refuses_root: false,
            play,
        }
    }

    /// The same, but left out of the short half.
    const fn long(self) -> Self {
        Self { short: false, ..self }
    }

    /// The same, but run as nobody if we are root.
    const fn under_nobody(self) -> Self {
        Self { refuses_root: true, ..self }
    }

    /// The same, but for a program that is to stay on TCP, unharmed.
    const fn on_tcp(self, why: &'static str) -> Self {
        Self { stays_on_tcp: Some(why), ..self }
    }
}

/// All programs.
pub(crate) const PROGRAMS: &[Entry] = &[
    Entry::new(
        "memcached",
        &["memcached", "python3"],
        &["memcached"],
        "4 threads, an epoll loop each (libevent)",
        databases::memcached,
    ),
    Entry::new(
        "redis",
        &["redis-server", "redis-tools", "python3"],
        &["redis-server"],
        "one epoll loop",
        databases::redis,
    ),
    Entry::new(
        "postgresql",
        &["postgresql-15"],
        &["postgres"],
        "fork per connection; clients with poll",
        databases::postgresql,
    )
    .under_nobody()
    .long(),
    Entry::new(
        "postgresql-jdbc",
        &["libpostgresql-jdbc-java", "postgresql-15", "openjdk-17-jdk-headless"],
        &["java", "postgres"],
        "Java threads, blocking; fork per connection",
        databases::jdbc,
    )
    .under_nobody()
    .long(),
    Entry::new(
        "mariadb",
        &["mariadb-server", "mariadb-client"],
        &["mariadbd"],
        "thread per connection",
        databases::mariadb,
    )
    .long(),
    Entry::new(
        "nginx",
        &["nginx-light", "curl"],
        &["nginx"],
        "1 worker, epoll loop, sendfile",
        web::nginx_one_worker,
    ),
    Entry::new(
        "nginx-workers",
        &["nginx-light", "curl", "wrk"],
        &["nginx"],
        "4 pre-forked workers at one listener, epoll loops",
        web::nginx_workers,
    ),
    Entry::new(
        "nginx-reuseport",
        &["nginx-light", "curl", "wrk"],
        &["nginx"],
        "4 pre-forked workers, a listener each (`reuseport`)",
        web::nginx_reuseport,
    ),
    Entry::new(
        "haproxy-tcp",
        &["haproxy", "nginx-light", "curl", "wrk"],
        &["haproxy", "nginx"],
        "threads, epoll loops; server and client at once, TCP mode",
        web::haproxy_tcp,
    ),
    Entry::new(
        "haproxy-http",
        &["haproxy", "nginx-light", "curl", "wrk"],
        &["haproxy", "nginx"],
        "the same in HTTP mode, connections to nginx shared",
        web::haproxy_http,
    )
    .long(),
    Entry::new(
        "haproxy-reload",
        &["haproxy", "nginx-light", "curl"],
        &["haproxy", "nginx"],
        "a new process takes over the listeners (`-sf`, `-x`)",
        web::haproxy_reload,
    ),
    Entry::new(
        "rsyslog",
        &["rsyslog"],
        &["rsyslogd"],
        "threads, epoll loop; forwards",
        messages::rsyslog,
    ),
    Entry::new(
        "mosquitto",
        &["mosquitto", "mosquitto-clients"],
        &["mosquitto"],
        "one epoll loop",
        messages::mosquitto,
    ),
    Entry::new(
        "java-http",
        &["openjdk-17-jdk-headless"],
        &["java"],
        "HttpServer: selector and threads; HttpClient: selector",
        runtimes::java_http,
    )
    .long(),
    Entry::new(
        "java-nio",
        &["openjdk-17-jdk-headless"],
        &["java"],
        "one selector (epoll) a side",
        runtimes::java_nio,
    )
    .long(),
    Entry::new("node", &["nodejs"], &["node"], "libuv's epoll loop, http and net", runtimes::node),
    Entry::new(
        "python-http.server",
        &["python3", "curl"],
        &["python3"],
        "thread per connection, one request each",
        web::python_http_server,
    ),
    Entry::new(
        "gunicorn-sync",
        &["gunicorn", "curl", "wrk"],
        &["gunicorn"],
        "4 pre-forked workers, blocking, one request each",
        web::gunicorn_sync,
    )
    .long(),
    Entry::new(
        "gunicorn-gthread",
        &["gunicorn", "curl", "wrk"],
        &["gunicorn"],
        "4 pre-forked workers, 4 threads each, keep-alive",
        web::gunicorn_threads,
    )
    .long(),
    Entry::new(
        "python-asyncio",
        &["python3"],
        &["python3"],
        "asyncio streams, an epoll loop a side",
        runtimes::python_asyncio,
    ),
    Entry::new(
        "wget",
        &["wget", "nginx-light"],
        &["nginx"],
        "client, blocking with select",
        web::wget,
    ),
    Entry::new("iperf3", &["iperf3"], &["iperf3"], "select loop; 4 streams", tools::iperf3).long(),
    Entry::new("sockperf", &["sockperf"], &["sockperf"], "blocking; recvfrom", tools::sockperf),
    Entry::new("socat", &["socat"], &["socat"], "fork per connection; select", tools::socat),
    Entry::new(
        "netcat-openbsd",
        &["netcat-openbsd"],
        &["nc.openbsd"],
        "poll",
        tools::netcat_openbsd,
    ),
    Entry::new("ncat", &["ncat"], &["ncat"], "select; nsock's epoll", tools::ncat),
    Entry::new(
        "stress-ng",
        &["stress-ng"],
        &["stress-ng-sock"],
        "fork; send, sendmsg and sendmmsg",
        tools::stress_ng,
    )
    .long(),
    Entry::new(
        "node-cluster",
        &["nodejs"],
        &["node"],
        "the primary accepts and passes connections to 4 workers",
        runtimes::node_cluster,
    ),
    Entry::new(
        "node-cluster-shared",
        &["nodejs"],
        &["node"],
        "4 workers that share the primary's listener, passed to them",
        runtimes::node_cluster_shared,
    ),
    Entry::new(
        "pyftpdlib",
        &["python3-pyftpdlib", "lftp", "curl"],
        &["python3"],
        "one epoll loop, another connection for each file",
        transfer::pyftpdlib,
    )
    .long(),
    Entry::new(
        "openssh",
        &["openssh-server", "openssh-client"],
        &[],
        "fork and exec per connection; poll",
        transfer::openssh,
    )
    .long()
    .on_tcp(
        "sshd puts the connection under descriptor 0 and runs itself again before the first byte",
    ),
    Entry::new(
        "vsftpd",
        &["vsftpd", "lftp", "curl"],
        &[],
        "fork per connection, another connection for each file",
        transfer::vsftpd,
    )
    .long()
    .on_tcp("limits its address space to 200 MB, and uses descriptors 0 and 1"),
    Entry::new(
        "pure-ftpd",
        &["pure-ftpd", "curl"],
        &[],
        "fork per connection, another connection for each file",
        transfer::pure_ftpd,
    )
    .long()
    .on_tcp("limits its memory to 70 MB, and uses descriptors 0 and 1"),
    Entry::new("bash", &["bash", "socat"], &[], "/dev/tcp, read and printf", tools::bash)
        .on_tcp("puts the connection under descriptor 0 or 1 before its first byte"),
    Entry::new(
        "busybox",
        &["busybox-static", "curl"],
        &[],
        "httpd: fork per connection",
        web::busybox,
    )
    .on_tcp("nothing can be preloaded into a static program"),
    Entry::new("caddy", &["caddy", "curl"], &[], "file-server: goroutines", web::caddy)
        .on_tcp("Go calls the kernel past the C library"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_program_has_a_name_of_its_own_and_something_to_prove() {
        let names: BTreeSet<&str> = PROGRAMS.iter().map(|entry| entry.name).collect();
        assert_eq!(names.len(), PROGRAMS.len());
        for entry in PROGRAMS {
            assert!(!entry.packages.is_empty(), "{} has no version", entry.name);
            assert_eq!(entry.observed.is_empty(), entry.stays_on_tcp.is_some(), "{}", entry.name);
        }
    }
}
