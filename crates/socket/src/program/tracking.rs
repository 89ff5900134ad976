//! How untracked connections end, or get an object.

use crate::polling::epoll;
use crate::process::owner::Held;
use crate::process::{home, loan};
use crate::program::object;
use crate::rendezvous::listeners;
use crate::table::descriptors::{self, Tracking};
use crate::table::sock::Phase;
use crate::table::{file, places, untracked};
use sidestep_device::sys;
use sidestep_device::untracked::{End, Stage};

/// How untracked connections end, or get an object, for the table.
pub(crate) static TRACKING: Tracking = Tracking { track, end };

/// Makes the object of a socket that has none. In the child of a `vfork` it has none for the
/// time being: the table is the parent's, which has had all of them made before.
pub(crate) fn track(fd: i32) {
    let growing = Held::enter(untracked::growing(fd));
    // A handler has interrupted the call that makes one: its own call is one by TCP.
    if !growing.is_outermost() || loan::is_borrowed_memory() {
        return;
    }
    if descriptors::is_untracked(fd) {
        grow(fd);
    }
}

fn grow(fd: i32) {
    let Some(place) = places::place(fd) else { return };
    // No connection ends from here on, or it has ended.
    let about = place.grow();
    if about.is_none() && place.stage() != Some(Stage::Fresh) {
        return;
    }
    if let Some(sock) = object::grown(fd, about) {
        if about.is_some() {
            sock.set_phase(Phase::Candidate);
            listeners::follow_settings();
            sock.begin_with(fd, Some(place));
        }
        epoll::take_over_watch(fd, sock);
        if !descriptors::track(fd, sock) {
            epoll::forget_sock(sock);
            sock.leave();
        }
    }
    // Without a slot, or without memory for an object, it was not asked what it has carried.
    let _ = place.take();
    place.clear();
}

/// All sockets without an object get one: this process is about to share them.
pub(super) fn track_all() {
    descriptors::for_each_untracked(track);
}

/// What the place of a descriptor says has ended. True: there is an object instead, as another
/// thread's call has just made it.
pub(crate) fn end(fd: i32) -> bool {
    let (Some(process), Some(place)) = (home::existing(), places::place(fd)) else { return false };
    epoll::forget_watch(fd);
    match place.end(sys::coarse_seconds()) {
        End::Nothing => false,
        End::Counts(ending) => {
            crate::log!(Info, "connection ends on TCP before it was decided");
            process.count_untracked(ending);
            if place.is_in_use() {
                file::before_number_of_untracked_goes(fd);
            }
            false
        }
        End::Grows => {
            drop(Held::enter(untracked::growing(fd)));
            !descriptors::is_untracked(fd)
        }
    }
}
