//! What other processes say to this one, and what it makes of that: introductions, and bells.
//!
//! Letters come to the mailbox, from processes of this network namespace, and by lines, from those of
//! others. The sender of a letter is named by the kernel or by the agent.

use crate::process::group::{self, Group, THEIR_SLAB, THEIR_WAKE};
use crate::process::groups::{self, Look};
use crate::process::home::{self, Home};
use crate::process::options;
use crate::process::owner::Held;
use core::sync::atomic::Ordering;
use sidestep_device::rights::{self, NotTaken};
use sidestep_device::slab::SLAB_LEN;
use sidestep_device::stamp::OTHER_VERSION;
use sidestep_device::sys::{self, Errno, Received, Sender, Whereabouts};
use sidestep_proto::fallback::{Field, Lack, PeerCannot, Reason};
use sidestep_proto::policy;
use sidestep_wire::host_control::{
    Channel, ControlMessage, EMITTED_LEN_MAX, Instance, Introduction,
};
use sidestep_wire::{Diagnosis, LinkId};

/// Whether there is a line to a process: then only what comes by it is believed.
fn has_line(process: &'static Home, peer: Instance) -> bool {
    groups::find(&Look::at(process), peer).is_some_and(Group::is_distant)
}

/// Reads what has come by lines.
pub(crate) fn read_lines(process: &'static Home) {
    for group in groups::all(&Look::at(process)).filter(|group| group.is_distant()) {
        group.introduce(false);
        read_line(process, group);
    }
}

/// A process has introduced itself with its slab and wake memory.
pub fn on_introduction(process: &'static Home, hello: &Introduction, letter: &Received) {
    // A process does not introduce itself to itself: a group with ourselves is never dead.
    if hello.instance == process.instance {
        crate::log!(Warn, "somebody introduces himself as us");
        return;
    }
    let look = Look::at(process);
    if let Some(reason) = refusal_in(process, hello) {
        crate::log!(Info, "{} cannot use our memory: {reason}", hello.instance);
        return note_refusal(&look, hello.instance, reason);
    }
    let known = groups::find(&look, hello.instance).filter(|group| group.theirs().is_some());
    let Some(group) = known.or_else(|| get_to_know(&look, hello, letter)) else { return };
    if !group.introduce(false) && !group.reply_pending.swap(true, Ordering::Relaxed) {
        process.replies_pending.fetch_add(1, Ordering::Relaxed);
    }
}

/// Maps what a process shows. No group is begun with one that shows nothing of use.
fn get_to_know(look: &Look, hello: &Introduction, letter: &Received) -> Option<&'static Group> {
    let &[slab_fd, wake_fd] = letter.fds() else {
        crate::log!(Warn, "introduction of {} without its memory", hello.instance);
        note_breach(look, hello.instance);
        return None;
    };
    let is_as_long = hello.slab_len == SLAB_LEN as u64;
    let length = if is_as_long { Ok(()) } else { Err(OTHER_VERSION) };
    let group = length.and_then(|()| group::adopt(slab_fd, wake_fd)).and_then(|theirs| {
        let group = groups::with(look, hello.instance)
            .ok()
            .filter(|group| group.establish(theirs, Some((hello, letter))));
        match group {
            Some(group) => {
                group.keep(THEIR_SLAB, slab_fd);
                group.keep(THEIR_WAKE, wake_fd);
            }
            None => group::give_up(theirs),
        }
        // Another thread may have established it meanwhile.
        group.or_else(|| groups::find(look, hello.instance)).ok_or(Errno(libc::ENOMEM))
    });
    group
        .inspect_err(|errno| {
            crate::log!(Warn, "memory of {} refused: errno {}", hello.instance, errno.0);
            match *errno {
                Errno(libc::ENOMEM) => refuse(look, hello.instance, Reason::Lack(Lack::NoMemory)),
                OTHER_VERSION => {
                    crate::log!(Warn, "{} runs another version of Sidestep", hello.instance);
                    refuse(look, hello.instance, Reason::Peer(PeerCannot::OtherVersion));
                }
                Errno(libc::EMFILE | libc::ENFILE | libc::EAGAIN) => {}
                _ => note_breach(look, hello.instance),
            }
        })
        .ok()
}

/// The length of a slab in the Introduction of a process that has no room for another:
/// it shows nothing, and what was shown to it is of no use.
const NO_ROOM: u64 = 0;

/// The same of one that was shown memory of another version.
const NOT_OURS: u64 = u64::MAX;

