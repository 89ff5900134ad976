//! What a program does with one end of a connection, drawn at random.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;

/// Lengths: none, those that fit into a cache line, and such that a few of them go round the ring.
const LENS: [usize; 9] = [0, 1, 2, 7, 99, 1000, 4096, 8000, 11_000];

/// What is asked of `poll`.
const INTERESTS: [i16; 6] = [
    libc::POLLIN,
    libc::POLLOUT,
    libc::POLLPRI,
    libc::POLLIN | libc::POLLRDHUP,
    libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI,
    0,
];

/// And of epoll, besides.
const MANNERS: [u32; 3] = [0, libc::EPOLLET as u32, libc::EPOLLONESHOT as u32];

/// Options whose value is asked for.
const OPTIONS: [(i32, i32); 6] = [
    (libc::SOL_SOCKET, libc::SO_ERROR),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_INFO),
];

/// A call on one end, which may be several system calls of the program.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    /// Bytes from parts of these lengths and a rest, the last of them urgent or not.
    Send { len: usize, parts: Vec<usize>, urgent: bool },
    /// Bytes of a file.
    SendFile { len: usize },
    /// All bytes of a pipe.
    SpliceIn { len: usize },
    /// Room in parts of these lengths and a rest.
    Receive { len: usize, parts: Vec<usize>, flags: i32 },
    /// Into an empty pipe.
    SpliceOut { len: usize },
    /// The events of `poll`.
    Poll(i16),
    /// All three sets.
    Select,
    /// Adds to the set of the end, or modifies.
    Watch(u32),
    /// Deletes from it.
    Unwatch,
    /// Waits in it, or in one around it.
    Wait { outside: bool },
    /// `FIONREAD`.
    CountUnread,
    /// `SIOCATMARK`.
    LookForMark,
    /// `getsockopt`.
    Option(i32, i32),
    /// `getpeername`.
    Name,
    /// `SO_RCVLOWAT`.
    LowWater(i32),
    /// `SO_OOBINLINE`.
    InLine(bool),
    /// `SO_PEEK_OFF`.
    PeekOffset(i32),
    /// `SO_LINGER` of no seconds, or off.
    Linger(bool),
    /// `O_NONBLOCK`.
    DontWait(bool),
    /// `dup`, and `close` of the older number.
    Renumber,
    /// By `SCM_RIGHTS` to the program itself.
    PassOn,
    /// `shutdown`.
    Shutdown(i32),
    /// `close`.
    Close,
    /// `sidestep demote` and `sidestep promote`: to TCP and back.
    Demote(bool),
    /// `fork`: the child holds all ends, too.
    Fork,
    /// The child's `exit`.
    Leave,
}

impl Call {
    /// Bytes that it is about to send.
    pub(crate) fn len(&self) -> Option<usize> {
        match self {
            Self::Send { len, .. } | Self::SendFile { len } | Self::SpliceIn { len } => Some(*len),
            _ => None,
        }
    }

    /// The same with so many.
    pub(crate) fn with_len(&self, bytes: usize) -> Self {
        let mut call = self.clone();
        if let Self::Send { len, .. } | Self::SendFile { len } | Self::SpliceIn { len } = &mut call
        {
            *len = bytes;
        }
        call
    }
}

/// A call, the side that makes it, and which process, if there are two.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) side: usize,
    pub(crate) call: Call,
    pub(crate) by_child: bool,
}

/// A list of calls on a connection that was begun in one of two ways.
#[derive(Clone, Debug)]
pub(crate) struct List {
    /// Without an object.
    pub(crate) is_untracked: bool,
    /// Messages each way before: after none it is on TCP, after 17 in shared memory, and in between it moves.
    pub(crate) warm_rounds: u32,
    pub(crate) operations: Vec<Operation>,
}

/// Which lists are drawn.
#[derive(Clone, Copy)]
pub(crate) struct Deck {
    /// Messages before each list.
    pub(crate) warm_rounds: (u32, u32),
    /// Whether an operator moves the connection.
    pub(crate) with_demotions: bool,
    /// Whether there is a child, now and then.
    pub(crate) with_forks: bool,
    /// Whether ends are passed on.
    pub(crate) with_rights: bool,
    /// Operations in a list at most.
    pub(crate) length: usize,
}

