//! The transitions, printed from the code; what is no answer; what a hello must say; what a Confirm is worth.

use super::begin::{Begin, Givers, Standing};
use super::seek::{Looking, Seek, Step};
use super::*;
use crate::fallback::{Blame, Field, OperatorSaid, PeerCannot, ProgramDid, Reason};
use crate::rendezvous::Refusal;
use sidestep_wire::Error;
use sidestep_wire::clc::Decline;
use sidestep_wire::diagnosis::Diagnosis;
use sidestep_wire::host_control::{
    ControlMessage, EMITTED_LEN_MAX, Hello, Instance, Introduction, Side,
};
use sidestep_wire::ids::{LinkId, PeerId};
use sidestep_wire::rmbe_size::RmbeSize;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::format;
use std::string::String;
use std::vec::Vec;

const NETNS: u64 = 77;
const TOKEN: Token = [9; 16];
const REASON: Reason = Reason::Operator(OperatorSaid::MemoryLimit);

fn size() -> RmbeSize {
    RmbeSize::from_bytes(65_536).unwrap()
}

fn hello() -> Hello {
    Hello {
        instance: Instance([7; 16]),
        slot: 5,
        generation: 3,
        token: TOKEN,
        socket_cookie: 1,
        netns_cookie: NETNS,
        rmbe_len: 65_536,
    }
}

fn seen(shown: Shown) -> Seen {
    Seen { shown, generation: 3, token: TOKEN, is_for_us: true }
}

fn letter(message: Result<ControlMessage, Error>) -> Letter {
    Letter { message, netns_cookie: NETNS, is_friend: true, is_stranger: false }
}

fn decline() -> Refusal {
    Refusal::Decline(Decline::v2(PeerId::default(), Diagnosis::MEM), REASON)
}

const FREE: Standing = Standing {
    has_slot: true,
    is_never_promoted: false,
    is_tcp_only: false,
    is_memory_strict: false,
    is_congested: false,
    is_shared: false,
    is_received: false,
};

/// An answer of each kind that leads elsewhere, with its name in the drawing.
fn answers() -> Vec<(&'static str, Answer)> {
    let cannot = Letter { is_friend: false, ..letter(Ok(ControlMessage::Hello(hello()))) };
    Vec::from([
        ("done", Answer::Done),
        ("yes", Answer::Is(true)),
        ("no", Answer::Is(false)),
        ("not yet", Answer::NotYet),
        ("no sense", Answer::Instead(REASON)),
        ("failed", Answer::Failed(REASON)),
        ("no objection", Answer::Objection(None)),
        ("objection", Answer::Objection(Some(REASON))),
        ("may begin", Answer::Begun(Begun::May { token: TOKEN, is_distant: false })),
        ("may begin afar", Answer::Begun(Begun::May { token: TOKEN, is_distant: true })),
        ("a giver has it", Answer::Begun(Begun::AwaitsGiver)),
        ("not yet", Answer::Begun(Begun::NotYet)),
        ("may not", Answer::Begun(Begun::MayNot(REASON))),
        ("free", Answer::Standing(FREE)),
        ("received", Answer::Standing(Standing { is_received: true, ..FREE })),
        ("shared", Answer::Standing(Standing { is_shared: true, ..FREE })),
        ("unable", Answer::Standing(Standing { is_tcp_only: true, ..FREE })),
        ("givers gone", Answer::Givers(Givers::Gone)),
        ("a giver has it", Answer::Givers(Givers::Here)),
        ("many have it", Answer::Givers(Givers::Many)),
        ("here", Answer::Here(TOKEN)),
        ("in another namespace", Answer::Elsewhere(PeerCannot::OtherNamespace.into())),
        ("on another host", Answer::Elsewhere(PeerCannot::RemotePeer.into())),
        ("identity", Answer::Token(Some(TOKEN))),
        ("no identity", Answer::Token(None)),
        ("under way", Answer::Engaged { messages: 20, now_ns: 1 }),
        ("nothing", Answer::Record(None)),
        ("claimed", Answer::Record(Some(seen(Shown::Claimed)))),
        ("proposed", Answer::Record(Some(seen(Shown::Proposed)))),
        ("accepted", Answer::Record(Some(seen(Shown::Accepted)))),
        ("declined", Answer::Record(Some(seen(Shown::Declined)))),
        ("nothing", Answer::Greeting(None)),
        ("greeted", Answer::Greeting(Some((seen(Shown::Greeted), hello())))),
        ("nothing", Answer::Letter(None)),
        ("hello", Answer::Letter(Some(letter(Ok(ControlMessage::Hello(hello())))))),
        ("stranger", Answer::Letter(Some(cannot))),
        ("acquainting", Answer::News { is_acquainting: true, is_strangers: false, now_ns: 1 }),
        ("no news", Answer::News { is_acquainting: false, is_strangers: false, now_ns: 1 }),
        ("none", Answer::Count(0)),
        ("more", Answer::Count(1)),
        ("counted", Answer::Strangers { refusals: 0, breaches: 0 }),
        ("size", Answer::Size(Some(size()))),
        ("no size", Answer::Size(None)),
        ("sent", Answer::LookedUp(LookedUp::Sent)),
        ("no agent", Answer::LookedUp(LookedUp::Away)),
        ("later", Answer::LookedUp(LookedUp::Later)),
        ("sent", Answer::Hello(Greeting::Sent(TOKEN))),
        ("nobody there", Answer::Hello(Greeting::NobodyThere)),
        ("no room", Answer::Hello(Greeting::NoRoom)),
        ("right", Answer::Clc(Ok(size()))),
        ("to be declined", Answer::Clc(Err(decline()))),
        ("no sense", Answer::Clc(Err(Refusal::Protocol(Field::CLC_TYPE)))),
    ])
}

