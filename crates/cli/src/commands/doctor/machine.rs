//! The checks of this machine: the library, the kernel's services, and the limits.
//!
//! Where it can, a check does what the library will do, in miniature, instead of asking for a
//! version: containers and sandboxes refuse calls that their kernel has.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::getuid;

use super::change::{Change, OpenFiles};
use super::check::Check;
use crate::accounts;
use crate::config::Configuration;
use crate::library::{self, PRELOAD_VARIABLE};
use crate::options::{Mode, OPTIONS_VARIABLE, Promotion, Settings};
use crate::pnet::Device;
use crate::words::listed;

/// All checks, in the order of the report.
pub(super) fn checks() -> Vec<Check> {
    let mut checks = vec![
        library(),
        configuration(),
        kernel(),
        memfd(),
        overcommit(),
        proc(),
        abstract_socket(),
        eventfd(),
        open_files(limit(libc::RLIMIT_NOFILE)).with_changes(more_open_files()),
        address_space(limit(libc::RLIMIT_AS)),
        file_size(limit(libc::RLIMIT_FSIZE)),
        cpus(),
    ];
    checks.extend(cpu_quota());
    checks.extend(seccomp());
    checks
}

/// Memory files and their address space are reserved by this much for each peer process.
const SLAB_RESERVED_BYTES: u64 = 4 << 30;

/// With less address space than this the library reserves nothing, and connections stay on TCP.
const ADDRESS_SPACE_MIN_BYTES: u64 = 16 << 30;

/// Programs that serve many connections need about this many descriptors.
const OPEN_FILES_MIN: u64 = 1024;

/// The first kernel with `SO_NETNS_COOKIE`, by which two processes know that they share a network.
const KERNEL_MIN: (u32, u32) = (5, 14);

/// Is the library there, and does the loader accept it?
fn library() -> Check {
    const NAME: &str = "library";
    let library = match library::find() {
        Ok(library) => library,
        Err(error) => return Check::fail(NAME, error.to_string(), error.advice()),
    };
    match load(&library) {
        Ok(()) => Check::ok(NAME, format!("{} loads", library.display())),
        Err(reason) => Check::fail(
            NAME,
            format!("{} does not load: {reason}", library.display()),
            "build or install it again, with the same C library as the programs use",
        ),
    }
}

/// Runs `sidestep --version` with the library preloaded. The loader goes on without a library
/// that it cannot load, but says so on standard error.
fn load(library: &Path) -> Result<(), String> {
    let options = Settings { mode: Some(Mode::Tcp), ..Settings::default() };
    let executable = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(executable)
        .arg("--version")
        .env(PRELOAD_VARIABLE, library::preload_value(library, None))
        .env(OPTIONS_VARIABLE, options.into_options().to_string())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    match complaint.lines().find(|line| line.contains("ld.so")) {
        Some(line) => Err(line.to_owned()),
        None if output.status.success() => Ok(()),
        None => Err(format!("a program preloaded with it ended with {}", output.status)),
    }
}

/// Are the configuration files in order, and do they want shared memory at all?
fn configuration() -> Check {
    const NAME: &str = "configuration";
    let configuration = match Configuration::load(None, |name| std::env::var_os(name)) {
        Ok(configuration) => configuration,
        Err(error) => {
            let advice = "correct the file; `sidestep run` refuses to start programs with it";
            return Check::fail(NAME, error.to_string(), advice);
        }
    };
    let files = configuration.files.iter().map(|(path, _)| path.display().to_string());
    let finding = match files.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "no file, so the defaults".to_owned(),
        files => files,
    };
    let options = configuration.settings.into_options();
    if options.mode == Mode::Tcp {
        let advice = "set smc.mode = \"smc\", or run with `--mode smc`";
        return Check::warn(NAME, format!("{finding}: the mode is tcp"), advice);
    }
    if options.promotion == Promotion::Never {
        let advice = "set smc.promotion to \"early\" or \"lazy\"";
        return Check::warn(NAME, format!("{finding}: the promotion is never"), advice);
    }
    let eligible = options.pnet.interfaces_of(Device::Ism);
    let here = interfaces(&fs::read_to_string("/proc/net/dev").unwrap_or_default());
    if !eligible.is_empty() && !eligible.iter().any(|one| here.contains(&one.to_string())) {
        let missing = listed(eligible, ", ");
        let finding =
            format!("{finding}: by [pnet] only what is on {missing} may move, and none is here");
        let advice = "list interfaces of the network namespace that the programs run in";
        return Check::warn(NAME, finding, advice);
    }
    Check::ok(NAME, finding)
}

