//! The check of the agent: can programs of different users and network namespaces meet?

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketType};
use sidestep_socket::process::options::AGENT_SOCKET;
use sidestep_wire::tcp_option::{Identity, question};

use super::check::Check;
use crate::config::Configuration;

/// Two things are needed: an agent that tells which connection is which, and a socket at which to ask
/// for its other end. Within one namespace, for one user, neither is.
pub(super) fn check() -> Check {
    const NAME: &str = "agent";
    let socket = socket();
    let at = socket.display();
    match (is_identity_told(), call(&socket)) {
        (true, Ok(())) => {
            let who = "programs of different users and network namespaces";
            Check::ok(NAME, format!("{who} meet at {at}"))
        }
        (false, Err(_)) => {
            let only = "none, so programs meet within one network namespace only";
            Check::ok(NAME, only.to_owned())
        }
        (true, Err(error)) => Check::warn(
            NAME,
            format!("it is there, but {at} cannot be reached from here: {error}"),
            "mount the directory of the agent's socket into this container, or say by \
             smc.agent_socket where it is",
        ),
        (false, Ok(())) => Check::warn(
            NAME,
            format!(
                "it is at {at}, but nobody tells which connection is which: programs of \
                 different network namespaces stay on TCP"
            ),
            "run `sidestep agent` with CAP_BPF and CAP_NET_ADMIN, on Linux 5.18 or later, for a \
             control group that has these programs",
        ),
    }
}

fn socket() -> PathBuf {
    let configuration = Configuration::load(None, |name| std::env::var_os(name));
    let settings = configuration.ok().map(|configuration| configuration.settings);
    settings.and_then(|it| it.agent_socket).unwrap_or_else(|| AGENT_SOCKET.into())
}

/// Whether it answers at its socket.
pub(in crate::commands) fn call(socket: &Path) -> io::Result<()> {
    let line = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    Ok(net::connect(line, &SocketAddrUnix::new(socket)?)?)
}

/// Asks as the library does.
fn is_identity_told() -> bool {
    let connection = || {
        let listener =
            TcpListener::bind("127.0.0.1:0").or_else(|_| TcpListener::bind("[::1]:0"))?;
        TcpStream::connect(listener.local_addr()?)
    };
    let Ok(connection) = connection() else { return false };
    let answers: [i32; Identity::PARTS] =
        std::array::from_fn(|part| ask(&connection, question::IDENTITY + part as i32));
    Identity::from_answers(answers, false).is_some()
}

/// The error number that is the answer.
fn ask(connection: &TcpStream, what: i32) -> i32 {
    let value: libc::c_int = 0;
    // SAFETY: the kernel reads the given size, that of `value`, which lives until the call
    // returns.
    let result = unsafe {
        libc::setsockopt(
            connection.as_raw_fd(),
            question::LEVEL,
            what,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(0) }
}
