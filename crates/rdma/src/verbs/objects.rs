//! What libibverbs hands out, as values that give it back when they are dropped.
//!
//! ```text
//!   Context  an open adapter
//!    ├─ Channel   a descriptor; queues announce there that they are not empty
//!    │   └─ Queue   completions
//!    │       └─ Pair   a queue pair, sending and receiving half
//!    └─ Domain   keys of one domain fit on queue pairs of no other
//!        └─ Key   a registration, which keeps its memory
//! ```
//!
//! Each keeps what it was made from, so the order of the end is right by itself. All calls of the
//! library, and all functions of a driver, are made in this file.
//!
//! What fails here fails with the error that the library has given.

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use sidestep_wire::QpNumber;

use super::abi::{
    self, AsyncElement, AsyncEvent, DeviceAttr, GidEntry, PortAttr, QpAttr, QpCap, QpInitAttr,
    RecvWr, SendWr, Wc,
};
use super::library::Verbs;
use crate::memory::Shared;
use crate::soft::sys;

/// Entries of a port's table of addresses that are looked at; hardware has up to some hundred.
const GIDS_MAX: usize = 1024;

// ---- adapters -----------------------------------------------------------------------------------

/// The names of all adapters.
pub(super) fn names(verbs: &Verbs) -> io::Result<Vec<String>> {
    let list = List::new(verbs)?;
    Ok(list.devices().map(|device| list.name(device)).collect())
}

/// Adapters that can be opened.
struct List<'a> {
    verbs: &'a Verbs,
    first: NonNull<*mut abi::Device>,
    count: usize,
}

impl<'a> List<'a> {
    fn new(verbs: &'a Verbs) -> io::Result<Self> {
        let mut count: c_int = 0;
        // SAFETY: the count is written during the call.
        let first = unsafe { (verbs.get_device_list)(&raw mut count) };
        let first = NonNull::new(first).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { verbs, first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = *mut abi::Device> + '_ {
        // SAFETY: the list has so many entries until it is freed.
        (0..self.count).map(|index| unsafe { self.first.add(index).read() })
    }

    fn name(&self, device: *mut abi::Device) -> String {
        // SAFETY: of this list.
        let name = unsafe { (self.verbs.get_device_name)(device) };
        // SAFETY: a string inside the device.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: as it was given; what was opened from it stays.
        unsafe { (self.verbs.free_device_list)(self.first.as_ptr()) };
    }
}

/// An open adapter.
#[derive(Debug)]
pub(super) struct Context {
    verbs: Arc<Verbs>,
    raw: NonNull<abi::Context>,
}

// SAFETY: libibverbs and its drivers may be called from any thread, and from several at once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What an adapter says of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happening {
    /// The completion queue of this token is of no use any more.
    QueueFailed(usize),
    /// A queue pair has failed by itself.
    PairFailed(QpNumber),
    /// A queue pair has stopped, for its peer has asked for what makes no sense.
    BadRequest(QpNumber),
    /// The same; it has asked for memory that it may not have.
    BadAccess(QpNumber),
    /// A port carries packets.
    PortUp(u8),
    /// It does not any more.
    PortDown(u8),
    /// The addresses of a port have changed.
    Gids(u8),
    /// The adapter cannot go on.
    Gone,
    /// Anything else.
    Other,
}

impl Context {
    /// Opens the adapter of this name; `None`: there is none.
    pub(super) fn open(verbs: &Arc<Verbs>, name: &str) -> io::Result<Option<Self>> {
        let list = List::new(verbs)?;
        let wanted = CString::new(name).ok();
        let Some(device) = list.devices().find(|device| {
            // SAFETY: of this list; the name is a string inside it.
            let name = unsafe { CStr::from_ptr((verbs.get_device_name)(*device)) };
            wanted.as_deref() == Some(name)
        }) else {
            return Ok(None);
        };
        // SAFETY: of a list that is still there.
        let raw = unsafe { (verbs.open_device)(device) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let this = Self { verbs: Arc::clone(verbs), raw };
        sys::set_nonblocking(this.async_fd())?;
        Ok(Some(this))
    }

    /// What the adapter can do.
    pub(super) fn attributes(&self) -> io::Result<DeviceAttr> {
        let mut attributes = MaybeUninit::<DeviceAttr>::zeroed();
        // SAFETY: an open adapter; the place is written during the call.
        check(unsafe { (self.verbs.query_device)(self.raw.as_ptr(), attributes.as_mut_ptr()) })?;
        // SAFETY: any bytes are a value of it, and all have been written.
        Ok(unsafe { attributes.assume_init() })
    }

    /// How one of its ports is, from 1 on.
    pub(super) fn port(&self, number: u8) -> io::Result<PortAttr> {
        // Drivers that are older than the last field leave it alone.
        let mut attributes = MaybeUninit::<PortAttr>::zeroed();
        let place = attributes.as_mut_ptr();
        // SAFETY: an open adapter; the place is written during the call.
        check(unsafe { (self.verbs.query_port)(self.raw.as_ptr(), number, place) })?;
        // SAFETY: any bytes are a value of it, and all have been written.
        Ok(unsafe { attributes.assume_init() })
    }

    /// The addresses of all its ports.
    pub(super) fn gids(&self) -> io::Result<Vec<GidEntry>> {
        let mut entries = vec![GidEntry::default(); GIDS_MAX];
        // SAFETY: so many entries of this size are written at most.
        let count = unsafe {
            (self.verbs.query_gid_table)(
                self.raw.as_ptr(),
                entries.as_mut_ptr(),
                entries.len(),
                0,
                size_of::<GidEntry>(),
            )
        };
        // A negative answer is the error.
        let count =
            usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(-count as i32))?;
        entries.truncate(count);
        Ok(entries)
    }

