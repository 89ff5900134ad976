//! The figures as Prometheus reads them: its text format, version 0.0.4.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use prometheus::TextEncoder;
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};
use sidestep_gateway::status::Status;
use sidestep_observe::{Mode, Sizes, Snapshot};
use sidestep_proto::fallback::Reason;

use super::figures::{self, Direction, FAMILIES, Family, Figure, MESSAGE_SIZE};
use super::gateway::{self, Sample};
use super::ledger::{Ledger, Sums};

/// What is so at the moment, and may fall.
pub(super) fn gauges(snapshot: &Snapshot, ledger: &Ledger, took: Duration) -> Vec<MetricFamily> {
    let mut gauges = Gauges::default();
    gauges.add(&BUILD, &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    gauges.add(&LOOK_SECONDS, &[], took.as_secs_f64());
    gauges.add(&UNREADABLE, &[], snapshot.unreadable.len() as f64);
    gauges.add(&INCOMPATIBLE, &[], snapshot.incompatible.len() as f64);
    gauges.add(&CURTAILED, &[], snapshot.curtailed.len() as f64);
    for program in &snapshot.programs {
        let Some(name) = ledger.name_of(program.state) else { continue };
        gauges.add(&PROGRAMS, &[("program", name)], 1.0);
        // A mode that no connection has at the moment is 0, and not absent.
        for mode in [Mode::Tcp, Mode::Negotiating, Mode::SmcD, Mode::Lingering].map(word) {
            gauges.add(&OPEN, &[("program", name), ("mode", mode)], 0.0);
        }
        gauges.add(&OPEN, &[("program", name), ("mode", HANDED_OVER)], 0.0);
        for direction in [RECEIVE, SEND] {
            gauges.add(&OPEN_RING_BYTES, &[("program", name), direction], 0.0);
        }
    }
    for connection in &snapshot.connections {
        let Some(name) = ledger.name_of(connection.state) else { continue };
        let is_handed_over = connection.session.is_some();
        let mode = if is_handed_over { HANDED_OVER } else { word(connection.mode) };
        gauges.add(&OPEN, &[("program", name), ("mode", mode)], 1.0);
        if connection.mode == Mode::Tcp && !is_handed_over {
            let reason = connection.fallback.map_or(Reason::None, |fallback| fallback.reason);
            let labels = figures::labels_of(reason);
            let [(_, reason), (_, code)] = &labels[..] else { continue };
            let labels = [("program", &**name), ("reason", reason), ("code", code)];
            gauges.add(&OPEN_ON_TCP, &labels, 1.0);
        }
        let bytes = [(RECEIVE, connection.rmbe_local), (SEND, connection.rmbe_peer)];
        for (direction, len) in bytes {
            gauges.add(&OPEN_RING_BYTES, &[("program", name), direction], f64::from(len));
        }
    }
    gauges.families()
}

/// The same of the gateway, and what it has counted.
pub(super) fn of_gateway(status: &Status) -> Vec<MetricFamily> {
    let mut gauges = Gauges::default();
    let mut counters = BTreeMap::<_, Vec<Metric>>::new();
    for Sample { family, label, value } in gateway::gauges(status) {
        let labels: Vec<_> = label.iter().map(|(name, value)| (*name, value.as_str())).collect();
        gauges.add(&family, &labels, value);
    }
    for Sample { family, label, value } in gateway::counters(status) {
        let labels: Vec<_> = label.iter().map(|(name, value)| (*name, value.as_str())).collect();
        counters.entry((family.name, family.help)).or_default().push(counter(&labels, value));
    }
    let of = |((name, help), metrics)| family(name, help, MetricType::COUNTER, metrics);
    gauges.families().into_iter().chain(counters.into_iter().map(of)).collect()
}

/// What rules of TLS that are enforced have dropped, by the rule.
pub(super) fn of_enforcement(dropped: &[(String, u64)]) -> Vec<MetricFamily> {
    let metric = |(rule, count): &(String, u64)| counter(&[("rule", rule)], *count as f64);
    let metrics = dropped.iter().map(metric).collect();
    vec![family(
        "sidestep_tls_enforced_packets_dropped_total",
        "Packets with bytes that a program sent past the gateway where a rule of TLS is enforced.",
        MetricType::COUNTER,
        metrics,
    )]
}

fn counter(labels: &[(&str, &str)], value: f64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(value);
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_counter(counter);
    metric
}

/// All of it.
pub(super) fn text(ledger: &Ledger, others: Vec<MetricFamily>) -> String {
    let mut families = others;
    families.extend(counters(ledger));
    let sizes = ledger.sums().flat_map(|(name, sums)| histograms(name, sums)).collect();
    families.push(family(MESSAGE_SIZE.name, MESSAGE_SIZE.help, MetricType::HISTOGRAM, sizes));
    families.retain(|family| !family.get_metric().is_empty());
    // It fails for a family without metrics only, and writes to memory.
    TextEncoder::new().encode_to_string(&families).unwrap_or_default()
}

/// What programs have counted.
pub(super) fn counters(ledger: &Ledger) -> Vec<MetricFamily> {
    let mut metrics: BTreeMap<&str, Vec<Metric>> = BTreeMap::new();
    let mut add = |family: Family, labels: &[(&str, &str)], value| {
        metrics.entry(family.name).or_default().push(counter(labels, value));
    };
    for (name, sums) in ledger.sums() {
        add(ENDED, &[("program", name)], sums.ended as f64);
        for (figure, value) in &sums.figures {
            let Some((family, labels)) = figure.counter() else { continue };
            let more = labels.iter().map(|(name, value)| (*name, value.as_str()));
            let labels: Vec<_> = [("program", &**name)].into_iter().chain(more).collect();
            add(family, &labels, figure.in_unit(*value));
        }
    }
    let of = |Family { name, help }: &Family| {
        let metrics = metrics.remove(name).unwrap_or_default();
        family(name, help, MetricType::COUNTER, metrics)
    };
    [ENDED].iter().chain(&FAMILIES).map(of).collect()
}

/// The lengths of what the programs of one name sent and received.
fn histograms(name: &Rc<str>, sums: &Sums) -> impl Iterator<Item = Metric> {
    let value = |figure: Figure| sums.figures.get(&figure).copied().unwrap_or_default();
    Direction::ALL.into_iter().map(move |direction| {
        let (mut buckets, mut count) = (Vec::new(), 0_u64);
        for (class, (longest, _)) in Sizes::default().classes().enumerate() {
            count = count.saturating_add(value(Figure::Message(direction, class)));
            // The last class has no bound: the encoder adds it.
            let Some(longest) = longest else { continue };
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(longest as f64);
            bucket.set_cumulative_count(count);
            buckets.push(bucket);
        }
        let bytes = [Figure::RingBytes(direction), Figure::TcpBytes(direction)].map(value);
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets);
        histogram.set_sample_count(count);
        histogram.set_sample_sum(bytes[0].saturating_add(bytes[1]) as f64);
        let labels = [("program", &**name), ("direction", direction.word())];
        let mut metric = Metric::from_label(pairs(&labels));
        metric.set_histogram(histogram);
        metric
    })
}

