//! Obeying the host: a thread for each job, all of which answer through one port.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::system::{RebootCommand, reboot};
use sidestep_guest::{Answer, Equipment, Event, Order, Reply, Request, Talk};

use crate::{network, smc};

/// The name that the host gives to the port.
const PORT: &str = "sidestep";

/// This program, where the kernel has started it.
const ITSELF: &str = "/init";

/// For the port to appear.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Serves the host until it hangs up or wants the machine to be off.
///
/// **Errors**: the port cannot be used.
pub(crate) fn serve() -> Result<()> {
    let port = OpenOptions::new().read(true).write(true).open(find_port()?)?;
    let agent = Agent { port: Arc::new(Mutex::new(port.try_clone()?)), talks: Talks::default() };
    agent.reply(0, Event::Ready)?;
    for line in BufReader::new(port).lines() {
        let Request { job, order } = serde_json::from_str(&line?)?;
        if matches!(order, Order::PowerOff) {
            break;
        }
        let agent = agent.clone();
        thread::spawn(move || agent.work(job, order));
    }
    Ok(())
}

/// Turns the machine off.
///
/// **Errors**: the kernel's.
pub(crate) fn power_off() -> Result<()> {
    Ok(reboot(RebootCommand::PowerOff)?)
}

/// The device of the port with our name.
fn find_port() -> Result<PathBuf> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for entry in fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten() {
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            if name.trim() == PORT {
                return Ok(Path::new("/dev").join(entry.file_name()));
            }
        }
        ensure!(Instant::now() < deadline, "there is no port {PORT}");
        thread::sleep(POLL_INTERVAL);
    }
}

/// The processes of talks, by their jobs.
type Talks = Arc<Mutex<HashMap<u32, Child>>>;

#[derive(Clone)]
struct Agent {
    port: Arc<Mutex<File>>,
    talks: Talks,
}

impl Agent {
    fn reply(&self, job: u32, event: Event) -> Result<()> {
        let mut line = serde_json::to_vec(&Reply { job, event })?;
        line.push(b'\n');
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(port.write_all(&line)?)
    }

    /// Does a job and says how it went.
    fn work(&self, job: u32, order: Order) {
        let last = match self.obey(job, order) {
            Ok(answer) => Event::Done(answer),
            Err(error) => Event::Failed(format!("{error:#}")),
        };
        // Without a port there is nobody to tell.
        let _ = self.reply(job, last);
    }

    fn obey(&self, job: u32, order: Order) -> Result<Answer> {
        match order {
            Order::Equip(equipment) => equip(&equipment)?,
            Order::AddUeid(ueid) => smc::add_ueid(&ueid)?,
            Order::RemoveUeid(ueid) => smc::remove_ueid(&ueid)?,
            Order::Impair(impairment) => network::impair(impairment)?,
            Order::Talk(talk) => return self.talk(job, &talk),
            Order::Kill { job } => self.kill(job)?,
            Order::Sockets => return Ok(Answer::Sockets(smc::sockets()?)),
            Order::LinkGroups => return Ok(Answer::LinkGroups(smc::link_groups()?)),
            Order::Run(words) => return Ok(Answer::Text(run(&words)?)),
            Order::KernelLog => return Ok(Answer::Text(kernel_log()?)),
            Order::PowerOff => {}
        }
        Ok(Answer::Nothing)
    }

    /// Plays a talk in a process of its own, and passes its events on.
    fn talk(&self, job: u32, talk: &Talk) -> Result<Answer> {
        let mut child = Command::new(ITSELF)
            .arg("talk")
            .arg(serde_json::to_string(talk)?)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().context("a talk without output")?;
        self.lock_talks().insert(job, child);
        let outcome = self.follow(job, output);
        let child = self.lock_talks().remove(&job);
        child.map(|mut child| child.wait()).transpose()?;
        outcome
    }

    /// Reads what a talk prints, to its end.
    fn follow(&self, job: u32, output: ChildStdout) -> Result<Answer> {
        for line in BufReader::new(output).lines() {
            match serde_json::from_str(&line?)? {
                Event::Done(answer) => return Ok(answer),
                Event::Failed(reason) => bail!(reason),
                step => self.reply(job, step)?,
            }
        }
        bail!("the process of the talk has ended")
    }

    fn kill(&self, job: u32) -> Result<()> {
        match self.lock_talks().get_mut(&job) {
            Some(child) => Ok(child.kill()?),
            None => bail!("job {job} is no talk that goes on"),
        }
    }

    fn lock_talks(&self) -> MutexGuard<'_, HashMap<u32, Child>> {
        self.talks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn equip(equipment: &Equipment) -> Result<()> {
    network::set_up(equipment)?;
    if let Some(pnet_id) = &equipment.pnet_id {
        smc::set_pnet_id(pnet_id, equipment.card, equipment.has_rdma).context("PNET ID")?;
    }
    equipment.ueids.iter().try_for_each(|ueid| smc::add_ueid(ueid)).context("UEID")
}

fn run(words: &[String]) -> Result<String> {
    let output = Command::new("/bin/busybox").args(words).stdin(Stdio::null()).output()?;
    let [said, errors] =
        [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    ensure!(output.status.success(), "{words:?}: {}: {errors}", output.status);
    Ok(said + &errors)
}

/// Reads `/dev/kmsg`, which gives one record at a call, and waits at its end unless told not to.
fn kernel_log() -> Result<String> {
    const RECORD_LEN_MAX: usize = 8_192;
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits();
    let mut log = OpenOptions::new()
        .read(true)
        .custom_flags(i32::try_from(nonblocking)?)
        .open("/dev/kmsg")?;
    let mut text = String::new();
    let mut record = [0; RECORD_LEN_MAX];
    // Ends with EAGAIN.
    while let Ok(len) = log.read(&mut record) {
        // level and facility, number, microseconds, flags; the line; its properties.
        let record = String::from_utf8_lossy(&record[..len]);
        let Some((head, rest)) = record.split_once(';') else { continue };
        let time = head.split(',').nth(2).and_then(|it| it.parse::<f64>().ok()).unwrap_or_default();
        let line = rest.lines().next().unwrap_or_default();
        text.push_str(&format!("[{:11.6}] {line}\n", time / 1e6));
    }
    Ok(text)
}
