//! The checks of what connections to other hosts need: a gateway, its RDMA devices, the port of soft
//! RNICs, and memory that a device may write into.
//!
//! A host without a gateway lacks nothing: it talks SMC within itself. So only what stands in the way
//! of a gateway that runs, or of an RDMA device that is there, is a warning.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;

use sidestep_gateway::status::{Adapter, Status};

use super::check::Check;
use super::machine::{Limit, in_words};

/// Where the kernel lists RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";
/// Where it lists the descriptors by which they are used: beside them, `abi_version` and others.
const VERBS: &str = "/sys/class/infiniband_verbs";
/// Of RoCEv2, at which soft RNICs listen.
const ROCE_PORT: u16 = 4791;
/// A queue pair pins so much, and so do the buffers of some connections.
const PINNED_MIN_BYTES: u64 = 64 << 20;
/// `CAP_IPC_LOCK` of `linux/capability.h`.
const IPC_LOCK: u32 = 14;

/// All of them, in the order of the report.
pub(super) fn checks(locked_memory: Limit) -> Vec<Check> {
    let status = Status::ask();
    let devices = names(Path::new(DEVICES));
    vec![
        gateway(&status),
        rdma_devices(&devices, &unopenable()),
        roce_port(&status, bind()),
        locked(locked_memory, !devices.is_empty(), may_lock_any(&own_status())),
    ]
}

/// Is there a gateway, and does it serve this user?
fn gateway(status: &io::Result<Status>) -> Check {
    const NAME: &str = "gateway";
    match status {
        Ok(status) => {
            let up = status.adapters.iter().filter(|adapter| adapter.is_up).count();
            let links = status.links.len();
            let finding = format!("it runs; adapters that are up: {up}, links: {links}");
            match up {
                0 => Check::warn(
                    NAME,
                    finding,
                    "connections to other hosts stay on TCP: bring up the interface of an adapter \
                     (`sidestep devices`), or name a soft RNIC in smc-r.adapters (`soft:eth0`)",
                ),
                _ => Check::ok(NAME, finding),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Check::ok(NAME, "none, so connections to other hosts stay on TCP")
        }
        // It answers root and its own user; a library needs its greeting only.
        Err(error) if is_hang_up(error) => {
            Check::ok(NAME, "it runs; what it has it tells root and its own user")
        }
        Err(error) => Check::warn(
            NAME,
            format!("there is one that cannot be used: {error}"),
            "run the gateway as root, or as the user of the programs",
        ),
    }
}

/// It ends the line of who may not ask.
fn is_hang_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Are there devices that speak RDMA, and may this user open them?
fn rdma_devices(devices: &[String], unopenable: &[String]) -> Check {
    const NAME: &str = "rdma devices";
    match (devices, unopenable) {
        ([], _) => Check::ok(
            NAME,
            "none; a gateway uses soft RNICs that are named, by UDP (`smc-r.adapters`)",
        ),
        (devices, []) => Check::ok(NAME, devices.join(", ")),
        (devices, files) => Check::warn(
            NAME,
            format!("{}, but {} cannot be opened", devices.join(", "), files.join(", ")),
            "let the gateway's user open it for reading and writing, or run the gateway as root",
        ),
    }
}

/// Files of RDMA devices that this user may not open.
fn unopenable() -> Vec<String> {
    let names = names(Path::new(VERBS)).into_iter().filter(|name| name.starts_with("uverbs"));
    let paths = names.map(|name| format!("/dev/infiniband/{name}"));
    paths.filter(|path| File::options().read(true).write(true).open(path).is_err()).collect()
}

/// Can a soft RNIC have its port?
fn roce_port(status: &io::Result<Status>, bound: io::Result<()>) -> Check {
    const NAME: &str = "port 4791";
    let is_soft = |adapter: &Adapter| adapter.port.is_none();
    match (status, bound) {
        (Ok(status), _) if status.adapters.iter().any(is_soft) => {
            Check::ok(NAME, "the gateway's soft RNICs have it; a firewall has to let UDP in there")
        }
        (_, Ok(())) => Check::ok(NAME, "free for soft RNICs; a firewall has to let UDP in there"),
        (Err(error), Err(_)) if is_hang_up(error) => {
            Check::ok(NAME, "in use, as it is where a gateway has soft RNICs")
        }
        (_, Err(error)) => Check::warn(
            NAME,
            format!("a soft RNIC cannot have it: {error}"),
            "where rdma_rxe has it, name the device of `rdma link` in smc-r.adapters; otherwise end \
             who has it (`ss -uln sport = 4791`)",
        ),
    }
}

/// A socket that has the port at one address keeps the others from having it at all.
fn bind() -> io::Result<()> {
    let everywhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), ROCE_PORT);
    UdpSocket::bind(everywhere).map(drop)
}

