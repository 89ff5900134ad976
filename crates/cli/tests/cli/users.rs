//! Programs of several users: with whom memory is shared.

use crate::talk::{Running, Talk, USERS, as_user, free_port, outcome_of};

/// A server that is root until it has begun to work, and then nobody much.
#[test]
fn a_program_is_judged_by_who_it_has_become() {
    let Some(talk) = Talk::prepare() else { return };
    if talk.has_other_users().is_none() {
        return;
    }
    let (port, user) = (free_port(), USERS[0].to_string());
    let _server = Running::start(talk.moved(&[], &["turn", &user, &port]));
    let call = || talk.moved(&[], &["call", &port, "1", "50", "100"]);
    let friend = Running::start(as_user(USERS[0], call()));
    assert_eq!(outcome_of(&talk, &friend).0, "SMC-D");
    friend.finish();
    let root = Running::start(call());
    let (mode, words) = outcome_of(&talk, &root);
    assert!(mode == "TCP" && words.contains("another user"), "{mode}: {words}");
    root.finish();
}
