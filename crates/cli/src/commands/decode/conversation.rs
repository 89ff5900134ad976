//! What two ends said to each other while a connection was set up, step by step.

use sidestep_wire::clc::{Eyecatcher, Header, Message, MessageType};
use sidestep_wire::{Diagnosis, Error};

use super::referee::Referee;
use super::step::{Step, What, kind, release};
use super::streams::{Half, Side, Stream};

/// A connection, as a list of steps and what came of it.
pub(super) struct Conversation<'a> {
    pub(super) stream: &'a Stream,
    pub(super) steps: Vec<Step>,
    pub(super) outcome: Outcome,
    /// Bytes that each side sent behind its CLC messages: client, server.
    pub(super) behind: [usize; 2],
}

/// What came of the handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Both ends agreed on SMC.
    Smc { kind: String, first_contact: bool },
    /// Plain TCP, for this reason.
    Tcp(String),
    /// Programs of Sidestep on one host, which agree beside the connection.
    Beside(String),
    /// A rule was broken so that nothing can come of it, or the capture ends before.
    Open(String),
}

impl<'a> Conversation<'a> {
    pub(super) fn new(stream: &'a Stream) -> Self {
        let mut steps = openings(stream);
        let mut behind = [0; 2];
        for (side, behind) in [Side::Client, Side::Server].into_iter().zip(&mut behind) {
            let half = stream.half(side);
            let (said, end) = read(half, side);
            steps.extend(said);
            *behind = half.sent() - end;
        }
        steps.sort_by_key(|step| step.moment);

        let mut referee = Referee::new(stream);
        for step in &mut steps {
            step.broken = referee.judge(step.from, &step.what);
        }
        let outcome = outcome(stream, &steps);
        // Plain TCP may send what it likes: that is told by the outcome.
        steps.retain(|step| !matches!(step.what, What::Bytes) || !step.broken.is_empty());
        Self { stream, steps, outcome, behind }
    }

    /// Whether there is any sign of SMC.
    pub(super) fn is_about_smc(&self) -> bool {
        self.steps.iter().any(|step| match step.what {
            What::Syn(option) | What::SynAck(option) => option.is_some(),
            What::Clc { .. } | What::Fragment { .. } | What::Garbled(_) => true,
            What::Bytes => false,
        })
    }

    pub(super) fn broken_rules(&self) -> usize {
        self.steps.iter().map(|step| step.broken.len()).sum()
    }
}

fn openings(stream: &Stream) -> Vec<Step> {
    let syn = stream.syn.map(|syn| (syn.moment, Side::Client, What::Syn(syn.option)));
    let syn_ack = stream.syn_ack.map(|it| (it.moment, Side::Server, What::SynAck(it.option)));
    let step = |(moment, from, what)| Step { moment, from, what, broken: Vec::new() };
    [syn, syn_ack].into_iter().flatten().map(step).collect()
}

/// The CLC messages at the front of a direction, the first bytes behind them, and where these begin.
pub(super) fn read(half: &Half, from: Side) -> (Vec<Step>, usize) {
    let mut steps = Vec::new();
    let mut at = 0;
    let mut push = |end, what| {
        if let Some(moment) = half.arrival(end) {
            steps.push(Step { moment, from, what, broken: Vec::new() });
        }
    };
    while starts_with_eyecatcher(&half.bytes()[at..]) {
        let rest = &half.bytes()[at..];
        let header = match Header::parse(rest) {
            Ok(header) => header,
            Err(Error::Truncated { present, .. }) => {
                push(half.bytes().len(), What::Fragment { header: None, present });
                return (steps, half.sent());
            }
            Err(error) => {
                push(half.bytes().len().min(at + Header::LEN), What::Garbled(error));
                return (steps, half.sent());
            }
        };
        let length = usize::from(header.length);
        let Some(bytes) = rest.get(..length) else {
            let header = Some(header);
            push(half.bytes().len(), What::Fragment { header, present: rest.len() });
            return (steps, half.sent());
        };
        at += length;
        let is_framed_alike = bytes[..4] == bytes[length - 4..];
        push(at, What::Clc { header, message: Message::parse(bytes), is_framed_alike });
    }
    if half.bytes().len() > at {
        push(at + 1, What::Bytes);
    }
    (steps, at)
}

fn starts_with_eyecatcher(bytes: &[u8]) -> bool {
    [Eyecatcher::SmcR, Eyecatcher::SmcD].iter().any(|it| bytes.starts_with(&it.to_bytes()))
}

fn outcome(stream: &Stream, steps: &[Step]) -> Outcome {
    let messages = || {
        steps.iter().filter_map(|step| match &step.what {
            What::Clc { header, message, .. } => Some((step.from, header, message)),
            _ => None,
        })
    };
    let has = |kind| messages().any(|(_, header, _): (_, &Header, _)| header.message_type == kind);
    for (from, _, message) in messages() {
        if let Ok(Message::Decline(decline)) = message {
            return Outcome::Tcp(declined(from, decline.diagnosis));
        }
    }
    let options = [stream.syn, stream.syn_ack].map(|opening| opening.map(|it| it.option.is_some()));
    match options {
        [Some(false), _] if !has(MessageType::Proposal) => {
            return Outcome::Tcp("the client shows no SMC option".into());
        }
        [_, Some(false)] if !has(MessageType::Proposal) => {
            return Outcome::Tcp("the server shows no SMC option".into());
        }
        _ => {}
    }
    let confirmed = messages().find_map(|(_, _, message)| match message {
        Ok(Message::Confirm(confirm)) => Some(confirm),
        _ => None,
    });
    if let Some(confirm) = confirmed {
        let release = messages().find_map(|(_, _, message)| match message {
            Ok(Message::Accept(accept)) => release(accept),
            _ => None,
        });
        return Outcome::Smc {
            kind: kind(confirm, release.or_else(|| self::release(confirm))),
            first_contact: confirm.is_first_contact(),
        };
    }
    if steps.iter().any(|step| matches!(step.what, What::Garbled(_)))
        || messages().any(|(_, _, message)| message.is_err())
    {
        return Outcome::Open("no agreement: a message cannot be read".into());
    }
    if steps.iter().any(|step| matches!(step.what, What::Fragment { .. })) {
        let advice = "whole packets are recorded by `tcpdump -s 0`";
        return Outcome::Open(format!("no agreement: a message is not all there; {advice}"));
    }
    let is_silent = messages().next().is_none();
    if options == [Some(true); 2] && is_silent && stream.is_of_one_host() {
        let words = "SMC is offered by both ends, and agreed on beside the connection";
        return Outcome::Beside(words.into());
    }
    let missing = match options {
        _ if has(MessageType::Accept) => "Confirm",
        _ if has(MessageType::Proposal) => "Accept",
        [_, None] => "SYN-ACK",
        _ => "Proposal",
    };
    Outcome::Open(format!("no agreement: the capture has no {missing}"))
}

fn declined(by: Side, diagnosis: Diagnosis) -> String {
    format!("declined by the {}: {}", by.name(), diagnosis.meaning())
}
