//! libc's names. Each is one question, "ours or theirs?", and no logic.
//!
//! Variadic functions whose optional argument is an integer or a pointer
//! (`clone`, `fcntl`, `ioctl`, `open`) are defined with fixed arguments: on the
//! ABIs of x86-64 and AArch64 Linux both are passed alike.

#![allow(clippy::missing_safety_doc, reason = "each is libc's function of the same name")]

use crate::cancel;
use crate::errno::{errno, quietly, set_errno};
use crate::fork;
use crate::real::{self, Begin};
use core::ffi::{c_char, c_void};
use core::time::Duration;
use sidestep_device::confinement::{self, Call};
use sidestep_device::program::{Argument, Buffers};
use sidestep_device::sys::{self, Errno, SignalMask};
use sidestep_device::valid::Bits;
use sidestep_proto::fallback::ProgramDid;
use sidestep_socket::Answer;
use sidestep_socket::connection::{closing, words};
use sidestep_socket::polling::multiplex::{self, FdSets};
use sidestep_socket::polling::{epoll, set};
use sidestep_socket::process::{claims, tcp};
use sidestep_socket::program::protection::{asked, controlled};
use sidestep_socket::program::socket_options::{self, OptionAnswer};
use sidestep_socket::program::stream::{self, Instead, Outcome};
use sidestep_socket::program::transfer::{self, Pipe, Source};
use sidestep_socket::program::{self, bundle, fresh, hand_over, life, protection};
use sidestep_socket::rendezvous::{listeners, tcp_option};
use sidestep_socket::table::descriptors::{self, Use};
use sidestep_socket::table::sock::{Phase, Sock};
use sidestep_socket::table::untracked;

type Address = *mut libc::sockaddr;
type Length = *mut libc::socklen_t;
type Mask = *const c_void;

fn answer(answer: Answer) -> isize {
    match answer {
        Ok(n) => n as isize,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

fn received(outcome: Outcome) -> isize {
    match outcome {
        Outcome::Plain(n) => n,
        Outcome::Ours(ours) => answer(ours),
    }
}

fn sent(outcome: Outcome, flags: i32) -> isize {
    if matches!(outcome, Outcome::Ours(Err(libc::EPIPE))) && flags & libc::MSG_NOSIGNAL == 0 {
        sys::raise_here(libc::SIGPIPE);
    }
    received(outcome)
}

fn vector(at: *mut c_void, len: usize) -> libc::iovec {
    libc::iovec { iov_base: at, iov_len: len }
}

/// The program's own call, for frames below.
macro_rules! plain {
    ($call:expr) => {
        // SAFETY: the program's own call, passed on.
        || cancel::below_us(|| unsafe { $call })
    };
}

/// What `readv`, `writev` and their like are about; `None` for the kernel to answer: it refuses
/// the list, or has nothing to do, and then it never asks the socket.
///
/// # Safety
/// As for [`Buffers::new`].
unsafe fn vector_to_move<'a, Way>(
    list: *const libc::iovec,
    count: i32,
) -> Option<Buffers<'a, Way>> {
    // SAFETY: the caller's promise.
    unsafe { Buffers::new(list, count as usize) }.filter(|parts| !parts.is_empty())
}

/// Whether a call has failed.
pub(crate) trait Failed {
    /// As libc's functions say it.
    fn has_failed(&self) -> bool;
}

impl Failed for i32 {
    #[inline(always)]
    fn has_failed(&self) -> bool {
        *self == -1
    }
}

impl Failed for isize {
    #[inline(always)]
    fn has_failed(&self) -> bool {
        *self == -1
    }
}

impl Failed for () {
    #[inline(always)]
    fn has_failed(&self) -> bool {
        false
    }
}

/// Wraps one exported function, our outermost frame.
macro_rules! export {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result {
                #[inline(always)]
                unsafe fn body($($arg: $type),*) -> $result $body
                // SAFETY: the caller's promise.
                let result = unsafe { body($($arg),*) };
                if $crate::exports::Failed::has_failed(&result) {
                    $crate::cancel::end_if_cancelled();
                }
                result
            }
        )*
    };
}

pub(crate) use export;

/// Other names of the same function.
macro_rules! alias {
    ($(fn $name:ident = $target:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result {
                // SAFETY: the same function.
                unsafe { $target($($arg),*) }
            }
        )*
    };
}

pub(crate) use alias;

// Bytes in.

