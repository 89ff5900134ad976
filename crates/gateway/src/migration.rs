//! A link group with its sessions as a memory file, by which it goes to the gateway that has taken this one's place.
//!
//! ```text
//!   version │ Migrant of the engine, with the bytes of its receive buffers │ sessions
//! ```
//!
//! The file is sealed, so what was read once stays so. H and N of each session come beside it, in the order of the
//! sessions; H goes to another process as any connection in shared memory does, by the library.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use sidestep_device::stamp;
use sidestep_engine::Migrant;

use crate::session::SessionAtRest;
use coded::Coded;

mod coded;

/// Of the state. Another one is another list in `coded`, or another meaning of a field.
const STATE: u8 = 2;

/// Of a file: 255 receive buffers of 1 MB, as much of rings of programs, and the rest.
const FILE_LEN_MAX: u64 = 1 << 30;
const SEALS: SealFlags =
    SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// What two gateways have to have in common: the state, and the memory in which H lies where the library is preloaded.
/// Each is a byte, that of the state first, then slabs, wake memory and states of programs.
pub(crate) fn version() -> u32 {
    let [slab, wake, state] = stamp::layouts().map(|number| number as u8);
    u32::from_be_bytes([STATE, slab, wake, state])
}

/// Writes a link group and its sessions down.
pub(crate) fn write(migrant: &Migrant, sessions: &[SessionAtRest]) -> io::Result<OwnedFd> {
    let mut bytes = Vec::new();
    version().put(&mut bytes);
    migrant.put(&mut bytes);
    sessions.to_vec().put(&mut bytes);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("sidestep-migrant", flags)?);
    file.write_all(&bytes)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// Reads what [`write()`] has written.
///
/// # Errors
///
/// It is not sealed, too long, or no link group of this version.
pub(crate) fn read(file: OwnedFd) -> io::Result<(Migrant, Vec<SessionAtRest>)> {
    let mut file = File::from(file);
    if !fcntl_get_seals(&file)?.contains(SEALS) {
        return Err(io::Error::other("the state of a link group can still change"));
    }
    if file.metadata()?.len() > FILE_LEN_MAX {
        return Err(io::Error::other("the state of a link group is too long"));
    }
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    parse(&bytes).ok_or_else(|| {
        io::Error::other("the state of a link group is cut off, or of another version")
    })
}

fn parse(mut bytes: &[u8]) -> Option<(Migrant, Vec<SessionAtRest>)> {
    let from = &mut bytes;
    if u32::take(from)? != version() {
        return None;
    }
    let parsed = Coded::take(from)?;
    from.is_empty().then_some(parsed)
}

#[cfg(test)]
mod tests;
