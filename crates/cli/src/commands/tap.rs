//! `sidestep tap`: what goes through shared memory, as a packet capture.
//!
//! ```text
//!   find   (a thread)    connections that come and go, and what they count   ── Finding ──┐
//!   look   a tap for each connection: bytes, gaps, ends                                   │
//!     └──> stream.rs     segments: IP and TCP headers, sequence numbers, comments <───────┘
//!            └──> pcapng.rs   blocks of the file
//! ```
//!
//! Nothing wakes an onlooker, so it looks again and again: soon when something was found, later when nothing was. It may
//! work for a tenth of the time, so that programs that have no CPU to spare keep nearly all of it ([`Pace`]).

mod pace;
mod pcapng;
mod stream;

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sidestep_observe::{Begin, Finder, Finding, Tap, TapId};
use thiserror::Error;

use super::demote::{self, NotMeant};
use super::signals;
use crate::args::TapArgs;
use crate::output;
use pace::Pace;
use pcapng::Capture;
use stream::Stream;

/// Between two looks for connections, at least.
const FIND_EVERY: Duration = Duration::from_millis(250);
/// A look for connections may take one part of so many of the time,
const FIND_PARTS: u32 = 20;
/// but connections are not waited for longer than this, however busy the CPUs are.
const FIND_WITHIN: Duration = Duration::from_secs(1);
/// A reader of the file is kept waiting for no longer.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// Bytes that are taken at a time,
const ROOM: usize = 256 << 10;
/// and how often in one look: more than the longest ring has memory for, and a fast writer keeps nothing waiting.
const TIMES: usize = 8;

/// Writes the capture; 1 if it cannot be written or there is nothing to follow, otherwise 0.
pub(crate) fn execute(args: &TapArgs) -> i32 {
    match tap(args) {
        Ok(()) => 0,
        // The reader of a pipe has seen enough.
        Err(TapError::Output(_, error)) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(error) => {
            output::complain("tap", &error);
            1
        }
    }
}

/// Why nothing, or no more, is written.
#[derive(Debug, Error)]
enum TapError {
    #[error(transparent)]
    Target(#[from] NotMeant),
    #[error("cannot list /proc: {0}")]
    Processes(io::Error),
    #[error(
        "may not trace process {}: run it as root; their own user may where kernel.yama.ptrace_scope is 0",
        list(.0)
    )]
    Refused(Vec<u32>),
    #[error("no connection in shared memory is there to be followed{}; `sidestep ss` lists what there is", on_tcp(.0))]
    Nothing(usize),
    #[error("standard output is a terminal: name a file, or pipe it: -w - | wireshark -k -i -")]
    Terminal,
    #[error("cannot catch signals: {0}")]
    Signals(io::Error),
    #[error("cannot write {0}: {1}")]
    Output(String, io::Error),
}

fn list(pids: &[u32]) -> String {
    let numbers: Vec<_> = pids.iter().map(u32::to_string).collect();
    numbers.join(", ")
}

fn on_tcp(count: &usize) -> String {
    match count {
        0 => String::new(),
        1 => " (1 is on TCP)".into(),
        count => format!(" ({count} are on TCP)"),
    }
}

fn tap(args: &TapArgs) -> Result<(), TapError> {
    let begin = if args.once { Begin::Unread } else { Begin::Now };
    let mut finder = Finder::new(demote::whose(args.target)?, begin);
    let first = finder.find().map_err(TapError::Processes)?;
    if first.taps.is_empty() {
        let refused: Vec<u32> = first.refused.iter().copied().collect();
        if !refused.is_empty() {
            return Err(TapError::Refused(refused));
        }
        if args.once {
            return Err(TapError::Nothing(first.on_tcp));
        }
    }
    let stop = signals::stop().map_err(TapError::Signals)?;
    signals::ignore_sigpipe();
    let name = output::Escaped(args.write.display()).to_string();
    let failed = |error| TapError::Output(name.clone(), error);
    let out = open(&args.write).map_err(failed)?.ok_or(TapError::Terminal)?;
    let mut recorder = Recorder::new(out).map_err(failed)?;
    say(&first);
    recorder.take(first);
    if args.once {
        recorder.look().and_then(|_| recorder.finish()).map_err(failed)?;
    } else {
        let findings = keep_finding(finder);
        recorder.record(&findings, &stop, args.duration).map_err(failed)?;
    }
    recorder.sums();
    Ok(())
}

/// `None`: a terminal.
fn open(path: &Path) -> io::Result<Option<Box<dyn Write>>> {
    if path == Path::new("-") {
        let out = io::stdout();
        return Ok((!out.is_terminal()).then(|| Box::new(out) as Box<dyn Write>));
    }
    let file: File =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    Ok(Some(Box::new(file)))
}

