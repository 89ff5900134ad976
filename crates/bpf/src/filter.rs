//! Rules for the packets of all sockets.

mod answer;
mod enforcement;
mod entry;
mod forwarded;
mod frame;
mod groups;
mod hits;
mod log;
mod partners;
mod pins;
mod programs;
mod protection;
mod question;
mod rule_set;
mod state;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aya::maps::{Array, Map, MapData, MapError, ProgramArray};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::{
    CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, CgroupSockopt, ProgramError, ProgramFd,
    SchedClassifier,
};
use aya::{Ebpf, EbpfLoader};
use sidestep_filter::graph::{Node, ROOM};
use sidestep_filter::{Addition, CompileError, Graph, LaterRule, Names};

use crate::bpf_call::Target;
use crate::error::BpfError;
use crate::loaded::program;
use crate::{bpf_call, object_file};
pub use enforcement::Enforcement;
pub use groups::{GroupNumbers, NumberedGroup};
pub use hits::Hits;
pub use log::{Identity, LINES_MAX, Log, LogLine, Totals};
pub use partners::tell_partner;
pub use question::is_denied;
pub use rule_set::RuleSet;

use answer::{GATE_ASKED, JUDGE_ASKED};
use entry::{ENTRY, Entry};
use hits::HITS;
use pins::{of_kernel, of_map, open_map, remove_file};
use programs::{FORWARDED, JUDGES_ASKED, NODES, PAGE_NODES, Page, WAYS, fill, judge_of};
use state::{OPEN, STATE, STATE_SLOT};

/// The filter of a cgroup and those below: its programs see each packet that a socket of theirs sends
/// or receives, in every network namespace, and let it pass or drop it.
///
/// It is pinned in a BPF file system: it stays when the process ends that has made it, is found again
/// by its directory, and goes by [`Filter::remove`] or with the host. Programs that others have
/// attached to the cgroup run as well, and each of them can drop a packet.
///
/// Forwarded packets belong to no socket: they are seen at the interfaces of [`Filter::judge_forwarded`] alone. What
/// the kernel answers itself is not seen.
#[derive(Clone, Debug)]
pub struct Filter {
    /// A directory in a BPF file system.
    pins: PathBuf,
}

/// The pinned links of the gates.
const LINKS: [&str; 3] = ["link_in", "link_out", LINK_ASKED];
const LINK_ASKED: &str = "link_asked";
const ATTACH_TYPES: [CgroupSkbAttachType; 2] =
    [CgroupSkbAttachType::Ingress, CgroupSkbAttachType::Egress];

