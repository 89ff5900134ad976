//! The VIPs of a network namespace at work: joins what is seen of targets, what
//! [`sidestep_distributor`] decides of it, and the program in the kernel.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sidestep_bpf::{BpfError, INDICES, Steering};
use sidestep_distributor::terms::TARGETS_MAX;
use sidestep_distributor::{
    Change, Choice, Distribution, Plan, Refusal, SmcUse, State, TargetKind, Vip, VipSet,
};

use super::daemon::Direct;
use super::error::VipError;
use super::giving::{self, Giving};
use super::listener;
use super::presence::{self, Presence};
use super::probe::Outcome;
use super::roster::{self, Probing, Question};
use super::sockets::{self, Seen};
use crate::commands::vip_status::{Connection, Status, TargetStatus, VipStatus};

/// All VIPs in force.
pub(super) struct Director {
    steering: Steering,
    services: Vec<Service>,
    /// Addresses of targets, whose places are the numbers of their sockets' owners. One that was a
    /// target once keeps its number: connections that it accepted then have it.
    owners: Vec<SocketAddr>,
    /// Processes that wait to give the kernel listeners of services which are gone, with the service's number. Nothing else has
    /// that number until they have ended.
    late: Vec<(usize, Giving)>,
    /// When connections are counted next.
    count_due: Instant,
}

/// A VIP in force.
struct Service {
    /// Its number in the kernel.
    index: usize,
    distribution: Distribution,
    /// For each target.
    members: Vec<Member>,
    presence: Option<Presence>,
    /// What the kernel has, and the states that it was made of.
    plan: Plan,
    states: Vec<State>,
}

/// What was seen of a target.
#[derive(Default)]
struct Member {
    /// The listener that the kernel has been given.
    cookie: Option<u64>,
    pid: Option<u32>,
    program: Option<String>,
    fault: Option<String>,
    /// The listener that could not be fetched, and when that is tried again: it takes a look at all
    /// processes.
    failed: Option<(u64, Instant)>,
    /// The kernel is being given a listener.
    giving: Option<Giving>,
    queue: (u32, u32),
    is_marked: bool,
    connections: u64,
    probing: Probing,
}

impl Member {
    /// The kernel has its listener, or why not.
    fn note(&mut self, seen: &Seen, given: Result<Giving, String>) {
        match given {
            Ok(giving) => {
                self.cookie = Some(seen.cookie);
                self.pid = Some(giving.pid);
                self.program = Some(giving.program.clone());
                (self.fault, self.failed) = (None, None);
                self.is_marked = presence::has_marker(seen.local.port());
            }
            Err(fault) => {
                if self.fault.as_ref() != Some(&fault) {
                    log::warn!("{fault}");
                }
                self.cookie = None;
                self.fault = Some(fault);
                self.failed = Some((seen.cookie, Instant::now() + COUNT_EVERY));
            }
        }
    }

    /// Whether it listens, and takes nothing because its program does not run under Sidestep.
    fn lacks_smc(&self, vip: &Vip) -> bool {
        self.cookie.is_some() && vip.smc == SmcUse::Require && !self.is_marked
    }
}

impl Director {
    /// With no VIPs in force.
    pub(super) fn new() -> Result<Self, VipError> {
        let mut steering = Steering::load()?;
        steering.attach()?;
        Ok(Self {
            steering,
            services: Vec::new(),
            owners: Vec::new(),
            late: Vec::new(),
            count_due: Instant::now(),
        })
    }

