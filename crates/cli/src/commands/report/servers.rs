//! Who listens at a port of this host, and as which service.

use std::fs;

use super::advice::Server;
use crate::commands::why::host::Host;

/// The listeners of this network namespace.
pub(super) struct Servers(Option<Host>);

impl Servers {
    /// Where `/proc` does not say, no port has a server.
    pub(super) fn look() -> Self {
        Self(Host::look().ok())
    }

    pub(super) fn of(&self, port: u16) -> Vec<Server> {
        let listeners = self.0.iter().flat_map(|host| host.listeners(port));
        listeners
            .filter_map(|listener| listener.holder)
            .map(|holder| Server { unit: unit_of(holder.pid), program: holder.program })
            .collect()
    }
}

/// The service of systemd that a process belongs to.
fn unit_of(pid: u32) -> Option<String> {
    unit_in(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// The innermost control group that is a service of the system: `0::/system.slice/nginx.service`.
fn unit_in(groups: &str) -> Option<String> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let names = path.strip_prefix("/system.slice/")?.split('/').rev();
    names.into_iter().find(|name| name.ends_with(".service")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_of_the_system_are_told_by_their_control_group() {
        let unit = |path: &str| unit_in(&format!("1:name=x:/y.service\n0::{path}\n"));
        assert_eq!(unit("/system.slice/nginx.service").as_deref(), Some("nginx.service"));
        let instance = "/system.slice/system-redis.slice/redis@1.service/sub";
        assert_eq!(unit(instance).as_deref(), Some("redis@1.service"));
        assert_eq!(unit("/user.slice/user-0.slice/user@0.service/app"), None, "a user's");
        assert_eq!(unit("/"), None);
    }
}
