//! Which connections in shared memory there are, and the memory that they are read from.

use super::followed::{Begin, Direction, Side, Tap, TapId};
use crate::holds::Whose;
use crate::host::process::is_refusal;
use crate::host::state_file::{Access, StateFile, is_held};
use crate::program::connection::{Connection, Mode, Place};
use crate::program::counters::Counters;
use crate::snapshot::Snapshot;
use core::sync::atomic::Ordering;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use sidestep_device::channel::SLOTS;
use sidestep_device::onlooker::{View, peek};
use sidestep_device::slab::{Record, phase};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Weak};

/// Name of the memory file of a slab in `/proc/PID/fd`.
const SLAB_LINK: &[u8] = b"/memfd:sidestep-slab (deleted)";

/// Slabs of one process that are looked at: what a look costs is that process's doing.
const SLABS_MAX: usize = 4096;

/// Finds connections again and again, each once.
#[derive(Debug)]
pub struct Finder {
    whose: Whose,
    /// Where those begin that are found next.
    begin: Begin,
    /// All that were found, from either end, and are still there.
    known: HashSet<TapId>,
    /// The slabs that taps have mapped.
    views: HashMap<FileId, Weak<View>>,
}

/// What a look has found.
#[derive(Debug, Default)]
pub struct Finding {
    /// Connections that were not known.
    pub taps: Vec<Tap>,
    /// What each end of those that are known has counted.
    pub counters: HashMap<TapId, Counters>,
    /// Connections that were there before.
    pub gone: Vec<TapId>,
    /// Processes that we may not trace.
    pub refused: BTreeSet<u32>,
    /// Connections whose memory or addresses were not found, as of one that ends meanwhile.
    pub missed: usize,
    /// Connections that were meant and are on TCP.
    pub on_tcp: usize,
}

/// Device and inode.
type FileId = (u64, u64);

/// A slab that a process has, opened by the right to trace it.
struct SlabFile {
    fd: OwnedFd,
    id: FileId,
    /// It was made by the process, and not given to it.
    is_own: bool,
}

/// One side of a connection that was found in a slab.
struct Found<'a> {
    file: &'a SlabFile,
    slot: usize,
    record: Record,
}

impl Finder {
    /// `begin`: where those begin that exist now.
    #[must_use]
    pub fn new(whose: Whose, begin: Begin) -> Self {
        Self { whose, begin, known: HashSet::new(), views: HashMap::new() }
    }

    /// Looks at every process of the host.
    ///
    /// # Errors
    /// As [`Snapshot::take`].
    pub fn find(&mut self) -> io::Result<Finding> {
        let mut snapshot = Snapshot::take()?;
        snapshot.find_addresses();
        let mut finding = Finding::default();
        let mut slabs = HashMap::new();
        let whose = self.whose;
        for connection in snapshot.connections.iter().filter(|it| is_meant(whose, it)) {
            match (connection.mode, TapId::of(connection)) {
                (Mode::SmcD, Some(id)) if !self.known.contains(&id) => {
                    self.open(id, connection, &snapshot, &mut slabs, &mut finding);
                }
                (Mode::Tcp | Mode::Negotiating, _) => finding.on_tcp += 1,
                (Mode::SmcD | Mode::Lingering, _) => {}
            }
        }
        self.forget(&snapshot, &mut finding);
        let counted = |it: &Connection| Some((TapId::of(it)?, it.counters));
        let counted = snapshot.connections.iter().filter_map(counted);
        finding.counters = counted.filter(|(id, _)| self.known.contains(id)).collect();
        // Those that come from now on are followed from their first byte.
        self.begin = Begin::Start;
        Ok(finding)
    }

    /// Opens the memory of a connection that is not known.
    fn open(
        &mut self,
        id: TapId,
        connection: &Connection,
        snapshot: &Snapshot,
        slabs: &mut HashMap<u32, io::Result<Vec<SlabFile>>>,
        finding: &mut Finding,
    ) {
        if connection.local.is_none() || connection.peer.is_none() {
            return finding.missed += 1;
        }
        let slabs = slabs.entry(connection.pid).or_insert_with(|| slabs_of(connection.pid));
        let slabs = match slabs {
            Ok(slabs) => slabs,
            Err(error) if is_refusal(error) => {
                finding.refused.insert(connection.pid);
                return;
            }
            Err(_) => return finding.missed += 1,
        };
        let Some([own, theirs]) = sides_of(slabs, id) else { return finding.missed += 1 };
        let peer = other_end(snapshot, connection, &theirs);
        match self.tap(id, connection, peer, [&own, &theirs]) {
            Some(tap) => {
                self.known.insert(id);
                self.known.extend(peer.and_then(TapId::of));
                finding.taps.push(tap);
            }
            None => finding.missed += 1,
        }
    }

