//! `cargo xtask operations`: random lists of socket operations, with Linux TCP
//! as the oracle.
//!
//! `tests/operations/player.c` plays a list and writes down what each operation
//! returned. A list is right if the trace with Sidestep preloaded is one that the
//! same list shows plain. What is random in TCP itself makes several plain traces,
//! so a list that seems wrong is played again, both ways, before it is called so.
//! It is then made shorter for as long as it stays wrong, and its traces are shown.
//!
//! With `--demotions` an operator is at work meanwhile: between two operations he now and
//! then takes the connections of a player back to TCP, or lets them move again.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::bench::place;
use crate::suite;

/// The bytes of an operation.
const OPERATION: usize = 4;

/// How often a list that seems wrong is played each way before it is called so.
const TRIALS: usize = 6;

/// A shorter list must be wrong this often to replace the longer one: less than
/// [`TRIALS`], because there are hundreds of them.
const SHRINKING_TRIALS: usize = 2;

/// Lists that are played at the same time.
const BESIDE_EACH_OTHER: usize = 4;

/// What marks a line that breaks the player's own model of a stream.
const MODEL_MARK: &str = "MODEL";

/// What begins a line about edges, of which more may be told than TCP tells.
const EDGE_MARK: &str = "edge ";

/// How long lists are made shorter.
const SHRINKING_TIME: Duration = Duration::from_secs(60);

/// What `xtask operations` can be told.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// How many lists are played
    #[arg(long, value_name = "N", default_value_t = 100)]
    lists: u32,

    /// Operations in each list
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    length: u16,

    /// Seed of the first list; the next one has the next number [default: a new one]
    #[arg(long)]
    seed: Option<u32>,

    /// Play this one list, as a failure printed it, and show its traces
    #[arg(long, value_name = "HEX")]
    list: Option<String>,

    /// When connections move: early, or lazy, which is in the middle of a list
    #[arg(long, value_name = "WHEN", default_value = "early", value_parser = ["early", "lazy"])]
    promotion: String,

    /// Demote and promote the players' connections between operations
    #[arg(long)]
    demotions: bool,

    /// Go on after a list that is wrong
    #[arg(long)]
    keep_going: bool,

    /// Play the lists that every change has to pass, which are always the same
    #[arg(long, exclusive = true)]
    always: bool,
}

/// Seed and number of the lists that are played with every change, and are always the
/// same: they must all be right.
const ALWAYS: (u32, u32) = (2_000_000, 80);

/// So many of them are played again with connections that move in the middle of the list.
const LATE: u32 = 40;

/// So many talkative lists of such a length are played while an operator demotes and
/// promotes.
const DEMOTED: (u32, u16) = (30, 120);

/// Lists that were wrong once, shortened; they are played with every change, too.
const ONCE_WRONG: [&str; 12] = [
    "52ce6322ca5c1612e2f4ef0026ff309c",
    "78304a3f5099324ec90ffbf79edd22b156d4a5b6eed2963f",
    "2bacc7dd56f86aec4bafd180113b0512275191614cdee493",
    "7a6d8f81f10b5ed9101da8c9c35edc4c331935927d1da62afa9b9a0d",
    "03a40efc7323e36b5f92c7d2066f34b3cfa49fb8afcd55d5ff8e77ab53997a214f8f1ba266aa1610",
    "2a61e5bb43df2c3ec589b16cf9824c741d4cd133",
    "a2a8b9afe71c20ab7f011fca14749413614a4302c96d3d769ac6017a",
    "cbeb2b739b2545b47505c05474de2700a1904126",
    "00007219f3da599bf490d1dc75f2a98a27e7ab2eb19e300e",
    "f170903ff39165f8252ff97327d65cef56018d59127f4fdb3633d3f0",
    "f2e6d05fb37d1ad1507077f0f0d1dcfd7d754193edd5c74cc77e12527ea5c248",
    "f0c9648b3c7256f8d1f5cc8eb4b38affc46ee85f4d814c9d97beba6208beae245ab918022801066375106499cc952fe9\
     6e30557e",
];

/// A list, and the argument that plays it again.
struct Named {
    argument: String,
    list: Vec<u8>,
}

impl Named {
    fn random(seed: u32, length: u16) -> Self {
        Self { argument: format!("--seed {seed}"), list: random_list(seed, length) }
    }

    /// One in which few connections exchange much, so that an operator has something to move.
    fn talkative(seed: u32, length: u16) -> Self {
        Self {
            argument: format!("--demotions --length {length} --seed {seed}"),
            list: talkative_list(seed, length),
        }
    }

    fn of_hex(hex: &str) -> Result<Self> {
        Ok(Self { argument: format!("--list {hex}"), list: list_of_hex(hex)? })
    }
}

