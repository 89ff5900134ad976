//! The noise certificate: the machine and its moods.
//!
//! A figure without its machine says little, and a figure of a machine that was busy
//! with something else says something false. So every document carries what the
//! machine is, what waking a thread costs on it, and what else happened on it while
//! the figures were taken: CPU time that a hypervisor took away (steal), and CPU time
//! of programs that were not ours (foreign).
//!
//! ```text
//!   all CPUs × time  =  idle  +  steal  +  ours  +  foreign
//! ```

use std::time::{Duration, Instant};

use jiff::{RoundMode, Timestamp, TimestampRound, Unit};

use crate::calibration::{self, Calibration};
use crate::control::MachineCpu;
use crate::result::Machine;

mod cpu_time;
mod host;
pub mod wakeup;

pub use cpu_time::{machine_cpu, own_cpu_us};
use host::Host;
use wakeup::WakeupCost;

/// The machine at the beginning of a measurement.
#[derive(Debug)]
pub struct Certificate {
    began: Instant,
    began_at: Timestamp,
    host: Host,
    wakeup: Result<WakeupCost, String>,
    generator: Calibration,
    cpu: Option<MachineCpu>,
}

impl Certificate {
    /// Looks at the machine and measures what waking a thread costs; takes some tenths
    /// of a second. What the machine does not tell is left empty.
    #[must_use]
    pub fn begin() -> Self {
        // The load first: the next line is load.
        let (began, began_at, host) = (Instant::now(), Timestamp::now(), Host::look());
        let wakeup = wakeup::measure().map_err(|error| error.to_string());
        let generator = calibration::calibrate(CALIBRATION);
        Self { began, began_at, host, wakeup, generator, cpu: machine_cpu().ok() }
    }

    /// After the last run. `own_cpu_us` is the CPU time of all workers on this host and
    /// of the coordinator since [`Certificate::begin`], in microseconds: what
    /// [`own_cpu_us()`] has grown by.
    #[must_use]
    pub fn finish(self, own_cpu_us: u64) -> Machine {
        let shares = match (self.cpu, machine_cpu()) {
            (Some(before), Ok(now)) => Shares::of(now - before, own_cpu_us),
            _ => Shares::default(),
        };
        let Host { cpu_model, cpus, memory, kernel, hypervisor, load_average, .. } =
            self.host.clone();
        let wakeup = self.wakeup.clone().unwrap_or_default();
        let seconds = TimestampRound::new().smallest(Unit::Second).mode(RoundMode::Trunc);
        let mut machine = Machine {
            sidestep: env!("CARGO_PKG_VERSION").to_owned(),
            began: self.began_at.round(seconds).unwrap_or(self.began_at).to_string(),
            took_s: self.began.elapsed().as_secs_f64(),
            cpu_model,
            cpus,
            memory,
            kernel,
            hypervisor,
            load_average,
            steal_percent: shares.steal_percent,
            foreign_percent: shares.foreign_percent,
            wakeup_same_cpu_us: wakeup.same_cpu_us,
            wakeup_other_cpu_us: wakeup.other_cpu_us,
            generator_us_per_tran: self.generator.cpu_us_per_tran,
            warnings: Vec::new(),
        };
        machine.warnings = warnings(&machine, &self.host);
        machine.warnings.extend(
            self.wakeup
                .err()
                .map(|error| format!("What waking a thread costs could not be measured: {error}.")),
        );
        machine
    }
}

/// How long the generator runs against itself.
const CALIBRATION: Duration = Duration::from_millis(200);

/// Of all CPUs' time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Shares {
    steal_percent: f64,
    foreign_percent: f64,
}

impl Shares {
    fn of(spent: MachineCpu, own_us: u64) -> Self {
        let MachineCpu { busy_us, idle_us, steal_us } = spent;
        let all = busy_us + idle_us + steal_us;
        if all == 0 {
            return Self::default();
        }
        let percent = |us: u64| us as f64 / all as f64 * 100.0;
        Self {
            steal_percent: percent(steal_us),
            foreign_percent: percent(busy_us.saturating_sub(own_us)),
        }
    }
}

