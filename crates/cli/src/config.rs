//! The configuration files: where they are, what may stand in them, and what is wrong with one.
//!
//! Up to four files are read, and a key set in an earlier one hides it in the later ones:
//!
//! 1. the file named by `--config`,
//! 2. the file named by `$SIDESTEP_CONFIG`,
//! 3. the user's: `$XDG_CONFIG_HOME/sidestep/sidestep.toml`, or below `~/.config`,
//! 4. the machine's: `/etc/sidestep/sidestep.toml`.
//!
//! The first two must exist when they are named. The keys are the entries of [`TABLES`], and the
//! tables [`PNET`], [`TLS`] and [`VIP`], whose keys are names of the user's; `docs/configuration.md` explains each.

mod filter_rules;
pub(crate) mod tls;
mod value;
mod vip;

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use sidestep_gateway::{AdapterChoice, Spot};
use sidestep_proto::policy::{Interface, MEMBERS_MAX};
use sidestep_proto::rendezvous::UEIDS_MAX;
use sidestep_socket::process::options::AGENT_SOCKET_LEN_MAX;
use thiserror::Error;
use tls::TLS;
use toml::de::{DeTable, DeValue};
use value::{
    absolute_path, boolean, list, name_or_number, port_range, program_name, shown, subnet, unknown,
    user,
};
use vip::VIP;

use crate::accounts::{Group, User};
use crate::fault_plan::FaultPlan;
use crate::metrics_address::{MetricsAddress, MetricsAddressError};
use crate::options::{Eid, Eids, MemoryLimit, RmbeSize, Settings};
use crate::pnet::{Network, Networks, PnetId};
use crate::share::Pair;
use crate::store_address::StoreAddress;
use crate::words::{self, listed, parse_keyword, parse_size, shown_size};

/// A configuration file that cannot be used.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    /// The file is missing although it was named, or the system refuses to read it.
    #[error("cannot read the configuration file {}: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: io::Error },
    /// The file is not TOML, or a key or value in it is not one of ours.
    #[error("{}:{line}: {message}", path.display())]
    Invalid { path: PathBuf, line: usize, message: String },
}

/// What the configuration files say together.
#[derive(Debug, Default)]
pub(crate) struct Configuration {
    pub(crate) settings: Settings,
    /// The files that were found and what each says, the most important first.
    pub(crate) files: Vec<(PathBuf, Settings)>,
}

impl Configuration {
    /// Reads the file given by `--config`, if any, and those that `environment` leads to.
    ///
    /// # Errors
    ///
    /// The first mistake in the most important file that has one.
    pub(crate) fn load(
        named: Option<&Path>,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ConfigError> {
        let (configuration, errors) = Self::examine(named, environment);
        errors.into_iter().next().map_or(Ok(configuration), Err)
    }

    /// The same, with all mistakes. What is right is in the configuration.
    pub(crate) fn examine(
        named: Option<&Path>,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> (Self, Vec<ConfigError>) {
        Self::of(candidates(named, environment))
    }

    /// What the files at these places say, the most important first, with all mistakes.
    pub(crate) fn of(candidates: Vec<Candidate>) -> (Self, Vec<ConfigError>) {
        Self::read_by(candidates, |candidate| {
            // A home directory that this user may not enter is none of theirs; a file that is
            // seen but may not be read is a mistake.
            let is_there = candidate.required || std::fs::metadata(&candidate.path).is_ok();
            is_there.then(|| std::fs::read_to_string(&candidate.path))
        })
    }

    /// The same as another user reads them; `None`: there is none.
    pub(crate) fn read_by(
        candidates: Vec<Candidate>,
        read: impl Fn(&Candidate) -> Option<io::Result<String>>,
    ) -> (Self, Vec<ConfigError>) {
        let (mut configuration, mut errors) = (Self::default(), Vec::new());
        for candidate in candidates {
            let Some(read) = read(&candidate) else { continue };
            let path = candidate.path;
            let text = match read {
                Ok(text) => text,
                Err(reason) => {
                    errors.push(ConfigError::Unreadable { path, reason });
                    continue;
                }
            };
            let (settings, faults) = parse(&text);
            errors.extend(faults.into_iter().map(|fault| ConfigError::Invalid {
                path: path.clone(),
                line: line_of(&text, fault.offset),
                message: fault.message,
            }));
            configuration.settings = configuration.settings.or(settings.clone());
            configuration.files.push((path, settings));
        }
        (configuration, errors)
    }
}

/// A place where a configuration file may be, or must be if `required`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    required: bool,
}

impl Candidate {
    /// Whether that there is no such file is a mistake.
    pub(crate) fn is_required(&self) -> bool {
        self.required
    }
}

/// The places, the most important first.
pub(crate) fn candidates(
    named: Option<&Path>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Vec<Candidate> {
    // An empty variable counts as unset, as in the XDG base directory specification.
    let variable = |name| environment(name).filter(|value| !value.is_empty());
    // The same specification: a relative path in XDG_CONFIG_HOME is to be ignored.
    let user_directory = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".config")));

    let required = |path| Candidate { path, required: true };
    let optional = |directory: PathBuf| Candidate {
        path: directory.join("sidestep/sidestep.toml"),
        required: false,
    };
    let named = named.map(Path::to_owned).map(required);
    let variable = variable("SIDESTEP_CONFIG").map(PathBuf::from).map(required);
    let user = user_directory.map(optional);
    let machine = optional("/etc".into());
    named.into_iter().chain(variable).chain(user).chain([machine]).collect()
}

