//! `sidestep agent`: does on a host what takes a privilege that programs do not have.
//!
//! It stays in the foreground until SIGTERM or SIGINT, and tells systemd, if that has started
//! it, when it is ready. Programs under Sidestep need no agent, and go on without it when it ends.
//!
//! Two loops must go round for it to be of use, the main one and the broker's: systemd hears of both
//! ([`Watchdog`]), and restarts an agent in which one stands still.
//! The thread for metrics is not among them. It reads what the kernel tells of other users' processes, and
//! how long that takes those users have a say in; the rest of the agent must not be restarted for it, and
//! the reader of metrics sees that they do not come.

mod broker;
mod enforcement;
mod metrics;
mod socket_file;
mod tcp_option;

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sd_notify::NotifyState;
use sidestep_bpf::BpfError;
use sidestep_gateway::watchdog::{Pulse, Watchdog};
use thiserror::Error;

use super::logging::{self, LogError};
use super::signals;
use super::systemd::{tell_systemd, watchdog};
use crate::args::AgentArgs;
use crate::config::{ConfigError, Configuration};
use crate::metrics_address::MetricsAddress;
use crate::output;
use broker::{Broker, HostPolicy, PolicyError};
use enforcement::Enforcer;
use metrics::{ListenError, Listener};
use tcp_option::{Attached, Sweeps};

/// Why there is no agent.
#[derive(Debug, Error)]
enum AgentError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error("metrics: {0}")]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Group(BpfError),
    #[error("there is nothing to do: neither the TCP option nor the socket is to be had")]
    Idle,
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    #[error("cannot start the thread for metrics: {0}")]
    Thread(io::Error),
}

/// Works until it is told to end: 0, or 1 if there is nothing that it can do.
pub(crate) fn execute(args: &AgentArgs) -> i32 {
    match work(args) {
        Ok(()) => 0,
        Err(error) => {
            complain(&error);
            1
        }
    }
}

fn work(args: &AgentArgs) -> Result<(), AgentError> {
    // First of all: a signal from now on ends the agent in order.
    let stop = signals::stop().map_err(AgentError::Signals)?;
    signals::ignore_sigpipe();
    logging::begin(args.log.as_ref())?;
    let address = metrics_address(args)?;
    let mut listener = address.as_ref().map(Listener::bind).transpose()?;
    let _metrics_file = listener.as_mut().and_then(Listener::take_path);
    let watchdog = watchdog();
    let mut duties = Duties::take_up(args, &watchdog)?;
    if let Some(listener) = listener {
        metrics::start(listener).map_err(AgentError::Thread)?;
    }
    if let Some(address) = address {
        say(&format_args!("metrics are told at {address}"))?;
    }
    let pulse = watchdog.pulse();
    tell_systemd(NotifyState::Ready);
    duties.work_until(&stop, pulse).map_err(AgentError::Signals)?;
    tell_systemd(NotifyState::Stopping);
    log::info!("ends, by a signal");
    Ok(())
}

/// What it does for programs, as long as this exists. Either may be lacking.
struct Duties {
    _option: Option<Attached>,
    sweeps: Option<Sweeps>,
    enforcer: Option<Enforcer>,
    _broker: Option<Broker>,
}

impl Duties {
    /// Begins what can be begun, and says what cannot.
    fn take_up(args: &AgentArgs, watchdog: &Watchdog) -> Result<Self, AgentError> {
        let option = tcp_option::attach(args.cgroup.as_deref());
        let policy = HostPolicy::load(args.config.as_deref())?;
        let broker = Broker::start(&args.socket, policy, watchdog);
        match &option {
            Ok(option) => say(option)?,
            Err(BpfError::File { .. }) => {}
            Err(error) => {
                complain(&format_args!("the TCP option of SMC is not written: {error}"));
            }
        }
        let (meet, at) =
            ("programs of different users and network namespaces", args.socket.display());
        match &broker {
            Ok(_) if option.as_ref().is_ok_and(Attached::tells_identity) => {
                say(&format_args!("{meet} meet at {at}"))?;
            }
            Ok(_) => complain(&format_args!(
                "{meet} stay on TCP: nobody tells them which connection is \
                 which; that takes the privilege of the TCP option, and Linux 5.18"
            )),
            Err(error) => complain(&format_args!("{meet} stay on TCP: {at}: {error}")),
        }
        match (option, broker) {
            (Err(error @ BpfError::File { .. }), _) => Err(AgentError::Group(error)),
            (Err(_), Err(_)) => Err(AgentError::Idle),
            (option, broker) => {
                let mut option = option.ok();
                let sweeps = option.as_mut().and_then(|option| option.sweeps(Instant::now()));
                let enforcer = Enforcer::new(args.cgroup.as_deref(), args.config.as_deref());
                let mut enforcer = enforcer.ok();
                if let Some(enforcer) = &mut enforcer {
                    // Before systemd hears that the agent is ready.
                    enforcer.work(Instant::now());
                }
                Ok(Self { _option: option, sweeps, enforcer, _broker: broker.ok() })
            }
        }
    }

    /// Sweeps and enforces when it is time, until something can be read from `stop`.
    fn work_until(&mut self, stop: &UnixStream, mut pulse: Pulse) -> io::Result<()> {
        loop {
            let now = Instant::now();
            let to_sweep = self.sweeps.as_mut().map(|sweeps| sweeps.sweep_if_due(now));
            let to_look = self.enforcer.as_mut().map(|enforcer| enforcer.work(now));
            let rest = [pulse.beat(now), to_sweep, to_look].into_iter().flatten().min();
            let rest = rest.map(|rest| Timespec {
                tv_sec: rest.as_secs() as i64,
                tv_nsec: i64::from(rest.subsec_nanos()),
            });
            let mut events = vec![PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
            let enforced = self.enforcer.as_ref().and_then(Enforcer::events);
            events.extend(enforced.map(|it| PollFd::from_borrowed_fd(it.as_fd(), PollFlags::IN)));
            match poll(&mut events, rest.as_ref()) {
                Ok(_) if !events[0].revents().is_empty() => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn complain(what: &impl fmt::Display) {
    output::complain("agent", what);
}

/// A line of standard output, if it still has a reader.
fn say(what: &impl fmt::Display) -> Result<(), AgentError> {
    output::print(&format!("sidestep agent: {what}\n")).map(drop).map_err(AgentError::Output)
}

/// That of the command line, or else of the configuration.
fn metrics_address(args: &AgentArgs) -> Result<Option<MetricsAddress>, ConfigError> {
    if args.metrics.is_some() {
        return Ok(args.metrics.clone());
    }
    let environment = |name: &str| std::env::var_os(name);
    let configuration = Configuration::load(args.config.as_deref(), environment)?;
    Ok(configuration.settings.agent_metrics)
}
