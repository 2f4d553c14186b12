//! The runner that starts real LVM processes.

mod container;
mod freeze;
mod orphans;
mod shell;
mod shell_retry;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio::time::timeout;

pub use self::container::Placement;
use self::shell::{IdleShells, ShellResult, Timeouts};
use self::shell_retry::ShellRetry;
use crate::{CommandRunner, Effect, Freeze, Host, LvmCommand, Output, RunError, SystemDevices};

/// The environment of LVM, and nothing else: what LVM does must not depend on who started us. `LC_ALL` keeps the
/// messages English, which [`Error`](crate::Error) relies on.
const ENVIRONMENT: &[(&str, &str)] = &[("LC_ALL", "C"), ("PATH", SEARCH_PATH), ("LVM_SUPPRESS_FD_WARNINGS", "1")];
/// Variables for LVM and libdevmapper that LVM gets from the environment of the caller: where its configuration is, and
/// what its surroundings lack (lvm(8)). No other of theirs reaches LVM, because it may change what LVM does or prints.
const PASSED_ON: [&str; 4] = ["DM_DEV_DIR", "DM_DISABLE_UDEV", "LVM_SUPPRESS_SYSLOG", "LVM_SYSTEM_DIR"];
/// Directories in which programs without a path are searched.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Reports take milliseconds; this much only passes when devices hang.
const READ_DEADLINE: Duration = Duration::from_mins(1);
/// Changes may discard or wipe whole devices.
const CHANGE_DEADLINE: Duration = Duration::from_mins(10);
/// Timeout after which an idle shell of LVM ends: volumes often come several at a time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// LVM ends at a safe point on SIGTERM. A report that ignores it that long is killed. A change never is, because LVM
/// that is killed in the middle of a change of a thin pool leaves a pool that accepts no further changes.
const GRACE: Duration = Duration::from_secs(10);
/// Timeout for the first answer of a new shell.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of a script for a shell: half of what a pipe holds. All of it is in the pipe at once, so that a shell
/// whose lvmd was killed finds whole commands there, never the beginning of one.
const MAX_SCRIPT_BYTES: usize = 32 << 10;
/// Starts LVM so that it outlives lvmd: the pipes to a dead lvmd must not kill it (std resets SIGPIPE to its default
/// for child processes), nor must the end of the container, whose control group it leaves if the first argument names
/// another. It inherits the OOM protection of `systemd/lvmd.service`, because a killed LVM does more harm than any
/// other killed program.
const DETACHED: &str = r#"trap '' PIPE
group=$1; shift
[ -z "$group" ] || { echo 0 >"$group"; echo -900 >/proc/self/oom_score_adj; } 2>/dev/null
exec "$@""#;
const SHELL: &str = "/bin/sh";
/// The control group for LVM.
const CONTROL_GROUP: &str = "topolvm-lvm";

/// A prefix that cannot start anything.
#[derive(Debug, thiserror::Error)]
pub enum PrefixError {
    /// It contains no argument.
    #[error("lvm-command-prefix is empty; remove it to use the default, or end it with the path of the lvm program")]
    Empty,
    /// Its program is in none of the usual directories.
    #[error("program {0:?} not found in {SEARCH_PATH}; write its absolute path")]
    NotFound(String),
}

/// Starts LVM as a child process.
///
/// The runner passes several commands to LVM's own shell on its standard input, so that they cost one process at most:
/// the shell stays for some seconds and serves the next caller. Where LVM has no shell, or the shell cannot express a
/// command, each command gets a process. LVM never waits for an answer. Each process is in its own process group, so a
/// signal at the terminal does not reach it, and stopping it also stops the `lvm` that `nsenter` started for it.
/// Commands that change something outlive the death of this process.
#[derive(Clone, Debug)]
pub struct SystemRunner {
    program: PathBuf,
    prefix: Vec<String>,
    read_deadline: Duration,
    change_deadline: Duration,
    grace: Duration,
    handshake: Duration,
    shell_retry: Arc<ShellRetry>,
    owner: String,
    placement: Placement,
    environment: Vec<(String, OsString)>,
    shells: Arc<IdleShells>,
    devices: Arc<SystemDevices>,
}