fn calls() -> [(&'static str, Call); 2] {
    let call = |moment, received| Call { moment, messages: 20, received, now_ns: 1 };
    [("call", call(Moment::AfterReceive, 10)), ("call", call(Moment::BeforeSend, 10))]
}

/// The name of a state, without what it carries.
fn name(state: impl Debug) -> String {
    let told = format!("{state:?}");
    told.split([' ', '(', '{']).next().unwrap_or_default().into()
}

/// Everything that can follow from `first`: a line for each pair of states, with what leads from one to the
/// other.
fn drawing<M: Copy>(
    first: M,
    key: impl Fn(&M) -> String,
    named: impl Fn(&M) -> String,
    next: impl Fn(&M) -> Vec<(&'static str, M)>,
) -> String {
    let (mut open, mut known) = (Vec::from([first]), BTreeSet::from([key(&first)]));
    let mut edges: Vec<(String, String, Vec<&str>)> = Vec::new();
    let mut at = 0;
    while let Some(machine) = open.get(at).copied() {
        at += 1;
        for (label, to) in next(&machine) {
            let (from, into) = (named(&machine), named(&to));
            if from != into {
                match edges.iter_mut().find(|(a, b, _)| *a == from && *b == into) {
                    Some((.., labels)) if labels.contains(&label) => {}
                    Some((.., labels)) => labels.push(label),
                    None => edges.push((from, into, Vec::from([label]))),
                }
            }
            if known.insert(key(&to)) {
                open.push(to);
            }
        }
    }
    let lines =
        edges.iter().map(|(from, to, why)| format!("    {from} --> {to}: {}\n", why.join(", ")));
    let lines: String = lines.collect();
    format!("```mermaid\nstateDiagram-v2\n    [*] --> {}\n{lines}```\n", named(&first))
}

fn begin(side: Side) -> String {
    drawing(
        Begin::new(),
        |begin| format!("{begin:?}"),
        |begin| match begin {
            Begin::Over(what) => name(what),
            question => name(question),
        },
        |begin| {
            let to = |(label, answer)| Some((label, begin.answered(side, &answer).ok()?));
            answers().into_iter().filter_map(to).collect()
        },
    )
}

fn client() -> String {
    let steps = |client: &Client| {
        let mut steps = Vec::new();
        for (label, call) in calls() {
            let mut next = *client;
            if next.look(&call).is_ok() {
                steps.push((label, next));
            }
        }
        for (label, answer) in answers() {
            let mut next = *client;
            if next.answered(&answer).is_ok() {
                steps.push((label, next));
            }
        }
        steps
    };
    let key = |client: &Client| {
        let of_call = (client.now.has_received, client.pace.is_under_way());
        format!("{:?} {:?} {of_call:?}", client.state(), client.traces)
    };
    drawing(Client::new(), key, |client| name(client.state()), steps)
}

fn server() -> String {
    let steps = |server: &Server| {
        let mut steps = Vec::new();
        for (label, call) in calls() {
            let mut next = *server;
            if next.look(&call).is_ok() {
                steps.push((label, next));
            }
        }
        for (label, answer) in answers() {
            let mut next = *server;
            if next.answered(&answer).is_ok() {
                steps.push((label, next));
            }
        }
        steps
    };
    let key = |server: &Server| {
        format!("{:?} {:?} {}", server.state(), server.traces, server.pace.is_under_way())
    };
    drawing(Server::new(), key, |server| name(server.state()), steps)
}

fn seek() -> String {
    let now =
        Looking { messages: 20, now_ns: 1, claims: true, has_received: true, may_follow: true };
    let steps = |(seek, step): &(Seek, Step)| {
        let to = |(label, answer)| {
            let mut seek = *seek;
            let step = seek.answered(*step, &answer, &mut { now }).ok()?;
            Some((label, (seek, step)))
        };
        answers().into_iter().filter_map(to).collect()
    };
    let key = |(_, step): &(Seek, Step)| format!("{step:?}");
    drawing((Seek::NEW, Step::LooksForNews), key, |(_, step)| name(step), steps)
}

fn transitions() -> String {
    let about = "All that can follow a state, and what is seen then. A call also ends an attempt that is \
                 under way when it has waited for too long. Printed from the code by \
                 `SIDESTEP_WRITE_TRANSITIONS=1 cargo test -p sidestep-proto transitions`.";
    let mut text = format!("# Transitions of the agreement\n\n{about}\n");
    for (title, drawing) in [
        ("Begin, at the client", begin(Side::Client)),
        ("Begin, at the server", begin(Side::Server)),
        ("Client", client()),
        ("Server", server()),
        ("Seek, at the client", seek()),
    ] {
        text += &format!("\n## {title}\n\n{drawing}");
    }
    text
}

#[test]
fn the_transitions_are_those_in_the_drawing() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/rendezvous/agreement/transitions.md");
    let now = transitions();
    if std::env::var_os("SIDESTEP_WRITE_TRANSITIONS").is_some() {
        std::fs::write(path, &now).unwrap();
    }
    let drawn = std::fs::read_to_string(path).unwrap();
    for (drawn, now) in drawn.lines().zip(now.lines()) {
        assert_eq!(drawn, now, "SIDESTEP_WRITE_TRANSITIONS=1 draws them anew");
    }
    assert_eq!(drawn.lines().count(), now.lines().count());
}

#[test]
fn an_answer_to_another_question_is_illegal_and_changes_nothing() {
    let mut client = Client::new();
    assert_eq!(client.answered(&Answer::Done), Err(Illegal), "nothing was asked");
    client.look(&calls()[0].1).unwrap();
    let state = client.state();
    assert_eq!(client.answered(&Answer::Is(true)), Err(Illegal));
    assert_eq!(client.look(&calls()[0].1), Err(Illegal), "in the middle of another call");
    assert_eq!(client.state(), state);
    let mut server = Server::new();
    assert_eq!(server.answered(&Answer::Count(3)), Err(Illegal));
    assert_eq!(server.state(), server::State::Start);
    assert_eq!(Reason::from(Illegal).blame(), Some(Blame::Lack), "no fault of the peer's");
}

fn answered(client: &mut Client, answers: &[Answer]) {
    for answer in answers {
        client.answered(answer).unwrap();
    }
}

/// A client that has bound its name.
fn named() -> Client {
    let mut client = Client::new();
    client.look(&calls()[1].1).unwrap();
    answered(
        &mut client,
        &[
            Answer::Begun(Begun::May { token: TOKEN, is_distant: false }),
            Answer::Is(false),
            Answer::Is(true),
            Answer::Done,
            Answer::Engaged { messages: 20, now_ns: 1 },
            Answer::Letter(None),
        ],
    );
    assert_eq!(client.state(), client::State::AwaitsHello(TOKEN));
    client
}

#[test]
fn a_server_waits_for_a_giver_for_so_many_looks() {
    let mut server = Server::new();
    for _ in 0..LOOKS_FOR_GIVER {
        server.look(&calls()[0].1).unwrap();
        server.answered(&Answer::Begun(Begun::AwaitsGiver)).unwrap();
        assert_eq!(server.state(), server::State::Start);
    }
    let mut late = server;
    late.look(&calls()[0].1).unwrap();
    late.answered(&Answer::Begun(Begun::AwaitsGiver)).unwrap();
    let server::State::Stays(failure) = late.state() else { panic!("{:?}", late.state()) };
    assert_eq!(failure.reason, ProgramDid::HandedOver.into());
    server.look(&calls()[0].1).unwrap();
    let may = Answer::Begun(Begun::May { token: TOKEN, is_distant: false });
    server.answered(&may).unwrap();
    assert_eq!(server.state(), server::State::CountsRefusals(TOKEN), "it is gone in time");
}

#[test]
fn a_client_waits_for_so_many_looks_and_so_long() {
    let mut client = named();
    let (mut looks, mut reads, mut now_ns) = (0, 0, 1);
    while let client::State::AwaitsHello(_) = client.state() {
        (looks, now_ns) = (looks + 1, now_ns + 50_000_000);
        client.look(&Call { now_ns, ..calls()[1].1 }).unwrap();
        if let client::State::ReadsName(_) = client.state() {
            reads += 1;
            client.answered(&Answer::Letter(None)).unwrap();
        }
    }
    let client::State::Stays(failure) = client.state() else { panic!("{:?}", client.state()) };
    assert_eq!((looks, reads), (121, LOOKS_AT_NAME + 3), "8 looks, and those of number 16, 32, 64");
    assert_eq!(failure.reason, PeerCannot::Unanswered.into());
    assert!(failure.is_likely_to_recur && failure.peer.is_none());
    assert_eq!(client.abandon(), Traces { claims: false, name: true, attempt: true });
    assert_eq!(client.abandon(), Traces::default(), "taken back once");
}

#[test]
fn a_connection_that_ends_too_early_says_nothing_about_the_server() {
    let mut client = named();
    client.look(&calls()[1].1).unwrap();
    let hello = letter(Ok(ControlMessage::Hello(hello())));
    answered(&mut client, &[Answer::Letter(Some(hello)), Answer::Is(false)]);
    let client::State::Stays(failure) = client.state() else { panic!("{:?}", client.state()) };
    assert!(failure.reason == ProgramDid::EndedMeanwhile.into() && !failure.is_likely_to_recur);
}

/// The server has found that, and declines: its next connections are asked about as before.
#[test]
fn a_decline_of_a_connection_that_ends_says_nothing_about_the_server() {
    let reason = Reason::Program(ProgramDid::EndedMeanwhile);
    let declined = Reason::PeerDeclined(reason.diagnosis().unwrap());
    assert!(!declined.is_likely_to_recur());
    assert!(Reason::PeerDeclined(Diagnosis::PEERNOSMC).is_likely_to_recur());
}

/// A client of which the server has accepted what it proposed.
fn accepted() -> Client {
    let mut client = named();
    client.look(&calls()[1].1).unwrap();
    let greeter = letter(Ok(ControlMessage::Hello(hello())));
    answered(&mut client, &[Answer::Letter(Some(greeter)), Answer::Is(true)]);
    answered(&mut client, &[Answer::Done; 6]);
    let answers = [seen(Shown::Accepted)].map(|seen| Answer::Record(Some(seen)));
    answered(&mut client, &answers);
    answered(&mut client, &[Answer::Clc(Ok(size())), Answer::Is(true)]);
    client
}

#[test]
fn a_client_that_the_filter_denies_declines_before_it_reads_by_the_ledger() {
    let denied = Reason::Operator(OperatorSaid::Denied);
    let mut client = accepted();
    client.answered(&Answer::Objection(Some(denied))).unwrap();
    let client::State::PutsDecline { declining, .. } = client.state() else {
        panic!("{:?}", client.state())
    };
    assert_eq!(declining.message().diagnosis, Diagnosis::CNFERR);
    answered(&mut client, &[Answer::Done; 2]);
    let client::State::Stays(failure) = client.state() else { panic!("{:?}", client.state()) };
    assert_eq!((failure.reason, failure.peer), (denied, Some(Instance([7; 16]))));
    let mut permitted = accepted();
    answered(&mut permitted, &[Answer::Objection(None), Answer::Done, Answer::Is(true)]);
    assert_eq!(permitted.state(), client::State::PutsConfirm);
}

#[test]
fn what_came_in_place_of_an_introduction_is_told_if_none_comes() {
    let mut client = named();
    client.look(&calls()[1].1).unwrap();
    let hello = letter(Ok(ControlMessage::Hello(hello())));
    let breach = Reason::PeerBroke(Field::INTRODUCED_MEMORY);
    answered(
        &mut client,
        &[Answer::Letter(Some(hello)), Answer::Is(true), Answer::Instead(breach)],
    );
    let mut now_ns = 1;
    while let client::State::AwaitsIntroduction(_) = client.state() {
        now_ns += 100_000_000;
        client.look(&Call { now_ns, ..calls()[1].1 }).unwrap();
        if let client::State::Introduces(_) = client.state() {
            client.answered(&Answer::NotYet).unwrap();
        }
    }
    let client::State::Stays(failure) = client.state() else { panic!("{:?}", client.state()) };
    assert_eq!((failure.reason, failure.peer), (breach, Some(Instance([7; 16]))));
}

#[test]
fn what_came_in_place_of_the_clients_introduction_is_told_if_it_does_not_propose() {
    let mut server = Server::new();
    let looks = |server: &mut Server, now_ns| {
        server.look(&Call { now_ns, ..calls()[0].1 }).unwrap();
    };
    looks(&mut server, 1);
    let breach = Reason::PeerBroke(Field::INTRODUCED_MEMORY);
    let mut now_ns = 1;
    loop {
        let answer = match server.state() {
            server::State::AwaitsReply(_) => {
                now_ns += 100_000_000;
                looks(&mut server, now_ns);
                continue;
            }
            server::State::Stays(failure) => break assert_eq!(failure.reason, breach),
            server::State::Begins => Answer::Begun(Begun::May { token: TOKEN, is_distant: false }),
            server::State::CountsRefusals(_) => Answer::Strangers { refusals: 0, breaches: 7 },
            server::State::ReadsMail(_) => Answer::Count(0),
            server::State::LooksForClaim(_) | server::State::LooksForProposal(_) => {
                Answer::Record(None)
            }
            server::State::LooksWhetherBeset(_) => Answer::Is(false),
            server::State::SendsHello(_) => Answer::Hello(Greeting::Sent(TOKEN)),
            server::State::Engages(_) => Answer::Engaged { messages: 20, now_ns: 1 },
            server::State::ReadsMailIfAny(_) => Answer::Done,
            server::State::LooksForBreach { .. } => Answer::Instead(breach),
            other => panic!("{other:?}"),
        };
        server.answered(&answer).unwrap();
    }
}

/// Two clients of a process may have been told of the same slot of a server.
#[test]
fn an_accept_is_believed_if_it_is_ours() {
    let mut client = named();
    client.look(&calls()[1].1).unwrap();
    let hello = letter(Ok(ControlMessage::Hello(hello())));
    answered(&mut client, &[Answer::Letter(Some(hello)), Answer::Is(true)]);
    answered(&mut client, &[Answer::Done; 6]);
    for seen in [
        Seen { is_for_us: false, ..seen(Shown::Accepted) },
        Seen { generation: 4, ..seen(Shown::Accepted) },
        seen(Shown::Greeted),
    ] {
        client.answered(&Answer::Record(Some(seen))).unwrap();
        assert!(matches!(client.state(), client::State::AwaitsAccept(_)), "{seen:?}");
        client.look(&calls()[1].1).unwrap();
    }
    client.answered(&Answer::Record(Some(seen(Shown::Accepted)))).unwrap();
    assert!(matches!(client.state(), client::State::ReadsAnswer(_)));
}

#[test]
fn a_confirm_is_right_if_it_says_so_and_shows_it() {
    let wrong = Reason::PeerBroke(Field::SIZE_CODE);
    let small = RmbeSize::from_bytes(32_768).unwrap();
    let read = |read| move || read;
    assert_eq!(Confirm::of(Shown::Proposed, size(), || unreachable!()), Confirm::Awaited);
    assert_eq!(Confirm::of(Shown::Confirmed, size(), read(Ok(size()))), Confirm::Right);
    assert_eq!(Confirm::of(Shown::Confirmed, size(), read(Ok(small))), Confirm::Wrong(wrong));
    let declined = Refusal::Declined(Decline::v2(PeerId::default(), Diagnosis::MEM));
    let reason = Reason::PeerDeclined(Diagnosis::MEM);
    assert_eq!(Confirm::of(Shown::Declined, size(), read(Err(declined))), Confirm::Wrong(reason));
    let shown_only = Confirm::Wrong(Reason::PeerBroke(Field::CLC_TYPE));
    assert_eq!(Confirm::of(Shown::Declined, size(), read(Ok(size()))), shown_only);
}

#[test]
fn an_end_lookups_again_when_its_messages_have_doubled_or_a_second_later() {
    let mut seek = Seek::NEW;
    let now = |messages, now_ns| Looking {
        messages: Looking::count(messages),
        now_ns,
        claims: false,
        has_received: true,
        may_follow: false,
    };
    let mut lookups = |messages, now_ns| {
        // The time is told with the news.
        let mut now = now(messages, 0);
        let none = Answer::News { is_acquainting: false, is_strangers: false, now_ns };
        let mut step = seek.answered(Step::LooksForNews, &none, &mut now).unwrap();
        if step == Step::ReadsAnswers {
            step = seek.answered(step, &Answer::Is(false), &mut now).unwrap();
        }
        let lookups = step == Step::Lookups;
        if lookups {
            step = seek.answered(step, &Answer::LookedUp(LookedUp::Sent), &mut now).unwrap();
        }
        (lookups, step)
    };
    let unanswered: Reason = PeerCannot::LookupUnanswered.into();
    assert_eq!(lookups(16, 1), (true, Step::NotesReason(unanswered)));
    assert_eq!(lookups(31, 2), (false, Step::Rests));
    assert_eq!(lookups(32, 3), (true, Step::NotesReason(unanswered)));
    assert_eq!(lookups(33, 3 + seek::AGAIN_NS), (true, Step::NotesReason(unanswered)));
    assert_eq!(lookups(MESSAGES_MAX, 5), (true, Step::GivesUp(unanswered)));
}

fn bytes_of(hello: &Hello) -> Vec<u8> {
    let mut bytes = [0; EMITTED_LEN_MAX];
    let len = hello.emit(&mut bytes).unwrap();
    bytes[..len].to_vec()
}

fn heard(bytes: &[u8]) -> Result<Hello, Reason> {
    letter(ControlMessage::parse(bytes)).hello()
}

#[test]
fn a_hello_that_leads_nowhere_says_which_field_is_wrong() {
    assert_eq!(heard(&bytes_of(&hello())), Ok(hello()));
    let no_slot = Hello { slot: SLOTS, ..hello() };
    assert_eq!(heard(&bytes_of(&no_slot)), Err(Reason::PeerBroke(Field::HELLO_SLOT)));
    let elsewhere = Hello { netns_cookie: NETNS + 1, ..hello() };
    assert_eq!(heard(&bytes_of(&elsewhere)), Err(PeerCannot::OtherNamespace.into()));
    let mut bytes = [0; EMITTED_LEN_MAX];
    let other = Introduction {
        instance: Instance([7; 16]),
        reply_wanted: false,
        pid: 1,
        slab_len: 0,
        link_id: LinkId(0),
    };
    let len = ControlMessage::Introduction(other).emit(&mut bytes).unwrap();
    assert_eq!(heard(&bytes[..len]), Err(Reason::PeerBroke(Field::CONTROL_KIND)));
    let name = |bytes: &[u8]| heard(bytes).unwrap_err().field().and_then(Field::name);
    assert_eq!(name(b"GET / HTTP/1.1\r\n\r\n"), Some("control magic"));
    assert_eq!(name(&bytes_of(&hello())[..40]), Some("control length"));
}

/// Each byte of a hello, with each value, and each length of it.
#[test]
fn what_cannot_be_read_of_a_hello_is_the_peers_fault() {
    let good = bytes_of(&hello());
    let is_peers = |bytes: &[u8]| match heard(bytes) {
        Ok(_) => true,
        Err(reason @ Reason::PeerBroke(_)) => reason.field().and_then(Field::name).is_some(),
        Err(reason) => reason.blame() == Some(Blame::PeerCannot),
    };
    for at in 0..good.len() {
        assert!(is_peers(&good[..at]), "cut off at {at}");
        for value in 0..=u8::MAX {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(is_peers(&bad), "{value} at {at}: {:?}", heard(&bad));
        }
    }
    let mut newer = good;
    newer[5] += 1;
    assert_eq!(heard(&newer), Err(PeerCannot::OtherVersion.into()));
}