    /// Why a VIP cannot be in force here.
    fn objection(&self, vip: &Vip, all: &[Seen]) -> Option<String> {
        let address = vip.address;
        let is_ours =
            self.services.iter().any(|service| service.distribution.vip().address == address);
        if is_ours {
            return None;
        }
        let name = &vip.name;
        if let Err(error) = presence::check_address(address) {
            let prefix = if address.is_ipv4() { 32 } else { 128 };
            let ip = address.ip();
            return Some(match error.kind() {
                io::ErrorKind::AddrNotAvailable => format!(
                    "vip.{name}: {ip} is no address of this host; `ip address add {ip}/{prefix} dev lo` \
                     as root makes it one"
                ),
                _ => format!("vip.{name}: {ip} cannot be used: {error}"),
            });
        }
        let other = listener::in_the_way(all, address)?;
        let who = listener::holder(other).map_or_else(
            || "a program".to_owned(),
            |(pid, program)| format!("{program} (pid {pid})"),
        );
        Some(format!(
            "vip.{name}: {who} listens at {} already; let it listen at another port and make it a target, \
             or use another address",
            other.local
        ))
    }

    fn is_in_force(&self, vip: &Vip) -> bool {
        self.services.iter().any(|service| service.distribution.vip() == vip)
    }

    /// A service that the kernel has, and gives no connections yet.
    fn prepare(&mut self, vip: &Vip, all: &[Seen], others: &[Service]) -> Result<Service, String> {
        let is_free = |index: &usize| {
            let is_it = |service: &Service| service.index == *index;
            !self.services.iter().chain(others).any(is_it)
                && !self.late.iter().any(|(late, _)| late == index)
        };
        let index = (0..INDICES).find(is_free).ok_or(
            "the kernel's tables are full, because programs hold the locks of listeners that were targets; the log names them",
        )?;
        let before =
            self.services.iter().find(|service| service.distribution.vip().name == vip.name);
        let mut given = [0; TARGETS_MAX];
        if let Some(before) = before {
            let counts = self.steering.steered(before.index).map_err(in_words)?;
            for (target, place) in vip.targets.iter().zip(&mut given) {
                let at =
                    before.distribution.vip().targets.iter().position(|it| it.name == target.name);
                *place = at.map_or(0, |at| counts[at]);
            }
        }
        let distribution = before.map_or_else(
            || Distribution::new(vip.clone()),
            |before| before.distribution.succeeded_by(vip.clone()),
        );
        self.steering.clear(index, &given).map_err(in_words)?;
        let members = vip.targets.iter().map(|_| Member::default()).collect();
        let (plan, states) = (distribution.plan(), distribution.states());
        let mut service = Service { index, distribution, members, presence: None, plan, states };
        self.look_at_listeners(&mut service, all);
        if service.members.iter().any(|member| member.giving.is_some()) {
            await_listeners(&service);
            self.look_at_listeners(&mut service, all);
        }
        service.plan = service.distribution.plan();
        service.states = service.distribution.states();
        self.steering.prepare(index, &service.plan).map_err(in_words)?;
        Ok(service)
    }

    /// Puts a service into force that was prepared, in place of what has its name or its address.
    fn take(&mut self, mut service: Service) -> String {
        let vip = service.distribution.vip().clone();
        if let Err(error) =
            self.steering.commit(service.index, vip.address, &service.plan, vip.affinity)
        {
            // There is room for it, and it was looked at: this is no fault of the terms.
            self.retire(service);
            return format!("vip.{}: {error}", vip.name);
        }
        let is_before = |service: &mut Service| {
            let before = service.distribution.vip();
            before.name == vip.name || before.address == vip.address
        };
        let before: Vec<Service> = self.services.extract_if(.., is_before).collect();
        for mut before in before {
            if before.distribution.vip().address == vip.address {
                service.presence = before.presence.take();
            } else {
                self.forget(before.distribution.vip().address);
            }
            self.retire(before);
        }
        // Behind the program, which keeps connections away from it.
        service.presence.get_or_insert_with(|| Presence::new(vip.address));
        self.services.push(service);
        self.services
            .sort_by(|one, other| one.distribution.vip().name.cmp(&other.distribution.vip().name));
        roster::in_words(&vip)
    }