export! {
    fn read(fd: i32, at: *mut c_void, len: usize) -> isize {
        let plain = plain!(real::read(fd, at, len));
        if len == 0 {
            return plain();
        }
        let part = vector(at, len);
        // SAFETY: one buffer, the program's.
        let buffers = || unsafe { Buffers::new(&raw const part, 1) };
        stream::receive(fd, buffers, 0, plain).map_or_else(plain, received)
    }

    fn readv(fd: i32, list: *const libc::iovec, count: i32) -> isize {
        let plain = plain!(real::readv(fd, list, count));
        // SAFETY: the program's list.
        let parts = || unsafe { vector_to_move(list, count) };
        stream::receive(fd, parts, 0, plain).map_or_else(plain, received)
    }

    fn preadv2(fd: i32, list: *const libc::iovec, count: i32, offset: i64, flags: i32) -> isize {
        let plain = plain!(real::preadv2(fd, list, count, offset, flags));
        let is_stream_call = offset == -1 && flags & !libc::RWF_NOWAIT == 0;
        if !is_stream_call {
            return plain();
        }
        let dont_wait = if flags != 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the program's list.
        let parts = || unsafe { Buffers::new(list, count as usize) };
        stream::receive(fd, parts, dont_wait, plain).map_or_else(plain, received)
    }

    fn recv(fd: i32, at: *mut c_void, len: usize, flags: i32) -> isize {
        let plain = plain!(real::recv(fd, at, len, flags));
        let part = vector(at, len);
        // SAFETY: one buffer, the program's.
        let buffers = || unsafe { Buffers::new(&raw const part, 1) };
        stream::receive(fd, buffers, flags, plain).map_or_else(plain, received)
    }

    fn recvfrom(fd: i32, at: *mut c_void, len: usize, flags: i32, from: Address, size: Length) -> isize {
        let plain = plain!(real::recvfrom(fd, at, len, flags, from, size));
        let part = vector(at, len);
        // SAFETY: one buffer, the program's.
        let buffers = || unsafe { Buffers::new(&raw const part, 1) };
        let Some(outcome) = stream::receive(fd, buffers, flags, plain) else { return plain() };
        if matches!(outcome, Outcome::Ours(Ok(_))) && !from.is_null() && !size.is_null() {
            // SAFETY: TCP gives no address; the program's length word.
            unsafe { *size = 0 };
        }
        received(outcome)
    }

    fn recvmsg(fd: i32, message: *mut libc::msghdr, flags: i32) -> isize {
        let plain = plain!(real::recvmsg(fd, message, flags));
        // SAFETY: the program's message header, if there is one.
        let header = || unsafe { message.as_ref() };
        // SAFETY: its buffers.
        let buffers = || header().and_then(|of| unsafe { Buffers::new(of.msg_iov, parts(of)) });
        let Some(outcome) = stream::receive(fd, buffers, flags, plain) else {
            // SAFETY: passed on.
            return unsafe { received_rights(message, plain()) };
        };
        if matches!(outcome, Outcome::Ours(Ok(_))) {
            // SAFETY: the program's message header.
            unsafe {
                (*message).msg_namelen = 0;
                (*message).msg_controllen = 0;
                (*message).msg_flags = flags & libc::MSG_OOB;
            }
        }
        received(outcome)
    }

    fn recvmmsg(fd: i32, list: *mut libc::mmsghdr, count: u32, flags: i32, time: *mut libc::timespec) -> i32 {
        if descriptors::sock(fd).is_none() {
            // SAFETY: passed on.
            let n = unsafe { real::recvmmsg(fd, list, count, flags, time) };
            for i in 0..n.max(0) as usize {
                // SAFETY: the kernel has just filled so many entries.
                unsafe { received_rights(&raw mut (*list.add(i)).msg_hdr, 0) };
            }
            return n;
        }
        let limit = argument(time).value();
        if limit.is_none() && !time.is_null() {
            // SAFETY: passed on.
            return unsafe { real::recvmmsg(fd, list, count, flags, time) };
        }
        let deadline = limit.map(|t| sys::deadline(duration(&t)));
        let count = count.min(MESSAGES_MAX);
        let mut flags = flags;
        for i in 0..count as usize {
            let entry = list.wrapping_add(i);
            // SAFETY: an entry of the program's list.
            let n = unsafe { recvmsg(fd, &raw mut (*entry).msg_hdr, flags & !libc::MSG_WAITFORONE) };
            if n < 0 {
                return if i > 0 { i as i32 } else { -1 };
            }
            // SAFETY: as above; its header was read.
            unsafe { (*entry).msg_len = n as u32 };
            if flags & libc::MSG_WAITFORONE != 0 {
                flags |= libc::MSG_DONTWAIT;
            }
            if deadline.is_some_and(|at| sys::now_ns() >= at) {
                return i as i32 + 1;
            }
        }
        count as i32
    }

    fn __read_chk(fd: i32, at: *mut c_void, len: usize, room: usize) -> isize {
        // SAFETY: checked as the fortified call does, then the same.
        unsafe { if len > room { real::__read_chk(fd, at, len, room) } else { read(fd, at, len) } }
    }

    fn __recv_chk(fd: i32, at: *mut c_void, len: usize, room: usize, flags: i32) -> isize {
        // SAFETY: as above.
        unsafe {
            if len > room { real::__recv_chk(fd, at, len, room, flags) } else { recv(fd, at, len, flags) }
        }
    }

    fn __recvfrom_chk(fd: i32, at: *mut c_void, len: usize, room: usize, flags: i32, from: Address, size: Length) -> isize {
        // SAFETY: as above.
        unsafe {
            if len > room {
                real::__recvfrom_chk(fd, at, len, room, flags, from, size)
            } else {
                recvfrom(fd, at, len, flags, from, size)
            }
        }
    }
}

// Bytes out.

export! {
    fn write(fd: i32, at: *const c_void, len: usize) -> isize {
        let plain = plain!(real::write(fd, at, len));
        let part = vector(at.cast_mut(), len);
        // SAFETY: one buffer, the program's.
        let buffers = || unsafe { Buffers::new(&raw const part, 1) };
        stream::send(fd, buffers, 0, plain).map_or_else(plain, |outcome| sent(outcome, 0))
    }

    fn writev(fd: i32, list: *const libc::iovec, count: i32) -> isize {
        let plain = plain!(real::writev(fd, list, count));
        // SAFETY: the program's list.
        let parts = || unsafe { vector_to_move(list, count) };
        stream::send(fd, parts, 0, plain).map_or_else(plain, |outcome| sent(outcome, 0))
    }

    fn pwritev2(fd: i32, list: *const libc::iovec, count: i32, offset: i64, flags: i32) -> isize {
        let plain = plain!(real::pwritev2(fd, list, count, offset, flags));
        let is_stream_call = offset == -1 && flags & !libc::RWF_NOWAIT == 0;
        if !is_stream_call {
            return plain();
        }
        let dont_wait = if flags != 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the program's list.
        let parts = || unsafe { vector_to_move(list, count) };
        let outcome = stream::send(fd, parts, dont_wait, plain);
        outcome.map_or_else(plain, |outcome| sent(outcome, dont_wait))
    }

    fn send(fd: i32, at: *const c_void, len: usize, flags: i32) -> isize {
        let plain = plain!(real::send(fd, at, len, flags));
        let part = vector(at.cast_mut(), len);
        // SAFETY: one buffer, the program's.
        let buffers = || unsafe { Buffers::new(&raw const part, 1) };
        stream::send(fd, buffers, flags, plain).map_or_else(plain, |outcome| sent(outcome, flags))
    }

    fn sendto(fd: i32, at: *const c_void, len: usize, flags: i32, to: *const libc::sockaddr, size: u32) -> isize {
        if opens_fast(flags) {
            return -1;
        }
        let plain = plain!(real::sendto(fd, at, len, flags, to, size));
        let part = vector(at.cast_mut(), len);
        // SAFETY: one buffer, the program's.
        let buffers = || unsafe { Buffers::new(&raw const part, 1) };
        let Some(outcome) = stream::send(fd, buffers, flags, plain) else { return plain() };
        let n = sent(outcome, flags);
        if flags & libc::MSG_FASTOPEN != 0 {
            quietly(|| note_fast_open(fd));
        }
        n
    }

    fn sendmsg(fd: i32, message: *const libc::msghdr, flags: i32) -> isize {
        if opens_fast(flags) {
            return -1;
        }
        let plain = plain!(real::sendmsg(fd, message, flags));
        // SAFETY: the program's message header, if there is one.
        let header = || unsafe { message.as_ref() };
        // SAFETY: its buffers.
        let buffers = || header().and_then(|of| unsafe { Buffers::new(of.msg_iov, parts(of)) });
        match stream::send(fd, buffers, flags, plain) {
            Some(outcome) => sent(outcome, flags),
            // SAFETY: passed on.
            None => unsafe { send_rights(fd, message, flags) },
        }
    }

    fn sendmmsg(fd: i32, list: *mut libc::mmsghdr, count: u32, flags: i32) -> i32 {
        if opens_fast(flags) {
            return -1;
        }
        let count = count.min(MESSAGES_MAX);
        if descriptors::sock(fd).is_none() && !has_rights(list, count as usize) {
            // SAFETY: passed on.
            return unsafe { real::sendmmsg(fd, list, count, flags) };
        }
        for i in 0..count as usize {
            let entry = list.wrapping_add(i);
            // SAFETY: an entry of the program's list.
            let n = unsafe { sendmsg(fd, &raw const (*entry).msg_hdr, flags) };
            if n < 0 {
                return if i > 0 { i as i32 } else { -1 };
            }
            // SAFETY: as above; its header was read.
            unsafe { (*entry).msg_len = n as u32 };
        }
        count as i32
    }

    fn sendfile(out: i32, file: i32, offset: *mut i64, len: usize) -> isize {
        const SENDFILE_MAX: usize = 0x7fff_f000;
        let plain = plain!(real::sendfile(out, file, offset, len));
        loop {
            if descriptors::is_untracked(out)
                && let Some(n) = untracked::send(out, plain)
            {
                return n;
            }
            let Some(sock) = descriptors::sock(out) else { return plain() };
            match stream::send_by_tcp(&sock, out, &plain) {
                Ok(n) => return n,
                Err(Instead::Anew) => continue,
                Err(Instead::Ring) => {}
            }
            // SAFETY: null or the program's offset.
            let from = unsafe { offset.as_ref() }.copied();
            // Without an offset a socket or pipe as the source would be read, and so it is
            // asked before; with one that fails by itself.
            // SAFETY: no memory operands.
            let is_stream = from.is_none() && unsafe { libc::lseek(file, 0, libc::SEEK_CUR) } < 0;
            let result = match is_stream {
                true => Some(Err(libc::ESPIPE)),
                false => transfer::send_from(&sock, out, Source::File(file, from), len.min(SENDFILE_MAX)),
            };
            if let Some(Err(libc::ESPIPE)) = result {
                // The kernel says what it thinks of it: a length of 0 moves nothing.
                // SAFETY: the program's own call.
                return unsafe { real::sendfile(out, file, offset, 0) };
            }
            if let (Some(Ok(n)), Some(from)) = (result, from) {
                // SAFETY: the program's offset.
                unsafe { offset.write(from + n as i64) };
            }
            if let Some(result) = result {
                return sent(Outcome::Ours(result), 0);
            }
        }
    }

    fn splice(input: i32, in_at: *mut i64, out: i32, out_at: *mut i64, len: usize, flags: u32) -> isize {
        let plain = plain!(real::splice(input, in_at, out, out_at, len, flags));
        let is_stream = in_at.is_null() && out_at.is_null() && len > 0;
        // Whatever is wrong with the call, the kernel says it before it moves a byte.
        if !is_stream || flags & !SPLICE_FLAGS != 0 {
            return plain();
        }
        let dont_wait = flags & libc::SPLICE_F_NONBLOCK != 0;
        loop {
            if let Some(sock) = descriptors::sock(out).filter(|_| is_pipe(input, libc::O_WRONLY)) {
                match stream::send_by_tcp(&sock, out, &plain) {
                    Ok(n) => return n,
                    Err(Instead::Anew) => continue,
                    Err(Instead::Ring) => {}
                }
                let source = Source::Pipe(Pipe { fd: input, dont_wait });
                if let Some(result) = transfer::send_from(&sock, out, source, len) {
                    return sent(Outcome::Ours(result), 0);
                }
                continue;
            }
            let from = descriptors::sock(input).filter(|_| is_pipe(out, libc::O_RDONLY));
            let Some(sock) = from else { return plain() };
            match stream::receive_by_tcp(&sock, input, 0, &plain) {
                Ok(n) => return n,
                Err(Instead::Anew) => {}
                Err(Instead::Ring) => {
                    let pipe = Pipe { fd: out, dont_wait };
                    return answer(transfer::receive_into(&sock, input, pipe, len));
                }
            }
        }
    }
}

