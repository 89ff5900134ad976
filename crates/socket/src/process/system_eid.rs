//! The system EID (SEID), by which programs of one machine admit each other whatever their UEIDs are.
//!
//! On IBM Z it is made of the machine's serial number and type. Here a machine is a running kernel, because no memory is shared
//! beyond it: the SEID has a part of its boot ID, which the kernel tells in every container alike. (A runtime may show a
//! container another one, as `systemd-nspawn` does. Then that container is a machine of its own.)

use core::sync::atomic::{AtomicU64, Ordering};
use sidestep_device::sys;
use sidestep_wire::Eid;

/// Digits of the boot ID that are in the SEID.
const DIGITS: usize = 16;

/// The number in it, or one of these words. Threads that ask at once read the same, and none waits for another, which
/// a forked child would not have.
static NUMBER: AtomicU64 = AtomicU64::new(NOT_READ);
const NOT_READ: u64 = 0;
const UNREADABLE: u64 = 1;

/// The SEID of this machine, as it was when it was first asked for. `None`: the boot ID cannot be read.
pub(crate) fn system_eid() -> Option<Eid> {
    if NUMBER.load(Ordering::Relaxed) == NOT_READ {
        // A UUID and the end of its line.
        let mut bytes = [0; 37];
        let read = sys::read_file(c"/proc/sys/kernel/random/boot_id", &mut bytes);
        let number = read.ok().and_then(|len| number(&bytes[..len]));
        if number.is_none() {
            crate::log!(Warn, "the boot ID cannot be read: smc.seid has no effect");
        }
        NUMBER.store(number.unwrap_or(UNREADABLE), Ordering::Relaxed);
    }
    Some(NUMBER.load(Ordering::Relaxed)).filter(|number| *number > UNREADABLE).map(Eid::seid)
}

/// The first digits of a UUID.
fn number(uuid: &[u8]) -> Option<u64> {
    let digits = uuid.iter().filter(|byte| **byte != b'-').take(DIGITS);
    let (mut count, mut number) = (0, 0);
    for byte in digits {
        number = number << 4 | u64::from(char::from(*byte).to_digit(16)?);
        count += 1;
    }
    (count == DIGITS && number > UNREADABLE).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_digits_of_a_boot_id_are_taken() {
        let uuid = b"0f3C2a1b-4d5e-4f60-8a9b-0c1d2e3f4a5b\n";
        assert_eq!(number(uuid), Some(0x0f3c_2a1b_4d5e_4f60));
        for other in [&b""[..], b"\n", b"0f3c2a1b-4d5e-4f6", b"0f3c2a1b-4d5e-4f6x", &[b'0'; 36]] {
            assert_eq!(number(other), None);
        }
    }

    #[test]
    fn this_machine_has_one() {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let digits: String = boot.to_uppercase().chars().filter(|it| *it != '-').take(16).collect();
        let text = format!("SIDESTEP-ISMSEID{digits}");
        assert_eq!(system_eid().map(|seid| seid.to_string()), Some(text));
    }
}
