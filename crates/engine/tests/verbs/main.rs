//! Two hosts whose adapters are verbs, over the model of an adapter that `rdma` is tested with.
//!
//! Over an adapter of a machine, `examples/verbs` does the same.

#[path = "../../examples/verbs/hosts.rs"]
mod hosts;
#[path = "../../../rdma/tests/verbs/model.rs"]
#[expect(dead_code, reason = "the tests of `rdma` ask more of it")]
mod model;

use hosts::Place;
use sidestep_rdma::verbs::{self, Adapter, By, Kind};
use sidestep_wire::{Mtu, RoceGid};

/// An adapter at one of the model's addresses: hosts do not have the same.
fn place(last: u8) -> Place {
    let verbs = model::verbs();
    let ports = verbs::ports(&verbs).unwrap();
    let (port, gid) =
        verbs::choose(&ports, By::Address([10, 9, 0, last].into()), Kind::RoceV2).unwrap();
    let device = Adapter::open(&verbs, port, gid).unwrap();
    let gid = RoceGid(model::world(|world| world.gids[usize::from(last) - 1].gid));
    Place { device, gid, mtu: Mtu::from_low_bits(3) }
}

fn step() {
    model::step();
}

#[test]
fn connections_carry_bytes_over_verbs() {
    hosts::converse([place(2), place(3)], 3, 300_000, &mut step);
    assert_eq!(model::census(), [0; 5], "the library has everything back");
}

/// Messages in slots, and queues that are often full.
#[test]
fn connections_carry_bytes_over_an_adapter_that_can_do_little() {
    model::world(|world| (world.inline_max, world.depth_max) = (0, 8));
    hosts::converse([place(2), place(3)], 2, 100_000, &mut step);
    assert_eq!(model::census(), [0; 5]);
}
