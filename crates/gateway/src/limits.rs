//! How much anybody may have, and how long anything may take.

use std::time::Duration;

use sidestep_wire::RmbeSize;

/// Processes of one user that are connected to the control socket, half of all: each worker of a server that
/// becomes another user calls by itself, and one that is turned away cannot hand over.
pub const LINES_OF_USER_MAX: usize = LINES_MAX / 2;
/// Processes of all users; beyond, who was silent longest is hung up on, and calls again.
pub const LINES_MAX: usize = 2048;
/// Connections of one user that may go by SMC-R; further ones are declined.
pub const SESSIONS_OF_USER_MAX: usize = 4096;
/// The same of all users.
pub const SESSIONS_MAX: usize = 8192;
/// Connections of one user that may be passed on by TCP beside those; further ones are reset.
pub const REFUSALS_OF_USER_MAX: usize = 1024;
/// Bytes of buffers that connections of one user may have; those that want more are declined. As many
/// as the most connections have with buffers of the usual length.
pub const BUFFERS_OF_USER_MAX: usize = SESSIONS_OF_USER_MAX * 2 * RmbeSize::DEFAULT.bytes();
/// Connections to the data listener whose hand-over has not come, and hand-overs whose H has not come;
/// beyond, the oldest of the user who has most goes.
pub const WAITING_MAX: usize = 1024;
/// How long one half waits for the other. The library sends one right behind the other.
pub const OTHER_HALF_PATIENCE: Duration = Duration::from_secs(5);
/// Longest send buffer of a connection, 256 KB. What the peer has not acknowledged has to stay in
/// it, and that is at most 128 packets over a soft RNIC nearby, and some 250 KB at 100 Gbit/s with 20 µs
/// to and fro. A longer one only leaves the CPU's cache: with 1 MB a stream cost its sender a tenth
/// more.
pub const SEND_BUFFER_MAX: RmbeSize = RmbeSize::from_low_bits(4);
/// Bytes that move in one direction of a connection before others have their turn.
pub const TURN: usize = 256 << 10;
/// How long connections have their turns before adapters are looked at again. A peer sends again
/// what is not acknowledged for a few milliseconds.
pub const ROUND: Duration = Duration::from_millis(1);
/// Bytes that are read from a socket at once, and so the most that is kept of a direction that is passed on by TCP.
pub const CHUNK: usize = 64 << 10;
/// Messages taken from one line, and callers accepted, before others have their turn.
pub const AT_ONCE: usize = 16;
/// Callers that wait to be accepted.
pub const BACKLOG: i32 = 1024;
/// After the peer has left N, RDMA packets of it may still be under way: so long is waited for an
/// end by CDC.
pub const LEAVE_PATIENCE: Duration = Duration::from_secs(2);
/// The same if N was reset. A gateway of Sidestep does that only when it dies or gives the connection up, and nothing comes
/// any more; other peers have said their end by RDMA just before.
pub const RESET_PATIENCE: Duration = Duration::from_millis(25);
/// How long connections are given to end when the gateway ends.
pub const FAREWELL: Duration = Duration::from_millis(500);
/// How long a gateway that gives its place away waits for the next one to read.
pub const SUCCESSION_PATIENCE: Duration = Duration::from_secs(1);
/// How long a program that asks about TLS waits where its connection is not known yet, or a thread is away with it. Less than
/// the library waits.
pub const QUESTION_PATIENCE: Duration = Duration::from_millis(500);
/// How long connections of a link group send nothing, so that it comes to rest and can go to the next gateway: many
/// times as long as an answer takes. One that has not come to rest by then is tried again after the pause.
pub const FREEZE_PATIENCE: Duration = Duration::from_millis(100);
/// Between two tries, if all that are left have been tried.
pub const FREEZE_PAUSE: Duration = Duration::from_secs(2);
/// How long the next gateway may take to say whether it goes on with a link group.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of what a gateway leaves for the next one, as the kernel counts them: some thousand messages, of which a link group
/// takes two, and one more for each 126 connections. (Its buffers are in memory files.)
pub const STORE_LEN: usize = 8 << 20;
/// How long a link may be silent before it is asked whether there is still somebody: a peer that
/// has crashed says nothing.
pub const KEEPALIVE: Duration = Duration::from_secs(5);
/// How long N may be silent before a probe of TCP goes over it. Its bytes go by RDMA, so to firewalls and
/// address translation on its way it is idle, and some forget an idle connection after six minutes.
pub const N_KEEPALIVE: Duration = Duration::from_secs(120);
/// Servers, of each user, of which is known how SMC-R and TCP compare; others are not compared.
pub const RIVALS_MAX: usize = 1024;
/// How long new connections go by TCP, so that the two can be compared.
pub const TRIAL: Duration = Duration::from_secs(3);
/// How often the kernel is asked meanwhile what they have carried.
pub const TRIAL_LOOK: Duration = Duration::from_millis(250);
/// How often RDMA devices that were lost are looked for: the kernel does not tell of one that comes.
pub const SEARCH_INTERVAL: Duration = Duration::from_secs(1);
/// Handshakes of TLS of one user that go on at once; further connections of that user are reset. Each costs half
/// a millisecond of CPU.
pub const HANDSHAKES_OF_USER_MAX: usize = 256;
/// How long one may take.
pub const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// Threads that work on them.
pub const HANDSHAKE_THREADS_MAX: usize = 16;
/// Connections of which is remembered why they were not protected.
pub const REFUSALS_MAX: usize = 64;
/// Threads that wait for sockets which programs keep locked, each for those of another user; beyond, no socket that a
/// program has handed over is asked anything.
pub const ABSENT_MAX: usize = 128;
/// Connections of such a user that are handed over meanwhile and wait; further ones are reset.
pub const ARRIVALS_OF_USER_MAX: usize = 1024;
/// A user who keeps a thread for so long is a suspect … Longer than a thread waits for a CPU: what a suspect's sockets are asked
/// costs a thread each time, and a shorter hold costs others a fiftieth of their time at most.
pub const SUSPECT_AFTER: Duration = Duration::from_secs(1);
/// … for so long.
pub const SUSPECT_FOR: Duration = Duration::from_secs(60);
/// After so long the log is told.
pub const TELL_AFTER: Duration = Duration::from_secs(1);
/// Within which a connection that new rules of the IP filter are about has to be judged. What cannot be asked by then is reset.
pub const JUDGE_PATIENCE: Duration = Duration::from_secs(2);
