//! What clients have measured: a recorder for each thread, put together at the end.

use hdrhistogram::Histogram;

use super::stage::Stage;
use crate::control::{ClientReport, SLICE_MS, Usage};
use crate::session::histogram;

/// Transactions that ended in the measured time of a stage, and nothing of others.
#[derive(Debug)]
pub(crate) struct Recorder {
    from_ns: u64,
    to_ns: u64,
    transactions: u64,
    sum_us: f64,
    sum_of_squares: f64,
    histogram: Histogram<u64>,
    /// Transactions of each slice so far; the last one ends at `slice_ends_ns`.
    slices: Vec<u64>,
    slice_ends_ns: u64,
    last_end_ns: u64,
    unfinished: u64,
}

impl Recorder {
    /// For a stage that has not begun.
    pub(crate) fn new(stage: &Stage) -> Self {
        Self {
            from_ns: stage.measured_from_ns,
            to_ns: stage.end_ns,
            transactions: 0,
            sum_us: 0.0,
            sum_of_squares: 0.0,
            histogram: growing_histogram(),
            slices: vec![0],
            slice_ends_ns: stage.measured_from_ns.saturating_add(SLICE_NS),
            last_end_ns: stage.measured_from_ns,
            unfinished: 0,
        }
    }

    /// A transaction whose response time counts from `start_ns` has ended. Ends come
    /// in the order of time.
    #[inline]
    pub(crate) fn record(&mut self, start_ns: u64, end_ns: u64) {
        if end_ns < self.from_ns || end_ns >= self.to_ns {
            return;
        }
        let response_ns = end_ns.saturating_sub(start_ns);
        let response_us = response_ns as f64 * 1e-3;
        self.transactions += 1;
        self.sum_us += response_us;
        self.sum_of_squares += response_us * response_us;
        self.histogram += response_ns;
        while end_ns >= self.slice_ends_ns {
            self.slices.push(0);
            self.slice_ends_ns += SLICE_NS;
        }
        if let Some(slice) = self.slices.last_mut() {
            *slice += 1;
        }
        self.last_end_ns = end_ns;
    }

    /// So many transactions of an open loop were due and have not ended.
    pub(crate) fn add_unfinished(&mut self, count: u64) {
        self.unfinished += count;
    }

    /// Transactions so far.
    pub(crate) fn transactions(&self) -> u64 {
        self.transactions
    }

    /// Takes up what another thread recorded in the same stage.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.transactions += other.transactions;
        self.sum_us += other.sum_us;
        self.sum_of_squares += other.sum_of_squares;
        self.histogram += &other.histogram;
        let len = self.slices.len().max(other.slices.len());
        self.slices.resize(len, 0);
        for (sum, count) in self.slices.iter_mut().zip(&other.slices) {
            *sum += count;
        }
        self.last_end_ns = self.last_end_ns.max(other.last_end_ns);
        self.unfinished += other.unfinished;
    }

    /// Length of the measured time: as planned, or until the last transaction when
    /// these were counted.
    pub(crate) fn elapsed_ns(&self) -> u64 {
        let end_ns = if self.to_ns == u64::MAX { self.last_end_ns } else { self.to_ns };
        end_ns - self.from_ns
    }

    /// The report of a worker whose transactions have so many bytes, both ways.
    pub(crate) fn into_report(mut self, bytes: u64, usage: Usage) -> ClientReport {
        let elapsed_ns = self.elapsed_ns();
        // Slices in which nothing ended count too.
        let slices = elapsed_ns.div_ceil(SLICE_NS).max(self.slices.len() as u64);
        self.slices.resize(slices as usize, 0);
        ClientReport {
            transactions: self.transactions,
            bytes: self.transactions.saturating_mul(bytes),
            elapsed_ns,
            response_ns: histogram::to_hex(&of_fixed_shape(&self.histogram)),
            response_sums_us: (self.sum_us, self.sum_of_squares),
            over_time: self.slices,
            usage,
            unfinished: self.unfinished,
        }
    }
}

/// Three digits, any range. It starts small and grows with the values: thousands of
/// threads have one each.
fn growing_histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

/// The same times in the one shape that coordinators add up.
fn of_fixed_shape(recorded: &Histogram<u64>) -> Histogram<u64> {
    let mut whole = histogram::new_histogram();
    for step in recorded.iter_recorded() {
        whole.saturating_record_n(step.value_iterated_to(), step.count_at_value());
    }
    whole
}

const SLICE_NS: u64 = SLICE_MS * 1_000_000;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What a coordinator reads.
    pub(crate) fn from_hex(hex: &str) -> Histogram<u64> {
        histogram::from_hex(hex).expect("a histogram")
    }

    const MS: u64 = 1_000_000;

    fn stage() -> Stage {
        Stage::timed(0, 100 * MS, 250 * MS)
    }

    #[test]
    fn counts_what_ends_in_the_measured_time() {
        let mut recorder = Recorder::new(&stage());
        recorder.record(0, 100 * MS - 1);
        recorder.record(0, 100 * MS);
        recorder.record(340 * MS, 350 * MS - 1);
        recorder.record(345 * MS, 350 * MS);
        assert_eq!(recorder.transactions(), 2);
        let report = recorder.into_report(7, Usage::default());
        assert_eq!((report.transactions, report.bytes), (2, 14));
        assert_eq!(report.elapsed_ns, 250 * MS);
        assert_eq!(report.over_time, [1, 0, 1]);
    }

    #[test]
    fn sums_and_histogram_say_the_same() {
        let mut recorder = Recorder::new(&stage());
        for i in 1..=100 {
            recorder.record(200 * MS - i * 1000, 200 * MS);
        }
        let report = recorder.into_report(1, Usage::default());
        assert_eq!(report.response_sums_us, (5050.0, 338_350.0));
        let histogram = from_hex(&report.response_ns);
        assert_eq!(histogram.len(), 100);
        assert!(histogram.equivalent(histogram.value_at_quantile(0.5), 50_000));
        assert!(histogram.equivalent(histogram.max(), 100_000));
    }

    #[test]
    fn threads_add_up_whatever_their_ranges() {
        let mut all = Recorder::new(&stage());
        all.record(100 * MS, 100 * MS + 1);
        let mut other = Recorder::new(&stage());
        other.record(0, 320 * MS);
        other.add_unfinished(3);
        all.merge(&other);
        let report = all.into_report(1, Usage::default());
        assert_eq!((report.transactions, report.unfinished), (2, 3));
        assert_eq!(report.over_time, [1, 0, 1]);
        let histogram = from_hex(&report.response_ns);
        assert_eq!(histogram.min(), 1);
        assert!(histogram.equivalent(histogram.max(), 320 * MS));
    }

    #[test]
    fn a_counted_stage_lasts_until_its_last_transaction() {
        let stage = Stage::counted(1000, 2);
        let mut all = Recorder::new(&stage);
        let mut other = Recorder::new(&stage);
        all.record(1000, 1500);
        other.record(1000, 1600);
        all.merge(&other);
        assert_eq!(all.into_report(1, Usage::default()).elapsed_ns, 600);
    }

    #[test]
    fn empty_slices_at_the_end_are_there() {
        let report = Recorder::new(&stage()).into_report(1, Usage::default());
        assert_eq!(report.over_time, [0, 0, 0]);
        assert_eq!(from_hex(&report.response_ns).len(), 0);
    }
}
