//! Programs of an object file that the kernel has taken, by their names.

use aya::Ebpf;
use aya::programs::{Program, ProgramError};

/// One of our programs, by its name.
pub(crate) fn program<'a, P>(loaded: &'a mut Ebpf, name: &str) -> Result<&'a mut P, ProgramError>
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    loaded.program_mut(name).expect("a program of ours").try_into()
}
