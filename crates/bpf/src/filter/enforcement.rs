//! Rules with `tls` alone, without a filter: what leaves on connections that are not protected.
//!
//! The rules are a list as any other, with the same walk, and what they ask of a connection is what a filter asks
//! ([`protection`]):
//!
//! ```text
//!   packet that leaves ──> of TCP, and not protected? ──> walk ──> needs TLS? ──> with bytes? ──> counted, told, dropped
//!                             │ no                           │ no            │ no
//!                             └────────────> passes <────────┴───────────────┘
//! ```
//!
//! Segments without bytes pass: connections begin, and can be passed on before their first byte.
//!
//! Nothing is pinned: the program goes with the process that holds this.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use aya::maps::{Array, MapData, RingBuf};
use aya::programs::{CgroupAttachMode, CgroupSkb, CgroupSkbAttachType};
use aya::{Ebpf, EbpfLoader};
use sidestep_filter::graph::DENIES;

use super::entry::{ENTRY, Entry, Words};
use super::frame::{skb, sock};
use super::hits::{self, HITS};
use super::log::{self, LOG, LogLine};
use super::pins::{of_kernel, of_map};
use super::programs::{self, WAYS, fill};
use super::protection;
use super::rule_set::RuleSet;
use crate::assembler::Register::{R0, R1, R6, R7};
use crate::assembler::{Assembler, Helper};
use crate::error::BpfError;
use crate::loaded::program;
use crate::object_file::{self, Program};

const NAME: &str = "enforce";

/// The rules of a cgroup and those below about which bytes leave: see the [module](self).
pub struct Enforcement {
    /// Program, maps and link: descriptors, closed on drop.
    _loaded: Ebpf,
    hits: Array<MapData, [u64; 2]>,
    /// Of the list.
    rules: usize,
    log: RingBuf<MapData>,
}

impl Enforcement {
    /// Attaches the rules to the cgroup at this path. They name no control groups; those that drop have to be logged to be told.
    ///
    /// # Errors
    /// The kernel refuses or cannot do it ([`BpfError::Privilege`], [`BpfError::Kernel`]); the path is not a cgroup's.
    pub fn attach(cgroup: &Path, rules: &RuleSet<'_>) -> Result<Self, BpfError> {
        let group = File::open(cgroup).map_err(|error| BpfError::of_file(cgroup, error))?;
        let maps = [&programs::set_maps(rules)[..], &log::MAPS].concat();
        let object = object_file::write(&maps, &[program_of(rules)]);
        let mut loaded = EbpfLoader::new()
            .load(&object)
            .map_err(|error| BpfError::of_kernel("load BPF maps", &error))?;
        of_map(fill(&mut loaded, rules.graph))?;
        let mut entry: Array<_, Words> =
            of_map(loaded.map_mut(ENTRY).expect("a map of ours").try_into())?;
        of_map(entry.set(0, Entry::of(rules.graph, rules.rules).0, 0))?;
        let enforce: &mut CgroupSkb = of_kernel(program(&mut loaded, NAME))?;
        of_kernel(enforce.load())?;
        // A link; `Single` is no more than its lack of flags. Links leave room for others.
        let attached =
            enforce.attach(&group, CgroupSkbAttachType::Egress, CgroupAttachMode::Single);
        of_kernel(attached)?;
        let hits = of_map(loaded.take_map(HITS).expect("a map of ours").try_into())?;
        let log = of_map(loaded.take_map(LOG).expect("a map of ours").try_into())?;
        Ok(Self { _loaded: loaded, hits, rules: rules.rules, log })
    }

    /// How many packets a rule has dropped, by its place in the list.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn dropped(&self, rule: usize) -> Result<u64, BpfError> {
        of_map(hits::read_one(&self.hits, self.rules, rule)).map(|hits| hits.count)
    }

    /// Takes the oldest line about a dropped packet that is left.
    pub fn take(&mut self) -> Option<LogLine> {
        self.log.next().map(|item| LogLine::of_item(&item))
    }
}

impl std::fmt::Debug for Enforcement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enforcement").finish_non_exhaustive()
    }
}

/// Becomes readable with a line.
impl AsFd for Enforcement {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.log.as_fd()
    }
}

fn program_of(rules: &RuleSet<'_>) -> Program {
    let [_, way] = WAYS;
    let mut a = Assembler::default();
    a.mov(R6, R1);
    pass_others(&mut a);
    programs::store_key(&mut a, rules, 0, way);
    programs::walk(&mut a, rules.graph.steps());
    protection::judge(&mut a, rules.graph, way);
    a.mov(R1, R7);
    a.and_immediate(R1, DENIES as i32);
    a.jump_if_equal(R1, 0, "pass");
    rules.counters().count(&mut a);
    log::tell(&mut a, rules.graph, rules.identity, way.hook);
    a.label("drop");
    a.mov_immediate(R0, way.hook.answers().drop);
    a.exit();
    a.label("pass");
    a.mov_immediate(R0, way.hook.answers().pass);
    a.exit();
    Program { name: NAME, section: way.section, code: a.finish() }
}

/// What belongs to no socket, or to one that is no connection yet or no more; and what is protected, which need not be walked for.
fn pass_others(a: &mut Assembler) {
    a.load_64(R1, R6, skb::SK);
    a.jump_if_equal(R1, 0, "pass");
    a.call(Helper::SkFullsock);
    a.jump_if_equal(R0, 0, "pass");
    a.load_32(R1, R0, sock::PROTOCOL);
    a.jump_if_not_equal(R1, sock::TCP, "pass");
    protection::pass_protected(a, R0, "pass");
}
