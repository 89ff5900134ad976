//! Neighbours at work: endless loops beside the measured programs.
//!
//! Each is a process of its own, this very executable as `sidestep bench neighbour`. They
//! start before the first run that wants them and stay for all transports, so that the
//! two runs of a pair meet the same neighbours.
//!
//! No loop may outlive the measurement, or it would go on for ever. Three things end it:
//!
//! * [`Loops`] kills its processes when it is dropped;
//! * the kernel kills them when the thread that started them ends, by whatever signal;
//! * a loop looks for its parent a few times a second. The kernel forgets the order to
//!   kill where the executable has file capabilities.

use std::hint::black_box;
use std::io;
use std::mem;
use std::os::unix::process::{CommandExt, parent_id};
use std::path::Path;
use std::process::{self, Child, Stdio};

use thiserror::Error;

use crate::contention::{Neighbours, Priority};
use crate::launch::{Confines, WorkerError, die_with};

/// The neighbours that run at the moment. Dropped, they are killed.
#[derive(Debug, Default)]
pub struct Loops {
    processes: Vec<Child>,
}

/// Why there are no neighbours, or fewer than were asked for.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum LoopError {
    #[error("cannot start a neighbour: {0}")]
    Start(io::Error),
    #[error(transparent)]
    Confine(#[from] WorkerError),
    #[error("cannot give a neighbour the nice value {nice}: {reason}; below 0 it takes root")]
    Nice { nice: i8, reason: io::Error },
    #[error("cannot put a neighbour under SCHED_IDLE: {0}")]
    Idle(io::Error),
    #[error("neighbour {number} (process {pid}) ended ({status}) before the run did")]
    Ended { number: usize, pid: u32, status: String },
    #[error("cannot read the CPU time of the neighbours: {0}")]
    CpuTime(io::Error),
}

impl Loops {
    /// Starts these neighbours where `confines` says; `sidestep` is this executable. They
    /// are killed when the thread that has called this ends.
    ///
    /// # Errors
    /// One does not start, or may not have its priority; none is left running.
    pub fn start(
        sidestep: &Path,
        neighbours: Neighbours,
        confines: &Confines,
    ) -> Result<Self, LoopError> {
        let mut loops = Self::default();
        for _ in 0..neighbours.count {
            let child = start_one(sidestep, confines)?;
            let pid = child.id();
            loops.processes.push(child);
            set_priority(pid, neighbours.priority)?;
        }
        Ok(loops)
    }

    /// CPU time that they have used so far, in nanoseconds.
    ///
    /// # Errors
    /// One has ended, so the runs since the last call had fewer neighbours than they
    /// should.
    pub fn cpu_ns(&mut self) -> Result<u64, LoopError> {
        let mut sum = 0;
        for (number, child) in self.processes.iter_mut().enumerate() {
            if let Some(status) = child.try_wait().map_err(LoopError::CpuTime)? {
                let (pid, status) = (child.id(), status.to_string());
                return Err(LoopError::Ended { number, pid, status });
            }
            sum += cpu_ns_of(child.id()).map_err(LoopError::CpuTime)?;
        }
        Ok(sum)
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        // Errors say that one has ended by itself.
        for child in &mut self.processes {
            let _ = child.kill();
        }
        for child in &mut self.processes {
            let _ = child.wait();
        }
    }
}

/// `sidestep bench neighbour`: uses a CPU as much as it may, until its parent has ended.
pub fn run() {
    let parent = parent_id();
    while parent_id() == parent {
        for round in 0..ROUNDS {
            black_box(round);
        }
    }
}

/// Of the loop between two looks for the parent: some 50 ms of CPU time.
const ROUNDS: u64 = 1 << 26;

fn start_one(sidestep: &Path, confines: &Confines) -> Result<Child, LoopError> {
    let mut command = process::Command::new(sidestep);
    command.args(NEIGHBOUR_COMMAND);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // Neighbours have no sockets; where `sidestep bench` runs under `sidestep run`, they
    // need no library either.
    for variable in ["LD_PRELOAD", "SIDESTEP_OPTIONS"] {
        command.env_remove(variable);
    }
    let parent = process::id();
    let enter = confines.entering()?;
    // SAFETY: between fork and exec it makes system calls only.
    unsafe { command.pre_exec(move || die_with(parent).and_then(|()| enter())) };
    command.spawn().map_err(LoopError::Start)
}

const NEIGHBOUR_COMMAND: [&str; 2] = ["bench", "neighbour"];

fn set_priority(pid: u32, priority: Priority) -> Result<(), LoopError> {
    match priority {
        Priority::Same => Ok(()),
        Priority::Nice(nice) => {
            // SAFETY: takes and returns numbers.
            let set = unsafe { libc::setpriority(libc::PRIO_PROCESS, pid, i32::from(nice)) };
            succeeded(set).map_err(|reason| LoopError::Nice { nice, reason })
        }
        Priority::Idle => {
            // SAFETY: all zeros are valid: this class has no levels.
            let parameters: libc::sched_param = unsafe { mem::zeroed() };
            let pid = pid.cast_signed();
            // SAFETY: `parameters` lives through the call.
            let set =
                unsafe { libc::sched_setscheduler(pid, libc::SCHED_IDLE, &raw const parameters) };
            succeeded(set).map_err(LoopError::Idle)
        }
    }
}

/// CPU time of a process that has not been waited for.
fn cpu_ns_of(pid: u32) -> io::Result<u64> {
    let mut clock = 0;
    // SAFETY: `clock` is writable.
    match unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) } {
        0 => {}
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    succeeded(unsafe { libc::clock_gettime(clock, &raw mut time) })?;
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn succeeded(status: i32) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
