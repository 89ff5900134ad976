//! `xtask posix`: the programs of `tests/posix`, plain and preloaded.
//!
//! Each program states what Linux TCP does and must pass all ways. It is
//! compiled once for a libc; the runs differ by the environment alone. Under Sidestep its
//! connections have to have moved from the beginning ([`moved`]), and in a run of its own they
//! move late.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bench::place;
use moved::Moved;
use results::Tried;

mod moved;
mod results;

/// A program that has not ended by then is killed with all its children. The
/// programs watch themselves, test by test, so this is the second net, also where
/// each of many cases hangs (`--isolate`).
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(3600);
/// How often a running program is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The most lines of a failing program's output that are shown.
const OUTPUT_LINES_MAX: usize = 60;

/// The C library that the programs are linked with.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Libc {
    Glibc,
    Musl,
}

impl Libc {
    /// The compiler, and the Debian package that has it.
    fn compiler(self) -> (&'static str, &'static str) {
        match self {
            Self::Glibc => ("gcc", "gcc"),
            Self::Musl => ("musl-gcc", "musl-tools"),
        }
    }

    /// Flags of its own. musl comes without the kernel's headers, which lie beside glibc's, and without some functions.
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Glibc => &[],
            Self::Musl => &MUSL_FLAGS,
        }
    }

    /// Where the programs lie, below the target directory.
    fn directory(self) -> &'static str {
        match self {
            Self::Glibc => "posix",
            Self::Musl => "posix-musl",
        }
    }
}

const MUSL_FLAGS: [&str; 6] = [
    "-include",
    "musl.h",
    "-idirafter",
    "/usr/include",
    "-idirafter",
    "/usr/include/x86_64-linux-gnu",
];

const COMPILER_FLAGS: [&str; 8] = [
    "-O2",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-D_GNU_SOURCE",
    // The checked aliases (`__recv_chk` and so on) are part of the interface.
    "-D_FORTIFY_SOURCE=2",
    "-pthread",
];

/// What `xtask posix` can be told.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Run only the programs whose name contains one of these
    names: Vec<String>,

    /// Run only one of the ways
    #[arg(long, value_enum)]
    only: Option<Way>,

    /// Link the programs with this C library
    #[arg(long, value_enum, default_value_t = Libc::Glibc)]
    libc: Libc,

    /// Preload this library instead of the newest one that was built
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,

    /// Run each program this many times
    #[arg(long, default_value_t = 1, value_name = "N")]
    repeat: u32,

    /// Pass this to the programs: run only tests whose name contains it
    #[arg(long, value_name = "NAME")]
    test: Option<String>,

    /// Run each case in a process of its own, so that a hang or a crash costs
    /// only that case
    #[arg(long)]
    isolate: bool,

    /// Write docs/posix.md
    #[arg(long, conflicts_with_all = ["names", "only", "libc", "test", "isolate"])]
    write: bool,
}

/// How a program is run.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// As it is.
    Plain,
    /// With `libsidestep.so` in `LD_PRELOAD` and shared memory forced.
    Preloaded,
    /// The same with connections that move when they are worth it: most of a test passes while
    /// they are untracked, and some of them move in the middle of it. AutoSMC is off: it would learn
    /// from the short connections of earlier tests to leave those of the next ones alone.
    Late,
}

impl Way {
    const ALL: [Self; 3] = [Self::Plain, Self::Preloaded, Self::Late];

    /// What the library is told, if it is there.
    fn library_options(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Preloaded => Some("mode=smc promotion=early"),
            Self::Late => Some("mode=smc promotion=lazy autosmc=off"),
        }
    }
}

/// It is about bad pointers, which musl follows by itself.
const NOT_MUSL: &str = "efault";

