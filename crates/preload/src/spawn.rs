//! `posix_spawn`, `popen` and `system`: programs that libc begins by itself.
//!
//! The child that libc makes runs none of our code before its `exec`. So a bundle is made
//! in the parent for each connection in shared memory that stays open, and the child puts
//! it in place by *file actions*, which run there before all that the program has asked for.
//! `popen` and `system` take no file actions: there the bundles lie beside, and the
//! new program finds them.

mod musl;

use crate::real;
use core::ffi::c_char;
use core::ptr::null_mut;
use sidestep_device::map::{self, Mapping};
use sidestep_device::sys;
use sidestep_socket::process::loan;
use sidestep_socket::program::bundle::{self, Beside};
use sidestep_socket::table::descriptors;
use std::sync::OnceLock;

/// One file action of glibc: `struct __spawn_action` of its `posix/spawn_int.h`, a number
/// and a union whose longest member has two integers, a pointer and two integers.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    tag: i32,
    padding: i32,
    words: [i32; 6],
}

/// `spawn_do_close` and `spawn_do_dup2`.
const CLOSE: i32 = 0;
const DUP2: i32 = 1;

/// `posix_spawn_file_actions_t` of glibc's `spawn.h`.
#[repr(C)]
struct Actions {
    allocated: i32,
    used: i32,
    list: *mut Action,
    reserved: [i32; 16],
}

const _: () = assert!(size_of::<Action>() == 32);
const _: () = assert!(size_of::<Actions>() == size_of::<libc::posix_spawn_file_actions_t>());

type Texts = *const *const c_char;
type Listed = *const libc::posix_spawn_file_actions_t;

/// Whether file actions look as we believe.
fn is_layout_known() -> bool {
    static IS_KNOWN: OnceLock<bool> = OnceLock::new();
    *IS_KNOWN.get_or_init(ask_for_layout)
}

/// Lets libc make some.
fn ask_for_layout() -> bool {
    let mut actions = Actions { allocated: 0, used: 0, list: null_mut(), reserved: [0; 16] };
    let at = (&raw mut actions).cast::<libc::posix_spawn_file_actions_t>();
    // SAFETY: an object of the right size; the list has two actions if libc says so, and
    // they are read as plain integers.
    unsafe {
        let made = libc::posix_spawn_file_actions_init(at) == 0
            && libc::posix_spawn_file_actions_adddup2(at, 7, 9) == 0
            && libc::posix_spawn_file_actions_addclose(at, 5) == 0;
        let is_known = made && actions.used == 2 && {
            let [first, second] = [*actions.list, *actions.list.add(1)];
            (first.tag, first.words[0], first.words[1]) == (DUP2, 7, 9)
                && (second.tag, second.words[0]) == (CLOSE, 5)
        };
        libc::posix_spawn_file_actions_destroy(at);
        is_known
    }
}

/// File actions that are made of the program's.
struct Plan<'a> {
    theirs: &'a [Action],
    room: Mapping,
    /// How many there is room for, and how many there are.
    most: usize,
    used: usize,
}

impl<'a> Plan<'a> {
    fn new(theirs: &'a [Action]) -> Option<Self> {
        let mut most = theirs.len();
        bundle::for_each_that_stays(|_| most += 1);
        let room = map::reserve((most * size_of::<Action>()).max(1)).ok()?;
        Some(Self { theirs, room, most, used: 0 })
    }

    fn push(&mut self, action: Action) {
        // SAFETY: inside the room.
        unsafe { self.list().add(self.used).write(action) };
        self.used += 1;
    }

    fn list(&self) -> *mut Action {
        self.room.at(0, self.most * size_of::<Action>()).cast()
    }

