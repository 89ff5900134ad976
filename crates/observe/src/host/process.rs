//! What `/proc` says about a process.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// The numbers of the processes of this host, in ascending order.
pub(crate) fn processes() -> io::Result<Vec<u32>> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let mut pids: Vec<u32> = fs::read_dir("/proc")?.flatten().filter_map(number).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// Whose process it is: the user who began it, whatever it has become since.
///
/// # Errors
/// The process has ended.
pub(crate) fn user(pid: u32) -> io::Result<u32> {
    let owner = fs::metadata(format!("/proc/{pid}"))?.uid();
    // To root belongs also what others may not look at: a program with more rights than its user,
    // and one that wants it so.
    match owner {
        0 => real_user(pid).ok_or_else(|| io::ErrorKind::NotFound.into()),
        user => Ok(user),
    }
}

fn real_user(pid: u32) -> Option<u32> {
    status_numbers(pid, b"Uid:")?.into_iter().next()
}

/// The name of a process, fit for a terminal.
pub(crate) fn name(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    let printable = |c: char| if c.is_control() { '?' } else { c };
    match name {
        b"" => "?".to_owned(),
        name => String::from_utf8_lossy(name).chars().map(printable).collect(),
    }
}

/// The number of a process in the innermost PID namespace it lives in.
pub(crate) fn own_pid(pid: u32) -> Option<u32> {
    status_numbers(pid, b"NSpid:")?.pop()
}

/// The numbers behind a word of `/proc/PID/status`.
fn status_numbers(pid: u32, word: &[u8]) -> Option<Vec<u32>> {
    numbers_behind(word, &fs::read(format!("/proc/{pid}/status")).ok()?)
}

fn numbers_behind(word: &[u8], status: &[u8]) -> Option<Vec<u32>> {
    let numbers = status.split(|&c| c == b'\n').find_map(|line| line.strip_prefix(word))?;
    str::from_utf8(numbers).ok()?.split_ascii_whitespace().map(|n| n.parse().ok()).collect()
}

/// Kernel threads hold no descriptors: that we may not look at theirs is no loss.
pub(crate) fn is_kernel_thread(pid: u32) -> bool {
    /// `PF_KTHREAD` of `linux/sched.h`.
    const KERNEL_THREAD: u32 = 0x0020_0000;
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    flags_in(&stat).is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

/// The flags in `/proc/PID/stat`: the ninth field. The second is the name, in parentheses, with
/// anything in it, parentheses and spaces included.
fn flags_in(stat: &[u8]) -> Option<u32> {
    let fields = stat.rsplit(|&c| c == b')').next()?;
    str::from_utf8(fields).ok()?.split_ascii_whitespace().nth(6)?.parse().ok()
}

/// Whether we may not look, which is another thing than that there is nothing to see.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::DEAD;
    use sidestep_device::sys;

    #[test]
    fn processes_have_names_and_numbers() {
        assert_eq!(own_pid(sys::pid()), Some(sys::pid()));
        assert!(processes().unwrap().contains(&sys::pid()));
        assert!(!is_kernel_thread(sys::pid()));
        assert_eq!(name(DEAD), "?");
        assert_eq!(own_pid(DEAD), None);
        assert_eq!(user(sys::pid()).unwrap(), sys::uid());
        assert!(user(DEAD).is_err());
    }

    #[test]
    fn a_process_has_a_number_in_each_pid_namespace() {
        let status = b"Name:\tNSpid: 9\nNSpid:\t4711\t32\t1\nUid:\t0\t1000\t0\t0\n";
        assert_eq!(numbers_behind(b"NSpid:", status), Some(vec![4711, 32, 1]));
        assert_eq!(numbers_behind(b"Uid:", status), Some(vec![0, 1000, 0, 0]));
        assert_eq!(numbers_behind(b"Gid:", status), None);
        assert_eq!(numbers_behind(b"Name:", status), None, "no numbers");
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat = |name: &str| format!("7 ({name}) S 2 0 0 0 -1 2129984 0 0");
        for name in ["kthreadd", "a) S 1 1 1 1 1 1 (b", "((", "x y"] {
            assert_eq!(flags_in(stat(name).as_bytes()), Some(2_129_984), "{name}");
        }
        assert_eq!(flags_in(b""), None);
        assert_eq!(flags_in(b"7 (half"), None);
    }
}
