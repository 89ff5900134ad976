//! Conversations and links as figures: the client at the left, the server at the right, time
//! downwards.

use std::fmt::Write;

use sidestep_wire::clc::Header;

use super::conversation::{Conversation, Outcome};
use super::fields::{self, Field};
use super::rdma::{End, Link};
use super::step::{Step, What};
use super::streams::{Moment, Side};

/// Columns of a figure.
const WIDTH: usize = 100;
/// Columns between the two life lines.
const INNER: usize = WIDTH - GUTTER - 2;
/// Columns left of the client: packet number and time.
const GUTTER: usize = 18;
/// Columns of one short field; two stand side by side.
const CELL: usize = 38;
/// Columns of the name of a field.
const NAME: usize = 13;
/// Blanks between a life line and what is told of a message.
const INDENT: usize = 4;

/// Puts figures on the terminal, or in a file.
pub(super) struct Painter {
    /// Escape sequences for colours are understood.
    pub(super) colour: bool,
}

#[derive(Clone, Copy)]
enum Ink {
    Bold,
    Dim,
    Good,
    Notice,
    Alarm,
}

impl Painter {
    fn ink(&self, ink: Ink, text: &str) -> String {
        if !self.colour {
            return text.to_owned();
        }
        let escape = match ink {
            Ink::Bold => "\x1b[1m",
            Ink::Dim => "\x1b[2m",
            Ink::Good => "\x1b[32m",
            Ink::Notice => "\x1b[33m",
            Ink::Alarm => "\x1b[31;1m",
        };
        format!("{escape}{text}\x1b[0m")
    }

    /// The figure of one conversation.
    pub(super) fn figure(&self, conversation: &Conversation<'_>) -> String {
        let stream = conversation.stream;
        let mut text =
            self.title(&format!("{} → {}", stream.client, stream.server), stream.started);
        let _ = writeln!(text, "{}\n", self.result(conversation));
        let ends = [stream.client.ip(), stream.server.ip()].map(|ip| ip.to_string());
        self.heads(["client ", "server "], &ends, &mut text);
        for step in &conversation.steps {
            self.step(step, conversation, &mut text);
        }
        self.band(&what_follows(conversation), &mut text);
        text
    }

    /// The figure of one link, with the connections of its group.
    pub(super) fn link(&self, link: &Link, connections: &[&str]) -> String {
        let [client, server] = link.ends.each_ref().map(End::name);
        let started = link.lines.first().map_or(Moment { packet: 0, at: 0 }, |line| line.moment);
        let mut text = self.title(&format!("link {client} ↔ {server}"), started);
        let number = link.number.map_or_else(String::new, |number| format!(" {number}"));
        let of = match connections {
            [] => "a link of which the capture has no handshake".into(),
            [first, ..] => {
                format!("link{number} of the group of {first}; connections {}", connections.len())
            }
        };
        let _ = writeln!(text, "{of}; packets {}\n", link.packets);
        let names = if link.is_known { ["client ", "server "] } else { [""; 2] };
        self.heads(names, &[client, server], &mut text);
        for line in &link.lines {
            let gutter = gutter(line.moment, started);
            self.event(&gutter, line.from, &line.label(), line.fields(), &line.broken, &mut text);
        }
        let rest = match link.hidden {
            0 => "nothing more in the capture".into(),
            hidden => format!("not shown, too many: {hidden}"),
        };
        self.band(&rest, &mut text);
        text
    }

    /// The first line of a figure.
    fn title(&self, title: &str, started: Moment) -> String {
        let began = jiff::Timestamp::from_nanosecond(started.at.into());
        let began = began.map_or_else(|_| String::new(), |began| format!("{began:.6}"));
        let blank = WIDTH.saturating_sub(title.chars().count());
        // A title may be so long that the time stands below it.
        if blank < began.len() + 1 {
            let began = format!("{began:>WIDTH$}");
            return format!("{}\n{}\n", self.ink(Ink::Bold, title), self.ink(Ink::Dim, &began));
        }
        let began = format!("{began:>blank$}");
        format!("{}{}\n", self.ink(Ink::Bold, title), self.ink(Ink::Dim, &began))
    }

    /// Who stands at the two life lines.
    fn heads(&self, names: [&str; 2], ends: &[String; 2], text: &mut String) {
        let [client, server] = [0, 1].map(|side| format!("{}{}", names[side], ends[side]));
        let heads = format!("{:>7} {:>9} ", "packet", "ms");
        let width = (INNER + 2).saturating_sub(client.len()).max(server.len() + 1);
        let line = format!("{heads}{client}{server:>width$}");
        let _ = writeln!(text, "{}", self.ink(Ink::Dim, &line));
    }

    /// What came of it, in one line.
    fn result(&self, conversation: &Conversation<'_>) -> String {
        match &conversation.outcome {
            Outcome::Smc { kind, first_contact } => {
                let contact = if *first_contact { "first" } else { "subsequent" };
                self.ink(Ink::Good, &format!("{kind}, {contact} contact"))
            }
            Outcome::Tcp(reason) => self.ink(Ink::Notice, &format!("plain TCP: {reason}")),
            Outcome::Beside(words) => self.ink(Ink::Notice, words),
            Outcome::Open(reason) => self.ink(Ink::Alarm, reason),
        }
    }

    fn step(&self, step: &Step, conversation: &Conversation<'_>, text: &mut String) {
        let gutter = gutter(step.moment, conversation.stream.started);
        let (label, fields) = told(&step.what);
        self.event(&gutter, step.from, &label, &fields, &step.broken, text);
    }

