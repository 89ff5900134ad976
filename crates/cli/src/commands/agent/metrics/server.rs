//! Who asks, and what he gets: HTTP for one path, in one thread.
//!
//! Every user of the host may connect to a loopback address, so no client is trusted with
//! more than a moment: a connection has one answer and so many seconds, and there are only so
//! many at a time. The one that came first makes room for the next, so a client that leaves
//! connections lying does not keep others out for longer than he goes on opening new ones.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::TEXT_FORMAT;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{AbortHandle, LocalSet};
use tokio::time;

use super::super::socket_file::{NoSocket, SocketFile, make_room};
use super::collector::Collector;
use crate::metrics_address::MetricsAddress;

/// Why no client can ask.
#[derive(Debug, Error)]
pub(in crate::commands::agent) enum ListenError {
    #[error(
        "{0} is in use: another agent, or another program, listens there; end it, or use another \
         address"
    )]
    InUse(MetricsAddress),
    #[error("{}: {}", .0.display(), NoSocket)]
    NoSocket(PathBuf),
    #[error("cannot listen at {0}: {1}")]
    Refused(MetricsAddress, io::Error),
}

/// An address that is ours.
pub(in crate::commands::agent) struct Listener {
    socket: Socket,
    /// The file to remove when this ends.
    path: Option<SocketFile>,
}

enum Socket {
    Tcp(std::net::TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Takes the address, if no other program has it.
    ///
    /// # Errors
    ///
    /// Another program has it, or the system refuses it.
    pub(in crate::commands::agent) fn bind(address: &MetricsAddress) -> Result<Self, ListenError> {
        let (socket, path) = match address {
            MetricsAddress::Tcp(address) => {
                (std::net::TcpListener::bind(address).map(Socket::Tcp), None)
            }
            MetricsAddress::Unix(path) => {
                make_room(path).map_err(|_| ListenError::NoSocket(path.clone()))?;
                (bind_unix(path).map(Socket::Unix), Some(path.clone()))
            }
        };
        match socket {
            Ok(socket) => Ok(Self { socket, path: path.map(SocketFile) }),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                Err(ListenError::InUse(address.clone()))
            }
            Err(error) => Err(ListenError::Refused(address.clone(), error)),
        }
    }

    /// The file of the socket, which the thread that serves cannot remove: it does not live to
    /// see the end.
    pub(in crate::commands::agent) fn take_path(&mut self) -> Option<SocketFile> {
        self.path.take()
    }
}

/// Its owner and group may ask.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// Waits for those who ask.
pub(super) struct Server {
    runtime: Runtime,
    listener: Listener,
}

impl Server {
    pub(super) fn new(listener: Listener) -> io::Result<Self> {
        match &listener.socket {
            Socket::Tcp(socket) => socket.set_nonblocking(true)?,
            Socket::Unix(socket) => socket.set_nonblocking(true)?,
        }
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        Ok(Self { runtime, listener })
    }

    /// Answers until the process ends.
    pub(super) fn run(self, collector: Collector) {
        let clients =
            Clients { collector: Rc::new(RefCell::new(collector)), open: VecDeque::new() };
        let served = LocalSet::new().block_on(&self.runtime, async {
            match self.listener.socket {
                Socket::Tcp(socket) => {
                    let socket = tokio::net::TcpListener::from_std(socket)?;
                    clients.serve(async || Ok(socket.accept().await?.0)).await
                }
                Socket::Unix(socket) => {
                    let socket = tokio::net::UnixListener::from_std(socket)?;
                    clients.serve(async || Ok(socket.accept().await?.0)).await
                }
            }
        });
        match served {
            Ok(never) => match never {},
            Err::<_, io::Error>(error) => log::error!("metrics are not told any more: {error}"),
        }
    }
}

/// Those who ask at the moment.
struct Clients {
    collector: Rc<RefCell<Collector>>,
    /// The oldest first.
    open: VecDeque<AbortHandle>,
}

impl Clients {
    async fn serve<S>(mut self, accept: impl AsyncFn() -> io::Result<S>) -> io::Result<Infallible>
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        loop {
            match time::timeout(IDLE, accept()).await {
                Ok(Ok(stream)) => self.admit(stream),
                Ok(Err(error)) => {
                    log::warn!("nobody can ask for metrics at the moment: {error}");
                    time::sleep(PAUSE).await;
                }
                Err(_) => self.collector.borrow_mut().rest(),
            }
        }
    }

    fn admit(&mut self, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
        self.open.retain(|client| !client.is_finished());
        if self.open.len() == CLIENTS_MAX
            && let Some(oldest) = self.open.pop_front()
        {
            oldest.abort();
        }
        let collector = Rc::clone(&self.collector);
        let answered = async move {
            let answer = service_fn(async |request: Request<Incoming>| {
                Ok::<_, Infallible>(answer(&request, &mut collector.borrow_mut()))
            });
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).keep_alive(false).max_buf_size(REQUEST_MAX);
            http.serve_connection(TokioIo::new(stream), answer).await
        };
        let client = tokio::task::spawn_local(async {
            match time::timeout(PATIENCE, answered).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => log::debug!("a client's request: {error}"),
                Err(_) => log::debug!("a client was too slow"),
            }
        });
        self.open.push_back(client.abort_handle());
    }
}

