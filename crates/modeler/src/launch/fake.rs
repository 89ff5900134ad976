//! Workers for tests: a shell script in the place of the `sidestep` executable.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Launcher, Limits};
use crate::contention::Contention;
use crate::control::{Address, Job, Role};
use crate::plan::{Conduct, Entry, Extent, Model};
use crate::workload::{Kind, Workload};

/// A directory with a worker that does as it is told, and its traces.
pub(crate) struct Fake {
    directory: TempDir,
}

/// A server that listens, and has used 100 µs more with every sample.
pub(crate) const SERVER: &str = r#"
echo "{\"listening\":{\"tcp\":\"${address%:*}:4711\"}}"
used=0
while read -r command; do
    used=$((used + 100))
    echo "{\"usage\":{\"user_us\":$used,\"system_us\":1,\"voluntary_switches\":0,\"involuntary_switches\":0}}"
done
"#;

/// A client that has made 7 transactions by the time it is told to go.
pub(crate) const CLIENT: &str = r#"
echo '"connected"'
read -r go || exit 0
echo '"warm"'
usage='{"user_us":20,"system_us":30,"voluntary_switches":4,"involuntary_switches":5}'
echo "{\"report\":{\"transactions\":7,\"bytes\":14,\"elapsed_ns\":1000000000,\"response_ns\":\"\",\"response_sums_us\":[1.5,2.5],\"over_time\":[7],\"usage\":$usage,\"unfinished\":0}}"
while read -r command; do :; done
"#;

impl Fake {
    /// Shell commands for either role; `$job` is what a worker was told first.
    pub(crate) fn new(server: &str, client: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/launch/fake-worker.sh");
        symlink(script, directory.path().join("sidestep")).unwrap();
        fs::write(directory.path().join("server.sh"), server).unwrap();
        fs::write(directory.path().join("client.sh"), client).unwrap();
        Self { directory }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("sidestep")
    }

    /// Starts them, with limits that no test reaches.
    pub(crate) fn launcher(&self) -> Launcher {
        self.launcher_with_limits(Duration::from_secs(60))
    }

    pub(crate) fn launcher_with_limits(&self, limit: Duration) -> Launcher {
        Launcher::new(self.path()).with_limits(limits(limit))
    }

    /// The lines of one of its traces, sorted: workers start in any order.
    pub(crate) fn lines(&self, trace: &str) -> Vec<String> {
        let text = fs::read_to_string(self.directory.path().join(trace)).unwrap_or_default();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    }

    /// What the workers were told.
    pub(crate) fn jobs(&self) -> Vec<Job> {
        self.lines("jobs").iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until `count` workers have run and none is left.
    pub(crate) fn wait_until_gone(&self, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let processes = self.lines("processes");
            let lives = |pid: &&String| Path::new(&format!("/proc/{pid}")).exists();
            if processes.len() == count && !processes.iter().any(|pid| lives(&pid)) {
                return;
            }
            assert!(Instant::now() < deadline, "{processes:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The same limit for everything.
pub(crate) fn limits(limit: Duration) -> Limits {
    Limits { listen: limit, connect: limit, slack: limit, count: limit, sample: limit, end: limit }
}

pub(crate) fn entry(model: Model, clients: u32) -> Entry {
    let (kind, request_len, reply_len) = (Kind::RequestResponse, 1, 1);
    let workload = Workload { kind, clients, request_len, reply_len };
    let conduct =
        Conduct { extent: Extent::Count { warmup: 0, measured: 1 }, ..Conduct::default() };
    Entry {
        workload,
        model,
        conduct,
        contention: Contention::NONE,
        filter_rules: 0,
        required: BTreeMap::new(),
    }
}

pub(crate) fn job(role: Role) -> Job {
    let Entry { workload, model, conduct, .. } = entry(Model::Threads, 1);
    Job { role, workload, model, connections: 1, first_client: 0, conduct }
}

pub(crate) fn server_at(address: &str) -> Job {
    job(Role::Server(Address::Tcp(address.parse().unwrap())))
}

pub(crate) fn client_of(address: &str) -> Job {
    job(Role::Client(Address::Tcp(address.parse().unwrap())))
}
