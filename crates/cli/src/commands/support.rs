//! `sidestep support`: a bundle of what a developer asks for first, without payloads or secrets.
//!
//! A part is what a command of this program prints as JSON, or a file of the kernel, from the list in
//! [`parts`]: nothing is in the bundle that the list does not name, and no file is followed that a
//! configuration names. What a part says passes [`redact`] before it is packed. A command that fails, or
//! takes too long, leaves its words in the place of what it would have said.

mod ask;
mod bundle;
mod parts;
mod redact;

use std::io;
use std::path::PathBuf;

use jiff::Timestamp;
use thiserror::Error;

use crate::args::SupportArgs;
use crate::output;
use bundle::Bundle;
use parts::{CONTENTS, Part, contents};

/// Writes the bundle; 1 if it cannot be written, otherwise 0.
pub(crate) fn execute(args: &SupportArgs) -> i32 {
    let parts = parts::all(args);
    let told = match args.list {
        true => output::print(&contents(&parts)).map(drop).map_err(SupportError::Output),
        false => write(args, &parts),
    };
    match told {
        Ok(()) => 0,
        Err(error) => {
            output::complain("support", &error);
            1
        }
    }
}

/// Why there is no bundle.
#[derive(Debug, Error)]
enum SupportError {
    #[error("cannot write {}: {error}; name another place with --output", .path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("cannot find the path of this program: {0}")]
    OwnPath(io::Error),
    #[error("cannot write the list: {0}")]
    Output(io::Error),
}

fn write(args: &SupportArgs, parts: &[Part]) -> Result<(), SupportError> {
    let asker = ask::Asker::new().map_err(SupportError::OwnPath)?;
    let time = Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let name = format!("sidestep-support-{time}");
    let path = args.output.clone().unwrap_or_else(|| format!("{name}.tar.gz").into());
    let unwritable = |error| SupportError::Write { path: path.clone(), error };
    let mut bundle = Bundle::create(&path, &name).map_err(unwritable)?;
    let written = (|| {
        let list = contents(parts);
        bundle.add(CONTENTS, &list)?;
        for part in parts {
            bundle.add(&part.name, &asker.ask(&part.source))?;
        }
        bundle.finish()
    })();
    if let Err(error) = written {
        // Half a bundle is none.
        let _ = std::fs::remove_file(&path);
        return Err(unwritable(error));
    }
    let told = format!("{}\nwritten to {}\n", contents(parts), path.display());
    output::print(&told).map(drop).map_err(SupportError::Output)
}