/// Rings within the host are not locked. RDMA devices write into buffers that may not leave memory.
fn locked(limit: Limit, has_devices: bool, may_lock_any: bool) -> Check {
    const NAME: &str = "locked memory";
    let Some(bytes) = limit else { return Check::ok(NAME, "unlimited") };
    let limited = format!("limited to {}", in_words(bytes));
    match (has_devices, may_lock_any) {
        (_, true) => Check::ok(NAME, format!("{limited}, which CAP_IPC_LOCK overrides")),
        (true, false) if bytes < PINNED_MIN_BYTES => Check::warn(
            NAME,
            format!("{limited}: too little for a gateway of this user with an RDMA device"),
            "raise it: `ulimit -l unlimited` (systemd: LimitMEMLOCK=infinity), or give the gateway \
             CAP_IPC_LOCK",
        ),
        (true, false) => Check::ok(
            NAME,
            format!("{limited}; a gateway pins buffers of its RDMA devices within that"),
        ),
        (false, false) => Check::ok(
            NAME,
            format!(
                "{limited}; matters to programs that call mlockall, and to a gateway with RDMA \
                 devices, of which there are none"
            ),
        ),
    }
}

/// Whether this process may lock as much as it likes; `status` is that of `/proc/self`.
fn may_lock_any(status: &str) -> bool {
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> IPC_LOCK & 1 == 1)
}

fn own_status() -> String {
    fs::read_to_string("/proc/self/status").unwrap_or_default()
}

/// The names in a directory, none if it is not there.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::super::check::Status as Outcome;
    use super::*;

    fn adapter(port: Option<&str>, is_up: bool) -> Adapter {
        let json = serde_json::json!({
            "address": "10.0.0.1", "port": port, "roce": [2], "gid": "::ffff:10.0.0.1", "mac": "",
            "mtu": 1024, "vlan": 0, "pnet_id": null, "interface": "eth0", "is_up": is_up, "links": 0,
        });
        let mut json = json;
        let usage = serde_json::to_value(sidestep_gateway::status::Usage::default()).unwrap();
        json.as_object_mut().unwrap().extend(usage.as_object().unwrap().clone());
        serde_json::from_value(json).unwrap()
    }

    fn running(adapters: Vec<Adapter>) -> io::Result<Status> {
        Ok(Status { adapters, ..Status::default() })
    }

    fn of_kind<T>(kind: io::ErrorKind) -> io::Result<T> {
        Err(kind.into())
    }

    #[test]
    fn a_gateway_is_well_if_it_has_an_adapter_that_is_up() {
        let up = gateway(&running(vec![adapter(None, true), adapter(None, false)]));
        assert_eq!(
            (up.status, &*up.finding),
            (Outcome::Ok, "it runs; adapters that are up: 1, links: 0")
        );
        assert_eq!(gateway(&running(vec![adapter(None, false)])).status, Outcome::Warn);
        let none = gateway(&of_kind(io::ErrorKind::ConnectionRefused));
        assert!(none.status == Outcome::Ok && none.finding.starts_with("none"), "{none:?}");
        assert_eq!(gateway(&of_kind(io::ErrorKind::ConnectionReset)).status, Outcome::Ok);
        let strangers = gateway(&Err(io::Error::other("the gateway is of user 7")));
        assert!(strangers.status == Outcome::Warn && strangers.finding.ends_with("of user 7"));
    }

    #[test]
    fn devices_are_of_use_to_who_may_open_them() {
        let [device, file] = ["mlx5_0", "/dev/infiniband/uverbs0"].map(|it| vec![it.to_owned()]);
        assert_eq!(rdma_devices(&[], &[]).status, Outcome::Ok);
        assert_eq!(rdma_devices(&device, &[]).finding, "mlx5_0");
        let closed = rdma_devices(&device, &file);
        assert!(closed.status == Outcome::Warn && closed.finding.contains(&file[0]), "{closed:?}");
    }

    #[test]
    fn the_port_is_free_or_the_gateways_or_in_the_way() {
        let none = || of_kind(io::ErrorKind::ConnectionRefused);
        let taken = || of_kind(io::ErrorKind::AddrInUse);
        assert_eq!(roce_port(&none(), Ok(())).status, Outcome::Ok);
        assert_eq!(roce_port(&none(), taken()).status, Outcome::Warn);
        assert_eq!(roce_port(&running(vec![adapter(None, true)]), taken()).status, Outcome::Ok);
        assert_eq!(
            roce_port(&of_kind(io::ErrorKind::ConnectionReset), taken()).status,
            Outcome::Ok
        );
        let by_device = running(vec![adapter(Some("rxe0/1"), true)]);
        assert_eq!(roce_port(&by_device, taken()).status, Outcome::Warn);
    }

    #[test]
    fn what_may_be_locked_matters_where_there_is_a_device() {
        let little = Some(8 << 20);
        assert_eq!(locked(None, true, false).finding, "unlimited");
        assert_eq!(locked(little, true, false).status, Outcome::Warn);
        assert_eq!(locked(little, true, true).status, Outcome::Ok);
        assert_eq!(locked(Some(1 << 30), true, false).status, Outcome::Ok);
        let without = locked(little, false, false);
        assert!(
            without.status == Outcome::Ok && without.finding.contains("gateway"),
            "{without:?}"
        );
        assert!(may_lock_any("CapEff:\t0000000000004000\n") && !may_lock_any("CapEff:\t0\n"));
    }
}