/// The names in the table of network interfaces, two lines of head and one for each.
fn interfaces(table: &str) -> Vec<String> {
    let names = table.lines().filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

/// Is the kernel new enough, and does it tell network namespaces apart?
fn kernel() -> Check {
    const NAME: &str = "kernel";
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let (major, minor) = KERNEL_MIN;
    if version(release).is_some_and(|version| version < KERNEL_MIN) {
        return Check::fail(
            NAME,
            format!("Linux {release} is older than {major}.{minor}"),
            format!("use Linux {major}.{minor} or newer (Debian 12, Ubuntu 22.04, RHEL 9)"),
        );
    }
    match netns_cookie() {
        Ok(_) => Check::ok(NAME, format!("Linux {release}, with SO_NETNS_COOKIE")),
        Err(error) => Check::fail(
            NAME,
            format!("Linux {release}, but SO_NETNS_COOKIE does not work: {error}"),
            "a sandbox that imitates Linux (gVisor, for one) cannot be used; run outside it",
        ),
    }
}

/// The first two numbers of a kernel release such as `6.1.0-13-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

fn netns_cookie() -> io::Result<u64> {
    let socket = TcpListener::bind("127.0.0.1:0").or_else(|_| TcpListener::bind("[::1]:0"))?;
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `cookie`, and the length
    // itself; both live until the call returns.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    check(result).map(|_| cookie)
}

/// Can memory be shared as a file whose size cannot be changed afterwards?
fn memfd() -> Check {
    const NAME: &str = "memfd";
    match sealed_memfd() {
        Ok(()) => Check::ok(NAME, "memory files can be created and sealed"),
        Err(error) => Check::fail(
            NAME,
            format!("a sealed memory file cannot be made: {error}"),
            "allow memfd_create, ftruncate and fcntl(F_ADD_SEALS) in the sandbox or seccomp filter",
        ),
    }
}

fn sealed_memfd() -> io::Result<()> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string.
    let fd = check(unsafe { libc::memfd_create(c"sidestep-doctor".as_ptr(), flags) })?;
    // SAFETY: the descriptor is new and owned here alone.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(4096)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: F_ADD_SEALS takes an integer and touches no memory of ours.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    match file.set_len(0) {
        Err(_) => Ok(()),
        Ok(()) => Err(io::Error::other("the seals have no effect")),
    }
}

/// Does the kernel promise memory without counting?
fn overcommit() -> Check {
    const NAME: &str = "overcommit";
    let text = fs::read_to_string(OVERCOMMIT).unwrap_or_default();
    promises(NAME, text.trim())
}

/// Where the kernel says it.
const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";

fn promises(name: &'static str, mode: &str) -> Check {
    match mode {
        "2" => Check::fail(
            name,
            "vm.overcommit_memory is 2: all connections stay on TCP, because a touch of shared \
             memory could be refused by SIGBUS",
            "set vm.overcommit_memory to 0 or 1",
        ),
        _ => Check::ok(name, "memory is promised without being counted"),
    }
}