/// The answer to [`NO_ROOM`] of a process that is greeted again afterwards: the room is lacking
/// where this goes.
const NO_ROOM_THERE: u64 = u64::MAX - 1;

/// Why the process that says this cannot use our memory, if it says so. Where it has no room, it
/// has declined: nothing is lacking here. That the room is lacking here it cannot make us believe
/// before we have said so ourselves.
fn refusal_in(process: &Home, hello: &Introduction) -> Option<Reason> {
    match hello.slab_len {
        NO_ROOM_THERE if process.lacks_room.load(Ordering::Relaxed) => Some(Lack::NoMemory.into()),
        NO_ROOM | NO_ROOM_THERE => Some(Reason::PeerDeclined(Diagnosis::MEM)),
        NOT_OURS => Some(PeerCannot::OtherVersion.into()),
        _ => None,
    }
}

/// The memory of a process cannot be used, or it cannot be shown ours: tells it, so that
/// it does not go on waiting. If the letter is not taken, the attempts are given up.
pub fn refuse(look: &Look, peer: Instance, reason: Reason) {
    let process = look.0;
    let slab_len = match reason {
        Reason::Peer(PeerCannot::OtherVersion) => NOT_OURS,
        Reason::PeerDeclined(_) => NO_ROOM_THERE,
        _ => NO_ROOM,
    };
    if slab_len == NO_ROOM {
        process.lacks_room.store(true, Ordering::Relaxed);
    }
    let message = ControlMessage::Introduction(Introduction {
        instance: process.instance,
        reply_wanted: false,
        pid: process.pid,
        slab_len,
        link_id: LinkId(0),
    });
    match groups::find(look, peer) {
        Some(group) => _ = group.send(&message, &[]),
        None => _ = process.write_to(&peer, &message, &[]),
    }
    note_refusal(look, peer, reason);
}

/// What waits for memory to be shown, waits no more.
fn note_refusal(look: &Look, peer: Instance, reason: Reason) {
    if let Some(group) = groups::find(look, peer) {
        group.refused.store(reason.word(), Ordering::Relaxed);
    }
    look.0.last_refusal.store(reason.word(), Ordering::Relaxed);
    // Release: a thread that counts it finds its reason, or a later one's.
    look.0.refusals.fetch_add(1, Ordering::Release);
}

/// A process has shown what is no memory of the kind that it has to be, or another one has in its name: what it
/// was is told if nothing better comes.
fn note_breach(look: &Look, peer: Instance) {
    look.0.note_breach(Reason::PeerBroke(Field::INTRODUCED_MEMORY));
    if let Some(group) = groups::find(look, peer) {
        group.is_breached.store(true, Ordering::Relaxed);
    }
}

