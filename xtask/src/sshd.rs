//! What an OpenSSH server needs wherever it runs.

use std::fs;
use std::path::Path;

/// It runs itself again by the name it was started with, which has to be its whole path.
pub(crate) const PROGRAM: &str = "/usr/sbin/sshd";

/// Where Debian's sshd, started by root, locks up its unprivileged part. It is
/// there as soon as the service was started once.
const JAIL: &str = "/run/sshd";

/// The configuration of a server for whoever runs this, with the keys `host-key` and
/// `key` in `dir`.
pub(crate) fn config(port: u16, dir: &Path) -> String {
    // Absent where nobody starts services; if it cannot be made, sshd says so.
    let _ = fs::create_dir_all(JAIL);
    let dir = dir.display();
    format!(
        "ListenAddress 127.0.0.1:{port}\nHostKey {dir}/host-key\nPidFile none\n\
         AuthorizedKeysFile {dir}/key.pub\nStrictModes no\nPermitRootLogin yes\n\
         UsePAM no\nPasswordAuthentication no\nSubsystem sftp internal-sftp\n"
    )
}
