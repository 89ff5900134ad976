//! `sidestep nri`: the programs of pods that ask for it run under Sidestep, by a plugin of the container runtime.
//!
//! NRI, the Node Resource Interface of containerd and CRI-O, asks its plugins about each container before it is created. A pod
//! asks for Sidestep by an annotation ([`pods`]), so neither its image nor its volumes have to know of it, and it may be as
//! restricted as Kubernetes can make it.
//!
//! ```text
//!   kubelet ── CRI ──> runtime ── CreateContainer: pod, container ──> plugin (pods.rs)
//!                         │  <── mounts, variables ─────────────────────┘
//!                         └──> container
//! ```
//!
//! A container of a pod that asks for what there is not begins as it is, and its connections stay on TCP: nothing that
//! fails here keeps a pod from running.

mod messages;
mod pods;
mod ttrpc;

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prost::Message as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use thiserror::Error;

use super::container_edits::{ContainerEdits, EditsError};
use super::logging::{self, LogError};
use super::signals;
use crate::args::NriArgs;
use crate::library;
use crate::output;
use messages::{
    ConfigureResponse, CreateContainerRequest, PLUGIN_SERVICE, RUNTIME_SERVICE,
    RegisterPluginRequest, Request, Response, Status, SynchronizeRequest, SynchronizeResponse,
};
use ttrpc::{Kind, Message, PLUGIN, RUNTIME, Trunk};

const NAME: &str = "sidestep";
/// Among the plugins of a runtime: early, so that others see what this one adds.
const INDEX: &str = "10";
/// Of the only call that the plugin makes.
const REGISTRATION: u32 = 1;
/// A runtime that has hung up is looked for again for so long, which a restart of it takes,
const RETURNS_WITHIN: Duration = Duration::from_secs(60);
/// at these intervals.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// A frame has begun, and its rest has to come within this time.
const FRAME_TIME: Duration = Duration::from_secs(10);

/// Why pods get nothing.
#[derive(Debug, Error)]
enum NriError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Edits(#[from] EditsError),
    #[error("cannot copy the library to {}: {reason}", directory.display())]
    Copy { directory: PathBuf, reason: io::Error },
    #[error(
        "no container runtime takes plugins at {}: {reason}; containerd 2 and CRI-O 1.30 do, earlier ones \
         where NRI is switched on in their configuration",
        socket.display()
    )]
    Runtime { socket: PathBuf, reason: io::Error },
    #[error("the container runtime turns the plugin away: {0}")]
    TurnedAway(String),
    #[error("the container runtime: {0}")]
    Talk(#[from] io::Error),
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
}

/// Serves the runtime until it is told to end: 0, or 1 if it cannot.
pub(crate) fn execute(args: &NriArgs) -> i32 {
    match work(args) {
        Ok(()) => 0,
        Err(error) => {
            output::complain("nri", &error);
            1
        }
    }
}

fn work(args: &NriArgs) -> Result<(), NriError> {
    let stop = signals::stop().map_err(NriError::Signals)?;
    signals::ignore_sigpipe();
    logging::begin(args.log.as_ref())?;
    let installed = library::find().map_err(EditsError::from)?;
    let library = match &args.copy_library {
        Some(directory) => copy(&installed, directory)
            .map_err(|reason| NriError::Copy { directory: directory.clone(), reason })?,
        None => installed,
    };
    let plugin = Plugin { edits: ContainerEdits::with_library(library)? };
    let mut socket = connect(&args.socket)?;
    while let Ended::HungUp = plugin.serve(socket, &stop)? {
        log::warn!("the container runtime has hung up");
        match connect_again(&args.socket, &stop)? {
            Some(next) => socket = next,
            None => break,
        }
    }
    log::info!("ends, by a signal");
    Ok(())
}

/// Puts the library into a directory of the host. Programs that have the one which was there keep it.
fn copy(library: &Path, directory: &Path) -> io::Result<PathBuf> {
    const READABLE_BY_ALL: u32 = 0o644;
    fs::create_dir_all(directory)?;
    let to = directory.join(library.file_name().unwrap_or_default());
    let unfinished = to.with_extension("so.new");
    fs::copy(library, &unfinished)?;
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(READABLE_BY_ALL))?;
    File::open(&unfinished)?.sync_all()?;
    fs::rename(&unfinished, &to)?;
    Ok(to)
}

fn connect(path: &Path) -> Result<UnixStream, NriError> {
    let connected = UnixStream::connect(path).and_then(|socket| {
        socket.set_read_timeout(Some(FRAME_TIME))?;
        socket.set_write_timeout(Some(FRAME_TIME))?;
        Ok(socket)
    });
    connected.map_err(|reason| NriError::Runtime { socket: path.to_owned(), reason })
}

