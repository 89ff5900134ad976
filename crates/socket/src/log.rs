//! A line of log, written with one system call from a buffer on the stack.
//!
//! Logging crates allocate and lock; a hook may run inside `malloc` or a signal
//! handler. So: a fixed buffer, `write(2)`, and nothing else. Peers can make us log,
//! so a line that cannot be written at once is lost: whoever does not read a program's
//! standard error must not stop it, nor its end kill it.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use sidestep_device::sys;

/// How much to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Something a user asked for is given up.
    Error,
    /// Degraded: a connection stays on TCP for a reason that can be mended.
    Warn,
    /// Life cycle of processes and link groups.
    Info,
    /// A line for each connection and message.
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

static LEVEL: AtomicU8 = AtomicU8::new(Level::Warn as u8);
static FILE: AtomicI32 = AtomicI32::new(2);

/// Sets how much is logged.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Logs to a file (created, appended to) instead of standard error. `path` is
/// absolute, with `%XX` for bytes that the environment variable cannot carry.
pub fn set_file(path: &str) {
    let mut decoded = [0u8; 4096];
    let mut len = 0;
    let bytes = path.as_bytes();
    let mut at = 0;
    while at < bytes.len() && len + 1 < decoded.len() {
        let hex = path.get(at + 1..at + 3).and_then(|two| u8::from_str_radix(two, 16).ok());
        let (byte, step) = match (bytes[at], hex) {
            (b'%', Some(byte)) => (byte, 3),
            (byte, _) => (byte, 1),
        };
        decoded[len] = byte;
        len += 1;
        at += step;
    }
    let Ok(path) = core::ffi::CStr::from_bytes_until_nul(&decoded) else { return };
    if let Ok(fd) = sys::open_append(path) {
        FILE.store(sys::move_up(fd), Ordering::Relaxed);
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
    let mut line = Line { bytes: [0; 512], len: 0 };
    let _ = write!(line, "sidestep[{}] {level:?}: ", sys::pid());
    let _ = line.write_fmt(text);
    line.len = line.len.min(line.bytes.len() - 1);
    line.bytes[line.len] = b'\n';
    // SAFETY: the buffer is readable for its length.
    let _ = unsafe {
        sys::write_unnoticed(FILE.load(Ordering::Relaxed), line.bytes.as_ptr(), line.len + 1)
    };
}

struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - self.len;
        let n = text.len().min(room);
        self.bytes[self.len..self.len + n].copy_from_slice(&text.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

/// Logs a line if its level is enabled.
#[macro_export]
macro_rules! log {
    ($level:ident, $($text:tt)*) => {
        if $crate::log::enabled($crate::log::Level::$level) {
            $crate::log::line($crate::log::Level::$level, format_args!($($text)*));
        }
    };
}
