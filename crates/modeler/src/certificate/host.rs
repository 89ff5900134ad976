//! What the machine is, as far as the kernel tells.

use std::fs;
use std::path::Path;

use crate::affinity;

/// A machine at one moment. What is not told is empty, 0 or `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Host {
    pub(super) cpu_model: String,
    /// Those that may be used.
    pub(super) cpus: u32,
    /// In bytes.
    pub(super) memory: u64,
    pub(super) kernel: String,
    pub(super) hypervisor: Option<String>,
    pub(super) load_average: [f64; 3],
    /// What decides about the frequency of the first CPU.
    pub(super) governor: Option<String>,
    /// What the kernel tells the time by.
    pub(super) clock_source: Option<String>,
}

impl Host {
    /// Looks at this one.
    pub(super) fn look() -> Self {
        Self::look_below(Path::new("/"))
    }

    /// Looks at the files of a machine below `root`.
    fn look_below(root: &Path) -> Self {
        let line = |path: &str| {
            let text = fs::read_to_string(root.join(path)).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let cpu_info = line("proc/cpuinfo").unwrap_or_default();
        let kernel = [line("proc/sys/kernel/ostype"), line("proc/sys/kernel/osrelease")];
        let dmi = ["sys_vendor", "product_name"];
        let dmi = dmi.map(|name| line(&format!("sys/class/dmi/id/{name}")));
        let cpus = affinity::allowed().map_or(0, |cpus| cpus.len() as u32);
        Self {
            cpu_model: cpu_model(&cpu_info),
            cpus,
            memory: line("proc/meminfo").and_then(|text| memory(&text)).unwrap_or_default(),
            kernel: words(&kernel),
            hypervisor: hypervisor(line("sys/hypervisor/type"), &cpu_info, &words(&dmi)),
            load_average: line("proc/loadavg").and_then(|text| loads(&text)).unwrap_or_default(),
            governor: line("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            clock_source: line("sys/devices/system/clocksource/clocksource0/current_clocksource"),
        }
    }
}

fn words(words: &[Option<String>]) -> String {
    let words: Vec<_> = words.iter().flatten().map(String::as_str).collect();
    words.join(" ")
}

/// The value of a line `key : value`.
fn value<'a>(info: &'a str, key: &str) -> Option<&'a str> {
    let of_key = |line: &'a str| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    };
    info.lines().find_map(of_key)
}

/// x86 tells a name, Arm two numbers, IBM Z its machine type.
fn cpu_model(info: &str) -> String {
    if let Some(name) = value(info, "model name") {
        return name.to_owned();
    }
    if let (Some(implementer), Some(part)) =
        (value(info, "CPU implementer"), value(info, "CPU part"))
    {
        return format!("Arm, implementer {implementer}, part {part}");
    }
    let machine = value(info, "processor 0").and_then(|line| line.split_once("machine = "));
    if let Some((_, machine)) = machine {
        return format!("IBM Z, machine type {machine}");
    }
    format!("unknown ({})", std::env::consts::ARCH)
}

fn memory(info: &str) -> Option<u64> {
    let kib: u64 = value(info, "MemTotal")?.strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

fn loads(text: &str) -> Option<[f64; 3]> {
    let loads = text.split_ascii_whitespace().take(3).map(|load| load.parse().ok());
    loads.collect::<Option<Vec<_>>>()?.try_into().ok()
}

/// Xen says its name, an x86 CPU that there is one, and the firmware who has made the
/// machine.
fn hypervisor(told: Option<String>, cpu_info: &str, made_by: &str) -> Option<String> {
    let is_guest = value(cpu_info, "flags")
        .is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"));
    let is_virtual = VIRTUAL_MACHINES.iter().any(|maker| made_by.contains(maker));
    match (told, is_guest || is_virtual, made_by) {
        (Some(name), ..) => Some(name),
        (None, true, "") => Some("a hypervisor that does not say its name".to_owned()),
        (None, true, made_by) => Some(made_by.to_owned()),
        (None, false, _) => None,
    }
}

/// Firmware of machines that are programs; for CPUs that do not tell.
const VIRTUAL_MACHINES: [&str; 5] = ["QEMU", "KVM", "VMware", "Virtual Machine", "VirtualBox"];

#[cfg(test)]
mod tests {
    use super::*;

    const X86: &str = "processor\t: 0\nmodel name\t: AMD EPYC 7B13\nflags\t\t: fpu hypervisor\n\n\
                       processor\t: 1\nmodel name\t: other\n";
    const ARM: &str = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
    const Z: &str = "vendor_id : IBM/S390\nprocessor 0: version = 00,  identification = 1,  \
                     machine = 3931\n";

    #[test]
    fn cpus_have_names() {
        assert_eq!(cpu_model(X86), "AMD EPYC 7B13");
        assert_eq!(cpu_model(ARM), "Arm, implementer 0x41, part 0xd0c");
        assert_eq!(cpu_model(Z), "IBM Z, machine type 3931");
        assert!(cpu_model("").starts_with("unknown ("));
    }

    #[test]
    fn a_hypervisor_is_told_by_one_of_three() {
        let of =
            |told: Option<&str>, info, made_by| hypervisor(told.map(str::to_owned), info, made_by);
        assert_eq!(of(Some("xen"), "", "").unwrap(), "xen");
        assert_eq!(of(None, X86, "Google Compute").unwrap(), "Google Compute");
        assert_eq!(of(None, X86, "").unwrap(), "a hypervisor that does not say its name");
        assert_eq!(of(None, ARM, "QEMU KVM Virtual Machine").unwrap(), "QEMU KVM Virtual Machine");
        assert_eq!(of(None, "flags : fpu vme", "Dell Inc. PowerEdge"), None);
    }

    #[test]
    fn a_machine_is_read_from_its_files() {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("proc/cpuinfo", X86);
        file("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n");
        file("proc/loadavg", "0.25 1.50 3.00 1/234 5678\n");
        file("proc/sys/kernel/ostype", "Linux\n");
        file("proc/sys/kernel/osrelease", "6.8.0-45-generic\n");
        file("sys/class/dmi/id/sys_vendor", "QEMU\n");
        file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
        file("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
        let host = Host::look_below(root.path());
        let expected = Host {
            cpu_model: "AMD EPYC 7B13".to_owned(),
            cpus: host.cpus,
            memory: 16 << 20,
            kernel: "Linux 6.8.0-45-generic".to_owned(),
            hypervisor: Some("QEMU".to_owned()),
            load_average: [0.25, 1.5, 3.0],
            governor: Some("powersave".to_owned()),
            clock_source: Some("tsc".to_owned()),
        };
        assert_eq!(host, expected);
        assert!(host.cpus >= 1);
    }

    #[test]
    fn a_machine_that_tells_nothing_is_no_error() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::look_below(root.path());
        assert_eq!((host.memory, host.hypervisor, host.load_average), (0, None, [0.0; 3]));
    }
}
