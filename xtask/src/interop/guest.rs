//! A guest as its host sees it: a process of QEMU, to whose standard input orders go, and from whose
//! standard output answers come. (Those two are the guest's serial port; see `sidestep_guest`.)

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sidestep_guest::{
    Answer, Equipment, Event, Impairment, LinkGroup, Order, Reply, Report, Request, SmcSocket, Talk,
};

use super::lan::{Lan, Member};
use crate::bench::launch::{self, Dialogue};
use crate::suite::HANG;

/// Lines of a console worth showing.
const TAIL_LINES: usize = 20;

/// What a guest boots.
#[derive(Debug)]
pub(crate) struct Boot {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
    /// Where its console is written to.
    pub(crate) logs: PathBuf,
}

/// A virtual machine; ended when dropped.
#[derive(Debug)]
pub(crate) struct Guest {
    member: Member,
    machine: Dialogue,
    console: PathBuf,
    /// The socket of QEMU's monitor.
    monitor: PathBuf,
    is_cut_off: bool,
    last_job: u32,
    /// What jobs have said that nobody has asked for yet.
    unread: BTreeMap<u32, VecDeque<Event>>,
}

/// A job that goes on in a guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job(u32);

/// The error of a job that its guest says has failed.
#[derive(Debug)]
pub(crate) struct Failed(String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Failed {}

impl Guest {
    /// Turns the machine on. It is ready when [`Guest::await_ready`] returns; until then others can
    /// start beside it.
    pub(crate) fn turn_on(boot: &Boot, lan: &Lan, member: Member) -> Result<Self> {
        let console = boot.logs.join(format!("guest{}.console", member.0));
        let monitor = boot.logs.join(format!("guest{}.monitor", member.0));
        let mut command = machine(boot, lan, member, &console);
        command.arg("-monitor").arg(format!("unix:{},server=on,wait=off", monitor.display()));
        lan.enclose(&mut command);
        let machine = Dialogue::start(command)?;
        Ok(Self {
            member,
            machine,
            console,
            monitor,
            is_cut_off: false,
            last_job: 0,
            unread: BTreeMap::new(),
        })
    }

    /// **Errors**: it has not started in time; the text has the end of its console.
    pub(crate) fn await_ready(&mut self) -> Result<()> {
        match self.event(Job(0), HANG) {
            Ok(Event::Ready) => Ok(()),
            Ok(other) => bail!("{self}: {other:?} instead of being ready"),
            Err(error) => Err(error.context("it does not start")),
        }
    }

    pub(crate) fn member(&self) -> Member {
        self.member
    }

    /// Sets up its network and SMC; it has the addresses of its number.
    pub(crate) fn equip(&mut self, lan: &Lan, pnet_id: &str, ueid: &str) -> Result<()> {
        let addresses = self.member.addresses().to_vec();
        let equipment =
            Equipment { ueids: vec![ueid.to_owned()], ..card(0, addresses, lan, pnet_id) };
        self.ask(Order::Equip(equipment)).map(drop)
    }

    /// Sets up its second card, which has another address of the same network, and is in the same
    /// physical network for SMC.
    pub(crate) fn equip_second(&mut self, lan: &Lan, pnet_id: &str) -> Result<()> {
        // Or either card would answer for both, and the RDMA device above it would not know the other's
        // packets.
        for rule in ["net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2"] {
            self.run(&["sysctl", "-w", rule])?;
        }
        let addresses = vec![self.member.second().addresses()[0].clone()];
        self.ask(Order::Equip(card(1, addresses, lan, pnet_id))).map(drop)
    }

    /// Lets it leave one network of SMC-Rv2 for another.
    pub(crate) fn change_ueid(&mut self, from: &str, to: &str) -> Result<()> {
        self.ask(Order::RemoveUeid(from.to_owned()))?;
        self.ask(Order::AddUeid(to.to_owned())).map(drop)
    }

    /// Makes what it sends suffer, until told otherwise.
    pub(crate) fn impair(&mut self, impairment: Option<Impairment>) -> Result<()> {
        self.ask(Order::Impair(impairment)).map(drop)
    }

    /// Begins its end of some connections. A server listens when this returns.
    pub(crate) fn begin(&mut self, talk: Talk) -> Result<Job> {
        let is_server = talk.role == sidestep_guest::Role::Server;
        let job = self.order(Order::Talk(talk))?;
        if is_server {
            match self.event(job, HANG)? {
                Event::Listening => {}
                Event::Failed(reason) => bail!("{self}: {reason}"),
                other => bail!("{self}: {other:?} instead of listening"),
            }
        }
        Ok(job)
    }

    /// Waits for the end of a talk.
    ///
    /// **Errors**: [`Failed`], or it takes longer.
    pub(crate) fn report(&mut self, job: Job, patience: Duration) -> Result<Report> {
        match self.finish(job, patience)? {
            Answer::Talk(report) => Ok(report),
            other => bail!("{self}: {other:?} instead of a report"),
        }
    }

    /// Kills the process that plays a talk.
    pub(crate) fn kill(&mut self, Job(job): Job) -> Result<()> {
        self.ask(Order::Kill { job }).map(drop)
    }

    /// The sockets of its SMC.
    pub(crate) fn sockets(&mut self) -> Result<Vec<SmcSocket>> {
        match self.ask(Order::Sockets)? {
            Answer::Sockets(sockets) => Ok(sockets),
            other => bail!("{self}: {other:?} instead of sockets"),
        }
    }

    /// Its link groups.
    pub(crate) fn link_groups(&mut self) -> Result<Vec<LinkGroup>> {
        match self.ask(Order::LinkGroups)? {
            Answer::LinkGroups(groups) => Ok(groups),
            other => bail!("{self}: {other:?} instead of link groups"),
        }
    }

    /// Runs one of busybox's commands, and returns what it prints.
    ///
    /// **Errors**: it fails.
    pub(crate) fn run(&mut self, words: &[&str]) -> Result<String> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        match self.ask(Order::Run(words))? {
            Answer::Text(text) => Ok(text),
            other => bail!("{self}: {other:?} instead of a text"),
        }
    }

    /// Adds a line to its kernel's log.
    pub(crate) fn note(&mut self, line: &str) -> Result<()> {
        self.run(&["sh", "-c", &format!("echo {line} > /dev/kmsg")]).map(drop)
    }

    /// What its kernel has logged since its start.
    pub(crate) fn kernel_log(&mut self) -> Result<String> {
        match self.ask(Order::KernelLog)? {
            Answer::Text(log) => Ok(log),
            other => bail!("{self}: {other:?} instead of a log"),
        }
    }

    /// Writes its kernel's log to a file, for people.
    pub(crate) fn save_kernel_log(&mut self, directory: &Path) -> Result<()> {
        let log = self.kernel_log()?;
        let file = directory.join(format!("guest{}.kernel", self.member.0));
        fs::write(&file, log).with_context(|| file.display().to_string())
    }

    /// Takes the power away: it says nothing any more, to nobody.
    pub(crate) fn cut_off(&mut self) -> Result<()> {
        self.is_cut_off = true;
        launch::signal(self.machine.program().pid(), libc::SIGKILL)
    }

    /// Its processor and its clock stop, and go on after so long, as those of a machine that moves to
    /// another host do.
    pub(crate) fn stand_still(&self, pause: Duration) -> Result<()> {
        let monitor = UnixStream::connect(&self.monitor)
            .with_context(|| format!("{}", self.monitor.display()))?;
        let mut answers = BufReader::new(monitor.try_clone()?);
        // It is ready for the next when it prompts.
        let mut obey = |order: &str| -> Result<()> {
            answers.read_until(b')', &mut Vec::new())?;
            Ok((&monitor).write_all(format!("{order}\n").as_bytes())?)
        };
        obey("stop")?;
        thread::sleep(pause);
        obey("cont")?;
        // Echoed, carried out, and prompted again: hung up before, it would not be heard.
        answers.read_until(b')', &mut Vec::new())?;
        Ok(())
    }

    /// Turns it off, and waits until it is.
    pub(crate) fn turn_off(mut self) -> Result<()> {
        if self.is_cut_off {
            return Ok(());
        }
        self.order(Order::PowerOff)?;
        self.machine.finish(HANG).map(drop)
    }

    fn ask(&mut self, order: Order) -> Result<Answer> {
        let job = self.order(order)?;
        self.finish(job, HANG)
    }

    fn order(&mut self, order: Order) -> Result<Job> {
        self.last_job += 1;
        let job = self.last_job;
        let line = serde_json::to_string(&Request { job, order })?;
        let said = self.machine.say(&line);
        said.with_context(|| format!("{self} has ended{}", self.console()))?;
        Ok(Job(job))
    }

    fn finish(&mut self, job: Job, patience: Duration) -> Result<Answer> {
        match self.event(job, patience)? {
            Event::Done(answer) => Ok(answer),
            Event::Failed(reason) => bail!(Failed(format!("{self}: {reason}"))),
            other => bail!("{self}: {other:?} instead of an answer"),
        }
    }

    /// The next that a job says.
    fn event(&mut self, Job(job): Job, patience: Duration) -> Result<Event> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(event) = self.unread.get_mut(&job).and_then(VecDeque::pop_front) {
                return Ok(event);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.machine.await_line("", left);
            let line = line.with_context(|| format!("{self}, job {job}{}", self.console()))?;
            let reply: Reply = serde_json::from_str(&line).with_context(|| line.clone())?;
            self.unread.entry(reply.job).or_default().push_back(reply.event);
        }
    }

    /// The end of its console, as a part of an error text.
    fn console(&self) -> String {
        let text = fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        tail.iter().map(|line| format!("\n      | {line}")).collect()
    }
}

