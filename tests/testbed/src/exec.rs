//! The client of the agent in a guest: runs a command there with standard input, and returns standard output, standard
//! error and exit status.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::frame::{Frame, chunks, notice_a_dead_peer};
use crate::netns::NetNs;

pub use crate::frame::Request;

/// Also on a machine that gives a guest no CPU for seconds.
const DIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of the attempts to connect to an agent that is starting.
const DIAL_INTERVAL: Duration = Duration::from_millis(30);

/// The address of an agent.
#[derive(Debug, Clone)]
pub struct Target {
    /// Network namespace to connect from; `None` is this process's own.
    pub netns: Option<NetNs>,
    /// Address and port of the agent.
    pub address: SocketAddr,
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Exit status: 128 + signal number when a signal ended it, 127 when it could not be started.
    pub status: i32,
    /// Standard output, complete.
    pub stdout: Vec<u8>,
    /// Standard error, complete.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Returns standard output as text, or an error with standard error when the command failed.
    pub fn success(self) -> Result<String> {
        if self.status != 0 {
            bail!("exit status {}: {}", self.status, String::from_utf8_lossy(&self.stderr).trim());
        }
        String::from_utf8(self.stdout).context("the output is not text")
    }
}

impl Target {
    /// Returns the address of an agent that is reached from inside a network namespace.
    pub fn inside(netns: &NetNs, address: SocketAddr) -> Self {
        Self { netns: Some(netns.clone()), address }
    }

    fn dial(&self, timeout: Duration) -> Result<TcpStream> {
        let connection = match &self.netns {
            Some(netns) => netns.connect(self.address, timeout)?,
            None => TcpStream::connect_timeout(&self.address, timeout),
        };
        connection.with_context(|| format!("connect to the agent at {}", self.address))
    }

    /// Waits until the agent takes connections.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        let end = Instant::now() + timeout;
        loop {
            match self.dial(Duration::from_millis(500)) {
                Ok(_) => return Ok(()),
                Err(e) if Instant::now() >= end => return Err(e.context(format!("no agent after {timeout:?}"))),
                Err(_) => sleep(DIAL_INTERVAL),
            }
        }
    }
}

/// Runs a command with this standard input, and returns its output and exit status. After `timeout` the command is
/// killed and the call fails.
pub fn run(target: &Target, request: &Request, stdin: &[u8], timeout: Duration) -> Result<Output> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let input = io::Cursor::new(stdin.to_vec());
    let status = stream(target, request, input, &mut stdout, &mut stderr, Some(timeout))?;
    Ok(Output { status, stdout, stderr })
}

/// Runs a command with its output passed on as it comes; returns the exit status.
pub fn stream(
    target: &Target,
    request: &Request,
    mut stdin: impl Read + Send + 'static,
    stdout: &mut dyn Write,
    stderr: &mut dyn Write,
    timeout: Option<Duration>,
) -> Result<i32> {
    let end = timeout.map(|timeout| Instant::now() + timeout);
    let command = || request.argv.join(" ");
    let connection = target.dial(timeout.unwrap_or(DIAL_TIMEOUT).min(DIAL_TIMEOUT))?;
    notice_a_dead_peer(&connection).context("set up the connection")?;
    request.send(&connection).with_context(|| format!("ask the agent for {}", command()))?;

    let sender = Arc::new(Mutex::new(connection.try_clone().context("share the connection")?));
    // Not waited for: it may be reading a terminal. It ends with the connection or with its input.
    thread::spawn(move || {
        let sent = chunks(&mut stdin, |data| Frame::Stdin(data).send(&sender).is_ok());
        drop((sent, Frame::Stdin(Vec::new()).send(&sender)));
    });

    let result = match receive_until_exit(&connection, stdout, stderr, end) {
        Ok(Some(status)) => Ok(status),
        Ok(None) => Err(anyhow!("{} did not end within {:?} and was killed", command(), timeout.unwrap_or_default())),
        Err(e) => Err(e.context(format!("lost the agent at {} while it ran {}", target.address, command()))),
    };
    // The agent kills the command when the connection goes.
    connection.shutdown(std::net::Shutdown::Both).ok();
    result
}