    fn tap(
        &mut self,
        id: TapId,
        connection: &Connection,
        peer: Option<&Connection>,
        found: [&Found<'_>; 2],
    ) -> Option<Tap> {
        let ends = [Some(connection), peer];
        let mut side = |at: usize| -> Option<Side> {
            let Found { file, slot, record } = found[at];
            let phase = record.identity.phase.load(Ordering::Relaxed);
            let state = ends[at].and_then(state_of);
            Some(Side { view: self.view(file)?, slot: *slot, phase, state })
        };
        let sides = [side(0)?, side(1)?];
        let begin = self.begin;
        let directions = [[0, 1], [1, 0]]
            .map(|[from, to]: [usize; 2]| Direction::begin(begin, &sides[from], &sides[to]));
        let has_rings = |at: usize| {
            let (offset, len) = directions[at].ring;
            sides[at].view.has_ring(offset, len) && sides[at].is_connected()
        };
        if !(has_rings(0) && has_rings(1)) {
            return None;
        }
        Some(Tap { id, begin, ends: ends.map(Option::<&Connection>::cloned), sides, directions })
    }

    /// A slab is mapped once for all its connections.
    fn view(&mut self, file: &SlabFile) -> Option<Arc<View>> {
        let known = self.views.get(&file.id).and_then(Weak::upgrade);
        known.or_else(|| {
            let view = Arc::new(View::open(file.fd.as_raw_fd()).ok()?);
            self.views.retain(|_, view| view.strong_count() > 0);
            self.views.insert(file.id, Arc::downgrade(&view));
            Some(view)
        })
    }

    /// Says which of the known connections are not there any more.
    fn forget(&mut self, snapshot: &Snapshot, finding: &mut Finding) {
        let present: HashSet<TapId> = snapshot.connections.iter().filter_map(TapId::of).collect();
        self.known.retain(|id| {
            let is_present = present.contains(id);
            if !is_present {
                finding.gone.push(*id);
            }
            is_present
        });
    }
}

fn is_meant(whose: Whose, connection: &Connection) -> bool {
    match whose {
        Whose::Process(pid) => connection.pid == pid,
        Whose::Port(port) => connection.server().is_some_and(|server| server.port() == port),
        Whose::All => true,
    }
}

/// The other end of a connection, if it was seen.
fn other_end<'a>(
    snapshot: &'a Snapshot,
    connection: &Connection,
    theirs: &Found<'_>,
) -> Option<&'a Connection> {
    let word = theirs.record.identity.phase.load(Ordering::Relaxed);
    snapshot.connections.iter().find(|other| {
        let is_there = |place: &Place| {
            place.slot == theirs.slot && place.generation << 8 == word & !phase::MASK
        };
        other.place.as_ref().is_some_and(is_there)
            && other.local.is_some()
            && (other.local, other.peer) == (connection.peer, connection.local)
    })
}

/// The two sides of a connection, ours first.
fn sides_of(slabs: &[SlabFile], id: TapId) -> Option<[Found<'_>; 2]> {
    let generation = id.place.generation << 8;
    let mut own = slabs.iter().filter(|file| file.is_own).filter_map(|file| {
        let found = Found::at(file, id.place.slot)?;
        let word = found.record.identity.phase.load(Ordering::Relaxed);
        (word & !phase::MASK == generation).then_some(found)
    });
    let own = only(&mut own)?;
    let slot = own.record.identity.peer_slot.load(Ordering::Relaxed) as usize;
    let is_other = |file: &SlabFile| match file.is_own {
        // A program that talks to itself has both ends in one slab.
        true => file.id == own.file.id && slot != own.slot,
        false => true,
    };
    let mut theirs = slabs.iter().filter(|file| is_other(file)).filter_map(|file| {
        let found = Found::at(file, slot)?;
        let answers = found.record.identity.peer_slot.load(Ordering::Relaxed) as usize;
        (answers == own.slot).then_some(found)
    });
    let theirs = only(&mut theirs)?;
    Some([own, theirs])
}

impl<'a> Found<'a> {
    /// `None`: there is no connection at this slot.
    fn at(file: &'a SlabFile, slot: usize) -> Option<Self> {
        let record = (slot < SLOTS).then(|| peek(file.fd.as_raw_fd(), slot).ok())??;
        let word = record.identity.phase.load(Ordering::Relaxed) & phase::MASK;
        let is_connected = [phase::ACCEPTED, phase::CONFIRMED].contains(&word);
        is_connected.then_some(Self { file, slot, record })
    }
}

/// The one that there is. Of several it is not known which is meant.
fn only<T>(all: &mut impl Iterator<Item = T>) -> Option<T> {
    let first = all.next()?;
    all.next().is_none().then_some(first)
}

/// The slabs that a process has, each once.
///
/// # Errors
/// It has ended, or we may not trace it.
fn slabs_of(pid: u32) -> io::Result<Vec<SlabFile>> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    let process = pidfd_open(number, PidfdFlags::empty())?;
    let mut slabs: Vec<SlabFile> = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let path = entry.path();
        if !fs::read_link(&path).is_ok_and(|link| link.as_os_str().as_bytes() == SLAB_LINK) {
            continue;
        }
        let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // As `/proc` shows it: what is written in the mode is how it was opened.
        let is_own = fs::symlink_metadata(&path).is_ok_and(|it| it.mode() & 0o200 != 0);
        let file = match pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()) {
            Ok(fd) => File::from(fd),
            Err(error) if is_refusal(&error.into()) => return Err(error.into()),
            // Closed meanwhile.
            Err(_) => continue,
        };
        let metadata = file.metadata()?;
        let id = (metadata.dev(), metadata.ino());
        if slabs.iter().all(|known| (known.id, known.is_own) != (id, is_own)) {
            slabs.push(SlabFile { fd: file.into(), id, is_own });
        }
        if slabs.len() == SLABS_MAX {
            break;
        }
    }
    Ok(slabs)
}

/// The state of a connection's process, to be read.
fn state_of(connection: &Connection) -> Option<File> {
    let open = |path: &Path| StateFile::open(path, Access::Read).ok().flatten();
    let is_it = |file: &StateFile| file.id == connection.state;
    let entries = fs::read_dir(format!("/proc/{}/fd", connection.pid)).ok()?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut held = paths.filter(|path| is_held(path).unwrap_or(false));
    held.find_map(|path| open(&path).filter(is_it)).map(|found| found.file)
}
