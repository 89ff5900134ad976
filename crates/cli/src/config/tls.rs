//! The table `tls`: a table for each rule by which connections are protected, `[tls.outbound.NAME]` and
//! `[tls.inbound.NAME]`.
//!
//! The rules of a role have the order in which they stand in the file, and the first that has a connection
//! decides. A rule with a mistake spoils the list: what is in force is all that the file says or nothing new.

use std::path::PathBuf;

use arrayvec::ArrayVec;
use ipnet::IpNet;
use sidestep_proto::policy::PortRange;
use sidestep_proto::protection::{Begin, ENTRIES_MAX, RULES_MAX, Role, Scope};
use sidestep_tls::cipher::Cipher;
use sidestep_tls::rule::{
    ClientCertificate, Expected, HalfClose, Identity, PeerName, Rule, Trust, UncleanEnd, Versions,
    WithinHost,
};
use toml::de::{DeTable, DeValue};

use super::value::{
    absolute_path, boolean, list, port_range, program_name, shown as shown_value, subnet, unknown,
    user,
};

/// What the table is called.
pub(super) const TLS: &str = "tls";

/// All rules, as `outbound.logs`.
pub(super) fn shown(rules: &[Rule]) -> String {
    let names = rules.iter().map(|rule| format!("{}.{}", table_of(rule.scope.role), rule.name()));
    names.collect::<Vec<_>>().join(", ")
}

/// The table of the rules of a role.
pub(crate) const fn table_of(role: Role) -> &'static str {
    match role {
        Role::Outbound => "outbound",
        Role::Inbound => "inbound",
    }
}

/// Reads the table; `fault` takes what is wrong in it.
pub(super) fn rules(
    table: &DeTable<'_>,
    fault: &mut impl FnMut(usize, String),
) -> Option<Vec<Rule>> {
    let (mut rules, mut is_right) = (Vec::new(), true);
    let mut fault = |at, message: String| {
        is_right = false;
        fault(at, format!("{TLS}.{message}"));
    };
    for (name, value) in table {
        let roles = [Role::Outbound, Role::Inbound];
        let Some(role) = roles.into_iter().find(|role| table_of(*role) == name.get_ref()) else {
            let known = roles.into_iter().map(table_of);
            fault(name.span().start, unknown("table", name.get_ref(), known));
            continue;
        };
        let DeValue::Table(table) = value.get_ref() else {
            fault(
                name.span().start,
                format!("{0}: expected tables: [{TLS}.{0}.NAME]", name.get_ref()),
            );
            continue;
        };
        of_role(role, table, &mut rules, &mut fault);
    }
    if rules.len() > RULES_MAX {
        let at = table.iter().next().map_or(0, |(name, _)| name.span().start);
        fault(at, format!("*: {} rules are too many; use at most {RULES_MAX}", rules.len()));
    }
    rules.sort_by_key(|(at, _)| *at);
    is_right.then(|| rules.into_iter().map(|(_, rule)| rule).collect())
}

/// Each rule with the place of its name, by which they have an order.
fn of_role(
    role: Role,
    table: &DeTable<'_>,
    rules: &mut Vec<(usize, Rule)>,
    fault: &mut impl FnMut(usize, String),
) {
    for (name, value) in table {
        let (at, path) = (name.span().start, format!("{}.{}", table_of(role), name.get_ref()));
        let rule_name = match name.get_ref().parse() {
            Ok(name) => name,
            Err(error) => {
                fault(at, format!("{path}: not the name of a rule; {error}"));
                continue;
            }
        };
        let DeValue::Table(table) = value.get_ref() else {
            fault(at, format!("{path}: expected a table: [{TLS}.{path}]"));
            continue;
        };
        let (begin, ports, peers, users) = Default::default();
        let mut found = Found::new(Scope { role, begin, name: rule_name, ports, peers, users });
        let mut is_right = true;
        for (key, value) in table {
            let (name, at) = (key.get_ref(), value.span().start);
            let message = match found.read(name, value.get_ref()) {
                Some(Ok(())) => continue,
                Some(Err(message)) => format!("{name}: {message}"),
                None => unknown("key", name, KEYS.into_iter()),
            };
            is_right = false;
            fault(at, format!("{path}.{message}"));
        }
        if is_right {
            match found.finish() {
                Ok(rule) => rules.push((at, rule)),
                Err(message) => fault(at, format!("{path}: {message}")),
            }
        }
    }
}

const KEYS: [&str; 18] = [
    "ports",
    "peers",
    "programs",
    "users",
    "versions",
    "ciphers",
    "certificate",
    "key",
    "trust",
    "client_certificate",
    "client_names",
    "server_name",
    "alpn",
    "within_host",
    "unclean_end",
    "half_close",
    "enforce",
    "controlled",
];