impl SystemRunner {
    /// Arguments before the LVM sub-command unless configured otherwise: the `lvm` of the host, in the host's
    /// namespaces, also if called from a container (with hostPID). On the host itself `nsenter` changes nothing.
    pub const DEFAULT_PREFIX: &[&str] = &["/usr/bin/nsenter", "-m", "-u", "-i", "-n", "-p", "-t", "1", "/sbin/lvm"];

    /// Returns a runner with this prefix, which ends with the `lvm` program. The path of its first program is resolved
    /// once, now.
    pub fn new<S: AsRef<str>>(prefix: &[S]) -> Result<Self, PrefixError> {
        let mut words = prefix.iter().map(|word| word.as_ref().to_owned());
        let program = words.next().filter(|program| !program.is_empty()).ok_or(PrefixError::Empty)?;
        let devices = Arc::new(SystemDevices::new(root_of_devices(&program)));
        Ok(Self {
            program: resolve(&program).ok_or(PrefixError::NotFound(program))?,
            prefix: words.collect(),
            handshake: HANDSHAKE_TIMEOUT,
            shell_retry: Arc::default(),
            owner: String::new(),
            placement: Placement::Host,
            environment: Vec::new(),
            shells: IdleShells::new(IDLE_TIMEOUT),
            devices,
            read_deadline: READ_DEADLINE,
            change_deadline: CHANGE_DEADLINE,
            grace: GRACE,
        })
    }

    /// Returns the runner with other deadlines for commands that read and commands that change.
    #[must_use]
    pub fn with_deadlines(self, read: Duration, change: Duration) -> Self {
        Self { read_deadline: read, change_deadline: change, ..self }
    }

    /// Returns the runner that passes LVM those of these variables that LVM may have. Logs the others that are meant
    /// for LVM.
    #[must_use]
    pub fn with_environment(self, variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut environment = Vec::new();
        for (name, value) in variables {
            let Ok(name) = name.into_string() else { continue };
            if PASSED_ON.contains(&name.as_str()) {
                environment.push((name, value));
            } else if ["LVM_", "DM_"].iter().any(|prefix| name.starts_with(prefix)) {
                let passed_on = PASSED_ON.join(", ");
                tracing::warn!(
                    "the environment variable {name} has no effect: lvmd passes on {passed_on} to LVM; `env \
                     {name}=VALUE` before the lvm program in lvm-command-prefix passes on any other"
                );
            }
        }
        Self { environment, ..self }
    }

    /// Returns the runner for an lvmd of this name, such as the path of its socket, by which it finds again what an
    /// earlier process of the same name left running.
    #[must_use]
    pub fn with_owner(self, owner: impl Into<String>) -> Self {
        Self { owner: owner.into(), ..self }
    }

    /// Returns the runner that, in a container, starts LVM outside of the container's control group, so that LVM is not
    /// killed in the middle of a change together with the container. Logs if that is not possible.
    #[must_use]
    pub fn outliving_container(self) -> Self {
        let placement = Placement::find(CONTROL_GROUP);
        if let Placement::Inside(why) = &placement {
            tracing::warn!(
                %why,
                "LVM commands are killed together with this container, which can leave a thin pool that needs manual \
                 repair; set a long terminationGracePeriodSeconds on the pod and remove its liveness probe"
            );
        }
        Self { placement, ..self }
    }

    fn spawn(&self, args: &[String], stdin: Stdio) -> Result<Child, RunError> {
        let words: Vec<_> = self.prefix.iter().chain(args).cloned().collect();
        self.spawn_detached(&self.program, &words, stdin)
    }

