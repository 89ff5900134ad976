//! What is pinned in the filter's directory.

use std::path::Path;
use std::{fs, io};

use aya::maps::{Map, MapData, MapError};
use aya::programs::ProgramError;

use crate::error::BpfError;

/// The map of this name.
pub(super) fn open_map<T>(pins: &Path, name: &str) -> Result<T, BpfError>
where
    T: TryFrom<Map, Error = MapError>,
{
    let map = MapData::from_pin(pins.join(name)).and_then(Map::from_map_data);
    let map = map.and_then(T::try_from);
    map.map_err(|error| BpfError::of_kernel("open a BPF map", &error))
}

pub(super) fn of_map<T>(result: Result<T, MapError>) -> Result<T, BpfError> {
    result.map_err(|error| BpfError::of_kernel("use a BPF map", &error))
}

pub(super) fn of_kernel<T>(result: Result<T, ProgramError>) -> Result<T, BpfError> {
    result.map_err(|error| BpfError::of_kernel("load a BPF program", &error))
}

/// It may be gone already.
pub(super) fn remove_file(path: &Path) -> Result<(), BpfError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(BpfError::of_file(path, error))
        }
        _ => Ok(()),
    }
}
