//! The protocol between the agent and its client: one JSON line with the request, then frames of one byte kind, four
//! bytes length (big endian) and data.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Error, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use rustix::net::sockopt;
use serde::{Deserialize, Serialize};

/// The most data in one frame, in bytes.
const LIMIT: usize = 1 << 16;
/// The longest request line, in bytes. Arguments and environment together cannot be longer on Linux either.
const REQUEST_LIMIT: u64 = 4 << 20;

/// A command for the agent to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Program (looked up in the agent's PATH) and arguments.
    pub argv: Vec<String>,
    /// Environment, in addition to the agent's own.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory; the agent's own when not given.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
}

impl Request {
    /// Creates a request with this program and these arguments.
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self { argv: argv.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    pub(crate) fn send(&self, mut to: impl Write) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        to.write_all(&line)
    }

    pub(crate) fn receive(from: &mut impl BufRead) -> io::Result<Self> {
        let mut line = Vec::new();
        from.by_ref().take(REQUEST_LIMIT).read_until(b'\n', &mut line)?;
        Ok(serde_json::from_slice(&line)?)
    }
}

/// A message after the request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// Standard input; empty means its end.
    Stdin(Vec<u8>),
    /// Standard output.
    Stdout(Vec<u8>),
    /// Standard error.
    Stderr(Vec<u8>),
    /// The last frame: exit status, 128 + signal number for a command that a signal ended.
    Exit(i32),
}

impl Frame {
    pub(crate) fn send(&self, to: &Mutex<impl Write>) -> io::Result<()> {
        let exit;
        let (kind, data) = match self {
            Self::Stdin(data) => (0, data.as_slice()),
            Self::Stdout(data) => (1, data.as_slice()),
            Self::Stderr(data) => (2, data.as_slice()),
            Self::Exit(status) => {
                exit = status.to_be_bytes();
                (3, exit.as_slice())
            }
        };
        let length = u32::try_from(data.len()).map_err(|_| Error::new(ErrorKind::InvalidInput, "frame too long"))?;
        let mut bytes = Vec::with_capacity(5 + data.len());
        bytes.push(kind);
        bytes.extend(length.to_be_bytes());
        bytes.extend(data);
        to.lock().map_err(|_| Error::other("another writer panicked"))?.write_all(&bytes)
    }

    pub(crate) fn receive(from: &mut impl Read) -> io::Result<Self> {
        let (mut kind, mut length) = ([0; 1], [0; 4]);
        from.read_exact(&mut kind)?;
        from.read_exact(&mut length)?;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > LIMIT {
            return Err(Error::new(ErrorKind::InvalidData, "frame too long"));
        }
        let mut data = vec![0; length];
        from.read_exact(&mut data)?;
        match kind {
            [0] => Ok(Self::Stdin(data)),
            [1] => Ok(Self::Stdout(data)),
            [2] => Ok(Self::Stderr(data)),
            [3] => match data.try_into() {
                Ok(status) => Ok(Self::Exit(i32::from_be_bytes(status))),
                Err(_) => Err(Error::new(ErrorKind::InvalidData, "exit status of another length")),
            },
            [kind] => Err(Error::new(ErrorKind::InvalidData, format!("unknown kind of frame {kind}"))),
        }
    }
}

/// Reads data in chunks of at most one frame, until the end or until `take` returns `false`.
pub(crate) fn chunks(from: &mut impl Read, mut take: impl FnMut(Vec<u8>) -> bool) -> io::Result<()> {
    let mut buffer = vec![0; LIMIT];
    loop {
        let length = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        if !take(buffer.get(..length).unwrap_or_default().to_vec()) {
            return Ok(());
        }
    }
}

/// Sets timeouts of a connection, because a guest that dies closes none. With the kernel's own settings the peer would
/// wait for minutes (data on its way) or hours (none); with these it gets an error after about fifteen seconds. Guests
/// that lack CPU time were silent for more than seven seconds, with four guests on two CPUs, and never for fifteen.
pub(crate) fn notice_a_dead_peer(connection: &TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    sockopt::set_socket_keepalive(connection, true)?;
    sockopt::set_tcp_keepidle(connection, Duration::from_secs(2))?;
    sockopt::set_tcp_keepintvl(connection, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(connection, 13)?;
    sockopt::set_tcp_user_timeout(connection, 15_000)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_comes_back_as_it_was_sent() {
        let frames =
            [Frame::Stdin(vec![]), Frame::Stdout(vec![0, 255, b'\n']), Frame::Stderr(vec![1; LIMIT]), Frame::Exit(-3)];
        let bytes = Mutex::new(Vec::new());
        for frame in &frames {
            frame.send(&bytes).unwrap();
        }
        let bytes = bytes.into_inner().unwrap();
        let mut from = bytes.as_slice();
        for frame in frames {
            assert_eq!(Frame::receive(&mut from).unwrap(), frame);
        }
        assert_eq!(Frame::receive(&mut from).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_frame_that_would_fill_the_memory_is_refused() {
        let bytes = [1, 255, 255, 255, 255, 0];
        assert_eq!(Frame::receive(&mut bytes.as_slice()).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