/// Is /proc there, with the descriptors of this process?
fn proc() -> Check {
    const NAME: &str = "proc";
    let reopen = || {
        let file = File::open("/proc/self/status")?;
        File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
    };
    match reopen() {
        Ok(_) => Check::ok(NAME, "/proc is mounted, and descriptors can be opened again"),
        Err(error) => Check::fail(
            NAME,
            format!("/proc/self/fd cannot be used: {error}"),
            "mount it: `mount -t proc proc /proc` (a chroot or container may lack it)",
        ),
    }
}

/// Can two processes of this network namespace find each other without a file?
fn abstract_socket() -> Check {
    const NAME: &str = "unix sockets";
    match datagram_round_trip() {
        Ok(()) => Check::ok(NAME, "abstract datagram sockets work"),
        Err(error) => Check::fail(
            NAME,
            format!("an abstract datagram socket does not work: {error}"),
            "allow AF_UNIX sockets (systemd: RestrictAddressFamilies=, AppArmor: unix rules)",
        ),
    }
}

fn datagram_round_trip() -> io::Result<()> {
    let name = format!("sidestep-doctor-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name)?;
    let receiver = UnixDatagram::bind_addr(&address)?;
    // A datagram to oneself is there at once; the limit is for a sandbox that loses it.
    receiver.set_read_timeout(Some(Duration::from_secs(1)))?;
    let sender = UnixDatagram::unbound()?;
    sender.send_to_addr(b"ping", &address)?;
    let mut received = [0; 8];
    match receiver.recv(&mut received)? {
        4 if received.starts_with(b"ping") => Ok(()),
        _ => Err(io::Error::other("another message arrived than was sent")),
    }
}

/// Can a sleeping process be woken?
fn eventfd() -> Check {
    const NAME: &str = "eventfd";
    match eventfd_round_trip() {
        Ok(()) => Check::ok(NAME, "doorbells work"),
        Err(error) => Check::fail(
            NAME,
            format!("an eventfd does not work: {error}"),
            "allow eventfd2 in the sandbox or seccomp filter",
        ),
    }
}

fn eventfd_round_trip() -> io::Result<()> {
    // SAFETY: eventfd takes two integers.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: the descriptor is new and owned here alone.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.write_all(&1u64.to_ne_bytes())?;
    let mut count = [0; 8];
    file.read_exact(&mut count)?;
    match u64::from_ne_bytes(count) {
        1 => Ok(()),
        _ => Err(io::Error::other("it counts wrong")),
    }
}

/// A soft resource limit of this process; `None` is unlimited.
pub(super) type Limit = Option<u64>;

pub(super) fn limit(resource: libc::__rlimit_resource_t) -> Limit {
    let limit = limits(resource);
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The hard limit, up to which a process may raise the soft one.
fn hard_limit(resource: libc::__rlimit_resource_t) -> Limit {
    let limit = limits(resource);
    (limit.rlim_max != libc::RLIM_INFINITY).then_some(limit.rlim_max)
}

fn limits(resource: libc::__rlimit_resource_t) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the kernel writes one `rlimit`, which lives until the call returns.
    unsafe { libc::getrlimit(resource, &raw mut limit) };
    limit
}

fn open_files(limit: Limit) -> Check {
    const NAME: &str = "open files";
    match limit {
        None => Check::ok(NAME, "unlimited"),
        Some(count) if count < OPEN_FILES_MIN => Check::warn(
            NAME,
            format!("at most {count}; the library needs two, and one for each peer process"),
            format!("raise it: `ulimit -n {OPEN_FILES_MIN}` or more (systemd: LimitNOFILE=)"),
        ),
        Some(count) => Check::ok(NAME, format!("at most {count}")),
    }
}

/// What raises the limit of the sessions of the user who asks, by `sudo` too. Only as far as the hard limit lets it, which is the
/// administrator's, and only if nothing has raised it in vain before.
fn more_open_files() -> Option<Change> {
    let is_too_low = limit(libc::RLIMIT_NOFILE).is_some_and(|count| count < OPEN_FILES_MIN);
    let may_be_raised = hard_limit(libc::RLIMIT_NOFILE).is_none_or(|count| count >= OPEN_FILES_MIN);
    if !is_too_low || !may_be_raised || !Path::new("/etc/security/limits.d").is_dir() {
        return None;
    }
    let user = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
    let user = accounts::known_name_of(user.unwrap_or_else(|| getuid().as_raw()))?;
    let change = OpenFiles { user, count: OPEN_FILES_MIN };
    (!change.is_made()).then_some(Change::RaiseOpenFiles(change))
}

fn address_space(limit: Limit) -> Check {
    const NAME: &str = "address space";
    let advice = "remove the limit: `ulimit -v unlimited` (systemd: LimitAS=infinity)";
    match limit {
        None => Check::ok(NAME, "unlimited"),
        Some(bytes) if bytes < ADDRESS_SPACE_MIN_BYTES => Check::fail(
            NAME,
            format!(
                "limited to {}; below {} connections stay on TCP",
                in_words(bytes),
                in_words(ADDRESS_SPACE_MIN_BYTES)
            ),
            advice,
        ),
        Some(bytes) => Check::warn(
            NAME,
            format!(
                "limited to {}: room for {} peer processes at most, the rest stays on TCP",
                in_words(bytes),
                bytes / SLAB_RESERVED_BYTES
            ),
            advice,
        ),
    }
}

fn file_size(limit: Limit) -> Check {
    const NAME: &str = "file size";
    match limit {
        None => Check::ok(NAME, "unlimited"),
        Some(bytes) if bytes < SLAB_RESERVED_BYTES => Check::fail(
            NAME,
            format!(
                "limited to {}, for memory files too; below {} connections stay on TCP",
                in_words(bytes),
                in_words(SLAB_RESERVED_BYTES)
            ),
            "remove the limit: `ulimit -f unlimited` (systemd: LimitFSIZE=infinity)",
        ),
        Some(bytes) => Check::ok(NAME, format!("limited to {}, which is enough", in_words(bytes))),
    }
}

/// How many CPUs may this process use?
fn cpus() -> Check {
    const NAME: &str = "cpus";
    match allowed_cpus() {
        Err(error) => Check::warn(
            NAME,
            format!("cannot be counted: {error}"),
            "allow sched_getaffinity in the sandbox or seccomp filter",
        ),
        Ok(1) => Check::warn(
            NAME,
            "1, so waits never spin and every message wakes its receiver",
            "let the programs use two or more (taskset, docker --cpuset-cpus)",
        ),
        Ok(count) => Check::ok(NAME, count.to_string()),
    }
}

fn allowed_cpus() -> io::Result<libc::c_int> {
    // SAFETY: a `cpu_set_t` is an array of integers, for which all zeroes are a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the given size, that of `set`; 0 is this thread.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    check(result)?;
    // SAFETY: CPU_COUNT only reads the set.
    Ok(unsafe { libc::CPU_COUNT(&set) })
}

/// Does a control group ration the CPU time? Nothing to say if there is no such group.
fn cpu_quota() -> Option<Check> {
    const NAME: &str = "cpu quota";
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    // Every group on the way up has its own quota; the smallest one binds.
    let least = root
        .join(group)
        .ancestors()
        .take_while(|directory| directory.starts_with(root))
        .filter_map(|directory| quota(&fs::read_to_string(directory.join("cpu.max")).ok()?))
        .reduce(f64::min);
    Some(match least {
        None => Check::ok(NAME, "none"),
        Some(cpus) if cpus < 2.0 => Check::warn(
            NAME,
            format!("{cpus:.2} CPUs; waits that spin use it up"),
            "raise cpu.max (docker --cpus) to 2 or more, or set smc.spin = \"never\"",
        ),
        Some(cpus) => Check::ok(NAME, format!("{cpus:.2} CPUs")),
    })
}

/// The CPUs that a `cpu.max` such as `150000 100000` amounts to; `None` is no quota.
fn quota(cpu_max: &str) -> Option<f64> {
    let mut words = cpu_max.split_whitespace();
    let quota: f64 = words.next()?.parse().ok()?;
    let period: f64 = words.next()?.parse().ok()?;
    Some(quota / period)
}

/// Is a system-call filter active? Nothing to say if /proc does not tell.
fn seccomp() -> Option<Check> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"))?;
    let trusts = Configuration::load(None, |name| std::env::var_os(name))
        .is_ok_and(|configuration| configuration.settings.trust_filters == Some(true));
    Some(judge_filter(mode.trim() != "0", trusts))
}