/// `None`: a signal has come first.
fn connect_again(path: &Path, stop: &UnixStream) -> Result<Option<UnixStream>, NriError> {
    let deadline = Instant::now() + RETURNS_WITHIN;
    loop {
        if awaits(&[stop], Some(RETRY_INTERVAL)).map_err(NriError::Signals)? {
            return Ok(None);
        }
        match connect(path) {
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => {}
            Ok(socket) => return Ok(Some(socket)),
        }
    }
}

/// Whether one of these can be read from within a time.
fn awaits(sockets: &[&UnixStream], time: Option<Duration>) -> io::Result<bool> {
    let time = time.map(|time| Timespec::try_from(time).unwrap_or_default());
    let mut awaited: Vec<_> = sockets.iter().map(|it| PollFd::new(it, PollFlags::IN)).collect();
    match poll(&mut awaited, time.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// How a conversation with the runtime has ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    BySignal,
    HungUp,
}

/// What it answers, whichever runtime asks.
struct Plugin {
    edits: ContainerEdits,
}

impl Plugin {
    /// Registers, and answers until a signal comes or the runtime hangs up.
    fn serve(&self, socket: UnixStream, stop: &UnixStream) -> Result<Ended, NriError> {
        let mut trunk = Trunk::new(socket);
        trunk.send(&registration())?;
        loop {
            while let Some(message) = trunk.take()? {
                match self.answer(&message)? {
                    Some(answer) => trunk.send(&answer)?,
                    None => {
                        log::info!("registered; pods ask by the annotation {}", pods::ANNOTATION)
                    }
                }
            }
            if !awaits(&[stop, trunk.socket()], None)? {
                continue;
            }
            if awaits(&[stop], Some(Duration::ZERO))? {
                return Ok(Ended::BySignal);
            }
            match trunk.read_frame() {
                Ok(true) => {}
                Ok(false) => return Ok(Ended::HungUp),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Ok(Ended::HungUp);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The answer to a call; `None` if the message is the runtime's to ours, and good.
    fn answer(&self, message: &Message) -> Result<Option<Message>, NriError> {
        if message.kind == Kind::Response {
            return accepted(message).map(|()| None);
        }
        let response = match self.respond(&message.data) {
            Ok(payload) => Response { status: None, payload },
            Err(status) => Response { status: Some(status), payload: Vec::new() },
        };
        let data = response.encode_to_vec();
        Ok(Some(Message { kind: Kind::Response, data, ..message.clone() }))
    }

    /// What a call returns, or why it failed.
    fn respond(&self, call: &[u8]) -> Result<Vec<u8>, Status> {
        let call: Request = decoded(call)?;
        if call.service != PLUGIN_SERVICE {
            return Err(unknown(&call));
        }
        match call.method.as_str() {
            "Configure" => {
                Ok(ConfigureResponse { events: ConfigureResponse::CREATE_CONTAINER }
                    .encode_to_vec())
            }
            "Synchronize" => {
                let request: SynchronizeRequest = decoded(&call.payload)?;
                Ok(SynchronizeResponse { more: request.more }.encode_to_vec())
            }
            "CreateContainer" => {
                let request: CreateContainerRequest = decoded(&call.payload)?;
                Ok(pods::response(&self.edits, &request).encode_to_vec())
            }
            // The runtime is about to end, and will hang up.
            "Shutdown" => Ok(Vec::new()),
            _ => Err(unknown(&call)),
        }
    }
}

fn registration() -> Message {
    let plugin =
        RegisterPluginRequest { plugin_name: NAME.to_owned(), plugin_idx: INDEX.to_owned() };
    let call = Request {
        service: RUNTIME_SERVICE.to_owned(),
        method: "RegisterPlugin".to_owned(),
        payload: plugin.encode_to_vec(),
    };
    let data = call.encode_to_vec();
    Message { connection: RUNTIME, stream: REGISTRATION, kind: Kind::Request, data }
}

/// Whether the runtime has registered the plugin.
fn accepted(message: &Message) -> Result<(), NriError> {
    if message.connection == PLUGIN || message.stream != REGISTRATION {
        return Err(NriError::TurnedAway("it answers what it was not asked".to_owned()));
    }
    let response = Response::decode(&message.data[..]).map_err(io::Error::other)?;
    match response.status {
        Some(status) if status.code != Status::OK => Err(NriError::TurnedAway(status.message)),
        _ => Ok(()),
    }
}

fn decoded<T: prost::Message + Default>(bytes: &[u8]) -> Result<T, Status> {
    T::decode(bytes)
        .map_err(|error| Status { code: Status::INVALID_ARGUMENT, message: error.to_string() })
}

fn unknown(call: &Request) -> Status {
    let message = format!("sidestep has no {}/{}", call.service, call.method);
    Status { code: Status::UNIMPLEMENTED, message }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::messages::{Container, CreateContainerResponse, PodSandbox};
    use super::*;

    fn plugin() -> Plugin {
        Plugin { edits: ContainerEdits::by_default("/l/libsidestep.so", Path::new("/nowhere/a")) }
    }

    /// The runtime's end of a conversation with the plugin.
    struct Runtime(Trunk<UnixStream>);

    impl Runtime {
        fn receive(&mut self) -> Message {
            loop {
                if let Some(message) = self.0.take().unwrap() {
                    return message;
                }
                assert!(self.0.read_frame().unwrap(), "the plugin has hung up");
            }
        }

        /// What the plugin answers.
        fn call(&mut self, stream: u32, method: &str, payload: Vec<u8>) -> Response {
            let call =
                Request { service: PLUGIN_SERVICE.to_owned(), method: method.to_owned(), payload };
            let data = call.encode_to_vec();
            let message = Message { connection: PLUGIN, stream, kind: Kind::Request, data };
            self.0.send(&message).unwrap();
            let answer = self.receive();
            assert_eq!((answer.connection, answer.stream), (PLUGIN, stream));
            Response::decode(&answer.data[..]).unwrap()
        }

        fn register(&mut self, status: Option<Status>) {
            let call = self.receive();
            assert_eq!((call.connection, call.kind), (RUNTIME, Kind::Request));
            let request = Request::decode(&call.data[..]).unwrap();
            assert_eq!(request.method, "RegisterPlugin");
            let data = Response { status, payload: Vec::new() }.encode_to_vec();
            self.0.send(&Message { kind: Kind::Response, data, ..call }).unwrap();
        }
    }

    /// How the plugin ends when a runtime has said this, and then hangs up.
    fn conversation(talk: impl FnOnce(&mut Runtime)) -> Result<Ended, NriError> {
        let (socket, runtime) = UnixStream::pair().unwrap();
        let (stop, _stopper) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            let serving = scope.spawn(|| plugin().serve(socket, &stop));
            talk(&mut Runtime(Trunk::new(runtime)));
            serving.join().unwrap()
        })
    }

    #[test]
    fn a_runtime_is_answered_until_it_hangs_up() {
        let ended = conversation(|runtime| {
            runtime.register(None);
            let configured = runtime.call(1, "Configure", Vec::new());
            let events = ConfigureResponse::decode(&configured.payload[..]).unwrap().events;
            assert_eq!(events, ConfigureResponse::CREATE_CONTAINER);
            let part = SynchronizeRequest { more: true }.encode_to_vec();
            let synchronized = runtime.call(3, "Synchronize", part);
            assert!(SynchronizeResponse::decode(&synchronized.payload[..]).unwrap().more);
            let annotations = [(pods::ANNOTATION.to_owned(), "pod".to_owned())];
            let pod = PodSandbox { annotations: annotations.into(), ..Default::default() };
            let creation =
                CreateContainerRequest { pod: Some(pod), container: Some(Container::default()) };
            let created = runtime.call(5, "CreateContainer", creation.encode_to_vec());
            let response = CreateContainerResponse::decode(&created.payload[..]).unwrap();
            assert_eq!(response.adjust.unwrap().mounts[0].destination, "/usr/lib/sidestep");
            assert_eq!(runtime.call(7, "Shutdown", Vec::new()), Response::default());
        });
        assert_eq!(ended.unwrap(), Ended::HungUp);
    }

    #[test]
    fn a_call_that_it_does_not_know_or_understand_fails_alone() {
        let code = |response: Response| response.status.map(|it| it.code);
        let ended = conversation(|runtime| {
            runtime.register(None);
            assert_eq!(code(runtime.call(1, "Dance", Vec::new())), Some(Status::UNIMPLEMENTED));
            let nonsense = runtime.call(3, "CreateContainer", vec![0xff; 9]);
            assert_eq!(code(nonsense), Some(Status::INVALID_ARGUMENT));
            assert_eq!(code(runtime.call(5, "Configure", Vec::new())), None);
        });
        assert_eq!(ended.unwrap(), Ended::HungUp);
    }

    #[test]
    fn a_runtime_that_turns_it_away_ends_it() {
        let refusal = Status { code: 9, message: "no plugins today".to_owned() };
        let ended = conversation(|runtime| runtime.register(Some(refusal)));
        let error = ended.unwrap_err().to_string();
        assert_eq!(error, "the container runtime turns the plugin away: no plugins today");
    }

    #[test]
    fn the_library_is_put_in_the_place_of_an_earlier_one() {
        let place = tempfile::tempdir().unwrap();
        let (library, host) = (place.path().join("libsidestep.so"), place.path().join("host"));
        for content in ["one", "two"] {
            fs::write(&library, content).unwrap();
            let copied = copy(&library, &host).unwrap();
            assert_eq!(copied, host.join("libsidestep.so"));
            assert_eq!(fs::read_to_string(copied).unwrap(), content);
        }
        assert_eq!(fs::read_dir(&host).unwrap().count(), 1);
    }
}
