//! Programs that carry files: OpenSSH and FTP.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use super::site::Site;
use crate::bench::launch::{self, Program};
use crate::sshd;

// ---- OpenSSH -----------------------------------------------------------------

/// What scp carries there and back.
const SCP_LEN: usize = 1 << 30;

/// Any code that ssh does not use itself.
const REMOTE_CODES: [u8; 3] = [0, 1, 37];

pub(crate) fn openssh(site: &Site<'_>) -> Result<String> {
    let (port, mut server) = sshd(site)?;
    let options = client_options(site, port);
    let ssh = format!("ssh {options} 127.0.0.1");
    for code in REMOTE_CODES {
        site.run(&["bash", "-c", &format!("{ssh} 'exit {code}'; [ $? = {code} ]")])?;
    }
    let said = site.run(&["bash", "-c", &format!("{ssh} 'cat; echo end' <<< beginning")])?;
    ensure!(said == "beginning\nend\n", "the remote command said {said:?}");

    let from = site.write_random("from", SCP_LEN)?;
    let (there, back) = (site.path("there"), site.path("back"));
    site.run(&["bash", "-c", &format!("scp -q {options} {from} 127.0.0.1:{there}")])?;
    site.run(&["bash", "-c", &format!("scp -q {options} 127.0.0.1:{there} {back}")])?;
    site.prepare(&["cmp", &from, &back])?;
    server.must_be_alive()?;
    let codes = REMOTE_CODES.len();
    Ok(format!("{codes} exit codes, {SCP_LEN} bytes there and back by scp and compared"))
}

/// A server with keys of its own, for whoever runs this.
fn sshd(site: &Site<'_>) -> Result<(u16, Program)> {
    let port = launch::free_port()?;
    for key in ["host-key", "key"] {
        site.prepare(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", &site.path(key)])?;
    }
    let config = site.write("sshd_config", sshd::config(port, Path::new(&site.path(""))))?;
    Ok((port, site.serve(port, &[sshd::PROGRAM, "-D", "-e", "-f", &config])?))
}

fn client_options(site: &Site<'_>, port: u16) -> String {
    let key = site.path("key");
    format!(
        "-F none -o Port={port} -o IdentityFile={key} -o IdentitiesOnly=yes -o LogLevel=ERROR \
         -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    )
}

// ---- FTP ---------------------------------------------------------------------

const BINARY_LEN: usize = 100_000_000;

const TEXT_LINES: u32 = 500_000;

pub(crate) fn vsftpd(site: &Site<'_>) -> Result<String> {
    let port = launch::free_port()?;
    let server = site.serve(port, &["vsftpd", &vsftpd_config(site, port)?])?;
    put_and_get(site, port, server)
}

/// It bounds its memory, which has to be the program's still.
pub(crate) fn pure_ftpd(site: &Site<'_>) -> Result<String> {
    let port = launch::free_port()?;
    site.write("ftp/upload/.keep", "")?;
    let (root, users, database) = (site.path("ftp"), site.path("users"), site.path("database"));
    site.prepare(&["chown", "-R", "nobody", &root])?;
    let user = format!("pure-pw useradd visitor -f {users} -u nobody -d {root} -m -F {database}");
    site.prepare(&["bash", "-c", &format!("printf 'secret\nsecret\n' | {user}")])?;
    let (address, login) = (format!("127.0.0.1,{port}"), format!("puredb:{database}"));
    let words = ["pure-ftpd", "-4", "-H", "-A", "-S", &address, "-l", &login];
    let mut server = site.serve(port, &words)?;
    let there = format!("ftp://visitor:secret@127.0.0.1:{port}/upload/binary");
    site.write_random("binary", BINARY_LEN)?;
    site.run(&["curl", "-sS", "--fail", "-T", "binary", &there])?;
    site.run(&["curl", "-sS", "--fail", "-o", "back", &there])?;
    site.must_be_equal("back", "binary")?;
    server.must_be_alive()?;
    Ok("a login, 1 file put and got by curl, and compared".to_owned())
}

pub(crate) fn pyftpdlib(site: &Site<'_>) -> Result<String> {
    let port = launch::free_port()?;
    site.write("ftp/upload/.keep", "")?;
    let (text, root) = (port.to_string(), site.path("ftp"));
    let words = ["python3", "-m", "pyftpdlib", "-w", "-i", "127.0.0.1", "-d", &root, "-p", &text];
    let server = site.serve(port, &words)?;
    put_and_get(site, port, server)
}

fn put_and_get(site: &Site<'_>, port: u16, mut server: Program) -> Result<String> {
    site.write_random("binary", BINARY_LEN)?;
    let text: String = (0..TEXT_LINES).map(|n| format!("line {n} of a long text\n")).collect();
    site.write("text", text)?;
    with_lftp(site, port)?;
    with_curl(site, port)?;
    server.must_be_alive()?;
    Ok("4 files put and got, binary and ASCII, by lftp and curl, and compared".to_owned())
}

/// Anonymous visitors may read and write one folder; nobody else may come in.
fn vsftpd_config(site: &Site<'_>, port: u16) -> Result<String> {
    site.write("ftp/upload/.keep", "")?;
    let root = site.path("ftp");
    site.write(
        "vsftpd.conf",
        format!(
            "listen=YES\nbackground=NO\nlisten_address=127.0.0.1\nlisten_port={port}\n\
             run_as_launching_user=YES\nanonymous_enable=YES\nno_anon_password=YES\n\
             anon_root={root}\nwrite_enable=YES\nanon_upload_enable=YES\nanon_umask=022\n\
             anon_world_readable_only=NO\n\
             ascii_upload_enable=YES\nascii_download_enable=YES\npasv_address=127.0.0.1\n"
        ),
    )
}

fn with_lftp(site: &Site<'_>, port: u16) -> Result<()> {
    let script = format!(
        "set net:max-retries 1; set net:timeout 30; open -p {port} 127.0.0.1; \
         put binary -o upload/binary; get upload/binary -o binary-back; \
         put -a text -o upload/text; get -a upload/text -o text-back; exit"
    );
    site.run(&["lftp", "--norc", "-c", &script])?;
    compare(site)
}

fn with_curl(site: &Site<'_>, port: u16) -> Result<()> {
    let url = format!("ftp://127.0.0.1:{port}/upload");
    for (file, mode) in [("binary", &[][..]), ("text", &["--use-ascii"])] {
        let (there, back) = (format!("{url}/curl-{file}"), format!("{file}-back"));
        let curl = ["curl", "-sS", "--fail"];
        site.run(&[&curl, mode, &["-T", file, &there]].concat())?;
        site.run(&[&curl, mode, &["-o", &back, &there]].concat())?;
    }
    compare(site)
}

fn compare(site: &Site<'_>) -> Result<()> {
    for file in ["binary", "text"] {
        let back = format!("{file}-back");
        site.must_be_equal(&back, file)?;
        fs::remove_file(site.path(&back))?;
    }
    Ok(())
}