    /// Takes a VIP out of force.
    fn remove_vip(&mut self, name: &str) -> Result<String, String> {
        let at = self.services.iter().position(|service| service.distribution.vip().name == name);
        let at = at.ok_or_else(|| roster::no_such_vip(self.vips(), name))?;
        let service = self.services.remove(at);
        let address = service.distribution.vip().address;
        self.forget(address);
        self.retire(service);
        Ok(format!("{name} at {address} is not in force any more"))
    }

    fn forget(&mut self, address: SocketAddr) {
        if let Err(error) = self.steering.forget(address) {
            log::error!("{address} stays in force: {error}");
        }
    }

    /// Empties what a service that is in force nowhere has in the kernel.
    fn retire(&mut self, service: Service) {
        let index = service.index;
        let late = service.members.into_iter().filter_map(|member| member.giving);
        self.late.extend(late.map(|giving| (index, giving)));
        self.clear(index);
    }

    /// Takes out again what has come late.
    fn follow_late(&mut self) {
        let ended: Vec<(usize, Giving)> =
            self.late.extract_if(.., |(_, giving)| giving.outcome().is_some()).collect();
        for (index, _) in ended {
            self.clear(index);
        }
    }

    fn clear(&mut self, index: usize) {
        if let Err(error) = self.steering.clear(index, &[0; TARGETS_MAX]) {
            log::error!("a table stays that is not in force: {error}");
        }
    }

    /// What the program of each target has as its socket, and whether it is still the one.
    fn look_at_listeners(&mut self, service: &mut Service, all: &[Seen]) {
        let vip = service.distribution.vip().clone();
        for (target, terms) in vip.targets.iter().enumerate() {
            let seen = listener::of_target(all, terms.address, vip.address);
            let member = &mut service.members[target];
            member.queue = seen.map_or((0, 0), |seen| seen.queue);
            if member.cookie.is_none() || member.cookie != seen.map(|seen| seen.cookie) {
                let owner = self.owner_of(terms.address);
                self.give(service.index, target, owner, member, seen);
            }
            let is_listening = member.cookie.is_some();
            let lacks_smc = member.lacks_smc(&vip);
            let changes = service.distribution.listens(target, is_listening && !lacks_smc);
            let why = match (is_listening, lacks_smc) {
                (false, _) => "it does not listen",
                (true, true) => NOT_UNDER_SIDESTEP,
                (true, false) => "it listens",
            };
            roster::report(&service.distribution, &changes, why);
        }
    }

    /// Gives the kernel the socket of a target, if there is one.
    fn give(
        &mut self,
        index: usize,
        target: usize,
        owner: u64,
        member: &mut Member,
        seen: Option<&Seen>,
    ) {
        let ended = member.giving.as_mut().and_then(Giving::outcome);
        let given = ended.and_then(|outcome| Some((member.giving.take()?, outcome)));
        let Some(seen) = seen else {
            self.steering.withdraw(index, target);
            let (connections, giving) = (member.connections, member.giving.take());
            *member = Member { connections, giving, ..Member::default() };
            return;
        };
        let now = Instant::now();
        match given {
            Some((giving, outcome)) if giving.cookie == seen.cookie => {
                return member.note(seen, outcome.map(|()| giving));
            }
            // It was for a listener that is not the target's any more.
            Some(_) => self.steering.withdraw(index, target),
            None => {}
        }
        if let Some(giving) = &mut member.giving {
            if giving.is_to_be_told() {
                let (program, pid, local) = (&giving.program, giving.pid, seen.local);
                let fault = format!(
                    "{program} (pid {pid}) holds the lock of its listener at {local}: it is given no connections until it lets go, or ends"
                );
                log::warn!("{fault}; all other targets go on");
                member.fault = Some(fault);
            }
            return;
        }
        if member.failed.is_some_and(|(cookie, retry)| cookie == seen.cookie && now < retry) {
            return;
        }
        let begun =
            listener::fetch(seen).map_err(|error| refusal(seen, &error)).and_then(|fetched| {
                self.steering.number(&fetched.socket, owner).map_err(in_words)?;
                let (table, slot) = self.steering.place(index, target);
                let begun = Giving::begin(table, slot, fetched, seen.cookie);
                begun.map_err(|error| format!("no process can be started for a target: {error}"))
            });
        match begun {
            Ok(mut giving) => match giving.outcome() {
                Some(outcome) => member.note(seen, outcome.map(|()| giving)),
                None => (member.cookie, member.giving) = (None, Some(giving)),
            },
            Err(fault) => member.note(seen, Err(fault)),
        }
    }

