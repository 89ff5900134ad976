//! File actions of musl: a list that is made anew by libc's own functions, with bundles first.

use crate::real;
use core::ffi::c_char;
use core::ptr::null;
use sidestep_device::sys;
use sidestep_socket::program::bundle;
use std::sync::OnceLock;

/// `struct fdop` of musl's `src/process/fdop.h`; the path is behind it.
#[repr(C)]
struct Action {
    /// The one that was added before, and is done before.
    older: *const Self,
    newer: *const Self,
    kind: i32,
    fd: i32,
    source: i32,
    flags: i32,
    mode: u32,
    path: [c_char; 0],
}

/// `FDOP_CLOSE` and its kin.
const CLOSE: i32 = 1;
const DUP2: i32 = 2;
const OPEN: i32 = 3;
const CHDIR: i32 = 4;
const FCHDIR: i32 = 5;

/// `posix_spawn_file_actions_t` of musl's `spawn.h`.
#[repr(C)]
struct Actions {
    padding: [i32; 2],
    newest: *const Action,
    reserved: [i32; 16],
}

const _: () = assert!(size_of::<Actions>() == size_of::<libc::posix_spawn_file_actions_t>());

type Listed = *const libc::posix_spawn_file_actions_t;

/// An object of libc's, and the bundles that it names.
struct Made {
    actions: Actions,
    /// Hidden descriptors, closed in the end. (libc takes memory for each action, too.)
    bundles: Vec<i32>,
    /// Numbers under which the actions so far have put something.
    placed: Vec<i32>,
}

impl Made {
    fn new() -> Option<Self> {
        let actions = Actions { padding: [0; 2], newest: null(), reserved: [0; 16] };
        let mut made = Self { actions, bundles: Vec::new(), placed: Vec::new() };
        // SAFETY: an object of the right size.
        (unsafe { libc::posix_spawn_file_actions_init(made.at()) } == 0).then_some(made)
    }

    fn at(&mut self) -> *mut libc::posix_spawn_file_actions_t {
        (&raw mut self.actions).cast()
    }

    /// Puts a bundle under the number of each connection that stays open.
    fn add_bundles(&mut self) {
        bundle::for_each_that_stays(|fd| {
            if let Some(bundle) = bundle::stand_in_hidden(fd) {
                self.bundles.push(bundle);
                self.duplicate(bundle, fd);
            }
        });
    }

    fn duplicate(&mut self, from: i32, to: i32) -> bool {
        self.placed.push(to);
        // SAFETY: an object that libc has made.
        unsafe { libc::posix_spawn_file_actions_adddup2(self.at(), from, to) == 0 }
    }

    /// What stands for a descriptor that an action of the program's duplicates. It may be closed on `exec` under
    /// its own number.
    fn source(&mut self, fd: i32) -> i32 {
        if self.placed.contains(&fd) {
            return fd;
        }
        bundle::give_plain(fd);
        let Some(bundle) = bundle::stand_in_hidden(fd) else { return fd };
        self.bundles.push(bundle);
        bundle
    }

    /// Adds an action of the program's. False: it is of a kind that is not known, or there is no memory.
    fn add(&mut self, action: &Action) -> bool {
        let (path, fd) = (action.path.as_ptr(), action.fd);
        if action.kind == DUP2 {
            let source = self.source(action.source);
            return self.duplicate(source, fd);
        }
        if matches!(action.kind, CLOSE | OPEN) {
            self.placed.push(fd);
        }
        // SAFETY: an object that libc has made, and an action with a path if its kind has one.
        let added = unsafe {
            match action.kind {
                CLOSE => libc::posix_spawn_file_actions_addclose(self.at(), fd),
                OPEN => {
                    let (flags, mode) = (action.flags, action.mode);
                    libc::posix_spawn_file_actions_addopen(self.at(), fd, path, flags, mode)
                }
                CHDIR => real::posix_spawn_file_actions_addchdir_np(self.at(), path),
                FCHDIR => real::posix_spawn_file_actions_addfchdir_np(self.at(), fd),
                _ => libc::ENOSYS,
            }
        };
        added == 0
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: libc has made it.
        unsafe { libc::posix_spawn_file_actions_destroy(self.at()) };
        self.bundles.iter().copied().for_each(sys::close);
    }
}

/// Whether file actions look as we believe.
fn is_layout_known() -> bool {
    static IS_KNOWN: OnceLock<bool> = OnceLock::new();
    *IS_KNOWN.get_or_init(|| {
        let Some(mut made) = Made::new() else { return false };
        let at = made.at();
        // SAFETY: an object of libc's; the pointers that are followed are those of its two actions, if they are
        // what they have to be.
        unsafe {
            let is_made = libc::posix_spawn_file_actions_adddup2(at, 7, 9) == 0
                && libc::posix_spawn_file_actions_addclose(at, 5) == 0;
            let Some(newest) = made.actions.newest.as_ref().filter(|_| is_made) else {
                return false;
            };
            let is_close = (newest.kind, newest.fd) == (CLOSE, 5) && newest.newer.is_null();
            is_close
                && newest.older.as_ref().is_some_and(|oldest| {
                    (oldest.kind, oldest.source, oldest.fd) == (DUP2, 7, 9)
                        && core::ptr::eq(oldest.newer, newest)
                        && oldest.older.is_null()
                })
        }
    })
}

/// Runs `call` with file actions that put bundles in the place of connections, and then do what the program's do.
/// `None`: those are not understood.
///
/// # Safety
/// `listed` is null or file actions of musl's.
pub(super) unsafe fn spawn(listed: Listed, call: impl Fn(Listed) -> i32) -> Option<i32> {
    let mut made = Some(()).filter(|()| is_layout_known()).and_then(|()| Made::new())?;
    made.add_bundles();
    // SAFETY: the caller's promise, and the layout was found out.
    unsafe {
        let mut action = listed.cast::<Actions>().as_ref().map_or(null(), |listed| listed.newest);
        while !action.is_null() && !(*action).older.is_null() {
            action = (*action).older;
        }
        while let Some(known) = action.as_ref() {
            made.add(known).then_some(())?;
            action = known.newer;
        }
    }
    Some(call(made.at()))
}
