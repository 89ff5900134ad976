//! What a guest boots with: an initramfs that has the modules, busybox and our own program with the
//! libraries that it has on the host, and no disk besides.
//!
//! Modules stand in it in the order in which they must be loaded, unpacked: to do either in the guest,
//! whose processor is emulated, takes seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::kernel::Kernel;
use crate::bench::launch;
use crate::suite::HANG;

/// The modules that a guest needs, besides those that these need. Their order is free, but for
/// one that another finds by what it does: `rdma_rxe` asks the kernel for any CRC-32.
const MODULES: [&str; 7] =
    ["virtio_net", "crc32_generic", "rdma_rxe", "smc", "smc_diag", "tcp_diag", "sch_netem"];

/// Writes an initramfs.
///
/// **Errors**: a module is not in the package, or a file cannot be read or written.
pub(crate) fn write(to: &Path, kernel: &Kernel, program: &Path, busybox: &Path) -> Result<()> {
    let mut archive = Archive::default();
    archive.directory("bin");
    archive.directory("modules");
    archive.file("init", &fs::read(program).context("the guests' program")?);
    for library in libraries(program)? {
        let content = fs::read(&library).with_context(|| library.display().to_string())?;
        archive.file_below_directories(&library, &content)?;
    }
    archive.file("bin/busybox", &fs::read(busybox).context("busybox")?);
    archive.modules(kernel, &MODULES)?;
    fs::write(to, archive.finish()).with_context(|| to.display().to_string())
}

/// Writes one with other modules, by their names: programs of the host at its root by theirs, and busybox, which runs a script as
/// process 1.
///
/// **Errors**: a file cannot be read or written.
pub(crate) fn write_plain(
    to: &Path,
    kernel: &Kernel,
    module_names: &[&str],
    busybox: &Path,
    programs: &[(&str, &Path)],
    script: &str,
) -> Result<()> {
    let mut archive = Archive::default();
    for directory in ["bin", "modules", "proc", "sys", "dev", "tmp"] {
        archive.directory(directory);
    }
    archive.file("init", script.as_bytes());
    archive.file("bin/busybox", &fs::read(busybox).context("busybox")?);
    let mut needed = BTreeSet::new();
    for (name, program) in programs {
        archive.file(name, &fs::read(program).with_context(|| program.display().to_string())?);
        needed.extend(libraries(program)?);
    }
    for library in needed {
        let content = fs::read(&library).with_context(|| library.display().to_string())?;
        archive.file_below_directories(&library, &content)?;
    }
    archive.modules(kernel, module_names)?;
    fs::write(to, archive.finish()).with_context(|| to.display().to_string())
}

/// The libraries of a program, and the dynamic linker: what `ldd` says.
///
/// **Errors**: `ldd`'s: it is no such program.
pub(super) fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let mut ask = Command::new("ldd");
    ask.arg(program);
    Ok(files_in(&launch::run(ask, HANG)?))
}

/// The files that `ldd` names: `libc.so.6 => /lib/libc.so.6 (0x…)`, and the dynamic linker without
/// an arrow.
fn files_in(said: &str) -> Vec<PathBuf> {
    let words = said.lines().flat_map(str::split_whitespace);
    words.filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

/// These modules and those they need, in the order of loading.
fn modules(kernel: &Kernel, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
    let paths = kernel.module_paths()?;
    let paths = paths.iter().map(|path| (name_of(path), path.as_str())).collect();
    let mut ordered = Vec::new();
    for name in names {
        add_with_needs(name, &paths, &|path| kernel.module(path), &mut ordered)?;
    }
    Ok(ordered)
}

/// Adds a module behind those it needs, unless it is there.
fn add_with_needs(
    name: &str,
    paths: &BTreeMap<String, &str>,
    read: &impl Fn(&str) -> Result<Vec<u8>>,
    ordered: &mut Vec<(String, Vec<u8>)>,
) -> Result<()> {
    if ordered.iter().any(|(it, _)| it == name) {
        return Ok(());
    }
    let path = paths.get(name).with_context(|| format!("the kernel has no module {name}"))?;
    let module = read(path)?;
    for needed in needs(&module) {
        add_with_needs(&needed, paths, read, ordered)?;
    }
    ordered.push((name.to_owned(), module));
    Ok(())
}

/// `virtio_net` for `kernel/drivers/net/virtio_net.ko`; files may have a hyphen where names do not.
fn name_of(path: &str) -> String {
    let file = Path::new(path).file_stem().and_then(|it| it.to_str()).unwrap_or_default();
    file.replace('-', "_")
}

/// The modules that a module says it needs: a text in its section of properties. (Debian makes
/// `modules.dep` only when a kernel is installed.)
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|it| it == KEY) else {
        return Vec::new();
    };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let value = String::from_utf8_lossy(value).replace('-', "_");
    value.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// An archive as the kernel unpacks it: cpio's format "newc". Each entry is a head of hexadecimal