impl fmt::Display for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "guest {}", self.member.0)
    }
}

/// A network card of a guest with these addresses.
fn card(card: u8, addresses: Vec<String>, lan: &Lan, pnet_id: &str) -> Equipment {
    let pnet_id = Some(pnet_id.to_owned());
    Equipment { card, addresses, mtu: lan.mtu(), has_rdma: true, pnet_id, ueids: Vec::new() }
}

/// The machine: one emulated processor, a serial port that is our pipe, a console that is a file, and
/// two cards at their cables.
fn machine(boot: &Boot, lan: &Lan, member: Member, console: &Path) -> Command {
    // With them the card would leave it to us to cut segments and to sum them up, and a capture would
    // show what never goes over a wire.
    const NO_OFFLOADS: &str = "csum=off,guest_csum=off,gso=off,host_tso4=off,host_tso6=off,\
                               host_ecn=off,host_ufo=off,guest_tso4=off,guest_tso6=off,\
                               guest_ecn=off,guest_ufo=off";
    // QEMU 7.2 emulates CMPXCHG16B so that any bits may stand in EFLAGS behind it, and an interrupt that
    // comes then takes them for the processor's mode: once in a while Linux dies of a double fault in its
    // memory allocator. On a processor without that instruction it does without.
    const PROCESSOR: &str = "qemu64,-cx16";
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-accel", "tcg", "-machine", "pc", "-cpu", PROCESSOR, "-m", "512", "-smp", "1"])
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .arg("-kernel")
        .arg(&boot.kernel)
        .arg("-initrd")
        .arg(&boot.initramfs)
        // A kernel that panics ends the machine at once. Nothing is to be kept from its user. Where the
        // host is busy, its timer may seem to be broken.
        .arg("-append")
        .arg("console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off no_timer_check")
        .args(["-chardev", "stdio,id=control,signal=off", "-device", "virtio-serial-pci"])
        .args(["-device", "virtserialport,chardev=control,name=sidestep"]);
    for card in [member, member.second()] {
        let (tap, mac, mtu) = (card.tap(), card.mac(), lan.mtu());
        command
            .args(["-netdev", &format!("tap,id={tap},ifname={tap},script=no,downscript=no")])
            .arg("-device")
            .arg(format!(
                "virtio-net-pci,netdev={tap},mac={mac},host_mtu={mtu},romfile=,{NO_OFFLOADS}"
            ));
    }
    command
}
