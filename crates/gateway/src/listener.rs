//! The data listener: the TCP port at which H comes in, and where the two halves of a session meet.
//!
//! H is known by the port that it comes from. Whose it is the kernel tells, and only what the same
//! user hands over goes with it: no user can have another one's bytes sent elsewhere.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use rustix::io::Errno;
use rustix::net::{self, sockopt};

use crate::control::Offer;
use crate::limits::{AT_ONCE, BACKLOG, OTHER_HALF_PATIENCE, WAITING_MAX};
use crate::netlink;
use crate::poller::{Poller, Source};
use crate::spare::Spare;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Which H: the port that it comes from, and whose it is.
type Key = (u16, u32);

/// When a half is let go, and which of those of that moment it is.
type Place = (Duration, u64);

/// What waits for its other half.
#[derive(Debug)]
struct Waiting<T> {
    halves: HashMap<Key, (T, Place)>,
    /// The oldest first.
    order: BTreeMap<Place, Key>,
    count: u64,
}

impl<T> Waiting<T> {
    fn new() -> Self {
        Self { halves: HashMap::new(), order: BTreeMap::new(), count: 0 }
    }

    /// Where there are too many, one of the user goes who has most: no user's flood washes away what
    /// is others'.
    fn put(&mut self, key: Key, half: T, now: Duration) {
        self.take(key);
        self.count += 1;
        let place = (now + OTHER_HALF_PATIENCE, self.count);
        self.halves.insert(key, (half, place));
        self.order.insert(place, key);
        if self.halves.len() > WAITING_MAX
            && let Some(key) = self.oldest_of(self.greediest())
        {
            self.take(key);
        }
    }

    fn take(&mut self, key: Key) -> Option<T> {
        let (half, place) = self.halves.remove(&key)?;
        self.order.remove(&place);
        Some(half)
    }

    fn halves(&self) -> impl Iterator<Item = &T> {
        self.halves.values().map(|(half, _)| half)
    }

    /// The user who has most of them.
    fn greediest(&self) -> Option<u32> {
        let mut counts = HashMap::<u32, usize>::new();
        self.halves.keys().for_each(|(_, user)| *counts.entry(*user).or_default() += 1);
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(user, _)| user)
    }

    fn oldest_of(&self, user: Option<u32>) -> Option<Key> {
        self.order.values().find(|(_, its)| Some(*its) == user).copied()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.order.keys().next().map(|(until, _)| *until)
    }

    /// Lets go of all that have waited until `now`, and calls `forget` with each.
    fn expire(&mut self, now: Duration, forget: impl Fn(Key)) {
        while let Some(((until, _), key)) = self.order.first_key_value()
            && *until <= now
        {
            let key = *key;
            self.take(key);
            forget(key);
        }
    }
}

/// The listening socket, and what waits.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: TcpListener,
    port: u16,
    spare: Spare,
    callers: Waiting<TcpStream>,
    offers: Waiting<Offer>,
}

