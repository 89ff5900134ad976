//! Lets plain programs use the gateway of their network namespace, without the library.
//!
//! ```text
//!   handover connect LISTEN TARGET     program ──TCP──> LISTEN, gateway ══SMC-R══> TARGET
//!   handover accept  LISTEN TARGET     peer ══SMC-R══> LISTEN, gateway ──TCP──> TARGET: program
//! ```
//!
//! LISTEN and TARGET are `ADDRESS:PORT`. Each connection has a line on standard output: `SmcR` or
//! `Tcp`, as the gateway has decided. It runs until it is killed. Ends are passed on as they come: FIN
//! as FIN, RST as RST.

mod by_hand;

use std::env;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use sidestep_wire::RmbeSize;
use sidestep_wire::host_control::Side;

/// Bytes that are copied at once.
const CHUNK: usize = 64 << 10;

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let side = match words.first().map(String::as_str) {
        Some("connect") => Side::Client,
        Some("accept") => Side::Server,
        _ => panic!("usage: handover connect|accept LISTEN TARGET"),
    };
    let [listen, target] = [1, 2].map(|at| {
        let address = words.get(at).and_then(|word| word.parse::<SocketAddr>().ok());
        address.expect("ADDRESS:PORT")
    });
    let listener = TcpListener::bind(listen).expect("LISTEN can be listened at");
    for program in listener.incoming() {
        let accepted = program.expect("connections come in");
        thread::spawn(move || {
            if let Err(error) = forward(accepted, target, side) {
                eprintln!("handover: {error}");
            }
        });
    }
}

fn forward(accepted: TcpStream, target: SocketAddr, side: Side) -> io::Result<()> {
    let connected = TcpStream::connect(target)?;
    let (near, n) = match side {
        Side::Client => (accepted, connected),
        Side::Server => (connected, accepted),
    };
    near.set_nodelay(true)?;
    let h = by_hand::hand_over(&n, side, RmbeSize::DEFAULT)?;
    println!("{:?}", by_hand::decided(&h)?);
    let (near, far) = (Arc::new(near), Arc::new(h));
    let [one, other] = [(Arc::clone(&near), Arc::clone(&far)), (far, near)]
        .map(|(from, to)| thread::spawn(move || copy(&from, &to)));
    let _ = (one.join(), other.join());
    // Until now, as a program keeps its connection.
    drop(n);
    Ok(())
}

/// Copies up to the end of file, and passes that on; anything else is a reset for both.
fn copy(from: &TcpStream, to: &TcpStream) {
    let ended = (|| {
        let mut bytes = vec![0; CHUNK];
        loop {
            match (&*from).read(&mut bytes)? {
                0 => return to.shutdown(std::net::Shutdown::Write),
                count => (&*to).write_all(&bytes[..count])?,
            }
        }
    })();
    if ended.is_err() {
        for socket in [from, to] {
            // One of the two is reset already.
            let _ = rustix::net::connect_unspec(socket);
        }
    }
}