    fn owner_of(&mut self, target: SocketAddr) -> u64 {
        let known = self.owners.iter().position(|owner| *owner == target);
        // 0 is no number.
        known.unwrap_or_else(|| {
            self.owners.push(target);
            self.owners.len() - 1
        }) as u64
            + 1
    }

    /// Whom each live connection is with.
    fn count(&mut self, service: &mut Service) {
        let vip = service.distribution.vip();
        let counted = self.steering.steered(service.index).map_err(|error| error.to_string());
        let counted = counted.and_then(|given| {
            // Later than what was given: a connection that comes between counts as one more that lives.
            let seen = sockets::connections(vip.address.port(), self.steering.owners());
            Ok((given, seen.map_err(|error| error.to_string())?))
        });
        let (given, seen) = match counted {
            Ok(counted) => counted,
            Err(error) => return log::error!("connections are not counted: {error}"),
        };
        let mut live: HashMap<u64, u64> = HashMap::new();
        for seen in seen.iter().filter(|seen| seen.local == vip.address) {
            *live.entry(seen.owner.unwrap_or(0)).or_default() += 1;
        }
        let mut ended = given;
        for (target, terms) in vip.targets.iter().enumerate() {
            let number = self.owners.iter().position(|owner| *owner == terms.address);
            let connections =
                number.and_then(|at| live.get(&(at as u64 + 1))).copied().unwrap_or(0);
            service.members[target].connections = connections;
            ended[target] = given[target].saturating_sub(connections);
        }
        if let Err(error) = self.steering.note_ended(service.index, &ended) {
            log::error!("ended connections are not noted: {error}");
        }
    }

    /// Puts into force what has changed.
    fn put(&mut self, service: &mut Service) {
        let states = service.distribution.states();
        if states == service.states {
            return;
        }
        let plan = service.distribution.plan();
        let vip = service.distribution.vip();
        let put = self
            .steering
            .prepare(service.index, &plan)
            .and_then(|()| self.steering.commit(service.index, vip.address, &plan, vip.affinity));
        match put {
            Ok(()) => (service.plan, service.states) = (plan, states),
            Err(error) => log::error!("vip.{}: the table before stays: {error}", vip.name),
        }
    }

    fn change(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Distribution, usize) -> Result<Vec<Change>, Refusal>,
    ) -> Result<String, String> {
        let mut services = std::mem::take(&mut self.services);
        let mut all: Vec<_> = services.iter_mut().map(|it| &mut it.distribution).collect();
        let done = roster::change(&mut all, name, change).map(|(at, done)| {
            // At once: who has drained a target may end it now.
            self.put(&mut services[at]);
            done
        });
        self.services = services;
        done
    }

    fn vips(&self) -> impl Iterator<Item = &Vip> + Clone {
        self.services.iter().map(|service| service.distribution.vip())
    }

    fn target_of(&self, vip: &Vip, owner: u64) -> Option<String> {
        let address = self.owners.get((owner as usize).checked_sub(1)?)?;
        let target = vip.targets.iter().find(|target| target.address == *address);
        // It was a target once, and has a name no more.
        Some(target.map_or_else(|| address.to_string(), |target| target.name.clone()))
    }
}

impl Direct for Director {
    const KIND: TargetKind = TargetKind::Listeners;

