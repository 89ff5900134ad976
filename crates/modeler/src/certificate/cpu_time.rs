//! CPU time of the whole machine, as the kernel accounts for it.

use std::{fs, io};

use crate::control::MachineCpu;
use crate::worker::resources::usage_of;

/// CPU time of all CPUs of this host since its start, in steps of a clock tick
/// (mostly 10 ms).
///
/// # Errors
/// `/proc/stat` cannot be read or understood.
pub fn machine_cpu() -> io::Result<MachineCpu> {
    let stat = fs::read_to_string("/proc/stat")?;
    // SAFETY: takes and returns numbers.
    let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let tick_us =
        u64::try_from(ticks_per_second).ok().and_then(|ticks| 1_000_000u64.checked_div(ticks));
    let understood = tick_us.and_then(|tick_us| parse(&stat, tick_us));
    understood.ok_or_else(|| io::Error::other("/proc/stat has no line `cpu` with eight numbers"))
}

/// CPU time that this process has used so far, with all children that have ended and
/// were waited for, in microseconds: a coordinator's own and that of its workers.
#[must_use]
pub fn own_cpu_us() -> u64 {
    let used = usage_of(libc::RUSAGE_SELF) + usage_of(libc::RUSAGE_CHILDREN);
    used.user_us + used.system_us
}

/// *Source*: `proc_stat(5)`. Guests' time, the ninth and tenth number, is part of
/// the first two.
fn parse(stat: &str, tick_us: u64) -> Option<MachineCpu> {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> =
        all.split_ascii_whitespace().take(8).map(|n| n.parse().ok()).collect::<Option<_>>()?;
    let [user, nice, system, idle, io_wait, irq, soft_irq, steal] = ticks.try_into().ok()?;
    Some(MachineCpu {
        busy_us: (user + nice + system + irq + soft_irq) * tick_us,
        idle_us: (idle + io_wait) * tick_us,
        steal_us: steal * tick_us,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_first_line_has_all_cpus() {
        let stat =
            "cpu  1 20 300 4000 50000 600000 7000000 80000000 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        let cpu = parse(stat, 10).unwrap();
        assert_eq!(cpu.busy_us, 76_003_210);
        assert_eq!((cpu.idle_us, cpu.steal_us), (540_000, 800_000_000));
    }

    #[test]
    fn anything_else_is_not_understood() {
        for stat in ["", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3 4 5 6 7", "cpu  1 2 3 4 5 6 7 x"] {
            assert_eq!(parse(stat, 10), None, "{stat}");
        }
    }

    #[test]
    fn children_that_have_ended_are_our_own() {
        let before = own_cpu_us();
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        // Field 14: its time in user mode, in ticks.
        let ticks = || {
            let stat = fs::read_to_string(&stat).unwrap();
            stat.rsplit(')').next().unwrap().split(' ').nth(12).unwrap().parse::<u64>().unwrap()
        };
        while ticks() < 3 {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let used = own_cpu_us() - before;
        assert!(used >= 20_000, "{used}");
    }

    #[test]
    fn time_passes() {
        let before = machine_cpu().unwrap();
        let later = machine_cpu().unwrap();
        assert!(later.busy_us >= before.busy_us);
        assert!(before.busy_us > 0 && before.idle_us > 0);
    }
}
