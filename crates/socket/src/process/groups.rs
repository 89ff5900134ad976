//! The link groups of a process: found, made, and ended when they are of no use any more.

use crate::process::group::{
    self, FILES, Group, LINE_LOST, OUR_SLAB, THEIR_SLAB, THEIR_WAKE, Users,
};
use crate::process::home::{GROUPS_MAX, Home};
use crate::process::owner::Held;
use crate::process::tcp;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use sidestep_device::reference::AtomicRef;
use sidestep_device::slab::{self, SLAB_LEN};
use sidestep_device::sys::{self, Errno};
use sidestep_device::{map, rights};
use sidestep_wire::host_control::Instance;

/// A look at the link groups of a process: no group ends before it is over. Groups
/// that have a connection need none.
pub struct Look(pub(super) &'static Home);

impl Look {
    /// Begins to look.
    pub fn at(process: &'static Home) -> Self {
        // SeqCst: pairs with `collect_dead`. Either it sees us, or we do not see the
        // group that it takes out.
        process.group_looks.fetch_add(1, Ordering::SeqCst);
        Self(process)
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.0.group_looks.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The link group with `peer`, made if need be. It may still have to be
/// introduced: see [`Group::theirs`].
///
/// # Errors
/// What the kernel says about memory or descriptors; `ENFILE` when there are too
/// many groups.
pub fn with(look: &Look, peer: Instance) -> sys::Result<&'static Group> {
    if let Some(group) = find(look, peer) {
        return Ok(group);
    }
    let process = look.0;
    let _held = Held::enter(process.lock.get());
    if let Some(group) = find(look, peer) {
        return Ok(group);
    }
    collect_dead(look);
    let place = free_place(process)?;
    let group = group::make(process, peer)?;
    place.set(Some(group));
    crate::log!(Info, "link group with {peer} begun");
    Ok(group)
}

/// As [`with`], for the side that introduces itself first: makes a new one only if there
/// is room for the peer's slab, too. Without it, ours would take address space from the
/// program for nothing.
///
/// # Errors
/// As [`with`].
pub fn begin(look: &Look, peer: Instance) -> sys::Result<&'static Group> {
    match find(look, peer) {
        Some(group) => Ok(group),
        None if look.0.is_beset() => {
            bury(look);
            Err(Errno(libc::EPERM))
        }
        None if map::has_room(2 * SLAB_LEN) => with(look, peer),
        None => Err(Errno(libc::ENOMEM)),
    }
}

/// Gives back what belongs to dead peers, where no new peer comes that would see to it.
pub(crate) fn bury(look: &Look) {
    let _held = Held::enter(look.0.lock.get());
    collect_dead(look);
}

/// The link group with a process that the agent has found, to which this is a line; made
/// and introduced if need be. What it needs of the line is copied.
///
/// # Errors
/// As [`begin`], and `EEXIST` if what is left of an older one stands in the way.
pub(crate) fn begin_distant(
    look: &Look,
    peer: Instance,
    line: i32,
    users: Users,
) -> sys::Result<&'static Group> {
    let process = look.0;
    let _held = Held::enter(process.lock.get());
    if peer != process.instance {
        if let Some(group) = find(look, peer).filter(|group| group.peer_lives()) {
            return Ok(group);
        }
        collect_dead(look);
    }
    match find(look, peer) {
        Some(group) if group.is_self() => return Ok(group),
        Some(_) => return Err(Errno(libc::EEXIST)),
        None if !map::has_room(2 * SLAB_LEN) => return Err(Errno(libc::ENOMEM)),
        None => {}
    }
    let place = free_place(process)?;
    let line = sys::spare_copy(line).ok_or(Errno(libc::EMFILE))?;
    let group = group::make(process, peer).inspect_err(|_| sys::close(line))?;
    if group.is_self() {
        sys::close(line);
    } else {
        rights::admit(line);
        group.line.store(line, Ordering::Relaxed);
        group.own_uid.store(users.own_uid, Ordering::Relaxed);
        group.peer_uid.store(users.peer.uid, Ordering::Relaxed);
        group.peer_gid.store(users.peer.gid, Ordering::Relaxed);
        process.acquainting.fetch_add(1, Ordering::Relaxed);
    }
    place.set(Some(group));
    crate::log!(Info, "link group with {peer} by a line begun");
    group.introduce(false);
    Ok(group)
}