/// What was read of a rule so far.
struct Found {
    rule: Rule,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Found {
    fn new(scope: Scope) -> Self {
        Self { rule: Rule::new(scope), certificate: None, key: None }
    }

    /// `None`: there is no such key.
    fn read(&mut self, key: &str, value: &DeValue<'_>) -> Option<Result<(), String>> {
        let rule = &mut self.rule;
        Some(match key {
            "ports" => {
                few(value, port_range).map(|it: ArrayVec<PortRange, _>| rule.scope.ports = it)
            }
            "peers" => few(value, subnet).map(|it: ArrayVec<IpNet, _>| rule.scope.peers = it),
            "users" => {
                few(value, |it| user(it).map(|user| user.uid())).map(|it| rule.scope.users = it)
            }
            "programs" => list(value, program).map(|it| rule.programs = it),
            "versions" => versions(value).map(|it| rule.versions = it),
            "ciphers" => list(value, cipher).map(|it| rule.ciphers = it),
            "certificate" => absolute_path(value).map(|it| self.certificate = Some(it)),
            "key" => absolute_path(value).map(|it| self.key = Some(it)),
            "trust" => trust(value).map(|it| rule.trust = it),
            "client_certificate" => {
                choice(value, CLIENT_CERTIFICATE).map(|it| rule.client_certificate = it)
            }
            "client_names" => list(value, peer_name).map(|it| rule.client_names = it),
            "server_name" => expected(value).map(|it| rule.server_name = Some(it)),
            "alpn" => list(value, protocol).map(|it| rule.alpn = it),
            "within_host" => choice(value, WITHIN_HOST).map(|it| rule.within_host = it),
            "unclean_end" => choice(value, UNCLEAN_END).map(|it| rule.unclean_end = it),
            "half_close" => choice(value, HALF_CLOSE).map(|it| rule.half_close = it),
            "enforce" => boolean(value).map(|it| rule.enforce = it),
            "controlled" => boolean(value).map(|it| {
                rule.scope.begin = if it { Begin::Asked } else { Begin::Connected };
            }),
            _ => return None,
        })
    }

    fn finish(self) -> Result<Rule, String> {
        let identity = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
            (None, None) => None,
            (Some(_), None) => {
                return Err("has a certificate and no key; add key = \"/path/key.pem\"".to_owned());
            }
            (None, Some(_)) => {
                return Err("has a key and no certificate; add certificate = \"/path/chain.pem\""
                    .to_owned());
            }
        };
        let rule = Rule { identity, ..self.rule };
        rule.check().map_err(|error| error.to_string()).map(|()| rule)
    }
}

/// Words, and what they mean.
type Choices<T> = &'static [(&'static str, T)];

const CLIENT_CERTIFICATE: Choices<ClientCertificate> = &[
    ("none", ClientCertificate::None),
    ("wanted", ClientCertificate::Wanted),
    ("needed", ClientCertificate::Needed),
];
const WITHIN_HOST: Choices<WithinHost> =
    &[("tls", WithinHost::Tls), ("memory", WithinHost::Memory)];
const UNCLEAN_END: Choices<UncleanEnd> = &[("reset", UncleanEnd::Reset), ("eof", UncleanEnd::Eof)];
const HALF_CLOSE: Choices<HalfClose> = &[("send", HalfClose::Send), ("hold", HalfClose::Hold)];

fn choice<T: Copy>(value: &DeValue<'_>, choices: Choices<T>) -> Result<T, String> {
    let meant = choices.iter().find(|(word, _)| value.as_str() == Some(word));
    meant.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
        format!("{} is not one of: {}", shown_value(value), words.join(", "))
    })
}

/// A list that the library keeps as well, without `malloc`.
fn few<T>(
    value: &DeValue<'_>,
    entry: fn(&DeValue<'_>) -> Result<T, String>,
) -> Result<ArrayVec<T, ENTRIES_MAX>, String> {
    let entries = list(value, entry)?;
    let len = entries.len();
    if len > ENTRIES_MAX {
        return Err(format!(
            "{len} entries are too many; use at most {ENTRIES_MAX}, and another rule"
        ));
    }
    Ok(entries.into_iter().collect())
}

/// The words of the library end at these.
fn program(value: &DeValue<'_>) -> Result<String, String> {
    let name = program_name(value)?.to_string();
    match name.contains(['|', ';']) {
        true => Err(format!(
            "{} is not allowed; use the name of a program without `|` and `;`",
            shown_value(value)
        )),
        false => Ok(name),
    }
}

fn versions(value: &DeValue<'_>) -> Result<Versions, String> {
    let version = |value: &DeValue<'_>| match value.as_str() {
        Some("1.2") => Ok(false),
        Some("1.3") => Ok(true),
        _ => Err(format!("{} is not allowed; use \"1.2\" and \"1.3\"", shown_value(value))),
    };
    let versions = list(value, version)?;
    if versions.is_empty() {
        return Err(
            "an empty list is not allowed; use [\"1.2\", \"1.3\"], or one of them".to_owned()
        );
    }
    Ok(Versions { tls12: versions.contains(&false), tls13: versions.contains(&true) })
}

