//! `sidestep bench`: measures workloads, and everything around that.
//!
//! The work is done by [`sidestep_modeler`]. Here it gets its plan from the command
//! line ([`plan`]), its eyes on what the library did ([`witness`]), its bench
//! ([`executor`]: workers, control groups, BPF programs; [`filter`]: IP filters), and a terminal
//! ([`progress`]).

mod executor;
mod filter;
mod plan;
mod progress;
mod witness;

use std::io::{self, BufReader, IsTerminal};
use std::net::TcpListener;
use std::path::PathBuf;
use std::slice;

use sidestep_modeler::agent;
use sidestep_modeler::certificate::{Certificate, own_cpu_us};
use sidestep_modeler::compare::{self, CompareError};
use sidestep_modeler::launch::Launcher;
use sidestep_modeler::neighbours;
use sidestep_modeler::plan::Transport;
use sidestep_modeler::report::json::{self, ReadError};
use sidestep_modeler::report::{Output, OutputError, html, table};
use sidestep_modeler::result::Document;
use sidestep_modeler::session::Session;
use sidestep_modeler::worker;
use thiserror::Error;

use self::executor::{Bench, BenchError};
use self::plan::{Chosen, PlanError};
use self::progress::Progress;
use self::witness::LibraryWitness;
use crate::args::{BenchArgs, BenchCommand, CompareArgs, MeasureArgs, ReportArgs, ServeArgs};
use crate::output;
use crate::terminal;

/// Does what the command line asks for and says with which status to exit.
pub(crate) fn execute(args: &BenchArgs) -> i32 {
    let done = match &args.command {
        None => measure(&args.measure),
        Some(BenchCommand::Serve(args)) => serve(args),
        Some(BenchCommand::Compare(args)) => compare(args),
        Some(BenchCommand::Report(args)) => report(args),
        Some(BenchCommand::Worker) => return work(),
        Some(BenchCommand::Neighbour) => {
            neighbours::run();
            return 0;
        }
    };
    done.unwrap_or_else(|error| {
        output::complain("bench", &error);
        error.exit_status()
    })
}

/// Why there is no result.
#[derive(Debug, Error)]
enum Failure {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Compare(#[from] CompareError),
    #[error("cannot listen at {address}: {reason}; choose another with --listen")]
    Listen { address: std::net::SocketAddr, reason: io::Error },
    #[error("cannot find the path of this program: {0}")]
    OwnPath(io::Error),
    #[error("cannot write the report: {0}")]
    Terminal(io::Error),
}

impl Failure {
    /// 2 for a wrong command line, or what cannot be compared; otherwise 1.
    fn exit_status(&self) -> i32 {
        match self {
            Self::Plan(_) | Self::Read(_) | Self::Compare(_) => 2,
            _ => 1,
        }
    }
}

/// `sidestep bench WORKLOAD...`
fn measure(args: &MeasureArgs) -> Result<i32, Failure> {
    let chosen = Chosen::from_args(args)?;
    // What cannot be written should be known before minutes are spent.
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let html = args.html.as_deref().map(Output::open).transpose()?;

    let (certificate, used) = (Certificate::begin(), own_cpu_us());
    let mut bench = Bench::set_up(launcher()?, &chosen.plan, args.server.as_deref())?;
    let mut progress = Progress::new();
    let outcome = Session::new(&chosen.plan, &mut bench, &mut progress)
        .run(&|workload, rmbe, a, b, ours| chosen.published(workload, rmbe, a, b, ours));
    // Neighbours have ended and been counted before the CPU time is summed up.
    drop(bench);
    let incomplete = outcome.failures.iter().any(|failure| failure.given_up);
    let machine = certificate.finish(own_cpu_us() - used);
    let mut document =
        outcome.into_document(machine, chosen.options.clone(), chosen.suite_name.clone());
    chosen.judge_across(&mut document);

    if let Some(output) = json {
        json::write(&document, &output)?;
    }
    if let Some(output) = html {
        output.write(html::render(slice::from_ref(&document)).as_bytes())?;
    }
    show(slice::from_ref(&document))?;
    Ok(i32::from(incomplete || has_failed_to_move(&document)))
}

/// Whether something in the SMC column was to be SMC and is not.
fn has_failed_to_move(document: &Document) -> bool {
    let mut of_smc = document.results.iter().filter(|cell| cell.transport == Transport::Smc);
    of_smc.any(|cell| cell.transport_proof.has_failed())
}

/// `sidestep bench serve`
fn serve(args: &ServeArgs) -> Result<i32, Failure> {
    let listener = TcpListener::bind(args.listen)
        .map_err(|reason| Failure::Listen { address: args.listen, reason })?;
    output::complain("bench", format_args!("serving at {}; end with Ctrl-C", args.listen));
    match agent::serve(&listener, &launcher()?, &LibraryWitness) {
        Ok(never) => match never {},
        Err(reason) => Err(Failure::Listen { address: args.listen, reason }),
    }
}

/// `sidestep bench compare`
fn compare(args: &CompareArgs) -> Result<i32, Failure> {
    let [before, after] = [&args.before, &args.after].map(|path| json::read(path));
    let report = compare::compare(&before?, &after?, args.margin / 100.0)?;
    output::print(&format!("{report}\n")).map_err(Failure::Terminal)?;
    Ok(i32::from(report.exit_code()))
}

/// `sidestep bench report`
fn report(args: &ReportArgs) -> Result<i32, Failure> {
    let output = args.html.as_deref().map(Output::open).transpose()?;
    let documents: Vec<Document> =
        args.files.iter().map(|path| json::read(path)).collect::<Result<_, _>>()?;
    match output {
        Some(output) => output.write(html::render(&documents).as_bytes())?,
        None => show(&documents)?,
    }
    Ok(0)
}

/// `sidestep bench worker`: the measured program.
fn work() -> i32 {
    worker::run(BufReader::new(io::stdin()), io::stdout().lock())
}

fn launcher() -> Result<Launcher, Failure> {
    let own: PathBuf = std::env::current_exe().map_err(Failure::OwnPath)?;
    Ok(Launcher::new(own))
}

fn show(documents: &[Document]) -> Result<(), Failure> {
    let width = terminal::width().map_or(FILE_WIDTH, usize::from);
    let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    for document in documents {
        let text = table::render(document, width, colour);
        output::print_coloured(&text).map_err(Failure::Terminal)?;
    }
    Ok(())
}

/// Columns of a table that is not for a terminal.
const FILE_WIDTH: usize = 160;