impl Filter {
    /// The one that is pinned in this directory; `None`: none is, or its making or removal was cut
    /// short.
    ///
    /// # Errors
    /// This process may not look ([`BpfError::Privilege`]), or something else is there.
    pub fn find(pins: &Path) -> Result<Option<Self>, BpfError> {
        for link in LINKS {
            match pins.join(link).try_exists() {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) => return Err(BpfError::of_file(pins, error)),
            }
        }
        let filter = Self { pins: pins.to_owned() };
        let is_open = filter.state()?[STATE_SLOT] == OPEN;
        Ok((!is_open).then_some(filter))
    }

    /// Attaches a filter to the cgroup at this path, with these rules in force.
    ///
    /// # Errors
    /// The directory is in no BPF file system; the kernel refuses ([`BpfError::Privilege`],
    /// [`BpfError::Kernel`]). Then nothing is attached.
    pub fn attach(pins: &Path, cgroup: &Path, set: &RuleSet<'_>) -> Result<Self, BpfError> {
        let group = File::open(cgroup).map_err(|error| BpfError::of_file(cgroup, error))?;
        let processes = cgroup.join("cgroup.procs");
        fs::metadata(&processes).map_err(|error| BpfError::of_file(&processes, error))?;
        make_directory(pins)?;
        // What is left of one whose making was cut short. If a gate of it is attached, it lets all
        // pass from here on, and a broken state is no reason to leave it.
        _ = Self { pins: pins.to_owned() }.set_state(OPEN, Identity::default());
        Self::remove_pins(pins)?;
        let made = Self::make(pins, &group, set);
        if made.is_err() {
            // The reason is told; what may stay here is removed by the next one.
            _ = Self::remove_pins(pins);
        }
        made
    }

    fn make(pins: &Path, group: &File, set: &RuleSet<'_>) -> Result<Self, BpfError> {
        let mut loader = EbpfLoader::new();
        for map in programs::GATE_MAPS {
            loader.map_pin_path(map.name, pins.join(map.name));
        }
        let [gate_in, gate_out] = programs::gates();
        let of_gates = [gate_in, gate_out, answer::gate(), forwarded::gate()];
        let object = object_file::write(&programs::GATE_MAPS, &of_gates);
        let mut gates =
            loader.load(&object).map_err(|error| BpfError::of_kernel("load BPF maps", &error))?;
        // The first program that uses an array of programs says of which kind all are.
        for way in WAYS {
            let gate: &mut CgroupSkb = of_kernel(program(&mut gates, way.gate))?;
            of_kernel(gate.load())?;
        }
        let asked: &mut CgroupSockopt = of_kernel(program(&mut gates, GATE_ASKED))?;
        of_kernel(asked.load())?;
        let forwarded: &mut SchedClassifier = of_kernel(program(&mut gates, FORWARDED.gate))?;
        of_kernel(forwarded.load())?;
        let pinned = forwarded.pin(pins.join(FORWARDED.gate));
        pinned.map_err(|error| BpfError::of_kernel("pin a BPF program", &error))?;
        let filter = Self { pins: pins.to_owned() };
        filter.put(set)?;
        for ((way, kind), link) in WAYS.iter().zip(ATTACH_TYPES).zip(LINKS) {
            let gate: &mut CgroupSkb = of_kernel(program(&mut gates, way.gate))?;
            attach(gate, group, kind, &pins.join(link))?;
        }
        let gate: &mut CgroupSockopt = of_kernel(program(&mut gates, GATE_ASKED))?;
        let program = of_kernel(gate.fd())?;
        bpf_call::attach(program, Target::SetSockOpt(group))
            .and_then(|link| bpf_call::pin(&link, &pins.join(LINK_ASKED)))
            .map_err(|error| BpfError::of_kernel("attach a program to a cgroup", &error))?;
        Ok(filter)
    }

    /// Puts other rules into force: packets are judged by the old one, and from one moment on by
    /// this.
    ///
    /// # Errors
    /// The kernel refuses; then the old one stays in force.
    pub fn put(&self, rules: &RuleSet<'_>) -> Result<(), BpfError> {
        let slot = self.other_slot()?;
        groups::put(&self.pins, slot, rules.groups)?;
        let set = Set::load(&mut self.shared(), rules, slot)?;
        let of_ways = WAYS.map(|way| (way.judges, set.judge(way.judge)));
        let others = [(JUDGES_ASKED, set.judge_asked()), (FORWARDED.judges, set.judge_forwarded())];
        for (judges, judge) in of_ways.into_iter().chain(others) {
            let mut judges: ProgramArray<MapData> = open_map(&self.pins, judges)?;
            of_map(judges.set(slot.into(), of_kernel(judge)?, 0))?;
        }
        for map in [NODES, HITS, ENTRY] {
            let path = self.pins.join(of_slot(map, slot));
            remove_file(&path)?;
            let pinned = set.loaded.map(map).expect("a map of ours").pin(&path);
            pinned.map_err(|error| BpfError::of_kernel("pin a BPF map", &error))?;
        }
        self.set_state(slot, rules.identity)
    }

    /// Has these rules decide as well, in place of those that came later before: from one moment on, for packets of connections
    /// that live too, and without loading anything. `None`: there is no room for them, or the programs do not find
    /// out what they look at; then the whole list has to be [put](Self::put).
    ///
    /// # Errors
    /// A name has no meaning, or the kernel refuses: nothing is changed.
    pub fn put_later(
        &self,
        later: &[LaterRule],
        names: &impl Names,
    ) -> Result<Option<Result<(), CompileError>>, BpfError> {
        let mut entry = self.entry()?;
        let added =
            Addition::compile(later, entry.rules(), entry.roots(0), entry.free_node(), names);
        let added = match added {
            Ok(Some(added)) => added,
            Ok(None) => return Ok(None),
            Err(error) => return Ok(Some(Err(error))),
        };
        if !entry.serves(&added.nodes) {
            return Ok(None);
        }
        let Some(pair) = entry.add(added.roots, added.nodes.len()) else { return Ok(None) };
        self.write_nodes(added.at, &added.nodes)?;
        let mut map: Array<MapData, entry::Words> = self.of_set(ENTRY)?;
        of_map(map.set(0, entry.0, 0))?;
        entry.put_into_force(pair);
        of_map(map.set(0, entry.0, 0))?;
        Ok(Some(Ok(())))
    }

    /// Writes nodes that nothing leads to yet. What stands beside them in their pages is written as it is.
    fn write_nodes(&self, at: usize, nodes: &[Node]) -> Result<(), BpfError> {
        debug_assert!(at + nodes.len() <= 1 + ROOM);
        let mut pages: Array<MapData, Page> = self.of_set(NODES)?;
        for number in at / PAGE_NODES..=(at + nodes.len() - 1) / PAGE_NODES {
            let mut page = of_map(pages.get(&(number as u32), 0))?;
            for (place, node) in page.iter_mut().enumerate() {
                let place = (number * PAGE_NODES + place).checked_sub(at);
                *node = place.and_then(|place| nodes.get(place)).copied().unwrap_or(*node);
            }
            of_map(pages.set(number as u32, page, 0))?;
        }
        Ok(())
    }

    fn entry(&self) -> Result<Entry, BpfError> {
        let map: Array<MapData, entry::Words> = self.of_set(ENTRY)?;
        of_map(map.get(&0, 0)).map(Entry)
    }

    /// Says what the control groups that rules name are in the kernel now: of the rules in force, none of whose groups has
    /// another number in the graph or is deeper than when they were put into force.
    ///
    /// A socket of a group that was not known has no other verdict for packets before that; a TCP connection that has
    /// lived for some segments keeps the one it had.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn renumber(&self, numbers: &GroupNumbers) -> Result<(), BpfError> {
        groups::put(&self.pins, self.state()?[STATE_SLOT], numbers)
    }

    /// A loader of sets, with the maps that all of them write to.
    fn shared(&self) -> EbpfLoader<'static> {
        let mut loader = EbpfLoader::new();
        for map in log::MAPS.into_iter().chain([groups::MAP, partners::MAP]) {
            loader.map_pin_path(map.name, self.pins.join(map.name));
        }
        loader
    }

    /// Puts the set into force again that was before the last [`Filter::put`], with the name that
    /// it had. Nothing is loaded, so nothing can fail but that this process may not do it.
    ///
    /// # Errors
    /// That.
    pub fn take_back(&self, identity: Identity) -> Result<(), BpfError> {
        self.set_state(self.other_slot()?, identity)
    }

    /// From here on it judges what leaves by these interfaces, told by their indices, and has come in by any; and what
    /// leaves by others, a moment later, no more. They are those of the network namespace of the calling thread.
    ///
    /// # Errors
    /// There is no such interface, or the kernel refuses ([`BpfError::NoTcx`] before Linux 6.6). Then those that were
    /// judged still are, and of the others some may be.
    pub fn judge_forwarded(&self, interfaces: &[u32]) -> Result<(), BpfError> {
        forwarded::judge(&self.pins, interfaces)
    }

    /// The interfaces of the calling thread's network namespace that [`Filter::judge_forwarded`] has named.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn forwarding_interfaces(&self) -> Result<Vec<u32>, BpfError> {
        forwarded::interfaces(&self.pins)
    }

    /// What the set that is in force is called.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn identity(&self) -> Result<Identity, BpfError> {
        let state = self.state()?;
        Ok(state[STATE_SLOT + 1..].try_into().expect("7 of 8 bytes"))
    }

    /// The graph that is in force, as the kernel has it.
    ///
    /// # Errors
    /// The kernel does not tell, or it is none ([`BpfError::Foreign`]).
    pub fn graph(&self) -> Result<Graph, BpfError> {
        let pages: Array<_, Page> = self.of_set(NODES)?;
        let nodes: Result<Vec<Page>, MapError> = pages.iter().collect();
        let mut nodes = of_map(nodes)?.concat();
        // Behind the last one the page is empty, and no node is.
        let len = nodes.iter().rposition(|node| *node != [0; 4]).map_or(0, |last| last + 1);
        nodes.truncate(len);
        if let Some([_, root_4, root_6, _]) = nodes.first_mut() {
            let entry = self.entry()?;
            [*root_4, *root_6] = entry.roots(entry.pair());
        }
        Graph::from_nodes(nodes).map_err(|error| BpfError::Foreign {
            path: self.pins.clone(),
            reason: error.to_string(),
        })
    }

    /// The log. Each line goes to the reader that takes it first, so it wants one at a time.
    ///
    /// # Errors
    /// The kernel does not give it.
    pub fn log(&self) -> Result<Log, BpfError> {
        Log::of(&self.pins)
    }

    /// What it has done.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn totals(&self) -> Result<Totals, BpfError> {
        Totals::of(&self.pins)
    }

    /// The kernel's numbers for the programs of it that see packets.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn packet_programs(&self) -> Result<[u32; 2], BpfError> {
        let program = |link: &str| {
            let link = PinnedLink::from_pin(self.pins.join(link)).map(FdLink::from);
            let info = link.and_then(|link| link.info());
            let info = info
                .map_err(|error| BpfError::of_kernel("tell of a program that is attached", &error));
            info.map(|info| info.program_id())
        };
        Ok([program(LINKS[0])?, program(LINKS[1])?])
    }

    /// The kernel's number for the program of it that sees forwarded packets.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn forwarded_program(&self) -> Result<u32, BpfError> {
        let gate = of_kernel(SchedClassifier::from_pin(self.pins.join(FORWARDED.gate)))?;
        of_kernel(gate.info()).map(|info| info.id())
    }

    /// How often each rule of the set has decided since it is in force, by its number; behind the list's rules comes the default, and
    /// behind it rules that came later.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn hits(&self) -> Result<Vec<Hits>, BpfError> {
        of_map(hits::read(&self.of_set(HITS)?, self.entry()?.rules()))
    }

    /// Detaches it: from here on every packet passes, as far as this filter goes.
    ///
    /// # Errors
    /// A file may not be removed.
    pub fn remove(self) -> Result<(), BpfError> {
        // The kernel lets the links go a moment later, and perhaps what they go on in before.
        self.set_state(OPEN, Identity::default())?;
        Self::remove_pins(&self.pins)?;
        fs::remove_dir(&self.pins).map_err(|error| BpfError::of_file(&self.pins, error))
    }

    fn remove_pins(pins: &Path) -> Result<(), BpfError> {
        let maps = programs::GATE_MAPS.iter().chain(&log::MAPS).map(|map| map.name.to_owned());
        let of_sets =
            [NODES, HITS, ENTRY].into_iter().flat_map(|map| [0, 1].map(|slot| of_slot(map, slot)));
        let of_forwarded = forwarded::links(pins)?.into_iter().chain([FORWARDED.gate.to_owned()]);
        let of_forwarded = of_forwarded.chain(groups::links(pins)?);
        let links = LINKS.map(ToOwned::to_owned).into_iter().chain(of_forwarded);
        links.chain(maps).chain(of_sets).try_for_each(|name| remove_file(&pins.join(name)))
    }

    /// The one that is not in force.
    fn other_slot(&self) -> Result<u8, BpfError> {
        Ok(match self.state()?[STATE_SLOT] {
            0 => 1,
            _ => 0,
        })
    }

    fn set_state(&self, slot: u8, identity: Identity) -> Result<(), BpfError> {
        let mut state = [0; 8];
        state[STATE_SLOT] = slot;
        state[STATE_SLOT + 1..].copy_from_slice(&identity);
        let mut word: Array<MapData, [u8; 8]> = open_map(&self.pins, STATE)?;
        of_map(word.set(0, state, 0))
    }

    fn state(&self) -> Result<[u8; 8], BpfError> {
        let word: Array<MapData, [u8; 8]> = open_map(&self.pins, STATE)?;
        of_map(word.get(&0, 0))
    }

    /// A map of the set that is in force.
    fn of_set<T>(&self, name: &str) -> Result<T, BpfError>
    where
        T: TryFrom<Map, Error = MapError>,
    {
        open_map(&self.pins, &of_slot(name, self.state()?[STATE_SLOT]))
    }
}

