//! Where one test is played: a server and a client, each plain or under
//! Sidestep, and the witness who looks on.

use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::bench::launch::{self, Dialogue, Launcher, Program, Transport};
use crate::suite::HANG;
use crate::witness::{Claim, Evidence, Witness};

/// Pause between two looks: each is a process that takes CPU from the test.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Which side runs under Sidestep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    /// Both: the connections are to be SMC-D.
    Both,
    /// The server only.
    ServerOnly,
    /// The client only.
    ClientOnly,
}

impl Mix {
    /// All of them, the main one first.
    pub(crate) const ALL: &'static [Self] = &[Self::Both, Self::ServerOnly, Self::ClientOnly];

    fn server(self) -> Transport {
        if self == Self::ClientOnly { Transport::Tcp } else { Transport::Smc }
    }

    fn client(self) -> Transport {
        if self == Self::ServerOnly { Transport::Tcp } else { Transport::Smc }
    }

    fn claim(self) -> Claim {
        if self == Self::Both { Claim::Smc } else { Claim::Tcp }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Both => "smc/smc",
            Self::ServerOnly => "smc/plain",
            Self::ClientOnly => "plain/smc",
        })
    }
}

/// What all tests share.
#[derive(Debug)]
pub(crate) struct House {
    pub(crate) launcher: Launcher,
    pub(crate) witness: Witness,
    /// `tests/e2e` of the repository.
    pub(crate) scripts: PathBuf,
    /// For logs, compiled programs and files to serve.
    pub(crate) scratch: PathBuf,
    pub(crate) seed: u32,
    /// Rounds of the test with deaths.
    pub(crate) rounds: u32,
    /// What goes between hosts is looked at in all tests that have any, and not in one.
    pub(crate) captures: bool,
}

impl House {
    /// The path of one of our scripts.
    pub(crate) fn script(&self, name: &str) -> String {
        self.scripts.join(name).display().to_string()
    }
}

/// One test with one mix of transports.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) house: &'a House,
    pub(crate) mix: Mix,
}