/// digits, the name and the content, the last two padded to four bytes
/// (`Documentation/driver-api/early-userspace/buffer-format.rst`).
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    /// Those below which there are files that have brought them along.
    directories: BTreeSet<PathBuf>,
}

impl Archive {
    const DIRECTORY: u32 = 0o040_755;
    const FILE: u32 = 0o100_755;

    /// The modules, and in `modules/list` their names in the order of loading.
    fn modules(&mut self, kernel: &Kernel, names: &[&str]) -> Result<()> {
        let mut list = String::new();
        for (name, module) in modules(kernel, names)? {
            self.file(&format!("modules/{name}"), &module);
            list.push_str(&format!("{name}\n"));
        }
        self.file("modules/list", list.as_bytes());
        Ok(())
    }

    fn directory(&mut self, name: &str) {
        self.entry(name, Self::DIRECTORY, &[]);
    }

    fn file(&mut self, name: &str, content: &[u8]) {
        self.entry(name, Self::FILE, content);
    }

    /// The same for a file of the host at its place, an absolute path, with the directories above it.
    fn file_below_directories(&mut self, at: &Path, content: &[u8]) -> Result<()> {
        let at = at.strip_prefix("/")?;
        let mut above: Vec<&Path> = at.ancestors().skip(1).collect();
        above.retain(|it| !it.as_os_str().is_empty());
        for directory in above.into_iter().rev() {
            if self.directories.insert(directory.to_owned()) {
                self.directory(&directory.to_string_lossy());
            }
        }
        self.file(&at.to_string_lossy(), content);
        Ok(())
    }

    /// The archive, with the entry that says that it was the last.
    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let number = self.entries;
        let (len, name_len) = (content.len(), name.len() + 1);
        // inode, mode, user, group, links, time, length, device, device of a device, name's length, checksum
        let fields = [number as usize, mode as usize, 0, 0, 1, 0, len, 0, 0, 0, 0, name_len, 0];
        self.bytes.extend(b"070701");
        fields.iter().for_each(|field| self.bytes.extend(format!("{field:08x}").bytes()));
        self.bytes.extend(name.bytes().chain([0]));
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Where the initramfs lies.
pub(crate) fn place(scratch: &Path) -> PathBuf {
    scratch.join("initramfs.cpio")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_stand_behind_those_they_need() -> Result<()> {
        let paths = [("smc_diag", "d"), ("smc", "s"), ("ib_core", "i")];
        let paths = paths.map(|(name, path)| (name.to_owned(), path)).into();
        let read = |path: &str| -> Result<Vec<u8>> {
            let needs = match path {
                "d" => "smc",
                "s" => "ib-core",
                _ => "",
            };
            Ok(format!("x\0license=x\0depends={needs}\0name=x\0").into_bytes())
        };
        let mut ordered = Vec::new();
        for name in ["smc_diag", "smc"] {
            add_with_needs(name, &paths, &read, &mut ordered)?;
        }
        let names: Vec<&str> = ordered.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["ib_core", "smc", "smc_diag"]);
        assert!(add_with_needs("netem", &paths, &read, &mut ordered).is_err());
        Ok(())
    }

    #[test]
    fn libraries_are_those_that_are_files() {
        let said = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f12)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f34)\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(files_in(said), expected.map(PathBuf::from));
        assert!(files_in("\tstatically linked\n").is_empty());
    }

    #[test]
    fn a_file_brings_its_directories_along_once() -> Result<()> {
        let mut archive = Archive::default();
        for library in ["/lib/here/a", "/lib/here/b"] {
            archive.file_below_directories(Path::new(library), b"")?;
        }
        assert_eq!(archive.entries, 4);
        let text = String::from_utf8_lossy(&archive.bytes).into_owned();
        let at = |name: &str| text.find(name).unwrap();
        assert!(at("lib\0") < at("lib/here\0") && at("lib/here\0") < at("lib/here/a\0"));
        assert!(archive.file_below_directories(Path::new("lib/a"), b"").is_err());
        Ok(())
    }

    #[test]
    fn an_archive_is_what_cpio_writes() {
        let mut archive = Archive::default();
        archive.file("a", b"bc");
        let bytes = archive.finish();
        let expected = "07070100000001000081ed0000000000000000000000010000000000000002\
                        0000000000000000000000000000000000000002\
                        00000000a\0";
        assert_eq!(bytes[..112], *expected.as_bytes());
        assert_eq!(bytes[112..116], *b"bc\0\0");
        assert!(bytes[116..].starts_with(b"070701"));
        assert_eq!(bytes.len() % 4, 0);
    }
}
