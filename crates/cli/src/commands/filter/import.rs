//! `sidestep filter import`: rules that were written for others, as a list.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use sidestep_filter::import;

use super::answer::{FilterError, say};
use crate::args::FilterImportArgs;
use crate::output;

pub(super) fn execute(args: &FilterImportArgs) -> Result<(), FilterError> {
    let text = read(&args.file).map_err(|error| FilterError::file(&args.file, error))?;
    let imported = import(args.format.into(), &text)
        .map_err(|reason| FilterError::Import { path: args.file.display().to_string(), reason })?;
    say(&imported.to_string())?;
    for (place, reason) in imported.left_out() {
        output::complain("filter import", format_args!("left out: {place}: {reason}"));
    }
    match imported.left_out().count() {
        0 => Ok(()),
        count => Err(FilterError::LeftOut(count)),
    }
}

fn read(path: &Path) -> io::Result<String> {
    if path != "-" {
        return fs::read_to_string(path);
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}