    /// Readable when [`Self::happening`] has something to tell.
    pub(super) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the adapter is.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }

    /// What has happened next; `None`: nothing.
    pub(super) fn happening(&self) -> Option<Happening> {
        let mut event =
            AsyncEvent { element: AsyncElement { qp: null_mut() }, event_type: c_uint::MAX };
        // SAFETY: an open adapter; the place is written during the call.
        if unsafe { (self.verbs.get_async_event)(self.raw.as_ptr(), &raw mut event) } != 0 {
            let error = io::Error::last_os_error();
            // A driver that was taken out of the kernel leaves a descriptor that only fails.
            return (error.raw_os_error() == Some(libc::EIO)).then_some(Happening::Gone);
        }
        let happening = read(&event);
        // SAFETY: as it was given, once.
        unsafe { (self.verbs.ack_async_event)(&raw mut event) };
        Some(happening)
    }

    fn functions(&self) -> &abi::ContextOps {
        // SAFETY: they do not change while the adapter is open.
        unsafe { &(*self.raw.as_ptr()).ops }
    }
}

/// What an event says. Of what it names nothing is destroyed before it was acknowledged.
fn read(event: &AsyncEvent) -> Happening {
    use abi::event as kind;
    // SAFETY: the type of the event says that it is of a queue pair.
    let pair = || number_of(unsafe { event.element.qp });
    // SAFETY: the type of the event says that it is of a port.
    let port = || u8::try_from(unsafe { event.element.port_num }).unwrap_or(0);
    match event.event_type {
        // SAFETY: the type of the event says that it is of a completion queue, and it is there.
        kind::CQ_ERR => Happening::QueueFailed(unsafe { (*event.element.cq).cq_context } as usize),
        kind::QP_FATAL => Happening::PairFailed(pair()),
        kind::QP_REQ_ERR => Happening::BadRequest(pair()),
        kind::QP_ACCESS_ERR => Happening::BadAccess(pair()),
        kind::DEVICE_FATAL => Happening::Gone,
        kind::PORT_ACTIVE => Happening::PortUp(port()),
        kind::PORT_ERR => Happening::PortDown(port()),
        kind::GID_CHANGE => Happening::Gids(port()),
        _ => Happening::Other,
    }
}

fn number_of(pair: *mut abi::Qp) -> QpNumber {
    // SAFETY: a queue pair that is not destroyed.
    let [_, number @ ..] = unsafe { (*pair).qp_num }.to_be_bytes();
    QpNumber(number)
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: all that was made from it is gone: each keeps it. Nothing is to be done if it fails.
        unsafe { (self.verbs.close_device)(self.raw.as_ptr()) };
    }
}

// ---- completions --------------------------------------------------------------------------------

/// Where queues announce that they are not empty.
#[derive(Debug)]
pub(super) struct Channel {
    context: Arc<Context>,
    raw: NonNull<abi::CompChannel>,
}

// SAFETY: as `Context`.
unsafe impl Send for Channel {}
// SAFETY: as `Context`.
unsafe impl Sync for Channel {}