/// The programs and maps that are made for one graph.
struct Set {
    loaded: Ebpf,
}

impl Set {
    fn load(loader: &mut EbpfLoader<'_>, rules: &RuleSet<'_>, slot: u8) -> Result<Self, BpfError> {
        let shared = [groups::MAP, partners::MAP];
        let maps = [&programs::set_maps(rules)[..], &log::MAPS, &shared].concat();
        let [arrives, leaves] = WAYS.map(|way| judge_of(rules, slot, way));
        let forwarded = judge_of(rules, slot, FORWARDED);
        let judges = [arrives, leaves, answer::judge(rules), forwarded];
        let object = object_file::write(&maps, &judges);
        let mut loaded =
            loader.load(&object).map_err(|error| BpfError::of_kernel("load BPF maps", &error))?;
        of_map(fill(&mut loaded, rules.graph))?;
        let entry = Entry::of(rules.graph, rules.rules);
        let mut map: Array<_, entry::Words> =
            of_map(loaded.map_mut(ENTRY).expect("a map of ours").try_into())?;
        of_map(map.set(0, entry.0, 0))?;
        for way in WAYS {
            let judge: &mut CgroupSkb = of_kernel(program(&mut loaded, way.judge))?;
            of_kernel(judge.load())?;
        }
        let judge: &mut CgroupSockopt = of_kernel(program(&mut loaded, JUDGE_ASKED))?;
        of_kernel(judge.load())?;
        let judge: &mut SchedClassifier = of_kernel(program(&mut loaded, FORWARDED.judge))?;
        of_kernel(judge.load())?;
        Ok(Self { loaded })
    }

