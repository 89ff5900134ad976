//! The Test Anything Protocol, as other projects' tests speak it.

use super::Verdicts;

/// `ok 7 - NAME`, `not ok 8 NAME`, `ok 9 - NAME # SKIP REASON`: the verdicts, by the names of the tests.
pub(super) fn parse(printed: &str) -> Verdicts {
    printed.lines().filter_map(verdict).collect()
}

fn verdict(line: &str) -> Option<(String, String)> {
    let (verdict, rest) = match line.strip_prefix("not ok ") {
        Some(rest) => ("failed", rest),
        None => ("passed", line.strip_prefix("ok ")?),
    };
    let (_, test) = rest.split_once(' ')?;
    let test = test.strip_prefix("- ").unwrap_or(test);
    let (name, directive) = test.split_once(" # ").unwrap_or((test, ""));
    let verdict = if is_skip(directive) { "skipped" } else { verdict };
    Some((name.to_owned(), verdict.to_owned()))
}

/// In capitals or not.
fn is_skip(directive: &str) -> bool {
    directive.get(..4).is_some_and(|word| word.eq_ignore_ascii_case("skip"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_tests_with_dashes_and_without() {
        let verdicts = parse(
            "TAP version 13\n1..5\nok 1 - tcp_open\nnot ok 2 - tcp_rst\n# exit code 6\n\
             # not ok 9 - in a test's words\nok 3 - tty # SKIP Cannot open /dev/tty\n\
             not ok 4 parallel/test-net-b\n  ---\n  duration_ms: 172.7\n  ...\n\
             ok 5 parallel/test-net-c # skip no IPv6\n",
        );
        let told = |name: &str| verdicts[name].as_str();
        assert_eq!(
            (told("tcp_open"), told("tcp_rst"), told("tty")),
            ("passed", "failed", "skipped")
        );
        assert_eq!(told("parallel/test-net-b"), "failed");
        assert_eq!(told("parallel/test-net-c"), "skipped");
        assert_eq!(verdicts.len(), 5);
    }
}
