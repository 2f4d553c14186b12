//! Runs commands for the other side of a TCP connection: inside a guest, one connection is one command.
//!
//! There is no access control: the agent belongs into a guest whose network reaches the test alone.

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

/// A daemon that the command started keeps the command's output open. What still comes so long after the command's own
/// end is not waited for.
const AFTERWARDS: Duration = Duration::from_millis(200);
/// Pieces of standard input that wait for a command which does not read; beyond that a client that goes away is noticed
/// late.
const WAITING_INPUT: usize = 1024;

type Answers = Arc<Mutex<TcpStream>>;

/// Listens and serves until the program is ended.
pub fn serve(listen: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(listen).with_context(|| format!("listen on {listen}"))?;
    serve_on(&listener)
}

/// The same with a listener that is there already.
pub fn serve_on(listener: &TcpListener) -> Result<()> {
    loop {
        let (connection, _) = listener.accept().context("accept a connection")?;
        // A connection that breaks is its client's problem, who is told by the missing exit status.
        thread::spawn(move || converse(connection).ok());
    }
}

fn converse(connection: TcpStream) -> Result<()> {
    notice_a_dead_peer(&connection)?;
    let answers: Answers = Arc::new(Mutex::new(connection.try_clone()?));
    let mut questions = BufReader::new(connection);
    let child = Request::receive(&mut questions).context("read the request").and_then(|request| start(&request));
    let mut child = match child {
        Ok(child) => child,
        Err(e) => {
            Frame::Stderr(format!("agent: {e:#}\n").into_bytes()).send(&answers)?;
            // The shell's status for a command that could not be started.
            return Ok(Frame::Exit(127).send(&answers)?);
        }
    };
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no process id")?;
    let (input, inputs) = sync_channel(WAITING_INPUT);
    let stdin = child.stdin.take().context("no standard input")?;
    thread::spawn(move || feed(stdin, &inputs));

    let (finished, outputs) = channel::<()>();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr) = (stdout.context("no standard output")?, stderr.context("no standard error")?);
    forward(stdout, Frame::Stdout, Arc::clone(&answers), finished.clone());
    forward(stderr, Frame::Stderr, Arc::clone(&answers), finished);

    // Whoever holds this lock may rely on the process group being the command's: it is reaped under the lock.
    let running = Arc::new(Mutex::new(true));
    {
        let running = Arc::clone(&running);
        thread::spawn(move || {
            listen_until_gone(&mut questions, &input);
            let running = running.lock().unwrap_or_else(PoisonError::into_inner);
            if *running {
                kill_process_group(group, Signal::KILL).ok();
            }
        });
    }
    waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).context("wait for the command")?;
    let status = {
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        *running = false;
        child.wait().context("wait for the command")?
    };
    wait_for_outputs(&outputs);
    Frame::Exit(exit_code(status)).send(&answers)?;
    // Ends the listening thread too. A daemon's later output has nowhere to go.
    let connection = answers.lock().unwrap_or_else(PoisonError::into_inner);
    connection.shutdown(std::net::Shutdown::Both).context("close the connection")
}

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

fn feed(mut stdin: impl std::io::Write, inputs: &Receiver<Vec<u8>>) {
    for data in inputs {
        // A command may end without having read everything.
        if data.is_empty() || stdin.write_all(&data).is_err() {
            return;
        }
    }
}

/// Sends on what the command writes. Goes on reading when nobody listens any more, or a daemon would be ended by its
/// own output.
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

/// Both senders are dropped when both outputs have ended.
fn wait_for_outputs(outputs: &Receiver<()>) {
    let end = Instant::now() + AFTERWARDS;
    while !matches!(
        outputs.recv_timeout(end.saturating_duration_since(Instant::now())),
        Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout)
    ) {}
}

fn listen_until_gone(questions: &mut impl Read, input: &SyncSender<Vec<u8>>) {
    while let Ok(Frame::Stdin(data)) = Frame::receive(questions) {
        // Nobody takes it when the command has closed its input; the end of the connection still matters.
        input.send(data).ok();
    }
}

/// As a shell would say it.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255)
}
