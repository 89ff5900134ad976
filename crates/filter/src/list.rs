//! The order of rules, the default, and one line of text for each rule.
//!
//! ```text
//! # what                   from            to                which
//! permit tcp               10.0.0.0/8      192.0.2.7:443     in on eth0
//! permit tcp               any             [2001:db8::7]:443 in
//! permit icmp:8            any             any               in
//! deny   udp               any             any:6000-6010     user nobody
//! deny   any               10.1.0.0/16     any               log
//! default permit
//! ```
//!
//! ```text
//! LINE      = RULE | "default" ACTION ["log"] | nothing; behind "#" is a comment
//! RULE      = ACTION PROTOCOL END END ["in" | "out" | "both" | "forwarded"] ["on" INTERFACE] ["user" NAME|NUMBER]
//!             ["cgroup" PATH | "unit" UNIT] ["tls"] ["log"]
//! ACTION    = "permit" | "deny"
//! PROTOCOL  = "any" | "tcp" | "udp" | "sctp" | NUMBER
//!           | ("icmp" | "icmp6") [":" TYPE ["/" CODE]]
//! END       = "any" | ADDRESS ["/" LENGTH], either with ":" PORTS; IPv6 with ports in brackets
//! PORTS     = PORT | LOW "-" HIGH | LOW "-"
//! ```
//!
//! Without a line `default` what no rule matches passes.

mod line;

use std::fmt::{self, Display};

use thiserror::Error;

use crate::packet::Packet;
use crate::rule::{Action, LaterRule, Names, Rule};

/// Rules in their order; the first that matches decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleList {
    /// The rules, the first first.
    pub rules: Vec<Rule>,
    /// What becomes of packets that no rule matches.
    pub default: Action,
    /// Those packets are told in the log.
    pub is_default_logged: bool,
    /// The line of each rule, from 1, where the list was read from text; otherwise empty.
    lines: Vec<u32>,
}

/// What is wrong in a list, and where.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{line}:{column}: {message}")]
pub struct ListError {
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
    /// A sentence.
    pub message: String,
}

/// Rules in a list: at this many the graph of the widest of them still has indices of 32 bits.
pub const RULES_MAX: usize = 1_000_000;

/// Errors that are told of one text; the rest of it is not looked at.
const ERRORS_MAX: usize = 20;

impl RuleList {
    /// One of these rules.
    #[must_use]
    pub fn new(rules: Vec<Rule>, default: Action) -> Self {
        Self { rules, default, ..Self::default() }
    }

    /// Reads the lines of a list.
    ///
    /// # Errors
    /// What is wrong, in the order of the lines, up to 20 of them.
    pub fn parse(text: &str) -> Result<Self, Vec<ListError>> {
        let (mut list, mut errors) = (Self::default(), Vec::new());
        let mut default_at = None;
        for (number, line) in (1..).zip(text.lines()) {
            let fault = match line::parse(line) {
                Ok(None) => continue,
                Ok(Some(line::Line::Rule(_))) if list.rules.len() == RULES_MAX => {
                    line::Fault::at_begin(format!("a list has up to {RULES_MAX} rules"))
                }
                Ok(Some(line::Line::Rule(rule))) => {
                    list.rules.push(rule);
                    list.lines.push(number);
                    continue;
                }
                Ok(Some(line::Line::Default { action, is_logged })) => {
                    match default_at.replace(number) {
                        None => {
                            (list.default, list.is_default_logged) = (action, is_logged);
                            continue;
                        }
                        Some(before) => {
                            line::Fault::at_begin(format!("line {before} has the default already"))
                        }
                    }
                }
                Err(fault) => fault,
            };
            let column = fault.column(line);
            let message = fault.message;
            errors.push(ListError { line: number as usize, column, message });
            if errors.len() == ERRORS_MAX {
                break;
            }
        }
        if errors.is_empty() { Ok(list) } else { Err(errors) }
    }

    /// The line that a rule was read from, from 1; without text its place in the order, from 1.
    #[must_use]
    pub fn line_of(&self, rule: usize) -> usize {
        self.lines.get(rule).map_or(rule + 1, |&line| line as usize)
    }

    /// This list with rules that come later, as if it had been written so, and the number that each of its rules has in
    /// verdicts. Later rules are in no line: [`Self::line_of`] says 0.
    #[must_use]
    pub fn with_later(&self, later: &[LaterRule]) -> (Self, Vec<usize>) {
        let (mut list, mut numbers) =
            (Self { rules: Vec::new(), lines: Vec::new(), ..self.clone() }, Vec::new());
        for place in 0..=self.rules.len() {
            let here = (self.rules.len() + 1..).zip(later).filter(|(_, it)| it.before == place);
            for (number, it) in here {
                list.rules.push(it.rule.clone());
                list.lines.push(0);
                numbers.push(number);
            }
            if let Some(rule) = self.rules.get(place) {
                list.rules.push(rule.clone());
                list.lines.push(self.line_of(place) as u32);
                numbers.push(place);
            }
        }
        (list, numbers)
    }

    /// What stands behind `default` in a list.
    #[must_use]
    pub fn default_words(&self) -> String {
        format!("{}{}", self.default, if self.is_default_logged { " log" } else { "" })
    }