/// What is wrong with the machine as a place to measure.
fn warnings(machine: &Machine, host: &Host) -> Vec<String> {
    let Machine { cpus, load_average: [load, ..], steal_percent, foreign_percent, .. } = machine;
    let mut warnings = Vec::new();
    let mut warn = |is_so: bool, text: String| warnings.extend(is_so.then_some(text));
    warn(
        *load > f64::from(*cpus) * LOAD_MAX,
        format!(
            "The load average was {load:.2} on {cpus} CPUs before the first run: other programs \
             were running."
        ),
    );
    warn(
        *steal_percent > STEAL_PERCENT_MAX,
        format!("The hypervisor took {steal_percent:.1} % of the CPU time for other guests."),
    );
    warn(
        *foreign_percent > FOREIGN_PERCENT_MAX,
        format!("Other programs used {foreign_percent:.1} % of the CPU time during the runs."),
    );
    warn(
        *cpus == 1,
        "There is only one CPU: client and server cannot run at the same time, and spinning \
         is pointless."
            .to_owned(),
    );
    if let Some(governor) = host.governor.as_deref().filter(|name| SLOW_GOVERNORS.contains(name)) {
        warn(
            true,
            format!(
                "The CPUs' frequency follows the load (governor `{governor}`): set it to \
                 `performance` by `cpupower frequency-set -g performance`."
            ),
        );
    }
    if let Some(clock) = host.clock_source.as_deref().filter(|name| !FAST_CLOCKS.contains(name)) {
        warn(
            true,
            format!(
                "Every look at the clock is a system call (clock source `{clock}`): response \
                 times and spinning cost more than elsewhere."
            ),
        );
    }
    warnings
}

/// Load average of one minute for each CPU that is worth a warning.
const LOAD_MAX: f64 = 0.5;
const STEAL_PERCENT_MAX: f64 = 1.0;
const FOREIGN_PERCENT_MAX: f64 = 5.0;
/// Governors under which a CPU that waits a little runs slower afterwards.
const SLOW_GOVERNORS: [&str; 4] = ["powersave", "ondemand", "conservative", "schedutil"];
/// Clock sources that the kernel lets programs read without a call (vDSO).
const FAST_CLOCKS: [&str; 5] =
    ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "tod"];

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet() -> (Machine, Host) {
        let machine = Machine { cpus: 4, load_average: [1.0, 9.0, 9.0], ..Machine::default() };
        let host = Host { clock_source: Some("tsc".to_owned()), ..Host::default() };
        (machine, host)
    }

    #[test]
    fn a_quiet_machine_has_no_warnings() {
        let (machine, host) = quiet();
        assert_eq!(warnings(&machine, &host), [""; 0]);
        let host = Host { governor: Some("performance".to_owned()), clock_source: None, ..host };
        assert_eq!(warnings(&machine, &host), [""; 0]);
    }

    #[test]
    fn each_trouble_has_its_warning() {
        type Trouble = fn(&mut Machine, &mut Host);
        let troubles: [(Trouble, &str); 6] = [
            (|machine, _| machine.load_average[0] = 2.5, "The load average was 2.50 on 4 CPUs"),
            (|machine, _| machine.steal_percent = 1.26, "The hypervisor took 1.3 %"),
            (|machine, _| machine.foreign_percent = 5.1, "Other programs used 5.1 %"),
            (|machine, _| machine.cpus = 1, "There is only one CPU"),
            (|_, host| host.governor = Some("powersave".to_owned()), "(governor `powersave`)"),
            (|_, host| host.clock_source = Some("hpet".to_owned()), "(clock source `hpet`)"),
        ];
        for (trouble, text) in troubles {
            let (mut machine, mut host) = quiet();
            machine.load_average[0] = 0.0;
            trouble(&mut machine, &mut host);
            let [warning] = &warnings(&machine, &host)[..] else { panic!("{text}") };
            assert!(warning.contains(text), "{warning}");
        }
    }

    #[test]
    fn shares_are_of_all_cpus_time() {
        let spent = MachineCpu { busy_us: 500, idle_us: 400, steal_us: 100 };
        let shares = Shares::of(spent, 450);
        assert_eq!(shares, Shares { steal_percent: 10.0, foreign_percent: 5.0 });
        // Our account is exact and the machine's is not.
        assert_eq!(Shares::of(spent, 501).foreign_percent, 0.0);
        assert_eq!(Shares::of(MachineCpu::default(), 7), Shares::default());
    }

    #[test]
    fn this_machine_gets_a_certificate() {
        let machine = Certificate::begin().finish(0);
        let began: Timestamp = machine.began.parse().unwrap();
        assert!(began <= Timestamp::now());
        assert!(machine.began.len() == "2026-01-01T00:00:00Z".len(), "{}", machine.began);
        assert!(machine.took_s > 0.0);
        assert!(machine.cpus >= 1);
        assert!(machine.memory > 1 << 20);
        assert!(machine.kernel.starts_with("Linux "), "{}", machine.kernel);
        assert!(!machine.cpu_model.is_empty());
        assert!((0.0..=100.0).contains(&machine.steal_percent));
        assert!((0.0..=100.0).contains(&machine.foreign_percent));
    }
}