/// Sums of gauges, by family and labels.
#[derive(Default)]
struct Gauges(BTreeMap<(&'static str, &'static str), BTreeMap<Labels, f64>>);

/// Names and values.
type Labels = Vec<(String, String)>;

impl Gauges {
    fn add(&mut self, family: &Family, labels: &[(&str, &str)], value: f64) {
        let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let of_family = self.0.entry((family.name, family.help)).or_default();
        *of_family.entry(labels.collect()).or_default() += value;
    }

    fn families(self) -> Vec<MetricFamily> {
        let metric = |(labels, value): (Labels, f64)| {
            let labels: Vec<_> =
                labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            let mut metric = Metric::from_label(pairs(&labels));
            metric.set_gauge(gauge);
            metric
        };
        let of = |((name, help), metrics): (_, BTreeMap<_, _>)| {
            let metrics = metrics.into_iter().map(metric).collect();
            family(name, help, MetricType::GAUGE, metrics)
        };
        self.0.into_iter().map(of).collect()
    }
}

pub(super) fn family(
    name: &str,
    help: &str,
    kind: MetricType,
    metrics: Vec<Metric>,
) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

/// A counter or a gauge.
pub(super) fn valued(kind: MetricType, labels: &[(&str, &str)], value: f64) -> Metric {
    let mut metric = Metric::from_label(pairs(labels));
    if kind == MetricType::COUNTER {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    metric
}

fn pairs(labels: &[(&str, &str)]) -> Vec<LabelPair> {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    labels.iter().map(pair).collect()
}

fn word(mode: Mode) -> &'static str {
    match mode {
        Mode::Tcp => "tcp",
        Mode::Negotiating => "negotiating",
        Mode::SmcD => "smc-d",
        Mode::Lingering => "lingering",
    }
}

/// The mode of a connection that the gateway has. How it travels to the other host, the gateway's own figures
/// tell.
const HANDED_OVER: &str = "gateway";

const RECEIVE: (&str, &str) = ("direction", "receive");
const SEND: (&str, &str) = ("direction", "send");

const BUILD: Family = Family { name: "sidestep_build_info", help: "1; the version of the agent." };
const LOOK_SECONDS: Family =
    Family { name: "sidestep_look_seconds", help: "Time that it took to look at all programs." };
const UNREADABLE: Family = Family {
    name: "sidestep_unreadable_processes",
    help: "Processes at which the agent may not look: it lacks CAP_SYS_PTRACE.",
};
const CURTAILED: Family = Family {
    name: "sidestep_curtailed_users",
    help: "Users of whom there is more than one look reads, and who are counted in part.",
};
const INCOMPATIBLE: Family = Family {
    name: "sidestep_incompatible_programs",
    help: "Programs that run another version of Sidestep, and are not counted.",
};
const PROGRAMS: Family =
    Family { name: "sidestep_programs", help: "Programs that have had a connection, now." };