impl Deck {
    pub(crate) fn lists(self) -> impl Strategy<Value = List> {
        let (least, most) = self.warm_rounds;
        let operation = self.operation();
        (any::<bool>(), least..=most, vec(operation, 1..self.length)).prop_map(
            |(is_untracked, warm_rounds, operations)| List {
                is_untracked,
                warm_rounds,
                operations,
            },
        )
    }

    fn operation(self) -> BoxedStrategy<Operation> {
        let mut calls = vec![(30, calls())];
        if self.with_demotions {
            calls.push((2, any::<bool>().prop_map(Call::Demote).boxed()));
        }
        if self.with_rights {
            calls.push((2, Just(Call::PassOn).boxed()));
        }
        if self.with_forks {
            calls.push((3, Just(Call::Fork).boxed()));
            calls.push((1, Just(Call::Leave).boxed()));
        }
        let by_child = if self.with_forks { any::<bool>().boxed() } else { Just(false).boxed() };
        (0usize..2, Union::new_weighted(calls), by_child)
            .prop_map(|(side, call, by_child)| Operation { side, call, by_child })
            .boxed()
    }
}

/// What a program does by itself.
pub(crate) fn calls() -> BoxedStrategy<Call> {
    prop_oneof![
        6 => send(),
        1 => len().prop_map(|len| Call::SendFile { len }),
        1 => len().prop_map(|len| Call::SpliceIn { len }),
        8 => receive(),
        2 => len().prop_map(|len| Call::SpliceOut { len }),
        3 => select(&INTERESTS[..]).prop_map(Call::Poll),
        1 => Just(Call::Select),
        2 => (select(&INTERESTS[..]), select(&MANNERS[..]))
            .prop_map(|(events, manner)| Call::Watch(u32::from(events as u16) | manner)),
        1 => Just(Call::Unwatch),
        4 => any::<bool>().prop_map(|outside| Call::Wait { outside }),
        1 => Just(Call::CountUnread),
        1 => Just(Call::LookForMark),
        1 => select(&OPTIONS[..]).prop_map(|(level, name)| Call::Option(level, name)),
        1 => Just(Call::Name),
        5 => option(),
        1 => Just(Call::Renumber),
        1 => select(vec![libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR, 7]).prop_map(Call::Shutdown),
        1 => Just(Call::Close),
    ]
    .boxed()
}

fn len() -> impl Strategy<Value = usize> {
    select(&LENS[..])
}

/// None, or a few that are shorter than most calls.
fn parts() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![3 => Just(Vec::new()), 1 => vec(select(vec![0, 1, 3, 500]), 1..4)]
}

fn send() -> impl Strategy<Value = Call> {
    (len(), parts(), prop::bool::weighted(0.2)).prop_map(|(len, parts, urgent)| Call::Send {
        len,
        parts,
        urgent,
    })
}

fn receive() -> impl Strategy<Value = Call> {
    let flags = select(vec![
        0,
        0,
        0,
        libc::MSG_PEEK,
        libc::MSG_PEEK | libc::MSG_WAITALL,
        libc::MSG_WAITALL,
        libc::MSG_DONTWAIT,
        libc::MSG_TRUNC,
        libc::MSG_OOB,
        libc::MSG_OOB | libc::MSG_PEEK,
    ]);
    (len(), parts(), flags).prop_map(|(len, parts, flags)| Call::Receive { len, parts, flags })
}

fn option() -> impl Strategy<Value = Call> {
    prop_oneof![
        select(vec![1, 2, 50, 2000]).prop_map(Call::LowWater),
        any::<bool>().prop_map(Call::InLine),
        select(vec![-1, 0, 1, 60]).prop_map(Call::PeekOffset),
        any::<bool>().prop_map(Call::Linger),
        any::<bool>().prop_map(Call::DontWait),
    ]
}