    /// The first rule that matches, by looking at one after the other.
    #[must_use]
    pub fn first_match(&self, packet: &Packet, names: &impl Names) -> Option<usize> {
        self.rules.iter().position(|rule| rule.matches(packet, names))
    }
}

/// As text that [`RuleList::parse`] reads.
impl Display for RuleList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rules.iter().try_for_each(|rule| writeln!(f, "{rule}"))?;
        writeln!(f, "default {}", self.default_words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_was_read() {
        let text = "\
permit tcp 10.0.0.0/8:1024- 192.0.2.7:443 in on eth0
permit tcp any [2001:db8::7]:443 in
permit icmp:8 any any in
deny icmp6:1/4 any any out
deny udp any any:6000-6010 user nobody log
deny udp any any:53 out cgroup /system.slice/a.service
permit tcp any any:443 out user 7 unit nginx.service log
deny 47 10.1.0.0/16 any user 1000
deny tcp any any:25 forwarded on eth1
permit tcp any any:25 both
permit tcp any any:6514 out user syslog tls log
default deny log
";
        let list = RuleList::parse(text).unwrap();
        assert_eq!(list.to_string(), text);
        assert_eq!(list.default, Action::Deny);
        let spread = "# a comment\n\n  permit\ttcp any any # all\n";
        let list = RuleList::parse(spread).unwrap();
        assert_eq!((list.rules.len(), list.line_of(0)), (1, 3));
        assert_eq!(list.to_string(), "permit tcp any any\ndefault permit\n");
    }

    #[test]
    fn an_error_says_where_and_what_to_write() {
        let cases = [
            ("allow tcp any any", "1:1: begin with permit, deny or default, not `allow`"),
            (
                "permit",
                "1:7: the protocol is missing: any, tcp, udp, sctp, icmp, icmp6 or a number",
            ),
            (
                "permit tpc any any",
                "1:8: `tpc` is no protocol: use any, tcp, udp, sctp, icmp, icmp6 or a number",
            ),
            ("permit tcp any", "1:15: where packets go is missing: any, or an address"),
            ("permit tcp 10.0.0.0/33 any", "1:12: `10.0.0.0/33` is no address"),
            (
                "permit tcp 10.0.0.1/8 any",
                "1:12: 10.0.0.1/8 has bits behind its length: 10.0.0.0/8 is meant, or 10.0.0.1",
            ),
            ("permit any any:80 any", "1:12: only tcp, udp and sctp have ports: name the protocol"),
            ("permit tcp any any:9-8", "1:20: the ports 9-8 end before they begin"),
            (
                "permit tcp any any:x",
                "1:20: `x` is no port, nor a range such as 6000-6010 or 1024-",
            ),
            (
                "permit tcp 10.0.0.1 2001:db8::1",
                "1:21: the two addresses are of different families",
            ),
            ("permit icmp6 10.0.0.1 any", "1:23: icmp6 is of IPv6, and the addresses are of IPv4"),
            ("permit tcp any any in out", "1:23: the direction is there twice"),
            ("permit tcp any any on", "1:22: `on` needs a name behind it"),
            (
                "permit tcp any any on abcdefghijklmnop",
                "1:23: `abcdefghijklmnop` is no interface: names have up to 15 characters",
            ),
            (
                "permit tcp any any loudly",
                "1:20: `loudly` is no condition: use in, out, both, forwarded, on INTERFACE, user NAME, cgroup PATH, unit UNIT, tls, log",
            ),
            (
                "permit tcp any any cgroup system.slice",
                "1:27: `system.slice` is no control group: a path from the root of all, as in /system.slice/nginx.service",
            ),
            (
                "permit tcp any any unit nginx",
                "1:25: `nginx` is no unit with processes: the whole name, as in nginx.service",
            ),
            (
                "permit tcp any any cgroup /a unit a.service",
                "1:30: the control group is there twice",
            ),
            ("permit tcp any any log log", "1:24: `log` is there twice"),
            ("permit tcp any any in tls tls", "1:27: `tls` is there twice"),
            ("deny tcp any any out tls log", "1:22: what is denied needs no protection"),
            ("permit any any any out tls", "1:24: TLS protects connections of tcp: name that"),
            ("permit tcp any any tls", "1:20: whether a connection is protected is known of this"),
            ("default deny loudly", "1:14: `loudly` is too much"),
            ("default", "1:8: the action is missing: permit or deny"),
            (
                "permit tcp any any\ndefault deny\ndefault deny",
                "3:1: line 2 has the default already",
            ),
            ("permit tcp any ü", "1:16: `ü` is no address"),
            ("permit icmp:8/ any any", "1:8: `8/` is no type of ICMP, nor TYPE/CODE"),
        ];
        for (text, error) in cases {
            let errors = RuleList::parse(text).unwrap_err();
            assert!(errors[0].to_string().starts_with(error), "{text}: {} ≠ {error}", errors[0]);
        }
    }

    #[test]
    fn many_errors_are_told_up_to_a_bound() {
        assert_eq!(RuleList::parse(&"x\n".repeat(100)).unwrap_err().len(), ERRORS_MAX);
    }
}
