//! Rules for which bytes leave on sockets without a mark.

use super::*;
use nix::sys::socket::{setsockopt, sockopt};
use sidestep_bpf::Enforcement;

const MARK: u32 = 0x53;

fn enforce(group: &Path, text: &str) -> Enforcement {
    let (graph, groups) = (graph(text), GroupNumbers::default());
    let rules = text.lines().count();
    let set = RuleSet { graph: &graph, rules, identity: identity(1), groups: &groups };
    Enforcement::attach(group, &set, MARK).unwrap()
}

#[test]
fn only_marked_sockets_send_bytes() {
    with_cgroup(|place| {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let port = listener.local_addr().unwrap().port();
            let text = format!("permit tcp any any:1 out\ndeny tcp any any:{port} out log");
            let mut enforcement = enforce(place.cgroup.path(), &text);
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();

            server.write_all(b"y").unwrap();
            client.read_exact(&mut [0]).unwrap();
            client.write_all(b"x").unwrap();
            server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            let error = server.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "the socket has no mark");
            let line = enforcement.take().expect("a line about the packet");
            let verdict =
                Verdict { action: Action::Deny, rule: Some(1), is_logged: true, needs_tls: false };
            assert_eq!((line.verdict, line.packet.ports.1), (verdict, port));
            assert!(enforcement.dropped(1).unwrap() > 0);
            assert_eq!(enforcement.dropped(0).unwrap(), 0);

            setsockopt(&client, sockopt::Mark, &MARK).unwrap();
            server.set_read_timeout(Some(PATIENCE)).unwrap();
            server.read_exact(&mut [0]).unwrap();
            let dropped = enforcement.dropped(1).unwrap();
            exchange(&mut client, &mut server);
            assert_eq!(enforcement.dropped(1).unwrap(), dropped);
        }
    });
}

#[test]
fn a_connection_without_bytes_begins_and_ends() {
    with_cgroup(|place| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let text = format!("deny tcp any any:{port} out log\ndeny tcp any:{port} any out log");
        let enforcement = enforce(place.cgroup.path(), &text);
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        drop(server);
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the end has come");
        assert_eq!([0, 1].map(|rule| enforcement.dropped(rule).unwrap()), [0, 0]);
        // With the process that holds it the rules go.
        drop(enforcement);
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        exchange(&mut client, &mut server);
    });
}
