//! Notifies systemd (sd_notify(3)): ready, reloading, watchdog, stopping, and a line for `systemctl status`.
//!
//! The messages are those of the crate sd-notify. The socket is not: the crate's blocks while systemd hangs, knows no
//! abstract names, and finds its address in the environment, which only flags read.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::timeout;

use crate::{CancellationToken, error_chain};

/// The environment that systemd gives to a service.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct NotifyArgs {
    /// Socket for messages: a path, or @ and an abstract name. Set by systemd.
    #[arg(long, env = "NOTIFY_SOCKET", hide = true, value_name = "SOCKET")]
    notify_socket: Option<String>,

    /// Interval of the watchdog. Set by systemd.
    #[arg(long, env = "WATCHDOG_USEC", hide = true, value_name = "MICROSECONDS")]
    watchdog_usec: Option<String>,

    /// Process that the watchdog is for. Set by systemd.
    #[arg(long, env = "WATCHDOG_PID", hide = true, value_name = "PID")]
    watchdog_pid: Option<String>,
}

/// The notification socket of systemd; without one, messages go nowhere. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Systemd {
    socket: Option<SocketAddr>,
    watchdog: Option<Duration>,
}

impl Systemd {
    /// Takes the socket and the watchdog from the environment. A socket that cannot be used is left out, after a
    /// warning.
    pub fn new(args: &NotifyArgs) -> Self {
        let Some(name) = args.notify_socket.as_deref().filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        let socket = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(name),
        };
        let socket = socket
            .inspect_err(|error| tracing::warn!(%error, name, "cannot use NOTIFY_SOCKET; systemd is not notified"))
            .ok();
        let is_ours = args.watchdog_pid.as_ref().is_none_or(|pid| *pid == std::process::id().to_string());
        let watchdog = args.watchdog_usec.as_ref().and_then(|microseconds| microseconds.parse().ok());
        let watchdog = watchdog.filter(|microseconds| is_ours && *microseconds > 0).map(Duration::from_micros);
        Self { socket, watchdog }
    }

    /// Notifies that the service has started, or has read its configuration again.
    pub fn ready(&self) {
        self.send(&[NotifyState::Ready]);
    }

    /// Notifies that the configuration is being read again.
    pub fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            // systemd recognizes the reload that it has requested by the time
            Ok(now) => self.send(&[NotifyState::Reloading, now]),
            Err(_) => self.send(&[NotifyState::Reloading]),
        }
    }

    /// Extends the timeout of the start in the unit by this much, from now on.
    pub fn extend_start(&self, by: Duration) {
        let microseconds = u32::try_from(by.as_micros()).unwrap_or(u32::MAX);
        self.send(&[NotifyState::ExtendTimeoutUsec(microseconds)]);
    }

    /// Sets the line that `systemctl status` shows.
    pub fn status(&self, text: &str) {
        self.send(&[NotifyState::Status(&text.replace('\n', "; "))]);
    }

    /// Notifies the watchdog each time that `check` succeeds in time, and at the end that the service is stopping.
    ///
    /// There are four checks in the time that systemd waits, so a single late one does no harm.
    pub async fn watchdog<F>(self, mut check: impl FnMut() -> F, shutdown: CancellationToken) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        if let Some(expected) = self.watchdog {
            let mut ticks = tokio::time::interval(expected / 4);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
                let Some(alive) = shutdown.run_until_cancelled(timeout(expected / 4, check())).await else { break };
                match alive {
                    Ok(Ok(())) => self.send(&[NotifyState::Watchdog]),
                    Ok(Err(error)) => {
                        tracing::error!(
                            error = error_chain(&*error),
                            "this process is not healthy; skipping the watchdog notification to systemd"
                        );
                    }
                    Err(_) => {
                        tracing::error!(
                            "this process did not answer its own health check in time; skipping the watchdog \
                             notification to systemd"
                        );
                    }
                }
            }
        }
        shutdown.cancelled().await;
        self.send(&[NotifyState::Stopping]);
        Ok(())
    }

    fn send(&self, states: &[NotifyState<'_>]) {
        let message = states.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        if let Some(socket) = &self.socket
            && let Err(error) = send(socket, &message)
        {
            tracing::warn!(%error, message, "cannot notify systemd");
        }
    }
}