const OPEN: Family =
    Family { name: "sidestep_connections", help: "Open connections now, by their mode." };
const OPEN_ON_TCP: Family = Family {
    name: "sidestep_connections_on_tcp",
    help: "Open connections now on TCP, by the reason that keeps them there.",
};
const OPEN_RING_BYTES: Family = Family {
    name: "sidestep_ring_bytes",
    help: "Lengths of the rings of open connections now, together.",
};
const ENDED: Family =
    Family { name: "sidestep_programs_ended_total", help: "Programs that have ended." };

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_parse::{Scrape, Value};
    use sidestep_observe::{Counters, Program, Totals, Watched};
    use sidestep_proto::fallback::PeerCannot;

    fn watched() -> Watched {
        let mut sent = Sizes::default();
        sent.0[0] = 2;
        *sent.0.last_mut().unwrap() = 1;
        let counters = Counters {
            bytes_sent: 5_000_000,
            ring_bytes_sent: 4_000_000,
            spin_ns: 1_500_000_000,
            ..Counters::default()
        };
        let program = Program {
            program: "a\"b\\".into(),
            totals: Totals { smc: 3, handed_over: 2, counters, sent, ..Totals::default() },
            ended_on_tcp: vec![(Reason::Peer(PeerCannot::PeerNotSmc), 4)],
            ..Program::default()
        };
        let snapshot = Snapshot { programs: vec![program], ..Snapshot::default() };
        Watched { snapshot, ..Watched::default() }
    }

    fn scrape() -> (String, Scrape) {
        let (mut ledger, watched) = (Ledger::default(), watched());
        ledger.enter(&watched);
        let gauges = gauges(&watched.snapshot, &ledger, Duration::from_millis(1));
        let text = text(&ledger, gauges);
        let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap();
        (text, scrape)
    }

    #[test]
    fn a_parser_finds_what_was_counted() {
        let (text, scrape) = scrape();
        let value = |name: &str, label: (&str, &str)| {
            let it = scrape.samples.iter().find(|sample| {
                sample.metric == name && sample.labels.get(label.0) == Some(label.1)
            });
            match it.unwrap_or_else(|| panic!("no {name} {label:?} in:\n{text}")).value {
                Value::Counter(value) | Value::Gauge(value) => value,
                ref other => panic!("{other:?}"),
            }
        };
        assert_eq!(value("sidestep_connections_total", ("mode", "smc-d")), 3.0);
        assert_eq!(value("sidestep_connections_total", ("mode", "gateway")), 2.0);
        assert_eq!(value("sidestep_connections_total", ("mode", "tcp")), 4.0);
        assert_eq!(value("sidestep_fallbacks_total", ("reason", "PeerNotSmc")), 4.0);
        assert_eq!(value("sidestep_fallbacks_total", ("code", "0x03010000")), 4.0);
        assert_eq!(value("sidestep_bytes_total", ("path", "tcp")), 1e6);
        assert_eq!(value("sidestep_connections", ("mode", "smc-d")), 0.0);
        assert_eq!(value("sidestep_connections", ("mode", "gateway")), 0.0);
        let name = ("program", "a\\\"b\\\\");
        assert_eq!(value("sidestep_spin_cpu_seconds_total", name), 1.5);
        assert_eq!(value("sidestep_programs", name), 1.0);
    }

    #[test]
    fn lengths_are_a_cumulative_histogram() {
        let (text, scrape) = scrape();
        let it = scrape.samples.iter().find(|sample| {
            sample.metric == MESSAGE_SIZE.name && sample.labels.get("direction") == Some("sent")
        });
        let Some(Value::Histogram(buckets)) = it.map(|sample| &sample.value) else {
            panic!("no histogram in:\n{text}")
        };
        assert_eq!(buckets.len(), Sizes::default().0.len());
        let (last, others) = buckets.split_last().unwrap();
        assert!(others.iter().all(|bucket| bucket.count == 2.0));
        assert_eq!((last.less_than, last.count), (f64::INFINITY, 3.0));
        let labels = "{program=\"a\\\"b\\\\\",direction=\"sent\"}";
        for line in [format!("_sum{labels} 5000000"), format!("_count{labels} 3")] {
            assert!(text.contains(&format!("{}{line}\n", MESSAGE_SIZE.name)), "{text}");
        }
    }

    #[test]
    fn every_family_is_explained_once() {
        let text = scrape().0;
        for family in FAMILIES.iter().chain([&MESSAGE_SIZE, &ENDED, &OPEN, &PROGRAMS]) {
            assert_eq!(text.matches(&format!("# HELP {} ", family.name)).count(), 1, "{text}");
        }
    }
}
