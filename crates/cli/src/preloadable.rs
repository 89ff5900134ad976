//! Will this program's loader take our library?
//!
//! `LD_PRELOAD` is a request to the dynamic loader that the program's ELF file names in its
//! `PT_INTERP` segment. Nothing happens if there is no loader (a static program), if it is neither
//! glibc's nor musl's, if it loads another kind of machine code, or if the kernel marks the execution as
//! privileged, which makes the loader ignore the variable. And a Go program takes the library
//! but calls the kernel past it.
//!
//! A script is as preloadable as the interpreter in its `#!` line. Only headers are read, so a
//! program of any size is examined in no time; only who asks whether it has system call
//! instructions of its own has its code read.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use goblin::container::{Container, Ctx};
use goblin::elf::header::{self, ELFMAG, SIZEOF_IDENT};
use goblin::elf::program_header::{PF_X, PT_INTERP, PT_LOAD};
use goblin::elf::{Elf, Header, ProgramHeader, SectionHeader};
use sidestep_proto::machine_code::{self, SocketCall};

use crate::output::Escaped;
use crate::program;

/// What was found out about a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Examination {
    /// The interpreters that run the program, if it is a script: the one in its `#!` line, then
    /// that one's, and so on.
    pub(crate) interpreters: Vec<PathBuf>,
    /// True if the program is text without a `#!` line, which the kernel refuses and shells run.
    pub(crate) is_bare_script: bool,
    /// Why it will stay on TCP, if it will.
    pub(crate) obstacle: Option<Obstacle>,
    /// The C library whose loader takes our library, if one does.
    pub(crate) libc: Option<Libc>,
    /// Whether it is linked with liburing: what it does with its sockets through io_uring
    /// stays on TCP.
    pub(crate) uses_io_uring: bool,
    /// Whether it is linked with libseccomp, by which it can install a filter of system calls: its
    /// connections stay on TCP.
    pub(crate) uses_seccomp: bool,
}

/// A C library for which ours is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Libc {
    /// glibc, of most distributions.
    Glibc,
    /// musl, of Alpine.
    Musl,
}

impl Libc {
    /// By the name of its loader.
    fn of(loader: &Path) -> Option<Self> {
        let name = loader.file_name().unwrap_or_default().as_bytes();
        if name.starts_with(b"ld-musl-") {
            return Some(Self::Musl);
        }
        // `ld-linux-x86-64.so.2`, `ld-linux-aarch64.so.1`, `ld64.so.1` (s390x), `ld64.so.2` (ppc64).
        let is_glibc = name.starts_with(b"ld-linux") || name.starts_with(b"ld64.so.");
        is_glibc.then_some(Self::Glibc)
    }
}

impl fmt::Display for Libc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Glibc => "glibc",
            Self::Musl => "musl",
        })
    }
}

/// What keeps our library out of a program, or without effect in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The file is for another kind of machine: "a 32-bit program", "a program for AARCH64".
    ForeignMachine(String),
    /// The loader is neither glibc's nor musl's.
    ForeignLoader(PathBuf),
    /// There is no loader.
    Static,
    /// Go's runtime makes its own system calls, whatever it is linked with.
    Go,
    /// The file has the set-user-ID bit of another user.
    SetUserId,
    /// The file has the set-group-ID bit of another group.
    SetGroupId,
    /// The file grants capabilities.
    Capabilities,
}

impl Obstacle {
    /// Whether `LD_PRELOAD` may stay in the environment, to be found by children that can use it.
    ///
    /// A foreign loader would try to load our library, and complain or even give up.
    pub(crate) fn tolerates_preload(&self) -> bool {
        !matches!(self, Self::ForeignMachine(_) | Self::ForeignLoader(_))
    }

