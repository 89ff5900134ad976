//! `sidestep filter`: which packets pass, by an ordered list of rules.
//!
//! * [`answer`]: what the commands print, and why something could not be done.
//! * [`source`]: lists in files, and what they come to on this machine.
//! * [`in_force`]: the filter that the kernel has, and the list that it was made of.
//! * [`links`]: rules that follow from the gateway's links.
//! * [`moved`]: connections without packets, which are reset when they are denied, by a process of its own.
//! * [`control_groups`]: their names, for the log.
//! * [`groups`]: what the control groups in rules are here.
//! * [`add`], [`apply`], [`resolve`], [`check`], [`show`], [`watch`], [`mod@test`], [`diff`], [`import`]: the commands.

mod add;
mod answer;
mod apply;
mod check;
mod control_groups;
mod diff;
mod groups;
mod import;
mod in_force;
mod links;
mod moved;
mod resolve;
mod show;
mod source;
mod test;
mod watch;

use crate::args::{FilterArgs, FilterCommand};
use crate::output;
use answer::{FilterError, say};
pub(super) use control_groups::ControlGroups;
pub(super) use groups::control_group_of;
use in_force::InForce;
pub(super) use in_force::{Figures, Owner, denial, figures, summary};

/// Does what was asked for; 1 if it could not be done, otherwise 0.
pub(crate) fn execute(args: &FilterArgs) -> i32 {
    let (command, done) = match &args.command {
        FilterCommand::Check(args) => ("check", check::execute(args)),
        FilterCommand::Apply(args) => ("apply", apply::execute(args)),
        FilterCommand::Resolve(args) => ("resolve", resolve::execute(args)),
        FilterCommand::Add(args) => ("add", add::execute(args)),
        FilterCommand::Show(args) => ("show", show::show(args)),
        FilterCommand::List(args) => ("list", show::list(args)),
        FilterCommand::Watch(args) => ("watch", watch::execute(args)),
        FilterCommand::Test(args) => ("test", test::execute(args)),
        FilterCommand::Diff(args) => ("diff", diff::execute(args)),
        FilterCommand::Import(args) => ("import", import::execute(args)),
        FilterCommand::Remove => ("remove", remove()),
        FilterCommand::EndDenied(args) => {
            ("end-denied", moved::apart::execute(args).map_err(FilterError::Output))
        }
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            output::complain_lines(&format!("filter {command}"), &error.to_string());
            1
        }
    }
}

fn remove() -> Result<(), FilterError> {
    let _lock = in_force::lock()?;
    let filter = InForce::find()?.ok_or(FilterError::None)?;
    filter.remove()?;
    say("no filter is in force: every packet passes\n")
}
