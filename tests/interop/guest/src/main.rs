//! The program of the guests of `cargo xtask interop`: the first process of the machine, or, as
//! `sidestep-guest talk '<JSON>'`, one end of some connections (see the library of this package for
//! both languages).

#![forbid(unsafe_code)]

mod agent;
mod boot;
mod netlink;
mod network;
mod smc;
mod talk;

use anyhow::{Result, bail};
use sidestep_guest::Event;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words[..] {
        // The kernel hands on words of its command line.
        _ if std::process::id() == 1 => be_first(),
        [word, json] if word == "talk" => {
            let talk = serde_json::from_str(json)?;
            let played = talk::play(&talk);
            played.or_else(|error| talk::say(&Event::Failed(format!("{error:#}"))))
        }
        _ => bail!("usage: sidestep-guest talk '<JSON>'"),
    }
}

/// Whatever happens, the machine ends with it: what is printed is in the console's log.
fn be_first() -> Result<()> {
    if let Err(error) = boot::start().and_then(|()| agent::serve()) {
        eprintln!("sidestep-guest: {error:#}");
    }
    agent::power_off()
}