    /// What a user can do who wants the program off TCP.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            Self::ForeignMachine(_) => {
                "use a build of the program for the architecture of this machine"
            }
            Self::ForeignLoader(_) => {
                "use a build of the program for glibc or musl, such as the one of this distribution"
            }
            Self::Static => "use a dynamically linked build of the program",
            Self::Go => "nothing: Go programs talk TCP; their peers fall back to TCP by themselves",
            Self::SetUserId | Self::SetGroupId => {
                "if the program does not need the privilege for what you do, run a copy without \
                 the bit (`chmod u-s,g-s`)"
            }
            Self::Capabilities => {
                "run a copy without capabilities (`setcap -r`), or give them to the process \
                 instead of the file (systemd: AmbientCapabilities=)"
            }
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForeignMachine(what) => {
                write!(f, "it is {what}, and libsidestep.so is not")
            }
            Self::ForeignLoader(loader) => {
                let loader = Escaped(loader.display());
                write!(f, "its C library is neither glibc nor musl (its loader is {loader})")
            }
            Self::Static => f.write_str("it is statically linked, so nothing can be preloaded"),
            Self::Go => f.write_str("it is a Go program, and those call the kernel directly"),
            Self::SetUserId => {
                f.write_str("it is set-user-ID, and such programs ignore LD_PRELOAD")
            }
            Self::SetGroupId => {
                f.write_str("it is set-group-ID, and such programs ignore LD_PRELOAD")
            }
            Self::Capabilities => {
                f.write_str("its file has capabilities, and such programs ignore LD_PRELOAD")
            }
        }
    }
}

/// Who will execute the program: decides whether doing so raises privileges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    uid: u32,
    gid: u32,
    /// With this set, the kernel ignores the set-user-ID and set-group-ID bits. File capabilities
    /// are cut down to what the process had, but make the execution secure all the same.
    no_new_privileges: bool,
}

impl Caller {
    /// This process.
    pub(crate) fn current() -> Self {
        // SAFETY: getuid takes nothing and cannot fail.
        let uid = unsafe { libc::getuid() };
        // SAFETY: getgid takes nothing and cannot fail.
        let gid = unsafe { libc::getgid() };
        // SAFETY: PR_GET_NO_NEW_PRIVS reads no memory; the other four arguments must be zero.
        let no_new_privileges = unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) };
        Self { uid, gid, no_new_privileges: no_new_privileges == 1 }
    }
}

/// Examines the program at `path`, and the interpreters behind it if it is a script.
/// `path_variable` is where `#!/usr/bin/env NAME` would look for NAME.
///
/// # Errors
///
/// A file on the way is missing, may not be read, or is a broken ELF file.
pub(crate) fn examine(
    path: &Path,
    caller: Caller,
    path_variable: Option<&OsStr>,
) -> io::Result<Examination> {
    let mut examination = Examination {
        interpreters: Vec::new(),
        is_bare_script: false,
        obstacle: None,
        libc: None,
        uses_io_uring: false,
        uses_seccomp: false,
    };
    let mut current = path.to_owned();
    loop {
        let file = open(&current)?;
        let start = read_up_to(&file, 0, SCRIPT_LINE_LEN_MAX)?;
        if start.starts_with(ELFMAG) {
            let obstacle = obstacle(&file, caller)?;
            if obstacle.is_none() {
                examination.libc = loader(&file, &header(&file)?)?.as_deref().and_then(Libc::of);
                examination.uses_io_uring = is_linked_with(b"liburing.so.", &file)?;
                examination.uses_seccomp = is_linked_with(b"libseccomp.so.", &file)?;
            }
            examination.obstacle = obstacle;
            return Ok(examination);
        }
        if examination.interpreters.len() == INTERPRETERS_MAX {
            return Err(invalid("too many interpreters behind each other"));
        }
        current = match interpreter(&start) {
            Some(line) => line.program(path_variable),
            None if examination.interpreters.is_empty() => {
                examination.is_bare_script = true;
                PathBuf::from(SHELL)
            }
            None => return Err(invalid("the interpreter is not a program")),
        };
        examination.interpreters.push(current.clone());
    }
}

/// What keeps our library out of the program in an ELF file, if anything does.
///
/// # Errors
///
/// It cannot be read, or is a broken ELF file, or none.
pub(crate) fn obstacle(file: &File, caller: Caller) -> io::Result<Option<Obstacle>> {
    Ok(match elf_obstacle(file)? {
        Some(obstacle) => Some(obstacle),
        None => privilege(&file.metadata()?, has_capabilities(file), caller),
    })
}

/// Opens a program. A FIFO that has its name is not waited for, and nothing is done to a device.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(invalid("not a regular file")),
    }
}