/// How many buffers a header names. musl's has four bytes for that and four between the fields, which a program
/// need not set.
fn parts(header: &libc::msghdr) -> usize {
    match u32::try_from(header.msg_iovlen) {
        Err(_) if real::is_musl() => header.msg_iovlen as u32 as usize,
        _ => header.msg_iovlen,
    }
}

/// How many bytes of control messages a header names. No kernel takes as many as need more than four bytes, and musl's
/// has no more.
fn control_len(header: &libc::msghdr) -> usize {
    header.msg_controllen as u32 as usize
}

/// Messages of which `sendmmsg` and `recvmmsg` take no more: `UIO_MAXIOV`.
const MESSAGES_MAX: u32 = 1024;

/// Whether there may be descriptors beside any of the messages that are to be sent on a socket
/// that is not ours, and one of them ours.
fn has_rights(list: *const libc::mmsghdr, count: usize) -> bool {
    // SAFETY: only asked of what can be read.
    let has_control = |at: *const libc::mmsghdr| unsafe { control_len(&(*at).msg_hdr) != 0 };
    let entry = |i| list.wrapping_add(i);
    if !descriptors::are_any() {
        return false;
    }
    if claims::holds(claims::Of::Message, list, count * size_of::<libc::mmsghdr>()) {
        return (0..count).map(entry).any(has_control);
    }
    // The kernel sends those before the one that cannot be read.
    let is_there =
        |at: &*const libc::mmsghdr| sys::is_readable(at.cast(), size_of::<libc::mmsghdr>());
    (0..count).map(entry).take_while(is_there).any(has_control)
}

/// `sendmsg` on a socket that is not ours: descriptors may lie beside the message.
///
/// # Safety
/// As `sendmsg`.
unsafe fn send_rights(fd: i32, message: *const libc::msghdr, flags: i32) -> isize {
    let may_have_rights = descriptors::are_any()
        && claims::holds(claims::Of::Message, message, size_of::<libc::msghdr>());
    // SAFETY: the program's message header, which can be read.
    match may_have_rights.then(|| unsafe { &*message }) {
        Some(header) if control_len(header) != 0 => {
            // SAFETY: the program's control messages.
            let control = unsafe { Argument::new(header.msg_control.cast(), control_len(header)) };
            bundle::send_rights(header, control, |header| {
                plain!(real::sendmsg(fd, header, flags))()
            })
        }
        // SAFETY: passed on.
        _ => unsafe { real::sendmsg(fd, message, flags) },
    }
}

/// One number or struct that a call names, or nothing.
pub(crate) fn argument<'a, T: Bits>(at: *mut T) -> Argument<'a, T> {
    // SAFETY: the program's, as long as its call lasts.
    unsafe { Argument::new(at, 1) }
}

/// The array of a `poll` that needs us.
pub(crate) fn poll_entries<'a>(
    fds: *mut libc::pollfd,
    count: u64,
) -> Option<&'a mut [libc::pollfd]> {
    // SAFETY: the program's array, which can be read.
    let array = || unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    multiplex::entries(fds, count, array)
}

/// A message has been received on a socket that is not ours: unpacks what came with it.
///
/// # Safety
/// `message` is what the call that returned `n` was given.
unsafe fn received_rights(message: *mut libc::msghdr, n: isize) -> isize {
    if n >= 0 {
        // SAFETY: the kernel has read and written it, as the call did not fail.
        let (at, len) = unsafe { ((*message).msg_control, control_len(&*message)) };
        if !at.is_null() && len != 0 {
            // SAFETY: so many bytes the kernel has just written there.
            let control = unsafe { core::slice::from_raw_parts(at.cast(), len) };
            quietly(|| bundle::receive_rights(control));
        }
    }
    n
}

