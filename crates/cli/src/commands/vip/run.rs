//! `sidestep vip run`: puts the VIPs of the configuration into force, and looks after their targets.
//!
//! One thread does all of it, in turns: it looks at listeners five times a second, starts probes that are
//! due, and answers the other commands.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use sd_notify::NotifyState;
use sidestep_distributor::VipSet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::Builder;
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::director::Director;
use super::error::VipError;
use super::probe;
use crate::args::VipRunArgs;
use crate::commands::systemd::tell_systemd;
use crate::commands::vip_status::{self, Answer, PATIENCE, QUESTION_LEN_MAX, Request};
use crate::commands::{logging, signals};
use crate::config::Configuration;
use crate::output;

/// Questions that may be under way at a time.
const QUESTIONS_MAX: usize = 32;
/// From one look at the listeners to the next.
const TURN: Duration = Duration::from_millis(200);

pub(super) fn execute(args: &VipRunArgs) -> Result<(), VipError> {
    // First of all: a signal from now on ends it in order.
    let stop = signals::stop().map_err(VipError::of("cannot wait for signals"))?;
    signals::ignore_sigpipe();
    logging::begin(args.log.as_ref())?;
    let set = configured(args.config.as_deref())?;
    if set.vips().is_empty() {
        return Err(VipError::None);
    }
    let commands = vip_status::listen().map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => VipError::Running,
        _ => VipError::of("cannot listen for commands")(error),
    })?;
    let mut director = Director::new()?;
    let done = director.apply(&set).map_err(VipError::Refused)?;
    say(&done)?;
    let runtime = Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(VipError::of("cannot wait for anything"))?;
    let director = Rc::new(RefCell::new(director));
    let work = async {
        spawn_local(look_after(Rc::clone(&director)));
        let config = args.config.as_deref().map(Path::to_owned);
        spawn_local(answer_commands(commands, Rc::clone(&director), config));
        tell_systemd(NotifyState::Ready);
        let mut byte = [0];
        stop.set_nonblocking(true)?;
        UnixStream::from_std(stop)?.read_exact(&mut byte).await
    };
    LocalSet::new().block_on(&runtime, work).map_err(VipError::of("cannot wait for signals"))?;
    tell_systemd(NotifyState::Stopping);
    log::info!("ends, by a signal");
    Ok(())
}

/// The VIPs that the configuration files say now.
fn configured(named: Option<&Path>) -> Result<VipSet, VipError> {
    let environment = |name: &str| std::env::var_os(name);
    let configuration = Configuration::load(named, environment)?;
    Ok(configuration.settings.vips.unwrap_or_default())
}

/// A line of standard output for each VIP.
fn say(lines: &str) -> Result<(), VipError> {
    let lines: String = lines.lines().map(|line| format!("sidestep vip: {line}\n")).collect();
    output::print(&lines).map(drop).map_err(VipError::of("cannot write to standard output"))
}

async fn look_after(director: Rc<RefCell<Director>>) {
    let mut turns = interval(TURN);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let due = director.borrow_mut().look();
        for question in due {
            let director = Rc::clone(&director);
            spawn_local(async move {
                let has_passed = probe::passes(&question.probe, question.target).await;
                director.borrow_mut().probed(&question, has_passed);
            });
        }
    }
}

async fn answer_commands(
    listener: UnixListener,
    director: Rc<RefCell<Director>>,
    config: Option<PathBuf>,
) {
    let Ok(listener) = tokio::net::UnixListener::from_std(listener) else { return };
    let config: Option<Rc<Path>> = config.map(Rc::from);
    // The oldest one makes room: a client that leaves questions unfinished keeps others out for no longer
    // than it goes on.
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                open.retain(|question| !question.is_finished());
                if open.len() == QUESTIONS_MAX {
                    open.pop_front().expect("there are some").abort();
                }
                let (director, config) = (Rc::clone(&director), config.clone());
                let answered = spawn_local(timeout(PATIENCE, answer(stream, director, config)));
                open.push_back(answered.abort_handle());
            }
            Err(error) => {
                log::warn!("a command cannot be heard: {error}");
                sleep(TURN).await;
            }
        }
    }
}

/// One question. Who does not wait for the answer has none.
async fn answer(
    mut stream: UnixStream,
    director: Rc<RefCell<Director>>,
    config: Option<Rc<Path>>,
) -> io::Result<()> {
    let user = getsockopt(&stream, PeerCredentials).map_err(io::Error::from)?.uid();
    let mut line = Vec::new();
    (&mut stream).take(QUESTION_LEN_MAX).read_to_end(&mut line).await?;
    let answer = match serde_json::from_slice::<Request>(&line) {
        Err(error) => Answer::Refused(format!("a question that is none: {error}")),
        Ok(request) if !request.only_looks() && !vip_status::may_change(user) => Answer::Refused(
            "only root, and the user that `sidestep vip run` runs as, may change VIPs".to_owned(),
        ),
        Ok(request) => carry_out(&request, &mut director.borrow_mut(), config.as_deref()),
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    stream.write_all(&text).await
}

fn carry_out(request: &Request, director: &mut Director, config: Option<&Path>) -> Answer {
    let done = match request {
        Request::Status => return Answer::Status(director.status()),
        Request::Connections => match director.connections() {
            Ok(connections) => return Answer::Connections(connections),
            Err(error) => Err(format!("the kernel does not tell connections: {error}")),
        },
        Request::Apply => configured(config)
            .map_err(|error| format!("{error}\nnothing is changed"))
            .and_then(|set| director.apply(&set)),
        Request::Drain(target) => director.drain(target),
        Request::Resume(target) => director.resume(target),
        Request::Remove(vip) => director.remove(vip),
    };
    done.map_or_else(Answer::Refused, Answer::Done)
}