    fn judge(&self, name: &str) -> Result<&ProgramFd, ProgramError> {
        let judge: &CgroupSkb = self.loaded.program(name).expect("a program of ours").try_into()?;
        judge.fd()
    }

    fn judge_asked(&self) -> Result<&ProgramFd, ProgramError> {
        let judge = self.loaded.program(JUDGE_ASKED).expect("a program of ours");
        let judge: &CgroupSockopt = judge.try_into()?;
        judge.fd()
    }

    fn judge_forwarded(&self) -> Result<&ProgramFd, ProgramError> {
        let judge = self.loaded.program(FORWARDED.judge).expect("a program of ours");
        let judge: &SchedClassifier = judge.try_into()?;
        judge.fd()
    }
}

fn attach(
    gate: &mut CgroupSkb,
    group: &File,
    kind: CgroupSkbAttachType,
    pin: &Path,
) -> Result<(), BpfError> {
    // A link; `Single` is no more than its lack of flags. Links leave room for others.
    let id = gate
        .attach(group, kind, CgroupAttachMode::Single)
        .map_err(|error| BpfError::of_kernel("attach a program to a cgroup", &error))?;
    let link = gate.take_link(id).expect("the link that was made");
    let link = FdLink::try_from(link)
        .map_err(|error| BpfError::of_kernel("attach a program to a cgroup", &error))?;
    let pinned = link.pin(pin).map_err(|error| BpfError::of_kernel("pin a link", &error))?;
    // The file keeps it.
    drop(pinned);
    Ok(())
}

