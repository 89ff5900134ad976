//! Memory of which no page exists, and who is made to pay for it.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::small_group::SmallGroup;
use super::stage::Stage;
use crate::bench::launch::{self, Dialogue, Transport};
use crate::suite::HANG;
use crate::suite::Lacking;

/// States of one process that are looked at. One is 11 MiB, if it is full.
const STATES: u64 = 16;

/// What a command may have that looks at them: a part of what they would be.
const OBSERVER_MEMORY: u64 = 64 << 20;

/// A program claims that its states are full, and commands that look at them pay for what is there.
pub(super) fn sparse_states(stage: &Stage<'_>) -> Result<String> {
    const COMMANDS: [&[&str]; 4] =
        [&["ss", "--json"], &["ss", "--totals", "--json"], &["stats", "--json"], &["demote", ":9"]];
    let Some(sidestep) = stage.house.launcher.observer() else {
        bail!(Lacking("nobody has a state".to_owned()));
    };
    let script = stage.house.scripts.join("sparse_states.py");
    let words = [script.as_os_str(), STATES.to_string().as_ref()].map(ToOwned::to_owned);
    let mut claimant =
        Dialogue::start(stage.house.launcher.launch(Transport::Smc, "python3", words))?;
    claimant.await_line("ready", HANG)?;
    let mut peak = 0;
    for words in COMMANDS {
        let group = SmallGroup::new(OBSERVER_MEMORY)?;
        let mut command = Command::new(sidestep);
        command.args(words);
        group.enclose(&mut command);
        launch::run(command, HANG).with_context(|| format!("sidestep {}", words.join(" ")))?;
        peak = peak.max(group.peak()?);
    }
    let exists: u64 = claimant.finish(HANG)?.trim().parse()?;
    // A page for each, and one for the word of `demote`.
    ensure!(exists <= STATES * 8, "{exists} KiB of the states exist");
    Ok(format!("{} MiB at most for {STATES} states, of which {exists} KiB exist", peak >> 20))
}
