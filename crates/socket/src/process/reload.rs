//! Settings that change while the program runs.
//!
//! This library cannot read TOML, which takes memory from `malloc`. `sidestep config apply`
//! can: beside each configuration file it leaves the *applied file*, with the same settings
//! in the words of [`options`]. Here those are looked for when a connection
//! begins or a program listens, at most once a second, and never by a program that does
//! neither: a file that was not applied costs one system call then.
//!
//! ```text
//!   SIDESTEP_SOURCES="mode=smc … file=/etc/sidestep/sidestep.toml stamp=0 noport=22 file= mode=tcp"
//!                     defaults   the least important file, what it said   the command line
//! ```
//!
//! Later words hide earlier ones, so what a file says after a change has the place that it
//! had at the start. An applied file counts once its stamp is another than at the start:
//! before, the file itself was read later than it.

use crate::process::options::{self, Options};
use arrayvec::ArrayVec;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};
use sidestep_device::map::Scratch;
use sidestep_device::sys;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

/// Name of the environment variable.
pub const VARIABLE: &str = "SIDESTEP_SOURCES";
/// What the name of an applied file has behind that of the configuration file.
pub const SUFFIX: &str = ".applied";
/// First byte of an applied file, and last: one that is not complete is ignored.
pub const FRAME: u8 = b'\n';

/// Between two looks at the files.
const INTERVAL_NS: u64 = 1_000_000_000;
/// Room for an applied file.
const TEXT_LEN: usize = 64 << 10;
const PATH_LEN: usize = 1024;

/// The stamp of an applied file that is not there.
pub const ABSENT: u64 = 0;

/// The stamp of an applied file: what it is compared by.
#[must_use]
pub fn stamp(file: &File) -> u64 {
    sys::file_stamp(file.as_raw_fd()).unwrap_or(ABSENT)
}

/// What the program was started with, kept by [`start`].
static SOURCES: OnceLock<&'static str> = OnceLock::new();
/// When a thread looked last, by [`sys::coarse_ns`].
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
/// The stamps of all applied files at that time, in one number.
static SEEN: AtomicU64 = AtomicU64::new(0);

/// Keeps the value of [`VARIABLE`]: programs write their title over their environment.
pub fn start(sources: &str) {
    let mut bytes = sources.bytes();
    let Ok(copy) = Scratch::filled(sources.len(), || bytes.next().unwrap_or(0)) else { return };
    if let Ok(copy) = core::str::from_utf8(copy.leak()) {
        let _ = SOURCES.set(copy);
    }
}

fn sources() -> Option<&'static str> {
    SOURCES.get().copied()
}

/// Takes over what was applied since the last look: whether that has changed the options. Connections that
/// have begun keep to what held then.
pub(crate) fn look() -> bool {
    let Some(sources) = sources() else { return false };
    let now = sys::coarse_ns();
    let last = LOOKED_AT.load(Ordering::Relaxed);
    let is_due = last == 0 || now.saturating_sub(last) >= INTERVAL_NS;
    // The fastest thread looks for all. Nothing is held that a fork could leave taken.
    let takes = || LOOKED_AT.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed);
    if !is_due || takes().is_err() {
        return false;
    }
    let stamps = files(sources).fold(0u64, |sum, file| {
        let stamp = applied(file).map_or(file.stamp, |(_, stamp)| stamp);
        sum.rotate_left(7) ^ stamp ^ file.stamp
    });
    SEEN.swap(stamps, Ordering::Relaxed) != stamps && take_over(sources)
}

// A frame of its own: options are some 10 KB, and each thread that looks would touch as much of its stack.
#[cold]
#[inline(never)]
fn take_over(sources: &str) -> bool {
    let Some(options) = read(sources) else { return false };
    crate::process::log::set_level(options.log);
    let has_changed = options::replace(options);
    if has_changed {
        crate::log!(Info, "the configuration has changed");
    }
    has_changed
}