fn cipher(value: &DeValue<'_>) -> Result<Cipher, String> {
    let text = match value {
        // 1302 without quotes.
        DeValue::Integer(number) => number.to_string(),
        other => other.as_str().unwrap_or_default().to_owned(),
    };
    text.parse().map_err(|error| format!("{} is not allowed; {error}", shown_value(value)))
}

fn trust(value: &DeValue<'_>) -> Result<Trust, String> {
    match value.as_str() {
        Some("system") => Ok(Trust::System),
        _ => absolute_path(value).map(Trust::File).map_err(|_| {
            format!(
                "{} is not allowed; use \"system\", or the absolute path of a file with the certificates \
                 of authorities",
                shown_value(value)
            )
        }),
    }
}

fn peer_name(value: &DeValue<'_>) -> Result<PeerName, String> {
    let text = value.as_str().unwrap_or_default();
    text.parse().map_err(|error| format!("{} is not allowed; {error}", shown_value(value)))
}

fn expected(value: &DeValue<'_>) -> Result<Expected, String> {
    match value.as_str() {
        Some("address") => Ok(Expected::Address),
        Some("resolved") => Ok(Expected::Resolved),
        _ => peer_name(value)
            .map(Expected::Name)
            .map_err(|message| format!("{message}, \"resolved\" or \"address\"")),
    }
}

