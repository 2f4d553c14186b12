//! The control socket of a User-Mode Linux (the kernel's arch/um/drivers/mconsole.h): datagrams with a command,
//! answered with text.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// `MCONSOLE_MAGIC`
const MAGIC: u32 = 0xcafe_babe;
/// `MCONSOLE_VERSION`
const VERSION: u32 = 2;
/// `MCONSOLE_MAX_DATA`
const MAX_DATA: usize = 512;

/// A connection to the control socket of a guest.
#[derive(Debug)]
pub(super) struct Mconsole {
    socket: UnixDatagram,
    own: PathBuf,
}

impl Drop for Mconsole {
    fn drop(&mut self) {
        fs::remove_file(&self.own).ok();
    }
}

impl Mconsole {
    /// Connects to the control socket at `path`.
    pub(super) fn connect(path: &Path) -> Result<Self> {
        // The kernel answers to the sender's address, so there must be one: a file, because an abstract name would not
        // be found by a guest that runs in another network namespace.
        let own = path.with_file_name(format!("asker-{}-{:?}", std::process::id(), std::thread::current().id()));
        let socket = UnixDatagram::bind(&own).with_context(|| format!("bind the socket {}", own.display()))?;
        let this = Self { socket, own };
        let socket = &this.socket;
        socket.set_read_timeout(Some(Duration::from_secs(10))).context("set a timeout")?;
        socket.connect(path).with_context(|| format!("connect to the guest's control socket {}", path.display()))?;
        Ok(this)
    }

    /// Sends one command and returns the answer's text.
    pub(super) fn request(&self, command: &str) -> Result<String> {
        let Some(padding) = (MAX_DATA - 1).checked_sub(command.len()) else {
            bail!("{command:?} is too long for the guest's control socket");
        };
        let length = u32::try_from(command.len()).context("command too long")?;
        let mut datagram = Vec::with_capacity(12 + MAX_DATA);
        for number in [MAGIC, VERSION, length] {
            datagram.extend(number.to_ne_bytes());
        }
        datagram.extend(command.as_bytes());
        datagram.resize(datagram.len() + padding + 1, 0);
        self.socket.send(&datagram).with_context(|| format!("send {command:?} to the guest"))?;

        let mut text = String::new();
        loop {
            let mut answer = [0; 12 + MAX_DATA];
            let length = match self.socket.recv(&mut answer) {
                Ok(length) => length,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    bail!("the guest does not answer {command:?}: does it hang?")
                }
                Err(e) => return Err(e).with_context(|| format!("answer to {command:?}")),
            };
            let Some((failed, more, data)) = parse_answer(answer.get(..length).unwrap_or_default()) else {
                bail!("the guest's answer to {command:?} is too short");
            };
            text.push_str(&String::from_utf8_lossy(data));
            match (failed, more) {
                (true, false) => bail!("the guest refuses {command:?}: {}", text.trim()),
                (false, false) => return Ok(text),
                (_, true) => {}
            }
        }
    }
}

/// Parses a `struct mconsole_reply`: error, more to come, length, data that ends with a zero byte.
fn parse_answer(answer: &[u8]) -> Option<(bool, bool, &[u8])> {
    let (failed, rest) = answer.split_first_chunk::<4>()?;
    let (more, rest) = rest.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_ne_bytes(*length)).ok()?.min(rest.len());
    let data = rest.get(..length)?;
    let text = data.split(|byte| *byte == 0).next()?;
    Some((u32::from_ne_bytes(*failed) != 0, u32::from_ne_bytes(*more) != 0, text))
}
