//! `sidestep report`: the page of records and of programs that run, in text and in a browser.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::browser::{Browser, check_page, chromium};
use crate::fixture;
use crate::support::{Place, outcome};

/// A record of two hours, in which a program has a name that would be elements and commands.
fn record(place: &Place) -> PathBuf {
    let line = |n: u64| {
        let activity = |moved: u64| {
            json!({
                "smc_connections": n, "tcp_connections": 3, "bytes_sent": 2_048_000 * n,
                "bytes_received": 2_048_000 * n, "ring_bytes_sent": moved * n, "ring_bytes_received": moved * n,
                "messages_sent": 1000 * n, "messages_received": 1000 * n, "spin_ns": 1_000_000 * n,
                "rmbe": 65_536, "messages_beyond_rmbe": 500 * n,
                "reasons": { "0x03010000 the peer does not run Sidestep": 3 }
            })
        };
        let mut programs = serde_json::Map::new();
        for i in 0..12 {
            programs.insert(format!("worker-{i}"), activity(1_500_000));
        }
        programs.insert("<script>alert(1)</script>\u{202e}\u{1b}[2J".into(), activity(0));
        let at = format!("2026-03-01T{:02}:{:02}:00Z", 10 + n / 60, n % 60);
        json!({ "version": 1, "at": at, "seconds": 60.0, "programs": programs }).to_string()
    };
    let lines: Vec<String> = (1..=120).map(line).collect();
    place.file("record", &(lines.join("\n") + "\n{\"version\":1,\"at\":"))
}

fn page(place: &Place, words: &[&str]) -> (Option<i32>, String, String) {
    let path = place.path().join("host.html");
    let mut command = place.sidestep(None);
    command.args(["report", "--html"]).arg(&path).args(words);
    let (status, _, errors) = outcome(&mut command);
    (status, fs::read_to_string(path).unwrap_or_default(), errors)
}

#[test]
fn a_page_of_records_has_what_moved_what_did_not_and_what_to_change() {
    let place = Place::new();
    let record = record(&place);
    let (status, page, errors) = page(&place, &["--record", record.to_str().unwrap()]);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    for words in [
        "of the bytes of this host’s programs left TCP",
        "from 2026-03-01 10:01 UTC to 2026-03-01 12:00 UTC: 2.0 h together",
        "worker-11",
        "0x03010000 the peer does not run Sidestep",
        "Give worker-0 more room",
        "smc.rmbe_size = &quot;128KB&quot;",
        "Nothing is said here without a measurement",
        "lines of the records that were cut or are of another version: 1",
        "&lt;script&gt;alert(1)&lt;/script&gt;\\u{202e}\\u{1b}[2J",
    ] {
        assert!(page.contains(words), "no {words:?} in:\n{page}");
    }
    for foreign in ["<script", "\u{202e}", "\u{1b}", "http://", "https://"] {
        let place =
            page.find(foreign).map(|at| &page[at.saturating_sub(80)..(at + 80).min(page.len())]);
        let is_icon = place.is_some_and(|text| text.contains("www.w3.org/2000/svg"));
        assert!(place.is_none() || is_icon, "{foreign:?}: {place:?}");
    }
}

#[test]
fn a_gain_is_told_by_a_measurement_of_messages_of_that_length() {
    let place = Place::new();
    let record = record(&place);
    let measured = serde_json::to_string(&fixture::document()).unwrap();
    let bench = place.file("bench.json", &measured);
    let words = ["--record", record.to_str().unwrap(), "--bench", bench.to_str().unwrap()];
    let (status, page, errors) = page(&place, &words);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    // 7 260 000 messages of 2 KB, of which 1.5 of 2.048 parts moved.
    for words in ["RR10(2KB/2KB)", "CPU saved", "5\u{202f}317\u{202f}383"] {
        assert!(page.contains(words), "no {words:?} in:\n{page}");
    }
    assert!(!page.contains("Nothing is said here"));
}

#[test]
fn a_page_of_now_needs_nothing_and_wrong_files_are_named() {
    let place = Place::new();
    let (status, text, errors) = page(&place, &[]);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    assert!(text.contains("since their start"), "{text}");
    let other = place.file("other", "no record\n");
    let other = other.to_str().unwrap();
    for (words, complaint) in [
        (&["--record", "/nowhere"][..], "cannot read /nowhere: No such file"),
        (&["--record", other], "has no record; give a file written by `sidestep stats --record`"),
        (&["--bench", other], "is not valid JSON"),
    ] {
        let (status, _, errors) = page(&place, words);
        assert_eq!(status, Some(1));
        assert!(errors.contains(complaint), "{errors}");
    }
}

#[test]
fn the_page_is_sound_in_a_browser() {
    let Some(program) = chromium() else { return };
    let place = Place::new();
    let record = record(&place);
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("host-report");
    fs::create_dir_all(&pictures).unwrap();
    let (status, page, _) = page(&place, &["--record", record.to_str().unwrap()]);
    assert_eq!(status, Some(0));
    fs::write(pictures.join("host.html"), page).unwrap();
    check_page(&mut Browser::start(&program), &pictures, "host");
    println!("screenshots: {}", pictures.display());
}
