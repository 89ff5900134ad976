//! The control groups that rules name.
//!
//! A rule means a group with all groups in it, and the key of a packet has one number: that of the innermost group that its
//! socket is in, of those that are named ([`sidestep_filter::Groups`]). A map has the number of each named group by the kernel's
//! number for it, for either set. A judge asks it for the group of the packet's socket and for those around it, from the
//! deepest level on that a named group has, so groups that come later within a named one are meant as well.
//!
//! # A group that is made anew
//!
//! When a unit starts again, its directory is another one, and so is the kernel's number. Nothing in the kernel keeps
//! the name, so a command has to say the new number ([`super::Filter::renumber`]): one entry of the map, and no
//! set is made.
//!
//! # Questions
//!
//! The kernel tells programs of `setsockopt` nothing of the socket's group. But it asks those of the innermost group first. So each
//! named group below the filter's has a program of its own there, a marker: of a question it writes the group's number behind the
//! value, where the kernel leaves room for programs (of 16 bytes, which it clears), unless a marker within has done so.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use aya::EbpfLoader;
use aya::maps::{HashMap as BpfHashMap, MapData};
use aya::programs::CgroupSockopt;
use sidestep_filter::Graph;
use sidestep_filter::graph::field;
use sidestep_wire::verdict::{self, Question};

use super::frame::{HEADER, key};
use super::pins::{of_kernel, of_map, open_map, remove_file};
use super::state::{self, OPEN, STATE, STATE_SLOT};
use crate::assembler::Register::{R0, R1, R2, R3, R4, R6, R7, R8, R10};
use crate::assembler::{Assembler, Helper, Register};
use crate::bpf_call::{self, Target};
use crate::error::BpfError;
use crate::key::sockopt;
use crate::loaded::program;
use crate::map::{MapDefinition, MapKind};
use crate::object_file::{self, Program};

const GROUPS: &str = "groups";
/// Groups that rules may name.
const GROUPS_MAX: u32 = 1 << 14;
const MARKER: &str = "marker";
/// The links of markers have this name, and the kernel's number of the group behind it.
const LINK: &str = "group_";
/// Where a marker writes, from the begin of the value on, and what the kernel leaves room for.
const MARK_AT: i16 = Question::LEN as i16;
const ROOM: i16 = 16;

/// By the kernel's number of a group: that of each set for it; 0: the set's rules do not name it.
pub(super) const MAP: MapDefinition = MapDefinition {
    name: GROUPS,
    kind: MapKind::Hash,
    key_len: 8,
    value_len: 8,
    entries_max: GROUPS_MAX,
    on_demand: true,
};

/// What the groups that rules name are in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupNumbers {
    /// Those that are there now, by the kernel's number, which is that of the directory's inode.
    pub groups: HashMap<u64, NumberedGroup>,
    /// How far below the root the deepest of all that are named is, or would be; 0: it is the root.
    pub deepest: u32,
    /// The number of the innermost of them that the filter's own group is, or is in; 0: none.
    pub around: u32,
}

/// A control group that rules name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedGroup {
    /// Its directory.
    pub directory: PathBuf,
    /// As the rules' graph has it.
    pub number: u32,
}

/// Says what the groups are to the rules in a slot, and has those below the filter's group marked.
pub(super) fn put(pins: &Path, slot: u8, numbers: &GroupNumbers) -> Result<(), BpfError> {
    let mut map: BpfHashMap<MapData, u64, [u32; 2]> = open_map(pins, GROUPS)?;
    let known: Result<Vec<(u64, [u32; 2])>, _> = map.iter().collect();
    let mut values: HashMap<u64, [u32; 2]> = of_map(known)?.into_iter().collect();
    values.values_mut().for_each(|value| value[usize::from(slot)] = 0);
    for (&id, group) in &numbers.groups {
        values.entry(id).or_default()[usize::from(slot)] = group.number;
    }
    for (id, value) in values {
        if value == [0; 2] {
            of_map(map.remove(&id))?;
            remove_file(&pins.join(link_of(id)))?;
        } else {
            of_map(map.insert(id, value, 0))?;
        }
    }
    let inner = numbers.groups.iter().filter(|(_, group)| group.number != numbers.around);
    inner.map(|(id, group)| (*id, group)).try_for_each(|(id, group)| mark(pins, id, group))
}

