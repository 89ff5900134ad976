//! `sidestep decode`: what the two ends of connections said to each other before they talked SMC, and
//! what they say by RDMA then, from a packet capture.
//!
//! A capture becomes segments ([`capture`]), segments become connections ([`streams`]), the first
//! bytes of these a list of steps ([`step`], [`conversation`]) that a [`referee`] watches. Packets of RoCEv2
//! become messages of links ([`rdma`]). Then all of it ([`decoded`]) is shown: [`figure`], [`json`], with [`fields`] in
//! words.

mod capture;
mod conversation;
mod decoded;
mod fields;
mod figure;
mod json;
mod rdma;
mod referee;
mod step;
mod streams;

use std::io::{self, IsTerminal};

use thiserror::Error;

use crate::args::DecodeArgs;
use crate::output;
use capture::{Broken, CaptureError, Content};
use conversation::{Conversation, Outcome};
use decoded::Decoded;
use figure::Painter;
use rdma::Rdma;
use streams::{Connections, Moment};

/// Shows the conversations; 1 if a rule was broken or not all could be read, otherwise 0.
pub(crate) fn execute(args: &DecodeArgs) -> i32 {
    let file = args.file.display();
    match decode(args) {
        Ok(0) => 0,
        Ok(_) => 1,
        Err(DecodeError::Output(error)) => {
            output::complain("decode", format_args!("cannot write: {error}"));
            1
        }
        Err(error) => {
            output::complain("decode", format_args!("{file} {error}"));
            1
        }
    }
}

/// Why nothing, or not all, is shown.
#[derive(Debug, Error)]
enum DecodeError {
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error(
        "has no packets of TCP or RoCEv2, of {0} in all; record those of the connection and of RDMA, from before it \
         begins:\n  tcpdump -i any -w FILE 'tcp or udp port 4791'"
    )]
    NothingOfSmc(u64),
    #[error("{0} after {1} packets; what comes before is shown. Record it again, or copy it whole")]
    Broken(Broken, u64),
    #[error("{0}")]
    Output(io::Error),
}

/// Shows what is in the capture and returns how many rules were broken.
fn decode(args: &DecodeArgs) -> Result<usize, DecodeError> {
    let decoded = read(args)?;
    let packets = decoded.extent.packets;
    let is_empty = decoded.connections.streams().is_empty() && decoded.rdma.hosts().is_empty();
    if is_empty && decoded.extent.broken.is_none() {
        return Err(DecodeError::NothingOfSmc(packets));
    }
    let all = decoded.connections.streams().iter().map(Conversation::new);
    let shown: Vec<_> = all.filter(|it| args.all || it.is_about_smc()).collect();
    let printed = match args.json {
        true => output::print_json(&json::document(&decoded, &shown)),
        false => output::print_coloured(&text(&decoded, &shown)),
    };
    printed.map_err(DecodeError::Output)?;
    match decoded.extent.broken {
        Some(broken) => Err(DecodeError::Broken(broken, packets)),
        None => Ok(decoded.broken_rules(&shown)),
    }
}

fn read(args: &DecodeArgs) -> Result<Decoded, DecodeError> {
    let mut connections = Connections::default();
    let mut rdma = Rdma::default();
    let extent = capture::read(&args.file, |packet| {
        let moment = Moment { packet: packet.number, at: packet.at };
        match packet.content {
            Content::Tcp(segment) => {
                let place = connections.take(moment, &segment);
                rdma.learn(place, &connections.streams()[place]);
            }
            Content::Roce(datagram) => rdma.take(moment, &datagram),
        }
    })?;
    Ok(Decoded { extent, connections, rdma })
}

fn text(decoded: &Decoded, shown: &[Conversation<'_>]) -> String {
    let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let painter = Painter { colour };
    let mut text = String::new();
    for conversation in shown {
        text += &painter.figure(conversation);
        text.push('\n');
    }
    for link in decoded.rdma.links() {
        text += &painter.link(link, &decoded.rdma.connections(link));
        text.push('\n');
    }
    for ([a, b], traffic) in decoded.rdma.hosts() {
        text += &format!("RoCEv2 between {a} and {b}: packets {}", traffic.packets);
        if traffic.strange > 0 {
            text += &format!(", of no link: {}", traffic.strange);
        }
        text.push('\n');
    }
    text + &sums(decoded, shown)
}

fn sums(decoded: &Decoded, shown: &[Conversation<'_>]) -> String {
    let count = |is: fn(&Outcome) -> bool| shown.iter().filter(|it| is(&it.outcome)).count();
    let smc = count(|outcome| matches!(outcome, Outcome::Smc { .. }));
    let open = count(|outcome| matches!(outcome, Outcome::Open(_)));
    let all = decoded.connections.streams().len();
    let beside = count(|outcome| matches!(outcome, Outcome::Beside(_)));
    let tcp = all - smc - open - beside;
    let broken = decoded.broken_rules(shown);
    let mut text = format!("Connections: {all}; SMC: {smc}, TCP: {tcp}");
    if beside > 0 {
        text += &format!(", agreed on beside the connection: {beside}");
    }
    if open > 0 {
        text += &format!(", without agreement: {open}");
    }
    match all - shown.len() {
        0 => {}
        hidden => text += &format!("; not shown, without a sign of SMC: {hidden} (--all)"),
    }
    text + &format!("; broken rules: {broken}\n")
}
