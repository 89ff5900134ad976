//! The terminal: taken when `top` begins, and given back however it ends.
//!
//! It is given back by [`Drop`] at the end and after an error, by ratatui's panic hook before the words of a
//! panic, and after SIGTERM, SIGINT or SIGHUP, which end `top` like its key does. A terminal that is gone ends it as well.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libc::{SIGHUP, SIGINT, SIGTERM};
use ratatui::crossterm::event::{self, KeyEvent, KeyEventKind};
use ratatui::{DefaultTerminal, Frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::flag;

/// See the [module](self).
pub(super) struct Screen {
    terminal: DefaultTerminal,
    ended: Arc<AtomicBool>,
}

/// What came while nothing was to be drawn.
pub(super) enum Event {
    Key(KeyEvent),
    Resized,
    /// The time is there.
    Time,
    /// A signal wants the end, or the terminal is gone.
    Ended,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// Standard output is none, or refuses.
    pub(super) fn enter() -> io::Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            flag::register(signal, Arc::clone(&ended))?;
        }
        Ok(Self { terminal: ratatui::try_init()?, ended })
    }

    pub(super) fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(picture).map(drop)
    }

    /// Waits for something to happen, until this time.
    pub(super) fn key_until(&self, time: Instant) -> io::Result<Event> {
        while !self.ended.load(Ordering::Relaxed) {
            let left = time.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Event::Time);
            }
            // A signal between the look above and the wait is seen after this.
            if !is_there_after(left.min(SLICE))? {
                return Ok(Event::Ended);
            }
            if !event::poll(Duration::ZERO)? {
                continue;
            }
            match event::read()? {
                event::Event::Key(key) if key.kind == KeyEventKind::Press => {
                    return Ok(Event::Key(key));
                }
                event::Event::Resize(..) => return Ok(Event::Resized),
                _ => {}
            }
        }
        Ok(Event::Ended)
    }
}

/// Waits so long for input or a signal, and says whether the terminal is still there: crossterm, asked to wait at one that is
/// gone, reads its end again and again and never returns.
fn is_there_after(time: Duration) -> io::Result<bool> {
    let time = Timespec::try_from(time).unwrap_or_default();
    let out = io::stdout();
    let mut terminal = [PollFd::new(&out, PollFlags::IN)];
    match poll(&mut terminal, Some(&time)) {
        Ok(_) => Ok(!terminal[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// The longest wait without a look at what signals said.
const SLICE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use rustix::io::{FdFlags, fcntl_setfd};
    use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

    use super::*;

    /// This test program, with a terminal of its own, on which it runs [`on_a_terminal`].
    struct Terminal {
        ours: File,
        theirs: OwnedFd,
        child: Child,
        shown: String,
    }

    impl Terminal {
        fn start(what: &str) -> Self {
            let (mut ours, mut theirs) = (-1, -1);
            let (name, modes, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
            // SAFETY: room for two descriptors; the name, the modes and the size are left to the kernel.
            let opened = unsafe { libc::openpty(&mut ours, &mut theirs, name, modes, size) };
            assert_eq!(opened, 0, "{}", io::Error::last_os_error());
            // SAFETY: just opened, and known here alone.
            let [ours, theirs] = [ours, theirs].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
            // A program that has its terminal's other end keeps it alive.
            for fd in [&ours, &theirs] {
                fcntl_setfd(fd, FdFlags::CLOEXEC).unwrap();
            }
            let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
            tcsetwinsize(&theirs, size).unwrap();
            let stdio = || Stdio::from(theirs.try_clone().unwrap());
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--ignored", "--exact", "--nocapture", "--test-threads=1"]);
            command.arg("commands::top::screen::tests::on_a_terminal").env(WHAT, what);
            command.stdin(stdio()).stdout(stdio()).stderr(stdio());
            // SAFETY: two system calls, which a child may make before it becomes another program.
            unsafe {
                command.pre_exec(|| {
                    libc::setsid();
                    libc::ioctl(0, libc::TIOCSCTTY, 0);
                    Ok(())
                });
            }
            let child = command.spawn().unwrap();
            Self { ours: ours.into(), theirs, child, shown: String::new() }
        }

        /// Reads what is shown until this is.
        fn wait_for(&mut self, text: &str) {
            let mut some = [0; 4096];
            while !self.shown.contains(text) {
                let len = self.ours.read(&mut some).unwrap();
                self.shown += &String::from_utf8_lossy(&some[..len]);
            }
        }

        fn is_raw(&self) -> bool {
            !tcgetattr(&self.theirs).unwrap().local_modes.contains(LocalModes::ICANON)
        }

        /// The program has left the other screen and the terminal is as it was.
        fn assert_given_back(mut self) {
            self.wait_for(LEAVE);
            self.child.wait().unwrap();
            assert!(!self.is_raw());
        }
    }

    /// What the program on the terminal does.
    const WHAT: &str = "SIDESTEP_TEST_ON_A_TERMINAL";
    const ENTER: &str = "\x1b[?1049h";
    const LEAVE: &str = "\x1b[?1049l";

    #[test]
    #[ignore = "the tests below run it in a child, on a terminal of its own"]
    fn on_a_terminal() {
        let mut screen = Screen::enter().unwrap();
        screen.draw(|frame| frame.render_widget("drawn", frame.area())).unwrap();
        match std::env::var(WHAT).as_deref() {
            Ok("panic") => panic!("as it is meant to"),
            _ => loop {
                match screen.key_until(Instant::now() + Duration::from_secs(60)).unwrap() {
                    Event::Key(_) | Event::Ended | Event::Time => return,
                    Event::Resized => {}
                }
            },
        }
    }

    #[test]
    fn a_key_ends_it_and_gives_the_terminal_back() {
        let mut terminal = Terminal::start("live");
        terminal.wait_for("drawn");
        assert!(terminal.shown.contains(ENTER) && terminal.is_raw());
        terminal.ours.write_all(b"q").unwrap();
        terminal.assert_given_back();
    }

    #[test]
    fn signals_end_it_and_give_the_terminal_back() {
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            let mut terminal = Terminal::start("live");
            terminal.wait_for("drawn");
            // SAFETY: a child that has not been waited for.
            unsafe { libc::kill(terminal.child.id() as libc::pid_t, signal) };
            terminal.assert_given_back();
        }
    }

    #[test]
    fn it_ends_when_the_terminal_is_gone() {
        const LONGEST: Duration = Duration::from_secs(60);
        let mut terminal = Terminal::start("live");
        terminal.wait_for("drawn");
        let Terminal { ours, theirs, mut child, .. } = terminal;
        drop((ours, theirs));
        let deadline = Instant::now() + LONGEST;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                child.kill().unwrap();
                panic!("it goes on");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_panic_gives_the_terminal_back_before_its_words() {
        let mut terminal = Terminal::start("panic");
        terminal.wait_for("as it is meant to");
        let left = terminal.shown.find(LEAVE).expect("the screen is left");
        assert!(left < terminal.shown.find("as it is meant to").unwrap());
        terminal.assert_given_back();
    }
}
