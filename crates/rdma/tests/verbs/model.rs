//! A model of an RDMA adapter, behind the same table of functions as libibverbs.
//!
//! ```text
//!   the adapter under test ── Verbs (functions of this file) ──> World, one for each test's thread
//!                                                                 │
//!   step() ── takes works off the queue pairs, checks keys and bounds, moves bytes, completes
//! ```
//!
//! Nothing happens by itself: what was posted waits until the test calls [`step`]. Then the model
//! does what the standard says, and what a test has asked for besides: silence, a port that goes
//! down, an adapter that is taken away. Completions are announced on real descriptors, so `poll`
//! works.
//!
//! It believes the program nothing. A queue that overruns, memory that is given back while somebody
//! has a key to it, an object that is destroyed before what was made from it: each is a panic. Since
//! no panic leaves a function that C calls, each is the end of the test program, too, with its text.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::{dangling_mut, null_mut};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sidestep_rdma::verbs::Verbs;
use sidestep_rdma::verbs::abi::{
    self, AsyncElement, AsyncEvent, CompChannel, Context, ContextOps, Cq, Device, DeviceAttr,
    GidEntry, Mr, Pd, PortAttr, Qp, QpAttr, QpCap, QpInitAttr, RecvWr, SendWr, Sge, Wc, event,
    mask, state, status,
};

/// The functions of the model.
pub(crate) fn verbs() -> Arc<Verbs> {
    Arc::new(Verbs {
        get_device_list,
        free_device_list,
        get_device_name,
        open_device,
        close_device,
        query_device,
        query_port,
        query_gid_table,
        get_async_event,
        ack_async_event,
        alloc_pd,
        dealloc_pd,
        reg_mr_iova,
        dereg_mr,
        create_comp_channel,
        destroy_comp_channel,
        create_cq,
        destroy_cq,
        get_cq_event,
        ack_cq_events,
        create_qp,
        modify_qp,
        destroy_qp,
    })
}

/// The name of the only adapter.
pub(crate) const NAME: &str = "model0";

// ---- the world ----------------------------------------------------------------------------------

thread_local! {
    static WORLD: Arc<Held> = Arc::new(Held(Mutex::new(World::new())));
}

/// A world, which searches see from threads of their own.
struct Held(Mutex<World>);

// SAFETY: what it points to is its own, and is used by who holds the lock.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

/// Whose queue pairs are whose, by their addresses: a search is made by a thread of its own.
static OWNERS: Mutex<BTreeMap<usize, Arc<Held>>> = Mutex::new(BTreeMap::new());

/// What becomes of a search for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Comes,
    /// The call does not return.
    IsAwaited,
    /// It fails.
    Never,
}

/// What a test may ask of the model.
pub(crate) struct World {
    /// Bytes that a SEND can have inline; 0: none.
    pub(crate) inline_max: u32,
    /// Works that a queue pair can have.
    pub(crate) depth_max: c_int,
    /// Entries of the port's table.
    pub(crate) gids: Vec<GidEntry>,
    pub(crate) is_port_up: bool,
    /// To the question whose a peer's address is.
    pub(crate) answer: Answer,
    /// What was posted stays where it is.
    pub(crate) is_stopped: bool,
    /// Registrations that are still granted.
    pub(crate) keys_left: usize,
    /// Calls of `post_send`, and works that they had.
    pub(crate) posts: (u64, u64),
    /// The entries of the table that queue pairs send by.
    pub(crate) ways: Vec<u8>,
    /// Where the pieces of WRITEs were that were posted.
    pub(crate) pieces: VecDeque<Sge>,
    /// Calls that ask the kernel: for announcements, and for events.
    pub(crate) questions: u64,
    /// The next calls of `post_send` fail.
    pub(crate) refuses_posts: bool,
    /// Run when a queue is armed, once: a completion that comes at the wrong moment.
    pub(crate) when_armed: Option<fn()>,
    name: CString,
    is_gone: bool,
    contexts: Vec<*mut ModelContext>,
    queues: BTreeMap<*mut Cq, QueueModel>,
    pairs: BTreeMap<u32, PairModel>,
    domains: Vec<*mut Pd>,
    keys: BTreeMap<u32, KeyModel>,
    last_number: u32,
    last_key: u32,
}

