//! Rules with `tls` while their holder lives, without a filter.

use super::tls::protect;
use super::*;
use sidestep_bpf::Enforcement;

fn enforce(group: &Path, text: &str) -> Enforcement {
    let (graph, groups) = (graph(text), GroupNumbers::default());
    let rules = text.lines().count();
    let set = RuleSet { graph: &graph, rules, identity: identity(1), groups: &groups };
    Enforcement::attach(group, &set).unwrap()
}

#[test]
fn only_protected_connections_send_bytes() {
    with_cgroup(|place| {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let port = listener.local_addr().unwrap().port();
            let text = format!("permit tcp any any:1 out\npermit tcp any any:{port} out tls log");
            let mut enforcement = enforce(place.cgroup.path(), &text);
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();

            server.write_all(b"y").unwrap();
            client.read_exact(&mut [0]).unwrap();
            client.write_all(b"x").unwrap();
            server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            let error = server.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "nothing protects it");
            let line = enforcement.take().expect("a line about the packet");
            let verdict =
                Verdict { action: Action::Deny, rule: Some(1), is_logged: true, needs_tls: true };
            assert_eq!((line.verdict, line.packet.ports.1), (verdict, port));
            assert!(enforcement.dropped(1).unwrap() > 0);
            assert_eq!(enforcement.dropped(0).unwrap(), 0);

            protect(&client);
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
        let text =
            format!("permit tcp any any:{port} out tls log\npermit tcp any:{port} any out tls log");
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
