//! The page in a browser.
//!
//! Without Chromium the test says so and passes. The screenshots stay for those who
//! want to look: their place is printed (`cargo test -- --nocapture`).

use std::fs;
use std::path::Path;

use sidestep_modeler::report::html;

#[path = "report/browser.rs"]
mod browser;
#[path = "report/fixture.rs"]
mod fixture;

use browser::{Browser, check_page, chromium};

#[test]
fn the_page_is_sound_in_a_browser() {
    let Some(program) = chromium() else { return };
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report");
    fs::create_dir_all(&place).expect("a directory");
    let pages = [
        ("one", html::render(&[fixture::document()])),
        ("busy", html::render(&[fixture::busy()])),
        ("several", html::render(&[fixture::document(), fixture::another()])),
        ("hostile", html::render(&[fixture::hostile()])),
    ];
    let mut browser = Browser::start(&program);
    for (name, page) in pages {
        fs::write(place.join(format!("{name}.html")), page).expect("written");
        check_page(&mut browser, &place, name);
    }
    println!("screenshots: {}", place.display());
}