/// The flags of `splice` that Linux knows.
const SPLICE_FLAGS: u32 =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

/// Whether a descriptor is an end of a pipe, and not the one with this access mode.
fn is_pipe(fd: i32, wrong_mode: i32) -> bool {
    sys::fcntl(fd, libc::F_GETPIPE_SZ, 0).is_ok()
        && sys::fcntl(fd, libc::F_GETFL, 0)
            .is_ok_and(|flags| flags as i32 & libc::O_ACCMODE != wrong_mode)
}

/// `MSG_FASTOPEN` connects.
fn note_fast_open(fd: i32) {
    if let Some(sock) = descriptors::sock(fd).filter(|sock| sock.phase() == Phase::Fresh) {
        life::begin(sock.sock(), fd);
        sock.stay_plain(ProgramDid::OptionUnsupported.into());
    }
}

// Sockets come and go.

/// A number that libc has just handed out means what it means now.
pub(crate) fn forget_stale(fd: i32) -> i32 {
    if fd >= 0 && descriptors::is_ours(fd) {
        quietly(|| life::forget_number(fd));
    }
    fd
}

/// Accepts by `call`, which may sleep: the listener is the one that the number meant before.
fn accepting(listener: i32, flags: i32, call: impl FnOnce() -> i32) -> i32 {
    let known = descriptors::peek(listener);
    let fd = call();
    if fd < 0 {
        return fd;
    }
    // One that is not known yet cannot be by a number that is another's now.
    let is_tcp = known.is_some()
        || descriptors::peek(listener).is_none() && quietly(|| life::recognise_listener(listener));
    let known = match known {
        None => descriptors::peek(listener),
        known => known,
    };
    if !is_tcp {
        return forget_stale(fd);
    }
    quietly(|| {
        if !fresh::begin_server(fd, known, listener) {
            accept_with_object(fd, flags & libc::SOCK_NONBLOCK != 0, known, listener);
        }
    });
    fd
}

fn accept_with_object(fd: i32, nonblocking: bool, known: Option<&Sock>, listener: i32) {
    if let Some(sock) = life::register(fd, nonblocking, true) {
        if let Some(known) = known {
            inherit(sock, known, listener);
        }
        if hand_over::accepted(sock, fd) {
            return;
        }
        sock.set_phase(Phase::Candidate);
        life::begin(sock, fd);
    }
}

/// A socket was connected to a server at this port, or will be.
fn connected(fd: i32, port: u16) {
    if fresh::begin_client(fd, port) {
        return;
    }
    if let Some(sock) = descriptors::sock(fd).filter(|sock| sock.phase() == Phase::Fresh) {
        sock.note_server(port);
        if hand_over::offered(&sock, fd) {
            return;
        }
        sock.set_phase(Phase::Candidate);
        life::begin(sock.sock(), fd);
    }
}

/// The socket that is about to connect, if it has an object. Where rules of TLS are about clients, one that another
/// process has made gets one.
fn connecting(fd: i32) -> Option<Use> {
    if !descriptors::is_ours(fd) && protection::concerns_clients() {
        quietly(|| life::register_unseen(fd));
    }
    descriptors::sock(fd)
}

/// Whether a call would send with its SYN, past the rules of TLS.
fn opens_fast(flags: i32) -> bool {
    let is_forbidden = flags & libc::MSG_FASTOPEN != 0 && protection::concerns_clients();
    if is_forbidden {
        set_errno(libc::EOPNOTSUPP);
    }
    is_forbidden
}

/// What the listener was given is for the accepted socket as well.
fn inherit(sock: &Sock, known: &Sock, listener: i32) {
    if !descriptors::leads_to(listener, known) {
        // Closed while its `accept` slept: another object may be there by now.
        return;
    }
    sock.inherit(known);
    let is_settled = known.is_marked() && descriptors::leads_to(listener, known);
    if !is_settled
        && let Some(known) =
            descriptors::sock(listener).filter(|now| core::ptr::eq(now.sock(), known))
    {
        sock.inherit(&known);
        listeners::mark(&known, listener);
    }
}