fn of_slot(map: &str, slot: u8) -> String {
    format!("{map}_{slot}")
}

/// The directory, if it can be in a BPF file system.
fn make_directory(pins: &Path) -> Result<(), BpfError> {
    /// `BPF_FS_MAGIC`.
    const MAGIC: u64 = 0xcafe_4a11;
    match fs::create_dir_all(pins) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(BpfError::of_file(pins, error));
        }
        _ => {}
    }
    let system = rustix::fs::statfs(pins).map_err(|error| BpfError::of_file(pins, error.into()))?;
    if system.f_type as u64 != MAGIC {
        // One that was made for nothing.
        _ = fs::remove_dir(pins);
        return Err(BpfError::NoBpfFileSystem { path: pins.to_owned() });
    }
    refuse_others_directories(pins)
}

/// Where a BPF file system is open to all, another user may have made the directory first, or one above it: who owns
/// it can remove what is in it, and with that the filter.
fn refuse_others_directories(pins: &Path) -> Result<(), BpfError> {
    /// In a sticky directory only its owner and an entry's remove the entry.
    const STICKY: u32 = 0o1000;
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    let look = |path: &Path| fs::metadata(path).map_err(|error| BpfError::of_file(path, error));
    let own = rustix::process::geteuid().as_raw();
    let device = look(pins)?.dev();
    for path in pins.ancestors() {
        let directory = look(path)?;
        if directory.dev() != device {
            break;
        }
        let is_open = directory.mode() & (STICKY | WRITABLE_BY_OTHERS);
        let reason = match directory.uid() {
            uid if uid != own => format!("user {uid} owns {}", path.display()),
            _ if is_open != 0 && is_open & STICKY == 0 => {
                format!("others may write to {}", path.display())
            }
            _ => continue,
        };
        return Err(BpfError::Foreign { path: pins.to_owned(), reason });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
