//! Which descriptors are ours: one word each, one look-up per call.
//!
//! ```text
//!   0             not ours: straight to libc
//!   sock | 0      a TCP stream socket
//!   set  | 1      an epoll descriptor with TCP sockets in it
//!   2             a TCP stream socket that has no object, if its place says so: an untracked
//!                 connection, or a socket that is not connected
//!   sock | 4      being closed; calls that begin now begin after that ([`crate::table::file`])
//!   4             nothing of ours, and `dup2` puts a socket over it: the same
//! ```
//!
//! A room that needs the object of an untracked connection has it made by asking ([`crate::table::untracked`]). The
//! 2 stays when the descriptor is closed. Programs that open a connection for each request get
//! the same few numbers again and again, on many CPUs, and none of these has to write here then.
//!
//! The table is a cache of what the kernel knows (the descriptor *is* a kernel
//! socket); forgetting an entry costs speed on a connection that is still on TCP
//! and nothing else.

use crate::table::set::Handle;
use crate::table::sock::{self, Sock};
use crate::table::{outlast, places};
use core::cell::Cell;
use core::ops::Deref;
use core::sync::atomic::{AtomicUsize, Ordering, fence};
use core::time::Duration;
use sidestep_device::apart;
use sidestep_device::sparse::Sparse;
use std::sync::OnceLock;

/// Descriptor numbers above this are never ours.
const TABLE_LEN: usize = 1 << 20;
const SET_TAG: usize = 1;
/// A socket without an object, or what was one.
const UNTRACKED: usize = 2;
/// Handle by the closing side until the kernel has closed the descriptor.
const CLOSING: usize = 4;
/// Handle by it when it has made a copy for calls under way, if there are any.
const DECIDED: usize = 8;
const TAGS: usize = SET_TAG | UNTRACKED | CLOSING | DECIDED;

/// How long a call waits for the closing side: one that is starved of its CPU.
const PATIENCE: Duration = Duration::from_secs(10);

std::thread_local! {
    /// The descriptor that this thread is closing, -1 = none: its signal handlers must not wait.
    static CLOSED_HERE: Cell<i32> = const { Cell::new(-1) };
}

/// One for each descriptor.
static TABLE: Table = Table(Sparse::new());

struct Table(Sparse<AtomicUsize, TABLE_LEN>);

impl Table {
    /// The word of a descriptor, to be looked at; `None`: it is 0.
    #[inline]
    fn get(&self, fd: usize) -> Option<&AtomicUsize> {
        self.0.get(apart::place(fd))
    }

    /// The word of a descriptor, to be changed; `None`: it has no place, or there is no
    /// memory for it.
    #[inline]
    fn writable(&self, fd: usize) -> Option<&AtomicUsize> {
        self.0.writable(apart::place(fd))
    }
}

/// A socket in use by this call: it is not recycled meanwhile, even if another
/// thread closes the descriptor.
pub struct Use(&'static Sock);

impl Deref for Use {
    type Target = Sock;

    fn deref(&self) -> &Sock {
        self.0
    }
}

impl Use {
    /// `None`: it was dissolved.
    pub(crate) fn of(sock: &'static Sock) -> Option<Self> {
        // A guard that is made before the answer is known would count one user off when it is dropped.
        sock.enter().then(|| Self(sock))
    }

    /// The socket itself, for callers that keep it in use by other means.
    #[must_use]
    pub fn sock(&self) -> &'static Sock {
        self.0
    }
}

impl Drop for Use {
    #[inline]
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Objects in use: by their descriptors together, and by each call.
impl Sock {
    /// Counts one more user; false when the object was dissolved.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        let mut uses = self.uses.load(Ordering::Relaxed);
        while uses != 0 {
            let (old, new) = (uses, uses + 1);
            // SeqCst: see `enter`, which looks at the table afterwards.
            match self.uses.compare_exchange_weak(old, new, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => uses = now,
            }
        }
        false
    }

    /// One user less; the last one dissolves it.
    #[inline]
    pub(crate) fn leave(&'static self) {
        if self.uses.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.dissolve();
        }
    }

    #[cold]
    fn dissolve(&'static self) {
        if let Some(life) = sock::LIFE.get() {
            (life.dissolve)(self);
        }
    }
}

#[inline]
fn entry(fd: i32) -> Option<&'static AtomicUsize> {
    TABLE.writable(fd as usize)
}