/// Compiles and runs the programs, prints a table, and fails if any fails.
pub(crate) fn run(options: &Options) -> Result<()> {
    let root = repository_root();
    let names = program_names(&root, &options.names)?;
    let ways: Vec<Way> = options.only.map_or(Way::ALL.to_vec(), |way| vec![way]);
    let library = match ways[..] {
        [Way::Plain] => None,
        _ => Some(library_path(&root, options.library.as_deref())?),
    };
    let programs = compile(&root, options.libc, &names)?;

    println!("{:<12} {:>24} {:>24} {:>8} {:>24}", "program", "plain", "preloaded", "moved", "late");
    let (mut passed, mut failed) = (0, 0);
    let mut tried = Vec::new();
    for program in &programs {
        let name = file_name(program);
        let mut row = format!("{name:<12}");
        let mut reports = String::new();
        let mut outputs = [const { String::new() }; 3];
        for (way, output) in Way::ALL.into_iter().zip(&mut outputs) {
            if !ways.contains(&way) || (options.libc == Libc::Musl && name == NOT_MUSL) {
                row += &format!(" {:>24}", "-");
                continue;
            }
            let outcome = run_repeatedly(program, way, library.as_deref(), options)?;
            row += &format!(" {:>24}", outcome.summary());
            let moved = Moved::parse(&outcome.output);
            if way == Way::Preloaded {
                row += &format!(" {:>8}", moved.count());
            }
            if let Some(complaint) = moved.complaint() {
                failed += 1;
                reports += &format!("--- {name}: {complaint}\n");
            } else if outcome.passed() {
                passed += 1;
            } else {
                failed += 1;
                reports += &outcome.report(&name, way);
            }
            *output = outcome.output;
        }
        println!("{row}");
        // What the machine lacks, each once.
        let lines = outputs.iter().flat_map(|output| output.lines());
        let lacking: BTreeSet<&str> = lines.filter(|line| line.starts_with("skipped: ")).collect();
        lacking.iter().for_each(|line| println!("    {line}"));
        print!("{reports}");
        let [plain, preloaded, _] = outputs;
        tried.push(Tried { name, plain, preloaded });
    }
    if options.write {
        results::write(&root, &tried)?;
    }
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        bail!("{failed} of the POSIX programs failed");
    }
    Ok(())
}

/// What one run of one program came to.
struct Outcome {
    /// `None`: killed after its time-out.
    status: Option<ExitStatus>,
    output: String,
    elapsed: Duration,
}

impl Outcome {
    fn passed(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// One cell of the table, such as `ok 4711 checks 0.3 s`.
    fn summary(&self) -> String {
        let seconds = self.elapsed.as_secs_f64();
        let verdict = match self.status {
            None => "TIMEOUT".to_owned(),
            Some(status) if status.success() => {
                let checks = self.output.lines().last().and_then(|line| line.split(' ').next());
                format!("ok {} checks", checks.unwrap_or("?"))
            }
            Some(status) => match (status.code(), status.signal()) {
                (Some(3), _) => "HANG".to_owned(),
                (_, Some(signal)) => format!("signal {signal}"),
                _ => "FAILED".to_owned(),
            },
        };
        format!("{verdict} {seconds:.1} s")
    }

    fn report(&self, name: &str, way: Way) -> String {
        let lines: Vec<&str> = self.output.lines().collect();
        let shown = lines.len().min(OUTPUT_LINES_MAX);
        let mut text = format!("--- {name}, {way:?}: {}\n", self.summary());
        for line in &lines[..shown] {
            text += &format!("    {line}\n");
        }
        if shown < lines.len() {
            text += &format!("    … {} more lines, ending:\n", lines.len() - shown);
            text += &format!("    {}\n", lines[lines.len() - 1]);
        }
        text
    }
}

/// Runs a program up to `repeat` times: the first failure, or the last success.
fn run_repeatedly(
    program: &Path,
    way: Way,
    library: Option<&Path>,
    options: &Options,
) -> Result<Outcome> {
    let mut outcome = run_once(program, way, library, options)?;
    for _ in 1..options.repeat {
        if !outcome.passed() {
            break;
        }
        outcome = run_once(program, way, library, options)?;
    }
    Ok(outcome)
}

fn run_once(
    program: &Path,
    way: Way,
    library: Option<&Path>,
    options: &Options,
) -> Result<Outcome> {
    // A file rather than a pipe: a child that outlives the program cannot keep
    // us waiting for the end of its output.
    let output_path = program.with_extension("out");
    let output = File::create(&output_path)?;
    let mut command = Command::new(program);
    command
        .args(options.isolate.then_some("-i"))
        .args(options.write.then_some("-v"))
        .args((way == Way::Preloaded).then_some("-w"))
        .args(&options.test)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .env_remove("LD_PRELOAD")
        .env_remove("SIDESTEP_OPTIONS")
        // Its own process group, so that it can be killed with its children.
        .process_group(0);
    if let (Some(library), Some(words)) = (library, way.library_options()) {
        command.env("LD_PRELOAD", library).env("SIDESTEP_OPTIONS", words);
    }
    let start = Instant::now();
    let mut child =
        command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() > PROGRAM_TIMEOUT {
            kill_group(child.id());
            child.wait()?;
            break None;
        }
        thread::sleep(POLL_INTERVAL);
    };
    let elapsed = start.elapsed();
    if status.is_some_and(|status| !status.success()) {
        kill_group(child.id());
    }
    let mut bytes = Vec::new();
    File::open(&output_path)?.read_to_end(&mut bytes)?;
    Ok(Outcome { status, output: String::from_utf8_lossy(&bytes).into_owned(), elapsed })
}