fn send(socket: &SocketAddr, message: &str) -> io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    // systemd has space for a long queue; a lost message is better than to wait for a systemd that hangs
    sender.set_nonblocking(true)?;
    sender.send_to_addr(message.as_bytes(), socket)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The socket at systemd's end, and ours.
    fn connect(name: &str) -> (UnixDatagram, Systemd) {
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name).unwrap(),
            None => SocketAddr::from_pathname(name).unwrap(),
        };
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        socket.set_nonblocking(true).unwrap();
        let args = NotifyArgs {
            notify_socket: Some(name.to_owned()),
            watchdog_usec: Some("8000000".to_owned()),
            watchdog_pid: Some(std::process::id().to_string()),
        };
        (socket, Systemd::new(&args))
    }

    fn next(socket: &UnixDatagram) -> Option<String> {
        let mut message = [0; 512];
        let length = socket.recv(&mut message).ok()?;
        Some(String::from_utf8(message[..length].to_vec()).unwrap())
    }

    #[test]
    fn messages_reach_a_path_and_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify").display().to_string();
        for name in [path.clone(), format!("@{path}")] {
            let (socket, systemd) = connect(&name);
            systemd.ready();
            assert_eq!(next(&socket).unwrap(), "READY=1");
            systemd.status("one\ntwo");
            assert_eq!(next(&socket).unwrap(), "STATUS=one; two");
            systemd.reloading();
            let reloading = next(&socket).unwrap();
            let time = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
            // The other clock goes on while the machine sleeps
            let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
            let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
            let seconds = Duration::from_micros(time.parse().unwrap()).as_secs_f64();
            assert!(seconds > 0.0 && seconds <= uptime + 0.1, "{seconds} {uptime}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_systemd_nothing_is_checked_until_the_end() {
        for notify_socket in [None, Some(String::new())] {
            let watchdog_usec = Some("8000000".to_owned());
            let systemd = Systemd::new(&NotifyArgs { notify_socket, watchdog_usec, watchdog_pid: None });
            let shutdown = CancellationToken::new();
            let check = || async { panic!("checked without a watchdog") };
            let mut watching = std::pin::pin!(systemd.watchdog(check, shutdown.clone()));
            timeout(Duration::from_secs(9), &mut watching).await.expect_err("a task that ends ends the process");
            shutdown.cancel();
            watching.await.unwrap();
        }
    }

    #[test]
    fn a_systemd_that_was_gone_is_notified_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify").display().to_string();
        let (socket, systemd) = connect(&path);
        drop(socket);
        systemd.status("no listener");
        std::fs::remove_file(&path).unwrap();
        systemd.status("there is no socket");
        let (socket, _) = connect(&path);
        systemd.status("back");
        assert_eq!((next(&socket).as_deref(), next(&socket)), (Some("STATUS=back"), None));
    }

    #[test]
    fn a_systemd_that_hangs_is_not_waited_for() {
        const MESSAGES: usize = 10_000;
        let dir = tempfile::tempdir().unwrap();
        let (socket, systemd) = connect(&dir.path().join("notify").display().to_string());
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for _ in 0..MESSAGES {
                systemd.ready();
            }
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(20)).expect("it waits for systemd");
        let received = std::iter::from_fn(|| next(&socket)).count();
        assert!((1..MESSAGES).contains(&received), "{received}");
    }

    #[test]
    fn a_watchdog_for_another_process_is_not_ours() {
        let args = |pid: u32| NotifyArgs {
            notify_socket: Some("@x".to_owned()),
            watchdog_usec: Some("1000000".to_owned()),
            watchdog_pid: Some(pid.to_string()),
        };
        assert_eq!(Systemd::new(&args(std::process::id())).watchdog, Some(Duration::from_secs(1)));
        assert_eq!(Systemd::new(&args(1)).watchdog, None);
    }

    #[tokio::test(start_paused = true)]
    async fn watchdog_is_notified_only_while_the_check_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, systemd) = connect(&dir.path().join("notify").display().to_string());
        let shutdown = CancellationToken::new();
        let mut checks = 0;
        let check = || {
            checks += 1;
            let number = checks;
            async move {
                match number {
                    2 => anyhow::bail!("no answer"),
                    3 => std::future::pending().await,
                    _ => Ok(()),
                }
            }
        };
        let watching = systemd.watchdog(check, shutdown.clone());
        // Checks at 0, 2, 4 and, after the one that hung for two seconds, 6 and 8 seconds
        let ending = async {
            tokio::time::sleep(Duration::from_secs(9)).await;
            shutdown.cancel();
        };
        let (watched, ()) = tokio::join!(watching, ending);
        watched.unwrap();
        assert_eq!(checks, 5);
        let messages: Vec<_> = std::iter::from_fn(|| next(&socket)).collect();
        assert_eq!(messages, ["WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1", "STOPPING=1"]);
    }
}
