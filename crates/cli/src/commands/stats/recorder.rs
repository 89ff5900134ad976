//! `sidestep stats --record`: a line in a file for each interval, until a signal.
//!
//! States stay open from look to look ([`Watch`]), so what a program counted before it ended is in the line
//! of the interval in which it ended.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sidestep_observe::{Program, StateId, Watch, Watched};
use thiserror::Error;

use super::interrupt::Interrupt;
use crate::commands::activity::Activity;
use crate::commands::descriptors;
use crate::commands::record::{self, Record};
use crate::output;

/// Why there is no record.
#[derive(Debug, Error)]
pub(super) enum RecordError {
    #[error("cannot list /proc: {0}")]
    Processes(io::Error),
    #[error(
        "cannot record in {}: {error}; name another file, or a directory that exists and is yours",
        .path.display()
    )]
    File { path: PathBuf, error: io::Error },
}

/// Records until a signal comes, which ends it between two lines, as success.
pub(super) fn record(path: &Path, every: Duration) -> Result<(), RecordError> {
    let unwritable = |error| RecordError::File { path: path.to_owned(), error };
    drop(record::open(path).map_err(unwritable)?);
    descriptors::allow_as_many_as_may_be();
    Interrupt::catch();
    let mut recorder = Recorder::begin().map_err(RecordError::Processes)?;
    let mut is_failing = false;
    loop {
        let goes_on = Interrupt::has_not_come_within(every);
        recorder.look().map_err(RecordError::Processes)?;
        match recorder.write(path) {
            Ok(()) => is_failing = false,
            Err(error) if !goes_on => return Err(unwritable(error)),
            // Said once, and not at each interval until there is room.
            Err(error) => {
                if !is_failing {
                    output::complain("stats", waits_for_room(path, &error));
                }
                is_failing = true;
            }
        }
        if !goes_on {
            return Ok(());
        }
    }
}

fn waits_for_room(path: &Path, error: &io::Error) -> String {
    format!(
        "cannot write {}: {error}; make room, or move the file away. Nothing is lost: the next line \
         that can be written has all since the last one",
        path.display()
    )
}

/// What has come since the last line.
struct Recorder {
    watch: Watch,
    counted: HashMap<StateId, Activity>,
    pending: BTreeMap<String, Activity>,
    since: Instant,
}

impl Recorder {
    /// What programs have had so far is in no line.
    fn begin() -> io::Result<Self> {
        let mut recorder = Self {
            watch: Watch::default(),
            counted: HashMap::new(),
            pending: BTreeMap::new(),
            since: Instant::now(),
        };
        recorder.look()?;
        recorder.pending.clear();
        Ok(recorder)
    }

    fn look(&mut self) -> io::Result<()> {
        let watched = self.watch.look()?;
        self.enter(&watched);
        Ok(())
    }

    /// Adds what has come. Of a program that was not there before, everything.
    fn enter(&mut self, Watched { snapshot, gone }: &Watched) {
        let mut counted = HashMap::new();
        for program in snapshot.programs.iter().chain(gone) {
            let now = Activity::of(&program.totals);
            let before = self.counted.remove(&program.state).unwrap_or_default();
            let grown = now.since(&before);
            if !grown.is_nothing() {
                self.pending_of(program).add(&grown);
            }
            counted.insert(program.state, now);
        }
        self.counted = counted;
    }

    /// Users choose the names of their programs, so a line has so many and no more.
    fn pending_of(&mut self, program: &Program) -> &mut Activity {
        let has_room =
            self.pending.len() < NAMES_MAX || self.pending.contains_key(&program.program);
        let name = if has_room { &program.program } else { OTHERS };
        self.pending.entry(name.to_owned()).or_default()
    }

    /// Writes the line. What cannot be written stays for the next one.
    fn write(&mut self, path: &Path) -> io::Result<()> {
        let seconds = self.since.elapsed().as_secs_f64();
        let line = Record::now(seconds, std::mem::take(&mut self.pending));
        match line.append(path) {
            Ok(()) => self.since = Instant::now(),
            Err(error) => {
                self.pending = line.programs;
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Names of programs in a line.
const NAMES_MAX: usize = 256;
/// Under which those have a place that are more.
const OTHERS: &str = "(others)";

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_observe::{Snapshot, Totals};

    fn recorder() -> Recorder {
        Recorder {
            watch: Watch::default(),
            counted: HashMap::new(),
            pending: BTreeMap::new(),
            since: Instant::now(),
        }
    }

    fn program(name: &str, smc: u64) -> Program {
        let totals = Totals { smc, ..Totals::default() };
        Program { pids: vec![1], program: name.into(), totals, ..Program::default() }
    }

    fn there(program: Program) -> Watched {
        let snapshot = Snapshot { programs: vec![program], ..Snapshot::default() };
        Watched { snapshot, ..Watched::default() }
    }

    #[test]
    fn a_line_has_what_came_since_the_last_and_what_came_before_an_end() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("record");
        let mut recorder = recorder();
        recorder.enter(&there(program("a", 3)));
        recorder.write(&path).unwrap();
        recorder.enter(&there(program("a", 3)));
        recorder.write(&path).unwrap();
        let gone = || Watched { gone: vec![program("a", 5)], ..Watched::default() };
        recorder.enter(&gone());
        recorder.enter(&gone());
        recorder.write(&path).unwrap();
        let lines = record::read(&path).unwrap().all;
        let counts = lines.iter().map(|line| line.programs.get("a").map(|it| it.smc_connections));
        assert_eq!(
            counts.collect::<Vec<_>>(),
            [Some(3), None, Some(2)],
            "told twice, entered once"
        );
    }

    #[test]
    fn what_cannot_be_written_is_in_the_next_line() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("record");
        let mut recorder = recorder();
        recorder.enter(&there(program("a", 3)));
        recorder.write(Path::new("/dev/full")).unwrap_err();
        recorder.enter(&there(program("a", 7)));
        recorder.write(&path).unwrap();
        let [line] = &record::read(&path).unwrap().all[..] else { panic!("one line") };
        assert_eq!(line.programs["a"].smc_connections, 7);
    }

    #[test]
    fn a_line_has_so_many_names_and_no_more() {
        let mut recorder = recorder();
        for n in 0..2 * NAMES_MAX {
            recorder.pending_of(&program(&n.to_string(), 1)).smc_connections += 1;
        }
        assert_eq!(recorder.pending.len(), NAMES_MAX + 1);
        assert_eq!(recorder.pending[OTHERS].smc_connections, NAMES_MAX as u64);
    }
}
