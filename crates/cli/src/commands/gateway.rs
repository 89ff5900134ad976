//! `sidestep gateway`: carries the connections of this host's programs to other hosts, by SMC-R.
//!
//! It is itself a program under Sidestep, so that between it and the programs bytes go through shared
//! memory: at its start it becomes itself again, as `sidestep run` would start it. Then it stays in the
//! foreground until SIGTERM or SIGINT. At SIGHUP it begins the next one, which replaces it: so `systemctl reload`
//! has another process, of the build and the configuration that are there by then, and resets nothing. `systemctl restart`
//! ends it and starts another one: what can move waits in systemd's descriptor store in between.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use libc::{SIGHUP, SIGINT, SIGTERM};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};
use sd_notify::NotifyState;
use sidestep_gateway::{Gateway, OpenError, Progress, Settings};
use sidestep_wire::Eid;
use signal_hook::low_level::pipe;
use thiserror::Error;

use super::gateway_status;
use super::logging::{self, LogError};
use super::run::{Launch, RunError};
use super::systemd::{self, tell_systemd, watchdog};
use crate::args::{GatewayArgs, RunArgs};
use crate::config::{ConfigError, Configuration};
use crate::fault_plan::FaultPlan;
use crate::options::OPTIONS_VARIABLE;
use crate::output;

