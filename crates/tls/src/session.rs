//! One connection: records of TLS on one side, the program's bytes on the other, and no I/O.
//!
//! ```text
//!   program                     Session                          peer
//!     write ────> encrypts ──────────────────> transmit ────> records
//!     read  <──── decrypts <── process <────── take     <──── records
//!     close ────> close_notify                 handle_end <── its TCP has ended
//! ```
//!
//! [`take`](Session::take) keeps records, and [`process`](Session::process) works on them: in the handshake that
//! costs half a millisecond of CPU, so the caller can have it done elsewhere.
//!
//! | What comes | What the program gets |
//! |---|---|
//! | records with its bytes | those bytes, in order |
//! | `close_notify` | its end |
//! | the end of TCP, without that | a [`Failure::Truncated`], or its end where the rule says so |
//! | an alert, or what was changed on the way | a [`Failure`], and no byte of that record or behind it |

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};

use rustls::{Connection, HandshakeKind, ProtocolVersion};

use crate::cipher::Cipher;
use crate::failure::Failure;
use crate::peer_certificate::PeerCertificate;
use crate::portions::Portions;
use crate::rule::UncleanEnd;

/// One end of a connection.
#[derive(Debug)]
pub struct Session {
    connection: Connection,
    unclean_end: UncleanEnd,
    portions: Portions,
    /// The peer's TCP has ended.
    has_ended: bool,
    /// rustls knows that.
    is_end_known: bool,
    /// What was taken out of rustls, and is to be sent: an alert.
    alert: Vec<u8>,
}

/// What [`Session::read`] has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// So many bytes.
    Bytes(usize),
    /// The peer sends no more.
    End,
    /// There are none for now.
    Nothing,
}

/// What a connection is protected by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Of TLS.
    pub version: Version,
    /// The suite.
    pub cipher: Cipher,
    /// The keys come from an earlier connection.
    pub is_resumed: bool,
}

/// The version that both ends have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

impl Version {
    /// As TLS writes it.
    #[must_use]
    pub const fn number(self) -> [u8; 2] {
        match self {
            Self::Tls12 => [3, 3],
            Self::Tls13 => [3, 4],
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls12 => "TLS 1.2",
            Self::Tls13 => "TLS 1.3",
        })
    }
}

impl Session {
    pub(crate) fn new(mut connection: Connection, unclean_end: UncleanEnd) -> Self {
        // The caller takes records before it gives more bytes.
        connection.set_buffer_limit(None);
        let (has_ended, is_end_known) = (false, false);
        let (portions, alert) = Default::default();
        Self { connection, unclean_end, portions, has_ended, is_end_known, alert }
    }

    /// Whether the handshake goes on; until it is over no byte of the program is taken.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// What protects it, once the handshake is over.
    #[must_use]
    pub fn protection(&self) -> Option<Protection> {
        if self.is_handshaking() {
            return None;
        }
        let version = match self.connection.protocol_version()? {
            ProtocolVersion::TLSv1_2 => Version::Tls12,
            _ => Version::Tls13,
        };
        let cipher = Cipher::of(self.connection.negotiated_cipher_suite()?.suite());
        let is_resumed = self.connection.handshake_kind() == Some(HandshakeKind::Resumed);
        Some(Protection { version, cipher, is_resumed })
    }

    /// What the peer has shown, once the handshake is over. `None`: it was not asked, or had none.
    #[must_use]
    pub fn peer_certificate(&self) -> Option<PeerCertificate> {
        if self.is_handshaking() {
            return None;
        }
        PeerCertificate::of(self.connection.peer_certificates()?.first()?)
    }

    /// Keeps records of the peer and says how many bytes it has taken: fewer than there are, or none, where it
    /// has to [`process`](Self::process) and the program has to [`read`](Self::read) first.
    pub fn take(&mut self, records: &[u8]) -> usize {
        // A flight of the handshake is worked on as a whole, by another thread.
        let most = if self.is_handshaking() { records.len() } else { self.portions.next(records) };
        let mut rest = &records[..most];
        while !rest.is_empty() && !self.has_ended {
            match self.connection.read_tls(&mut rest) {
                // Behind the peer's `close_notify` nothing counts.
                Ok(0) => return records.len(),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        let taken = most - rest.len();
        self.portions.pass(&records[..taken]);
        taken
    }

    /// Works on what was taken.
    ///
    /// # Errors
    ///
    /// It has failed. What is left to [`transmit`](Self::transmit) tells the peer.
    pub fn process(&mut self) -> Result<(), Failure> {
        let processed = self.connection.process_new_packets();
        if let Err(error) = processed {
            // The alert is known where it is not encrypted, and is the caller's to send.
            let mut records = Vec::new();
            self.transmit(&mut records);
            let failure = Failure::of(&error, &records);
            self.alert = records;
            return Err(failure);
        }
        match self.has_ended && self.is_handshaking() {
            true => Err(Failure::Unfinished),
            false => Ok(()),
        }
    }

    /// The peer's TCP has ended, behind all that was taken.
    pub fn handle_end(&mut self) {
        self.has_ended = true;
    }

    /// Gives the program what the peer has sent.
    ///
    /// # Errors
    ///
    /// [`Failure::Truncated`].
    pub fn read(&mut self, room: &mut [u8]) -> Result<Got, Failure> {
        loop {
            match self.connection.reader().read(room) {
                Ok(0) => return Ok(Got::End),
                Ok(count) => return Ok(Got::Bytes(count)),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
                // rustls takes no end before what came before it was read.
                Err(_) if self.has_ended && !self.is_end_known => {
                    self.is_end_known = self.connection.read_tls(&mut io::empty()).is_ok();
                }
                Err(_) => return Ok(Got::Nothing),
            }
        }
        match self.unclean_end {
            UncleanEnd::Reset => Err(Failure::Truncated),
            UncleanEnd::Eof => Ok(Got::End),
        }
    }

    /// Takes bytes of the program, all of them. Before the end of the handshake it takes none.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        match self.is_handshaking() {
            true => 0,
            // It writes to memory without a limit.
            false => self.connection.writer().write(bytes).unwrap_or(0),
        }
    }

    /// The program sends no more.
    pub fn close(&mut self) {
        self.connection.send_close_notify();
    }

    /// Puts what the peer is to get behind what is there already.
    pub fn transmit(&mut self, records: &mut Vec<u8>) {
        records.append(&mut self.alert);
        while self.connection.wants_write() {
            // A vector takes all.
            if self.connection.write_tls(records).is_err() {
                break;
            }
        }
    }
}
