//! A line of log, written with one system call from a buffer on the stack.
//!
//! Logging crates allocate and lock; a hook may run inside `malloc` or a signal
//! handler. So: a fixed buffer, `write(2)`, and nothing else. Peers can make us log,
//! so a line that cannot be written at once is lost: a reader that leaves a program's
//! standard error alone must not stop it, nor its end kill it. They decide how often, too: a
//! process has [`LINES_MAX`] lines a second, and the first line after that says how many
//! were left out. [`Level::Debug`] and [`Level::Trace`] are for those who want them all.

use core::ffi::CStr;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, Ordering};
use sidestep_device::sys;
use std::sync::OnceLock;

/// How much to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Something a user asked for is given up.
    Error,
    /// Degraded: a connection stays on TCP for a reason that can be mended.
    Warn,
    /// Life cycle of processes, link groups and connections.
    Info,
    /// A line for each message.
    Debug,
    /// Everything.
    Trace,
}

impl Level {
    /// The level with this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "error" => Self::Error,
            "warn" => Self::Warn,
            "info" => Self::Info,
            "debug" => Self::Debug,
            "trace" => Self::Trace,
            _ => return None,
        })
    }
}

/// Lines of a process in a second.
const LINES_MAX: u32 = 100;

/// The second of the latest lines, and how many there were in it, those left out included.
static SECOND: AtomicU32 = AtomicU32::new(0);
static LINES: AtomicU32 = AtomicU32::new(0);

/// Whether one more line may be written in this second; with how many were left out in an
/// earlier one. Threads that come at once may count a line too few or too many: Relaxed.
fn admit(second: u32) -> Option<u32> {
    let mut left_out = 0;
    if SECOND.swap(second, Ordering::Relaxed) != second {
        left_out = LINES.swap(0, Ordering::Relaxed).saturating_sub(LINES_MAX);
    }
    let before = LINES.fetch_add(1, Ordering::Relaxed);
    (before < LINES_MAX).then_some(left_out)
}

static LEVEL: AtomicU8 = AtomicU8::new(Level::Warn as u8);
static FILE: AtomicI32 = AtomicI32::new(STDERR);
const STDERR: i32 = 2;
/// There is a file, and nothing was logged to it yet.
const UNOPENED: i32 = -1;

/// The path of the file, with a 0 at its end.
static PATH: OnceLock<[u8; PATH_LEN]> = OnceLock::new();
const PATH_LEN: usize = 4096;

/// Sets how much is logged.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Logs to a file (created, appended to) instead of standard error. `path` is
/// absolute, with `%XX` for bytes that the environment variable cannot carry.
///
/// The file is opened for the first line: a program that gives no cause for one has
/// no descriptor of ours.
pub fn set_file(path: &str) {
    let mut bytes = [0; PATH_LEN];
    // The last byte stays 0.
    for (place, byte) in bytes[..PATH_LEN - 1].iter_mut().zip(decoded(path)) {
        *place = byte;
    }
    if PATH.set(bytes).is_ok() {
        FILE.store(UNOPENED, Ordering::Release);
    }
}

/// A path as it was before unusual bytes became `%XX`.
pub(super) fn decoded(text: &str) -> impl Iterator<Item = u8> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let first = *text.as_bytes().get(at)?;
        let hex = text.get(at + 1..at + 3).and_then(|two| u8::from_str_radix(two, 16).ok());
        let (byte, step) = match (first, hex) {
            (b'%', Some(byte)) => (byte, 3),
            (byte, _) => (byte, 1),
        };
        at += step;
        Some(byte)
    })
}

/// The descriptor to write to; standard error if the file cannot be opened.
fn file() -> i32 {
    let known = FILE.load(Ordering::Acquire);
    if known != UNOPENED {
        return known;
    }
    let path = PATH.get().and_then(|path| CStr::from_bytes_until_nul(path).ok());
    let opened = path.and_then(|path| sys::open_append(path).ok()).map(sys::move_up);
    let fd = opened.unwrap_or(STDERR);
    match FILE.compare_exchange(UNOPENED, fd, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => fd,
        // Another thread, or a handler in the middle of this, was faster.
        Err(theirs) => {
            if let Some(ours) = opened {
                sys::close(ours);
            }
            theirs
        }
    }
}

/// Whether `level` is logged.
#[inline]
#[must_use]
pub fn enabled(level: Level) -> bool {
    level as u8 <= LEVEL.load(Ordering::Relaxed)
}

/// Writes one line. Use the [`log!`](crate::log!) macro.
#[cold]
pub fn line(level: Level, text: fmt::Arguments<'_>) {
    if level <= Level::Info {
        match admit(sys::coarse_seconds()) {
            None => return,
            Some(0) => {}
            Some(left_out) => write_line(level, format_args!("{left_out} lines were left out")),
        }
    }
    write_line(level, text);
}

fn write_line(level: Level, text: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 512], len: 0 };
    let _ = write!(line, "sidestep[{}] {level:?}: ", sys::pid());
    let _ = line.write_fmt(text);
    line.len = line.len.min(line.bytes.len() - 1);
    line.bytes[line.len] = b'\n';
    let _ = sys::write_unnoticed(file(), &line.bytes[..=line.len]);
}

struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - self.len;
        let n = text.len().min(room);
        for (place, byte) in self.bytes[self.len..].iter_mut().zip(text.bytes()) {
            // Names of files and programs may hold what commands a terminal.
            *place = if byte.is_ascii_control() { b'?' } else { byte };
        }
        self.len += n;
        Ok(())
    }
}

/// Logs a line if its level is enabled.
#[macro_export]
macro_rules! log {
    ($level:ident, $($text:tt)*) => {
        if $crate::process::log::enabled($crate::process::log::Level::$level) {
            $crate::process::log::line($crate::process::log::Level::$level, format_args!($($text)*));
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_lines_is_counted_and_told_of_in_the_next_second() {
        let second = 1_000_000;
        admit(second);
        let written = (0..10 * LINES_MAX).filter(|_| admit(second + 1).is_some()).count();
        assert_eq!(written, LINES_MAX as usize);
        assert_eq!(admit(second + 2), Some(9 * LINES_MAX));
        assert_eq!(admit(second + 2), Some(0));
    }

    #[test]
    fn what_commands_a_terminal_is_no_part_of_a_line() {
        let mut line = Line { bytes: [0; 512], len: 0 };
        write!(line, "a\x1b[2J\nb\x7f ü{}", "c".repeat(600)).unwrap();
        assert!(line.bytes.starts_with("a?[2J?b? üccc".as_bytes()));
        assert_eq!(line.len, 512);
    }
}
