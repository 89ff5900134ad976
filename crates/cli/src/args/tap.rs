//! The command line of `sidestep tap`.

use std::path::PathBuf;
use std::time::Duration;

use super::interval;
use super::target::Target;

/// The arguments of `sidestep tap`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TapArgs {
    /// Whose connections: a process (4711 or pid:4711), a server's port (6379 or :6379), or all
    #[arg(value_name = "PID|PORT|all")]
    pub(crate) target: Target,

    /// Where the capture is written, in the format pcapng; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: PathBuf,

    /// End after this time, such as 10s
    #[arg(long, value_name = "TIME", value_parser = interval::parse_time)]
    pub(crate) duration: Option<Duration>,

    /// Write the bytes that wait to be read at this moment, and end
    #[arg(long, conflicts_with = "duration")]
    pub(crate) once: bool,
}

const EXAMPLES: &str = "\
The programs are not stopped and never wait for it. What is overwritten before it can be read is a
gap in the sequence numbers, and a comment of the packet behind it says so. Bytes that go by TCP are
not in the file: tcpdump has them.

It takes the right to trace one of the two programs: root has it, and their user where
kernel.yama.ptrace_scope is 0. The file has the bytes of the connections, so only you can read it.

Examples:
  sidestep tap 6379 -w redis.pcapng                       until ctrl-C
  sidestep tap 6379 -w - | wireshark -k -i -              live
  sidestep tap pid:4711 -w hung.pcapng --once             what was not read yet
  sidestep tap all -w all.pcapng --duration 10s
  tshark -r redis.pcapng -q -z follow,tcp,ascii,0

Exit status: 0; 1 if there is nothing to follow with --once, it may not be followed, or the file
cannot be written; 2 if the command line is wrong.";