impl Examination {
    /// The file that is executed in the end: the program at `path`, or what interprets it.
    pub(crate) fn executable<'a>(&'a self, path: &'a Path) -> &'a Path {
        self.interpreters.last().map_or(path, PathBuf::as_path)
    }
}

/// The first call on sockets that an executable makes past the C library, with its address.
/// The library looks for the same when the program runs, in the libraries as well.
///
/// # Errors
///
/// The file is missing, may not be read, or is a broken ELF file.
pub(crate) fn call_past_libc(executable: &Path) -> io::Result<Option<SocketCall>> {
    let file = open(executable)?;
    let file_len = file.metadata()?.len();
    let is_code =
        |segment: &&ProgramHeader| segment.p_type == PT_LOAD && segment.p_flags & PF_X != 0;
    for segment in segments(&file, &header(&file)?)?.iter().filter(is_code) {
        if segment.p_filesz > file_len.min(CODE_LEN_MAX) {
            return Err(invalid("a segment is longer than the file, or than any program"));
        }
        let mut code = vec![0; segment.p_filesz as usize];
        file.read_exact_at(&mut code, segment.p_offset)?;
        if let Some(call) = machine_code::first_socket_call(&code) {
            return Ok(Some(SocketCall { offset: segment.p_vaddr as usize + call.offset, ..call }));
        }
    }
    Ok(None)
}

/// Bytes of code that are read. The largest programs have some hundred megabytes; a file with holes may say
/// that it has more than there is memory.
const CODE_LEN_MAX: u64 = 1 << 30;

/// What runs text that has no `#!` line.
pub(crate) const SHELL: &str = "/bin/sh";

/// The kernel reads no more than this of a script's first line (`BINPRM_BUF_SIZE`).
const SCRIPT_LINE_LEN_MAX: usize = 256;

/// The kernel follows four (`exec_binprm`), and `env` may add one.
const INTERPRETERS_MAX: usize = 5;

/// The header tables of an ELF file have at most 65,535 entries of 64 bytes. Anything longer
/// is a lie of the file.
const TABLE_LEN_MAX: usize = 65_536 * 64;

/// Bytes of a section's name that are looked at.
const SECTION_NAME_LEN_MAX: usize = 64;

/// A `#!` line.
struct ScriptLine<'a> {
    interpreter: &'a OsStr,
    /// The words after it. The kernel passes them as one, which only `env -S` splits.
    words: Vec<&'a OsStr>,
}

impl ScriptLine<'_> {
    /// The program that does the work: behind `env`, the one that `env` will find.
    fn program(&self, path_variable: Option<&OsStr>) -> PathBuf {
        let interpreter = PathBuf::from(self.interpreter);
        if interpreter.file_name() != Some("env".as_ref()) {
            return interpreter;
        }
        let is_name = |word: &&&OsStr| {
            let bytes = word.as_bytes();
            !bytes.starts_with(b"-") && !bytes.contains(&b'=')
        };
        let name = self.words.iter().find(is_name);
        name.and_then(|name| program::find(name, path_variable).ok()).unwrap_or(interpreter)
    }
}

fn interpreter(start: &[u8]) -> Option<ScriptLine<'_>> {
    let line = start.strip_prefix(b"#!")?.split(|&c| c == b'\n').next()?;
    let mut words = line
        .split(|&c| c == b' ' || c == b'\t')
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes);
    Some(ScriptLine { interpreter: words.next()?, words: words.collect() })
}

/// What in the ELF file itself keeps us out.
fn elf_obstacle(file: &File) -> io::Result<Option<Obstacle>> {
    let ident = read_exactly(file, 0, SIZEOF_IDENT)?;
    if let Some(machine) = foreign_class(&ident) {
        return Ok(Some(Obstacle::ForeignMachine(machine)));
    }
    let header = header(file)?;
    if header.e_machine != NATIVE_MACHINE {
        let machine = header::machine_to_str(header.e_machine);
        let machine = format!("a program for {machine}");
        return Ok(Some(Obstacle::ForeignMachine(machine)));
    }
    if has_go_section(file, &header)? {
        return Ok(Some(Obstacle::Go));
    }
    Ok(match loader(file, &header)? {
        None => Some(Obstacle::Static),
        Some(loader) if Libc::of(&loader).is_none() => Some(Obstacle::ForeignLoader(loader)),
        Some(_) => None,
    })
}

