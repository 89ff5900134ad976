//! A child that holds the same ends.
//!
//! After `fork` both processes have every descriptor, and one slot of shared memory stands for each end. The
//! child does what it is told over a pipe, on both connections, and says what was answered.

use crate::call::Returned;
use crate::operation::{Call, List};
use crate::pair::{Ends, Tcp};
use crate::twins::Both;
use sidestep_socket::polling::epoll;
use sidestep_socket::process::children;
use sidestep_socket::program::fork;
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::panic::{self, AssertUnwindSafe};

/// The other process, until it is told to leave.
pub(crate) struct Child {
    pid: i32,
    orders: Option<PipeWriter>,
    answers: PipeReader,
}

/// What the child is told to do: a call of the list, or to say what the kernel says.
const PLAY: u64 = 0;
const TCP: u64 = 1;

impl Child {
    /// Forks, as the preloaded library does.
    pub(crate) fn fork(both: &mut Both, list: &List) -> Self {
        let (orders_out, orders) = pipe().expect("a pipe");
        let (answers, answers_in) = pipe().expect("a pipe");
        fork::before_fork();
        // SAFETY: the child does nothing but what follows, and ends.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "{}", io::Error::last_os_error());
        if pid > 0 {
            children::forked();
            return Self { pid, orders: Some(orders), answers };
        }
        children::forget_after_fork();
        fork::after_fork_in_child();
        epoll::after_fork_in_child();
        drop((orders, answers));
        let obey = AssertUnwindSafe(|| obey(both, list, orders_out, answers_in));
        let is_wrong = panic::catch_unwind(obey).is_err();
        fork::before_exit();
        // SAFETY: ends the process without running what is the parent's to run.
        unsafe { libc::_exit(is_wrong.into()) }
    }

    /// The child makes a call of the list, with the length that it has here.
    pub(crate) fn play(
        &mut self,
        number: usize,
        call: &Call,
        side: usize,
        first: usize,
    ) -> Option<[Returned; 2]> {
        let len = call.len().unwrap_or(0);
        self.order([PLAY, number as u64, len as u64, side as u64, first as u64]);
        if number_from(&mut self.answers)? == 0 {
            return None;
        }
        Some([(); 2].map(|()| {
            let value = number_from(&mut self.answers).expect("an answer") as i64;
            let mut bytes = vec![0; number_from(&mut self.answers).expect("its length") as usize];
            self.answers.read_exact(&mut bytes).expect("its bytes");
            Returned { value, bytes }
        }))
    }

    /// What the kernel says of its ends.
    pub(crate) fn tcp(&mut self) -> [Ends; 2] {
        self.order([TCP, 0, 0, 0, 0]);
        [(); 2].map(|()| {
            [(); 2].map(|()| {
                let [is_open, state, sent, received] =
                    [(); 4].map(|()| number_from(&mut self.answers).expect("an answer"));
                (is_open != 0).then_some(Tcp { state: state as u8, sent, received })
            })
        })
    }

    fn order(&mut self, words: [u64; 5]) {
        let orders = self.orders.as_mut().expect("it has not left");
        orders.write_all(&words.map(u64::to_ne_bytes).concat()).expect("the child lives");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.orders = None;
        let mut status = 0;
        // SAFETY: one number.
        unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        assert!(
            status == 0 || std::thread::panicking(),
            "the child has found something: {status:#x}"
        );
    }
}

fn number_from(pipe: &mut PipeReader) -> Option<u64> {
    let mut bytes = [0; 8];
    pipe.read_exact(&mut bytes).ok()?;
    Some(u64::from_ne_bytes(bytes))
}

/// Does what the parent says, until that says no more.
fn obey(both: &mut Both, list: &List, mut orders: PipeReader, mut answers: PipeWriter) {
    while let Some(what) = number_from(&mut orders) {
        let [number, len, side, first] =
            [(); 4].map(|()| number_from(&mut orders).expect("an order") as usize);
        let answer = match what {
            TCP => said_of_tcp(both.tcp()),
            _ => {
                let call = list.operations[number].call.with_len(len);
                said_of_call(both.play(side, &call, first))
            }
        };
        answers.write_all(&answer).expect("the parent lives");
    }
}

fn said_of_tcp(ends: [Ends; 2]) -> Vec<u8> {
    let words = ends.as_flattened().iter().map(|end| match end {
        Some(tcp) => [1, tcp.state.into(), tcp.sent, tcp.received],
        None => [0; 4],
    });
    words.flatten().flat_map(u64::to_ne_bytes).collect()
}

fn said_of_call(answers: Option<[Returned; 2]>) -> Vec<u8> {
    let mut said = u64::from(answers.is_some()).to_ne_bytes().to_vec();
    for Returned { value, bytes } in answers.into_iter().flatten() {
        said.extend(value.to_ne_bytes());
        said.extend((bytes.len() as u64).to_ne_bytes());
        said.extend(bytes);
    }
    said
}
