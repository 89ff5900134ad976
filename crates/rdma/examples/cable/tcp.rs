//! The same by TCP.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use crate::scene::Scene;
use crate::{BLOCK, MESSAGE, Workload};

const PORT: u16 = 7609;

pub(crate) fn run(scene: &Scene, workload: Workload, time: Duration) -> f64 {
    let connections = match workload {
        Workload::Stream => 1,
        Workload::Exchanges(count) => count,
    };
    let server = |[own, _]: [IpAddr; 2], barrier: &Barrier| {
        let listener = TcpListener::bind((own, PORT)).expect("a port");
        barrier.wait();
        let streams: Vec<TcpStream> =
            (0..connections).map(|_| listener.accept().expect("a client").0).collect();
        match workload {
            Workload::Stream => swallow(&streams[0]),
            Workload::Exchanges(_) => answer(&streams),
        }
    };
    let client = |[_, other]: [IpAddr; 2], barrier: &Barrier| {
        barrier.wait();
        let connect = |_| {
            let stream = TcpStream::connect((other, PORT)).expect("a server");
            stream.set_nodelay(true).expect("TCP");
            stream
        };
        let streams: Vec<TcpStream> = (0..connections).map(connect).collect();
        match workload {
            Workload::Stream => pour(&streams[0], time),
            Workload::Exchanges(_) => ask(&streams, time),
        }
    };
    scene.run(server, client)
}

fn pour(mut stream: &TcpStream, time: Duration) -> f64 {
    let (block, begin, mut bytes) = (vec![7; BLOCK], Instant::now(), 0);
    while begin.elapsed() < time {
        stream.write_all(&block).expect("a peer");
        bytes += BLOCK;
    }
    // The rest has arrived when the peer has closed.
    stream.shutdown(std::net::Shutdown::Write).expect("a peer");
    let _ = stream.read(&mut [0]);
    bytes as f64 / begin.elapsed().as_secs_f64() / 1e6
}

fn swallow(mut stream: &TcpStream) {
    let mut block = vec![0; BLOCK];
    while stream.read(&mut block).is_ok_and(|len| len > 0) {}
}

/// Calls for every stream that has a whole message, until false is returned.
fn serve(streams: &[TcpStream], mut on_message: impl FnMut(&TcpStream) -> bool) {
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    for (index, stream) in streams.iter().enumerate() {
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&poller, stream.as_fd(), data, epoll::EventFlags::IN).expect("epoll");
    }
    let mut came = vec![0; streams.len()];
    let mut events = Vec::with_capacity(16);
    let mut buffer = [0; MESSAGE];
    loop {
        events.clear();
        epoll::wait(&poller, rustix::buffer::spare_capacity(&mut events), None).expect("epoll");
        for event in &events {
            let index = event.data.u64() as usize;
            let mut stream = &streams[index];
            let rest = MESSAGE - came[index];
            let len = stream.read(&mut buffer[..rest]).unwrap_or(0);
            came[index] += len;
            if len == 0 {
                return;
            }
            if came[index] == MESSAGE {
                came[index] = 0;
                if !on_message(stream) {
                    return;
                }
            }
        }
    }
}

fn answer(streams: &[TcpStream]) {
    serve(streams, |mut stream| stream.write_all(&[7; MESSAGE]).is_ok());
}

fn ask(streams: &[TcpStream], time: Duration) -> f64 {
    let (begin, mut count) = (Instant::now(), 0);
    streams.iter().for_each(|mut stream| stream.write_all(&[7; MESSAGE]).expect("a peer"));
    serve(streams, |mut stream| {
        count += 1;
        begin.elapsed() < time && stream.write_all(&[7; MESSAGE]).is_ok()
    });
    f64::from(count) / begin.elapsed().as_secs_f64()
}