/// Kills whatever is left of a program's process group; nothing left is fine.
fn kill_group(leader: u32) {
    let _ = Command::new("kill")
        .args(["-KILL", "--", &format!("-{leader}")])
        .stderr(Stdio::null())
        .status();
}

/// Compiles `support.c` once and every program with it.
fn compile(root: &Path, libc: Libc, names: &[String]) -> Result<Vec<PathBuf>> {
    let sources = root.join("tests/posix");
    let target = place::scratch_dir(root, libc.directory())?;
    let support = target.join("support.o");
    let header = sources.join("support.h");
    let support_source = sources.join("support.c");
    if is_older(&support, &[&support_source, &header]) {
        link(libc, &["-c".as_ref(), &support_source], &support)?;
    }
    names
        .iter()
        .map(|name| {
            let source = sources.join(format!("{name}.c"));
            let program = target.join(name);
            if is_older(&program, &[&source, &header, &support]) {
                link(libc, &[&source, &support], &program)?;
            }
            Ok(program)
        })
        .collect()
}

fn link(libc: Libc, inputs: &[&Path], output: &Path) -> Result<()> {
    let (compiler, package) = libc.compiler();
    let status = Command::new(compiler)
        .args(COMPILER_FLAGS)
        .args(libc.flags())
        .arg("-I")
        .arg(repository_root().join("tests/posix"))
        .args(inputs)
        .arg("-o")
        .arg(output)
        .status()
        .with_context(|| {
            format!("cannot start {compiler}; it is in the Debian package `{package}`")
        })?;
    if !status.success() {
        bail!("{compiler} failed for {}", file_name(output));
    }
    Ok(())
}

fn is_older(made: &Path, from: &[&Path]) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    let Some(made) = time(made) else { return true };
    from.iter().any(|path| time(path).is_none_or(|source| source >= made))
}

/// The programs' names, sorted: every `.c` file except the support.
fn program_names(root: &Path, filters: &[String]) -> Result<Vec<String>> {
    let folder = root.join("tests/posix");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("{}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "c") {
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let wanted = filters.is_empty() || filters.iter().any(|filter| name.contains(filter));
        if name != "support" && wanted {
            names.push(name);
        }
    }
    if names.is_empty() {
        bail!("no program in tests/posix is called like {}", filters.join(", "));
    }
    names.sort();
    Ok(names)
}

/// The library to preload: the given one, else the newer of release and debug.
fn library_path(root: &Path, given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        return path.canonicalize().with_context(|| format!("no library at {}", path.display()));
    }
    ["release", "debug"]
        .iter()
        .map(|profile| place::target_dir(root).join(profile).join("libsidestep.so"))
        .filter(|path| path.exists())
        .max_by_key(|path| fs::metadata(path).and_then(|data| data.modified()).ok())
        .context(
            "no libsidestep.so was built; build it with `cargo build --release`, \
             or use `--only plain`",
        )
}

fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_path_buf()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