fn answer<B>(request: &Request<B>, collector: &mut Collector) -> Response<Full<Bytes>> {
    let plain = |status, text: &'static str| {
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "the metrics are at /metrics\n");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
        response.headers_mut().insert(ALLOW, "GET, HEAD".parse().expect("a list of names"));
        return response;
    }
    match collector.scrape() {
        Ok(text) => {
            let mut response = Response::new(Full::from(text.as_bytes().to_vec()));
            let kind = TEXT_FORMAT.parse().expect("a constant of visible characters");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        Err(error) => {
            log::error!("cannot list the processes: {error}");
            plain(StatusCode::INTERNAL_SERVER_ERROR, "the processes cannot be listed\n")
        }
    }
}

/// Connections at a time. A Prometheus, its twin and an operator with curl are three.
const CLIENTS_MAX: usize = 16;

/// For the whole of a connection: Prometheus itself waits for 10 s.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest head of a request; the least that the library takes.
const REQUEST_MAX: usize = 8192;

/// Before the next try when no connection can be accepted, for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Without a connection for so long there is no reader, and no memory is kept for one. Intervals
/// of scraping are minutes at most.
const IDLE: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    /// A server at a port of its own, until the tests end.
    fn serve() -> SocketAddr {
        let any = MetricsAddress::Tcp("127.0.0.1:0".parse().unwrap());
        let listener = Listener::bind(&any).unwrap();
        let Socket::Tcp(socket) = &listener.socket else { unreachable!("bound to a port") };
        let address = socket.local_addr().unwrap();
        super::super::start(listener).unwrap();
        address
    }

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        // A server that closes before it has read all of it resets the connection.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

    #[test]
    fn one_path_is_answered_once() {
        let address = serve();
        let answer = ask(address, GET);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("content-type: text/plain; version=0.0.4\r\n"), "{answer}");
        assert!(answer.contains("\nsidestep_build_info{version="), "{answer}");
        // `ask` has read to the end of file: one answer for a connection, asked for or not.
        assert!(answer.contains("connection: close\r\n"), "{answer}");
        let head = ask(address, b"HEAD /metrics HTTP/1.0\r\n\r\n");
        assert!(head.contains(" 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        let elsewhere = ask(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(elsewhere.contains(" 404 ") && elsewhere.contains("/metrics"), "{elsewhere}");
        let post = ask(address, b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
        assert!(post.contains(" 405 ") && post.contains("allow: GET, HEAD\r\n"), "{post}");
    }

    #[test]
    fn who_leaves_connections_lying_keeps_nobody_out() {
        let address = serve();
        let begin = |n: usize| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&GET[..n % GET.len()]).unwrap();
            stream
        };
        let mut lying: Vec<_> = (0..4 * CLIENTS_MAX).map(begin).collect();
        assert!(ask(address, GET).contains(" 200 OK\r\n"));
        // The first were sent away.
        let mut nothing = Vec::new();
        let _ = lying[0].read_to_end(&mut nothing);
        assert!(nothing.is_empty());
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let address = serve();
        let endless = [GET.split_at(GET.len() - 2).0, &b"x: y\r\n".repeat(10_000)].concat();
        for garbage in [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"\r\n\r\n\r\n\0", &endless] {
            let answer = ask(address, garbage);
            assert!(!answer.contains(" 200 "), "{answer}");
        }
        assert!(ask(address, GET).contains(" 200 OK\r\n"));
    }

    #[test]
    fn an_address_belongs_to_one_agent() {
        let first = serve();
        let Err(error) = Listener::bind(&MetricsAddress::Tcp(first)) else { panic!("two at once") };
        assert!(error.to_string().contains("another agent"), "{error}");

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics");
        let address = MetricsAddress::Unix(path.clone());
        let mut first = Listener::bind(&address).unwrap();
        assert!(matches!(Listener::bind(&address), Err(ListenError::InUse(_))));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        // One that was killed leaves the file behind.
        std::mem::forget(first.take_path());
        drop(first);
        let second = Listener::bind(&address).unwrap();
        drop(second);
        assert!(!path.exists());

        fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&address), Err(ListenError::NoSocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }
}