export! {
    fn socket(domain: i32, kind: i32, protocol: i32) -> i32 {
        // SAFETY: passed on.
        let fd = forget_stale(unsafe { real::socket(domain, kind, protocol) });
        if fd >= 0 && tcp::is_tcp(domain, kind, protocol) {
            quietly(|| fresh::note_fresh(fd));
        }
        fd
    }

    fn connect(fd: i32, address: *const libc::sockaddr, len: u32) -> i32 {
        // The address is the program's claim until the kernel has read it: a bad pointer is
        // EFAULT and no fault. Before, it is read with the kernel's help, and only if need be.
        let sock = if fresh::may_connect(fd) { None } else { connecting(fd) };
        // SAFETY: the program's address of `len` bytes, if it is one.
        let claimed = || unsafe { GivenAddress::claimed(address, len) };
        let plain = plain!(real::connect(fd, address, len));
        let leads_nowhere = || claimed().is_some_and(|to| tcp::is_nowhere(to.bytes()));
        match sock {
            Some(sock) if sock.phase() == Phase::Fresh => {
                let to = || claimed().and_then(|to| tcp::address_in(to.bytes()));
                match quietly(|| protection::before_connect(&sock, fd, to)) {
                    Ok(true) => {}
                    Ok(false) => quietly(|| tcp_option::before_connect(&sock, fd, to)),
                    Err(error) => {
                        set_errno(error.0);
                        return -1;
                    }
                }
            }
            Some(sock) if leads_nowhere() => {
                return disconnect(&sock, fd, plain);
            }
            Some(sock) => _ = quietly(|| sock.sock().settle_offer(fd)),
            None => {}
        }
        let result = plain();
        if descriptors::is_ours(fd)
            && (result == 0 || matches!(errno(), libc::EINPROGRESS | libc::EINTR))
        {
            // SAFETY: the kernel has read the address, of so many bytes.
            let to = unsafe { GivenAddress::at(address, len) };
            if !to.as_ref().is_some_and(|to| tcp::is_nowhere(to.bytes())) {
                let to = to.and_then(|to| tcp::address_in(to.bytes()));
                quietly(|| connected(fd, to.map_or(0, |server| server.port())));
            }
        }
        result
    }

    fn listen(fd: i32, backlog: i32) -> i32 {
        if !descriptors::is_ours(fd) {
            // One that another process has made and bound: clients that connect before the
            // first `accept` are to find us, too.
            quietly(|| life::register_unseen(fd));
        }
        if let Some(sock) = descriptors::sock(fd).filter(|sock| sock.phase() == Phase::Fresh) {
            quietly(|| tcp_option::before_listen(&sock, fd));
        }
        // SAFETY: passed on.
        let result = unsafe { real::listen(fd, backlog) };
        if let Some(sock) = descriptors::sock(fd)
            && result == 0
            && sock.phase() == Phase::Fresh
        {
            sock.set_phase(Phase::Listener);
            quietly(|| {
                protection::after_listen(&sock, fd);
                listeners::mark(&sock, fd);
            });
        }
        result
    }

    fn accept(fd: i32, address: Address, len: Length) -> i32 {
        accepting(fd, 0, plain!(real::accept(fd, address, len)))
    }

    fn accept4(fd: i32, address: Address, len: Length, flags: i32) -> i32 {
        accepting(fd, flags, plain!(real::accept4(fd, address, len, flags)))
    }

    fn close(fd: i32) -> i32 {
        if sys::is_hidden(fd) {
            return not_open();
        }
        let _closing = quietly(|| life::before_close(fd));
        plain!(real::close(fd))()
    }

    fn close_range(first: u32, last: u32, flags: i32) -> i32 {
        const CLOSE_RANGE_CLOEXEC: i32 = 4;
        // Asks about a range that is always empty: what the kernel refuses must
        // change nothing.
        // SAFETY: passed on.
        if first > last || unsafe { real::close_range(u32::MAX, u32::MAX, flags) } < 0 {
            // SAFETY: passed on.
            return unsafe { real::close_range(first, last, flags) };
        }
        if flags & CLOSE_RANGE_CLOEXEC == 0 {
            // One by one, so that each peer is told after its connection was closed.
            quietly(|| {
                descriptors::for_each(first as usize, last as usize, |fd| {
                    // SAFETY: the program wants it closed.
                    unsafe { close(fd) };
                });
            });
        }
        let mut from = first;
        while let Some(hidden) = sys::next_hidden(from as usize).filter(|fd| *fd <= last as usize) {
            let hidden = hidden as u32;
            // SAFETY: passed on, without our descriptor.
            if hidden > from && unsafe { real::close_range(from, hidden - 1, flags) } < 0 {
                return -1;
            }
            from = hidden + 1;
        }
        // SAFETY: passed on.
        if from <= last { unsafe { real::close_range(from, last, flags) } } else { 0 }
    }

    fn shutdown(fd: i32, how: i32) -> i32 {
        confinement::admit(Call::Shutdown);
        let sock = match how {
            // The kernel's business alone, as long as no room needs an object.
            libc::SHUT_WR => descriptors::object(fd),
            _ => descriptors::sock(fd),
        };
        if let Some(sock) = sock {
            quietly(|| sock.sock().settle_offer(fd));
            if let Some(result) = life::shutdown(&sock, fd, how) {
                return answer(result) as i32;
            }
        }
        // SAFETY: passed on.
        unsafe { real::shutdown(fd, how) }
    }

    fn getpeername(fd: i32, peer: Address, size: Length) -> i32 {
        if descriptors::object(fd).is_some_and(|sock| closing::has_no_peer(&sock, fd)) {
            set_errno(libc::ENOTCONN);
            return -1;
        }
        named(fd, true, peer, size, plain!(real::getpeername(fd, peer, size)))
    }

    fn getsockname(fd: i32, local: Address, size: Length) -> i32 {
        named(fd, false, local, size, plain!(real::getsockname(fd, local, size)))
    }

    fn ioctl(fd: i32, request: u64, argument: usize) -> i32 {
        confinement::admit(Call::Ioctl);
        // The kernel looks at four bytes, and musl's callers set no more.
        let request = u64::from(request as u32);
        // Whether a socket waits, the kernel can be asked later.
        let sock = match request {
            libc::FIONBIO => descriptors::object(fd),
            _ => descriptors::sock(fd),
        };
        let Some(sock) = sock else {
            // SAFETY: passed on.
            return unsafe { real::ioctl(fd, request, argument) };
        };
        let number = match request {
            libc::FIONREAD => socket_options::readable_bytes(&sock, fd),
            libc::TIOCOUTQ | SIOCOUTQNSD => socket_options::unread_by_peer(&sock),
            SIOCATMARK => socket_options::at_mark(&sock, fd).map(usize::from),
            _ => None,
        };
        if let Some(number) = number {
            // SAFETY: these requests store one int.
            unsafe { *(argument as *mut i32) = number as i32 };
            return 0;
        }
        // SAFETY: passed on.
        let result = unsafe { real::ioctl(fd, request, argument) };
        if matches!(request, libc::FIONBIO | FIOASYNC) && result == 0 {
            // SAFETY: both read one int.
            let on = unsafe { *(argument as *const i32) } != 0;
            if request == FIOASYNC { socket_options::set_async(&sock, on) } else { sock.set_nonblocking(on) }
        }
        result
    }

    fn sockatmark(fd: i32) -> i32 {
        match descriptors::sock(fd).and_then(|sock| socket_options::at_mark(&sock, fd)) {
            Some(at_mark) => i32::from(at_mark),
            // SAFETY: passed on.
            None => unsafe { real::sockatmark(fd) },
        }
    }
}

/// What `getsockname` or `getpeername` says, which of a connection to another host is where that
/// leads.
fn named(fd: i32, is_peer: bool, at: Address, size: Length, plain: impl Fn() -> i32) -> i32 {
    let Some(name) = hand_over::name(fd, is_peer) else { return plain() };
    let bytes = name.bytes();
    let mut room = [0; size_of::<libc::socklen_t>()];
    // A bad pointer is for the kernel to refuse.
    let is_readable = sys::copy_own(size.cast(), &mut room).is_ok();
    let result = plain();
    if result == 0 && is_readable {
        let n = (u32::from_ne_bytes(room) as usize).min(bytes.len());
        // SAFETY: the kernel has just written an address there, and its length. The room is as long
        // as the program says.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), at.cast::<u8>(), n);
            size.write(bytes.len() as u32);
        }
    }
    result
}

/// `SIOCOUTQNSD` and `SIOCATMARK` of `linux/sockios.h` and `asm-generic/sockios.h`.
const SIOCOUTQNSD: u64 = 0x894B;
const SIOCATMARK: u64 = 0x8905;
/// `FIOASYNC` of `asm-generic/ioctls.h`.
const FIOASYNC: u64 = 0x5452;

/// What a descriptor of ours is to the program.
pub(crate) fn not_open() -> i32 {
    set_errno(libc::EBADF);
    -1
}

/// `connect` to nowhere.
fn disconnect(sock: &Use, fd: i32, plain: impl Fn() -> i32) -> i32 {
    let had_ended = quietly(|| words::before_disconnect(sock));
    let result = plain();
    if result == 0 {
        quietly(|| life::after_disconnect(sock, fd, had_ended));
    }
    result
}

// Other processes. (libc calls us around its own `fork`, but does not say what came of it.)

export! {
    fn fork() -> i32 {
        fork::fork(plain!(real::fork()))
    }

    fn _Fork() -> i32 {
        fork::around(plain!(real::_Fork()))
    }

    fn clone(task: Begin, stack: *mut c_void, flags: i32, argument: *mut c_void, parent_tid: *mut c_void, tls: *mut c_void, child_tid: *mut c_void) -> i32 {
        let words = [parent_tid, tls, child_tid];
        if fork::is_fork(flags as u64) {
            // SAFETY: the program's own call.
            return unsafe { fork::clone((task, argument), stack, flags, words) };
        }
        if fork::lends_memory(flags as u64) {
            program::fork::lend_memory();
        }
        // SAFETY: the program's own call, passed on.
        unsafe { real::clone(task, stack, flags, argument, parent_tid, tls, child_tid) }
    }
}

