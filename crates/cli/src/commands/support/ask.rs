//! What a command or a file says, or why it says nothing.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::parts::Source;
use super::redact;

/// Asks this program.
pub(super) struct Asker {
    program: PathBuf,
}

impl Asker {
    /// # Errors
    /// The path of this program is not known.
    pub(super) fn new() -> io::Result<Self> {
        std::env::current_exe().map(|program| Self { program })
    }

    /// What it says, without secrets. An answer of errors is an answer, too.
    pub(super) fn ask(&self, source: &Source) -> String {
        match source {
            Source::Command(words) => self
                .command(words)
                .unwrap_or_else(|error| format!("sidestep {}: {error}\n", words.join(" "))),
            Source::Files(paths) => paths.iter().map(|path| redact::text(&file(path))).collect(),
        }
    }

    fn command(&self, words: &[String]) -> io::Result<String> {
        let mut child = Command::new(&self.program)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let readers = [
            child.stdout.take().map(|it| thread::spawn(move || bounded(it))),
            child.stderr.take().map(|it| thread::spawn(move || bounded(it))),
        ];
        let is_over = ends_in_time(&mut child)?;
        let [said, errors] = readers.map(|it| it.and_then(|it| it.join().ok()).unwrap_or_default());
        // Each by itself: a complaint behind a document would make it none.
        let mut text = redact::text(&said) + &redact::text(&errors);
        if !is_over {
            let _ = writeln!(text, "(ended: it took longer than {} s)", TIME.as_secs());
        }
        Ok(text)
    }
}

/// All that comes, as far as there is room.
fn bounded(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    // What came before an error is what there is.
    let _ = from.by_ref().take(LEN_MAX).read_to_end(&mut bytes);
    let is_cut = bytes.len() as u64 == LEN_MAX;
    // A command that nothing reads any more would wait until its time is over.
    let _ = io::copy(&mut from, &mut io::sink());
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if is_cut {
        text += "\n(the rest is left out)\n";
    }
    text
}

/// Whether it ends by itself; else it is ended.
fn ends_in_time(child: &mut Child) -> io::Result<bool> {
    let begun = Instant::now();
    while begun.elapsed() < TIME {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill()?;
    child.wait().map(|_| false)
}

/// A file with its name before it, line by line.
fn file(path: &str) -> String {
    match File::open(path) {
        Ok(file) => format!("{path}:\n{}\n", bounded(file)),
        Err(error) => format!("{path}: {error}\n\n"),
    }
}

/// The longest that one part may take.
const TIME: Duration = Duration::from_secs(20);
/// Bytes of one part: a hundred thousand connections.
const LEN_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(program: &str) -> Asker {
        Asker { program: program.into() }
    }

    #[test]
    fn what_a_command_says_and_complains_is_what_it_answers() {
        let words = ["-c", "echo said; echo complained >&2; exit 3"].map(str::to_owned);
        assert_eq!(asker("/bin/sh").ask(&Source::Command(words.into())), "said\ncomplained\n");
        let words = ["-c", "echo '{\"token\":\"x\"}'; echo complained >&2"].map(str::to_owned);
        let told = asker("/bin/sh").ask(&Source::Command(words.into()));
        assert_eq!(told, "{\n  \"token\": \"(left out)\"\n}\ncomplained\n");
        let gone = asker("/nowhere").ask(&Source::Command(vec!["doctor".into()]));
        assert!(gone.starts_with("sidestep doctor: No such file"), "{gone}");
    }

    #[test]
    fn files_have_their_names_before_them() {
        let text = asker("").ask(&Source::Files(&["/proc/version", "/nowhere"]));
        assert!(text.starts_with("/proc/version:\nLinux version"), "{text}");
        assert!(text.ends_with("/nowhere: No such file or directory (os error 2)\n\n"), "{text}");
    }
}