    /// Starts a program as LVM is started: it outlives this process and its container.
    fn spawn_detached(&self, program: &Path, args: &[String], stdin: Stdio) -> Result<Child, RunError> {
        let failed = |source| RunError::Spawn { program: program.display().to_string(), source };
        // The shell would report it too, but as LVM's answer
        std::fs::metadata(program).map_err(failed)?;
        let group = match &self.placement {
            Placement::Outside(group) => group.as_os_str(),
            Placement::Host | Placement::Inside(_) => OsStr::new(""),
        };
        let mut command = command(SHELL);
        command.args(["-c", DETACHED, "lvm"]).arg(group).arg(program);
        command
            .args(args)
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .envs(ENVIRONMENT.iter().copied())
            .env(orphans::OWNER, &self.owner)
            .current_dir("/")
            .process_group(0)
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)
    }

    async fn run_all(&self, commands: &[LvmCommand], effect: Effect) -> Result<Output, RunError> {
        if let [command] = commands {
            return self.run_one(command, effect).await;
        }
        if self.shell_retry.is_due()
            && let Some(script) = script(commands)
        {
            let timeouts = Timeouts { deadline: self.deadline(effect), handshake: self.handshake, grace: self.grace };
            let start = || self.spawn(&[], Stdio::piped());
            match self.shells.run(&script, effect, timeouts, start).await? {
                ShellResult::Done(output) => {
                    self.shell_retry.succeeded();
                    return Ok(output);
                }
                ShellResult::UnusableShell(why) => self.shell_retry.failed(why),
            }
        }
        self.run_each(commands, effect).await
    }

    async fn run_one(&self, command: &LvmCommand, effect: Effect) -> Result<Output, RunError> {
        let child = self.spawn(&command.process_words(), Stdio::null())?;
        let group = ProcessGroup::of(&child, effect == Effect::Read);
        wait_for_end(child, group, self.deadline(effect), self.grace).await
    }

    /// Stops at the first change that fails. Reports run in any case: the caller needs the present state.
    async fn run_each(&self, commands: &[LvmCommand], effect: Effect) -> Result<Output, RunError> {
        let mut all = Output { code: Some(0), ..Output::default() };
        for command in commands {
            if all.code != Some(0) && command.effect() == Effect::Change {
                continue;
            }
            let output = self.run_one(command, effect).await?;
            all.stdout.extend(output.stdout);
            all.stderr.push_str(&output.stderr);
            all.processes = all.processes.saturating_add(output.processes);
            if all.code == Some(0) {
                all.code = output.code;
            }
        }
        Ok(all)
    }

    fn deadline(&self, effect: Effect) -> Duration {
        match effect {
            Effect::Read => self.read_deadline,
            Effect::Change => self.change_deadline,
        }
    }
}

/// Runs a program that ends at once, and returns whether it succeeded. Its output goes nowhere.
#[expect(clippy::disallowed_methods, reason = "this is the CommandRunner that all other code must use")]
fn command_to_end(program: &str, args: &[&OsStr]) -> io::Result<bool> {
    let mut command = std::process::Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.status()?.success())
}

/// Returns the directory of the devices that `lvm` sees: in another mount namespace, behind the first process, if
/// `nsenter` leads there.
fn root_of_devices(program: &str) -> &'static str {
    let first_process = "/proc/1/root";
    let enters = Path::new(program).file_name().is_some_and(|name| name == "nsenter");
    if enters && Path::new(first_process).join("dev").is_dir() { first_process } else { "/" }
}

/// Returns the commands as lines for LVM's shell, if the shell can express all of them.
fn script(commands: &[LvmCommand]) -> Option<String> {
    let mut script = String::new();
    for command in commands {
        script.push_str(&command.shell_line()?);
        script.push('\n');
    }
    (script.len() <= MAX_SCRIPT_BYTES).then_some(script)
}

#[expect(clippy::disallowed_methods, reason = "this is the CommandRunner that all other code must use")]
fn command(program: &str) -> Command {
    Command::new(program)
}