    /// Bundles for what stays open, under the same numbers, then the program's actions.
    fn fill(&mut self) {
        bundle::for_each_that_stays(|fd| {
            // Descriptors may have come since they were counted.
            if self.used + self.theirs.len() < self.most
                && let Some(bundle) = bundle::stand_in_hidden(fd)
            {
                self.push(Action { tag: DUP2, padding: 0, words: [bundle, fd, 0, 0, 0, 0] });
            }
        });
        let own = self.used;
        for action in self.theirs {
            let mut action = *action;
            // A descriptor that is closed on `exec` under its own number.
            if action.tag == DUP2 && !self.has_placed(own, action.words[0]) {
                bundle::give_plain(action.words[0]);
                let other = bundle::stand_in_hidden(action.words[0]);
                action.words[0] = other.unwrap_or(action.words[0]);
            }
            self.push(action);
        }
    }

    /// Whether the first `own` actions, or one of the program's since, have put something
    /// under a number.
    fn has_placed(&self, own: usize, fd: i32) -> bool {
        // SAFETY: so many were written.
        let list = unsafe { core::slice::from_raw_parts(self.list(), self.used) };
        let (own, theirs) = list.split_at(own);
        own.iter().any(|action| action.words[1] == fd)
            || theirs.iter().any(|action| match action.tag {
                DUP2 => action.words[1] == fd,
                _ => action.words[0] == fd,
            })
    }

    fn actions(&self) -> Actions {
        let used = self.used as i32;
        Actions { allocated: used, used, list: self.list(), reserved: [0; 16] }
    }
}

impl Drop for Plan<'_> {
    fn drop(&mut self) {
        let own = self.used - self.theirs.len();
        for at in 0..self.used {
            // SAFETY: so many were written.
            let from = unsafe { (*self.list().add(at)).words[0] };
            let is_ours = at.checked_sub(own).is_none_or(|at| self.theirs[at].words[0] != from);
            if is_ours {
                sys::close(from);
            }
        }
        // SAFETY: the list is not used again.
        unsafe { self.room.unmap() };
    }
}

/// Runs `call` with file actions that put bundles in the place of connections.
///
/// # Safety
/// `listed` is null or file actions of libc.
unsafe fn spawn(listed: Listed, call: impl Fn(Listed) -> i32) -> i32 {
    let concerns_us = !descriptors::is_empty() && !loan::is_borrowed_memory();
    if !concerns_us {
        return call(listed);
    }
    bundle::give_all_plain();
    if real::is_musl() {
        // SAFETY: the caller's promise.
        let answer = unsafe { musl::spawn(listed, &call) };
        return answer.unwrap_or_else(|| call(listed));
    }
    if !is_layout_known() {
        return call(listed);
    }
    // SAFETY: null or the program's object, whose layout was just found out.
    let theirs = unsafe {
        match listed.cast::<Actions>().as_ref() {
            Some(actions) if actions.used > 0 => {
                core::slice::from_raw_parts(actions.list, actions.used as usize)
            }
            _ => &[],
        }
    };
    let Some(mut plan) = Plan::new(theirs) else { return call(listed) };
    plan.fill();
    let actions = plan.actions();
    call((&raw const actions).cast())
}

/// # Safety
/// As `posix_spawn`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn(
    child: *mut libc::pid_t,
    path: *const c_char,
    actions: Listed,
    attributes: *const libc::posix_spawnattr_t,
    arguments: Texts,
    environment: Texts,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        spawn(actions, |actions| {
            real::posix_spawn(child, path, actions, attributes, arguments, environment)
        })
    }
}

/// # Safety
/// As `posix_spawnp`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawnp(
    child: *mut libc::pid_t,
    file: *const c_char,
    actions: Listed,
    attributes: *const libc::posix_spawnattr_t,
    arguments: Texts,
    environment: Texts,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        spawn(actions, |actions| {
            real::posix_spawnp(child, file, actions, attributes, arguments, environment)
        })
    }
}

/// # Safety
/// As `system`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn system(command: *const c_char) -> i32 {
    let _beside = Beside::lay_out();
    // SAFETY: the caller's promise.
    unsafe { real::system(command) }
}

/// # Safety
/// As `popen`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn popen(command: *const c_char, kind: *const c_char) -> *mut libc::FILE {
    let _beside = Beside::lay_out();
    // SAFETY: the caller's promise.
    unsafe { real::popen(command, kind) }
}