#[inline]
fn load(fd: i32) -> usize {
    // Acquire: pairs with the Release in `replace`.
    TABLE.get(fd as usize).map_or(0, |entry| entry.load(Ordering::Acquire))
}

/// Where a descriptor leads, for a send or a receive.
pub(crate) enum Lead {
    /// Not to a TCP socket of ours.
    Nowhere,
    /// To a socket without an object, if its place says so: see [`untracked`](crate::table::untracked).
    Place,
    /// To the object of a socket.
    Sock(Use),
}

/// The one look-up of a call that moves bytes. It is made in the frame of the caller: a function of
/// its own would add 50 instructions. What is rare is one.
#[inline(always)]
pub(crate) fn lead(fd: i32) -> Lead {
    let Some(entry) = TABLE.get(fd as usize) else { return Lead::Nowhere };
    // Acquire: as in `load`.
    let word = entry.load(Ordering::Acquire);
    if word == 0 {
        return Lead::Nowhere;
    }
    let sock = match word & TAGS {
        0 => enter(entry, fd, word),
        UNTRACKED => return Lead::Place,
        _ => after_closing(fd, word),
    };
    sock.map_or(Lead::Nowhere, Lead::Sock)
}

/// The TCP socket behind a descriptor, if it is one.
pub fn sock(fd: i32) -> Option<Use> {
    match lead(fd) {
        Lead::Sock(sock) => Some(sock),
        Lead::Place if places::stage(fd).is_some() => grown(fd),
        Lead::Place | Lead::Nowhere => None,
    }
}

#[cold]
fn after_closing(fd: i32, word: usize) -> Option<Use> {
    if word & CLOSING != 0 && outlast_closing(fd) { sock(fd) } else { None }
}

/// Waits until a descriptor is closed. False: this thread is closing it, or it takes too long. True says
/// that it was: by the next look the number may be in the middle of being closed again, which is no
/// reason to take it for a stranger's.
#[cold]
fn outlast_closing(fd: i32) -> bool {
    CLOSED_HERE.get() != fd && outlast::outlast(PATIENCE, || load(fd) & CLOSING != 0)
}

#[cold]
fn grown(fd: i32) -> Option<Use> {
    if let Some(tracking) = TRACKING.get() {
        (tracking.track)(fd);
    }
    object(fd)
}

/// The same, if it has an object: an untracked connection stays one.
#[inline]
pub fn object(fd: i32) -> Option<Use> {
    let entry = TABLE.get(fd as usize)?;
    // Acquire: as in `load`.
    let word = entry.load(Ordering::Acquire);
    if word != 0 && word & TAGS == 0 {
        return enter(entry, fd, word);
    }
    if word & CLOSING != 0 && outlast_closing(fd) { object(fd) } else { None }
}

/// Whether the place of a descriptor says what it is, if anything.
#[inline]
#[must_use]
pub fn is_untracked(fd: i32) -> bool {
    load(fd) == UNTRACKED
}

/// How the place of a descriptor ends, and how its socket gets an object: said by the room that lets sockets be
/// without one, in a room above this one.
pub(crate) struct Tracking {
    /// Makes the object of the socket behind a descriptor.
    pub(crate) track: fn(i32),
    /// What the place of a descriptor says has ended. True: there is an object instead.
    pub(crate) end: fn(i32) -> bool,
}

static TRACKING: OnceLock<&'static Tracking> = OnceLock::new();

/// From now on the place of a descriptor says what it is.
pub(crate) fn insert_untracked(fd: i32, tracking: &'static Tracking) -> Entry {
    let _ = TRACKING.set(tracking);
    note_highest(fd);
    if is_untracked(fd) { Entry::Nothing } else { replace(fd, UNTRACKED) }
}

/// The same for a look: a call that accepts wants to know what its listener was given, and many
/// may accept from it at once, each of whom would take it from the others by counting himself
/// as a user. What is read was that listener's as long as [`leads_to`] says so afterwards.
#[inline]
pub fn peek(fd: i32) -> Option<&'static Sock> {
    let word = load(fd);
    (word != 0 && word & TAGS == 0).then(|| sock_of(word))
}

/// Whether a descriptor is one of this socket's still, after something was read from it.
#[inline]
#[must_use]
pub fn leads_to(fd: i32, sock: &Sock) -> bool {
    is_word_of(fd, word_of(sock))
}

/// The same for a word of the table.
#[inline]
pub(super) fn is_word_of(fd: i32, word: usize) -> bool {
    // Acquire: what was read before is not of a later time than the word.
    fence(Ordering::Acquire);
    load(fd) == word
}

