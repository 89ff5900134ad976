//! RDMA adapters by verbs, without an adapter: layouts, and a model behind the library's functions.
//!
//! | Module | What |
//! |---|---|
//! | `layouts` | the structures, compared with those of the library's header |
//! | `model` | an adapter in software, which is strict with its user |
//! | `pair` | two adapters over the model, connected |
//! | `way` | what a message costs: calls, allocations, system calls |
//! | `search` | peers that are looked for, and are not there |
//! | `events` | wake-ups, ports, addresses, the end of an adapter |
//! | `suite` | what every device promises (`examples/conformance`), over the model |

mod events;
mod layouts;
mod model;
mod pair;
mod search;
#[path = "../../examples/conformance/suite.rs"]
mod suite;
mod way;

use std::net::IpAddr;
use std::time::Duration;

use sidestep_rdma::device::Device;
use sidestep_rdma::verbs::{self, Adapter, By, Kind};

use suite::Bench;

/// Two adapters over the model.
struct ModelBench {
    adapters: [Adapter; 2],
}

impl ModelBench {
    fn new() -> Self {
        Self { adapters: [(); 2].map(|()| open()) }
    }
}

/// Opens the model's adapter at its address of RoCEv2.
fn open() -> Adapter {
    let verbs = model::verbs();
    let ports = verbs::ports(&verbs).unwrap();
    let (port, gid) = verbs::choose(&ports, By::Interface(3), Kind::RoceV2).unwrap();
    Adapter::open(&verbs, port, gid).unwrap()
}

impl Bench for ModelBench {
    fn device(&mut self, end: usize) -> &mut dyn Device {
        &mut self.adapters[end]
    }

    fn address(&self, end: usize) -> IpAddr {
        self.adapters[end].gid().address
    }

    fn mtu(&self) -> u16 {
        self.adapters[0].mtu()
    }

    fn progress(&mut self) {
        for adapter in &mut self.adapters {
            adapter.turn(Duration::ZERO);
        }
        model::step();
        for adapter in &mut self.adapters {
            adapter.turn(Duration::ZERO);
        }
    }
}

fn keeps() {
    let mut bench = ModelBench::new();
    for (_, case) in suite::CASES {
        case(&mut bench);
    }
    assert_eq!(model::census(), [2, 0, 0, 0, 0], "everything was given back to the library");
    drop(bench);
    assert_eq!(model::census(), [0; 5]);
}

#[test]
fn verbs_keep_what_devices_promise() {
    keeps();
}

#[test]
fn verbs_keep_it_without_inline_sends() {
    model::world(|world| world.inline_max = 0);
    keeps();
}

#[test]
fn verbs_keep_it_with_short_queues() {
    model::world(|world| world.depth_max = 40);
    keeps();
}