/// Plays the lists that `options` ask for.
///
/// **Errors**: a list is wrong.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.always {
        return run_always(options.length);
    }
    let stage = Stage::new(&options.promotion, options.demotions)?;
    if let Some(hex) = &options.list {
        let list = list_of_hex(hex)?;
        print!("{}", stage.report(&list)?);
        ensure!(!stage.is_wrong(&list, TRIALS)?, "the list is wrong");
        return Ok(());
    }
    let seed = options.seed.map_or_else(suite::new_seed, Ok)?;
    println!("seed {seed} (repeat with --seed {seed})");
    let list = if options.demotions { Named::talkative } else { Named::random };
    let lists = (0..options.lists).map(|number| list(seed.wrapping_add(number), options.length));
    stage.play_all(lists, options.keep_going)
}

fn run_always(length: u16) -> Result<()> {
    let (seed, lists) = ALWAYS;
    let once_wrong = ONCE_WRONG.iter().map(|hex| Named::of_hex(hex));
    let mut all = once_wrong.collect::<Result<Vec<_>>>()?;
    all.extend((seed..seed + lists).map(|seed| Named::random(seed, length)));
    Stage::new("early", false)?.play_all(all, true)?;
    let late = (seed..seed + LATE).map(|seed| Named::random(seed, length));
    Stage::new("lazy", false)?.play_all(late, true)?;
    println!("while an operator demotes and promotes:");
    let (lists, length) = DEMOTED;
    let demoted = (seed..seed + lists).map(|seed| Named::talkative(seed, length));
    Stage::new("early", true)?.play_all(demoted, true)
}

/// What came out of lists.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    passed: u32,
    failed: u32,
    /// How many of those that passed did not at the first play.
    unsteady: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The player and the library.
struct Stage {
    player: PathBuf,
    library: PathBuf,
    /// What the library is told.
    options: String,
    /// The command of an operator who is at work.
    operator: Option<PathBuf>,
}

impl Stage {
    fn new(promotion: &str, demotions: bool) -> Result<Self> {
        let repo = place::repo_root()?;
        let scratch = place::scratch_dir(&repo, "operations")?;
        Ok(Self {
            player: place::compile_c(&repo.join("tests/operations/player.c"), &scratch)?,
            library: place::build_dir(&repo).join("libsidestep.so"),
            options: format!("mode=smc promotion={promotion}"),
            operator: demotions.then(|| place::build_dir(&repo).join("sidestep")),
        })
    }

    /// Plays lists, some beside each other because they mostly wait, and prints the shortest form of
    /// those that are wrong.
    fn play_all(
        &self,
        lists: impl IntoIterator<Item = Named, IntoIter: Send>,
        keep_going: bool,
    ) -> Result<()> {
        let start = Instant::now();
        let (lists, tally) = (Mutex::new(lists.into_iter()), Mutex::new(Tally::default()));
        let play = || -> Result<()> {
            while keep_going || lock(&tally).failed == 0 {
                // A statement of its own: while a list is played, others can be taken.
                let next = lock(&lists).next();
                let Some(named) = next else { break };
                self.judge(named, &tally)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let players = [(); BESIDE_EACH_OTHER].map(|()| scope.spawn(play));
            players.into_iter().try_for_each(|it| it.join().expect("no player panics"))
        })?;
        let Tally { passed, failed, unsteady } = *lock(&tally);
        println!("{:.0} s, {unsteady} lists agreed when repeated", start.elapsed().as_secs_f64());
        println!("{passed} passed, {failed} failed");
        ensure!(failed == 0, "{failed} lists of operations are wrong");
        Ok(())
    }

    /// Plays a list, again if need be, and counts it.
    fn judge(&self, Named { argument, list }: Named, tally: &Mutex<Tally>) -> Result<()> {
        let agrees = self.agrees(&list)?;
        if agrees || !self.is_wrong(&list, TRIALS)? {
            let mut tally = lock(tally);
            tally.passed += 1;
            tally.unsteady += u32::from(!agrees);
            return Ok(());
        }
        lock(tally).failed += 1;
        let short = self.shorten(list)?;
        let report = self.report(&short)?;
        // In one call: reports do not come between each other.
        print!("--- the list of {argument} is wrong; shortened:\n{}\n{report}", hex_of(&short));
        Ok(())
    }

    /// Whether one play each way gives the same; nearly every list says yes.
    fn agrees(&self, list: &[u8]) -> Result<bool> {
        let trace = self.play(list, Some(&self.library))?;
        Ok(keeps_the_model(&trace) && is_shown_by(&trace, &self.play(list, None)?))
    }