/// *Source*: RFC 7301 §3.1.
fn protocol(value: &DeValue<'_>) -> Result<String, String> {
    let name = value.as_str().filter(|name| (1..=255).contains(&name.len()));
    name.map(str::to_owned).ok_or_else(|| {
        format!(
            "{} is not allowed; use the name of a protocol, such as \"http/1.1\"",
            shown_value(value)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;
    use crate::options::scopes_word;
    use sidestep_proto::protection::{Decision, Scopes, Subject};

    const CLIENT: &str = "ports = [6514]\nserver_name = \"logs.example.com\"\n";

    fn first(text: &str) -> String {
        parse(text).1.remove(0).message
    }

    fn outbound(line: &str) -> String {
        first(&format!("[tls.outbound.logs]\n{CLIENT}{line}\n"))
    }

    #[test]
    fn a_rule_has_all_its_keys() {
        let (settings, faults) = parse(
            r#"
            [tls.inbound.web]
            ports = [8443, "9000-9010"]
            peers = ["10.0.0.0/8"]
            programs = ["nginx"]
            users = [0]
            versions = ["1.2", "1.3"]
            ciphers = ["C030", 1302, "TLS_AES_128_GCM_SHA256"]
            certificate = "/etc/sidestep/web.pem"
            key = "/etc/sidestep/web.key"
            trust = "/etc/sidestep/ca.pem"
            client_certificate = "needed"
            client_names = ["a.example.com"]
            alpn = ["http/1.1"]
            within_host = "memory"
            unclean_end = "eof"
            half_close = "hold"
            "#,
        );
        assert!(faults.is_empty(), "{faults:?}");
        let rules = settings.tls.unwrap();
        let scope = Scope {
            role: Role::Inbound,
            begin: Begin::Connected,
            name: "web".parse().unwrap(),
            ports: ["8443", "9000-9010"].map(|it| it.parse().unwrap()).into_iter().collect(),
            peers: ["10.0.0.0/8".parse().unwrap()].into_iter().collect(),
            users: [0].into_iter().collect(),
        };
        let expected = Rule {
            programs: vec!["nginx".to_owned()],
            ciphers: ["C030", "1302", "1301"].map(|it| it.parse().unwrap()).to_vec(),
            identity: Some(Identity {
                certificate: "/etc/sidestep/web.pem".into(),
                key: "/etc/sidestep/web.key".into(),
            }),
            trust: Trust::File("/etc/sidestep/ca.pem".into()),
            client_certificate: ClientCertificate::Needed,
            client_names: vec!["a.example.com".parse().unwrap()],
            alpn: vec!["http/1.1".to_owned()],
            within_host: WithinHost::Memory,
            unclean_end: UncleanEnd::Eof,
            half_close: HalfClose::Hold,
            ..Rule::new(scope)
        };
        assert_eq!(rules, [expected]);
    }

    #[test]
    fn rules_have_the_order_of_the_file_and_the_library_reads_them() {
        let text = format!(
            "[tls.outbound.z]\nprograms = [\"a\"]\n{CLIENT}[tls.outbound.a]\nusers = [0]\n{CLIENT}"
        );
        let (settings, faults) = parse(&text);
        assert!(faults.is_empty(), "{faults:?}");
        let rules = settings.tls.unwrap();
        assert_eq!(shown(&rules), "outbound.z, outbound.a");
        let subject =
            Subject { role: Role::Outbound, port: 6514, peer: [10, 0, 0, 1].into(), user: 0 };
        let decision = |program| Scopes::parse(&scopes_word(&rules), program).decide(&subject);
        assert_eq!(decision("a"), Decision::Rule(0));
        // The first is not about this program, so it has the second alone.
        assert_eq!(
            Scopes::parse(&scopes_word(&rules), "b").get(0).map(|it| it.name),
            Some(rules[1].name())
        );
        assert_eq!(decision("b"), Decision::Rule(0));
    }

    #[test]
    fn a_wrong_value_says_what_is_allowed() {
        for (line, message) in [
            ("port = 1", "port: unknown key; did you mean `ports`?"),
            (
                "peers = [\"10.0.0.1/8\"]",
                "peers: `10.0.0.1/8` is not allowed; the address has bits",
            ),
            ("programs = [\"a|b\"]", "programs: `a|b` is not allowed; use the name of a program"),
            ("users = [\"no such user\"]", "users: `no such user` is not allowed"),
            ("versions = [\"1.1\"]", "versions: `1.1` is not allowed; use \"1.2\" and \"1.3\""),
            ("versions = []", "versions: an empty list is not allowed"),
            ("ciphers = [\"2F\"]", "ciphers: `2F` is not allowed; use the number or IANA's name"),
            ("trust = \"none\"", "trust: `none` is not allowed; use \"system\""),
            ("trust = false", "trust: false is not allowed; use \"system\""),
            (
                "certificate = \"c.pem\"",
                "certificate: `c.pem` is not allowed; use an absolute path",
            ),
            (
                "client_certificate = \"yes\"",
                "client_certificate: `yes` is not one of: none, wanted, needed",
            ),
            ("within_host = \"plain\"", "within_host: `plain` is not one of: tls, memory"),
            ("unclean_end = 1", "unclean_end: 1 is not one of: reset, eof"),
            ("alpn = [\"\"]", "alpn: `` is not allowed; use the name of a protocol"),
            ("half_close = \"later\"", "half_close: `later` is not one of: send, hold"),
        ] {
            let told = outbound(line);
            assert!(told.starts_with(&format!("tls.outbound.logs.{message}")), "{told}");
        }
    }

    #[test]
    fn a_server_has_the_name_that_the_rule_says_or_the_program() {
        for (value, expected) in [
            ("a.example", Expected::Name("a.example".parse().unwrap())),
            ("resolved", Expected::Resolved),
            ("address", Expected::Address),
        ] {
            let text = format!("[tls.outbound.a]\nports = [1]\nserver_name = \"{value}\"\n");
            assert_eq!(parse(&text).0.tls.unwrap()[0].server_name, Some(expected));
        }
        let told = first("[tls.outbound.a]\nports = [1]\nserver_name = \"10.0.0.1\"\n");
        assert!(told.contains("`10.0.0.1` is not allowed; use a name of DNS"), "{told}");
        assert!(told.ends_with("\"resolved\" or \"address\""), "{told}");
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(
            outbound("key = \"/k\"").starts_with("tls.outbound.logs: has a key and no certificate")
        );
        assert!(outbound("client_names = [\"a.b\"]").contains("are for [tls.inbound]"));
        let rule = |text: &str| first(&format!("[tls.{text}"));
        assert!(rule("outbound.a]\nports = [1]").starts_with("tls.outbound.a: has no server_name"));
        assert!(rule("inbound.a]\nports = [1]").starts_with("tls.inbound.a: has no certificate"));
        assert!(
            rule("outbound.a]\nserver_name = \"a.b\"").starts_with("tls.outbound.a: has no ports")
        );
        assert!(
            rule("inbuond.a]").starts_with("tls.inbuond: unknown table; did you mean `inbound`?")
        );
        assert!(rule("outbound]\na = 1").starts_with("tls.outbound.a: expected a table"));
        assert!(rule("outbound.\"a b\"]").contains("not the name of a rule; use 1 to 32"));
    }

    #[test]
    fn one_mistake_spoils_the_list() {
        let text = format!("[tls.outbound.a]\n{CLIENT}[tls.outbound.b]\nports = [1]\n");
        assert_eq!(parse(&text).0.tls, None);
        let many: String = (0..17).map(|n| format!("[tls.outbound.r{n}]\n{CLIENT}")).collect();
        assert!(first(&many).contains("17 rules are too many"));
        let ports = (1..10).map(|port| port.to_string()).collect::<Vec<_>>().join(",");
        let text = format!("[tls.outbound.a]\nports = [{ports}]\nserver_name = \"a.b\"\n");
        assert!(first(&text).contains("9 entries are too many; use at most 8"));
    }
}