impl Channel {
    pub(super) fn new(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: an open adapter.
        let raw = unsafe { (context.verbs.create_comp_channel)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let this = Self { context: Arc::clone(context), raw };
        sys::set_nonblocking(this.fd())?;
        Ok(this)
    }

    /// Readable when [`Self::announced`] has something to tell.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel is there.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }

    /// The token of the next queue that was armed and is not empty.
    pub(super) fn announced(&self) -> Option<usize> {
        let verbs = &self.context.verbs;
        let (mut queue, mut token) = (null_mut(), null_mut::<c_void>());
        // SAFETY: both places are written during the call.
        let answer =
            unsafe { (verbs.get_cq_event)(self.raw.as_ptr(), &raw mut queue, &raw mut token) };
        if answer != 0 {
            return None;
        }
        // SAFETY: the queue that was just given, which is there: announcements of one that is
        // destroyed are, too.
        unsafe { (verbs.ack_cq_events)(queue, 1) };
        Some(token as usize)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its queues keep it, so there are none.
        unsafe { (self.context.verbs.destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct Queue {
    channel: Arc<Channel>,
    raw: NonNull<abi::Cq>,
}

// SAFETY: as `Context`.
unsafe impl Send for Queue {}

impl Queue {
    /// A queue with room for so many completions, which announces itself by this token.
    pub(super) fn new(channel: &Arc<Channel>, len: u32, token: usize) -> io::Result<Self> {
        let context = &channel.context;
        let len = c_int::try_from(len).map_err(io::Error::other)?;
        let token = token as *mut c_void;
        let (adapter, at) = (context.raw.as_ptr(), channel.raw.as_ptr());
        // SAFETY: an open adapter and its channel; the token is only handed back.
        let raw = unsafe { (context.verbs.create_cq)(adapter, len, token, at, 0) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { channel: Arc::clone(channel), raw })
    }

    /// Takes completions out, as many as there are and fit, and tells how many.
    pub(super) fn poll(&self, completions: &mut [Wc]) -> io::Result<usize> {
        let poll = self.channel.context.functions().poll_cq.ok_or_else(no_function)?;
        let room = c_int::try_from(completions.len()).unwrap_or(c_int::MAX);
        // SAFETY: so many are written at most.
        let count = unsafe { poll(self.raw.as_ptr(), room, completions.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| io::ErrorKind::Other.into())
    }

    /// Has the next completion announced. One that came before, or meanwhile, may not be.
    pub(super) fn arm(&self) -> io::Result<()> {
        let arm = self.channel.context.functions().req_notify_cq.ok_or_else(no_function)?;
        // SAFETY: a queue that is there.
        check(unsafe { arm(self.raw.as_ptr(), 0) })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: its queue pair is gone, and all its announcements were acknowledged.
        unsafe { (self.channel.context.verbs.destroy_cq)(self.raw.as_ptr()) };
    }
}

// ---- memory -------------------------------------------------------------------------------------

/// A domain of keys.
#[derive(Debug)]
pub(super) struct Domain {
    context: Arc<Context>,
    raw: NonNull<abi::Pd>,
}

// SAFETY: as `Context`.
unsafe impl Send for Domain {}
// SAFETY: as `Context`.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: an open adapter.
        let raw = unsafe { (context.verbs.alloc_pd)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { context: Arc::clone(context), raw })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: keys and queue pairs keep it, so there are none.
        unsafe { (self.context.verbs.dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// Memory that the adapter reaches: by a key of its own, and peers by another if they may.
#[derive(Debug)]
pub(super) struct Key {
    domain: Arc<Domain>,
    memory: Arc<Shared>,
    raw: NonNull<abi::Mr>,
}

// SAFETY: as `Context`.
unsafe impl Send for Key {}

impl Key {
    /// For the adapter alone, to read: also memory that is mapped for reading only.
    pub(super) fn source(domain: &Arc<Domain>, memory: &Arc<Shared>) -> io::Result<Self> {
        let address = memory.base() as u64;
        Self::new(domain, memory, address, 0)
    }

    /// For the adapter alone.
    pub(super) fn local(domain: &Arc<Domain>, memory: &Arc<Shared>) -> io::Result<Self> {
        let address = memory.base() as u64;
        Self::new(domain, memory, address, abi::ACCESS_LOCAL_WRITE)
    }

    /// For the peers of the domain's queue pairs, who write to it as if it began at `address`: a
    /// number that is as far behind a page's beginning as the memory.
    pub(super) fn remote(
        domain: &Arc<Domain>,
        memory: &Arc<Shared>,
        address: u64,
    ) -> io::Result<Self> {
        // Memory that others write, the adapter writes for them.
        let access = abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE;
        Self::new(domain, memory, address, access)
    }

    fn new(
        domain: &Arc<Domain>,
        memory: &Arc<Shared>,
        address: u64,
        access: c_int,
    ) -> io::Result<Self> {
        let verbs = &domain.context.verbs;
        let base = memory.base().cast::<c_void>();
        // SAFETY: the memory stays mapped as long as the key is there, which keeps it, and is only
        // reached by raw pointers, and so may be written at any time.
        let raw = unsafe {
            (verbs.reg_mr_iova)(domain.raw.as_ptr(), base, memory.len(), address, access)
        };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { domain: Arc::clone(domain), memory: Arc::clone(memory), raw })
    }

    /// What it is the key to.
    pub(super) const fn memory(&self) -> &Arc<Shared> {
        &self.memory
    }

    /// The adapter's own.
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: written once, before it was given to us.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// The peers'.
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw.as_ptr()).rkey }
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: as it was given; nothing that was posted with it is read any more.
        let answer = unsafe { (self.domain.context.verbs.dereg_mr)(self.raw.as_ptr()) };
        if answer != 0 {
            // The adapter may reach the memory for ever, so it must never be anything else.
            std::mem::forget(Arc::clone(&self.memory));
        }
    }
}

// ---- queue pairs --------------------------------------------------------------------------------

/// A queue pair and its completion queue.
#[derive(Debug)]
pub(super) struct Pair {
    domain: Arc<Domain>,
    raw: NonNull<abi::Qp>,
    /// What it really has room for.
    cap: QpCap,
    queue: Queue,
    /// Where messages come to.
    rooms: Key,
}

// SAFETY: as `Context`.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

impl Pair {
    /// A reliable connection that has at least this much room.
    pub(super) fn new(
        domain: &Arc<Domain>,
        queue: Queue,
        cap: QpCap,
        rooms: Key,
    ) -> io::Result<Self> {
        let mut wanted = QpInitAttr {
            qp_context: null_mut(),
            send_cq: queue.raw.as_ptr(),
            recv_cq: queue.raw.as_ptr(),
            srq: null_mut(),
            cap,
            qp_type: abi::QPT_RC,
            sq_sig_all: 0,
        };
        let verbs = &domain.context.verbs;
        // SAFETY: a domain and a queue of the same adapter; what it has room for is written back.
        let raw = unsafe { (verbs.create_qp)(domain.raw.as_ptr(), &raw mut wanted) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { domain: Arc::clone(domain), raw, cap: wanted.cap, queue, rooms })
    }

    pub(super) fn number(&self) -> QpNumber {
        number_of(self.raw.as_ptr())
    }

    pub(super) const fn cap(&self) -> &QpCap {
        &self.cap
    }

    pub(super) const fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    pub(super) const fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The memory that messages come to.
    pub(super) const fn rooms(&self) -> &Key {
        &self.rooms
    }

    /// Gives the fields of `attributes` that `mask` names to the queue pair.
    pub(super) fn modify(&self, mut attributes: QpAttr, mask: c_int) -> io::Result<()> {
        let modify = self.domain.context.verbs.modify_qp;
        // SAFETY: a queue pair that is there; the attributes are read during the call.
        check(unsafe { modify(self.raw.as_ptr(), &raw mut attributes, mask) })
    }

    /// Posts works that are linked by their `next`, from the first on. If it fails, some may have been
    /// posted.
    ///
    /// # Safety
    ///
    /// Pieces of memory that they name stay as they are and mapped until the works are completed or
    /// the queue pair is in its error state; pieces that are sent inline, during the call.
    pub(super) unsafe fn post_send(&self, first: &mut SendWr) -> io::Result<()> {
        let post = self.domain.context.functions().post_send.ok_or_else(no_function)?;
        let mut failed = null_mut();
        // SAFETY: the caller's word; the works themselves are read during the call.
        check(unsafe { post(self.raw.as_ptr(), first, &raw mut failed) })
    }

    /// Posts room for messages, linked in the same way.
    ///
    /// # Safety
    ///
    /// Pieces of memory that they name stay mapped, and are used for nothing else, until they are completed
    /// or the queue pair is destroyed.
    pub(super) unsafe fn post_recv(&self, first: &mut RecvWr) -> io::Result<()> {
        let post = self.domain.context.functions().post_recv.ok_or_else(no_function)?;
        let mut failed = null_mut();
        // SAFETY: the caller's word; the works themselves are read during the call.
        check(unsafe { post(self.raw.as_ptr(), first, &raw mut failed) })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: as it was given, and before its queue and its domain.
        unsafe { (self.domain.context.verbs.destroy_qp)(self.raw.as_ptr()) };
    }
}

/// Most functions answer 0, the number of an error, or -1 and leave it in `errno`.
fn check(answer: c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        1.. => Err(io::Error::from_raw_os_error(answer)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A driver that lacks what every driver has.
fn no_function() -> io::Error {
    io::ErrorKind::Unsupported.into()
}