    /// Whether in so many trials nothing that Sidestep showed was what TCP had
    /// shown. The traces of all trials are compared with each other, because TCP
    /// may do the rarer thing first.
    fn is_wrong(&self, list: &[u8], trials: usize) -> Result<bool> {
        let mut plain = BTreeSet::new();
        let mut preloaded = BTreeSet::new();
        for _ in 0..trials {
            plain.insert(self.play(list, None)?);
            preloaded.insert(self.play(list, Some(&self.library))?);
            let right = |trace: &String| {
                keeps_the_model(trace) && plain.iter().any(|shown| is_shown_by(trace, shown))
            };
            if preloaded.iter().any(right) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Leaves out operations, at first many at a time, while the list stays wrong.
    fn shorten(&self, mut list: Vec<u8>) -> Result<Vec<u8>> {
        let deadline = Instant::now() + SHRINKING_TIME;
        let mut part = list.len() / OPERATION / 2;
        while part > 0 && Instant::now() < deadline {
            let mut at = 0;
            while at < list.len() && Instant::now() < deadline {
                let end = (at + part * OPERATION).min(list.len());
                let without = [&list[..at], &list[end..]].concat();
                if self.is_wrong(&without, SHRINKING_TRIALS)? {
                    list = without;
                } else {
                    at = end;
                }
            }
            part /= 2;
        }
        Ok(list)
    }

    /// The trace of a list.
    fn play(&self, list: &[u8], library: Option<&Path>) -> Result<String> {
        let mut command = Command::new(&self.player);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.env_remove("LD_PRELOAD").env_remove("SIDESTEP_OPTIONS");
        if let Some(library) = library {
            command.env("LD_PRELOAD", library).env("SIDESTEP_OPTIONS", &self.options);
        }
        let intervention = match (&self.operator, library) {
            (Some(operator), Some(_)) => Some(Intervention::prepare(operator, &mut command)?),
            _ => None,
        };
        let mut child = command.spawn().context("starting the player")?;
        // It keeps what the player has been given.
        drop(command);
        child.stdin.take().context("standard input")?.write_all(list)?;
        if let Some(intervention) = intervention {
            intervention.go_on_until_the_end(list)?;
        }
        let output = child.wait_with_output()?;
        let mut trace = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.code().is_none_or(|code| code != 0) {
            let _ = writeln!(trace, "{MODEL_MARK}: {}", output.status);
        }
        Ok(trace)
    }

    /// Both traces, with a mark before the lines that differ.
    fn report(&self, list: &[u8]) -> Result<String> {
        let (plain, preloaded) = (self.play(list, None)?, self.play(list, Some(&self.library))?);
        let mut text = String::new();
        let mut other = plain.lines();
        for line in preloaded.lines() {
            match other.next() {
                Some(same) if same == line => writeln!(text, "    {line}")?,
                Some(shown) => writeln!(text, "tcp {shown}\nsmc {line}")?,
                None => writeln!(text, "smc {line}")?,
            }
        }
        for shown in other {
            writeln!(text, "tcp {shown}")?;
        }
        Ok(text)
    }
}

/// The operator, who is asked between two operations of a list.
struct Intervention<'a> {
    operator: &'a Path,
    /// From the player: who plays, as [`PLAYERS`] numbers.
    players: PipeReader,
    go_on: PipeWriter,
}

/// Process numbers that the player sends, 0 for one who has left.
const PLAYERS: usize = 5;

impl<'a> Intervention<'a> {
    /// Gives the player the other ends of the pipes, under the numbers that it knows.
    fn prepare(operator: &'a Path, command: &mut Command) -> Result<Self> {
        const OUT: i32 = 198;
        const IN: i32 = 199;
        let (players, out) = std::io::pipe()?;
        let (input, go_on) = std::io::pipe()?;
        command.env("PLAYER_INTERVENTIONS", "1");
        let give = move || {
            for (from, to) in [(out.as_raw_fd(), OUT), (input.as_raw_fd(), IN)] {
                // SAFETY: no memory operands.
                if unsafe { libc::dup2(from, to) } < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes two system calls.
        unsafe { command.pre_exec(give) };
        Ok(Self { operator, players, go_on })
    }

    /// Does something now and then: what and when depends on the list alone.
    fn go_on_until_the_end(mut self, list: &[u8]) -> Result<()> {
        let seed = list.iter().fold(0u32, |sum, byte| sum.rotate_left(5) ^ u32::from(*byte));
        let mut dice = random_list(seed, u16::MAX).into_iter();
        let mut throw = |sides: usize| usize::from(dice.next().unwrap_or(0)) % sides;
        let mut players = [0; PLAYERS * 4];
        while self.players.read_exact(&mut players).is_ok() {
            let playing: Vec<_> = players
                .chunks_exact(4)
                .map(|pid| u32::from_ne_bytes([pid[0], pid[1], pid[2], pid[3]]))
                .filter(|pid| *pid != 0)
                .collect();
            // Often enough, and seldom enough for a word to be followed before the next.
            if throw(6) == 0 {
                let word = ["demote", "promote"][throw(2)];
                let (one, all) = (throw(PLAYERS), throw(2) == 0);
                for (number, pid) in (0..).zip(&playing) {
                    if all || number == one % playing.len() {
                        // Who has no connection yet has nothing to be told.
                        Command::new(self.operator).args([word, &format!("pid:{pid}")]).output()?;
                    }
                }
            }
            if self.go_on.write_all(b"!").is_err() {
                break;
            }
        }
        Ok(())
    }
}

fn keeps_the_model(trace: &str) -> bool {
    !trace.contains(MODEL_MARK)
}

/// Whether TCP showed the same. An edge may be told twice, so a trace may have
/// more words about edges than TCP's; that they are true the player has seen.
fn is_shown_by(trace: &str, shown: &str) -> bool {
    steady_lines(trace).eq(steady_lines(shown)) && edges(shown).is_subset(&edges(trace))
}

fn steady_lines(trace: &str) -> impl Iterator<Item = &str> {
    trace.lines().filter(|line| !line.starts_with(EDGE_MARK))
}

/// Every edge as (the line that it follows, the end, the event).
fn edges(trace: &str) -> BTreeSet<(usize, &str, &str)> {
    let mut edges = BTreeSet::new();
    let mut at = 0;
    for line in trace.lines() {
        match line.strip_prefix(EDGE_MARK).and_then(|edge| edge.split_once(':')) {
            Some((end, events)) => {
                edges.extend(events.split_whitespace().map(|event| (at, end, event)));
            }
            None => at += 1,
        }
    }
    edges
}

/// A list that depends on nothing but its seed (splitmix64).
fn random_list(seed: u32, length: u16) -> Vec<u8> {
    let mut state = u64::from(seed);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) as u32).to_le_bytes()
    };
    (0..length).flat_map(|_| next()).collect()
}