/// The options as they are now; `None` if there is no room to read them.
fn read(sources: &str) -> Option<Options> {
    let mut text = Scratch::filled(TEXT_LEN, || 0).ok()?;
    let mut options = Options::of(options::current().program);
    for part in parts(sources) {
        match part.file.and_then(|file| applied_text(file, &mut text)) {
            Some(words) => options.read(words),
            None => options.read(part.words),
        }
    }
    Some(options)
}

/// One source: the words behind `file=`, or those before the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part<'a> {
    file: Option<Origin<'a>>,
    words: &'a str,
}

/// A configuration file, with `%XX` for unusual bytes, and the stamp that its applied
/// file had at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Origin<'a> {
    path: &'a str,
    stamp: u64,
}

fn parts(sources: &str) -> impl Iterator<Item = Part<'_>> {
    let mut texts = sources.split(" file=");
    let first = texts.next().map(|words| Part { file: None, words });
    first.into_iter().chain(texts.map(|text| {
        let (path, words) = text.split_once(' ').unwrap_or((text, ""));
        let stamp = words.split(' ').find_map(|word| word.strip_prefix("stamp="));
        let stamp = stamp.and_then(|stamp| stamp.parse().ok());
        Part { file: stamp.map(|stamp| Origin { path, stamp }), words }
    }))
}

fn files(sources: &str) -> impl Iterator<Item = Origin<'_>> {
    parts(sources).filter_map(|part| part.file)
}

/// The applied file, opened, if it is another than at the start; and its stamp.
fn applied(file: Origin<'_>) -> Option<(Opened, u64)> {
    let mut path: ArrayVec<u8, PATH_LEN> = crate::process::log::decoded(file.path).collect();
    path.try_extend_from_slice(SUFFIX.as_bytes()).ok()?;
    path.try_push(0).ok()?;
    let opened = Opened(sys::open_read(CStr::from_bytes_until_nul(&path).ok()?).ok()?);
    let stamp = sys::file_stamp(opened.0).ok()?;
    (stamp != file.stamp).then_some((opened, stamp))
}

fn applied_text<'a>(file: Origin<'_>, into: &'a mut [u8]) -> Option<&'a str> {
    let (opened, _) = applied(file)?;
    let len = sys::read_into(opened.0, into).ok()?;
    let bytes = into.get(..len)?.strip_prefix(&[FRAME])?.strip_suffix(&[FRAME])?;
    core::str::from_utf8(bytes).ok()
}

/// A descriptor that is closed at the end of its use.
struct Opened(i32);

impl Drop for Opened {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_cut_into_defaults_files_and_the_command_line() {
        let all: Vec<_> =
            parts("mode=smc log=error file=/a stamp=7 noport=22 file= mode=tcp").collect();
        let file = Some(Origin { path: "/a", stamp: 7 });
        assert_eq!(
            all,
            [
                Part { file: None, words: "mode=smc log=error" },
                Part { file, words: "stamp=7 noport=22" },
                Part { file: None, words: "mode=tcp" },
            ]
        );
    }

    #[test]
    fn an_applied_file_hides_what_its_file_said_and_no_more() {
        let directory = std::env::temp_dir().join(format!("reload-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let shown = directory.display();
        let sources = format!(
            "mode=smc rmbe=65536 file={shown}/a stamp=0 mode=tcp file={shown}/b stamp=0 file= rmbe=32768"
        );
        let options = || read(&sources).unwrap();
        assert!(!options().smc);
        std::fs::write(directory.join("a.applied"), "\nrmbe=131072 noport=22\n").unwrap();
        assert!(options().smc, "mode is not in the file any more");
        assert_eq!(options().rmbe.bytes(), 32768, "the command line goes before");
        assert_eq!(options().policy.excluded_ports.len(), 1);
        std::fs::write(directory.join("b.applied"), "\nnoport=\n").unwrap();
        assert!(options().policy.excluded_ports.is_empty(), "an empty list hides one with entries");
        std::fs::write(directory.join("a.applied"), "\nnoport=22").unwrap();
        assert!(!options().smc, "half a file is none");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