    /// An arrow with what is told of it, and the rules that it breaks.
    fn event(
        &self,
        gutter: &str,
        from: Side,
        label: &str,
        fields: &[Field],
        broken: &[String],
        text: &mut String,
    ) {
        let arrow = self.arrow(from, label, broken.is_empty());
        let _ = writeln!(text, "{}{arrow}", self.ink(Ink::Dim, gutter));
        for row in rows(fields) {
            self.between(&row, text);
        }
        for rule in broken {
            for (index, line) in wrapped(rule, INNER - 2 * INDENT - 3).into_iter().enumerate() {
                let mark = if index == 0 { "!! " } else { "   " };
                self.between(&[(Some(Ink::Alarm), format!("{mark}{line}"))], text);
            }
        }
    }

    /// A message under way, with its name near who sent it.
    fn arrow(&self, from: Side, label: &str, is_good: bool) -> String {
        let label = format!(" {label} ");
        let shafts = INNER.saturating_sub(label.chars().count() + 1);
        let (short, long) = ("─".repeat(3), "─".repeat(shafts.saturating_sub(3)));
        let label = self.ink(if is_good { Ink::Bold } else { Ink::Alarm }, &label);
        match from {
            Side::Client => format!("│{short}{label}{long}▶│"),
            Side::Server => format!("│◀{long}{label}{short}│"),
        }
    }

    /// A line between the life lines.
    fn between(&self, pieces: &[Piece], text: &mut String) {
        let len: usize = pieces.iter().map(|(_, piece)| piece.chars().count()).sum();
        let _ = write!(text, "{:GUTTER$}│{:INDENT$}", "", "");
        for (ink, piece) in pieces {
            let inked = ink.map(|ink| self.ink(ink, piece));
            text.push_str(inked.as_ref().unwrap_or(piece));
        }
        let _ = writeln!(text, "{:blank$}│", "", blank = (INNER - INDENT).saturating_sub(len));
    }

    /// What becomes of the connection, across both life lines.
    fn band(&self, words: &str, text: &mut String) {
        let words = format!(" {words} ");
        let blank = INNER.saturating_sub(words.chars().count());
        let (left, right) = ("═".repeat(blank / 2), "═".repeat(blank - blank / 2));
        let _ = writeln!(text, "{:GUTTER$}╞{left}{}{right}╡", "", self.ink(Ink::Bold, &words));
    }
}

/// Packet number, and milliseconds since the beginning.
fn gutter(moment: Moment, started: Moment) -> String {
    let nanos = moment.at.saturating_sub(started.at);
    format!("{:>7} {:>9.3} ", moment.packet, nanos as f64 / 1e6)
}

/// Text, and how it looks.
type Piece = (Option<Ink>, String);

/// What a step is called, and what is in it.
fn told(what: &What) -> (String, Vec<Field>) {
    let with_option = |name: &str, option: &Option<u8>| match option {
        Some(_) => format!("{name} with the SMC option"),
        None => format!("{name} without the SMC option"),
    };
    let named = |header: &Header| {
        let Header { message_type, version, .. } = header;
        format!("{message_type} version {}", version.code())
    };
    match what {
        What::Syn(option) => (with_option("SYN", option), Vec::new()),
        What::SynAck(option) => (with_option("SYN-ACK", option), Vec::new()),
        What::Clc { header, message, .. } => {
            let fields = message.as_ref().map_or_else(|_| Vec::new(), fields::of);
            (format!("{}, {} bytes", named(header), header.length), fields)
        }
        What::Fragment { header: Some(header), present } => {
            let (name, length) = (named(header), header.length);
            (format!("{name}: the capture has {present} of {length} bytes"), Vec::new())
        }
        What::Fragment { header: None, present } => {
            (format!("CLC: the capture has {present} bytes of it"), Vec::new())
        }
        What::Garbled(_) => ("a CLC header that makes no sense".into(), Vec::new()),
        What::Bytes => ("other bytes".into(), Vec::new()),
    }
}

fn what_follows(conversation: &Conversation<'_>) -> String {
    let [client, server] = conversation.behind;
    let bytes = format!("{client} bytes by the client, {server} by the server");
    match &conversation.outcome {
        Outcome::Smc { kind, .. } if kind.starts_with("SMC-R") => {
            "SMC-R: the bytes go by RDMA, see the links below".into()
        }
        Outcome::Smc { .. } => "SMC-D: the bytes go through shared memory".into(),
        Outcome::Tcp(_) => format!("TCP: {bytes}"),
        Outcome::Beside(_) => format!("by TCP: {bytes}; see `sidestep ss`"),
        Outcome::Open(_) if client + server > 0 => format!("not understood: {bytes}"),
        Outcome::Open(_) => "nothing more in the capture".into(),
    }
}

/// Fields, two in a row where both are short.
fn rows(fields: &[Field]) -> Vec<Vec<Piece>> {
    let mut rows: Vec<Vec<Piece>> = Vec::new();
    let mut has_room = false;
    for (name, value) in fields {
        let name = (Some(Ink::Dim), format!("{name:<NAME$}"));
        let is_short = NAME + value.chars().count() < CELL;
        if has_room && is_short {
            rows.last_mut().into_iter().for_each(|row| {
                row.extend([name.clone(), (None, value.clone())]);
            });
            has_room = false;
            continue;
        }
        has_room = is_short;
        if is_short {
            let width = CELL - NAME;
            rows.push(vec![name, (None, format!("{value:<width$}"))]);
            continue;
        }
        let mut lines = wrapped(value, INNER - 2 * INDENT - NAME).into_iter();
        rows.push(vec![name, (None, lines.next().unwrap_or_default())]);
        rows.extend(lines.map(|line| vec![(None, format!("{:NAME$}{line}", ""))]));
    }
    rows
}

/// Lines of at most `width` columns, broken at blanks where there are any.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("it begins with one");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}
