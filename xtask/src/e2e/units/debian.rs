//! `sidestep enable` for services as Debian ships them: its units, with all their restrictions, and programs that begin as root
//! and go on as another user.

use anyhow::{Result, bail, ensure};

use super::super::stage::Stage;
use super::machine::{AGENT, Machine};
use crate::suite::Lacking;

/// Unit, user, port, and a configuration with which it starts.
const SERVICES: [(&str, &str, u16, &str, &str); 3] = [
    (
        "redis-server",
        "redis",
        6379,
        "/etc/redis/redis.conf",
        "bind 127.0.0.1\nsave \"\"\ndir /var/lib/redis\n",
    ),
    (
        "nginx",
        "www-data",
        80,
        "/etc/nginx/nginx.conf",
        "user www-data;\npid /run/nginx.pid;\nevents {}\nhttp { server { listen 127.0.0.1:80; } }\n",
    ),
    ("memcached", "memcache", 11211, "/etc/memcached.conf", "-l 127.0.0.1\n-u memcache\n"),
];

/// They are enabled by one command, and connections of each one's user to each move.
pub(crate) fn debian(stage: &Stage<'_>) -> Result<String> {
    let machine = Machine::boot(stage)?;
    machine.run(&["umount", "/etc/sidestep/sidestep.toml"])?;
    machine.run(&["mkdir", "-p", "/var/lib/redis", "/var/log/nginx", "/var/lib/nginx"])?;
    for (unit, user, _, path, configuration) in SERVICES {
        if machine.run(&["systemctl", "cat", unit]).is_err() {
            bail!(Lacking(format!("{unit} of Debian is not installed")));
        }
        let make = "getent passwd \"$1\" || useradd --system --user-group \"$1\"";
        machine.run(&["sh", "-c", make, "sh", user])?;
        machine.write(path, configuration)?;
    }
    machine.run(&["chown", "redis:redis", "/var/lib/redis"])?;
    let units = SERVICES.map(|(unit, ..)| unit);
    machine.run(&[&["systemctl", "start", AGENT], &units[..]].concat())?;

    let enable = [&["enable", "--restart"], &units[..]].concat();
    // Its programs are in /usr and /lib only, and ours are in /usr/local here.
    let refused = machine.enter_and_be_refused(&enable)?;
    let advice = "can add: ExecPaths=/usr/local/lib/sidestep";
    ensure!(refused.contains("redis-server: NoExecPaths= forbids"), "{refused}");
    ensure!(refused.contains(advice), "{refused}");
    let local = |unit: &str, line: &str| {
        let path = format!("/etc/systemd/system/{unit}.service.d/local.conf");
        machine.write(&path, &format!("[Service]\n{line}\n"))?;
        machine.run(&["systemctl", "daemon-reload"])
    };
    local("redis-server", "ExecPaths=/usr/local/lib/sidestep")?;
    let advice = "can add: RestrictAddressFamilies=AF_NETLINK";
    let said = machine.enter_and_ask(&[&["enable"], &units[..]].concat())?;
    ensure!(said.matches(advice).count() == 2, "{said}");
    let refused = machine.enter_and_be_refused(&["enable", "--restart", "redis-server"])?;
    ensure!(refused.contains("a connection of redis to 127.0.0.1:6379 has moved"), "{refused}");
    let stayed = "a connection of www-data to 127.0.0.1:6379 stayed on TCP";
    ensure!(refused.contains(stayed), "{refused}");
    local("memcached", "RestrictAddressFamilies=AF_NETLINK")?;
    local("redis-server", "ExecPaths=/usr/local/lib/sidestep\nRestrictAddressFamilies=AF_NETLINK")?;

    let said = machine.enter_and_ask(&enable)?;
    for (unit, _, port, ..) in SERVICES {
        for (_, user, ..) in SERVICES {
            let moved = format!("a connection of {user} to 127.0.0.1:{port} has moved");
            ensure!(said.contains(&moved), "{unit}: {said}");
        }
    }
    let status = machine.run(&["sidestep", "status"])?;
    for (unit, user, ..) in SERVICES {
        let is_it = |line: &str| line.contains(unit) && line.contains(user);
        ensure!(status.lines().any(is_it), "{unit} of {user}: {status}");
    }
    let said = machine.enter_and_ask(&[&["disable", "--restart"], &units[..]].concat())?;
    ensure!(said.contains("share.pairs of /etc/sidestep/sidestep.toml still names"), "{said}");
    Ok(format!("{}, as Debian ships them", units.join(", ")))
}
