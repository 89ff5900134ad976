//! Differences that lists drawn at random have found, as short as they were printed: each is played with
//! every change.

use crate::operation::{Call, List, Operation};
use crate::pair::MOVED;
use crate::twins::play_list;

fn client(call: Call) -> Operation {
    Operation { side: 0, call, by_child: false }
}

fn server(call: Call) -> Operation {
    Operation { side: 1, call, by_child: false }
}

/// The list in shared memory.
fn moved(operations: impl AsRef<[Operation]>) {
    after(MOVED, operations);
}

/// The list after so many messages each way.
fn after(warm_rounds: u32, operations: impl AsRef<[Operation]>) {
    play_list(&List { is_untracked: false, warm_rounds, operations: operations.as_ref().to_vec() });
}

/// The list at each moment of a connection: on TCP, while it moves, in shared memory.
fn always(operations: impl AsRef<[Operation]>) {
    for warm_rounds in 0..=MOVED {
        after(warm_rounds, &operations);
    }
}

fn send(len: usize) -> Call {
    Call::Send { len, parts: Vec::new(), urgent: false }
}

/// Bytes of which the last is urgent.
fn urgent(len: usize) -> Call {
    Call::Send { len, parts: Vec::new(), urgent: true }
}

fn receive(len: usize, flags: i32) -> Call {
    Call::Receive { len, parts: Vec::new(), flags }
}

fn edges(events: i32) -> Call {
    Call::Watch((events | libc::EPOLLET) as u32)
}

fn once(events: i32) -> Call {
    Call::Watch((events | libc::EPOLLONESHOT) as u32)
}

const INSIDE: Call = Call::Wait { outside: false };
const OUTSIDE: Call = Call::Wait { outside: true };
const SPLICE: Call = Call::SpliceOut { len: 8 };

#[test]
fn splice_stops_before_an_urgent_byte() {
    always([server(urgent(4)), client(SPLICE), client(SPLICE), client(receive(8, 0))]);
    always([server(urgent(4)), client(Call::InLine(true)), client(SPLICE), client(SPLICE)]);
    always([server(urgent(4)), client(receive(1, libc::MSG_OOB)), client(SPLICE), client(SPLICE)]);
}

#[test]
fn splice_leaves_out_a_byte_that_was_urgent_once() {
    always([
        server(urgent(4)),
        client(SPLICE),
        server(urgent(4)),
        client(SPLICE),
        client(SPLICE),
        client(receive(8, 0)),
    ]);
}

#[test]
fn splice_before_an_urgent_byte_tells_the_end() {
    always([server(urgent(1)), server(Call::Close), client(SPLICE)]);
    always([
        client(send(1)),
        server(urgent(1)),
        server(Call::Close),
        client(SPLICE),
        client(SPLICE),
    ]);
    moved([server(urgent(1)), client(Call::DontWait(false)), client(SPLICE)]);
    let moves = [server(urgent(1)), client(send(0)), server(send(1)), client(send(0))];
    always([&moves[..], &[server(Call::Shutdown(libc::SHUT_WR)), client(SPLICE)]].concat());
}

#[test]
fn what_is_spliced_to_a_peer_that_takes_nothing_leaves_the_pipe() {
    always([client(Call::Shutdown(libc::SHUT_RDWR)), server(Call::SpliceIn { len: 100 })]);
    always([client(Call::Close), server(Call::SpliceIn { len: 100 })]);
    always([client(Call::Close), server(Call::SendFile { len: 100 }), server(send(1))]);
}

#[test]
fn an_event_loop_hears_of_the_reset_that_a_splice_has_caused() {
    moved([
        server(Call::Shutdown(libc::SHUT_RDWR)),
        client(edges(libc::EPOLLIN)),
        client(INSIDE),
        client(Call::SpliceIn { len: 1 }),
        client(INSIDE),
    ]);
}

#[test]
fn a_receive_without_room_leaves_an_urgent_byte_where_it_is() {
    always([
        server(urgent(1)),
        client(receive(0, 0)),
        client(receive(0, 0)),
        client(receive(1, libc::MSG_OOB)),
    ]);
}

#[test]
fn a_receive_out_of_band_without_room_takes_the_urgent_byte() {
    always([
        server(urgent(1)),
        client(receive(0, libc::MSG_OOB)),
        client(receive(1, libc::MSG_OOB)),
    ]);
}

#[test]
fn a_peek_without_room_from_an_offset_looks_whether_there_is_more() {
    for offset in [0, 1] {
        let peeks = [client(receive(0, libc::MSG_PEEK)), client(receive(8, libc::MSG_PEEK))];
        let offset = client(Call::PeekOffset(offset));
        moved([&[offset.clone(), server(send(1))], &peeks[..]].concat());
        moved([&[offset.clone(), client(Call::DontWait(false))], &peeks[..]].concat());
        moved([&[offset, server(send(1)), client(Call::DontWait(false))], &peeks[..]].concat());
    }
}

