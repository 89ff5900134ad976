//! A witness for tests.

use std::io;
use std::sync::Mutex;

use crate::control::{Evidence, Usage, Witness};

/// Sees more with every look, and remembers at whom it has looked.
#[derive(Default)]
pub(super) struct FakeWitness {
    pub(super) looks: Mutex<Vec<Vec<u32>>>,
}

impl Witness for FakeWitness {
    fn look(&self, pids: &[u32]) -> io::Result<Evidence> {
        let mut looks = self.looks.lock().unwrap();
        looks.push(pids.to_vec());
        let n = looks.len() as u64;
        let fallbacks = [("0x03010000 the peer does not run Sidestep".to_owned(), n)];
        Ok(Evidence {
            smc_connections: 10 * n,
            tcp_connections: n,
            too_short: 0,
            fallbacks: fallbacks.into(),
            spin_ns: 1000 * n * n,
            spins: 1,
            parks: 2,
            wakeups: 3 * n,
            gateway: Usage { user_us: 7 * n, ..Usage::default() },
        })
    }
}

/// Cannot see anything.
pub(super) struct Blind;

impl Witness for Blind {
    fn look(&self, _: &[u32]) -> io::Result<Evidence> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}