#[inline(always)]
fn enter(entry: &AtomicUsize, fd: i32, word: usize) -> Option<Use> {
    let sock = sock_of(word);
    if sock.enter() {
        // SeqCst: either we see that the descriptor is being closed, or the closing side sees us.
        if entry.load(Ordering::SeqCst) == word {
            return Some(Use(sock));
        }
        sock.leave();
    }
    enter_anew(fd)
}

/// It was closed meanwhile, and perhaps opened anew.
#[cold]
fn enter_anew(fd: i32) -> Option<Use> {
    object(fd)
}

/// The epoll set behind a descriptor, if it is one of ours.
#[inline]
pub fn set(fd: i32) -> Option<&'static Handle> {
    let word = load(fd);
    if word & SET_TAG == 0 {
        return None;
    }
    if word & CLOSING != 0 {
        return if outlast_closing(fd) { set(fd) } else { None };
    }
    Some(set_of(word))
}

/// An epoll set in use by this call: it is not dissolved meanwhile, even if another thread closes
/// the descriptor.
pub struct SetUse(&'static Handle);

impl SetUse {
    /// The set itself.
    #[must_use]
    pub fn handle(&self) -> &'static Handle {
        self.0
    }
}

impl Drop for SetUse {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The same for a call that may sleep in it.
#[inline]
pub fn set_in_use(fd: i32) -> Option<SetUse> {
    let set = set(fd)?;
    if set.enter() {
        let in_use = SetUse(set);
        // SeqCst: as in `enter`.
        if entry(fd).is_some_and(|entry| entry.load(Ordering::SeqCst) == word_of_set(set)) {
            return Some(in_use);
        }
    }
    // Closed meanwhile, and perhaps opened anew.
    set_in_use(fd)
}

/// What a descriptor stood for.
pub enum Entry {
    /// Not ours.
    Nothing,
    /// What the place of this descriptor says.
    Untracked(i32),
    /// A TCP socket; one descriptor less refers to it.
    Sock(&'static Sock),
    /// An epoll set.
    Set(&'static Handle),
}

/// The table forgot a descriptor: one reference less.
pub(crate) fn forget_entry(entry: Entry, fd: i32) {
    match entry {
        Entry::Nothing => {}
        Entry::Untracked(place) => _ = TRACKING.get().is_some_and(|tracking| (tracking.end)(place)),
        Entry::Sock(sock) => sock.drop_descriptor(fd),
        Entry::Set(set) => set.drop_descriptor(),
    }
}

/// Whether a descriptor can be entered: its number is not too high, and there is memory.
#[must_use]
pub(crate) fn has_place(fd: i32) -> bool {
    entry(fd).is_some()
}

/// Whether a descriptor is a socket or an epoll set of ours.
#[inline]
#[must_use]
pub fn is_ours(fd: i32) -> bool {
    match load(fd) {
        0 => false,
        UNTRACKED => places::stage(fd).is_some(),
        _ => true,
    }
}

/// Takes a descriptor out of the table.
#[must_use]
pub fn remove(fd: i32) -> Entry {
    replace(fd, 0)
}

/// The closing side: from now on no call begins with this descriptor, if it is a socket's, until
/// [`end_closing`]. Anything else is taken out of the table.
#[must_use]
pub(crate) fn begin_closing(fd: i32) -> Entry {
    loop {
        let word = load(fd);
        if word & CLOSING != 0 {
            // Another thread closes it, too, and comes first.
            if outlast_closing(fd) {
                continue;
            }
            return Entry::Nothing;
        }
        if word == 0 || word & UNTRACKED != 0 {
            return remove(fd);
        }
        let Some(entry) = entry(fd) else { return Entry::Nothing };
        // SeqCst: either the closing side sees a call that has begun, or that sees the tag.
        let tagged =
            entry.compare_exchange(word, word | CLOSING, Ordering::SeqCst, Ordering::Relaxed);
        if tagged.is_ok() {
            return what_is(word);
        }
    }
}

/// The same of a number that leads to no object: whether it was [untracked](is_untracked). `None`: it leads to
/// one, or is being closed already, or has no place.
pub(crate) fn hold(fd: i32) -> Option<bool> {
    note_highest(fd);
    let entry = entry(fd)?;
    [0, UNTRACKED].into_iter().find_map(|word| {
        // SeqCst: as in `begin_closing`.
        let held =
            entry.compare_exchange(word, CLOSING | DECIDED, Ordering::SeqCst, Ordering::Relaxed);
        held.is_ok().then_some(word == UNTRACKED)
    })
}

/// The closing side has made a copy for calls under way, if there are any.
pub(super) fn decide_closing(fd: i32, word: usize) {
    let word = word | CLOSING;
    if let Some(entry) = entry(fd) {
        // Release: a thread that sees it finds the copy.
        let _ = entry.compare_exchange(word, word | DECIDED, Ordering::Release, Ordering::Relaxed);
    }
}

/// Whether a descriptor is being closed by a side that may be about to make a copy.
pub(super) fn is_closing_undecided(fd: i32, word: usize) -> bool {
    load(fd) == word | CLOSING
}

/// What the table has for descriptors of a socket.
pub(crate) fn word_of(sock: &Sock) -> usize {
    core::ptr::from_ref(sock) as usize
}

/// What the table has for descriptors of an epoll set.
pub(crate) fn word_of_set(set: &Handle) -> usize {
    core::ptr::from_ref(set) as usize | SET_TAG
}

/// The kernel has closed it, and perhaps given the number away again: then another word is there.
pub(crate) fn end_closing(fd: i32, word: usize) {
    let word = word | CLOSING | DECIDED;
    if let Some(entry) = entry(fd) {
        let _ = entry.compare_exchange(word, 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// Says which descriptor this thread is closing; returns which it was.
pub(crate) fn note_closed_here(fd: i32) -> i32 {
    CLOSED_HERE.replace(fd)
}

/// In the child of a fork: the threads that were closing descriptors are not there. The kernel has
/// closed them, or the child has them without knowing what they are.
pub(crate) fn after_fork_in_child() {
    for fd in 0..=HIGHEST.load(Ordering::Relaxed) {
        if let Some(entry) = TABLE.get(fd).filter(|_| load(fd as i32) & CLOSING != 0) {
            entry.store(0, Ordering::Relaxed);
        }
    }
}

/// Enters a TCP socket; the entry counts as one of its descriptors.
#[must_use]
pub fn insert_sock(fd: i32, sock: &'static Sock) -> Entry {
    if !has_place(fd) {
        return Entry::Nothing;
    }
    sock.descriptors.fetch_add(1, Ordering::Relaxed);
    replace(fd, core::ptr::from_ref(sock) as usize)
}

/// Enters the object of a socket that had none. False: the descriptor is another's meanwhile.
#[must_use]
pub(crate) fn track(fd: i32, sock: &'static Sock) -> bool {
    sock.descriptors.fetch_add(1, Ordering::Relaxed);
    let word = core::ptr::from_ref(sock) as usize;
    let is_in_place = entry(fd).is_some_and(|entry| {
        entry.compare_exchange(UNTRACKED, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    });
    if !is_in_place {
        sock.descriptors.fetch_sub(1, Ordering::Relaxed);
    }
    is_in_place
}

/// Enters an epoll set.
#[must_use]
pub fn insert_set(fd: i32, set: &'static Handle) -> Entry {
    if !has_place(fd) {
        return Entry::Nothing;
    }
    set.descriptors.fetch_add(1, Ordering::Relaxed);
    replace(fd, core::ptr::from_ref(set) as usize | SET_TAG)
}

fn replace(fd: i32, word: usize) -> Entry {
    if word == 0 && load(fd) == 0 {
        return Entry::Nothing;
    }
    let Some(entry) = entry(fd) else { return Entry::Nothing };
    let old = entry.swap(word, Ordering::AcqRel);
    if old == UNTRACKED {
        Entry::Untracked(fd)
    } else if old == 0 || old & CLOSING != 0 {
        Entry::Nothing
    } else {
        what_is(old)
    }
}

/// The socket whose word the table has: it is not 0 and has no tag.
#[inline]
fn sock_of(word: usize) -> &'static Sock {
    debug_assert!(word != 0 && word & TAGS == 0);
    // SAFETY: such a word is stored by `insert_sock` and `track` alone, as the address of a
    // `&'static Sock`, and `load` has acquired it. A pool's memory stays one of Socks.
    unsafe { &*core::ptr::with_exposed_provenance(word) }
}

/// The epoll set whose word the table has: its tag is set.
#[inline]
fn set_of(word: usize) -> &'static Handle {
    debug_assert!(word & TAGS == SET_TAG);
    // SAFETY: such a word is stored by `insert_set` alone, as the address of a `&'static Handle` with the
    // tag, and `load` has acquired it. A pool's memory stays one of Sets.
    unsafe { &*core::ptr::with_exposed_provenance(word & !SET_TAG) }
}

/// The object behind a word of the table.
fn what_is(word: usize) -> Entry {
    if word & SET_TAG != 0 { Entry::Set(set_of(word)) } else { Entry::Sock(sock_of(word)) }
}

/// Calls `f` with every descriptor of a socket that has no object.
pub(crate) fn for_each_untracked(f: impl FnMut(i32)) {
    let highest = HIGHEST.load(Ordering::Relaxed) as i32;
    let is_one = |fd: &i32| is_untracked(*fd) && places::stage(*fd).is_some();
    (0..=highest).filter(is_one).for_each(f);
}

/// Calls `f` with every descriptor of a socket that has one. For the rare moments (fork, exec)
/// that concern them all.
pub fn for_each_sock(mut f: impl FnMut(i32, &'static Sock)) {
    let highest = HIGHEST.load(Ordering::Relaxed);
    for fd in 0..=highest {
        let word = load(fd as i32);
        if word != 0 && word & TAGS == 0 {
            f(fd as i32, sock_of(word));
        }
    }
}

/// Whether no descriptor is a TCP socket of ours.
#[must_use]
pub fn is_empty() -> bool {
    let is_sock = |fd| is_ours(fd) && load(fd) & (SET_TAG | CLOSING) == 0;
    !(0..=HIGHEST.load(Ordering::Relaxed) as i32).any(is_sock)
}

/// Calls `f` with the epoll set of every descriptor that is one of ours.
pub fn for_each_set(mut f: impl FnMut(&'static Handle)) {
    let highest = HIGHEST.load(Ordering::Relaxed) as i32;
    let is_open = |fd: &i32| load(*fd) & CLOSING == 0;
    (0..=highest).filter(is_open).filter_map(set).for_each(&mut f);
}

/// Highest descriptor that was ever entered.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// Notes that `fd` may be in the table; called where descriptors are entered.
pub fn note_highest(fd: i32) {
    // Hardly ever: a write would take the line away from all others.
    if (fd as usize) < TABLE_LEN && HIGHEST.load(Ordering::Relaxed) < fd as usize {
        HIGHEST.fetch_max(fd as usize, Ordering::Relaxed);
    }
}

/// Whether any descriptor was ever entered.
#[inline]
#[must_use]
pub fn are_any() -> bool {
    TABLE.0.is_begun()
}

/// Highest descriptor that was ever entered, 0 if none was.
#[inline]
#[must_use]
pub fn highest() -> usize {
    HIGHEST.load(Ordering::Relaxed)
}

/// Whether `fd` is the lowest descriptor that refers to `sock`: so that a walk over
/// all descriptors meets each socket once.
#[must_use]
pub fn is_first_of(fd: i32, sock: &Sock) -> bool {
    let word = core::ptr::from_ref(sock) as usize;
    sock.descriptors.load(Ordering::Relaxed) == 1 || (0..fd).all(|lower| load(lower) != word)
}

/// The lowest descriptor that refers to `sock`.
pub fn first_of(sock: &Sock) -> Option<i32> {
    first_with(word_of(sock))
}

/// The lowest descriptor of which the table has this word.
pub(super) fn first_with(word: usize) -> Option<i32> {
    let highest = HIGHEST.load(Ordering::Relaxed);
    (0..=highest as i32).find(|fd| load(*fd) == word)
}

/// Calls `f` with every descriptor of the table between two numbers, inclusive.
pub fn for_each(first: usize, last: usize, mut f: impl FnMut(i32)) {
    let last = last.min(HIGHEST.load(Ordering::Relaxed));
    for fd in first..=last {
        if is_ours(fd as i32) {
            f(fd as i32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_descriptor_has_no_word() {
        assert!(TABLE.get(usize::MAX).is_none() && TABLE.get(TABLE_LEN).is_none());
        assert!(TABLE.writable(usize::MAX).is_none() && TABLE.writable(TABLE_LEN).is_none());
    }

    #[test]
    fn a_socket_that_was_dissolved_is_not_taken_into_use() {
        let sock: &'static Sock = sidestep_device::map::zeroed().unwrap();
        for _ in 0..2 {
            assert!(Use::of(sock).is_none());
        }
    }
}
