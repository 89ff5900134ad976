//! Figures as people read them: three significant digits and a unit that fits.

use crate::figure::Figure;
use crate::plan::Transport;
use crate::result::Required;

/// Something counted, such as transactions: `41.2 k`.
pub(super) fn count(value: f64) -> String {
    scaled(value, &[(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")])
}

/// Microseconds: `870 ns`, `12.3 µs`, `1.23 ms`, `4.56 s`.
pub(super) fn time(us: f64) -> String {
    scaled(us, &[(1.0, "µs"), (1e-3, "ns"), (1e3, "ms"), (1e6, "s")])
}

/// Millions of bytes per second: `842 MB/s`, `4.21 GB/s`.
pub(super) fn rate(mb_per_s: f64) -> String {
    scaled(mb_per_s, &[(1.0, "MB/s"), (1e-3, "kB/s"), (1e3, "GB/s"), (1e6, "TB/s")])
}

/// A round figure on an axis, without zeros that say nothing: `20 µs` for `20.0 µs`.
pub(super) fn tick(shown: &str) -> String {
    let (figure, unit) = shown.split_once(' ').unwrap_or((shown, ""));
    let figure = match figure.contains('.') {
        true => figure.trim_end_matches('0').trim_end_matches('.'),
        false => figure,
    };
    format!("{figure} {unit}").trim_end().to_owned()
}

/// Bytes of memory, by powers of 1024: `31.2 GiB`.
pub(super) fn memory(bytes: u64) -> String {
    let bytes = bytes as f64;
    let (kib, mib, gib) = (1024.0, 1024.0 * 1024.0, 1024.0 * 1024.0 * 1024.0);
    scaled(bytes, &[(1.0, "B"), (kib, "KiB"), (mib, "MiB"), (gib, "GiB")])
}

/// Seconds: `42 s`, `3 min 20 s`.
pub(super) fn span(seconds: f64) -> String {
    if !(seconds.is_finite() && seconds >= 60.0) {
        return format!("{} s", significant(seconds));
    }
    let whole = seconds.round();
    format!("{} min {} s", (whole / 60.0).floor(), whole % 60.0)
}

/// The length of a filter's list: `10 000 filter rules`.
pub(super) fn filter_rules(rules: u32) -> String {
    format!("{} filter rules", grouped(rules))
}

/// A whole number in groups of three digits: `10 000`.
pub(super) fn grouped(number: u32) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| str::from_utf8(group).expect("digits"))
        .collect();
    groups.join(" ")
}

/// A ratio as a factor: `9.11×`.
pub(super) fn times(ratio: f64) -> String {
    format!("{}×", significant(ratio))
}

/// A ratio as a change: 8.32 is `+732 %`, 0.12 is `−88 %`.
pub(super) fn change(ratio: f64) -> String {
    format!("{} %", signed_percent(ratio))
}

/// [`change`] without its unit, for labels that stand close.
pub(super) fn signed_percent(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    if !percent.is_finite() {
        return UNKNOWN.to_owned();
    }
    let digits = usize::from(percent.abs() < 9.95);
    let shown = format!("{:.digits$}", percent.abs());
    match shown.trim_matches(['0', '.']) {
        "" => "±0".to_owned(),
        _ if percent < 0.0 => format!("−{shown}"),
        _ => format!("+{shown}"),
    }
}

/// A percentage that is a part of something: `0.3 %`.
pub(super) fn percent(value: f64) -> String {
    if value.is_finite() { format!("{value:.1} %") } else { UNKNOWN.to_owned() }
}

/// What is required of a ratio: `at least 1.00×, at 95 % 0.900×`.
pub(super) fn required(required: &Required) -> String {
    let at = if required.figure.more_is_better() { "at least" } else { "at most" };
    let bound = required.bound.map(|bound| format!(", at 95 % {}", times(bound)));
    format!("{at} {}{}", times(required.ratio), bound.unwrap_or_default())
}

/// What a transport is called in a text.
pub(super) fn name(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "TCP",
        Transport::Smc => "SMC",
        Transport::Unix => "AF_UNIX",
        Transport::Sockmap => "sockmap",
    }
}

