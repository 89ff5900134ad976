//! Connections to other hosts: how they travel beyond the gateway, which knows it.
//!
//! What is seen of a program ends at the gateway. There its connection is known by the port it comes
//! from; a gateway of another network namespace has other connections of the same ports, so the
//! peer has to be the same, too.

use std::collections::HashMap;

use sidestep_gateway::status::{self, Mode, Protection, Reason, Status};
use sidestep_observe::Connection;

/// What the gateway says of its connections, by port.
#[derive(Debug, Default)]
pub(super) struct Beyond(HashMap<u16, status::Connection>);

/// How a connection to another host travels; `None`: unknown.
#[derive(Debug)]
pub(super) struct Path<'a>(Option<&'a status::Connection>);

/// How records of TLS travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Records {
    BySmcR,
    /// Why, where both hosts know SMC.
    ByTcp(Option<Reason>),
}

impl Beyond {
    /// Asks the gateway, if one of these goes by it.
    pub(super) fn of(connections: &[Connection]) -> Self {
        if connections.iter().all(|connection| connection.session.is_none()) {
            return Self::default();
        }
        let known = Status::ask_all().map(|status| status.connections).unwrap_or_default();
        Self(known.into_iter().map(|connection| (connection.port, connection)).collect())
    }

    /// `None`: it does not go by the gateway.
    pub(super) fn path(&self, connection: &Connection) -> Option<Path<'_>> {
        let port = connection.session?;
        let known = self.0.get(&port);
        Some(Path(known.filter(|known| known.remote == connection.peer)))
    }
}

impl Path<'_> {
    pub(super) fn mode(&self) -> &'static str {
        match self.0.map(|connection| connection.mode) {
            Some(Mode::SmcR) => "SMC-R",
            Some(Mode::Tcp) => "TCP",
            Some(Mode::Tls) => "TLS",
            Some(Mode::WithinHost) => "SMC-D",
            Some(Mode::Deciding) | None => "gateway",
        }
    }

    /// The gateway says so.
    pub(super) fn is_smc_r(&self) -> bool {
        self.0.is_some_and(|connection| connection.mode == Mode::SmcR)
    }

    /// Why it travels by TCP, without TLS.
    pub(super) fn fallback(&self) -> Option<&Reason> {
        self.0.filter(|connection| connection.mode == Mode::Tcp)?.reason.as_ref()
    }

    /// How records of TLS travel that protect it.
    pub(super) fn records(&self) -> Records {
        match self.is_smc_r() {
            true => Records::BySmcR,
            false => Records::ByTcp(self.0.and_then(|connection| connection.reason.clone())),
        }
    }

    /// What stands in the column of reasons.
    pub(super) fn words(&self) -> String {
        let words = match self.0.map(|connection| connection.mode) {
            Some(Mode::Tcp) => self.fallback().map_or("", |reason| &reason.text),
            Some(Mode::SmcR | Mode::Tls | Mode::WithinHost) => {
                return self.protection().unwrap_or_default();
            }
            Some(Mode::Deciding) => "the two hosts are agreeing",
            None => "goes by the gateway, which cannot be asked from here",
        };
        words.to_owned()
    }

    /// What TLS protects it by, such as `TLS 1.3 TLS_AES_256_GCM_SHA384 logs`: version, suite and rule.
    pub(super) fn protection(&self) -> Option<String> {
        let status::Connection { mode, protection, .. } = self.0?;
        let Protection { rule, version, cipher } = protection.as_ref()?;
        Some(match (version, cipher) {
            (Some(version), Some(cipher)) => format!("{version} {cipher} {rule}"),
            _ if *mode == Mode::WithinHost => format!("in memory of this host, by rule {rule}"),
            _ => format!("the handshake of TLS goes on, by rule {rule}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use sidestep_gateway::status::Traffic;
    use sidestep_wire::Diagnosis;

    impl Beyond {
        /// A gateway that passes on one connection.
        pub(in crate::commands) fn with(
            port: u16,
            remote: Option<SocketAddr>,
            reason: Reason,
        ) -> Self {
            let known = known(port, Mode::Tcp, Some(reason));
            Self([(port, status::Connection { remote, ..known })].into())
        }
    }

    fn known(port: u16, mode: Mode, reason: Option<Reason>) -> status::Connection {
        status::Connection {
            user: 0,
            port,
            local: Some("10.0.0.1:40000".parse().unwrap()),
            remote: Some("127.0.0.1:40000".parse().unwrap()),
            mode,
            reason,
            protection: None,
            link_group: None,
            link: None,
            traffic: Traffic::default(),
            moves: 0,
        }
    }

    fn protected(port: u16, by: Option<(&str, &str)>) -> status::Connection {
        let protection = Protection {
            rule: "logs".to_owned(),
            version: by.map(|(version, _)| version.to_owned()),
            cipher: by.map(|(_, cipher)| cipher.to_owned()),
        };
        let known = known(port, Mode::Tls, None);
        status::Connection { protection: Some(protection), ..known }
    }

    #[test]
    fn a_connection_is_what_the_gateway_says_of_its_port_and_peer() {
        let reason = Reason {
            diagnosis: Diagnosis::NOSMCDEV.0,
            text: "no common UEID".to_owned(),
            by_peer: false,
        };
        let said = [
            known(1, Mode::SmcR, None),
            known(2, Mode::Tcp, Some(reason.clone())),
            known(3, Mode::Deciding, None),
            protected(5, Some(("TLS 1.3", "TLS_AES_256_GCM_SHA384"))),
            protected(6, None),
            status::Connection { mode: Mode::WithinHost, ..protected(7, None) },
            status::Connection { mode: Mode::SmcR, ..protected(8, Some(("TLS 1.2", "C030"))) },
        ];
        let beyond = Beyond(said.into_iter().map(|it| (it.port, it)).collect());
        let seen = |session| Connection { session, ..super::super::ss::tests::server() };
        let of = |session| {
            let connection = seen(session);
            let path = beyond.path(&connection)?;
            Some((path.mode(), path.words().to_owned(), path.fallback().cloned()))
        };
        assert_eq!(of(None), None);
        assert_eq!(of(Some(1)), Some(("SMC-R", String::new(), None)));
        assert_eq!(of(Some(2)), Some(("TCP", reason.text.clone(), Some(reason))));
        assert_eq!(of(Some(3)).unwrap().0, "gateway");
        let words = "TLS 1.3 TLS_AES_256_GCM_SHA384 logs".to_owned();
        assert_eq!(of(Some(5)), Some(("TLS", words, None)));
        assert!(of(Some(6)).is_some_and(|(_, words, _)| words.contains("handshake")));
        let words = "in memory of this host, by rule logs".to_owned();
        assert_eq!(of(Some(7)), Some(("SMC-D", words, None)));
        assert_eq!(of(Some(8)), Some(("SMC-R", "TLS 1.2 C030 logs".to_owned(), None)));
        assert_eq!(of(Some(4)).unwrap().0, "gateway", "the gateway does not know it");
        let other = Connection { peer: None, ..seen(Some(1)) };
        assert_eq!(beyond.path(&other).unwrap().mode(), "gateway", "another one of that port");
    }
}