/// As libibverbs does, more behind what programs know.
#[repr(C)]
struct ModelContext {
    context: Context,
    events: VecDeque<AsyncEvent>,
    unacknowledged: usize,
    signal: File,
}

#[repr(C)]
struct ModelChannel {
    channel: CompChannel,
    announced: VecDeque<*mut Cq>,
    signal: File,
    queues: usize,
}

struct QueueModel {
    entries: VecDeque<Wc>,
    len_max: usize,
    is_armed: bool,
    unacknowledged: usize,
    users: usize,
}

struct PairModel {
    raw: *mut Qp,
    state: c_uint,
    cap: QpCap,
    peer: u32,
    mtu: c_uint,
    /// PSNs: the first that is sent, and the first that is expected.
    psns: (u32, u32),
    works: VecDeque<WorkModel>,
    rooms: VecDeque<(u64, Sge)>,
    /// Works that were posted and not completed, signaled or not.
    outstanding: u32,
    /// Of those, works without a completion: it comes with the next one.
    unsignaled: u32,
}

/// A work as it was posted.
struct WorkModel {
    id: u64,
    opcode: c_uint,
    flags: c_uint,
    piece: Sge,
    inline: [u8; 64],
    to: (u64, u32),
}

struct KeyModel {
    raw: *mut Mr,
    domain: *mut Pd,
    base: u64,
    address: u64,
    len: u64,
    access: c_int,
}

impl World {
    fn new() -> Self {
        let gid = |last: u8, gid_type| {
            let mut gid = [0; 16];
            gid[10..12].fill(0xFF);
            gid[12..].copy_from_slice(&[10, 9, 0, last]);
            GidEntry { gid, gid_index: u32::from(last), port_num: 1, gid_type, ndev_ifindex: 3 }
        };
        Self {
            inline_max: 64,
            depth_max: 16_384,
            gids: vec![
                gid(1, abi::GID_TYPE_ROCE_V1),
                gid(2, abi::GID_TYPE_ROCE_V2),
                gid(3, abi::GID_TYPE_ROCE_V2),
                GidEntry { gid_index: 4, ..gid(2, abi::GID_TYPE_ROCE_V1) },
                GidEntry { gid_index: 5, ..gid(3, abi::GID_TYPE_ROCE_V1) },
            ],
            is_port_up: true,
            answer: Answer::Comes,
            is_stopped: false,
            keys_left: usize::MAX,
            posts: (0, 0),
            ways: Vec::new(),
            pieces: VecDeque::with_capacity(1024),
            questions: 0,
            refuses_posts: false,
            when_armed: None,
            name: CString::new(NAME).unwrap(),
            is_gone: false,
            contexts: Vec::new(),
            queues: BTreeMap::new(),
            pairs: BTreeMap::new(),
            domains: Vec::new(),
            keys: BTreeMap::new(),
            last_number: 0x10,
            last_key: 0x100,
        }
    }

    fn complete(&mut self, queue: *mut Cq, completion: Wc) {
        let model = self.queues.get_mut(&queue).expect("a completion queue that is there");
        assert!(model.entries.len() < model.len_max, "the completion queue overruns");
        model.entries.push_back(completion);
        if std::mem::take(&mut model.is_armed) {
            // SAFETY: the queue is there, and its channel with it.
            let channel = unsafe { &mut *(*queue).channel.cast::<ModelChannel>() };
            channel.announced.push_back(queue);
            channel.signal.write_all(&1_u64.to_ne_bytes()).unwrap();
        }
    }

    fn complete_work(&mut self, number: u32, work: &WorkModel, status: c_uint) {
        let pair = self.pairs.get_mut(&number).unwrap();
        if status == status::SUCCESS && work.flags & abi::SEND_SIGNALED == 0 {
            pair.unsignaled += 1;
            return;
        }
        pair.outstanding -= 1 + std::mem::take(&mut pair.unsignaled);
        // SAFETY: a queue pair that is there.
        let queue = unsafe { (*pair.raw).send_cq };
        self.complete(queue, Wc { wr_id: work.id, status, qp_num: number, ..Wc::default() });
    }

