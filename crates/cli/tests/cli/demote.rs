//! `sidestep demote` and `promote`: what they say. What they do is a matter of the end-to-end
//! tests.

use crate::support::{Place, outcome};

fn say(words: &[&str]) -> (Option<i32>, String) {
    let (status, output, errors) = outcome(Place::new().sidestep(None).args(words));
    assert_eq!(output, "");
    (status, errors)
}

#[test]
fn a_process_that_is_not_ours_is_named() {
    for word in ["demote", "promote"] {
        let nobody = "there is no Sidestep program pid:1999999999 with TCP connections";
        let (status, errors) = say(&[word, "pid:1999999999"]);
        assert_eq!(status, Some(1));
        assert!(errors.starts_with(&format!("sidestep {word}: {nobody}")), "{errors}");
    }
}

#[test]
fn what_is_no_target_is_refused_with_what_would_be_one() {
    let (status, errors) = say(&["demote", "redis"]);
    assert_eq!(status, Some(2));
    assert!(errors.contains("a server's port (6379 or :6379), or all"), "{errors}");
}