    fn apply(&mut self, set: &VipSet) -> Result<String, String> {
        let all = sockets::listeners()
            .map_err(|error| format!("the kernel tells no listeners: {error}"))?;
        let faults: Vec<String> =
            set.vips().iter().filter_map(|vip| self.objection(vip, &all)).collect();
        if !faults.is_empty() {
            return Err(format!("{}\nnothing is changed", faults.join("\n")));
        }
        let mut prepared: Vec<Service> = Vec::new();
        for vip in set.vips() {
            if self.is_in_force(vip) {
                continue;
            }
            match self.prepare(vip, &all, &prepared) {
                Ok(service) => prepared.push(service),
                Err(error) => {
                    prepared.into_iter().for_each(|service| self.retire(service));
                    return Err(format!("vip.{}: {error}\nnothing is changed", vip.name));
                }
            }
        }
        let mut lines: Vec<String> =
            prepared.into_iter().map(|service| self.take(service)).collect();
        let is_gone = |service: &Service| {
            !set.vips().iter().any(|vip| vip.name == service.distribution.vip().name)
        };
        let gone: Vec<String> = self
            .services
            .iter()
            .filter(|service| is_gone(service))
            .map(|service| service.distribution.vip().name.clone())
            .collect();
        for name in gone {
            lines.push(self.remove_vip(&name)?);
        }
        self.count_due = Instant::now();
        Ok(if lines.is_empty() { "nothing to change".to_owned() } else { lines.join("\n") })
    }

    fn look(&mut self) -> Vec<Question> {
        let now = Instant::now();
        let all = match sockets::listeners() {
            Ok(all) => all,
            Err(error) => {
                log::error!("the kernel tells no listeners: {error}");
                return Vec::new();
            }
        };
        self.follow_late();
        let is_count_due = now >= self.count_due;
        let mut due = Vec::new();
        let mut services = std::mem::take(&mut self.services);
        for service in &mut services {
            self.look_at_listeners(service, &all);
            if is_count_due || service.plan.choice == Choice::Least {
                self.count(service);
            }
            if is_count_due {
                service.look_at_markers();
            }
            due.extend(service.probes_due(now));
            self.put(service);
        }
        self.services = services;
        if is_count_due {
            self.count_due = now + COUNT_EVERY;
        }
        due
    }

    fn probed(&mut self, question: &Question, outcome: Outcome) {
        let mut services = std::mem::take(&mut self.services);
        let is_it = |service: &&mut Service| service.distribution.vip().name == question.vip;
        if let Some(service) = services.iter_mut().find(is_it) {
            service.probed(question.target, outcome == Outcome::Serves);
            self.put(service);
        }
        self.services = services;
    }

    fn drain(&mut self, target: &str) -> Result<String, String> {
        self.change(target, Distribution::drain)
    }

    fn resume(&mut self, target: &str) -> Result<String, String> {
        self.change(target, Distribution::resume)
    }

    fn remove(&mut self, vip: &str) -> Result<String, String> {
        self.remove_vip(vip)
    }

    fn status(&mut self) -> Status {
        let mut services = std::mem::take(&mut self.services);
        let mut vips = Vec::new();
        for service in &mut services {
            self.count(service);
            let given = self.steering.steered(service.index).unwrap_or([0; TARGETS_MAX]);
            vips.push(service.status(&given));
        }
        self.services = services;
        Status { vips }
    }

    fn connections(&self) -> io::Result<Vec<Connection>> {
        let mut all = Vec::new();
        for service in &self.services {
            let vip = service.distribution.vip();
            let seen = sockets::connections(vip.address.port(), self.steering.owners())?;
            all.extend(seen.iter().filter(|seen| seen.local == vip.address).map(|seen| {
                Connection {
                    vip: vip.name.clone(),
                    address: vip.address,
                    client: seen.peer,
                    target: seen.owner.and_then(|owner| self.target_of(vip, owner)),
                }
            }));
        }
        Ok(all)
    }
}

