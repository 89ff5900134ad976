//! Server workers on another host, asked through `sidestep bench serve` there.

use std::io::{self, BufReader};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use thiserror::Error;

use super::protocol::{Answer, Hello, LINE_LEN_MAX, Request};
use crate::control::{Address, Job, Role, ServerSide, SideSample};
use crate::launch::{Limits, lines};
use crate::plan::Transport;

/// Has the server's workers started on another host.
#[derive(Debug)]
pub struct RemoteServers {
    /// As the user has written it.
    server: String,
    peer: SocketAddr,
    stream: TcpStream,
    answers: BufReader<TcpStream>,
    limits: Limits,
}

/// Why a server side does not serve.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum RemoteError {
    #[error("`{server}` is no address of a server: {reason}; give HOST:PORT")]
    BadAddress { server: String, reason: io::Error },
    #[error(
        "cannot reach the server side at {server}: {reason}; start it there by \
         `sidestep bench serve --listen {server}`"
    )]
    Unreachable { server: String, reason: io::Error },
    #[error("what listens at {server} is no `sidestep bench serve`: {reason}")]
    Stranger { server: String, reason: String },
    #[error("the server side at {server}: {text}")]
    Refused { server: String, text: String },
    #[error("the server side at {server} did not answer within {limit:?}; is the host alive?")]
    Silent { server: String, limit: Duration },
    #[error("the server side at {server} has ended the control connection: {reason}")]
    Gone { server: String, reason: String },
    #[error("{transport} connections do not leave a host: measure it without a server elsewhere")]
    OneHostOnly { transport: Transport },
}

impl From<RemoteError> for io::Error {
    fn from(error: RemoteError) -> Self {
        Self::other(error)
    }
}

impl RemoteServers {
    /// Connects to `HOST:PORT`; workers there are given as much time as `limits` say.
    ///
    /// # Errors
    /// It is not reachable, busy, or another program; the text says what to do.
    pub fn connect(server: &str, limits: &Limits) -> Result<Self, RemoteError> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        let addresses = server
            .to_socket_addrs()
            .map_err(|reason| RemoteError::BadAddress { server: server.to_owned(), reason })?;
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
                Ok(stream) => return Self::begin(server, stream, limits),
                Err(reason) => last = reason,
            }
        }
        Err(RemoteError::Unreachable { server: server.to_owned(), reason: last })
    }

    fn begin(server: &str, stream: TcpStream, limits: &Limits) -> Result<Self, RemoteError> {
        let cloned = stream.set_nodelay(true).and_then(|()| stream.try_clone());
        let (answers, peer) = cloned
            .and_then(|answers| Ok((BufReader::new(answers), stream.peer_addr()?)))
            .map_err(|reason| RemoteError::Unreachable { server: server.to_owned(), reason })?;
        let server = server.to_owned();
        let mut remote = Self { server, peer, stream, answers, limits: *limits };
        match remote.ask(&Request::Hello(Hello::ours()), limits.sample)? {
            Answer::Hello(hello) => hello.check().map_err(|text| remote.refused(text))?,
            other => return Err(remote.stranger(format!("it answers {other:?}"))),
        }
        Ok(remote)
    }

    /// One question, one answer. After an error that is not a refusal there is no
    /// telling what a later answer belongs to, so the connection ends.
    fn ask(&mut self, request: &Request, limit: Duration) -> Result<Answer, RemoteError> {
        let limit = limit + NETWORK_SLACK.min(limit);
        let asked = self
            .stream
            .set_read_timeout(Some(limit))
            .and_then(|()| self.stream.set_write_timeout(Some(limit)))
            .and_then(|()| lines::write(&mut self.stream, request))
            .map_err(lines::LineError::Io);
        let error = match asked.and_then(|()| lines::read(&mut self.answers, LINE_LEN_MAX)) {
            Ok(Some(Answer::Refused(text))) => return Err(self.refused(text)),
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => self.gone("it was closed there".to_owned()),
            Err(lines::LineError::Io(error)) if is_timeout(&error) => {
                RemoteError::Silent { server: self.server.clone(), limit }
            }
            Err(lines::LineError::Io(error)) => self.gone(error.to_string()),
            Err(error) => self.stranger(error.to_string()),
        };
        // It may be gone already.
        let _ = self.stream.shutdown(Shutdown::Both);
        Err(error)
    }

    /// Where clients on this host find a worker there: on the way that the control
    /// connection has taken.
    fn seen_from_here(&self, job: &Job, address: Address) -> Address {
        match (&job.role, address) {
            (Role::Server(Address::Tcp(wanted)), Address::Tcp(given))
                if wanted.ip().is_unspecified() =>
            {
                let mut here = self.peer;
                here.set_port(given.port());
                Address::Tcp(here)
            }
            (_, address) => address,
        }
    }

    fn refused(&self, text: String) -> RemoteError {
        RemoteError::Refused { server: self.server.clone(), text }
    }

    fn stranger(&self, reason: String) -> RemoteError {
        RemoteError::Stranger { server: self.server.clone(), reason }
    }

    fn gone(&self, reason: String) -> RemoteError {
        RemoteError::Gone { server: self.server.clone(), reason }
    }
}

impl ServerSide for RemoteServers {
    fn start(&mut self, transport: Transport, jobs: &[Job]) -> io::Result<Vec<Address>> {
        if transport == Transport::Unix {
            return Err(RemoteError::OneHostOnly { transport }.into());
        }
        let request = Request::Start { transport, jobs: jobs.to_vec() };
        match self.ask(&request, self.limits.listen)? {
            Answer::Started(addresses) if addresses.len() == jobs.len() => {
                let seen = |(job, address)| self.seen_from_here(job, address);
                Ok(jobs.iter().zip(addresses).map(seen).collect())
            }
            other => Err(self.stranger(format!("it answers {other:?}")).into()),
        }
    }

    fn sample(&mut self) -> io::Result<SideSample> {
        match self.ask(&Request::Sample, self.limits.sample)? {
            Answer::Sample(sample) => Ok(*sample),
            other => Err(self.stranger(format!("it answers {other:?}")).into()),
        }
    }

    fn stop(&mut self) -> io::Result<()> {
        match self.ask(&Request::Stop, self.limits.end)? {
            Answer::Stopped => Ok(()),
            other => Err(self.stranger(format!("it answers {other:?}")).into()),
        }
    }

    fn is_remote(&self) -> bool {
        true
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Until a host has to answer a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// What the way there and back may take beside what is asked for.
const NETWORK_SLACK: Duration = Duration::from_secs(5);