/// The word size or byte order, if it is not ours.
fn foreign_class(ident: &[u8]) -> Option<String> {
    let class = match ident[header::EI_CLASS] {
        header::ELFCLASS32 => Container::Little,
        header::ELFCLASS64 => Container::Big,
        other => return Some(format!("a program of the unknown ELF class {other}")),
    };
    let is_little = ident[header::EI_DATA] == header::ELFDATA2LSB;
    match (class == native().container, is_little == native().le.is_little()) {
        (false, _) if class.is_big() => Some("a 64-bit program".into()),
        (false, _) => Some("a 32-bit program".into()),
        (true, false) if is_little => Some("a little-endian program".into()),
        (true, false) => Some("a big-endian program".into()),
        (true, true) => None,
    }
}

/// The format of our own code.
fn native() -> Ctx {
    let container =
        if cfg!(target_pointer_width = "64") { Container::Big } else { Container::Little };
    Ctx::new(container, goblin::container::Endian::default())
}

#[cfg(target_arch = "x86_64")]
const NATIVE_MACHINE: u16 = header::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const NATIVE_MACHINE: u16 = header::EM_AARCH64;
#[cfg(target_arch = "s390x")]
const NATIVE_MACHINE: u16 = header::EM_S390;
#[cfg(target_arch = "powerpc64")]
const NATIVE_MACHINE: u16 = header::EM_PPC64;
#[cfg(target_arch = "riscv64")]
const NATIVE_MACHINE: u16 = header::EM_RISCV;

/// The header of a file for this machine.
fn header(file: &File) -> io::Result<Header> {
    let header = read_exactly(file, 0, Header::size(native()))?;
    Elf::parse_header(&header).map_err(invalid)
}

fn segments(file: &File, header: &Header) -> io::Result<Vec<ProgramHeader>> {
    let count = usize::from(header.e_phnum);
    let table = read_exactly(file, header.e_phoff, count * ProgramHeader::size(native()))?;
    ProgramHeader::parse(&table, 0, count, native()).map_err(invalid)
}

fn loader(file: &File, header: &Header) -> io::Result<Option<PathBuf>> {
    let segments = segments(file, header)?;
    let Some(segment) = segments.iter().find(|segment| segment.p_type == PT_INTERP) else {
        return Ok(None);
    };
    let len = usize::try_from(segment.p_filesz).map_err(invalid)?;
    let mut name = read_exactly(file, segment.p_offset, len)?;
    name.truncate(name.iter().position(|&c| c == 0).unwrap_or(len));
    Ok(Some(OsString::from_vec(name).into()))
}

fn has_go_section(file: &File, header: &Header) -> io::Result<bool> {
    let sections = named_sections(file, header)?;
    Ok(sections.iter().any(|(name, _)| GO_SECTIONS.contains(&name.as_slice())))
}

/// The sections by their names. A stripped file may have no section table at all; then
/// nothing can be told.
fn named_sections(file: &File, header: &Header) -> io::Result<Vec<(Vec<u8>, SectionHeader)>> {
    let count = usize::from(header.e_shnum);
    if header.e_shoff == 0 || count == 0 {
        return Ok(Vec::new());
    }
    let table = read_exactly(file, header.e_shoff, count * SectionHeader::size(native()))?;
    let sections = SectionHeader::parse_from(&table, 0, count, native()).map_err(invalid)?;
    let Some(names) = sections.get(usize::from(header.e_shstrndx)) else {
        return Ok(Vec::new());
    };
    let len = usize::try_from(names.sh_size).map_err(invalid)?;
    let names = read_exactly(file, names.sh_offset, len)?;
    let name_of = |section: &SectionHeader| {
        let rest = names.get(section.sh_name..).unwrap_or_default();
        // A longer name is none of those that are looked for, and there may be many.
        let rest = &rest[..rest.len().min(SECTION_NAME_LEN_MAX)];
        rest.split(|&byte| byte == 0).next().unwrap_or_default().to_vec()
    };
    Ok(sections.into_iter().map(|section| (name_of(&section), section)).collect())
}