// Other programs.

/// Runs `exec` with bundles in the place of connections in shared memory.
fn begin(exec: impl Fn() -> i32) -> i32 {
    quietly(bundle::before_exec);
    let failed = exec();
    quietly(bundle::after_failed_exec);
    failed
}

type Texts = *const *const c_char;

export! {
    fn execve(path: *const c_char, arguments: Texts, environment: Texts) -> i32 {
        begin(plain!(real::execve(path, arguments, environment)))
    }

    fn execv(path: *const c_char, arguments: Texts) -> i32 {
        begin(plain!(real::execv(path, arguments)))
    }

    fn execvp(file: *const c_char, arguments: Texts) -> i32 {
        begin(plain!(real::execvp(file, arguments)))
    }

    fn execvpe(file: *const c_char, arguments: Texts, environment: Texts) -> i32 {
        begin(plain!(real::execvpe(file, arguments, environment)))
    }

    fn fexecve(fd: i32, arguments: Texts, environment: Texts) -> i32 {
        begin(plain!(real::fexecve(fd, arguments, environment)))
    }

    fn execveat(at: i32, path: *const c_char, arguments: Texts, environment: Texts, flags: i32) -> i32 {
        begin(plain!(real::execveat(at, path, arguments, environment, flags)))
    }
}

// Options.

export! {
    fn setsockopt(fd: i32, level: i32, name: i32, value: *const c_void, len: u32) -> i32 {
        confinement::admit(Call::SetOption);
        if asked::is_asked(level, name)
            && let Some(begun) = begin_tls(fd, value, len)
        {
            return begun.map_or_else(
                |errno| {
                    set_errno(errno.0);
                    -1
                },
                |()| 0,
            );
        }
        let concerns_us = socket_options::concerns_us(level, name);
        let sock = if concerns_us { descriptors::sock(fd) } else { descriptors::object(fd) };
        let Some(sock) = sock else {
            // SAFETY: passed on.
            return unsafe { real::setsockopt(fd, level, name, value, len) };
        };
        if (len as usize) < size_of::<i32>() || value.is_null() {
            // SAFETY: passed on.
            return unsafe { real::setsockopt(fd, level, name, value, len) };
        }
        let first = match sock.phase() {
            Phase::Smc => argument(value.cast_mut().cast::<i32>()).value(),
            // Before it has moved, the value changes nothing.
            _ => Some(0),
        };
        let Some(first) = first else {
            // SAFETY: passed on.
            return unsafe { real::setsockopt(fd, level, name, value, len) };
        };
        match socket_options::before_set_option(&sock, level, name, first) {
            OptionAnswer::Kernel | OptionAnswer::FirstByte(_) => {}
            OptionAnswer::Value(result) => return result,
            OptionAnswer::Refused(errno) => {
                set_errno(errno);
                return -1;
            }
        }
        // SAFETY: passed on.
        let result = unsafe { real::setsockopt(fd, level, name, value, len) };
        if result == 0 {
            let words = value.cast::<i32>();
            let second = len as usize >= 2 * size_of::<i32>();
            // SAFETY: the kernel has just read `len` bytes there.
            let (first, second) = unsafe {
                (words.read_unaligned(), if second { words.add(1).read_unaligned() } else { 0 })
            };
            quietly(|| socket_options::after_set_option(&sock, fd, level, name, first, second));
        }
        result
    }

    fn getsockopt(fd: i32, level: i32, name: i32, value: *mut c_void, len: Length) -> i32 {
        confinement::admit(Call::GetOption);
        if asked::is_asked(level, name)
            && let Some(status) = quietly(|| asked::status(fd))
        {
            return match status.and_then(|status| give_value(&status.to_bytes(), value, len)) {
                Ok(()) => 0,
                Err(errno) => {
                    set_errno(errno.0);
                    -1
                }
            };
        }
        if let Some(sock) = descriptors::object(fd) {
            quietly(|| sock.sock().settle_offer(fd));
        }
        let ours = descriptors::object(fd)
            .map_or(OptionAnswer::Kernel, |sock| socket_options::get_option(&sock, fd, level, name));
        // SAFETY: passed on; the kernel checks the program's pointers.
        let result = unsafe { real::getsockopt(fd, level, name, value, len) };
        let number;
        let bytes: &[u8] = match &ours {
            OptionAnswer::Value(value) => {
                number = value.to_ne_bytes();
                &number
            }
            OptionAnswer::FirstByte(byte) => core::slice::from_ref(byte),
            _ => &[],
        };
        if result == 0 && !bytes.is_empty() {
            // SAFETY: the kernel has just written `*len` bytes there.
            unsafe {
                let n = (*len as usize).min(bytes.len());
                core::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), n);
            }
        }
        result
    }
}

/// The program begins TLS. `None`: it is no TCP socket, and the kernel says so.
fn begin_tls(fd: i32, value: *const c_void, len: u32) -> Option<Result<(), Errno>> {
    let mut room = [0; size_of::<i32>()];
    let word = match len as usize >= room.len() {
        true => sys::copy_own(value.cast(), &mut room).map(|()| i32::from_ne_bytes(room)),
        false => Err(Errno(libc::EINVAL)),
    };
    quietly(|| controlled::start(fd, word))
}

/// Gives the program the value of an option that the kernel does not know, as much as it has room for.
fn give_value(bytes: &[u8], value: *mut c_void, len: Length) -> Result<(), Errno> {
    let mut room = [0; size_of::<libc::socklen_t>()];
    sys::copy_own(len.cast(), &mut room)?;
    let count = (libc::socklen_t::from_ne_bytes(room) as usize).min(bytes.len());
    sys::write_own(value.cast(), &bytes[..count])?;
    sys::write_own(len.cast(), &(count as libc::socklen_t).to_ne_bytes())
}

// Readiness.

