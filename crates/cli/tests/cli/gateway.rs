//! `sidestep gateway`: how it starts, and what it says if it cannot. What it does is tried in
//! `crates/gateway/tests`.

use crate::support::{Place, outcome};

#[test]
fn what_is_lacking_is_said() {
    let place = Place::new();
    let Some(library) = place.library() else { return };
    let run = |words: &[&str], expected| {
        let (status, _, error) = outcome(place.sidestep(Some(&library)).arg("gateway").args(words));
        assert_eq!(status, Some(expected), "{error}");
        error
    };
    let started = |words: &[&str]| run(words, 1);
    assert_eq!(
        started(&[]),
        "sidestep gateway: there is no adapter: name an address or an interface of this host\n"
    );
    assert_eq!(
        started(&["--adapter", "nowhere0"]),
        "sidestep gateway: nowhere0: there is no such interface or address in this network \
         namespace\n"
    );
    let file = place.file("gateway.toml", "[smc-r]\nadapters = [\"192.0.2.9\"]\n");
    let error = started(&["--config", file.to_str().unwrap()]);
    assert!(error.contains("192.0.2.9: there is no such"), "{error}");
    let file = place.file("wrong.toml", "[smc-r]\nfaults = \"loss=lots\"\n");
    let error = run(&["--config", file.to_str().unwrap()], 125);
    assert!(error.contains("wrong.toml:2: smc-r.faults: `loss=lots` is not allowed"), "{error}");
}

/// It is a program under Sidestep itself.
#[test]
fn it_starts_itself_with_the_library() {
    let place = Place::new();
    let (status, _, error) = outcome(place.sidestep(Some(&place.path().join("none.so"))).args([
        "gateway",
        "--adapter",
        "lo",
    ]));
    assert_eq!(status, Some(125), "{error}");
    assert!(error.contains("none.so, which is not a file"), "{error}");
}