/// Sends the introductions that found a full mailbox.
pub fn answer_introductions(process: &'static Home) {
    for group in groups::all(&Look::at(process)) {
        if group.reply_pending.load(Ordering::Relaxed) && group.introduce(false) {
            group.reply_pending.store(false, Ordering::Relaxed);
            process.replies_pending.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A peer has sent the eventfd of one of its channels. True: it was kept. Of anything
/// else a write could wait, or raise a signal.
pub fn on_channel(process: &'static Home, channel: &Channel, letter: &Received) -> bool {
    let look = Look::at(process);
    let (Some(group), &[fd]) = (groups::find(&look, channel.instance), letter.fds()) else {
        return false;
    };
    let Some(bell) = group.bells.get(usize::from(channel.channel)) else { return false };
    // To hang up another process's bell would have its peers ring in vain.
    let is_theirs =
        group.theirs().is_none() || group.peer_pid.load(Ordering::Relaxed) == letter.pid;
    if !is_theirs || !sys::is_eventfd(fd) {
        crate::log!(Warn, "{} has sent a bell that is none", channel.instance);
        return false;
    }
    let old = bell.swap(sys::move_up(fd) + 1, Ordering::AcqRel);
    if old > 0 {
        sys::close(old - 1);
    }
    true
}

/// Takes what has come by the line. The kernel knows who has the other end; who that is
/// the agent has said.
fn read_line(home: &'static Home, group: &Group) {
    let Some(line) = group.line() else { return };
    let mut bytes = [0; EMITTED_LEN_MAX];
    for _ in 0..LETTERS_MAX {
        let Ok(mut received) = sys::recv_with_fds(line, &mut bytes) else { return };
        if received.len == 0 {
            return;
        }
        (received.sender, received.pid) = (Some(group.peer_user()), 0);
        match ControlMessage::parse(&bytes[..received.len]) {
            Ok(message) if message.instance() != group.peer => {
                crate::log!(Warn, "{} speaks in another's name", group.peer);
            }
            Ok(ControlMessage::Introduction(introduction)) => {
                on_introduction(home, &introduction, &received);
            }
            Ok(ControlMessage::Channel(channel)) => {
                if on_channel(home, &channel, &received) {
                    continue;
                }
            }
            Ok(_) => {}
            Err(error) => crate::log!(Warn, "message of {} ignored: {error}", group.peer),
        }
        received.close_fds();
    }
}

/// Datagrams read in one look into the mailbox: a process that sends faster than we read
/// keeps no call waiting.
const LETTERS_MAX: usize = 64;

impl Home {
    /// Reads what other processes have sent to our mailbox.
    pub fn read_mail(&'static self) {
        // Between the look at a message and its taking the next one must stay the next.
        if let Some(_held) = Held::try_enter(self.mail_lock.get()) {
            self.read_mailbox();
        }
        read_lines(self);
        if self.replies_pending.load(Ordering::Relaxed) > 0 {
            answer_introductions(self);
        }
    }

    fn read_mailbox(&'static self) {
        self.wake.mail().store(0, Ordering::Relaxed);
        let mut bytes = [0; 256];
        for looks_left in (0..LETTERS_MAX).rev() {
            let received = match rights::receive(self.mailbox, &mut bytes, takes_from) {
                Ok(received) => received,
                Err(NotTaken::Errno(_)) => break,
                // New peers stay on TCP; those with which memory is shared need no mail.
                Err(NotTaken::Foreign) => return self.note_beset(),
            };
            if looks_left == 0 {
                self.wake.mail().store(1, Ordering::Relaxed);
            }
            if shares_with(&received) {
                match ControlMessage::parse(&bytes[..received.len]) {
                    Ok(message) if has_line(self, message.instance()) => {
                        crate::log!(Warn, "mail of {} came past its line", message.instance());
                    }
                    Ok(ControlMessage::Introduction(introduction)) => {
                        on_introduction(self, &introduction, &received);
                    }
                    Ok(ControlMessage::Channel(channel)) => {
                        if on_channel(self, &channel, &received) {
                            continue;
                        }
                    }
                    Ok(_) => {}
                    Err(error) => {
                        crate::log!(Warn, "mail ignored: {error}");
                        self.note_breach(Reason::of_unread_control(&error));
                    }
                }
            }
            received.close_fds();
        }
    }

    /// Says once that no mail comes any more.
    fn note_beset(&self) {
        if !self.is_beset.swap(true, Ordering::Relaxed) {
            crate::log!(
                Warn,
                "another user has sent a descriptor to the mailbox: new peers stay on TCP"
            );
        }
    }

    /// Reads the mailbox if a process has left a hint that there is mail.
    #[inline]
    pub fn read_mail_if_any(&'static self) {
        if self.wake.mail().load(Ordering::Relaxed) != 0 {
            self.read_mail();
        }
    }
}

/// Whether memory may be shared with the sender of a letter, by whom we are now: a server may have
/// become another user since it began.
pub(crate) fn shares_with(letter: &Received) -> bool {
    has_no_objection(letter, |letter| letter.whereabouts() == Whereabouts::Near)
}

/// Whether the descriptors of a letter are taken from the queue. So are those of a sender that has ended and may
/// have been near: else a client of root's that ends at once would close the mailbox for all. With it nothing is
/// shared, and what it has sent is dropped.
pub(crate) fn takes_from(letter: &Received) -> bool {
    has_no_objection(letter, |letter| letter.whereabouts() != Whereabouts::Elsewhere)
}

fn has_no_objection(letter: &Received, is_near: impl FnOnce(&Received) -> bool) -> bool {
    let Some(Sender { uid, gid }) = letter.sender else { return false };
    // Of others it makes no difference, and it takes some system calls.
    let is_near = uid != policy::ROOT || is_near(letter);
    options::current().policy.objection_to_user(sys::uid(), uid, gid, is_near).is_none()
}

/// Rings the bell of one of the peer's channels, which may still lie in our mailbox. False: it is not there either.
#[cold]
pub(crate) fn ring(group: &Group, channel: usize) -> bool {
    group.ring(channel) || {
        // The mail of an ancestor is not ours to read.
        let home = home::existing().filter(|home| group.is_of(home) && !group.has_bell(channel));
        home.is_some_and(|home| {
            home.read_mail();
            group.ring(channel)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::home::tests::alone;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    use sidestep_device::wake::{self, CHANNELS};
    use sidestep_device::{map, slab};
    use sidestep_proto::fallback::Field;
    use std::fs;
    use std::io::pipe;
    use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
    use std::os::unix::net::UnixDatagram;
    use std::thread;
    use std::time::{Duration, Instant};

    #[test]
    fn a_peer_without_room_for_our_memory_has_declined() {
        let _alone = alone();
        let process = home::current().unwrap();
        let said = |slab_len| {
            let (instance, link_id) = (Instance([7; 16]), LinkId(0));
            let hello = Introduction { instance, reply_wanted: false, pid: 1, slab_len, link_id };
            refusal_in(process, &hello)
        };
        assert_eq!(said(NO_ROOM), Some(Reason::PeerDeclined(Diagnosis::MEM)));
        assert_eq!(said(NOT_OURS), Some(PeerCannot::OtherVersion.into()));
        assert_eq!(said(SLAB_LEN as u64), None);

        // A peer may call the lack ours only after we have.
        assert_eq!(said(NO_ROOM_THERE), Some(Reason::PeerDeclined(Diagnosis::MEM)));
        refuse(&Look::at(process), Instance([7; 16]), Lack::NoMemory.into());
        assert_eq!(said(NO_ROOM_THERE), Some(Lack::NoMemory.into()));
        assert_eq!(said(NO_ROOM), Some(Reason::PeerDeclined(Diagnosis::MEM)));
        process.lacks_room.store(false, Ordering::Relaxed);
    }

    #[test]
    fn a_process_that_introduces_itself_without_memory_has_broken_the_protocol() {
        let _alone = alone();
        let process = home::current().unwrap();
        let peer = Instance([9; 16]);
        let group = groups::with(&Look::at(process), peer).unwrap();
        let link_id = LinkId(0);
        let slab_len = SLAB_LEN as u64;
        let hello = Introduction { instance: peer, reply_wanted: false, pid: 1, slab_len, link_id };
        assert_eq!(group.breach(), None);
        let (here, there) = UnixDatagram::pair().unwrap();
        there.send(b"no descriptors beside it").unwrap();
        let letter = sys::recv_with_fds(here.as_raw_fd(), &mut [0; EMITTED_LEN_MAX]).unwrap();
        on_introduction(process, &hello, &letter);
        assert_eq!(group.breach(), Some(Reason::PeerBroke(Field::INTRODUCED_MEMORY)));
        assert_eq!(group.refusal(), None, "the true one may still come");
    }

    /// A server knows no client before its introduction.
    #[test]
    fn of_a_strangers_introduction_without_memory_the_process_keeps_what_was_wrong() {
        let _alone = alone();
        let process = home::current().unwrap();
        let before = process.breaches();
        let instance = Instance([8; 16]);
        let (link_id, slab_len) = (LinkId(0), SLAB_LEN as u64);
        let hello = Introduction { instance, reply_wanted: true, pid: 1, slab_len, link_id };
        let (here, there) = UnixDatagram::pair().unwrap();
        there.send(b"no descriptors beside it").unwrap();
        let letter = sys::recv_with_fds(here.as_raw_fd(), &mut [0; EMITTED_LEN_MAX]).unwrap();
        on_introduction(process, &hello, &letter);
        assert_eq!(process.breaches(), before.wrapping_add(1));
        assert_eq!(process.last_breach(), Reason::PeerBroke(Field::INTRODUCED_MEMORY));
        assert!(groups::find(&Look::at(process), instance).is_none());
    }

    /// What may lie beside a letter.
    #[derive(Clone, Copy, Debug)]
    enum Shown {
        Slab,
        Wake,
        Unsealed,
        Bell,
        Pipe,
    }

    impl Shown {
        fn file(self) -> i32 {
            match self {
                Self::Slab => {
                    let (slab, fd) = slab::create().unwrap();
                    let twin = map::read_only_twin(fd).unwrap();
                    sys::close(fd);
                    // SAFETY: no record of it is used.
                    unsafe { slab.unmap() };
                    twin
                }
                Self::Wake => {
                    let (wake, fd) = wake::create().unwrap();
                    // SAFETY: no word of it is used.
                    unsafe { wake.unmap() };
                    fd
                }
                Self::Unsealed => sys::memfd(c"unsealed").unwrap(),
                Self::Bell => sys::eventfd().unwrap(),
                Self::Pipe => OwnedFd::from(pipe().unwrap().1).into_raw_fd(),
            }
        }
    }

    /// A letter in the name of a process: us, one we know, or one of which we never heard.
    #[derive(Clone, Debug)]
    struct Letter {
        from: u8,
        message: Said,
        shown: Vec<Shown>,
    }

    #[derive(Clone, Copy, Debug)]
    enum Said {
        Introduction { slab_len: u64, reply_wanted: bool },
        Channel(u16),
    }

    fn letters() -> impl Strategy<Value = Vec<Letter>> {
        let lens = select(vec![SLAB_LEN as u64, SLAB_LEN as u64, NO_ROOM, NOT_OURS, 4096]);
        let said = prop_oneof![
            (lens, any::<bool>())
                .prop_map(|(slab_len, reply_wanted)| Said::Introduction { slab_len, reply_wanted }),
            select(vec![0, 1, 63, 64, u16::MAX]).prop_map(Said::Channel),
        ];
        let kinds = vec![Shown::Slab, Shown::Wake, Shown::Unsealed, Shown::Bell, Shown::Pipe];
        let shown = prop_oneof![
            2 => Just(vec![Shown::Slab, Shown::Wake]),
            2 => Just(vec![Shown::Bell]),
            3 => vec(select(kinds), 0..4),
        ];
        let letter = (0u8..4, said, shown).prop_map(|(from, message, shown)| Letter {
            from,
            message,
            shown,
        });
        vec(letter, 1..12)
    }

    impl Letter {
        /// 0: ourselves.
        fn instance(&self, process: &Home) -> Instance {
            if self.from == 0 { process.instance } else { Instance([0xA0 + self.from; 16]) }
        }

        /// As the mailbox takes it.
        fn arrive(&self, process: &'static Home) {
            let (here, there) = UnixDatagram::pair().unwrap();
            let files: Vec<i32> = self.shown.iter().map(|shown| shown.file()).collect();
            sys::send_over(there.as_raw_fd(), b"letter", &files).unwrap();
            files.into_iter().for_each(sys::close);
            let letter = sys::recv_with_fds(here.as_raw_fd(), &mut [0; EMITTED_LEN_MAX]).unwrap();
            let instance = self.instance(process);
            let is_kept = match self.message {
                Said::Introduction { slab_len, reply_wanted } => {
                    let link_id = LinkId(0);
                    let hello = Introduction { instance, reply_wanted, pid: 1, slab_len, link_id };
                    on_introduction(process, &hello, &letter);
                    false
                }
                Said::Channel(channel) => {
                    on_channel(process, &Channel { instance, channel }, &letter)
                }
            };
            if !is_kept {
                letter.close_fds();
            }
        }
    }

    /// Files and mappings of the process.
    fn held() -> [usize; 2] {
        let files = fs::read_dir("/proc/self/fd").unwrap().count();
        [files, fs::read_to_string("/proc/self/maps").unwrap().matches("sidestep-").count()]
    }

    /// Whether there are no more than that. Other tests have files open for a moment.
    fn holds_no_more_than(kept: [usize; 2]) -> bool {
        let begin = Instant::now();
        let is_more = || held().iter().zip(kept).any(|(now, kept)| *now > kept);
        while is_more() && begin.elapsed() < Duration::from_secs(30) {
            thread::yield_now();
        }
        !is_more()
    }

    /// *Law*: what a letter brings is kept once or not at all, and what it says of others makes no group with
    /// ourselves. Letters that come again leave everything as it was.
    #[test]
    fn letters_in_any_name_with_anything_beside_them_leave_nothing_behind() {
        let _alone = alone();
        let process = home::current().unwrap();
        let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let played = runner.run(&letters(), |letters| {
            let is_known = groups::find(&Look::at(process), process.instance).is_some();
            let arrive = || letters.iter().for_each(|letter| letter.arrive(process));
            arrive();
            let kept = held();
            arrive();
            prop_assert!(holds_no_more_than(kept), "{:?}, {:?} before", held(), kept);
            let with_us = groups::find(&Look::at(process), process.instance);
            prop_assert_eq!(with_us.is_some(), is_known);
            prop_assert_eq!(with_us.and_then(Group::breach), None);
            for group in groups::all(&Look::at(process)).filter(|group| group.peer.0[0] >= 0xA0) {
                let has_memory = group.theirs().is_some();
                prop_assert!(!has_memory || group.connections.load(Ordering::Relaxed) == 0);
                for number in 0..CHANNELS {
                    let bell = group.bells[number].load(Ordering::Relaxed);
                    prop_assert!(bell == 0 || sys::is_eventfd(bell - 1), "channel {}", number);
                }
            }
            Ok(())
        });
        played.unwrap_or_else(|wrong| panic!("{wrong}"));
    }
}