/// The established or beginning link group with `peer`.
pub fn find(look: &Look, peer: Instance) -> Option<&'static Group> {
    all(look).find(|group| group.peer == peer)
}

/// The link group whose peer's instance starts with `key`.
pub fn find_by_key(look: &Look, key: u64) -> Option<&'static Group> {
    all(look).find(|group| tcp::halves(&group.peer.0)[0] == key)
}

/// The established link groups with processes that we have met as servers at this port, of
/// those that can be meant.
pub(crate) fn serving(
    look: &Look,
    port: u16,
    can_be_meant: impl FnMut(&&'static Group) -> bool,
) -> impl Iterator<Item = &'static Group> {
    let serves =
        move |group: &&Group| group.ports.iter().any(|known| known.load(Ordering::Relaxed) == port);
    all(look).filter(serves).filter(can_be_meant).take(SERVERS_MAX)
}

/// Servers at one port before whom a connection is claimed.
const SERVERS_MAX: usize = 8;

pub(crate) fn all(look: &Look) -> impl Iterator<Item = &'static Group> {
    places(look.0).iter().filter_map(AtomicRef::get_in_order)
}

/// Where there may be groups.
pub(crate) fn places(process: &'static Home) -> &'static [AtomicRef<Group>] {
    let used = process.groups_used.load(Ordering::Acquire) as usize;
    &process.tables.groups[..used.min(GROUPS_MAX)]
}

/// Where there is none. Under the process lock.
fn free_place(process: &'static Home) -> sys::Result<&'static AtomicRef<Group>> {
    let at =
        process.tables.groups.iter().position(AtomicRef::is_none).ok_or(Errno(libc::ENFILE))?;
    process.groups_used.fetch_max(at as u32 + 1, Ordering::Release);
    Ok(&process.tables.groups[at])
}

/// Ends groups that are of no use any more, if no thread but the caller looks at groups.
/// Under the process lock.
fn collect_dead(look: &Look) {
    let process = look.0;
    for place in places(process) {
        let Some(group) = place.get_in_order().filter(|group| !group.is_of_use()) else { continue };
        // Others find it no more; those who have found it before are still counted,
        // or have given it a connection meanwhile.
        place.set_in_order(None);
        let is_alone = process.group_looks.load(Ordering::SeqCst) == 1;
        if is_alone && group.connections.load(Ordering::Acquire) == 0 {
            // SAFETY: `place` led to it alone, and `group_looks` says that no other call has found
            // it there before; `connections` says that no slot names it, nor a `Conn` of one.
            unsafe { Group::end(NonNull::from(group)) };
        } else {
            place.set_in_order(Some(group));
        }
    }
}

/// The link group that another process of our end has with `peer`, for connections that
/// it has given to us.
///
/// # Errors
/// As [`slab::adopt`], `ENFILE` when there are too many groups, and `EINVAL` when it is a
/// group of ours that we do not have.
pub(crate) fn inherit(
    look: &Look,
    peer: Instance,
    files: [i32; FILES],
    line: Option<i32>,
) -> sys::Result<&'static Group> {
    let process = look.0;
    if let Some(group) = find(look, peer).filter(|group| group.theirs().is_some()) {
        return Ok(group);
    }
    // Another process does not say which our own peers are.
    if process.is_current() {
        return Err(Errno(libc::EINVAL));
    }
    let _held = Held::enter(process.lock.get());
    collect_dead(look);
    let place = free_place(process)?;
    let ours = slab::adopt_own(files[OUR_SLAB])?;
    let group = group::adopt(files[THEIR_SLAB], files[THEIR_WAKE])
        .and_then(|theirs| {
            let group = group::make_around(process, peer, ours, -1);
            if !group.is_ok_and(|group| group.establish(theirs, None)) {
                group::give_up(theirs);
            }
            group
        })
        // SAFETY: no other thread knows the slab.
        .inspect_err(|_| unsafe { ours.unmap() })?;
    group.introduced.store(true, Ordering::Relaxed);
    if let Some(line) = line {
        group.line.store(sys::spare_copy(line).unwrap_or(LINE_LOST), Ordering::Relaxed);
    }
    for (at, file) in files.into_iter().enumerate() {
        group.keep(at, file);
    }
    place.set(Some(group));
    Ok(group)
}
