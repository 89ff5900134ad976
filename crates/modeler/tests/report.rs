//! The report as others see it: lines, page and file.

use std::collections::BTreeSet;

use sidestep_modeler::plan::Transport;
use sidestep_modeler::report::{Output, html, json, table};
use sidestep_modeler::result::{Document, RemarkKind};

#[path = "report/fixture.rs"]
mod fixture;

#[test]
fn the_table_at_several_widths() {
    let document = fixture::another();
    for width in [160, 120, 80] {
        let text = table::render(&document, width, false);
        for line in text.lines() {
            assert!(line.chars().count() <= width, "at {width}: {line}");
        }
        insta::assert_snapshot!(format!("table_{width}"), text);
    }
}

#[test]
fn contention_is_told_with_each_workload_and_in_a_table() {
    let document = fixture::busy();
    let text = table::render(&document, 100, false);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    insta::assert_snapshot!("table_busy", text);
    let page = html::render(&[document]);
    let start = page.find("id=\"m1-contention\"").expect("the section");
    let end = start + page[start..].find("</section>").expect("its end");
    insta::assert_snapshot!("page_busy", reviewable(&page[start..end]));
    assert!(!html::render(&[fixture::document()]).contains("-contention\""), "there was none");
}

#[test]
fn filters_are_set_against_none_and_beside_ibm() {
    let document = fixture::filtered();
    let text = table::render(&document, 100, false);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    insta::assert_snapshot!("table_filtered", text);
    let page = html::render(&[document]);
    let start = page.find("id=\"m1-filter\"").expect("the section");
    let end = start + page[start..].find("</section>").expect("its end");
    insta::assert_snapshot!("page_filtered", reviewable(&page[start..end]));
    assert!(!html::render(&[fixture::document()]).contains("m1-filter"), "there was none");
}