    /// The queue pair is in its error state: all that it has is given back.
    fn stop(&mut self, number: u32) {
        let pair = self.pairs.get_mut(&number).unwrap();
        pair.state = state::ERR;
        let (works, rooms) = (std::mem::take(&mut pair.works), std::mem::take(&mut pair.rooms));
        // SAFETY: a queue pair that is there.
        let queue = unsafe { (*pair.raw).recv_cq };
        for work in works {
            self.complete_work(number, &work, status::WR_FLUSH_ERR);
        }
        let status = status::WR_FLUSH_ERR;
        for (wr_id, _) in rooms {
            self.complete(queue, Wc { wr_id, status, qp_num: number, ..Wc::default() });
        }
    }

    fn key_at(&self, domain: *mut Pd, lkey: u32, piece: &Sge) -> bool {
        self.keys.get(&lkey).is_some_and(|key| {
            key.domain == domain
                && piece.addr >= key.base
                && piece.addr + u64::from(piece.length) <= key.base + key.len
        })
    }

    /// Carries out the next work of a queue pair; false: there is none, or it has to wait.
    fn advance(&mut self, number: u32) -> bool {
        let Some(pair) = self.pairs.get_mut(&number) else { return false };
        if pair.state != state::RTS {
            return false;
        }
        let Some(work) = pair.works.pop_front() else { return false };
        let (peer, first_psn) = (pair.peer, pair.psns.0);
        // SAFETY: a queue pair that is there.
        let domain = unsafe { (*pair.raw).pd };
        let is_inline = work.flags & abi::SEND_INLINE != 0;
        if !is_inline && !self.key_at(domain, work.piece.lkey, &work.piece) {
            // IBV_WC_LOC_PROT_ERR
            self.complete_work(number, &work, 4);
            self.stop(number);
            return true;
        }
        let hears = |pair: &&mut PairModel| pair.state == state::RTR || pair.state == state::RTS;
        let Some(other) = self.pairs.get_mut(&peer).filter(hears) else {
            self.complete_work(number, &work, status::RETRY_EXC_ERR);
            self.stop(number);
            return true;
        };
        assert_eq!((other.peer, other.psns.1), (number, first_psn), "the ends do not fit");
        let outcome = match work.opcode {
            abi::WR_SEND => self.deliver(peer, &work),
            abi::WR_RDMA_WRITE => Some(self.write(peer, &work)),
            other => panic!("a work of kind {other}"),
        };
        match outcome {
            // No room: later.
            None => {
                self.pairs.get_mut(&number).unwrap().works.push_front(work);
                false
            }
            Some(status) => {
                self.complete_work(number, &work, status);
                if status != status::SUCCESS {
                    self.stop(number);
                    self.stop(peer);
                }
                true
            }
        }
    }

    /// Puts a message into a room of the peer's; `None`: there is none.
    fn deliver(&mut self, to: u32, work: &WorkModel) -> Option<c_uint> {
        let pair = self.pairs.get_mut(&to).unwrap();
        let (wr_id, room) = pair.rooms.pop_front()?;
        // SAFETY: a queue pair that is there.
        let (queue, domain) = unsafe { ((*pair.raw).recv_cq, (*pair.raw).pd) };
        assert!(self.key_at(domain, room.lkey, &room), "a room without a key");
        let len = work.piece.length;
        if len > room.length {
            let status = status::LOC_LEN_ERR;
            self.complete(queue, Wc { wr_id, status, qp_num: to, ..Wc::default() });
            return Some(status::REM_INV_REQ_ERR);
        }
        let from = match work.flags & abi::SEND_INLINE != 0 {
            true => work.inline.as_ptr(),
            false => work.piece.addr as *const u8,
        };
        // SAFETY: both have a key, so they are mapped, and the room is nobody else's; inline bytes are
        // at most as many as there is space for.
        unsafe { std::ptr::copy_nonoverlapping(from, room.addr as *mut u8, len as usize) };
        let status = status::SUCCESS;
        let opcode = 1 << 7;
        let wc = Wc { wr_id, status, opcode, byte_len: len, qp_num: to, ..Wc::default() };
        self.complete(queue, wc);
        Some(status)
    }