impl Stage<'_> {
    /// The command of a program on the server's side.
    pub(crate) fn server_command<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        self.command(self.mix.server(), words)
    }

    /// The command of a program on the client's side.
    pub(crate) fn client_command<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        self.command(self.mix.client(), words)
    }

    /// The command of a program, whatever the mix.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, transport: Transport, words: &[S]) -> Command {
        let args = words.iter().skip(1);
        let program = words.first().map_or(OsStr::new(""), AsRef::as_ref);
        let mut command = self.house.launcher.launch(transport, program, args);
        // Python would leave compiled scripts in the source tree.
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Starts the server and waits until it listens.
    pub(crate) fn serve<S: AsRef<OsStr>>(&self, port: u16, words: &[S]) -> Result<Program> {
        self.serve_command(port, self.server_command(words))
    }

    /// The same for any command.
    pub(crate) fn serve_command(&self, port: u16, command: Command) -> Result<Program> {
        let mut server = Program::start(command, &self.house.scratch)?;
        server.await_listener(port)?;
        Ok(server)
    }

    /// Runs a client to its end, without a look at its connections: for those
    /// that come and go too fast to be seen.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<String> {
        launch::run(self.client_command(words), HANG)
    }

    /// Runs a client to its end and looks at the connections meanwhile.
    pub(crate) fn watch<S: AsRef<OsStr>>(&self, server: &Program, words: &[S]) -> Result<String> {
        self.watch_command(server, self.client_command(words))
    }

    /// The same for any command.
    pub(crate) fn watch_command(&self, server: &Program, command: Command) -> Result<String> {
        self.watch_for(self.mix.claim(), server, command)
    }

    /// The same, whatever the mix, with what is to be seen.
    pub(crate) fn watch_for(
        &self,
        claim: Claim,
        server: &Program,
        command: Command,
    ) -> Result<String> {
        let mut seen = Evidence::default();
        let said = self.look_on(claim, Some(server), command, &mut seen)?;
        // A look takes long on a busy machine, and the client may have been quicker than two: a server
        // knows what has ended.
        if !self.house.witness.is_content(claim, &seen) {
            seen.merge(self.house.witness.ended(&server.family())?);
        }
        self.house.witness.judge(claim, &seen)?;
        Ok(said)
    }

    /// The same where no server can tell what has ended: the client is run again until a look was quick
    /// enough. Returns what the last one has said.
    pub(crate) fn watch_until_seen(&self, client: impl Fn() -> Result<Command>) -> Result<String> {
        let (claim, deadline) = (self.mix.claim(), Instant::now() + HANG);
        let mut seen = Evidence::default();
        loop {
            let said = self.look_on(claim, None, client()?, &mut seen)?;
            if self.house.witness.is_content(claim, &seen) || Instant::now() > deadline {
                self.house.witness.judge(claim, &seen)?;
                return Ok(said);
            }
        }
    }

    /// Runs a client to its end, and adds what is seen of its connections and the server's meanwhile.
    fn look_on(
        &self,
        claim: Claim,
        server: Option<&Program>,
        command: Command,
        seen: &mut Evidence,
    ) -> Result<String> {
        let deadline = Instant::now() + HANG;
        let mut client = Dialogue::start(command)?;
        client.hang_up();
        while !client.program().has_ended()? && Instant::now() < deadline {
            // Who is content looks no more, except for what must not be seen.
            if claim == Claim::Tcp || !self.house.witness.is_content(claim, seen) {
                seen.merge(self.look(server, &mut [&mut client])?);
            }
            thread::sleep(LOOK_INTERVAL);
        }
        client.finish(HANG)
    }

    /// Runs a client that says when it has verified everything and then keeps
    /// its connections open, and looks at them.
    pub(crate) fn converse<S: AsRef<OsStr>>(
        &self,
        server: &mut Program,
        words: &[S],
    ) -> Result<String> {
        let client = Dialogue::start(self.client_command(words))?;
        self.converse_with(server, [client], self.mix.claim())
    }

    /// The same with clients of any kind, at the same time.
    pub(crate) fn converse_with<const COUNT: usize>(
        &self,
        server: &mut Program,
        clients: [Dialogue; COUNT],
        claim: Claim,
    ) -> Result<String> {
        self.observe(server, clients, claim).map(|(said, _)| said)
    }

    /// The same, with what was seen.
    pub(crate) fn observe<const COUNT: usize>(
        &self,
        server: &mut Program,
        mut clients: [Dialogue; COUNT],
        claim: Claim,
    ) -> Result<(String, Evidence)> {
        let mut said = Vec::new();
        for client in &mut clients {
            said.push(client.await_line("verified", HANG)?);
        }
        let deadline = Instant::now() + HANG;
        let mut all: Vec<&mut Dialogue> = clients.iter_mut().collect();
        let mut seen = self.look(Some(server), &mut all)?;
        while !self.house.witness.is_content(claim, &seen) && Instant::now() < deadline {
            thread::sleep(LOOK_INTERVAL);
            seen.merge(self.look(Some(server), &mut all)?);
        }
        self.house.witness.judge(claim, &seen)?;
        for client in clients {
            client.finish(HANG)?;
        }
        server.must_be_alive()?;
        Ok((said.join(" + "), seen))
    }

    fn look(&self, server: Option<&Program>, clients: &mut [&mut Dialogue]) -> Result<Evidence> {
        self.house.witness.look_meanwhile(|| {
            let mut pids = server.map_or_else(Vec::new, Program::family);
            for client in &mut *clients {
                pids.extend(client.program().family());
            }
            pids
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_sides_under_sidestep_make_smc() {
        for mix in Mix::ALL {
            let both = [mix.server(), mix.client()] == [Transport::Smc; 2];
            assert_eq!(mix.claim() == Claim::Smc, both, "{mix}");
        }
    }
}