/// Why there is no gateway.
#[derive(Debug, Error)]
enum GatewayError {
    #[error(transparent)]
    Start(#[from] RunError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    #[error("cannot wait for anything any more: {0}")]
    Wait(io::Error),
}

/// Works until it is told to end: 0, or 1 if it cannot.
pub(crate) fn execute(args: &GatewayArgs) -> i32 {
    if args.status {
        return gateway_status::gateways();
    }
    // The `sidestep` that has started us as a program of Sidestep has told us the options.
    let is_started = env::var_os(OPTIONS_VARIABLE).is_some();
    let result = if is_started { work(args) } else { start_again(args) };
    match result {
        Ok(()) => 0,
        Err(error) => {
            output::complain("gateway", &error);
            match error {
                GatewayError::Start(error) => error.exit_status(),
                _ => 1,
            }
        }
    }
}

/// Becomes itself, with the library. Returns only if that cannot be.
fn start_again(args: &GatewayArgs) -> Result<(), GatewayError> {
    let program = env::current_exe().map(OsString::from).unwrap_or_else(|_| "sidestep".into());
    let run = RunArgs {
        mode: None,
        promotion: None,
        log: None,
        config: args.config.clone(),
        command: [program].into_iter().chain(env::args_os().skip(1)).collect(),
    };
    Err(Launch::prepare_gateway(&run)?.exec().into())
}

fn work(args: &GatewayArgs) -> Result<(), GatewayError> {
    // First of all: a signal from now on ends the gateway in order.
    let (stop, stopper) = UnixStream::pair().map_err(GatewayError::Signals)?;
    for signal in [SIGTERM, SIGINT] {
        let stopper = stopper.try_clone().map_err(GatewayError::Signals)?;
        pipe::register(signal, stopper).map_err(GatewayError::Signals)?;
    }
    logging::begin(args.log.as_ref())?;
    raise_limits();
    let settings = settings(args)?;
    let gateway = match systemd::take_stored() {
        Some(stored) => Gateway::restore(settings, stored),
        None if args.replace => Gateway::replace(settings),
        None => Gateway::open(settings),
    }?;
    let successor = heed_reloads().map_err(GatewayError::Signals)?;
    for adapter in gateway.adapters() {
        let line = format!("sidestep gateway: {adapter}\n");
        output::print(&line).map_err(GatewayError::Output)?;
    }
    let pulse = watchdog().pulse();
    tell_systemd(NotifyState::Ready);
    let is_replaced = Arc::new(AtomicBool::new(false));
    let is_known = Arc::clone(&is_replaced);
    let tell = move |progress: Progress| {
        if progress.is_replaced && !is_known.swap(true, Ordering::Relaxed) {
            hand_service_over(*lock(&successor));
        }
        tell_systemd(NotifyState::Status(&in_words(progress)));
    };
    let stored = gateway.run(stop.into(), pulse, tell).map_err(GatewayError::Wait)?;
    if is_replaced.load(Ordering::Relaxed) {
        log::info!("ends, replaced");
        return Ok(());
    }
    tell_systemd(NotifyState::Stopping);
    if let Some(Err(error)) = stored.map(|stored| systemd::store(stored.as_fd())) {
        log::warn!("what was to wait for the next gateway is reset: {error}");
    }
    log::info!("ends, by a signal");
    Ok(())
}

fn in_words(Progress { left, .. }: Progress) -> String {
    match left {
        0 => String::new(),
        _ => format!("process {} drains: {left} connections are left", std::process::id()),
    }
}

/// The service is another process from now on. One that was begun elsewhere is not of this service.
fn hand_service_over(successor: u32) {
    if successor != 0 {
        tell_systemd(NotifyState::MainPid(successor));
    }
}

/// Begins the next gateway at each SIGHUP, from a thread of its own. Returns where its process number stands as
/// long as there is one; while it begins, that is locked.
fn heed_reloads() -> io::Result<Arc<Mutex<u32>>> {
    let (mut hangups, sender) = UnixStream::pair()?;
    pipe::register(SIGHUP, sender)?;
    let process = Arc::new(Mutex::new(0));
    let its_process = Arc::clone(&process);
    let wait = move || {
        while hangups.read(&mut [0; 16]).is_ok_and(|len| len > 0) {
            let ended = begin_successor(&its_process).and_then(|successor| {
                let mut end = [PollFd::new(&successor, PollFlags::IN)];
                Ok(retry_on_intr(|| poll(&mut end, None))?)
            });
            *lock(&its_process) = 0;
            let why = ended.err().map_or(String::new(), |error| format!(": {error}"));
            log::warn!("the gateway that was to replace this one has ended{why}");
        }
    };
    thread::Builder::new().name("reload".to_owned()).spawn(wait)?;
    Ok(process)
}

fn lock(process: &Mutex<u32>) -> MutexGuard<'_, u32> {
    process.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What can be read from when it has ended.
fn begin_successor(process: &Mutex<u32>) -> io::Result<OwnedFd> {
    let mut process = lock(process);
    let successor = start_successor()?;
    *process = successor.as_raw_pid().unsigned_abs();
    Ok(pidfd_open(successor, PidfdFlags::empty())?)
}

/// The program that is there now under the name of this one, with its arguments. It becomes a child of the service manager:
/// of another process systemd does not wait for the end, but kills it when the service is stopped. So a shell begins it,
/// and ends. Standard input is where that says the number of the process, which has none itself.
fn start_successor() -> io::Result<Pid> {
    let (mut number, said) = io::pipe()?;
    let mut words = env::args_os();
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "\"$0\" \"$@\" & echo $! >&0"]).stdin(said);
    shell.arg(words.next().ok_or(io::ErrorKind::NotFound)?);
    shell.args(words.filter(|word| word != "--replace")).arg("--replace");
    // It reads the configuration itself, and is not the process whose watchdog this is.
    shell.env_remove(OPTIONS_VARIABLE).env_remove("WATCHDOG_PID");
    log::info!("begins the gateway that is to replace this one");
    shell.status()?;
    // The end of this process's own.
    drop(shell);
    let mut text = String::new();
    number.read_to_string(&mut text)?;
    let process = text.trim().parse().ok().and_then(Pid::from_raw);
    process.ok_or_else(|| io::Error::other(format!("the shell has said {text:?}")))
}

fn settings(args: &GatewayArgs) -> Result<Settings, ConfigError> {
    let environment = |name: &str| env::var_os(name);
    let configuration = Configuration::load(args.config.as_deref(), environment)?;
    let settings = configuration.settings;
    let adapters = match args.adapters.is_empty() {
        true => settings.adapters.clone().unwrap_or_default(),
        false => args.adapters.clone(),
    };
    let faults = settings.faults.map(FaultPlan::plan);
    let rules = settings.tls.clone().unwrap_or_default();
    let options = settings.into_options();
    let ueids = options.eid.names().filter_map(|name| Eid::ueid(name).ok()).collect();
    Ok(Settings {
        adapters,
        networks: options.pnet.of_interfaces().collect(),
        ueids,
        faults,
        rules,
        drain_limit: args.drain_limit,
        has_store: systemd::has_store(),
    })
}

/// Each connection takes two descriptors, and with an RDMA device its buffers may not leave memory;
/// without more of either, fewer connections fit.
fn raise_limits() {
    for resource in [Resource::Nofile, Resource::Memlock] {
        let limit = getrlimit(resource);
        let _ = setrlimit(resource, Rlimit { current: limit.maximum, ..limit });
    }
}