/// Attaches the marker of a group, if it has none. One that has gone meanwhile needs none.
fn mark(pins: &Path, id: u64, group: &NumberedGroup) -> Result<(), BpfError> {
    let pin = pins.join(link_of(id));
    if pin.exists() {
        return Ok(());
    }
    let Ok(directory) = File::open(&group.directory) else { return Ok(()) };
    let mut loader = EbpfLoader::new();
    let maps = [state::MAP, MAP];
    for map in maps {
        loader.map_pin_path(map.name, pins.join(map.name));
    }
    let object = object_file::write(&maps, &[marker(id)]);
    let mut loaded =
        loader.load(&object).map_err(|error| BpfError::of_kernel("load BPF maps", &error))?;
    let marker: &mut CgroupSockopt = of_kernel(program(&mut loaded, MARKER))?;
    of_kernel(marker.load())?;
    let link = match bpf_call::attach(of_kernel(marker.fd())?, Target::SetSockOpt(&directory)) {
        // The directory was removed while it was open.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        attached => attached,
    };
    link.and_then(|link| bpf_call::pin(&link, &pin))
        .map_err(|error| BpfError::of_kernel("attach a program to a cgroup", &error))
}

fn link_of(id: u64) -> String {
    format!("{LINK}{id}")
}

/// The names of the markers' links in this directory.
pub(super) fn links(pins: &Path) -> Result<Vec<String>, BpfError> {
    let entries = fs::read_dir(pins).map_err(|error| BpfError::of_file(pins, error))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| name.starts_with(LINK)).collect())
}

/// Puts the number of the innermost named group of packet `R6`'s socket into the key.
pub(super) fn store_number(a: &mut Assembler, graph: &Graph, deepest: u32, slot: u8) {
    if !graph.looks_at(field::GROUP) {
        return;
    }
    a.mov_immediate(R8, deepest.cast_signed());
    a.label("level");
    a.mov(R1, R6);
    a.mov(R2, R8);
    a.call(Helper::SkbAncestorCgroupId);
    a.store_64(R10, HEADER, R0);
    a.load_map(R1, GROUPS);
    a.address(R2, R10, HEADER);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "around");
    a.load_32(R1, R0, 4 * i16::from(slot));
    a.jump_if_equal(R1, 0, "around");
    a.store_32(R10, key(field::GROUP), R1);
    a.jump("group");
    a.label("around");
    a.add_immediate(R8, -1);
    a.jump_if_not_equal(R8, -1, "level");
    a.label("group");
}

/// Puts the number that a marker has written behind the value of a question into the key, or else `around`.
pub(super) fn store_mark(a: &mut Assembler, around: u32) {
    a.store_immediate_32(R10, key(field::GROUP), around.cast_signed());
    load_mark(a, R2, "unmarked");
    a.jump_if_equal(R1, 0, "unmarked");
    a.store_32(R10, key(field::GROUP), R1);
    a.label("unmarked");
}

/// The mark of a question into `R1`, and where its value is into `value`; without room for a mark to `otherwise`.
fn load_mark(a: &mut Assembler, value: Register, otherwise: &'static str) {
    a.load_64(value, R6, sockopt::VALUE);
    a.load_64(R3, R6, sockopt::VALUE_END);
    a.address(R4, value, ROOM);
    a.jump_if_beyond(R4, R3, otherwise);
    a.load_32(R1, value, MARK_AT);
}

/// Of a question that no group within has marked, it writes the number that the set in force has for this group.
fn marker(id: u64) -> Program {
    const ID: i16 = -8;
    const PLACE: i16 = -16;
    let mut a = Assembler::default();
    a.mov(R6, R1);
    a.load_32(R1, R6, sockopt::LEVEL);
    a.jump_if_not_equal(R1, verdict::LEVEL, "end");
    a.load_32(R1, R6, sockopt::OPTNAME);
    a.jump_if_above(R1, verdict::IN, "end");
    load_mark(&mut a, R7, "end");
    a.jump_if_not_equal(R1, 0, "end");
    a.store_immediate_32(R10, PLACE, 0);
    a.load_map(R1, STATE);
    a.address(R2, R10, PLACE);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "end");
    a.load_8(R8, R0, STATE_SLOT as i16);
    a.jump_if_equal(R8, OPEN.into(), "end");
    for (at, bytes) in [(ID, id as u32), (ID + 4, (id >> 32) as u32)] {
        a.store_immediate_32(R10, at, bytes.cast_signed());
    }
    a.load_map(R1, GROUPS);
    a.address(R2, R10, ID);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "end");
    a.load_32(R1, R0, 0);
    a.jump_if_equal(R8, 0, "number");
    a.load_32(R1, R0, 4);
    a.label("number");
    a.store_32(R7, MARK_AT, R1);
    a.label("end");
    a.mov_immediate(R0, sockopt::GO_ON);
    a.exit();
    Program { name: MARKER, section: "cgroup/setsockopt", code: a.finish() }
}