/// The line, counted from 1, that holds the byte at `offset`.
fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|&c| c == b'\n').count()
}

/// What is wrong in a file, and at which byte.
#[derive(Debug)]
struct Fault {
    offset: usize,
    message: String,
}

/// A key of a table.
pub(crate) struct Key {
    name: &'static str,
    /// Puts a value into the settings. The error is a sentence without the key.
    set: fn(&mut Settings, &DeValue<'_>) -> Result<(), String>,
    /// The value in the settings, if there is one.
    get: fn(&Settings) -> Option<String>,
}

/// Every table and key a file may hold beside [`PNET`], [`TLS`] and [`VIP`].
const TABLES: &[(&str, &[Key])] = &[
    (
        "smc",
        &[
            Key {
                name: "mode",
                set: |s, v| keyword(v).map(|v| s.mode = Some(v)),
                get: |s| s.mode.as_ref().map(words::keyword),
            },
            Key {
                name: "promotion",
                set: |s, v| keyword(v).map(|v| s.promotion = Some(v)),
                get: |s| s.promotion.as_ref().map(words::keyword),
            },
            Key {
                name: "autosmc",
                set: |s, v| boolean(v).map(|v| s.autosmc = Some(v)),
                get: |s| s.autosmc.map(|on| on.to_string()),
            },
            Key {
                name: "autocache",
                set: |s, v| boolean(v).map(|v| s.autocache = Some(v)),
                get: |s| s.autocache.map(|on| on.to_string()),
            },
            Key {
                name: "rmbe_size",
                set: |s, v| rmbe_size(v).map(|v| s.rmbe_size = Some(v)),
                get: |s| s.rmbe_size.map(|size| shown_size(size.bytes().into())),
            },
            Key {
                name: "spin",
                set: |s, v| keyword(v).map(|v| s.spin = Some(v)),
                get: |s| s.spin.as_ref().map(words::keyword),
            },
            Key {
                name: "memory_limit",
                set: |s, v| memory_limit(v, MemoryLimit::ALLOWED).map(|v| s.memory_limit = Some(v)),
                get: |s| s.memory_limit.map(|limit| shown_size(limit.bytes())),
            },
            Key {
                name: "user_memory_limit",
                set: |s, v| {
                    let limit = memory_limit(v, MemoryLimit::ALLOWED_FOR_USER);
                    limit.map(|v| s.user_memory_limit = Some(v))
                },
                get: |s| s.user_memory_limit.map(|limit| shown_size(limit.bytes())),
            },
            Key {
                name: "agent_socket",
                set: |s, v| agent_socket(v).map(|v| s.agent_socket = Some(v)),
                get: |s| s.agent_socket.as_ref().map(|path| path.display().to_string()),
            },
            Key {
                name: "eid",
                set: |s, v| eids(v).map(|v| s.eid = Some(v)),
                get: |s| s.eid.as_ref().map(Eids::to_string),
            },
            Key {
                name: "seid",
                set: |s, v| boolean(v).map(|v| s.seid = Some(v)),
                get: |s| s.seid.map(|on| on.to_string()),
            },
        ],
    ),
    (
        "policy",
        &[
            Key {
                name: "exclude_ports",
                set: |s, v| list(v, port_range).map(|v| s.exclude_ports = Some(v)),
                get: |s| s.exclude_ports.as_ref().map(|list| listed(list, ", ")),
            },
            Key {
                name: "permit_peers",
                set: |s, v| list(v, subnet).map(|v| s.permit_peers = Some(v)),
                get: |s| s.permit_peers.as_ref().map(|list| listed(list, ", ")),
            },
            Key {
                name: "exclude_peers",
                set: |s, v| list(v, subnet).map(|v| s.exclude_peers = Some(v)),
                get: |s| s.exclude_peers.as_ref().map(|list| listed(list, ", ")),
            },
            Key {
                name: "share_with_users",
                set: |s, v| list(v, user).map(|v| s.share_with_users = Some(v)),
                get: |s| s.share_with_users.as_ref().map(|list| listed(list, ", ")),
            },
            Key {
                name: "share_with_groups",
                set: |s, v| groups(v).map(|v| s.share_with_groups = Some(v)),
                get: |s| s.share_with_groups.as_ref().map(|list| listed(list, ", ")),
            },
            Key {
                name: "handshake_limit",
                set: |s, v| handshake_limit(v).map(|v| s.handshake_limit = Some(v)),
                get: |s| s.handshake_limit.map(|limit| limit.to_string()),
            },
            Key {
                name: "exclude_programs",
                set: |s, v| list(v, program_name).map(|v| s.exclude_programs = Some(v)),
                get: |s| s.exclude_programs.as_ref().map(|list| listed(list, ", ")),
            },
            Key {
                name: "trust_filters",
                set: |s, v| boolean(v).map(|v| s.trust_filters = Some(v)),
                get: |s| s.trust_filters.map(|trust| trust.to_string()),
            },
        ],
    ),
    (
        "log",
        &[
            Key {
                name: "level",
                set: |s, v| keyword(v).map(|v| s.log_level = Some(v)),
                get: |s| s.log_level.as_ref().map(words::keyword),
            },
            Key {
                name: "file",
                set: |s, v| absolute_path(v).map(|v| s.log_file = Some(v)),
                get: |s| s.log_file.as_ref().map(|path| path.display().to_string()),
            },
        ],
    ),
    (
        "agent",
        &[Key {
            name: "metrics",
            set: |s, v| metrics_address(v).map(|v| s.agent_metrics = Some(v)),
            get: |s| s.agent_metrics.as_ref().map(MetricsAddress::to_string),
        }],
    ),
    (
        "share",
        &[
            Key {
                name: "all",
                set: |s, v| boolean(v).map(|v| s.share_all = Some(v)),
                get: |s| s.share_all.map(|all| all.to_string()),
            },
            Key {
                name: "groups",
                set: |s, v| list(v, group).map(|v| s.share_groups = Some(v)),
                get: |s| s.share_groups.as_ref().map(|list| listed(list, ", ")),
            },
            Key {
                name: "pairs",
                set: |s, v| list(v, pair).map(|v| s.share_pairs = Some(v)),
                get: |s| s.share_pairs.as_ref().map(|list| listed(list, ", ")),
            },
        ],
    ),
    (
        "filter",
        &[
            Key {
                name: "file",
                set: |s, v| absolute_path(v).map(|v| s.filter_file = Some(v)),
                get: |s| s.filter_file.as_ref().map(|path| path.display().to_string()),
            },
            Key {
                name: "rules",
                set: |s, v| lines(v).map(|v| s.filter_rules = Some(v)),
                get: |s| s.filter_rules.as_ref().map(|lines| filter_rules::shown(lines)),
            },
            Key {
                name: "forwarded",
                set: |s, v| list(v, interface).map(|v| s.filter_forwarded = Some(v)),
                get: |s| s.filter_forwarded.as_ref().map(|list| listed(list, ", ")),
            },
        ],
    ),
    (
        "distributor",
        &[
            Key {
                name: "interface",
                set: |s, v| interface(v).map(|v| s.interface = Some(v.to_string())),
                get: |s| s.interface.clone(),
            },
            Key {
                name: "hosts",
                set: |s, v| list(v, host).map(|v| s.hosts = Some(v)),
                get: |s| s.hosts.as_ref().map(|list| listed(list, ", ")),
            },
            Key {
                name: "store",
                set: |s, v| list(v, store_address).map(|v| s.store = Some(v)),
                get: |s| s.store.as_ref().map(|list| listed(list, ", ")),
            },
            Key {
                name: "store_ca",
                set: |s, v| absolute_path(v).map(|v| s.store_ca = Some(v)),
                get: |s| s.store_ca.as_ref().map(|path| path.display().to_string()),
            },
            Key {
                name: "store_certificate",
                set: |s, v| absolute_path(v).map(|v| s.store_certificate = Some(v)),
                get: |s| s.store_certificate.as_ref().map(|path| path.display().to_string()),
            },
            Key {
                name: "store_key",
                set: |s, v| absolute_path(v).map(|v| s.store_key = Some(v)),
                get: |s| s.store_key.as_ref().map(|path| path.display().to_string()),
            },
            Key {
                name: "store_user_file",
                set: |s, v| absolute_path(v).map(|v| s.store_user_file = Some(v)),
                get: |s| s.store_user_file.as_ref().map(|path| path.display().to_string()),
            },
            Key {
                name: "rank",
                set: |s, v| rank(v).map(|v| s.rank = Some(v)),
                get: |s| s.rank.map(|rank| rank.to_string()),
            },
            Key {
                name: "switch_back",
                set: |s, v| boolean(v).map(|v| s.switch_back = Some(v)),
                get: |s| s.switch_back.map(|it| it.to_string()),
            },
            Key {
                name: "path",
                set: |s, v| keyword(v).map(|v| s.path = Some(v)),
                get: |s| s.path.as_ref().map(words::keyword),
            },
        ],
    ),
    (
        "smc-r",
        &[
            Key {
                name: "adapters",
                set: |s, v| list(v, adapter).map(|v| s.adapters = Some(v)),
                get: |s| s.adapters.as_ref().map(|list| listed(list, ", ")),
            },
            Key {
                name: "faults",
                set: |s, v| fault_plan(v).map(|v| s.faults = Some(v)),
                get: |s| s.faults.as_ref().map(FaultPlan::to_string),
            },
        ],
    ),
];

/// The table with a table for each PNET ID. A file that has it hides that of less important
/// files as a whole, so it counts as one key.
const PNET: &str = "pnet";

/// A key with its table, as `smc.mode`, and how to read its value.
type Shown = (String, fn(&Settings) -> Option<String>);

/// All keys.
pub(crate) fn keys() -> impl Iterator<Item = Shown> {
    let fixed = TABLES.iter().flat_map(|(table, keys)| {
        keys.iter().map(move |key| -> Shown { (format!("{table}.{}", key.name), key.get) })
    });
    let pnet: Shown = (PNET.to_owned(), |s| s.pnet.as_ref().map(Networks::to_string));
    let vips: Shown = (VIP.to_owned(), |s| s.vips.as_ref().map(vip::shown));
    let tls: Shown = (TLS.to_owned(), |s| s.tls.as_ref().map(|rules| tls::shown(rules)));
    fixed.chain([pnet, vips, tls])
}

/// Reads what is right, and says what is not.
fn parse(text: &str) -> (Settings, Vec<Fault>) {
    let mut settings = Settings::default();
    let document = match DeTable::parse(text) {
        Ok(document) => document,
        Err(error) => {
            let offset = error.span().map_or(0, |span| span.start);
            return (settings, vec![Fault { offset, message: error.message().to_owned() }]);
        }
    };
    let mut faults = Vec::new();
    for (name, value) in document.get_ref() {
        let mut fault = |offset, message| faults.push(Fault { offset, message });
        let known = TABLES.iter().map(|(known, _)| *known).chain([PNET, VIP, TLS]);
        let Some(table_name) = known.clone().find(|known| known == name.get_ref()) else {
            fault(name.span().start, unknown("table", name.get_ref(), known));
            continue;
        };
        let DeValue::Table(table) = value.get_ref() else {
            fault(name.span().start, format!("{table_name}: expected a table: [{table_name}]"));
            continue;
        };
        let Some((_, keys)) = TABLES.iter().find(|(known, _)| *known == table_name) else {
            match table_name {
                VIP => settings.vips = vip::set(table, &mut fault),
                TLS => settings.tls = tls::rules(table, &mut fault),
                _ => settings.pnet = Some(networks(table, &mut fault)),
            }
            continue;
        };
        for (name, value) in table {
            let Some(key) = keys.iter().find(|key| key.name == name.get_ref()) else {
                let message = unknown("key", name.get_ref(), keys.iter().map(|key| key.name));
                fault(name.span().start, format!("{table_name}.{message}"));
                continue;
            };
            if let Err(message) = (key.set)(&mut settings, value.get_ref()) {
                fault(value.span().start, format!("{table_name}.{}: {message}", key.name));
            }
        }
    }
    if let Some(lines) = &mut settings.filter_rules {
        let at = document.get_ref()["filter"].get_ref()["rules"].span().start;
        *lines = filter_rules::at_their_lines(lines, &text[..at], &text[at..]);
        let fault = |offset, message| faults.push(Fault { offset, message });
        filter_rules::check(lines, text, fault);
    }
    faults.sort_by_key(|fault| fault.offset);
    (settings, faults)
}

/// Reads the table [`PNET`]; `fault` takes what is wrong in it.
fn networks(table: &DeTable<'_>, mut fault: impl FnMut(usize, String)) -> Networks {
    let mut networks = Networks::default();
    for (name, value) in table {
        let (at, path) = (name.span().start, format!("{PNET}.{}", name.get_ref()));
        let Some(id) = PnetId::new(name.get_ref()) else {
            fault(at, format!("{path}: not a PNET ID; use {}", PnetId::ALLOWED));
            continue;
        };
        let DeValue::Table(table) = value.get_ref() else {
            fault(at, format!("{path}: expected a table: [{path}]"));
            continue;
        };
        let mut is_right = true;
        let network = network(id, table, |at, message| {
            is_right = false;
            fault(at, format!("{path}.{message}"));
        });
        if is_right && let Err(message) = networks.add(network) {
            fault(at, format!("{path}: {message}"));
        }
    }
    networks
}

fn network(id: PnetId, table: &DeTable<'_>, mut fault: impl FnMut(usize, String)) -> Network {
    const KEYS: [&str; 2] = ["interfaces", "devices"];
    let mut network = Network { id, interfaces: Vec::new(), devices: Vec::new() };
    for (name, value) in table {
        let read = match name.get_ref().as_ref() {
            "interfaces" => list(value.get_ref(), interface).map(|v| network.interfaces = v),
            "devices" => list(value.get_ref(), keyword).map(|v| network.devices = v),
            other => {
                fault(name.span().start, unknown("key", other, KEYS.into_iter()));
                continue;
            }
        };
        if let Err(message) = read {
            fault(value.span().start, format!("{}: {message}", name.get_ref()));
        }
    }
    network
}

fn interface(value: &DeValue<'_>) -> Result<Interface, String> {
    let text = value.as_str().unwrap_or_default();
    text.parse().map_err(|error| format!("{} is not allowed; {error}", shown(value)))
}

fn keyword<T: ValueEnum>(value: &DeValue<'_>) -> Result<T, String> {
    // A value that is not a string is no keyword either, so it gets the same list of words.
    parse_keyword(value.as_str().unwrap_or(value.type_str()))
}

fn rmbe_size(value: &DeValue<'_>) -> Result<RmbeSize, String> {
    bytes(value)
        .and_then(RmbeSize::new)
        .ok_or_else(|| format!("{} is not allowed; use {}", shown(value), RmbeSize::ALLOWED))
}

fn memory_limit(value: &DeValue<'_>, allowed: &str) -> Result<MemoryLimit, String> {
    bytes(value)
        .and_then(MemoryLimit::new)
        .ok_or_else(|| format!("{} is not allowed; use {allowed}", shown(value)))
}

fn handshake_limit(value: &DeValue<'_>) -> Result<u32, String> {
    let number = match value {
        DeValue::Integer(number) => number.to_string().parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| {
        format!("{} is not allowed; use 0 (no limit), or a number of connections", shown(value))
    })
}

/// One EID, or a list of them.
fn eids(value: &DeValue<'_>) -> Result<Eids, String> {
    let eids = match value {
        DeValue::Array(_) => list(value, eid)?,
        _ => vec![eid(value)?],
    };
    Eids::new(eids).ok_or_else(|| format!("use 1 to {UEIDS_MAX} enterprise IDs"))
}

fn eid(value: &DeValue<'_>) -> Result<Eid, String> {
    value
        .as_str()
        .and_then(Eid::new)
        .ok_or_else(|| format!("{} is not allowed; use {}", shown(value), Eid::ALLOWED))
}

fn agent_socket(value: &DeValue<'_>) -> Result<PathBuf, String> {
    let path = absolute_path(value)?;
    if path.as_os_str().len() > AGENT_SOCKET_LEN_MAX {
        return Err(format!("{} is not allowed; use a shorter path", shown(value)));
    }
    Ok(path)
}

fn lines(value: &DeValue<'_>) -> Result<String, String> {
    let text = value.as_str().map(ToOwned::to_owned);
    text.ok_or_else(|| {
        format!("{} is not allowed; use text, with a rule in each line", shown(value))
    })
}

fn metrics_address(value: &DeValue<'_>) -> Result<MetricsAddress, String> {
    let not_text = || format!("{} is not allowed; use {}", shown(value), MetricsAddress::ALLOWED);
    let text = value.as_str().ok_or_else(not_text)?;
    text.parse().map_err(|error: MetricsAddressError| error.to_string())
}

fn adapter(value: &DeValue<'_>) -> Result<AdapterChoice, String> {
    let choice = value.as_str().and_then(|text| text.parse().ok());
    let choice = choice.filter(|choice| match choice {
        AdapterChoice::Port { .. } => true,
        AdapterChoice::Device(spot) | AdapterChoice::Soft(spot) => match spot {
            Spot::Address(_) => true,
            Spot::Interface(name) => name.parse::<Interface>().is_ok(),
        },
    });
    choice.ok_or_else(|| {
        format!(
            "{} is not allowed; use an address of this host, an interface, or a port of an RDMA \
             device as `rdma link` names it, such as \"mlx5_0/1\"; for a soft RNIC, \"soft:eth0\"",
            shown(value)
        )
    })
}

fn fault_plan(value: &DeValue<'_>) -> Result<FaultPlan, String> {
    let plan = value.as_str().unwrap_or_default().parse();
    plan.map_err(|reason| format!("{} is not allowed; {reason}", shown(value)))
}

fn groups(value: &DeValue<'_>) -> Result<Vec<Group>, String> {
    let groups = list(value, group)?;
    let members: usize = groups.iter().map(|group| group.members().len()).sum();
    if members > MEMBERS_MAX {
        return Err(format!(
            "{members} members are too many; use groups with at most {MEMBERS_MAX}"
        ));
    }
    Ok(groups)
}

fn group(value: &DeValue<'_>) -> Result<Group, String> {
    let (text, number) = name_or_number(value);
    Group::find(&text, number)
        .ok_or_else(|| format!("{} is not allowed; use {}", shown(value), Group::ALLOWED))
}

fn pair(value: &DeValue<'_>) -> Result<Pair, String> {
    let users: Result<[User; 2], _> = list(value, user)?.try_into();
    users
        .map(Pair)
        .map_err(|users| format!("{} users are not allowed; use {}", users.len(), Pair::ALLOWED))
}

fn store_address(value: &DeValue<'_>) -> Result<StoreAddress, String> {
    let text = value.as_str().unwrap_or_default();
    text.parse().map_err(|error| format!("{} {error}", shown(value)))
}

/// The address of a host.
fn host(value: &DeValue<'_>) -> Result<IpAddr, String> {
    let host: Option<IpAddr> = value.as_str().and_then(|text| text.parse().ok());
    host.map(|host| host.to_canonical()).ok_or_else(|| {
        format!("{} is not allowed; use the address of a host, such as \"10.0.0.7\"", shown(value))
    })
}

/// The rank of a distributor.
fn rank(value: &DeValue<'_>) -> Result<u32, String> {
    let rank = match value {
        DeValue::Integer(number) => number.to_string().parse().ok(),
        _ => None,
    };
    rank.filter(|rank| *rank <= 1000).ok_or_else(|| {
        format!("{} is not allowed; use a whole number from 0 to 1000", shown(value))
    })
}

/// A number of bytes: an integer, or a string such as `"64KB"`. One KB is 1024 bytes.
fn bytes(value: &DeValue<'_>) -> Option<u64> {
    match value {
        DeValue::Integer(integer) => u64::from_str_radix(integer.as_str(), integer.radix()).ok(),
        DeValue::String(text) => parse_size(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::User;
    use crate::options::{DataPath, LogLevel, Mode, ProgramName, Promotion, Spin};
    use crate::pnet::Device;
    use sidestep_distributor::VipSet;

    /// The error text for a file with this content, without the directory.
    fn error(content: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sidestep.toml");
        std::fs::write(&path, content).unwrap();
        let error = Configuration::load(Some(&path), |_| None).unwrap_err();
        error.to_string().replace(&format!("{}/", directory.path().display()), "")
    }

    fn network_of_ism(interfaces: &[&str]) -> Networks {
        let mut networks = Networks::default();
        let interfaces = interfaces.iter().map(|name| name.parse().unwrap()).collect();
        let id = PnetId::new("NET1").unwrap();
        networks.add(Network { id, interfaces, devices: vec![Device::Ism] }).unwrap();
        networks
    }

    #[test]
    fn every_key_is_understood() {
        let (settings, faults) = parse(
            r#"
            [smc]
            mode = "tcp"
            promotion = "lazy"
            autosmc = false
            autocache = false
            rmbe_size = "128KB"
            spin = "never"
            memory_limit = "256 MiB"
            user_memory_limit = "1GB"
            agent_socket = "/run/broker.sock"
            eid = ["PROD-1", "TEST"]
            seid = true
            [policy]
            handshake_limit = 64
            exclude_ports = [22, "6000-6010"]
            permit_peers = ["10.0.0.0/8"]
            exclude_peers = ["10.1.0.0/16", "::1"]
            share_with_users = ["root", 1001]
            share_with_groups = [0, 1002]
            exclude_programs = ["sshd"]
            trust_filters = true
            [pnet.net1]
            interfaces = ["eth0", "lo"]
            devices = ["ism"]
            [log]
            level = "debug"
            file = "/var/log/sidestep.log"
            [agent]
            metrics = "127.0.0.1:9464"
            [share]
            all = false
            groups = [0]
            pairs = [["root", 1001]]
            [filter]
            file = "/etc/sidestep/rules"
            rules = "default deny"
            forwarded = ["eth0", "eth1"]
            [distributor]
            interface = "eth0"
            hosts = ["10.0.0.7", "fd00::7"]
            store = ["https://10.0.0.5:2379"]
            store_ca = "/etc/sidestep/etcd-ca.pem"
            store_certificate = "/etc/sidestep/etcd.pem"
            store_key = "/etc/sidestep/etcd.key"
            store_user_file = "/etc/sidestep/etcd-user"
            rank = 100
            switch_back = true
            path = "xdp-generic"
            [smc-r]
            adapters = ["10.0.0.1", "soft:eth1"]
            faults = "loss=1%"
            [vip]
            [tls]
            "#,
        );
        assert!(faults.is_empty(), "{faults:?}");
        let expected = Settings {
            mode: Some(Mode::Tcp),
            promotion: Some(Promotion::Lazy),
            autosmc: Some(false),
            autocache: Some(false),
            rmbe_size: RmbeSize::new(128 << 10),
            spin: Some(Spin::Never),
            memory_limit: MemoryLimit::new(256 << 20),
            user_memory_limit: MemoryLimit::new(1 << 30),
            agent_socket: Some("/run/broker.sock".into()),
            eid: Eids::new(["PROD-1", "TEST"].map(|name| Eid::new(name).unwrap()).to_vec()),
            seid: Some(true),
            handshake_limit: Some(64),
            exclude_ports: Some(vec!["22".parse().unwrap(), "6000-6010".parse().unwrap()]),
            permit_peers: Some(vec!["10.0.0.0/8".parse().unwrap()]),
            exclude_peers: Some(vec!["10.1.0.0/16".parse().unwrap(), "::1/128".parse().unwrap()]),
            share_with_users: ["root", "1001"]
                .map(|name| User::find(name, name.parse().ok()))
                .into_iter()
                .collect(),
            share_with_groups: [0, 1002]
                .map(|gid| Group::find(&gid.to_string(), Some(gid)))
                .into_iter()
                .collect(),
            exclude_programs: ProgramName::new("sshd").map(|name| vec![name]),
            trust_filters: Some(true),
            pnet: Some(network_of_ism(&["eth0", "lo"])),
            assessor: None,
            log_level: Some(LogLevel::Debug),
            log_file: Some("/var/log/sidestep.log".into()),
            agent_metrics: "127.0.0.1:9464".parse().ok(),
            filter_file: Some("/etc/sidestep/rules".into()),
            share_all: Some(false),
            share_groups: Group::find("0", Some(0)).map(|group| vec![group]),
            share_pairs: Some(vec![Pair(
                ["root", "1001"].map(|name| User::find(name, name.parse().ok()).unwrap()),
            )]),
            filter_rules: Some(format!("{}default deny", "\n".repeat(36))),
            filter_forwarded: Some(["eth0", "eth1"].map(|name| name.parse().unwrap()).to_vec()),
            adapters: Some(["10.0.0.1", "soft:eth1"].map(|text| text.parse().unwrap()).to_vec()),
            faults: "loss=1%".parse().ok(),
            vips: Some(VipSet::default()),
            tls: Some(Vec::new()),
            interface: Some("eth0".to_owned()),
            hosts: Some(["10.0.0.7", "fd00::7"].map(|text| text.parse().unwrap()).to_vec()),
            store: Some(vec!["https://10.0.0.5:2379".parse().unwrap()]),
            store_ca: Some("/etc/sidestep/etcd-ca.pem".into()),
            store_certificate: Some("/etc/sidestep/etcd.pem".into()),
            store_key: Some("/etc/sidestep/etcd.key".into()),
            store_user_file: Some("/etc/sidestep/etcd-user".into()),
            rank: Some(100),
            switch_back: Some(true),
            path: Some(DataPath::XdpGeneric),
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn a_pair_is_of_two_users() {
        assert_eq!(
            error("[share]\npairs = [[\"root\"]]\n"),
            "sidestep.toml:2: share.pairs: 1 users are not allowed; use a list of two users: \
             [\"redis\", \"www-data\"]"
        );
        let (settings, _) = parse("[share]\npairs = [[\"root\", 7]]\ngroups = [5]\n");
        assert!(settings.has_share_policy() && !Settings::default().has_share_policy());
        let shown: Vec<_> = keys().filter_map(|(key, get)| Some((key, get(&settings)?))).collect();
        let expected = [("share.groups", "5"), ("share.pairs", "root with 7")];
        assert_eq!(shown, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }

    #[test]
    fn sizes_are_integers_or_strings_with_a_unit() {
        let size = |text: &str| bytes(DeValue::parse(text).unwrap().get_ref());
        assert_eq!(size("65536"), Some(65_536));
        assert_eq!(size("65_536"), Some(65_536));
        assert_eq!(size("0x10000"), Some(65_536));
        for same in ["\"64KB\"", "\"64k\"", "\"64 KiB\"", "\"65536\"", "\"65536B\""] {
            assert_eq!(size(same), Some(65_536), "{same}");
        }
        for bad in ["-1", "1.5", "\"KB\"", "\"-1KB\"", "\"64TB\"", "\"99999999999G\"", "true"] {
            assert_eq!(size(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_unknown_key_suggests_the_nearest() {
        assert_eq!(
            error("[smc]\nmode = \"smc\"\nrmb_size = 1\n"),
            "sidestep.toml:3: smc.rmb_size: unknown key; did you mean `rmbe_size`? \
             (known: mode, promotion, autosmc, autocache, rmbe_size, spin, memory_limit, user_memory_limit, agent_socket, eid, seid)"
        );
        assert_eq!(
            error("[log]\ncolour = true\n"),
            "sidestep.toml:2: log.colour: unknown key (known: level, file)"
        );
        assert_eq!(
            error("\n[lgo]\n"),
            "sidestep.toml:2: lgo: unknown table (known: smc, policy, log, agent, share, filter, distributor, smc-r, pnet, vip, tls)"
        );
    }

    #[test]
    fn a_wrong_value_names_key_line_and_what_is_allowed() {
        assert_eq!(
            error("[smc]\n\nmode = \"shm\"\n"),
            "sidestep.toml:3: smc.mode: `shm` is not one of: smc, tcp"
        );
        assert_eq!(
            error("[smc]\nrmbe_size = \"48KB\"\n"),
            "sidestep.toml:2: smc.rmbe_size: `48KB` is not allowed; \
             use 32KB, 64KB, 128KB, 256KB, 512KB or 1MB"
        );
        assert_eq!(
            error("[smc]\nmemory_limit = 4096\n"),
            "sidestep.toml:2: smc.memory_limit: 4096 is not allowed; \
             use 0 (what the control group bears), or at least 2MB, such as 256MB"
        );
        assert_eq!(
            error("smc.eid = \"prod\"\n"),
            "sidestep.toml:1: smc.eid: `prod` is not allowed; \
             use 1 to 32 characters from A-Z, 0-9, `.` and `-`, the first a letter or digit"
        );
        assert_eq!(
            error("[log]\nfile = \"sidestep.log\"\n"),
            "sidestep.toml:2: log.file: `sidestep.log` is not allowed; use an absolute path"
        );
        assert_eq!(
            error("[smc]\nspin = true\n"),
            "sidestep.toml:2: smc.spin: `boolean` is not one of: auto, never, always"
        );
        assert_eq!(error("smc = 1\n"), "sidestep.toml:1: smc: expected a table: [smc]");
    }

    #[test]
    fn wrong_entries_of_a_list_say_what_would_do() {
        assert_eq!(
            error("[policy]\nexclude_ports = [22, 0]\n"),
            "sidestep.toml:2: policy.exclude_ports: 0 is not allowed; \
             use a port from 1 to 65535, or a range such as \"6000-6010\""
        );
        assert_eq!(
            error("[policy]\npermit_peers = [\"10.1.2.3/8\"]\n"),
            "sidestep.toml:2: policy.permit_peers: `10.1.2.3/8` is not allowed; \
             the address has bits beyond the prefix; the subnet is \"10.0.0.0/8\""
        );
        assert_eq!(
            error("[policy]\nexclude_peers = \"::1\"\n"),
            "sidestep.toml:2: policy.exclude_peers: `::1` is not allowed; use a list: [...]"
        );
        assert_eq!(
            error("[policy]\nexclude_programs = [\"/bin/sh\"]\n"),
            "sidestep.toml:2: policy.exclude_programs: `/bin/sh` is not allowed; \
             use the name of a program, such as `sshd`, without a path, spaces or commas"
        );
        let many = format!("[policy]\nexclude_ports = [{}]\n", "1,".repeat(33));
        assert!(error(&many).ends_with("33 entries are too many; use at most 32"));
    }

    #[test]
    fn wrong_pnet_ids_say_what_would_do() {
        assert_eq!(
            error("[pnet.NET-1]\ndevices = []\n"),
            "sidestep.toml:1: pnet.NET-1: not a PNET ID; use 1 to 16 characters from A-Z and 0-9"
        );
        assert_eq!(
            error("[pnet]\nNET1 = [\"eth0\"]\n"),
            "sidestep.toml:2: pnet.NET1: expected a table: [pnet.NET1]"
        );
        assert_eq!(
            error("[pnet.NET1]\ninterface = []\n"),
            "sidestep.toml:2: pnet.NET1.interface: unknown key; did you mean `interfaces`? \
             (known: interfaces, devices)"
        );
        assert_eq!(
            error("[pnet.NET1]\ninterfaces = [\"eth0\"]\ndevices = [\"mlx5_0\"]\n"),
            "sidestep.toml:3: pnet.NET1.devices: `mlx5_0` is not one of: ism"
        );
        assert_eq!(
            error("[pnet.NET1]\ninterfaces = [\"eth0:1\"]\n"),
            "sidestep.toml:2: pnet.NET1.interfaces: `eth0:1` is not allowed; use the name of a \
             network interface, such as `eth0`: 15 characters at most, without spaces, commas, \
             `:` and `/`"
        );
        assert_eq!(
            error("[pnet.A]\ninterfaces = [\"lo\"]\n[pnet.B]\ninterfaces = [\"eth0\", \"lo\"]\n"),
            "sidestep.toml:3: pnet.B: `lo` has the PNET ID A already, and one at most"
        );
        let nothing = error("[pnet.A]\ndevices = [\"ism\"]\n");
        assert!(nothing.starts_with("sidestep.toml:1: pnet.A: devices without"), "{nothing}");
    }

    #[test]
    fn a_table_of_pnet_ids_hides_a_less_important_one() {
        let pnet = |text| parse(text).0.pnet;
        let lower = pnet("[pnet.NET1]\ninterfaces = [\"lo\"]\ndevices = [\"ism\"]\n");
        assert_eq!(lower, Some(network_of_ism(&["lo"])));
        assert_eq!(pnet("[pnet]\n").or(lower), Some(Networks::default()));
        assert_eq!(pnet(""), None);
    }

    #[test]
    fn every_mistake_is_found_and_what_is_right_is_kept() {
        let (settings, faults) = parse("[smc]\nmode = 1\nspin = \"never\"\n[lgo]\nx = 1\n");
        assert_eq!(settings.spin, Some(Spin::Never));
        let offsets: Vec<_> = faults.iter().map(|fault| fault.offset).collect();
        assert_eq!((offsets.len(), offsets.is_sorted()), (2, true));
    }

    #[test]
    fn every_key_shows_its_value() {
        let all = Settings::from(Settings::default().into_options());
        let unset: Vec<_> =
            keys().filter(|(_, get)| get(&all).is_none()).map(|(key, _)| key).collect();
        assert_eq!(
            unset,
            [
                "log.file",
                "agent.metrics",
                "share.all",
                "share.groups",
                "share.pairs",
                "filter.file",
                "filter.rules",
                "filter.forwarded",
                "distributor.interface",
                "distributor.hosts",
                "distributor.store",
                "distributor.store_ca",
                "distributor.store_certificate",
                "distributor.store_key",
                "distributor.store_user_file",
                "distributor.rank",
                "distributor.switch_back",
                "distributor.path",
                "smc-r.adapters",
                "smc-r.faults",
                "vip"
            ]
        );
    }

    #[test]
    fn what_is_not_toml_is_reported_with_its_line() {
        let error = error("[smc]\nmode = smc\n");
        assert!(error.starts_with("sidestep.toml:2: "), "{error}");
    }

    #[test]
    fn a_named_file_must_be_readable() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("none.toml");
        let error = Configuration::load(Some(&missing), |_| None).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "cannot read the configuration file {}: No such file or directory (os error 2)",
                missing.display()
            )
        );
        let missing = missing.into_os_string();
        let variable = |name: &str| (name == "SIDESTEP_CONFIG").then(|| missing.clone());
        assert!(Configuration::load(None, variable).is_err());
        assert!(Configuration::load(Some(directory.path()), |_| None).is_err());
    }

    #[test]
    fn files_are_laid_over_each_other_key_by_key() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, content).unwrap();
            path
        };
        let named = write("named.toml", "smc.mode = \"tcp\"");
        let variable = write("variable.toml", "smc.mode = \"smc\"\nsmc.spin = \"never\"");
        let user =
            write("config/sidestep/sidestep.toml", "smc.spin = \"always\"\nlog.level = \"info\"");
        let environment = |name: &str| match name {
            "SIDESTEP_CONFIG" => Some(variable.clone().into_os_string()),
            "XDG_CONFIG_HOME" => Some(directory.path().join("config").into_os_string()),
            _ => None,
        };
        let loaded = Configuration::load(Some(&named), environment).unwrap();
        assert_eq!(loaded.settings.mode, Some(Mode::Tcp));
        assert_eq!(loaded.settings.spin, Some(Spin::Never));
        assert_eq!(loaded.settings.log_level, Some(LogLevel::Info));
        let files: Vec<_> = loaded.files.into_iter().map(|(path, _)| path).collect();
        assert_eq!(files[..3], [named, variable, user]);
    }

    #[test]
    fn the_user_directory_follows_xdg() {
        let user = |xdg: &str, home: &str| {
            let environment = |name: &str| match name {
                "XDG_CONFIG_HOME" => Some(xdg.into()),
                "HOME" => Some(home.into()),
                _ => None,
            };
            let mut paths = candidates(None, environment).into_iter();
            paths.next().unwrap().path
        };
        let file = "sidestep/sidestep.toml";
        assert_eq!(user("/xdg", "/home/a"), Path::new("/xdg").join(file));
        assert_eq!(user("", "/home/a"), Path::new("/home/a/.config").join(file));
        assert_eq!(user("xdg", "/home/a"), Path::new("/home/a/.config").join(file));
        assert_eq!(user("", ""), Path::new("/etc").join(file));
    }
}