    fn write(&mut self, to: u32, work: &WorkModel) -> c_uint {
        let pair = &self.pairs[&to];
        // SAFETY: a queue pair that is there.
        let domain = unsafe { (*pair.raw).pd };
        let (address, rkey) = work.to;
        let len = u64::from(work.piece.length);
        let place = self
            .keys
            .get(&rkey)
            .filter(|key| key.domain == domain && key.access & abi::ACCESS_REMOTE_WRITE != 0);
        let offset = place.and_then(|key| {
            let offset = address.checked_sub(key.address)?;
            offset.checked_add(len).filter(|end| *end <= key.len).map(|_| key.base + offset)
        });
        let Some(to) = offset else { return status::REM_ACCESS_ERR };
        // SAFETY: both have a key, so they are mapped. They may overlap.
        unsafe { std::ptr::copy(work.piece.addr as *const u8, to as *mut u8, len as usize) };
        status::SUCCESS
    }
}

// ---- what tests do ------------------------------------------------------------------------------

/// Looks at the world, or changes it.
pub(crate) fn world<T>(change: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with(|world| change(&mut world.0.lock().unwrap()))
}

/// The same with the world of a queue pair, from any thread.
fn world_of<T>(qp: *mut Qp, change: impl FnOnce(&mut World) -> T) -> T {
    let world = Arc::clone(&OWNERS.lock().unwrap()[&(qp as usize)]);
    change(&mut world.0.lock().unwrap())
}

/// Carries out everything that was posted, as far as it can be. True: there was something.
pub(crate) fn step() -> bool {
    world(|world| {
        if world.is_stopped || world.is_gone {
            return false;
        }
        let numbers: Vec<u32> = world.pairs.keys().copied().collect();
        let mut has_advanced = false;
        // Queue pairs take turns, a work each.
        while numbers.iter().fold(false, |any, number| world.advance(*number) | any) {
            has_advanced = true;
        }
        has_advanced
    })
}

/// Something happens to a queue pair, or to the whole adapter.
pub(crate) fn happens(event_type: c_uint, number: Option<u32>) {
    world(|world| {
        let element = match number {
            Some(number) => AsyncElement { qp: world.pairs[&number].raw },
            None => AsyncElement { port_num: 1 },
        };
        if event_type == event::DEVICE_FATAL {
            world.is_gone = true;
            // It does nothing any more, and does not say so either.
            world.pairs.values_mut().for_each(|pair| pair.state = state::ERR);
        }
        if let Some(number) = number {
            world.stop(number);
        }
        for context in &world.contexts {
            // SAFETY: an open adapter.
            let context = unsafe { &mut **context };
            context.events.push_back(AsyncEvent { element, event_type });
            context.signal.write_all(&1_u64.to_ne_bytes()).unwrap();
        }
    });
}

/// How many objects there are: adapters, queues, queue pairs, domains, keys.
pub(crate) fn census() -> [usize; 5] {
    world(|it| {
        [it.contexts.len(), it.queues.len(), it.pairs.len(), it.domains.len(), it.keys.len()]
    })
}

/// What a queue pair was told of the way to its peer: PSNs, the peer, the MTU's code.
pub(crate) fn connected(number: u32) -> (u32, u32, u32, c_uint) {
    world(|world| {
        let pair = &world.pairs[&number];
        (pair.psns.0, pair.psns.1, pair.peer, pair.mtu)
    })
}

/// A descriptor that counts what was written to it, and reads one at a time.
fn signal() -> File {
    // SAFETY: integers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: new, and nobody else's.
    unsafe { File::from_raw_fd(fd) }
}

