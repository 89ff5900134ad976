//! `sidestep top`: what programs and connections do now, the busiest first.
//!
//! ```text
//!   states of all programs ── look ──┐
//!                  the look before ──┴─> rows ── order, filter ──> picture   on a terminal
//!                                         │        (view)      └─> listing   with --once
//!                                         keys ───────┘
//! ```
//!
//! A rate is the growth of a counter between two looks. A look reads what `ss` and `stats` read and asks no
//! program anything, so watching a program does not slow it.

mod listing;
mod look;
mod picture;
mod rows;
mod screen;
mod view;

use std::io::{self, IsTerminal};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::args::TopArgs;
use crate::output;
use crate::terminal;
use look::Looker;
use rows::Rows;
use screen::Screen;
use view::{Action, View};

/// Shows it until the user has seen enough; 1 if it cannot be shown, otherwise 0.
pub(crate) fn execute(args: &TopArgs) -> i32 {
    match if args.once { once(args) } else { live(args) } {
        Ok(()) => 0,
        Err(error) => {
            output::complain("top", &error);
            1
        }
    }
}

/// Why there is nothing to be seen.
#[derive(Debug, Error)]
enum TopError {
    #[error("cannot list /proc: {0}")]
    Processes(io::Error),
    #[error(
        "standard output is no terminal; `sidestep top --once` prints one interval, and \
         `sidestep stats --watch` a line for each"
    )]
    NoTerminal,
    #[error("cannot use the terminal: {0}")]
    Terminal(io::Error),
    #[error("cannot write the list: {0}")]
    Output(io::Error),
}

fn once(args: &TopArgs) -> Result<(), TopError> {
    let mut looker = Looker::default();
    let before = looker.look().map_err(TopError::Processes)?;
    thread::sleep(args.every);
    let now = looker.look().map_err(TopError::Processes)?;
    let (rows, view) = (Rows::between(&before, &now), View::new(args));
    let text = match args.json {
        true => listing::json(&rows, &view),
        false => listing::text(&rows, &view, terminal::width()),
    };
    output::print_as(args.json, &text).map(drop).map_err(TopError::Output)
}

fn live(args: &TopArgs) -> Result<(), TopError> {
    if !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal);
    }
    let mut looker = Looker::default();
    let mut before = looker.look().map_err(TopError::Processes)?;
    let mut view = View::new(args);
    let mut screen = Screen::enter().map_err(TopError::Terminal)?;
    // The first figures come soon, those that follow at the interval.
    let mut next = Instant::now() + args.every.min(FIRST);
    let mut rows = Rows::between(&before, &before);
    loop {
        screen.draw(|frame| picture::draw(frame, &rows, &mut view)).map_err(TopError::Terminal)?;
        match screen.key_until(next).map_err(TopError::Terminal)? {
            screen::Event::Key(key) => {
                if view.on_key(key) == Action::End {
                    return Ok(());
                }
            }
            screen::Event::Resized => {}
            screen::Event::Ended => return Ok(()),
            screen::Event::Time if view.is_paused => next = Instant::now() + args.every,
            screen::Event::Time => {
                let now = looker.look().map_err(TopError::Processes)?;
                rows = Rows::between(&before, &now);
                next = Instant::now() + args.every;
                before = now;
            }
        }
    }
}

/// Until the first figures of a live view.
const FIRST: Duration = Duration::from_millis(500);
