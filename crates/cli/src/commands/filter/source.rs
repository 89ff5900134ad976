//! Lists in files, and what they come to on this machine.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use sidestep_bpf::{Cgroup, Identity};
use sidestep_filter::{CompileError, Compiled, Group, Groups, Names, RuleList, compile};

use super::answer::FilterError;
use super::groups;
use crate::accounts::User;
use crate::args::ListArgs;
use crate::config::Configuration;
use crate::options::Settings;

/// A list and where it comes from.
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) text: String,
    pub(super) list: RuleList,
}

impl Source {
    /// The list that the command line or the configuration names.
    pub(super) fn named(args: &ListArgs) -> Result<Self, FilterError> {
        if let Some(path) = &args.file {
            return Self::read(path);
        }
        let environment = |name: &str| std::env::var_os(name);
        let Configuration { settings, files } =
            Configuration::load(args.config.as_deref(), environment)?;
        match (settings.filter_file, settings.filter_rules) {
            (Some(_), Some(_)) => Err(FilterError::TwoLists),
            (Some(path), None) => Self::read(&path),
            (None, Some(text)) => {
                let has_it = |(_, of_file): &&(PathBuf, Settings)| of_file.filter_rules.is_some();
                let (path, _) = files.iter().find(has_it).expect("a file has set it");
                Self::of(path, text)
            }
            (None, None) => Err(FilterError::NoFile),
        }
    }

    pub(super) fn read(path: &Path) -> Result<Self, FilterError> {
        let text = fs::read_to_string(path).map_err(|error| FilterError::file(path, error))?;
        Self::of(path, text)
    }

    fn of(path: &Path, text: String) -> Result<Self, FilterError> {
        let list = RuleList::parse(&text).map_err(|errors| {
            let lines = errors.iter().map(|error| format!("{}:{error}", path.display()));
            FilterError::List(lines.collect::<Vec<_>>().join("\n"))
        })?;
        Ok(Self { path: path.to_owned(), text, list })
    }

    pub(super) fn compile(&self, machine: &Machine) -> Result<Compiled, FilterError> {
        compile(&self.list, machine).map_err(|error| {
            let at = |rule: usize| format!("{}:{}", self.path.display(), self.list.line_of(rule));
            FilterError::List(match &error {
                CompileError::UnknownInterface { rule, .. }
                | CompileError::UnknownUser { rule, .. }
                | CompileError::UnknownGroup { rule, .. } => format!("{}: {error}", at(*rule)),
                CompileError::Steps { rules, .. } => {
                    let rules = rules
                        .iter()
                        .map(|&rule| format!("\n{}: {}", at(rule), self.list.rules[rule]));
                    format!("{}: {error}{}", self.path.display(), rules.collect::<String>())
                }
            })
        })
    }
}

/// What a list is called in the kernel.
pub(super) fn identity(text: &str) -> Identity {
    let hash = Sha256::digest(text);
    hash[..size_of::<Identity>()].try_into().expect("a hash is longer")
}

/// What names mean here, each asked for once.
#[derive(Default)]
pub(super) struct Machine {
    interfaces: RefCell<HashMap<String, Option<u32>>>,
    users: RefCell<HashMap<String, Option<u32>>>,
    groups: Groups,
}

impl Machine {
    /// With the control groups that a list names, where they are now.
    pub(super) fn here(list: &RuleList) -> Result<Self, FilterError> {
        if list.rules.iter().all(|rule| rule.group.is_none()) {
            return Ok(Self::default());
        }
        let root = Cgroup::root()?;
        Ok(Self::with(Groups::of(list, |unit| groups::place(unit, &root))))
    }

    pub(super) fn with(groups: Groups) -> Self {
        Self { groups, ..Self::default() }
    }

    pub(super) fn groups(&self) -> &Groups {
        &self.groups
    }
}

impl Names for Machine {
    fn interface(&self, name: &str) -> Option<u32> {
        let ask = || nix::net::if_::if_nametoindex(name).ok();
        *self.interfaces.borrow_mut().entry(name.to_owned()).or_insert_with(ask)
    }

    fn user(&self, name: &str) -> Option<u32> {
        let ask = || User::find(name, None).map(|user| user.uid());
        *self.users.borrow_mut().entry(name.to_owned()).or_insert_with(ask)
    }

    fn group(&self, group: &Group) -> Option<RangeInclusive<u32>> {
        self.groups.numbers(group)
    }
}