/// The same, but mostly of messages on the first of four places, and with little that ends
/// or begins a connection. The numbers are places in the deck of the player.
fn talkative_list(seed: u32, length: u16) -> Vec<u8> {
    const DECK: u8 = 40;
    const OPEN: u8 = 0;
    const SEND: u8 = 4;
    const RECEIVE: u8 = 10;
    let ends_or_begins = |what: u8| matches!(what, 0..4 | 16..22 | 26 | 39);
    let mut list = random_list(seed, length);
    for operation in list.as_chunks_mut::<OPERATION>().0 {
        let [what, place, _, last] = operation;
        *what %= DECK;
        let is_rare = ends_or_begins(*what) && !last.is_multiple_of(8);
        if is_rare || last.is_multiple_of(3) {
            *what = if *what % 2 == 0 { SEND } else { RECEIVE };
        }
        if *last < 200 {
            *place &= 0x0f;
        }
    }
    [[OPEN, 0, 1, 0].as_slice(), &list].concat()
}

fn hex_of(list: &[u8]) -> String {
    list.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn list_of_hex(hex: &str) -> Result<Vec<u8>> {
    if !hex.is_ascii() || !hex.len().is_multiple_of(2 * OPERATION) {
        bail!("a list has {} digits for each operation", 2 * OPERATION);
    }
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).context("not a hexadecimal digit"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_survives_being_printed() -> Result<()> {
        let list = random_list(7, 20);
        assert_eq!(list.len(), 20 * OPERATION);
        assert_eq!(list_of_hex(&hex_of(&list))?, list);
        assert_ne!(list, random_list(8, 20));
        assert!(list_of_hex("123").is_err());
        Ok(())
    }

    #[test]
    fn edges_may_be_more_and_all_else_must_be_the_same() {
        let tcp = "1 send -> 5\n2 wait\nedge 0: IN\n3 close -> 0\n";
        assert!(is_shown_by(tcp, tcp));
        assert!(is_shown_by("1 send -> 5\n2 wait\nedge 0: IN OUT\n3 close -> 0\n", tcp));
        assert!(!is_shown_by("1 send -> 5\n2 wait\nedge 0: OUT\n3 close -> 0\n", tcp));
        assert!(!is_shown_by("1 send -> 5\n2 wait\n3 close -> 0\nedge 0: IN\n", tcp));
        assert!(!is_shown_by("1 send -> 4\n2 wait\nedge 0: IN\n3 close -> 0\n", tcp));
    }
}
