//! The check of the TCP option: does an agent write it, and could one?

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;

use sidestep_bpf::Cgroup;
use sidestep_wire::tcp_option::question;

use super::check::Check;

/// Is the option in use, or why not? Programs on one host find each other without it, so
/// nothing is wrong either way.
pub(super) fn check() -> Check {
    const NAME: &str = "TCP option";
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let finding = match (is_written(), lacking(&status)) {
        (true, _) => "`sidestep agent` writes it into SYN and SYN-ACK".to_owned(),
        (false, Some(lacking)) => {
            format!(
                "not used: no `sidestep agent` runs here, and this user cannot run it: {lacking}"
            )
        }
        (false, None) => "not used: no `sidestep agent` runs here".to_owned(),
    };
    Check::ok(NAME, finding)
}

/// Asks as the library does.
fn is_written() -> bool {
    let socket = TcpListener::bind("127.0.0.1:0").or_else(|_| TcpListener::bind("[::1]:0"));
    socket.is_ok_and(|socket| mark(&socket).is_ok())
}

fn mark(socket: &TcpListener) -> io::Result<()> {
    let value: libc::c_int = 0;
    // SAFETY: the kernel reads the given size, that of `value`, which lives until the call
    // returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            question::LEVEL,
            question::MARK,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What an agent of this user would lack, in words; `status` is that of `/proc/self`.
fn lacking(status: &str) -> Option<String> {
    /// Numbers of capabilities (`linux/capability.h`).
    const NEEDED: [(u32, &str); 2] = [(39, "CAP_BPF"), (12, "CAP_NET_ADMIN")];
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(effective.trim(), 16).ok()?;
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(number, _)| effective >> number & 1 == 0)
        .map(|(_, name)| *name)
        .collect();
    if missing.is_empty() {
        return Cgroup::root().err().map(|error| error.to_string());
    }
    Some(format!("it has no {}", missing.join(" and no ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        let status = |bits: u64| format!("Name:\tx\nCapEff:\t{bits:016x}\n");
        let both = "it has no CAP_BPF and no CAP_NET_ADMIN";
        assert_eq!(lacking(&status(0)).as_deref(), Some(both));
        assert_eq!(lacking(&status(1 << 12)).as_deref(), Some("it has no CAP_BPF"));
        assert_eq!(lacking(&status(1 << 39)).as_deref(), Some("it has no CAP_NET_ADMIN"));
        assert_eq!(lacking(""), None, "/proc does not tell");
    }
}