pub(crate) fn duration(time: &libc::timespec) -> Duration {
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

pub(crate) fn is_valid(time: &libc::timespec) -> bool {
    time.tv_sec >= 0 && (0..1_000_000_000).contains(&time.tv_nsec)
}

fn milliseconds(timeout: i32) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

export! {
    fn poll(fds: *mut libc::pollfd, count: u64, timeout: i32) -> i32 {
        match poll_entries(fds, count) {
            Some(entries) => {
                answer(multiplex::poll(entries, milliseconds(timeout), SignalMask::NONE)) as i32
            }
            // SAFETY: passed on.
            None => unsafe { real::poll(fds, count, timeout) },
        }
    }

    fn ppoll(fds: *mut libc::pollfd, count: u64, time: *const libc::timespec, mask: Mask) -> i32 {
        let entries = poll_entries(fds, count);
        // SAFETY: null or the program's time.
        let timeout = || unsafe { time.as_ref() };
        match entries {
            Some(entries) if timeout().is_none_or(is_valid) => {
                // SAFETY: the program's signal set, of which the kernel reads 8 bytes.
                let mask = unsafe { SignalMask::new(mask) };
                answer(multiplex::poll(entries, timeout().map(duration), mask)) as i32
            }
            // SAFETY: passed on.
            _ => unsafe { real::ppoll(fds, count, time, mask) },
        }
    }

    fn __poll_chk(fds: *mut libc::pollfd, count: u64, timeout: i32, room: usize) -> i32 {
        // SAFETY: checked as the fortified call does, then the same.
        unsafe {
            if room / size_of::<libc::pollfd>() < count as usize {
                real::__poll_chk(fds, count, timeout, room)
            } else {
                poll(fds, count, timeout)
            }
        }
    }

    fn __ppoll_chk(fds: *mut libc::pollfd, count: u64, time: *const libc::timespec, mask: Mask, room: usize) -> i32 {
        // SAFETY: as above.
        unsafe {
            if room / size_of::<libc::pollfd>() < count as usize {
                real::__ppoll_chk(fds, count, time, mask, room)
            } else {
                ppoll(fds, count, time, mask)
            }
        }
    }

    fn select(nfds: i32, read: *mut c_void, write: *mut c_void, except: *mut c_void, time: *mut libc::timeval) -> i32 {
        // musl asks Linux with a copy of the time.
        let of_musl = if real::is_musl() { argument(time).value() } else { None };
        // SAFETY: the program's own call.
        let result = unsafe { select_by_number(nfds, [read, write, except], time) };
        if let Some(before) = of_musl {
            argument(time).set(0, before);
        }
        result
    }

    fn pselect(nfds: i32, read: *mut c_void, write: *mut c_void, except: *mut c_void, time: *const libc::timespec, mask: Mask) -> i32 {
        let sets = fd_sets(nfds, read, write, except);
        let nfds = sets.map_or(nfds, |sets| sets.nfds() as i32);
        // SAFETY: null or the program's time.
        let timeout = || unsafe { time.as_ref() };
        match sets.filter(|sets| sets.concern_us() && timeout().is_none_or(is_valid)) {
            Some(sets) => {
                // SAFETY: the program's signal set, of which the kernel reads 8 bytes.
                let mask = unsafe { SignalMask::new(mask) };
                answer(multiplex::select(sets, timeout().map(duration), mask)) as i32
            }
            // SAFETY: passed on.
            None => unsafe { real::pselect(nfds, read, write, except, time, mask) },
        }
    }

    fn epoll_create(size: i32) -> i32 {
        // SAFETY: passed on.
        new_set(unsafe { real::epoll_create(size) })
    }

    fn epoll_create1(flags: i32) -> i32 {
        // SAFETY: passed on.
        new_set(unsafe { real::epoll_create1(flags) })
    }

    fn epoll_ctl(epfd: i32, operation: i32, fd: i32, event: *mut libc::epoll_event) -> i32 {
        match epoll::control(epfd, operation, fd, argument(event)) {
            Some(result) => answer(result) as i32,
            // SAFETY: passed on.
            None => unsafe { real::epoll_ctl(epfd, operation, fd, event) },
        }
    }

    fn epoll_wait(epfd: i32, events: *mut libc::epoll_event, max: i32, timeout: i32) -> i32 {
        let mask = core::ptr::null();
        let plain = plain!(real::epoll_wait(epfd, events, max, timeout));
        wait_in(epfd, events, max, || milliseconds(timeout), mask, plain)
    }

    fn epoll_pwait(epfd: i32, events: *mut libc::epoll_event, max: i32, timeout: i32, mask: Mask) -> i32 {
        let plain = plain!(real::epoll_pwait(epfd, events, max, timeout, mask));
        wait_in(epfd, events, max, || milliseconds(timeout), mask, plain)
    }

    fn epoll_pwait2(epfd: i32, events: *mut libc::epoll_event, max: i32, time: *const libc::timespec, mask: Mask) -> i32 {
        let plain = plain!(real::epoll_pwait2(epfd, events, max, time, mask));
        // SAFETY: null or the program's time.
        let limit = || unsafe { time.as_ref() };
        let is_answered_here = set::set(epfd).is_some_and(set::Set::is_tagged);
        if is_answered_here && !limit().is_none_or(is_valid) {
            return plain();
        }
        wait_in(epfd, events, max, || limit().map(duration), mask, plain)
    }
}

/// `select` as Linux has it, which writes the time that is left back.
///
/// # Safety
/// As `select`.
pub(crate) unsafe fn select_by_number(
    nfds: i32,
    [read, write, except]: [*mut c_void; 3],
    time: *mut libc::timeval,
) -> i32 {
    // SAFETY: null or the program's time.
    let timeout = || unsafe { time.as_ref() };
    let is_valid = || timeout().is_none_or(|t| t.tv_sec >= 0 && t.tv_usec >= 0);
    let sets = fd_sets(nfds, read, write, except);
    let nfds = sets.map_or(nfds, |sets| sets.nfds() as i32);
    let Some(sets) = sets.filter(|sets| sets.concern_us() && is_valid()) else {
        // SAFETY: passed on.
        return unsafe { real::select(nfds, read, write, except, time) };
    };
    let left = timeout()
        .map(|t| Duration::new(t.tv_sec as u64, 0) + Duration::from_micros(t.tv_usec as u64));
    let start = sys::now_ns();
    let result = multiplex::select(sets, left, SignalMask::NONE);
    if let Some(left) = left {
        let left = left.saturating_sub(Duration::from_nanos(sys::now_ns() - start));
        // SAFETY: the program's time, which was read before.
        unsafe {
            (*time).tv_sec = left.as_secs() as i64;
            (*time).tv_usec = i64::from(left.subsec_micros());
        }
    }
    answer(result) as i32
}

/// `epoll_wait` and its kin. `timeout` is asked for when the kernel has taken it, or is not to
/// be asked.
fn wait_in(
    epfd: i32,
    events: *mut libc::epoll_event,
    max: i32,
    timeout: impl Fn() -> Option<Duration>,
    mask: Mask,
    plain: impl Fn() -> i32,
) -> i32 {
    // A call in a set that is closed meanwhile goes on with it.
    let in_use = if max > 0 && !events.is_null() { set::set_in_use(epfd) } else { None };
    let Some(set) = in_use.as_ref().map(set::SetUse::set) else {
        return plain();
    };
    if !set.is_tagged() {
        let count = plain();
        if count <= 0 || !set.is_tagged() {
            return count;
        }
        // SAFETY: the kernel has just written `count` events.
        let events = unsafe { core::slice::from_raw_parts_mut(events, count as usize) };
        let ours = epoll::sort_out(set, events);
        if ours > 0 {
            return ours as i32;
        }
    }
    // SAFETY: the program's array of `max` events, and its signal set, of which the kernel reads 8
    // bytes.
    let (events, mask) =
        unsafe { (core::slice::from_raw_parts_mut(events, max as usize), SignalMask::new(mask)) };
    answer(epoll::wait(set, epfd, events, timeout(), mask)) as i32
}

/// A copy of an address of the program.
struct GivenAddress {
    bytes: [u8; size_of::<libc::sockaddr_storage>()],
    len: usize,
}

impl GivenAddress {
    /// One that may not be there: `None` then. It is read with the kernel's help, if that may be asked.
    ///
    /// # Safety
    /// Where a filter forbids to ask, as [`Self::at`].
    unsafe fn claimed(address: *const libc::sockaddr, len: u32) -> Option<Self> {
        let mut copy = Self::empty(len)?;
        match sys::copy_own(address.cast(), &mut copy.bytes[..copy.len]) {
            Ok(()) => Some(copy),
            Err(error) if error.0 == libc::EFAULT => None,
            // SAFETY: the caller's promise for that case.
            Err(_) => unsafe { Self::at(address, len) },
        }
    }

    /// One that is there. `None`: it is null, or longer than any.
    ///
    /// # Safety
    /// `address` is null or has `len` bytes.
    unsafe fn at(address: *const libc::sockaddr, len: u32) -> Option<Self> {
        let mut copy = Self::empty(len).filter(|_| !address.is_null())?;
        // SAFETY: the caller's promise, and `empty` has room for so many.
        unsafe { copy.bytes.as_mut_ptr().copy_from_nonoverlapping(address.cast(), copy.len) };
        Some(copy)
    }

    fn empty(len: u32) -> Option<Self> {
        let copy = Self { bytes: [0; _], len: len as usize };
        (copy.len <= copy.bytes.len()).then_some(copy)
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The sets of a `select`, as far as it looks at them; `None` for the kernel to refuse.
pub(crate) fn fd_sets(
    nfds: i32,
    read: *mut c_void,
    write: *mut c_void,
    except: *mut c_void,
) -> Option<FdSets<'static>> {
    let nfds = usize::try_from(nfds).ok()?;
    let is_far = nfds > sys::FD_SETSIZE && descriptors::are_any();
    let nfds = if is_far { sys::bits_of_select(nfds, descriptors::highest()) } else { nfds };
    // SAFETY: the program's sets, of which Linux looks at `nfds` bits in whole words.
    let words = |set: *mut c_void| unsafe { Argument::new(set.cast(), nfds.div_ceil(64)) };
    Some(FdSets::new([read, write, except].map(words), nfds))
}

fn new_set(epfd: i32) -> i32 {
    if epfd >= 0 {
        quietly(|| epoll::register(forget_stale(epfd)));
    }
    epfd
}

// Numbers that may be new.

export! {
    fn pipe(fds: *mut i32) -> i32 {
        // SAFETY: passed on.
        pair(fds, unsafe { real::pipe(fds) })
    }

    fn pipe2(fds: *mut i32, flags: i32) -> i32 {
        // SAFETY: passed on.
        pair(fds, unsafe { real::pipe2(fds, flags) })
    }

    fn socketpair(domain: i32, kind: i32, protocol: i32, fds: *mut i32) -> i32 {
        // SAFETY: passed on.
        pair(fds, unsafe { real::socketpair(domain, kind, protocol, fds) })
    }

    fn eventfd(count: u32, flags: i32) -> i32 {
        // SAFETY: passed on.
        forget_stale(unsafe { real::eventfd(count, flags) })
    }

    fn open(path: *const c_char, flags: i32, mode: u32) -> i32 {
        // SAFETY: passed on.
        forget_stale(unsafe { real::open(path, flags, mode) })
    }

    fn openat(at: i32, path: *const c_char, flags: i32, mode: u32) -> i32 {
        // SAFETY: passed on.
        forget_stale(unsafe { real::openat(at, path, flags, mode) })
    }

    fn timerfd_create(clock: i32, flags: i32) -> i32 {
        // SAFETY: passed on.
        forget_stale(unsafe { real::timerfd_create(clock, flags) })
    }

    fn signalfd(fd: i32, mask: Mask, flags: i32) -> i32 {
        // SAFETY: passed on.
        forget_stale(unsafe { real::signalfd(fd, mask, flags) })
    }

    fn closefrom(first: i32) -> () {
        // SAFETY: as close_range with the rest of the numbers.
        unsafe { close_range(first.max(0) as u32, u32::MAX, 0) };
    }
}

fn pair(fds: *mut i32, result: i32) -> i32 {
    if result == 0 {
        // SAFETY: the call has filled both.
        unsafe {
            forget_stale(*fds);
            forget_stale(*fds.add(1));
        }
    }
    result
}

/// Printers, and kin of `exec`, that are variadic: the C shims continue with the
/// caller's registers.
macro_rules! jump {
    ($(fn $name:ident -> $target:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!("jmp {target}", target = sym $target);
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!("b {target}", target = sym $target);
            }
        )*
        unsafe extern "C" {
            $(fn $target();)*
        }
    };
}

jump! {
    fn dprintf -> sidestep_dprintf;
    fn vdprintf -> sidestep_vdprintf;
    fn __dprintf_chk -> sidestep_dprintf_chk;
    fn __vdprintf_chk -> sidestep_vdprintf_chk;
    fn execl -> sidestep_execl;
    fn execlp -> sidestep_execlp;
    fn execle -> sidestep_execle;
}

alias! {
    fn __read = read(fd: i32, at: *mut c_void, len: usize) -> isize;
    fn __write = write(fd: i32, at: *const c_void, len: usize) -> isize;
    fn __send = send(fd: i32, at: *const c_void, len: usize, flags: i32) -> isize;
    fn __sendmmsg = sendmmsg(fd: i32, list: *mut libc::mmsghdr, count: u32, flags: i32) -> i32;
    fn preadv64v2 = preadv2(fd: i32, list: *const libc::iovec, count: i32, offset: i64, flags: i32) -> isize;
    fn pwritev64v2 = pwritev2(fd: i32, list: *const libc::iovec, count: i32, offset: i64, flags: i32) -> isize;
    fn sendfile64 = sendfile(out: i32, file: i32, offset: *mut i64, len: usize) -> isize;
    fn __connect = connect(fd: i32, address: *const libc::sockaddr, len: u32) -> i32;
    fn __close = close(fd: i32) -> i32;
    fn __poll = poll(fds: *mut libc::pollfd, count: u64, timeout: i32) -> i32;
    fn __fork = fork() -> i32;
    fn __select = select(nfds: i32, read: *mut c_void, write: *mut c_void, except: *mut c_void, time: *mut libc::timeval) -> i32;
    fn __pipe = pipe(fds: *mut i32) -> i32;
    fn __open = open(path: *const c_char, flags: i32, mode: u32) -> i32;
    fn open64 = open(path: *const c_char, flags: i32, mode: u32) -> i32;
    fn __open64 = open(path: *const c_char, flags: i32, mode: u32) -> i32;
    fn openat64 = openat(at: i32, path: *const c_char, flags: i32, mode: u32) -> i32;
}
