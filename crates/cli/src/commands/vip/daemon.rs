//! A daemon that looks after VIPs: its turns, and the commands that it answers.
//!
//! One thread does all of it: it looks at targets five times a second, starts probes that are
//! due, and answers the other commands.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use sd_notify::NotifyState;
use sidestep_distributor::{TargetKind, VipSet};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::Builder;
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::error::VipError;
use super::probe::{self, Outcome};
use super::roster::Question;
use crate::commands::systemd::tell_systemd;
use crate::commands::vip_status::{
    self, Answer, Connection, PATIENCE, QUESTION_LEN_MAX, Request, Status,
};
use crate::config::Configuration;
use crate::options::Settings;
use crate::output;

/// Questions that may be under way at a time.
const QUESTIONS_MAX: usize = 32;
/// How long others are waited for at the end.
const PARTING: Duration = Duration::from_secs(1);
/// From one look at the targets to the next.
const TURN: Duration = Duration::from_millis(200);
/// How long a change waits until it can be taken: etcd has a new leader after two seconds, and a VIP a new owner.
const SETTLES: Duration = Duration::from_secs(5);

/// The VIPs of a daemon at work.
pub(super) trait Direct {
    /// What its VIPs have as targets.
    const KIND: TargetKind;

    /// Puts a set into force. Returns what that changes, in lines.
    ///
    /// # Errors
    /// Why nothing was changed, in lines.
    fn apply(&mut self, set: &VipSet) -> Result<String, String>;

    /// It is about to end: whether nothing is left to be done. It is asked until then, for [`PARTING`].
    fn has_parted(&mut self) -> bool {
        true
    }

    /// Has another host own the VIPs.
    ///
    /// # Errors
    /// Why not.
    fn move_to(&mut self, _host: &str) -> Result<String, String> {
        Err("VIPs of one host stay there".to_owned())
    }

    /// Whether a change that would be refused now may be taken soon.
    fn is_unsettled(&self, _request: &Request) -> bool {
        false
    }

    /// Looks at all targets, follows what has changed, and returns probes that are due.
    fn look(&mut self) -> Vec<Question>;

    /// A probe has come to an end.
    fn probed(&mut self, question: &Question, outcome: Outcome);

    /// A target gets nothing new. Returns its state, in words.
    ///
    /// # Errors
    /// Why not.
    fn drain(&mut self, target: &str) -> Result<String, String>;

    /// Takes that back.
    ///
    /// # Errors
    /// Why not.
    fn resume(&mut self, target: &str) -> Result<String, String>;

    /// Takes a VIP out of force.
    ///
    /// # Errors
    /// Why not.
    fn remove(&mut self, vip: &str) -> Result<String, String>;

    /// What displays tell of VIPs and targets.
    fn status(&mut self) -> Status;

    /// The live connections of all VIPs.
    ///
    /// # Errors
    /// The kernel does not tell.
    fn connections(&self) -> io::Result<Vec<Connection>>;
}

/// Looks after VIPs, until a byte comes from `stop`.
///
/// # Errors
/// Nothing can be waited for.
pub(super) fn serve<D: Direct + 'static>(
    director: D,
    commands: UnixListener,
    stop: std::os::unix::net::UnixStream,
    config: Option<&Path>,
) -> Result<(), VipError> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(VipError::of("cannot wait for anything"))?;
    let director = Rc::new(RefCell::new(director));
    let work = async {
        spawn_local(look_after(Rc::clone(&director)));
        let (asked, config) = (Rc::clone(&director), config.map(Path::to_owned));
        spawn_local(answer_commands(commands, move |request| {
            let (asked, config) = (Rc::clone(&asked), config.clone());
            async move {
                await_settled(&request, &asked).await;
                carry_out(&request, &mut *asked.borrow_mut(), config.as_deref())
            }
        }));
        tell_systemd(NotifyState::Ready);
        let mut byte = [0];
        stop.set_nonblocking(true)?;
        UnixStream::from_std(stop)?.read_exact(&mut byte).await?;
        // Without an answer of the others it ends all the same.
        _ = timeout(PARTING, part(&director)).await;
        Ok(())
    };
    LocalSet::new().block_on(&runtime, work).map_err(VipError::of("cannot wait for signals"))?;
    tell_systemd(NotifyState::Stopping);
    log::info!("ends, by a signal");
    Ok(())
}

