//! The liar: a third player, who is at no end of an honest connection and tries to get into them.
//!
//! It is a local user of both hosts, and has a host of its own. So it can hold either end of a TCP
//! connection, and says there what it likes in the name of either host: it repeats Accepts and
//! Confirms that it was sent, with this or that changed, declines as "out of sync", and proposes as
//! the client. What honest programs say over TCP it does not see, and neither packets nor memory.
//!
//! Whatever it does, honest connections carry what was sent, and none is reset.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sidestep_engine::Event;
use sidestep_wire::clc::AcceptConfirmR;
use sidestep_wire::{AlertToken, QpNumber, Rkey, RmbAddress};

use crate::table::{CLIENT, SERVER, Table, address};

/// Its user number on both hosts.
const UID: u32 = 666;
/// Its own host.
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 9, 9));

/// What it does next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lie {
    /// It connects to a server, as if it were the client's host.
    Propose,
    /// It answers a program of the client's host, as if it were the server's.
    Accept,
    /// It answers the Accept of a connection, as if it were the client's host.
    Confirm(AlertToken),
    /// It ends a connection that came to something.
    Leave(usize, AlertToken),
}

/// What it knows, and has.
pub(crate) struct Liar {
    random: StdRng,
    accepts: Vec<AcceptConfirmR>,
    confirms: Vec<AcceptConfirmR>,
    /// Its connections, by the hosts' names for them.
    connections: BTreeSet<(usize, AlertToken)>,
    /// Lies that are left to it.
    left: u32,
    /// How many of its messages a host did not refuse at once.
    pub(crate) heard: u32,
}

impl Liar {
    pub(crate) fn new(seed: u64, lies: u32) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            accepts: Vec::new(),
            confirms: Vec::new(),
            connections: BTreeSet::new(),
            left: lies,
            heard: 0,
        }
    }

    pub(crate) fn has(&self, host: usize, token: AlertToken) -> bool {
        self.connections.contains(&(host, token))
    }

    fn take(&mut self, host: usize, token: AlertToken) {
        self.heard += 1;
        self.connections.insert((host, token));
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        (!all.is_empty()).then(|| all[self.random.random_range(0..all.len())].clone())
    }

    /// A message that it was sent, with something changed, or as it was.
    fn alter(&mut self, message: AcceptConfirmR) -> AcceptConfirmR {
        let token = AlertToken(self.random.random());
        let message = AcceptConfirmR { alert_token: token, ..message };
        match self.random.random_range(0..6) {
            0 => AcceptConfirmR { rkey: Rkey(self.random.random()), ..message },
            1 => AcceptConfirmR { rmb_address: RmbAddress(self.random.random()), ..message },
            2 => AcceptConfirmR { alert_token: AlertToken(1), ..message },
            3 => AcceptConfirmR { qp_number: QpNumber(self.random.random()), ..message },
            4 => {
                let other = self.one_of(&[self.accepts.clone(), self.confirms.clone()].concat());
                let other = other.unwrap_or_else(|| message.clone());
                AcceptConfirmR { rkey: other.rkey, rmb_address: other.rmb_address, ..message }
            }
            _ => message,
        }
    }

    /// Where it is, for a host that looks.
    fn address(&mut self, honest: usize) -> IpAddr {
        let places = [address(honest, 1).into(), address(1 - honest, 1).into(), ELSEWHERE];
        self.one_of(&places).unwrap_or(ELSEWHERE)
    }
}

impl Table {
    /// The liar begins, and goes on for as long as it has lies.
    pub(crate) fn let_in(&mut self, liar: Liar) {
        self.liar = Some(liar);
        self.next_lie();
    }

    fn next_lie(&mut self) {
        let Some(liar) = &mut self.liar else { return };
        let Some(left) = liar.left.checked_sub(1) else { return };
        liar.left = left;
        let lie = if liar.random.random_bool(0.5) { Lie::Propose } else { Lie::Accept };
        let after = Duration::from_micros(liar.random.random_range(0..20_000));
        self.lie_after(after, lie);
    }

    pub(crate) fn lie(&mut self, lie: Lie) {
        match lie {
            Lie::Propose => self.propose_falsely(),
            Lie::Accept => self.accept_falsely(),
            Lie::Confirm(token) => self.confirm_falsely(token),
            Lie::Leave(host, token) => {
                if let Some(it) = self.host_at(host) {
                    it.0.abort(token, it.1);
                }
            }
        }
        if matches!(lie, Lie::Propose | Lie::Accept) {
            self.next_lie();
        }
    }

    /// To a program of the honest user, whose buffer the connection gets.
    fn propose_falsely(&mut self) {
        let Some(liar) = &mut self.liar else { return };
        let from = liar.address(CLIENT);
        let (proposer, request) = self.proposal_from(CLIENT, from);
        let Some((host, now)) = self.host_at(SERVER) else { return };
        if let (Ok(token), Some(liar)) = (host.accept(proposer, request, now), &mut self.liar) {
            liar.take(SERVER, token);
        }
    }

    /// To a program of its own, which connects to wherever it listens.
    fn accept_falsely(&mut self) {
        let Some(liar) = &mut self.liar else { return };
        let Some(seen) = liar.one_of(&liar.accepts.clone()) else { return };
        let (accept, from) = (liar.alter(seen), liar.address(SERVER));
        let request = self.request_of(UID, CLIENT, from);
        let Some((host, now)) = self.host_at(CLIENT) else { return };
        if let (Ok(token), Some(liar)) = (host.connect(&accept, request, now), &mut self.liar) {
            liar.take(CLIENT, token);
        }
    }

    fn confirm_falsely(&mut self, token: AlertToken) {
        let Some(liar) = &mut self.liar else { return };
        let confirm = liar.one_of(&liar.confirms.clone()).map(|seen| liar.alter(seen));
        let how = liar.random.random_range(0..3);
        let Some((host, now)) = self.host_at(SERVER) else { return };
        match (how, confirm) {
            (0, _) => host.handle_out_of_sync(token, now),
            (1, _) | (_, None) => host.abandon(token, now),
            (_, Some(confirm)) => host.handle_confirm(token, &confirm, now),
        }
    }

    /// A host says something of a connection of the liar's.
    pub(crate) fn tell_liar(&mut self, host: usize, token: AlertToken, event: Event) {
        let Some(liar) = &mut self.liar else { return };
        let after = Duration::from_micros(liar.random.random_range(0..50_000));
        match event {
            Event::Introduce(_, accept) if host == SERVER => {
                liar.accepts.push(*accept);
                self.lie_after(after, Lie::Confirm(token));
            }
            Event::Introduce(_, confirm) => liar.confirms.push(*confirm),
            Event::Established(_) => {
                let lies = vec![0xEE; liar.random.random_range(1..10_000)];
                if let Some((it, now)) = self.host_at(host) {
                    // As much as there is room for.
                    let _ = it.send(token, &lies, now);
                }
                self.lie_after(after, Lie::Leave(host, token));
            }
            Event::Reset(..) => self.lie_after(after, Lie::Leave(host, token)),
            Event::Gone(_) => {
                liar.connections.remove(&(host, token));
            }
            _ => {}
        }
    }

    /// Whether the liar was heard at all, and has nothing left.
    pub(crate) fn check_liar(&self) {
        let Some(liar) = &self.liar else { return };
        assert!(liar.heard > 0, "it has said nothing that was not refused at once");
        assert!(liar.connections.is_empty(), "{:?}", liar.connections);
    }
}
