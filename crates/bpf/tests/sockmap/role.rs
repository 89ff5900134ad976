//! Processes that talk: this test binary again, told by its environment what to be.
//!
//! A process makes no socket before it reads a line from its standard input, so that it
//! can be put into a cgroup first.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::mem;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use sidestep_bpf::Cgroup;

use crate::socket_address;

/// What client and server do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Conversation {
    /// The server sends back what it gets; messages are short and, now and then, long.
    Echo { messages: u64 },
    /// The client sends these bytes; the server pauses while they come.
    Stream { bytes: u64 },
    /// Each connection has three messages, the first as soon as `connect` returns, and
    /// is read when all have been sent. The server is made by the first of them.
    Deferred { connections: u64 },
    /// The same; the server is made by `connect`.
    Prompt { connections: u64 },
}

/// A process in a role.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn server(listen: &str, conversation: Conversation, group: Option<&Cgroup>) -> Self {
        Self::start("server", listen, conversation, group)
    }

    pub(crate) fn client(
        host: &str,
        port: u16,
        conversation: Conversation,
        group: Option<&Cgroup>,
    ) -> Self {
        let address = socket_address(host, port).to_string();
        Self::start("client", &address, conversation, group)
    }

    /// One that only waits.
    pub(crate) fn idle(group: &Cgroup) -> Self {
        let mut process = Self::spawn(&[("SOCKMAP_ROLE", "idle")]);
        group.add(process.child.id()).unwrap();
        process.say("go");
        process
    }

    fn start(
        role: &str,
        address: &str,
        conversation: Conversation,
        group: Option<&Cgroup>,
    ) -> Self {
        let (name, amount) = conversation.in_words();
        let mut process = Self::spawn(&[
            ("SOCKMAP_ROLE", role),
            ("SOCKMAP_ADDRESS", address),
            ("SOCKMAP_CONVERSATION", name),
            ("SOCKMAP_AMOUNT", &amount.to_string()),
        ]);
        if let Some(group) = group {
            group.add(process.child.id()).unwrap();
        }
        process.say("go");
        process
    }

    fn spawn(environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "role::role", "--ignored", "--nocapture"])
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Where the server listens.
    pub(crate) fn port(&mut self) -> u16 {
        self.answer("port").try_into().unwrap()
    }

    /// Bytes that TCP has acknowledged to the client.
    pub(crate) fn bytes_by_tcp(&mut self) -> u64 {
        self.answer("bytes by tcp")
    }

    /// The number behind these words. The test harness of the process prints as well.
    fn answer(&mut self, words: &str) -> u64 {
        loop {
            let mut line = String::new();
            let len = self.lines.read_line(&mut line).unwrap();
            assert_ne!(len, 0, "the process ended without telling its {words}");
            if let Some((_, number)) = line.split_once(&format!("{words}: ")) {
                return number.trim().parse().unwrap();
            }
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn ended_well(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing to end if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Conversation {
    fn in_words(self) -> (&'static str, u64) {
        match self {
            Self::Echo { messages } => ("echo", messages),
            Self::Stream { bytes } => ("stream", bytes),
            Self::Deferred { connections } => ("deferred", connections),
            Self::Prompt { connections } => ("prompt", connections),
        }
    }

    fn of_environment() -> Self {
        let amount = env::var("SOCKMAP_AMOUNT").unwrap().parse().unwrap();
        match env::var("SOCKMAP_CONVERSATION").unwrap().as_str() {
            "echo" => Self::Echo { messages: amount },
            "stream" => Self::Stream { bytes: amount },
            "deferred" => Self::Deferred { connections: amount },
            "prompt" => Self::Prompt { connections: amount },
            other => panic!("no conversation {other}"),
        }
    }
}

#[test]
#[ignore = "a process of the other tests, which start it"]
fn role() {
    let role = env::var("SOCKMAP_ROLE").expect("the other tests start this with a role");
    let address = env::var("SOCKMAP_ADDRESS").unwrap_or_default();
    wait_for_line();
    match role.as_str() {
        "server" => server(&address, Conversation::of_environment()),
        "client" => client(&address, Conversation::of_environment()),
        "idle" => wait_for_line(),
        other => panic!("no role {other}"),
    }
}

/// Or for the end of the input.
fn wait_for_line() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

fn server(address: &str, conversation: Conversation) {
    let listener = TcpListener::bind(address).unwrap();
    if matches!(conversation, Conversation::Deferred { .. }) {
        set_option(&listener, libc::TCP_DEFER_ACCEPT, 5);
    }
    println!("port: {}", listener.local_addr().unwrap().port());
    match conversation {
        Conversation::Echo { .. } => echo(&listener.accept().unwrap().0),
        Conversation::Stream { bytes } => swallow(&listener.accept().unwrap().0, bytes),
        Conversation::Deferred { connections } | Conversation::Prompt { connections } => {
            for _ in 0..connections {
                read_three(&listener.accept().unwrap().0);
            }
        }
    }
}

fn client(address: &str, conversation: Conversation) {
    let connect = || {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    };
    match conversation {
        Conversation::Echo { messages } => {
            let stream = connect();
            talk(&stream, messages);
            println!("bytes by tcp: {}", acknowledged(&stream));
        }
        Conversation::Stream { bytes } => {
            let stream = connect();
            pour(&stream, bytes);
            println!("bytes by tcp: {}", acknowledged(&stream));
        }
        Conversation::Deferred { connections } | Conversation::Prompt { connections } => {
            for _ in 0..connections {
                send_three(&connect());
            }
            println!("bytes by tcp: 0");
        }
    }
}

// ---- echo ------------------------------------------------------------------

fn echo(mut stream: &TcpStream) {
    let mut buffer = vec![0; 0x1_0000];
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => return,
            len => stream.write_all(&buffer[..len]).unwrap(),
        }
    }
}

fn talk(stream: &TcpStream, messages: u64) {
    let mut position = 0;
    for number in 0..messages {
        let message = bytes_from(position, message_len(number));
        position += message.len() as u64;
        // Beside the reading: a long message is more than all buffers hold.
        thread::scope(|scope| {
            let (mut outgoing, mut incoming) = (stream, stream);
            let request = &message;
            scope.spawn(move || outgoing.write_all(request).unwrap());
            let mut reply = vec![0; message.len()];
            incoming.read_exact(&mut reply).unwrap();
            assert!(reply == message, "message {number} is not what was sent");
        });
    }
}

/// Around one and many pages, one and many of the kernel's pieces.
fn message_len(number: u64) -> usize {
    match number {
        _ if number % 1000 == 999 => 3_000_001,
        _ if number % 100 == 99 => 300_000,
        _ => (number * 37 % 9_001 + 1) as usize,
    }
}

/// What stands at this place of an endless text without short repetitions.
fn bytes_from(position: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (position..).take(len).map(byte).collect()
}

// ---- stream ----------------------------------------------------------------

const PIECE_LEN: usize = 0x4_0000;

fn pour(mut stream: &TcpStream, bytes: u64) {
    for position in (0..bytes).step_by(PIECE_LEN) {
        stream.write_all(&bytes_from(position, PIECE_LEN)).unwrap();
    }
}

fn swallow(mut stream: &TcpStream, bytes: u64) {
    let mut piece = vec![0; PIECE_LEN];
    for position in (0..bytes).step_by(PIECE_LEN) {
        if position % (bytes / 8) == 0 {
            thread::sleep(Duration::from_millis(50));
        }
        stream.read_exact(&mut piece).unwrap();
        assert!(piece == bytes_from(position, PIECE_LEN), "the bytes from {position} on");
    }
    assert_eq!(stream.read(&mut piece).unwrap(), 0, "nothing more comes");
}

// ---- three messages --------------------------------------------------------

fn send_three(mut stream: &TcpStream) {
    for message in [b"first.", b"second", b"third."] {
        stream.write_all(message).unwrap();
    }
}

fn read_three(mut stream: &TcpStream) {
    // All three are there before the first is read.
    thread::sleep(Duration::from_millis(2));
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text, "first.secondthird.");
}

// ---- options ---------------------------------------------------------------

fn set_option(socket: &impl AsRawFd, option: i32, value: i32) {
    // SAFETY: the option takes an int, whose address and length these are.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Bytes that the other end has acknowledged.
fn acknowledged(stream: &TcpStream) -> u64 {
    // SAFETY: integers only.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `info`.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    info.tcpi_bytes_acked
}