/// Passes on the output of a command until it has ended, and returns its exit status; `None` when it has not by `end`.
fn receive_until_exit(
    connection: &TcpStream,
    stdout: &mut dyn Write,
    stderr: &mut dyn Write,
    end: Option<Instant>,
) -> Result<Option<i32>> {
    let mut answers = BufReader::new(connection);
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
        connection.set_read_timeout(left).context("set the timeout")?;
        match Frame::receive(&mut answers) {
            Ok(Frame::Stdout(data)) => {
                stdout.write_all(&data).and_then(|()| stdout.flush()).context("pass on the output")?;
            }
            Ok(Frame::Stderr(data)) => {
                stderr.write_all(&data).and_then(|()| stderr.flush()).context("pass on the errors")?;
            }
            Ok(Frame::Exit(status)) => return Ok(Some(status)),
            Ok(Frame::Stdin(_)) => bail!("it is no agent"),
            // A timeout of the socket: the top of the loop returns then. The connection ends after it, so a truncated
            // frame does not matter.
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock) => {}
            Err(e) => return Err(e).context("receive from the agent"),
        }
    }
}

/// Runs a command with this program's own standard streams; its exit status becomes the program's.
pub fn command_line(target: &Target, request: &Request, timeout: Option<Duration>) -> Result<ExitCode> {
    let status = stream(target, request, io::stdin(), &mut io::stdout(), &mut io::stderr(), timeout)?;
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::process::Process;

    const LONG: Duration = Duration::from_mins(1);

    fn agent() -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || crate::agent::serve_on(&listener));
        Target { netns: None, address }
    }

    fn shell(script: &str) -> Request {
        Request::new(["sh", "-c", script])
    }

    #[test]
    fn output_errors_and_status_come_back_apart() {
        let output = run(&agent(), &shell("echo out; echo err >&2; exit 3"), b"", LONG).unwrap();
        assert_eq!(output, Output { status: 3, stdout: b"out\n".to_vec(), stderr: b"err\n".to_vec() });
    }

    #[test]
    fn input_of_any_size_and_bytes_reaches_the_command() {
        let input: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let output = run(&agent(), &Request::new(["cat"]), &input, LONG).unwrap();
        assert_eq!((output.status, output.stdout == input), (0, true));
    }

    #[test]
    fn a_command_gets_the_environment_and_directory_of_its_request() {
        let mut request = shell("echo $COLOUR; pwd");
        request.env.insert("COLOUR".into(), "green".into());
        request.cwd = Some("/proc".into());
        assert_eq!(run(&agent(), &request, b"", LONG).unwrap().success().unwrap(), "green\n/proc\n");
    }

    #[test]
    fn signal_is_reported_as_in_a_shell() {
        assert_eq!(run(&agent(), &shell("kill -9 $$"), b"", LONG).unwrap().status, 137);
    }

    #[test]
    fn a_program_that_does_not_exist_is_status_127_with_a_reason() {
        let output = run(&agent(), &Request::new(["/no/such/program"]), b"", LONG).unwrap();
        assert_eq!(output.status, 127);
        assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such/program"));
    }

    #[test]
    fn a_daemon_that_keeps_the_output_open_is_not_waited_for() {
        let begin = Instant::now();
        let output = run(&agent(), &shell("sleep 1000 & echo $!"), b"", LONG).unwrap().success().unwrap();
        assert!(begin.elapsed() < LONG / 2);
        Process::of(output.trim().parse().unwrap()).unwrap().stop(Duration::ZERO).unwrap();
    }

    #[test]
    fn a_command_that_takes_too_long_is_killed_with_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let pid = directory.path().join("pid");
        let script = format!("sleep 1000 & echo $! >{}; echo started; wait", pid.display());
        let error = run(&agent(), &shell(&script), b"", Duration::from_millis(500)).unwrap_err();
        assert!(error.to_string().contains("did not end within"), "{error:#}");
        let child = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
        if let Some(child) = Process::of(child) {
            assert!(child.wait(LONG));
        }
    }
}
