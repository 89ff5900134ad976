//! Files by FTP: pyftpdlib, one event loop that sends by `sendfile`, and curl.
//!
//! By `sendfile` TCP passes on references to the file's pages, which the receiver copies; into a ring they are copied
//! first. So the server's CPU time is more than TCP's, and what counts is the sum of both ends. In ASCII the server
//! reads and translates in Python, and both ways it is that which takes the time.

use std::fs::{self, File};
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::lab::Lab;
use super::launch::{self, Transport};

/// A binary file: a gigabyte.
const BINARY_LEN: u64 = 1 << 30;
/// A text, of short lines.
const TEXT_LEN: u64 = 100 << 20;
const LINE: &str = "a line of a text as long as a page of a book is wide, and no more\n";

/// Debian's Python, whose packages these are; another one may come before it on PATH.
const PYTHON: &str = "/usr/bin/python3";

/// For a GET, a PUT, and a GET in ASCII: gigabytes per second, and CPU seconds of both ends for a gigabyte.
pub(super) fn transfers(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    prepare(lab)?;
    let (port, root) = (launch::free_port()?, lab.path("ftp"));
    let text = port.to_string();
    let words = [PYTHON, "-m", "pyftpdlib", "-w", "-i", "127.0.0.1", "-d", &root, "-p", &text];
    let mut server = lab.serve(port, lab.command(transport, &words)?)?;

    let address = |file: &str| format!("ftp://127.0.0.1:{port}/{file}");
    let (binary, back, ascii) = (address("binary"), address("back"), address("text"));
    let (from, nowhere) = (lab.path("ftp/binary"), "/dev/null");
    let transfers = [
        (vec!["-o", nowhere, &binary], BINARY_LEN),
        (vec!["-T", &from, &back], BINARY_LEN),
        (vec!["--use-ascii", "-o", nowhere, &ascii], TEXT_LEN),
    ];
    let mut figures = Vec::new();
    for (words, len) in transfers {
        let curl = [&["curl", "--silent", "--show-error"], &words[..]].concat();
        let client: Command = lab.command(transport, &curl)?;
        let start = Instant::now();
        let counted = lab.run_counted(client, &[&server])?;
        let gigabytes = len as f64 / 1e9;
        figures.push(gigabytes / start.elapsed().as_secs_f64());
        figures.push(counted.cpu_s / gigabytes);
    }
    server.must_be_alive()?;
    let back = lab.scratch.join("ftp/back");
    ensure!(fs::metadata(&back)?.len() == BINARY_LEN, "what was put is not as long as the file");
    fs::remove_file(back)?;
    Ok(figures)
}

/// Makes the files unless they are there.
fn prepare(lab: &Lab) -> Result<()> {
    if lab.scratch.join("ftp/text").exists() {
        return Ok(());
    }
    // Holes take no disk space, and are pages of zeroes to who sends them.
    let binary = lab.write("ftp/binary", "")?;
    File::options().write(true).open(binary)?.set_len(BINARY_LEN)?;
    // Written last: then all is there.
    let lines = TEXT_LEN as usize / LINE.len();
    let text = LINE.repeat(lines) + &LINE[..TEXT_LEN as usize % LINE.len()];
    lab.write("ftp/text", text)?;
    Ok(())
}
