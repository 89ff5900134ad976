//! CPython's own tests of sockets, event loops, and the protocols of its library.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Part, Suite, Verdicts, junit, version_of};
use crate::debian;

pub(super) const NAME: &str = "cpython";

const PACKAGE: &str = "libpython3.11-testsuite";
const PYTHON: &str = "/usr/bin/python3.11";

/// Modules that take seconds, and have sockets as their subject or many connections that
/// move.
const SHORT: &[&str] = &[
    "test_epoll",
    "test_socketserver",
    "test_asyncio.test_sendfile",
    "test_ftplib",
    "test_poplib",
];

const LONG: &[&str] = &[
    "test_socket",
    "test_poll",
    "test_select",
    "test_selectors",
    "test_asyncore",
    "test_asyncio.test_buffered_proto",
    "test_asyncio.test_events",
    "test_asyncio.test_server",
    "test_asyncio.test_sock_lowlevel",
    "test_asyncio.test_sslproto",
    "test_asyncio.test_ssl",
    "test_asyncio.test_streams",
    "test_ssl",
    "test_imaplib",
    "test_smtplib",
    "test_telnetlib",
    "test_httplib",
    "test_httpservers",
    "test_urllib2_localnet",
    "test_xmlrpc",
    "test_multiprocessing_fork",
    "test_multiprocessing_spawn",
    "test_signal",
    "test_subprocess",
];

/// Of `multiprocessing` those tests that have connections; the others take minutes.
const WITH_CONNECTIONS: [&str; 5] =
    ["*Connection*", "*Listener*", "*Manager*", "*Picklable*", "*Wait*"];

/// Nobody answers in the virtual sockets of a machine without its host's help: the
/// tests wait for ever, plain as well.
const NOT_HERE: &str = "*VSOCK*";

/// The file in which the results of a module are left.
const RESULTS: &str = "results.xml";

pub(super) fn suite(scratch: &Path, short: bool) -> Result<Suite> {
    debian::ensure(&[PACKAGE])?;
    let long = if short { &[][..] } else { LONG };
    let parts = SHORT.iter().chain(long).map(|module| part(module, scratch)).collect();
    Ok(Suite { name: "CPython", version: version_of(PACKAGE)?, parts })
}

fn part(module: &str, scratch: &Path) -> Part {
    // Without the "network" some modules refuse to open a socket at all.
    let mut arguments = vec!["-m", "test", "-u", "network", "--ignore", NOT_HERE];
    if module.starts_with("test_multiprocessing") {
        arguments.extend(WITH_CONNECTIONS.iter().flat_map(|pattern| ["--match", pattern]));
    }
    arguments.push(module);
    Part {
        name: module.to_owned(),
        program: PathBuf::from(PYTHON),
        arguments: arguments.into_iter().map(str::to_owned).collect(),
        directory: scratch.to_owned(),
        user: None,
        read,
        results: Some(|directory| {
            vec!["--junit-xml".to_owned(), directory.join(RESULTS).display().to_string()]
        }),
    }
}

/// Reads the file of results, which has an element for each test that began.
fn read(_printed: &str, directory: &Path) -> Verdicts {
    // Absent if the interpreter died: then no test has a result.
    junit::parse(&std::fs::read_to_string(directory.join(RESULTS)).unwrap_or_default())
}
