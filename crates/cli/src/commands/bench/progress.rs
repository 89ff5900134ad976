//! How far a measurement is: a bar with the time left, on a terminal.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sidestep_modeler::session::{Estimate, Observer, Run, RunError, RunOutcome};

use crate::output::{self, Escaped};

/// Shows what is being run. Where standard error is no terminal it is silent, except
/// for runs that fail.
pub(super) struct Progress {
    bar: ProgressBar,
    expected: Option<Duration>,
    began: Instant,
}

impl Progress {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        Self { bar, expected: None, began: Instant::now() }
    }

    /// Time left: by the plan at first, then by what the runs so far have taken.
    fn time_left(&self, run: &Run<'_>) -> Option<Duration> {
        let total = self.bar.length().filter(|total| *total > 0)?;
        let done = run.number as f64 / total as f64;
        if run.number == 0 {
            return self.expected;
        }
        let whole = self.began.elapsed().div_f64(done);
        Some(whole.mul_f64(1.0 - done))
    }
}

impl Observer for Progress {
    fn session_begins(&mut self, estimate: &Estimate) {
        self.began = Instant::now();
        self.expected = estimate.duration;
        self.bar.set_length(estimate.runs);
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len}  {msg}");
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    }

    fn run_begins(&mut self, run: &Run<'_>) {
        let left = self
            .time_left(run)
            .map_or_else(String::new, |left| format!("  {} left", indicatif::HumanDuration(left)));
        let (workload, transport, model) = (run.entry.workload, run.transport, run.entry.model);
        self.bar.set_position(run.number);
        self.bar.set_message(format!("{workload} {model} over {transport}{left}"));
        self.bar.tick();
    }

    fn run_ends(&mut self, run: &Run<'_>, result: Result<&RunOutcome, &RunError>) {
        if let Err(error) = result {
            let (workload, transport) = (run.entry.workload, run.transport);
            let attempt = if run.attempt == 1 { "" } else { " again" };
            self.say(&format!("{workload} over {transport} failed{attempt}: {error}"));
        }
    }
}

impl Progress {
    /// A line that stays, above the bar.
    fn say(&self, text: &str) {
        if io::stderr().is_terminal() {
            self.bar.println(Escaped(text).to_string());
        } else {
            output::complain("bench", text);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