/// Answers commands that only look, for as long as the process lives.
pub(super) fn answer_looks(commands: UnixListener, answer: impl Fn(&Request) -> Answer + 'static) {
    let Ok(runtime) = Builder::new_current_thread().enable_io().enable_time().build() else {
        return log::error!("commands are not answered: they cannot be waited for");
    };
    let answer = move |request: Request| std::future::ready(answer(&request));
    LocalSet::new().block_on(&runtime, answer_commands(commands, answer));
}

async fn part<D: Direct>(director: &RefCell<D>) {
    while !director.borrow_mut().has_parted() {
        sleep(PARTING / 50).await;
    }
}

/// What the configuration files say now.
///
/// # Errors
/// One of them has a mistake.
pub(super) fn configured(named: Option<&Path>) -> Result<Settings, VipError> {
    let environment = |name: &str| std::env::var_os(name);
    Ok(Configuration::load(named, environment)?.settings)
}

/// The VIPs whose targets are of a kind.
pub(super) fn vips_of(settings: Settings, kind: TargetKind) -> VipSet {
    let mut vips = settings.vips.unwrap_or_default();
    vips.retain(|vip| vip.kind == kind);
    vips
}

/// A line of standard output for each VIP.
///
/// # Errors
/// It cannot be written.
pub(super) fn say(who: &str, lines: &str) -> Result<(), VipError> {
    let lines: String = lines.lines().map(|line| format!("{who}: {line}\n")).collect();
    output::print(&lines).map(drop).map_err(VipError::of("cannot write to standard output"))
}

async fn look_after<D: Direct + 'static>(director: Rc<RefCell<D>>) {
    let mut turns = interval(TURN);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let due = director.borrow_mut().look();
        for question in due {
            let director = Rc::clone(&director);
            spawn_local(async move {
                let outcome = probe::outcome(&question).await;
                director.borrow_mut().probed(&question, outcome);
            });
        }
    }
}

async fn await_settled<D: Direct>(request: &Request, director: &RefCell<D>) {
    let settled = async {
        while director.borrow().is_unsettled(request) {
            sleep(TURN / 4).await;
        }
    };
    // Afterwards it is refused with the reason, or taken.
    _ = timeout(SETTLES, settled).await;
}

async fn answer_commands<A: Future<Output = Answer> + 'static>(
    listener: UnixListener,
    carry_out: impl Fn(Request) -> A + 'static,
) {
    let Ok(listener) = tokio::net::UnixListener::from_std(listener) else { return };
    let carry_out = Rc::new(carry_out);
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
                let answered =
                    spawn_local(timeout(PATIENCE, answer(stream, Rc::clone(&carry_out))));
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
async fn answer<A: Future<Output = Answer>>(
    mut stream: UnixStream,
    carry_out: Rc<impl Fn(Request) -> A>,
) -> io::Result<()> {
    let user = getsockopt(&stream, PeerCredentials).map_err(io::Error::from)?.uid();
    let mut line = Vec::new();
    (&mut stream).take(QUESTION_LEN_MAX).read_to_end(&mut line).await?;
    let answer = match serde_json::from_slice::<Request>(&line) {
        Err(error) => Answer::Refused(format!("a question that is none: {error}")),
        Ok(request) if !request.only_looks() && !vip_status::may_change(user) => Answer::Refused(
            "only root, and the user that looks after the VIPs, may change them".to_owned(),
        ),
        Ok(request) => carry_out(request).await,
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    stream.write_all(&text).await
}

fn carry_out<D: Direct>(request: &Request, director: &mut D, config: Option<&Path>) -> Answer {
    let done = match request {
        Request::Status => return Answer::Status(director.status()),
        Request::Connections => match director.connections() {
            Ok(connections) => return Answer::Connections(connections),
            Err(error) => Err(format!("the kernel does not tell connections: {error}")),
        },
        Request::Tunnelled => Err("no packets come here by tunnels".to_owned()),
        Request::Apply => configured(config)
            .map_err(|error| format!("{error}\nnothing is changed"))
            .and_then(|settings| director.apply(&vips_of(settings, D::KIND))),
        Request::Drain(target) => director.drain(target),
        Request::Resume(target) => director.resume(target),
        Request::Remove(vip) => director.remove(vip),
        Request::Move(host) => director.move_to(host),
    };
    done.map_or_else(Answer::Refused, Answer::Done)
}
