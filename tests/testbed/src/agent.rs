//! The agent, which runs commands for clients inside a guest: one TCP connection is one command.
//!
//! There is no access control: only the test reaches the network of a guest.

use std::io::{BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::frame::{Frame, Request, chunks, notice_a_dead_peer};

/// Time after the end of a command in which its output is still waited for: a daemon that it started keeps the output
/// open.
const OUTPUT_TIMEOUT: Duration = Duration::from_millis(200);
/// Pieces of standard input that wait for a command which does not read; beyond that a client that goes away is noticed
/// late.
const WAITING_INPUT: usize = 1024;

type Answers = Arc<Mutex<TcpStream>>;

/// Listens and serves until the program is ended.
pub fn serve(listen: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(listen).with_context(|| format!("listen on {listen}"))?;
    serve_on(&listener)
}

/// Serves on an open listener until the program is ended.
pub fn serve_on(listener: &TcpListener) -> Result<()> {
    loop {
        let (connection, _) = listener.accept().context("accept a connection")?;
        // The client of a broken connection detects it by the missing exit status.
        thread::spawn(move || serve_connection(connection).ok());
    }
}

/// Serves one connection: starts the command of its request, and passes on input, output and exit status.
fn serve_connection(connection: TcpStream) -> Result<()> {
    notice_a_dead_peer(&connection)?;
    let answers: Answers = Arc::new(Mutex::new(connection.try_clone()?));
    let mut requests = BufReader::new(connection);
    let child = Request::receive(&mut requests).context("read the request").and_then(|request| start(&request));
    let mut child = match child {
        Ok(child) => child,
        Err(e) => {
            Frame::Stderr(format!("agent: {e:#}\n").into_bytes()).send(&answers)?;
            // The shell's status for a command that could not be started.
            return Ok(Frame::Exit(127).send(&answers)?);
        }
    };
    let (input, inputs) = sync_channel(WAITING_INPUT);
    let stdin = child.stdin.take().context("no standard input")?;
    thread::spawn(move || feed(stdin, &inputs));

    let (finished, outputs) = channel::<()>();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr) = (stdout.context("no standard output")?, stderr.context("no standard error")?);
    forward(stdout, Frame::Stdout, Arc::clone(&answers), finished.clone());
    forward(stderr, Frame::Stderr, Arc::clone(&answers), finished);

    let status = wait_or_kill(&mut child, requests, input)?;
    wait_for_outputs(&outputs);
    Frame::Exit(exit_code(status)).send(&answers)?;
    // Ends the listening thread too. A daemon's later output has nowhere to go.
    let connection = answers.lock().unwrap_or_else(PoisonError::into_inner);
    connection.shutdown(std::net::Shutdown::Both).context("close the connection")
}

/// Waits until the command has ended. In the meantime a thread passes on its input, and kills its process group when
/// the connection ends.
fn wait_or_kill(
    child: &mut Child,
    mut requests: BufReader<TcpStream>,
    input: SyncSender<Vec<u8>>,
) -> Result<ExitStatus> {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no process id")?;
    // The holder of this lock may rely on the process group being the command's: it is reaped under the lock.
    let running = Arc::new(Mutex::new(true));
    {
        let running = Arc::clone(&running);
        thread::spawn(move || {
            read_input_until_end(&mut requests, &input);
            let running = running.lock().unwrap_or_else(PoisonError::into_inner);
            if *running {
                kill_process_group(group, Signal::KILL).ok();
            }
        });
    }
    waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).context("wait for the command")?;
    let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
    *running = false;
    child.wait().context("wait for the command")
}

/// Starts the command of a request in a separate process group.
fn start(request: &Request) -> Result<Child> {
    let (program, arguments) = request.argv.split_first().ok_or_else(|| anyhow!("no command given"))?;
    let mut command = Command::new(program);
    command.args(arguments).envs(&request.env).process_group(0);
    if let Some(directory) = &request.cwd {
        command.current_dir(directory);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().with_context(|| format!("start {program}"))
}

/// Writes input to the command until its end or that of the command.
fn feed(mut stdin: impl std::io::Write, inputs: &Receiver<Vec<u8>>) {
    for data in inputs {
        // A command may end without having read everything.
        if data.is_empty() || stdin.write_all(&data).is_err() {
            return;
        }
    }
}

/// Sends an output of the command to the client, in a separate thread. Continues to read without a client, or a daemon
/// would be ended by its own output.
fn forward(
    mut from: impl Read + Send + 'static,
    kind: fn(Vec<u8>) -> Frame,
    to: Answers,
    finished: std::sync::mpsc::Sender<()>,
) {
    thread::spawn(move || {
        let result = chunks(&mut from, |data| {
            kind(data).send(&to).ok();
            true
        });
        drop((result, finished));
    });
}

/// Waits until both outputs have ended, which is when both senders are dropped.
fn wait_for_outputs(outputs: &Receiver<()>) {
    let end = Instant::now() + OUTPUT_TIMEOUT;
    while !matches!(
        outputs.recv_timeout(end.saturating_duration_since(Instant::now())),
        Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout)
    ) {}
}

/// Passes on the input that a client sends until the connection ends.
fn read_input_until_end(requests: &mut impl Read, input: &SyncSender<Vec<u8>>) {
    while let Ok(Frame::Stdin(data)) = Frame::receive(requests) {
        // The input is discarded when the command has closed it; the end of the connection still matters.
        input.send(data).ok();
    }
}

/// Returns the exit status as a shell reports it: 128 + signal number for a command that a signal ended.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255)
}