impl Listener {
    pub(crate) fn open(poller: &Poller) -> io::Result<Self> {
        let listener = TcpListener::bind((LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        // As many may wait as hand over at once.
        net::listen(&listener, BACKLOG)?;
        Self::with(listener, poller)
    }

    /// With what another gateway has listened at, and what waits there for its other half.
    pub(crate) fn take_over(
        listener: TcpListener,
        callers: Vec<TcpStream>,
        offers: Vec<Offer>,
        poller: &Poller,
    ) -> io::Result<Self> {
        let mut this = Self::with(listener, poller)?;
        for h in callers {
            if let Some(key) = h.peer_addr().ok().and_then(|from| this.admit(&h, from)) {
                this.callers.put(key, h, Duration::ZERO);
            }
        }
        for offer in offers {
            this.offers.put((offer.port, offer.uid), offer, Duration::ZERO);
        }
        Ok(this)
    }

    fn with(listener: TcpListener, poller: &Poller) -> io::Result<Self> {
        poller.watch(&listener, Source::Listener)?;
        let port = listener.local_addr()?.port();
        let (callers, offers) = (Waiting::new(), Waiting::new());
        Ok(Self { listener, port, spare: Spare::new(), callers, offers })
    }

    /// Of 127.0.0.1.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// What it listens at.
    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// H of which nothing else has come.
    pub(crate) fn callers(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.callers.halves().map(|h| h.as_fd())
    }

    /// What was handed over for another gateway to go on with, and whose H has not come. What TLS is to protect is
    /// not: its H comes to nothing there.
    pub(crate) fn offers(&self) -> impl Iterator<Item = &Offer> {
        self.offers.halves().filter(|offer| offer.rule.is_none())
    }

    /// Whether anything waits for its other half.
    pub(crate) fn waits(&self) -> bool {
        self.callers.halves().next().is_some() || self.offers.halves().next().is_some()
    }

    /// Nothing of it is told of any more: another process has its socket, too.
    pub(crate) fn leave(self, poller: &Poller) {
        poller.forget(&self.listener);
    }

    /// Takes what comes in, and returns what has its other half.
    pub(crate) fn welcome(&mut self, now: Duration) -> Vec<(Offer, TcpStream)> {
        let mut pairs = Vec::new();
        for _ in 0..AT_ONCE {
            let (h, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    let full = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
                    if error.raw_os_error().is_some_and(|it| full.contains(&it)) {
                        log::warn!("a connection is turned away: {error}");
                        self.spare.lend(|| drop(self.listener.accept()));
                    }
                    break;
                }
            };
            let Some(key) = self.admit(&h, from) else { continue };
            match self.offers.take(key) {
                Some(offer) => pairs.push((offer, h)),
                None => self.callers.put(key, h, now),
            }
        }
        pairs
    }

    fn admit(&self, h: &TcpStream, from: SocketAddr) -> Option<Key> {
        sockopt::set_socket_linger(h, Some(Duration::ZERO)).ok()?;
        h.set_nonblocking(true).ok()?;
        h.set_nodelay(true).ok()?;
        // A program that does not look for it has it all the same.
        sockopt::set_socket_oobinline(h, true).ok()?;
        if from.ip() != LOCALHOST {
            return None;
        }
        let owner = owner(from, SocketAddr::new(LOCALHOST, self.port));
        owner
            .inspect_err(|error| log::debug!("whose connection {from} is: {error}"))
            .ok()
            .map(|uid| (from.port(), uid))
    }

    /// What was handed over, with its H, if that is here.
    pub(crate) fn match_up(&mut self, offer: Offer, now: Duration) -> Vec<(Offer, TcpStream)> {
        let key = (offer.port, offer.uid);
        if let Some(h) = self.callers.take(key) {
            return vec![(offer, h)];
        }
        self.offers.put(key, offer, now);
        // It has most likely come just now.
        self.welcome(now)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        [self.callers.poll_timeout(), self.offers.poll_timeout()].into_iter().flatten().min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Duration) {
        self.callers.expire(now, |_| ());
        self.offers.expire(now, |(port, uid)| {
            log::warn!(
                "a connection of user {uid} is reset: port {port} is no socket of that user"
            );
        });
    }
}

/// The user of the socket with these addresses, as the kernel says.
fn owner(local: SocketAddr, peer: SocketAddr) -> io::Result<u32> {
    let socket_id = SocketId {
        source_address: local.ip(),
        source_port: local.port(),
        destination_address: peer.ip(),
        destination_port: peer.port(),
        interface_id: 0,
        // Any.
        cookie: [0xFF; 8],
    };
    let request = InetRequest {
        family: AF_INET,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::all(),
        socket_id,
    };
    let mut owner = None;
    netlink::ask(NETLINK_SOCK_DIAG, SockDiagMessage::InetRequest(request), |answer| {
        if let SockDiagMessage::InetResponse(response) = answer {
            owner = Some(response.header.uid);
        }
    })?;
    owner.ok_or_else(|| io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_whose_a_connection_is() {
        let listener = TcpListener::bind((LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let [local, peer] = [client.local_addr().unwrap(), client.peer_addr().unwrap()];
        assert_eq!(owner(local, peer).unwrap(), rustix::process::geteuid().as_raw());
        // A socket of IPv6 gets here, too.
        let mapped = (Ipv4Addr::LOCALHOST.to_ipv6_mapped(), peer.port());
        if let Ok(client) = TcpStream::connect(mapped) {
            let (_server, local) = listener.accept().unwrap();
            assert_ne!(client.local_addr().unwrap(), local, "in another form");
            assert_eq!(owner(local, peer).unwrap(), rustix::process::geteuid().as_raw());
        }
        let nobody = SocketAddr::new(LOCALHOST, 1);
        assert_eq!(owner(nobody, peer).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    fn waiting_of_user(waiting: &Waiting<char>, user: u32) -> usize {
        waiting.halves.keys().filter(|(_, its)| *its == user).count()
    }

    #[test]
    fn a_half_waits_for_so_long_and_among_so_many() {
        let mut waiting = Waiting::new();
        let key = |port| (port, 0);
        waiting.put(key(1), 'a', Duration::ZERO);
        assert_eq!(waiting.poll_timeout(), Some(OTHER_HALF_PATIENCE));
        // Taken and put again: the first time says nothing any more.
        assert_eq!(waiting.take(key(1)), Some('a'));
        waiting.put(key(1), 'b', Duration::from_secs(1));
        waiting.expire(OTHER_HALF_PATIENCE, |_| ());
        assert_eq!(waiting.halves.len(), 1);
        waiting.expire(OTHER_HALF_PATIENCE + Duration::from_secs(1), |_| ());
        assert_eq!((waiting.halves.len(), waiting.poll_timeout()), (0, None));
        for n in 0..WAITING_MAX as u16 + 9 {
            waiting.put(key(n), 'c', Duration::from_millis(n.into()));
        }
        assert_eq!(waiting.halves.len(), WAITING_MAX);
        assert_eq!(waiting.take(key(8)), None);
        assert_eq!(waiting.take(key(9)), Some('c'));
    }

    #[test]
    fn those_that_have_met_make_no_room_for_a_flood() {
        let mut waiting = Waiting::new();
        for n in 0..5000 {
            waiting.put((n, 0), 'a', Duration::ZERO);
            assert_eq!(waiting.take((n, 0)), Some('a'));
        }
        (0..5000).for_each(|n| waiting.put((n, 0), 'b', Duration::from_millis(n.into())));
        assert_eq!((waiting.halves.len(), waiting.order.len()), (WAITING_MAX, WAITING_MAX));
    }

    #[test]
    fn a_flood_of_one_user_takes_nothing_of_another() {
        let mut waiting = Waiting::new();
        (0..9).for_each(|n| waiting.put((n, 7), 'a', Duration::ZERO));
        (0..5000).for_each(|n| waiting.put((n, 8), 'b', Duration::from_millis(n.into())));
        assert_eq!([7, 8].map(|user| waiting_of_user(&waiting, user)), [9, WAITING_MAX - 9]);
        // Of two floods, each has half.
        (0..5000).for_each(|n| waiting.put((n, 9), 'c', Duration::from_secs(5)));
        assert!(waiting_of_user(&waiting, 8).abs_diff(waiting_of_user(&waiting, 9)) <= 1);
        assert_eq!(waiting_of_user(&waiting, 7), 9);
    }
}
