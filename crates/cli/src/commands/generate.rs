//! `sidestep generate`: manual pages and completions, made from the command line that this program has, and what
//! container runtimes read ([`cdi`]).
//!
//! A package runs it for the first two once, when it is built. So neither can tell of an option that is not there.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::container_edits::EditsError;
use crate::args::{Args, GenerateArgs, GenerateCommand};
use crate::output;
pub(super) use cdi::KIND as CDI_KIND;

mod cdi;

const MANUAL: &str = "Sidestep";
/// The first words of paragraphs of the help for which a manual page has a section.
const SECTIONS: [(&str, &str); 2] = [("Examples:", "EXAMPLES"), ("Exit status:", "EXIT STATUS")];

/// What a program or a page may want to know of, with what it is.
const FILES: [(&str, &str); 4] = [
    ("/etc/sidestep/sidestep.toml", "The configuration of the machine."),
    (
        "~/.config/sidestep/sidestep.toml",
        "The configuration of a user, which goes before that of the machine.",
    ),
    ("/run/sidestep/agent.sock", "Where sidestep-agent(1) listens."),
    ("/usr/lib/sidestep/libsidestep.so", "The library that sidestep-run(1) preloads."),
];
const ENVIRONMENT: [(&str, &str); 2] = [
    ("SIDESTEP_CONFIG", "A configuration file that goes before those of the user and the machine."),
    ("SIDESTEP_LIBRARY", "Another library than the one that was installed with the program."),
];

/// Writes what was asked for; 1 if it cannot be written.
pub(crate) fn execute(args: &GenerateArgs) -> i32 {
    let written = match &args.command {
        GenerateCommand::Man { directory } => write_pages(directory),
        GenerateCommand::Completions { shell } => print_completions(*shell),
        GenerateCommand::Cdi => match cdi_text() {
            Ok(text) => output::print(&text).map(|_| ()),
            Err(error) => return failed(error),
        },
    };
    written.map_or_else(failed, |()| 0)
}

/// Where runtimes of containers look for what [`cdi_text`] is.
pub(super) const CDI_FILE: &str = "/etc/cdi/sidestep.json";

/// The file by which a container gets a device.
///
/// # Errors
///
/// The configuration has a mistake, or there is no library.
pub(super) fn cdi_text() -> Result<String, EditsError> {
    Ok(format!("{:#}\n", cdi::specification()?))
}

fn failed(error: impl std::fmt::Display) -> i32 {
    output::complain("generate", error);
    1
}

fn print_completions(shell: Shell) -> io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "sidestep", &mut script);
    output::print(&String::from_utf8_lossy(&script)).map(|_| ())
}

/// A page for `sidestep`, and one for each command below it: `sidestep-filter-apply.1`.
fn write_pages(directory: &Path) -> io::Result<()> {
    let mut root = Args::command().disable_help_subcommand(true);
    root.build();
    write_page_and_those_below(&root, directory)
}

fn write_page_and_those_below(command: &clap::Command, directory: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = directory.join(format!("{name}.1"));
    File::create(&path)
        .map(BufWriter::new)
        .and_then(|mut file| write_page(command, name, &mut file).and_then(|()| file.flush()))
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    command.get_subcommands().try_for_each(|below| write_page_and_those_below(below, directory))
}

fn write_page(command: &clap::Command, name: &str, page: &mut impl Write) -> io::Result<()> {
    let is_root = !name.contains('-');
    let version = concat!("Sidestep ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).title(name).source(version).manual(MANUAL);
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    if command.get_arguments().next().is_some() {
        man.render_options_section(page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(page)?;
    }
    if let Some(text) = command.get_after_help() {
        write_after_help(&text.to_string(), page)?;
    }
    if is_root {
        write_list("FILES", &FILES, page)?;
        write_list("ENVIRONMENT", &ENVIRONMENT, page)?;
    } else {
        let mut section = Roff::new();
        section.control("SH", ["SEE ALSO"]).text([roman("sidestep(1)")]);
        section.to_writer(page)?;
    }
    Ok(())
}

/// What follows the options in the help, as it stands: each paragraph that has a section by its first
/// words in that, the others as notes.
fn write_after_help(text: &str, page: &mut impl Write) -> io::Result<()> {
    for paragraph in text.split("\n\n") {
        let known = SECTIONS.iter().find_map(|(words, heading)| {
            paragraph.strip_prefix(words).map(|rest| (*heading, rest))
        });
        let (heading, rest) = known.unwrap_or(("NOTES", paragraph));
        let mut section = Roff::new();
        section.control("SH", [heading]).control("nf", []);
        section.text(
            rest.trim_start().lines().map(|line| roman(format!("{line}\n"))).collect::<Vec<_>>(),
        );
        section.control("fi", []);
        section.to_writer(page)?;
    }
    Ok(())
}

fn write_list(heading: &str, entries: &[(&str, &str)], page: &mut impl Write) -> io::Result<()> {
    let mut section = Roff::new();
    section.control("SH", [heading]);
    for (term, text) in entries {
        section.control("TP", []).text([roman(*term)]).text([roman(*text)]);
    }
    section.to_writer(page)
}
