//! The supervising thread of a guest: start, output, end.

use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::thread::{self, sleep};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::uml::{Boot, Tap, assignment};
use super::{CpuLock, Finished, GuestKind, Output, POLL_INTERVAL, Shared, lock};
use crate::assets::Kernel;
use crate::frame::chunks;
use crate::interrupt;

/// Script that opens descriptors beyond the first three, which are where the guest's consoles lead: 4 the command's
/// standard error, 5 the messages. The kernel's own complaints must not mix with the command's. It holds each file of
/// the machine open that is in use in the guest, and some more.
const REDIRECT: &str = r#"ulimit -n "$(ulimit -Hn)"; exec 4>&2 5>"$1" 2>"$2"; shift 2; exec "$@""#;

/// Reason of a guest's end.
enum End {
    Exited,
    TimedOut,
    Interrupted,
    Unwanted,
}

/// Boots a guest and waits until it has ended or is to be killed. `layer` is a directory with systemd, which is laid
/// over the machine's files.
pub(super) fn supervise(shared: &Shared, kernel: &Kernel, layer: Option<&Path>) -> Result<Finished> {
    let cpu_lock = CpuLock::new(shared.spec.cpu)?;
    let deadline = Instant::now() + shared.spec.timeout;
    let mut command = match shared.spec.kind {
        GuestKind::Uml => uml(shared, kernel, layer, cpu_lock.cpu),
    };
    let mut child = command.spawn().context("start the guest (packages util-linux and bash)")?;
    let end = thread::scope(|scope| {
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        scope.spawn(move || copy(stdout, shared.spec.output, &shared.stdout, io::stdout()));
        scope.spawn(move || copy(stderr, shared.spec.output, &shared.stderr, io::stderr()));
        wait_for_end(shared, &mut child, deadline)
    })?;
    let reason = match end {
        End::Exited => match shared.scratch.status() {
            Some(status) => return Ok(finish(shared, status)),
            None => "the guest died before its command had ended".to_owned(),
        },
        End::TimedOut => format!("the guest did not end within {:?} and was killed", shared.spec.timeout),
        End::Interrupted => "interrupted: the guest was killed".to_owned(),
        End::Unwanted => "the guest was killed on request".to_owned(),
    };
    let [stdout, stderr] =
        [&shared.stdout, &shared.stderr].map(|kept| String::from_utf8_lossy(&lock(kept)).into_owned());
    bail!("{reason}; its last messages:\n{}\n{stdout}{stderr}", shared.scratch.last_messages())
}

fn finish(shared: &Shared, status: i32) -> Finished {
    Finished {
        status,
        stdout: std::mem::take(&mut lock(&shared.stdout)),
        stderr: std::mem::take(&mut lock(&shared.stderr)),
        kernel_messages: shared.scratch.console_text(),
    }
}

/// Waits until the guest has ended, or kills it. No process of it runs after this.
fn wait_for_end(shared: &Shared, child: &mut Child, deadline: Instant) -> Result<End> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no process id")?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let end = loop {
        match waitid(WaitId::Pid(pid), options) {
            Ok(Some(_)) => break Ok(End::Exited),
            Err(e) => break Err(e).context("wait for the guest"),
            Ok(None) if shared.unwanted.load(Ordering::Acquire) => break Ok(End::Unwanted),
            Ok(None) if interrupt::is_requested() => break Ok(End::Interrupted),
            Ok(None) if Instant::now() >= deadline => break Ok(End::TimedOut),
            Ok(None) => sleep(POLL_INTERVAL),
        }
    };
    // Before the leader is reaped, while the group is certainly ours: the processes of the guest's processes are in it
    // too.
    kill_process_group(pid, Signal::KILL).ok();
    child.wait().context("wait for the guest")?;
    end
}

/// Returns the command that boots a guest of User-Mode Linux.
fn uml(shared: &Shared, kernel: &Kernel, layer: Option<&Path>, cpu: usize) -> Command {
    let (spec, scratch) = (&shared.spec, &shared.scratch);
    let init = scratch.init();
    let disks: Vec<_> = (0..spec.disks.len()).map(|index| scratch.disk(index)).collect();
    let mut arguments = vec![assignment("SHARE", &scratch.share())];
    arguments
        .push(spec.out_dir.as_ref().map_or_else(|| "OUT_DIR=".into(), |directory| assignment("OUT_DIR", directory)));
    arguments.push(assignment("SYSTEMD", layer.unwrap_or_else(|| Path::new(""))));
    let (address, gateway) = match &spec.network {
        Some(network) => {
            (network.address.as_str(), network.gateway.map(|gateway| gateway.to_string()).unwrap_or_default())
        }
        None => ("", String::new()),
    };
    arguments.push(format!("ADDRESS={address}").into());
    arguments.push(format!("GATEWAY={gateway}").into());
    let consoles = "con=null con0=null,fd:1 ssl=null ssl0=null,fd:4 ssl1=null,fd:5 console=ttyS1 quiet loglevel=5";
    arguments.extend(consoles.split(' ').map(Into::into));
    let boot = Boot {
        kernel,
        memory: spec.memory,
        cpu,
        init: &init,
        control: &scratch.control(),
        memory_dir: scratch.memory(),
        disks: &disks,
        shared_disks: &spec.shared_disks,
        tap: spec.network.as_ref().map(|network| Tap { netns: &network.netns, name: &network.tap }),
        arguments,
    }
    .command();
    // Should this program be killed, the kernel sees to the guest's end. The signal comes when the thread that started
    // it ends.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "sh", "-c", REDIRECT, "sh"]).arg(scratch.console()).arg(scratch.errors());
    command.arg(boot.get_program()).args(boot.get_args());
    // A separate process group: this program handles Ctrl-C at the terminal, and can end all processes of the guest at
    // once.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Copies an output of the command to where it belongs.
fn copy(from: Option<impl Read>, output: Output, kept: &Mutex<Vec<u8>>, mut own: impl io::Write) {
    let Some(mut from) = from else { return };
    // Continues to read when the output cannot be written, or the guest would block forever.
    let copied = chunks(&mut from, |data| {
        match output {
            Output::Keep => lock(kept).extend(data),
            Output::PassOn => drop(own.write_all(&data).and_then(|()| own.flush())),
        }
        true
    });
    drop(copied);
}