/// Whether something was signaled; if not, `errno` says so.
fn was_signaled(mut signal: &File) -> bool {
    signal.read(&mut [0; 8]).is_ok()
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

// ---- adapters -----------------------------------------------------------------------------------

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut Device {
    // SAFETY: the caller's.
    unsafe { *count = 1 };
    // A device is nothing but the address of something.
    Box::into_raw(Box::new([dangling_mut::<Device>(), null_mut()])).cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut Device) {
    // SAFETY: as it was given.
    drop(unsafe { Box::from_raw(list.cast::<[*mut Device; 2]>()) });
}

unsafe extern "C" fn get_device_name(_: *mut Device) -> *const c_char {
    world(|world| world.name.as_ptr())
}

const fn no_ops() -> ContextOps {
    ContextOps {
        before_poll_cq: [std::ptr::null(); 11],
        poll_cq: Some(poll_cq),
        req_notify_cq: Some(req_notify_cq),
        before_post_send: [std::ptr::null(); 12],
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        after_post_recv: [std::ptr::null(); 5],
    }
}

unsafe extern "C" fn open_device(device: *mut Device) -> *mut Context {
    let signal = signal();
    let context = Context {
        device,
        ops: no_ops(),
        cmd_fd: -1,
        async_fd: signal.as_raw_fd(),
        num_comp_vectors: 1,
    };
    let model = ModelContext { context, events: VecDeque::new(), unacknowledged: 0, signal };
    let raw = Box::into_raw(Box::new(model));
    world(|world| world.contexts.push(raw));
    raw.cast()
}

unsafe extern "C" fn close_device(context: *mut Context) -> c_int {
    let context = context.cast::<ModelContext>();
    world(|world| {
        // SAFETY: the domains that are there.
        let has_domain = |it: &*mut Pd| unsafe { (**it).context } == context.cast();
        assert!(!world.domains.iter().any(has_domain), "closed before its domains");
        world.contexts.retain(|it| *it != context);
    });
    // SAFETY: as it was given.
    let model = unsafe { Box::from_raw(context) };
    assert_eq!(model.unacknowledged, 0);
    0
}

unsafe extern "C" fn query_device(_: *mut Context, attributes: *mut DeviceAttr) -> c_int {
    let depth_max = world(|world| world.depth_max);
    // SAFETY: the caller's; all of it may be 0.
    unsafe {
        attributes.write_bytes(0, 1);
        (*attributes).max_qp_wr = depth_max;
        (*attributes).max_cqe = 1 << 20;
        (*attributes).phys_port_cnt = 1;
    }
    0
}

unsafe extern "C" fn query_port(_: *mut Context, _: u8, attributes: *mut PortAttr) -> c_int {
    let is_up = world(|world| world.is_port_up);
    // SAFETY: the caller's.
    unsafe {
        (*attributes).state = if is_up { abi::PORT_ACTIVE } else { 1 };
        (*attributes).active_mtu = 3;
        (*attributes).link_layer = abi::LINK_LAYER_ETHERNET;
    }
    0
}

unsafe extern "C" fn query_gid_table(
    _: *mut Context,
    entries: *mut GidEntry,
    len: usize,
    _: u32,
    size: usize,
) -> isize {
    assert_eq!(size, size_of::<GidEntry>());
    world(|world| {
        for (index, entry) in world.gids.iter().take(len).enumerate() {
            // SAFETY: the caller's, and long enough.
            unsafe { entries.add(index).write(*entry) };
        }
        world.gids.len().min(len) as isize
    })
}

unsafe extern "C" fn get_async_event(context: *mut Context, place: *mut AsyncEvent) -> c_int {
    // SAFETY: an open adapter.
    let model = unsafe { &mut *context.cast::<ModelContext>() };
    world(|world| world.questions += 1);
    if !was_signaled(&model.signal) {
        return fail(libc::EAGAIN);
    }
    model.unacknowledged += 1;
    // SAFETY: the caller's.
    unsafe { *place = model.events.pop_front().unwrap() };
    0
}

unsafe extern "C" fn ack_async_event(_: *mut AsyncEvent) {
    world(|world| {
        for context in &world.contexts {
            // SAFETY: an open adapter.
            let model = unsafe { &mut **context };
            model.unacknowledged = model.unacknowledged.saturating_sub(1);
        }
    });
}

// ---- memory -------------------------------------------------------------------------------------

unsafe extern "C" fn alloc_pd(context: *mut Context) -> *mut Pd {
    let raw = Box::into_raw(Box::new(Pd { context, handle: 0 }));
    world(|world| world.domains.push(raw));
    raw
}

unsafe extern "C" fn dealloc_pd(domain: *mut Pd) -> c_int {
    world(|world| {
        assert!(world.keys.values().all(|key| key.domain != domain), "a domain with keys");
        // SAFETY: queue pairs that are there.
        let is_used = |pair: &PairModel| unsafe { (*pair.raw).pd } == domain;
        assert!(!world.pairs.values().any(is_used), "a domain with queue pairs");
        world.domains.retain(|it| *it != domain);
    });
    // SAFETY: as it was given.
    drop(unsafe { Box::from_raw(domain) });
    0
}

unsafe extern "C" fn reg_mr_iova(
    domain: *mut Pd,
    base: *mut c_void,
    len: usize,
    address: u64,
    access: c_int,
) -> *mut Mr {
    // What drivers ask for: the adapter maps pages.
    assert_eq!(base as u64 & 0xFFF, address & 0xFFF);
    world(|world| {
        if world.keys_left == 0 {
            fail(libc::ENOMEM);
            return null_mut();
        }
        world.keys_left -= 1;
        world.last_key += 0x11;
        let key = world.last_key;
        // SAFETY: a domain that is there.
        let context = unsafe { (*domain).context };
        let mr =
            Mr { context, pd: domain, addr: base, length: len, handle: 0, lkey: key, rkey: key };
        let raw = Box::into_raw(Box::new(mr));
        let base = base as u64;
        world.keys.insert(key, KeyModel { raw, domain, base, address, len: len as u64, access });
        raw
    })
}

unsafe extern "C" fn dereg_mr(mr: *mut Mr) -> c_int {
    world(|world| {
        // SAFETY: as it was given.
        let mr = unsafe { Box::from_raw(mr) };
        let key = world.keys.remove(&mr.lkey).expect("a key that is there");
        assert!(std::ptr::eq(key.raw, &raw const *mr));
        let inside = |piece: &Sge| piece.lkey == mr.lkey && piece.length > 0;
        for pair in world.pairs.values().filter(|pair| pair.state != state::ERR) {
            assert!(!pair.rooms.iter().any(|(_, room)| inside(room)), "a room loses its key");
            let mut works = pair.works.iter().filter(|it| it.flags & abi::SEND_INLINE == 0);
            assert!(!works.any(|it| inside(&it.piece)), "a work loses its key");
        }
    });
    0
}

// ---- completions --------------------------------------------------------------------------------

unsafe extern "C" fn create_comp_channel(context: *mut Context) -> *mut CompChannel {
    let signal = signal();
    let channel = CompChannel { context, fd: signal.as_raw_fd() };
    let model = ModelChannel { channel, announced: VecDeque::new(), signal, queues: 0 };
    Box::into_raw(Box::new(model)).cast()
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    // SAFETY: as it was given.
    let model = unsafe { Box::from_raw(channel.cast::<ModelChannel>()) };
    assert_eq!(model.queues, 0, "a channel with queues");
    0
}

unsafe extern "C" fn create_cq(
    context: *mut Context,
    len: c_int,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    _: c_int,
) -> *mut Cq {
    let raw = Box::into_raw(Box::new(Cq { context, channel, cq_context }));
    let len_max = usize::try_from(len).unwrap();
    let model = QueueModel {
        entries: VecDeque::with_capacity(len_max),
        len_max,
        is_armed: false,
        unacknowledged: 0,
        users: 0,
    };
    // SAFETY: a channel that is there.
    unsafe { (*channel.cast::<ModelChannel>()).queues += 1 };
    world(|world| world.queues.insert(raw, model));
    raw
}

unsafe extern "C" fn destroy_cq(queue: *mut Cq) -> c_int {
    world(|world| {
        let model = world.queues.remove(&queue).expect("a queue that is there");
        assert_eq!((model.users, model.unacknowledged), (0, 0), "a queue that is used");
        // SAFETY: a queue that is there.
        let channel = unsafe { &mut *(*queue).channel.cast::<ModelChannel>() };
        channel.queues -= 1;
        // What it has announced is not told any more.
        let before = channel.announced.len();
        channel.announced.retain(|it| *it != queue);
        (channel.announced.len()..before).for_each(|_| assert!(was_signaled(&channel.signal)));
    });
    // SAFETY: as it was given.
    drop(unsafe { Box::from_raw(queue) });
    0
}

unsafe extern "C" fn get_cq_event(
    channel: *mut CompChannel,
    queue: *mut *mut Cq,
    token: *mut *mut c_void,
) -> c_int {
    // SAFETY: a channel that is there.
    let model = unsafe { &mut *channel.cast::<ModelChannel>() };
    world(|world| world.questions += 1);
    if !was_signaled(&model.signal) {
        return fail(libc::EAGAIN);
    }
    let announced = model.announced.pop_front().unwrap();
    world(|world| world.queues.get_mut(&announced).unwrap().unacknowledged += 1);
    // SAFETY: the caller's, and a queue that is there.
    unsafe {
        *queue = announced;
        *token = (*announced).cq_context;
    }
    0
}

unsafe extern "C" fn ack_cq_events(queue: *mut Cq, count: c_uint) {
    world(|world| {
        world.queues.get_mut(&queue).unwrap().unacknowledged -= count as usize;
    });
}

unsafe extern "C" fn poll_cq(queue: *mut Cq, room: c_int, place: *mut Wc) -> c_int {
    world(|world| {
        if world.is_gone {
            return -1;
        }
        let entries = &mut world.queues.get_mut(&queue).unwrap().entries;
        let count = entries.len().min(usize::try_from(room).unwrap());
        for (index, entry) in entries.drain(..count).enumerate() {
            // SAFETY: the caller's, and long enough.
            unsafe { place.add(index).write(entry) };
        }
        count as c_int
    })
}

unsafe extern "C" fn req_notify_cq(queue: *mut Cq, solicited_only: c_int) -> c_int {
    assert_eq!(solicited_only, 0);
    // Just before: this one is not announced.
    if let Some(meanwhile) = world(|world| world.when_armed.take()) {
        meanwhile();
    }
    world(|world| {
        world.queues.get_mut(&queue).unwrap().is_armed = true;
        if world.is_gone { libc::EIO } else { 0 }
    })
}

// ---- queue pairs --------------------------------------------------------------------------------

unsafe extern "C" fn create_qp(domain: *mut Pd, wanted: *mut QpInitAttr) -> *mut Qp {
    // SAFETY: the caller's.
    let wanted = unsafe { &mut *wanted };
    world(|world| {
        let cap = wanted.cap;
        let is_possible = cap.max_inline_data <= world.inline_max
            && cap.max_send_wr as c_int <= world.depth_max
            && wanted.qp_type == abi::QPT_RC;
        if !is_possible {
            fail(libc::EINVAL);
            return null_mut();
        }
        world.last_number += 1;
        let raw = Box::into_raw(Box::new(Qp {
            // SAFETY: a domain that is there.
            context: unsafe { (*domain).context },
            qp_context: wanted.qp_context,
            pd: domain,
            send_cq: wanted.send_cq,
            recv_cq: wanted.recv_cq,
            srq: wanted.srq,
            handle: 0,
            qp_num: world.last_number,
        }));
        OWNERS.lock().unwrap().insert(raw as usize, WORLD.with(Arc::clone));
        let queue = world.queues.get_mut(&wanted.send_cq).unwrap();
        queue.users += 1;
        assert!(queue.len_max >= (cap.max_send_wr + cap.max_recv_wr) as usize);
        world.pairs.insert(
            world.last_number,
            PairModel {
                raw,
                state: 0,
                cap,
                peer: 0,
                mtu: 0,
                psns: (0, 0),
                works: VecDeque::with_capacity(cap.max_send_wr as usize),
                rooms: VecDeque::with_capacity(cap.max_recv_wr as usize),
                outstanding: 0,
                unsignaled: 0,
            },
        );
        raw
    })
}

/// The fields that each step needs, no more and no less (`ibv_modify_qp(3)`, for RC).
const fn needed(state: c_uint) -> c_int {
    let fields = match state {
        state::INIT => mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS,
        state::RTR => {
            mask::AV
                | mask::PATH_MTU
                | mask::DEST_QPN
                | mask::RQ_PSN
                | mask::MAX_DEST_RD_ATOMIC
                | mask::MIN_RNR_TIMER
        }
        state::RTS => {
            mask::SQ_PSN
                | mask::MAX_QP_RD_ATOMIC
                | mask::RETRY_CNT
                | mask::RNR_RETRY
                | mask::TIMEOUT
        }
        _ => 0,
    };
    mask::STATE | fields
}

unsafe extern "C" fn modify_qp(qp: *mut Qp, attributes: *mut QpAttr, fields: c_int) -> c_int {
    // SAFETY: the caller's.
    let (attributes, number) = unsafe { (*attributes, (*qp).qp_num) };
    assert_eq!(fields, needed(attributes.qp_state));
    if attributes.qp_state == state::RTR {
        while world_of(qp, |world| world.answer) == Answer::IsAwaited {
            thread::sleep(Duration::from_millis(1));
        }
        if world_of(qp, |world| world.answer) == Answer::Never {
            return libc::ETIMEDOUT;
        }
    }
    world_of(qp, |world| {
        if world.is_gone {
            return libc::EIO;
        }
        if attributes.qp_state == state::ERR {
            world.stop(number);
            return 0;
        }
        let pair = world.pairs.get_mut(&number).unwrap();
        if pair.state + 1 != attributes.qp_state {
            return libc::EINVAL;
        }
        pair.state = attributes.qp_state;
        match attributes.qp_state {
            state::RTR => {
                let way = attributes.ah_attr;
                let own = &world.gids[usize::from(way.grh.sgid_index) - 1];
                assert_eq!((way.is_global, way.port_num), (1, 1));
                let is_it = |it: &GidEntry| (it.gid, it.gid_type) == (way.grh.dgid, own.gid_type);
                assert!(world.gids.iter().any(is_it), "the peer is at no address of the model");
                assert!(way.grh.hop_limit > 1);
                world.ways.push(way.grh.sgid_index);
                (pair.peer, pair.psns.1) = (attributes.dest_qp_num, attributes.rq_psn);
                pair.mtu = attributes.path_mtu;
            }
            state::RTS => {
                // To `rdma_rxe` 7 would mean for ever.
                assert!((1..7).contains(&attributes.retry_cnt) && attributes.timeout > 0);
                pair.psns.0 = attributes.sq_psn;
            }
            _ => {}
        }
        0
    })
}

unsafe extern "C" fn destroy_qp(qp: *mut Qp) -> c_int {
    OWNERS.lock().unwrap().remove(&(qp as usize));
    world(|world| {
        // SAFETY: as it was given.
        let qp = unsafe { Box::from_raw(qp) };
        world.pairs.remove(&qp.qp_num).expect("a queue pair that is there");
        world.queues.get_mut(&qp.send_cq).unwrap().users -= 1;
    });
    0
}

unsafe extern "C" fn post_send(
    qp: *mut Qp,
    mut work: *mut SendWr,
    failed: *mut *mut SendWr,
) -> c_int {
    world(|world| {
        world.posts.0 += 1;
        if world.refuses_posts || world.is_gone {
            // SAFETY: the caller's.
            unsafe { *failed = work };
            return libc::ENOMEM;
        }
        // SAFETY: a queue pair that is there.
        let pair = world.pairs.get_mut(&unsafe { (*qp).qp_num }).unwrap();
        // SAFETY: null, or a work of the caller's.
        while let Some(wr) = unsafe { work.as_ref() } {
            world.posts.1 += 1;
            pair.outstanding += 1;
            assert!(pair.outstanding <= pair.cap.max_send_wr, "the send queue overruns");
            assert_eq!(wr.num_sge, 1);
            // SAFETY: the caller's.
            let piece = unsafe { *wr.sg_list };
            let mut inline = [0; 64];
            if wr.send_flags & abi::SEND_INLINE != 0 {
                assert!(piece.length <= pair.cap.max_inline_data);
                // SAFETY: the caller's, and as long as it says.
                let bytes = unsafe {
                    std::slice::from_raw_parts(piece.addr as *const u8, piece.length as usize)
                };
                inline[..bytes.len()].copy_from_slice(bytes);
            } else if wr.opcode == abi::WR_RDMA_WRITE && world.pieces.len() < 1024 {
                world.pieces.push_back(piece);
            }
            let (id, opcode, flags) = (wr.wr_id, wr.opcode, wr.send_flags);
            let to = (wr.remote_addr, wr.rkey);
            let model = WorkModel { id, opcode, flags, piece, inline, to };
            pair.works.push_back(model);
            work = wr.next;
        }
        // One that is posted to a queue pair in its error state comes back at once.
        if pair.state == state::ERR {
            // SAFETY: a queue pair that is there.
            world.stop(unsafe { (*qp).qp_num });
        }
        0
    })
}

unsafe extern "C" fn post_recv(qp: *mut Qp, mut work: *mut RecvWr, _: *mut *mut RecvWr) -> c_int {
    world(|world| {
        // SAFETY: a queue pair that is there.
        let pair = world.pairs.get_mut(&unsafe { (*qp).qp_num }).unwrap();
        // SAFETY: null, or a work of the caller's.
        while let Some(wr) = unsafe { work.as_ref() } {
            assert_eq!(wr.num_sge, 1);
            // SAFETY: the caller's.
            pair.rooms.push_back((wr.wr_id, unsafe { *wr.sg_list }));
            assert!(pair.rooms.len() <= pair.cap.max_recv_wr as usize, "too many rooms");
            work = wr.next;
        }
        0
    })
}