#[test]
fn colours_are_asked_for_and_change_nothing_else() {
    let document = fixture::another();
    let plain = table::render(&document, 120, false);
    let coloured = table::render(&document, 120, true);
    assert!(!plain.contains('\x1b'));
    assert!(coloured.contains("\x1b[31;1m!! SMC FELL BACK:\x1b[0m"), "{coloured}");
    let escapes = ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[33;1m", "\x1b[31;1m"];
    let stripped = escapes.iter().fold(coloured, |text, escape| text.replace(escape, ""));
    assert_eq!(stripped, plain);
}

#[test]
fn what_fell_back_stands_first_and_is_no_figure_of_smc() {
    let mut document = fixture::document();
    document.results[1].transport_proof.tcp_connections = 3;
    document.results[1].remarks.clear();
    let text = table::render(&document, 160, false);
    assert!(text.contains("!! SMC FELL BACK:  3 connections went by TCP"), "{text}");
    assert!(text.contains("not SMC"), "{text}");
    let page = html::render(&[document.clone()]);
    assert!(page.contains("SMC fell back to TCP"));
    document.results[1].transport_proof.smc_connections = 0;
    document.results[1].transport_proof.tcp_connections = 0;
    let text = table::render(&document, 160, false);
    assert!(text.contains("no connection is known to have used shared memory"), "{text}");
}

#[test]
fn the_finding_ignores_what_fell_back() {
    let mut document = fixture::document();
    let before = title(&html::render(&[document.clone()]));
    assert_eq!(
        before,
        "SMC moves RR10(2KB/2KB) (threads) 9.23× as fast as TCP and cuts response time by 89 % – Sidestep bench"
    );
    fixture::fall_back(&mut document.results[1]);
    assert!(title(&html::render(&[document.clone()])).contains("(event-loop) 6.19×"));
    for cell in &mut document.results {
        if cell.transport == Transport::Smc {
            fixture::fall_back(cell);
        }
    }
    document.comparisons.retain(|comparison| comparison.a == Transport::Smc);
    let nothing_left = title(&html::render(&[document]));
    assert!(nothing_left.starts_with("SMC was not measured"), "{nothing_left}");
}

#[test]
fn the_page() {
    let mut document = fixture::document();
    document.results.retain(|cell| cell.workload == "RR10(2KB/2KB)");
    document.comparisons.retain(|comparison| comparison.workload == "RR10(2KB/2KB)");
    let page = html::render(&[document]);
    insta::assert_snapshot!("page", reviewable(&page));
}

#[test]
fn what_was_not_measured_has_no_verdict_on_the_page() {
    let mut document = fixture::document();
    document.comparisons.retain(|comparison| comparison.published.len() == 1);
    let page = html::render(&[document]);
    assert!(page.contains("not measured: theirs is SMC-R between two hosts"), "{page}");
    assert!(!page.contains("not reached") && !page.contains("✓ reached"), "{page}");
}

#[test]
fn the_page_for_several_documents() {
    let page = html::render(&[fixture::document(), fixture::another()]);
    let start = page.find("<main>").expect("a main part");
    let end = page.find("id=\"m1-top\"").expect("the first document");
    insta::assert_snapshot!("page_several", reviewable(&page[start..end]));
}

#[test]
fn the_page_shows_whatever_documents_there_are() {
    let empty = Document { results: Vec::new(), comparisons: Vec::new(), ..fixture::document() };
    assert!(html::render(std::slice::from_ref(&empty)).contains("Nothing was measured"));
    assert!(html::render(&[]).contains("0 measurements"));
    assert!(table::render(&empty, 80, false).contains("Imaginary 9000"));
}

#[test]
fn identifiers_are_unique() {
    let page = html::render(&[fixture::document(), fixture::another(), fixture::hostile()]);
    let ids: Vec<&str> = attributes(&page, " id=\"").collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    for target in attributes(&page, "href=\"#") {
        assert!(ids.contains(&target), "{target}");
    }
}

#[test]
fn a_hostile_document_stays_text() {
    let page = html::render(&[fixture::hostile()]);
    for begin in ["<script", "<img", "<iframe", "<!--"] {
        assert!(!page.contains(begin), "{begin}");
    }
    for (begin, end) in [("<title>", "</title>"), ("<style>", "</style>"), ("<svg ", "</svg>")] {
        assert_eq!(page.matches(begin).count(), page.matches(end).count(), "{begin}");
    }
    assert_eq!(page.matches("<style").count(), 1);
    assert!(page.contains("&lt;script&gt;alert(1)"));
    let names: BTreeSet<&str> = tags(&page).flat_map(names_of_attributes).collect();
    assert!(names.iter().all(|name| !name.starts_with("on")), "{names:?}");
}

#[test]
fn drawings_hold_numbers_only() {
    let page = html::render(&[fixture::hostile(), fixture::document()]);
    let mut seen = 0;
    for name in [" x=\"", " y=\"", " x1=\"", " y2=\"", " cx=\"", " width=\"", " height=\"", " d=\""]
    {
        for value in attributes(&page, name) {
            let numbers = value.split(|c: char| c.is_ascii_alphabetic() || c == ' ');
            for number in numbers.filter(|number| !number.is_empty()) {
                let number: f64 = number.parse().unwrap_or_else(|_| panic!("{name}{value}"));
                assert!(number.abs() < 5000.0, "{name}{value}");
                seen += 1;
            }
            assert!(!value.contains("NaN") && !value.contains("inf"), "{name}{value}");
        }
    }
    assert!(seen > 1000, "only {seen} coordinates");
}

#[test]
fn a_hostile_document_cannot_command_a_terminal() {
    let text = table::render(&fixture::hostile(), 100, false);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert!(!text.contains('\u{202e}'));
}

#[test]
fn the_page_names_no_other_place() {
    let page = html::render(&[fixture::document(), fixture::another()]);
    for address in attributes(&page, "href=\"").chain(attributes(&page, "src=\"")) {
        assert!(address.starts_with('#') || address.starts_with("data:"), "{address}");
    }
    for loading in ["@import", "url(", "<script", "<link rel=\"stylesheet\""] {
        assert!(!page.contains(loading), "{loading}");
    }
}

#[test]
fn the_command_measures_again() {
    let mut document = fixture::document();
    document.suite = None;
    let page = html::render(&[document]);
    let command = "sidestep bench 'RR10(2KB/2KB)' 'RR10(32KB/32KB)' 'STR1(1B/20MB)' 'CRR40(64B/8kB)' \
                   'RR50(256kB/256kB)' --pairs 5 --over tcp,smc";
    assert!(page.contains(&command.replace('\'', "&#39;")) || page.contains(command), "{page}");
}

#[test]
fn a_document_survives_its_file() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("A.json");
    let document = fixture::another();
    json::write(&document, &Output::open(&path).expect("writable")).expect("written");
    assert_eq!(json::read(&path).expect("read"), document);
}

#[test]
fn all_kinds_of_remarks_are_shown() {
    let mut document = fixture::document();
    let kinds = [
        (RemarkKind::Bimodal, "bimodal"),
        (RemarkKind::Drifting, "drifting"),
        (RemarkKind::Noisy, "noisy"),
        (RemarkKind::Overloaded, "overloaded"),
    ];
    for (kind, word) in kinds {
        let text = format!("This is why: {word}.");
        document.results[0].remarks = vec![sidestep_modeler::result::Remark { kind, text }];
        for shown in [table::render(&document, 100, false), html::render(&[document.clone()])] {
            assert!(shown.contains(&format!("This is why: {word}.")), "{word}");
            assert!(
                shown.contains(&format!("TCP {word}")) || shown.contains(&format!("TCP: {word}"))
            );
        }
    }
}

/// The page with a line for each element and without its style, which is reviewed as
/// a file.
fn reviewable(page: &str) -> String {
    let lines = page.replace("><", ">\n<");
    match (lines.find("<style>"), lines.find("</style>")) {
        (Some(start), Some(end)) => format!("{}{}", &lines[..start + 7], &lines[end..]),
        _ => lines,
    }
}

fn title(page: &str) -> String {
    let start = page.find("<title>").expect("a title") + 7;
    let end = page.find("</title>").expect("its end");
    page[start..end].to_owned()
}

/// The values of attributes that begin so.
fn attributes<'a>(page: &'a str, begin: &'a str) -> impl Iterator<Item = &'a str> {
    page.split(begin).skip(1).map(|rest| rest.split('"').next().unwrap_or_default())
}

/// What stands between `<` and `>`: text has neither, as both are escaped there.
fn tags(page: &str) -> impl Iterator<Item = &str> {
    let body = page.split("</style>").nth(1).expect("a body");
    body.split('<').skip(1).map(|rest| rest.split('>').next().unwrap_or_default())
}

fn names_of_attributes(tag: &str) -> impl Iterator<Item = &str> {
    // Values stand at the odd places between quotation marks.
    tag.split('"').step_by(2).flat_map(|outside| {
        outside
            .split_whitespace()
            .filter(|word| word.ends_with('='))
            .map(|w| w.trim_end_matches('='))
    })
}