/// What a figure is called in a text.
pub(super) fn figure(figure: Figure) -> &'static str {
    match figure {
        Figure::Throughput => "throughput",
        Figure::Response => "response time",
        Figure::ResponseP99 => "response p99",
        Figure::Cpu => "CPU",
        Figure::CpuClient => "CPU client",
        Figure::CpuServer => "CPU server",
    }
}

/// Three significant digits, all digits before the point.
pub(super) fn significant(value: f64) -> String {
    if !value.is_finite() {
        return UNKNOWN.to_owned();
    }
    let value = rounded(value);
    if value.abs() >= TOO_LONG {
        return format!("{value:.2e}").replace('-', "−");
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor() as i32;
    let digits = usize::try_from(2 - magnitude).unwrap_or(0).min(MOST_DIGITS);
    format!("{value:.digits$}").replace('-', "−")
}

/// In the largest of these units that leaves at least 1; the first is for zero and
/// for what is no number.
fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let size = rounded(value).abs();
    let fitting = units.iter().filter(|(unit, _)| *unit <= size);
    let smallest = units.iter().min_by(|a, b| a.0.total_cmp(&b.0));
    let unit = match fitting.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some(unit) => Some(unit),
        None if size > 0.0 => smallest,
        None => units.first(),
    };
    let (unit, label) = unit.copied().unwrap_or((1.0, ""));
    format!("{} {label}", significant(value / unit)).trim_end().to_owned()
}

/// To three significant digits: 999.6 becomes 1000 before a unit is chosen.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let step = 10_f64.powf(value.abs().log10().floor() - 2.0);
    let rounded = (value / step).round() * step;
    if rounded.is_finite() { rounded } else { value }
}

/// In place of what is no number.
pub(super) const UNKNOWN: &str = "?";

/// From here on digits before the point are powers of ten.
const TOO_LONG: f64 = 1e7;

/// Digits after the point of the smallest figure that is not shown as zero.
const MOST_DIGITS: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_fitting_unit() {
        assert_eq!(count(0.0), "0");
        assert_eq!(count(41_234.0), "41.2 k");
        assert_eq!(count(999_600.0), "1.00 M");
        assert_eq!(count(7.5), "7.50");
        assert_eq!(time(0.87), "870 ns");
        assert_eq!(time(0.0), "0 µs");
        assert_eq!(time(999.6), "1.00 ms");
        assert_eq!(time(12.34), "12.3 µs");
        assert_eq!(time(45_600_000.0), "45.6 s");
        assert_eq!(tick("20.0 µs"), "20 µs");
        assert_eq!(tick("0.50"), "0.5");
        assert_eq!(tick("200 k"), "200 k");
        assert_eq!(rate(4_212.0), "4.21 GB/s");
        assert_eq!(memory(32 << 30), "32.0 GiB");
        assert_eq!(memory(0), "0 B");
        assert_eq!(span(200.2), "3 min 20 s");
        assert_eq!(span(42.0), "42.0 s");
    }

    #[test]
    fn ratios_are_factors_and_changes() {
        assert_eq!(times(9.111), "9.11×");
        assert_eq!(change(8.32), "+732 %");
        assert_eq!(change(0.12), "−88 %");
        assert_eq!(change(1.031), "+3.1 %");
        assert_eq!(change(0.9999), "±0 %");
        assert_eq!(change(1.1), "+10 %");
    }

    #[test]
    fn no_number_is_a_question_mark() {
        for text in [count(f64::NAN), change(f64::INFINITY), percent(f64::NAN), times(f64::NAN)] {
            assert!(text.starts_with('?'), "{text}");
        }
        assert!(time(f64::NEG_INFINITY).starts_with('?'));
        assert_eq!(count(f64::MAX), "1.80e299 G");
        assert_eq!(significant(f64::MIN_POSITIVE), "0.000000");
        assert_eq!(significant(-2.5), "−2.50");
    }
}