/// Looks for connections until the receiver is gone.
fn keep_finding(mut finder: Finder) -> Receiver<Finding> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut took = Duration::ZERO;
        loop {
            thread::sleep((took * FIND_PARTS).clamp(FIND_EVERY, FIND_WITHIN));
            let begun = Instant::now();
            // Without a list of processes the connections that are known go on.
            let found = finder.find().unwrap_or_default();
            took = begun.elapsed();
            if sender.send(found).is_err() {
                return;
            }
        }
    });
    receiver
}

fn say(first: &Finding) {
    let mut text = match first.taps.len() {
        1 => "follows 1 connection".to_owned(),
        count => format!("follows {count} connections"),
    };
    text += &on_tcp(&first.on_tcp);
    if !first.refused.is_empty() {
        let refused: Vec<u32> = first.refused.iter().copied().collect();
        text += &format!("; may not trace process {}", list(&refused));
    }
    if first.missed > 0 {
        text += &format!("; the memory of {} was not found", first.missed);
    }
    output::complain("tap", text);
}

/// All connections that are followed, and the file.
struct Recorder {
    capture: Capture<BufWriter<Box<dyn Write>>>,
    followed: HashMap<TapId, (Tap, Stream)>,
    /// The sum over streams that have ended.
    lost: u64,
    streams: u64,
    room: Vec<u8>,
    flushed: Instant,
}

impl Recorder {
    fn new(out: Box<dyn Write>) -> io::Result<Self> {
        Ok(Self {
            capture: Capture::begin(BufWriter::with_capacity(1 << 20, out))?,
            followed: HashMap::new(),
            lost: 0,
            streams: 0,
            room: vec![0; ROOM],
            flushed: Instant::now(),
        })
    }

    /// Follows what was found, and takes over what was counted.
    fn take(&mut self, finding: Finding) {
        for tap in finding.taps {
            if let Some(stream) = Stream::of(&tap) {
                self.streams += 1;
                self.followed.insert(tap.id(), (tap, stream));
            }
        }
        for (_, stream) in self.followed.values_mut() {
            stream.note_counters(&finding.counters);
        }
        for id in finding.gone {
            if let Some((_, stream)) = self.followed.get_mut(&id) {
                stream.note_gone();
            }
        }
    }

    /// Looks at each connection once. True: something was found.
    fn look(&mut self) -> io::Result<bool> {
        let Self { capture, followed, room, .. } = self;
        let mut has_found = false;
        for (tap, stream) in followed.values_mut() {
            let opener = tap.opener();
            for from in [opener, 1 - opener] {
                for _ in 0..TIMES {
                    let Some(look) = tap.look(from, room) else { break };
                    has_found = true;
                    stream.write(from, &look, capture)?;
                    if look.is_all {
                        break;
                    }
                }
            }
            if tap.is_over() || stream.is_gone() {
                stream.end(capture)?;
            }
        }
        self.let_go();
        Ok(has_found)
    }

    /// Of connections that are over.
    fn let_go(&mut self) {
        let mut lost = 0;
        self.followed.retain(|_, (_, stream)| {
            if stream.is_over() {
                lost += stream.lost();
            }
            !stream.is_over()
        });
        self.lost += lost;
    }

    /// Looks again and again, until the time is over or a signal comes.
    fn record(
        &mut self,
        findings: &Receiver<Finding>,
        stop: &UnixStream,
        duration: Option<Duration>,
    ) -> io::Result<()> {
        let deadline = duration.map(|duration| Instant::now() + duration);
        let mut pace = Pace::default();
        loop {
            let begun = Instant::now();
            findings.try_iter().for_each(|finding| self.take(finding));
            let has_found = self.look()?;
            if self.flushed.elapsed() >= FLUSH_EVERY {
                self.capture.flush()?;
                self.flushed = Instant::now();
            }
            let rest = pace.rest_after(begun.elapsed(), has_found);
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) || comes(stop, rest) {
                self.look()?;
                return self.finish();
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.capture.flush()
    }

    fn sums(&self) {
        let open: u64 = self.followed.values().map(|(_, stream)| stream.lost()).sum();
        let (packets, lost) = (self.capture.packets(), self.lost + open);
        output::complain(
            "tap",
            format_args!(
                "{} connections, {packets} packets, {lost} bytes lost because they were overwritten first",
                self.streams
            ),
        );
    }
}

/// Whether a signal comes within this time.
fn comes(stop: &UnixStream, time: Duration) -> bool {
    let time = Timespec::try_from(time).unwrap_or_default();
    let mut awaited = [PollFd::new(stop, PollFlags::IN)];
    poll(&mut awaited, Some(&time)).is_ok_and(|ready| ready > 0)
}