impl CommandRunner for SystemRunner {
    async fn run(&self, commands: &[LvmCommand]) -> Result<Output, RunError> {
        let changes = commands.iter().any(|command| command.effect() == Effect::Change);
        if !changes {
            return self.run_all(commands, Effect::Read).await;
        }
        let (runner, commands) = (self.clone(), commands.to_vec());
        let ending = async move { runner.run_all(&commands, Effect::Change).await };
        #[expect(clippy::disallowed_methods, reason = "the output must be read even if the caller is dropped")]
        let ending = tokio::spawn(ending);
        ending.await.unwrap_or_else(|error| Err(RunError::Read(io::Error::other(error))))
    }

    async fn run_program(&self, program: &'static str, args: &[String]) -> Result<Output, RunError> {
        let not_found = || RunError::Spawn { program: program.to_owned(), source: io::ErrorKind::NotFound.into() };
        // The program takes the place of LVM in the prefix
        let (first, rest) = match self.prefix.split_last() {
            Some((_lvm, between)) => (self.program.clone(), [between, &[program.to_owned()]].concat()),
            None => (resolve(program).ok_or_else(not_found)?, Vec::new()),
        };
        let mut command = command(&first.to_string_lossy());
        command.args(rest).args(args).env_clear().envs(ENVIRONMENT.iter().copied()).current_dir("/").process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawned = command.spawn();
        let child = spawned.map_err(|source| RunError::Spawn { program: program.to_owned(), source })?;
        let group = ProcessGroup::of(&child, true);
        wait_for_end(child, group, self.read_deadline, self.grace).await
    }

    async fn freeze(&self, devices: &[String], limit: Duration) -> Result<Result<Freeze, Output>, RunError> {
        freeze::freeze(self, devices, limit).await
    }

    async fn wait_for_orphans(&self, begin: impl FnOnce(usize) + Send) {
        orphans::wait(&self.owner, self.change_deadline, self.grace, begin).await;
    }
}

impl Host for SystemRunner {
    type Devices = SystemDevices;

    fn devices(&self) -> Arc<SystemDevices> {
        Arc::clone(&self.devices)
    }

    fn root(&self) -> PathBuf {
        self.devices.root().to_owned()
    }
}

/// Waits for the end of the process, or stops it at the deadline. Reads both pipes at the same time: LVM would block on
/// a full pipe, and be killed by writing to a closed one.
async fn wait_for_end(
    child: Child,
    mut group: ProcessGroup,
    deadline: Duration,
    grace: Duration,
) -> Result<Output, RunError> {
    let ending = child.wait_with_output();
    tokio::pin!(ending);
    let ended = timeout(deadline, &mut ending).await;
    if ended.is_err() {
        group.stop(&mut ending, grace).await;
    }
    group.kill_on_drop = false;
    let ended = ended.map_err(|_| RunError::Timeout(deadline))?.map_err(RunError::Read)?;
    Ok(Output {
        code: ended.status.code(),
        stdout: ended.stdout,
        stderr: String::from_utf8_lossy(&ended.stderr).into_owned(),
        processes: 1,
    })
}

/// The processes of one command.
#[derive(Debug)]
struct ProcessGroup {
    leader: Option<Pid>,
    /// It only reads: it may be killed, and is not needed if no caller waits for it.
    kill_on_drop: bool,
}

impl ProcessGroup {
    fn of(child: &Child, kill_on_drop: bool) -> Self {
        let leader = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Self { leader, kill_on_drop }
    }

    /// Sends a signal to all processes of the group. While our end of the pipes is being read the group exists or has
    /// just ended, so no other group has its number.
    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            // Fails only when all of them have ended.
            let _ = kill_process_group(leader, signal);
        }
    }

    /// Brings about the end that `ending` waits for.
    async fn stop(&self, ending: impl Future, grace: Duration) {
        self.signal(Signal::TERM);
        if timeout(grace, ending).await.is_err() && self.kill_on_drop {
            // A process that waits for a dead disk survives even this signal, so it is not waited for.
            self.signal(Signal::KILL);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if self.kill_on_drop {
            self.signal(Signal::KILL);
        }
    }
}

fn resolve(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program));
    }
    env::split_paths(OsStr::new(SEARCH_PATH))
        .map(|directory| directory.join(Path::new(program)))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests;