#[test]
fn a_peek_from_behind_the_last_byte_tells_the_end() {
    for is_reset in [false, true] {
        let sent = [server(send(usize::from(is_reset))), client(send(1)), client(Call::Close)];
        for len in [0, 8] {
            let peeks = [server(Call::PeekOffset(1)), server(receive(len, libc::MSG_PEEK))];
            moved([&sent[..], &peeks, &[server(receive(8, 0)), server(receive(8, 0))]].concat());
        }
    }
}

#[test]
fn a_read_that_waits_for_all_goes_on_from_tcp_to_the_ring_before_an_urgent_bell() {
    for warm_rounds in 0..MOVED {
        after(
            warm_rounds,
            [
                client(send(0)),
                server(send(1)),
                client(send(0)),
                server(urgent(2)),
                client(send(0)),
                client(receive(2, libc::MSG_WAITALL)),
            ],
        );
    }
}

#[test]
fn a_read_stops_before_an_urgent_byte_in_line() {
    always([
        client(urgent(2)),
        server(Call::InLine(true)),
        server(send(0)),
        client(send(0)),
        server(receive(2, 0)),
        server(receive(2, 0)),
    ]);
}

#[test]
fn a_read_from_tcp_stops_before_an_urgent_byte_in_the_ring() {
    for flags in [0, libc::MSG_PEEK] {
        for behind in [0, 1] {
            always([
                server(send(2)),
                client(send(0)),
                server(urgent(1)),
                server(send(behind)),
                client(receive(8, flags)),
                client(receive(0, 0)),
                client(receive(1, libc::MSG_OOB)),
                client(receive(8, flags)),
            ]);
        }
    }
}

#[test]
fn unread_bytes_are_counted_to_the_mark_and_in_line_past_it() {
    let counts =
        [client(Call::CountUnread), client(Call::Poll(libc::POLLIN)), client(Call::LookForMark)];
    for is_in_line in [false, true] {
        let first = [server(urgent(3)), client(Call::InLine(is_in_line)), client(send(0))];
        always([&first[..], &counts].concat());
        let replaced = [&first[..], &[client(receive(2, 0)), server(urgent(1))], &counts].concat();
        always(replaced);
    }
}

#[test]
fn a_set_in_a_set_keeps_what_a_look_from_outside_has_found() {
    for watch in [edges(libc::EPOLLOUT), once(libc::EPOLLOUT), Call::Watch(libc::EPOLLOUT as u32)] {
        let watch = client(watch);
        always([watch.clone(), client(OUTSIDE), client(INSIDE), client(INSIDE)]);
        always([watch.clone(), client(OUTSIDE), client(OUTSIDE), client(INSIDE)]);
        always([watch.clone(), client(OUTSIDE), client(Call::Unwatch), client(INSIDE)]);
        always([watch.clone(), client(OUTSIDE), watch, client(INSIDE), client(INSIDE)]);
    }
}

#[test]
fn the_end_is_told_behind_an_urgent_byte_that_is_all_there_is() {
    for end in [client(Call::Shutdown(libc::SHUT_RD)), server(Call::Shutdown(libc::SHUT_WR))] {
        for flags in [0, libc::MSG_PEEK, libc::MSG_WAITALL] {
            let receive = client(receive(1, flags));
            always([server(urgent(1)), end.clone(), receive.clone(), receive.clone()]);
            always([client(send(0)), server(urgent(1)), end.clone(), client(SPLICE), receive]);
        }
    }
}

#[test]
fn shutting_what_is_over_is_an_edge() {
    moved([
        server(Call::Close),
        client(send(1)),
        client(edges(libc::EPOLLIN)),
        client(INSIDE),
        client(Call::Shutdown(libc::SHUT_RD)),
        client(INSIDE),
    ]);
}

#[test]
fn an_urgent_byte_by_tcp_is_seen_when_a_read_has_stopped_before_it() {
    for look in [Call::Select, Call::Poll(libc::POLLPRI), Call::LookForMark] {
        for in_line in [false, true] {
            for flags in [0, libc::MSG_PEEK, libc::MSG_WAITALL] {
                after(
                    12,
                    [
                        client(Call::InLine(in_line)),
                        client(Call::Demote(true)),
                        client(receive(0, 0)),
                        server(send(1)),
                        server(urgent(1)),
                        client(receive(2, flags)),
                        client(look.clone()),
                        client(receive(1, libc::MSG_OOB)),
                        client(look.clone()),
                        client(receive(2, 0)),
                        client(receive(2, 0)),
                    ],
                );
            }
        }
    }
}

#[test]
fn an_urgent_byte_by_tcp_is_seen_before_the_turn_that_leads_there_was_followed() {
    for look in [
        Call::LookForMark,
        Call::Poll(libc::POLLPRI),
        receive(1, libc::MSG_OOB),
        receive(0, 0),
        Call::Select,
    ] {
        let turns = [client(send(0)), server(receive(1, 0)), client(send(0))];
        let demoted = [client(Call::Demote(true)), server(receive(1, 0))];
        moved([&demoted[..], &turns, &[client(urgent(1)), server(look)]].concat());
    }
}