/// From one count of connections, and one look at markers, to the next, and from one try to fetch a listener to
/// the next. Where connections decide, each look counts.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// Why a target that listens takes nothing where SMC is required.
const NOT_UNDER_SIDESTEP: &str = "it does not run under Sidestep";

/// Why the socket of a target cannot be fetched.
fn refusal(seen: &Seen, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "the listener at {} cannot be fetched from its program: that takes CAP_SYS_PTRACE \
             and CAP_DAC_READ_SEARCH",
            seen.local
        ),
        io::ErrorKind::NotFound => format!(
            "the listener at {} is of no process that is seen here: run `sidestep vip run` in the host's \
             PID namespace",
            seen.local
        ),
        _ => format!("the listener at {} cannot be fetched from its program: {error}", seen.local),
    }
}

/// Waits for what gives the kernel listeners, but not for ever.
fn await_listeners(service: &Service) {
    let deadline = Instant::now() + giving::PATIENCE;
    for giving in service.members.iter().filter_map(|member| member.giving.as_ref()) {
        if let Err(error) = giving.await_end(deadline.saturating_duration_since(Instant::now())) {
            log::warn!("a target is not waited for: {error}");
        }
    }
}

fn in_words(error: BpfError) -> String {
    error.to_string()
}

impl Service {
    /// A probe of the target at this address has come to an end. By new terms there may be none.
    fn probed(&mut self, target: SocketAddr, has_passed: bool) {
        let targets = &self.distribution.vip().targets;
        let Some(target) = targets.iter().position(|it| it.address == target) else { return };
        self.members[target].probing.answered();
        let changes = self.distribution.probed(target, has_passed);
        roster::report(&self.distribution, &changes, "its probe");
    }

    /// Clients under Sidestep may meet the targets as long as one that takes connections runs under it.
    fn look_at_markers(&mut self) {
        let mut is_wanted = false;
        for (target, terms) in self.distribution.vip().targets.iter().enumerate() {
            let member = &mut self.members[target];
            member.is_marked =
                member.cookie.is_some() && presence::has_marker(terms.address.port());
            is_wanted |= member.is_marked && self.distribution.state(target) == State::Active;
        }
        if let Some(presence) = &mut self.presence {
            presence.follow(is_wanted);
        }
    }

    fn probes_due(&mut self, now: Instant) -> Vec<Question> {
        let vip = self.distribution.vip();
        let members = vip.targets.iter().zip(&mut self.members);
        let listening = members.filter(|(_, member)| member.cookie.is_some());
        listening
            .filter_map(|(terms, member)| member.probing.ask(vip, terms.address, None, now))
            .collect()
    }

    fn status(&self, given: &[u64; TARGETS_MAX]) -> VipStatus {
        let vip = self.distribution.vip();
        let targets = vip.targets.iter().zip(&self.members).enumerate();
        let targets = targets.map(|(at, (terms, member))| {
            let (queue, queue_max) = member.queue;
            TargetStatus {
                name: terms.name.clone(),
                address: terms.address,
                state: self.distribution.state(at).to_string(),
                weight: terms.weight,
                connections: member.connections,
                given: given[at],
                affinities: None,
                queue,
                queue_max,
                responsiveness: member.cookie.map(|_| roster::responsiveness(member.queue)),
                pid: member.pid,
                program: member.program.clone(),
                is_marked: member.is_marked,
                fault: member
                    .fault
                    .clone()
                    .or_else(|| member.lacks_smc(vip).then(|| NOT_UNDER_SIDESTEP.to_owned())),
                link: None,
            }
        });
        VipStatus {
            has_marker: self.presence.as_ref().is_some_and(Presence::is_marked),
            is_announced: self.presence.as_ref().is_some_and(Presence::is_announced),
            ..roster::status(vip, targets.collect())
        }
    }
}