/// Whether the names of libraries that the loader is to find have one among them that begins like this.
fn is_linked_with(library: &[u8], file: &File) -> io::Result<bool> {
    let sections = named_sections(file, &header(file)?)?;
    let Some((_, names)) = sections.iter().find(|(name, _)| name == b".dynstr") else {
        return Ok(false);
    };
    let len = usize::try_from(names.sh_size).map_err(invalid)?.min(TABLE_LEN_MAX);
    let names = read_exactly(file, names.sh_offset, len)?;
    Ok(names.split(|&byte| byte == 0).any(|name| name.starts_with(library)))
}

/// The Go linker writes both, unless it is asked for no build ID.
const GO_SECTIONS: [&[u8]; 2] = [b".go.buildinfo", b".note.go.buildid"];

/// What in the file's attributes makes the kernel treat its execution by `caller` as secure.
///
/// *Source*: Linux `fs/exec.c`, `bprm_fill_uid`, and `security/commoncap.c`,
/// `cap_bprm_creds_from_file`.
fn privilege(
    metadata: &std::fs::Metadata,
    has_capabilities: bool,
    caller: Caller,
) -> Option<Obstacle> {
    // Without the group's execute bit, the other bit means mandatory locking.
    let set_group_id = libc::S_ISGID | libc::S_IXGRP;
    let mode = metadata.mode();
    let set_id_works = !caller.no_new_privileges;
    if set_id_works && mode & libc::S_ISUID != 0 && metadata.uid() != caller.uid {
        Some(Obstacle::SetUserId)
    } else if set_id_works && mode & set_group_id == set_group_id && metadata.gid() != caller.gid {
        Some(Obstacle::SetGroupId)
    } else if has_capabilities && caller.uid != 0 {
        Some(Obstacle::Capabilities)
    } else {
        None
    }
}

fn has_capabilities(file: &File) -> bool {
    let name = c"security.capability";
    // SAFETY: a C string that outlives the call; with size 0 the kernel only measures the
    // attribute and does not touch the buffer.
    let len = unsafe { libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), std::ptr::null_mut(), 0) };
    len > 0
}