/// A filter is left to all that is begun under it.
fn judge_filter(is_active: bool, trusts: bool) -> Check {
    const NAME: &str = "seccomp";
    match (is_active, trusts) {
        (false, _) => Check::ok(NAME, "no filter"),
        // The checks above went through the same filter, so it has shown what it refuses.
        (true, true) => Check::ok(
            NAME,
            "a filter is active, under which the checks above ran; policy.trust_filters says that it \
             lets all pass",
        ),
        (true, false) => Check::warn(
            NAME,
            "a filter is active: programs that begin under it stay on TCP",
            "if all checks above are well, the filter lets Sidestep's calls pass, as the default \
             profiles of Docker and Podman do: set policy.trust_filters = true",
        ),
    }
}

/// The error that the C library reports by a negative result.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

pub(super) fn in_words(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Status;
    use super::*;

    #[test]
    fn kernel_releases_are_compared_by_two_numbers() {
        assert_eq!(version("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(version("5.14"), Some((5, 14)));
        assert!(version("5.9.1") < version("5.14.0"));
        assert_eq!(version(""), None);
    }

    #[test]
    fn interfaces_are_named_before_their_figures() {
        let table = "Inter-|   Receive\n face |bytes packets\n    lo: 9 1\n  eth0:12 1\n";
        assert_eq!(interfaces(table), ["lo", "eth0"]);
    }

    #[test]
    fn quotas_are_fractions_of_cpus() {
        assert_eq!(quota("150000 100000\n"), Some(1.5));
        assert_eq!(quota("max 100000\n"), None);
        assert_eq!(quota(""), None);
    }

    #[test]
    fn limits_warn_or_fail_when_they_bind() {
        assert_eq!(open_files(Some(1023)).status, Status::Warn);
        assert_eq!(open_files(Some(1024)).status, Status::Ok);
        assert_eq!(address_space(None).status, Status::Ok);
        let small = address_space(Some(ADDRESS_SPACE_MIN_BYTES - 1));
        assert_eq!(small.status, Status::Fail);
        let large = address_space(Some(64 << 30));
        assert_eq!(large.status, Status::Warn);
        assert!(large.finding.contains("16 peer processes"), "{}", large.finding);
        assert_eq!(file_size(Some(SLAB_RESERVED_BYTES - 1)).status, Status::Fail);
        assert_eq!(file_size(Some(SLAB_RESERVED_BYTES)).status, Status::Ok);
    }

    #[test]
    fn a_filter_is_in_the_way_unless_it_is_trusted() {
        let status = |is_active, trusts| judge_filter(is_active, trusts).status;
        assert_eq!([status(false, false), status(true, true)], [Status::Ok; 2]);
        let warning = judge_filter(true, false);
        assert_eq!(warning.status, Status::Warn);
        assert!(warning.advice.unwrap().contains("policy.trust_filters"));
    }

    #[test]
    fn sizes_are_written_in_the_largest_unit() {
        assert_eq!(in_words(4 << 30), "4 GiB");
        assert_eq!(in_words(1536), "1.5 KiB");
        assert_eq!(in_words(1000), "1000 bytes");
    }
}