fn read_exactly(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    if len > TABLE_LEN_MAX {
        return Err(invalid("a table of the ELF file is too long"));
    }
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

fn read_up_to(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let len = file.read_at(&mut bytes, offset)?;
    bytes.truncate(len);
    Ok(bytes)
}

fn invalid(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    /// Neither root nor anybody who runs tests.
    const STRANGER: Caller =
        Caller { uid: 3_999_999_999, gid: 3_999_999_999, no_new_privileges: false };

    /// Compiles an empty program with these flags. None, with a printed line, if that cannot be
    /// done here: no compiler, or no static C library.
    #[expect(clippy::print_stdout, reason = "what a skipped test lacks is said")]
    fn compile(directory: &Path, source: &str, flags: &[&str]) -> Option<PathBuf> {
        let input = directory.join("program.c");
        let output = directory.join("program");
        std::fs::write(&input, source).unwrap();
        let status = Command::new("gcc").arg("-o").arg(&output).arg(&input).args(flags).status();
        if status.is_ok_and(|status| status.success()) {
            return Some(output);
        }
        println!("skipped: gcc {flags:?} does not work here");
        None
    }

    const EMPTY: &str = "int main(void) { return 0; }";

    fn obstacle(path: &Path) -> Option<Obstacle> {
        examine(path, STRANGER, None).unwrap().obstacle
    }

    /// The same program with some bytes of its header changed.
    fn patched(path: &Path, offset: usize, bytes: &[u8]) -> PathBuf {
        let mut content = std::fs::read(path).unwrap();
        content[offset..offset + bytes.len()].copy_from_slice(bytes);
        let patched = path.with_extension("patched");
        std::fs::write(&patched, content).unwrap();
        patched
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let script = directory.path().join("script");
        std::fs::write(&script, format!("#!{}\n", fifo.display())).unwrap();
        for path in [&fifo, &script] {
            let error = examine(path, Caller::current(), None).unwrap_err();
            assert!(error.to_string().contains("regular file"), "{error}");
        }
        assert!(call_past_libc(Path::new("/dev/zero")).is_err());
    }

    #[test]
    fn dynamic_programs_can_be_preloaded() {
        let directory = tempfile::tempdir().unwrap();
        for flags in [["-pie"], ["-no-pie"]] {
            let Some(path) = compile(directory.path(), EMPTY, &flags) else {
                return;
            };
            assert_eq!(obstacle(&path), None);
        }
    }

    #[test]
    fn static_programs_cannot() {
        let directory = tempfile::tempdir().unwrap();
        for flags in [["-static"], ["-static-pie"]] {
            if let Some(path) = compile(directory.path(), EMPTY, &flags) {
                assert_eq!(obstacle(&path), Some(Obstacle::Static));
            }
        }
    }

    #[test]
    fn the_loader_tells_the_libc() {
        let directory = tempfile::tempdir().unwrap();
        let compile = |loader: &str| {
            compile(directory.path(), EMPTY, &[&format!("-Wl,--dynamic-linker={loader}")])
        };
        let Some(path) = compile("/lib/ld-musl-x86_64.so.1") else {
            return;
        };
        let examination = examine(&path, STRANGER, None).unwrap();
        assert_eq!((examination.obstacle, examination.libc), (None, Some(Libc::Musl)));
        let loader = "/system/bin/linker64";
        let obstacle = obstacle(&compile(loader).unwrap()).unwrap();
        assert_eq!(obstacle, Obstacle::ForeignLoader(loader.into()));
        assert!(!obstacle.tolerates_preload());
        assert!(obstacle.to_string().contains("neither glibc nor musl"), "{obstacle}");
    }

    #[test]
    fn other_machines_are_told_by_class_order_and_machine() {
        let directory = tempfile::tempdir().unwrap();
        let Some(path) = compile(directory.path(), EMPTY, &[]) else {
            return;
        };
        let text = |offset, bytes: &[u8]| {
            let obstacle = obstacle(&patched(&path, offset, bytes)).unwrap();
            assert!(!obstacle.tolerates_preload());
            obstacle.to_string()
        };
        let class = text(header::EI_CLASS, &[header::ELFCLASS32]);
        assert!(class.contains("a 32-bit program"), "{class}");
        let other_order = match native().le.is_little() {
            true => header::ELFDATA2MSB,
            false => header::ELFDATA2LSB,
        };
        let order = text(header::EI_DATA, &[other_order]);
        assert!(order.contains("-endian program"), "{order}");
        let machine = text(18, &header::EM_SPARCV9.to_ne_bytes());
        assert!(machine.contains("SPARC"), "{machine}");
    }

    #[test]
    fn go_programs_are_told_by_their_sections() {
        let directory = tempfile::tempdir().unwrap();
        for section in [".go.buildinfo", ".note.go.buildid"] {
            let source =
                format!("__attribute__((section(\"{section}\"), used)) int go = 1;\n{EMPTY}");
            let Some(path) = compile(directory.path(), &source, &["-Wa,--no-warn"]) else {
                return;
            };
            assert_eq!(obstacle(&path), Some(Obstacle::Go));
        }
    }

    #[test]
    fn libraries_that_a_program_is_linked_with_are_told_by_a_name() {
        for (name, expected) in [("liburing", (true, false)), ("libseccomp", (false, true))] {
            let directory = tempfile::tempdir().unwrap();
            let library = directory.path().join(format!("{name}.so"));
            let flags = ["-shared", "-fPIC", &format!("-Wl,-soname,{name}.so.2")];
            let Some(made) = compile(directory.path(), EMPTY, &flags) else {
                return;
            };
            std::fs::rename(made, &library).unwrap();
            let library = library.to_str().unwrap();
            for (flag, linked) in
                [("-Wl,--no-as-needed", expected), ("-Wl,--as-needed", (false, false))]
            {
                let path = compile(directory.path(), EMPTY, &[flag, library]).unwrap();
                let examination = examine(&path, STRANGER, None).unwrap();
                let found = (examination.uses_io_uring, examination.uses_seccomp);
                assert_eq!(found, linked, "{name}, {flag}");
            }
        }
    }

    #[test]
    fn calls_past_libc_are_found_in_the_code_of_the_program() {
        let directory = tempfile::tempdir().unwrap();
        let own = r#"int main(void) { long n; __asm__ volatile(
            "mov $45, %%eax\n xor %%edi, %%edi\n syscall" : "=a"(n) : : "rcx", "r11", "rdi");
            return (int)n; }"#;
        let by_libc = "int recv(int, void *, long, int);
            int main(void) { return recv(0, 0, 0, 0); }";
        for (source, found) in [(own, Some("recvfrom")), (by_libc, None)] {
            if cfg!(target_arch = "x86_64")
                && let Some(path) = compile(directory.path(), source, &["-O2"])
            {
                let call = call_past_libc(&path).unwrap();
                assert_eq!(call.map(|call| call.name), found);
            }
        }
    }

    #[test]
    fn broken_files_are_an_error_and_no_panic() {
        let directory = tempfile::tempdir().unwrap();
        let Some(path) = compile(directory.path(), EMPTY, &[]) else {
            return;
        };
        let content = std::fs::read(&path).unwrap();
        let broken = directory.path().join("broken");
        for len in [4, 16, 63, 64, 100] {
            std::fs::write(&broken, &content[..len]).unwrap();
            assert!(examine(&broken, STRANGER, None).is_err(), "{len} bytes");
            assert!(call_past_libc(&broken).is_err(), "{len} bytes");
        }
        // Every byte of the header, wrong: an answer or an error, but an end.
        for offset in 4..64 {
            let patched = patched(&path, offset, &[0xFF]);
            let _ = (examine(&patched, STRANGER, None), call_past_libc(&patched));
        }
    }

    #[test]
    fn scripts_are_judged_by_their_interpreter() {
        let directory = tempfile::tempdir().unwrap();
        let script = |name: &str, content: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            path
        };
        let examine = |path: &Path| examine(path, STRANGER, Some(directory.path().as_os_str()));

        let shell = script("shell", "#! /bin/sh -e\nexit 0\n");
        assert_eq!(examine(&shell).unwrap().interpreters, [Path::new("/bin/sh")]);

        let nested = script("nested", &format!("#!{}\n", shell.display()));
        let interpreters = examine(&nested).unwrap().interpreters;
        assert_eq!(interpreters, [shell.clone(), "/bin/sh".into()]);

        let env = script("env-script", "#!/usr/bin/env -S A=1 shell -x\n");
        let interpreters = examine(&env).unwrap().interpreters;
        assert_eq!(interpreters, [shell, "/bin/sh".into()]);

        let bare = examine(&script("bare", "exit 0\n")).unwrap();
        assert!(bare.is_bare_script);
        assert_eq!(bare.interpreters, [Path::new(SHELL)]);

        let circle = directory.path().join("circle");
        let circle = script("circle", &format!("#!{}\n", circle.display()));
        assert!(examine(&circle).is_err());
        assert!(examine(&script("gone", "#!/no/such/interpreter\n")).is_err());
    }

    #[test]
    fn privileged_files_are_an_obstacle_for_others_than_their_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        std::fs::write(&path, "").unwrap();
        let metadata = |mode| {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            std::fs::metadata(&path).unwrap()
        };
        let owner = Caller {
            uid: metadata(0o755).uid(),
            gid: metadata(0o755).gid(),
            no_new_privileges: false,
        };
        let locked_down = Caller { no_new_privileges: true, ..STRANGER };

        let set_user = metadata(0o4755);
        assert_eq!(privilege(&set_user, false, STRANGER), Some(Obstacle::SetUserId));
        assert_eq!(privilege(&set_user, false, owner), None);
        assert_eq!(privilege(&set_user, false, locked_down), None);

        let set_group = metadata(0o2755);
        assert_eq!(privilege(&set_group, false, STRANGER), Some(Obstacle::SetGroupId));
        assert_eq!(privilege(&set_group, false, owner), None);
        assert_eq!(privilege(&metadata(0o2644), false, STRANGER), None);

        let plain = metadata(0o755);
        assert_eq!(privilege(&plain, true, STRANGER), Some(Obstacle::Capabilities));
        assert_eq!(privilege(&plain, true, locked_down), Some(Obstacle::Capabilities));
        let root = Caller { uid: 0, ..STRANGER };
        assert_eq!(privilege(&plain, true, root), None);
    }
}
