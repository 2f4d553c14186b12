//! Supervises the controllers, the sidecars and kube-scheduler: restarts them when they exit, as kubelet and systemd
//! would, kills them, and counts kills and exits.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use testbed::cluster::{Cluster, SCHEDULER_PROCESS};
use testbed::node::Node;
use testbed::process::Process;
use testbed::topolvm::{self, CONTROLLER, LVMD, NODE, TopolvmSpec, controller_socket};

use super::history::{EVENTS, Fact, History};
use super::plan::Victim;

/// The second replica of the controller.
const OTHER_CONTROLLER: &str = "topolvm-controller-2";
/// Addresses at which the replicas serve metrics, in the network of the cluster.
const METRICS: [&str; 2] = ["127.0.0.1:8080", "127.0.0.1:8090"];
/// Flags for a leader election in seconds.
const ELECTION: [&str; 3] =
    ["--leader-election-lease-duration=5s", "--leader-election-renew-deadline=3s", "--leader-election-retry-period=1s"];
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Beginning of the last message of an lvmd whose first report was killed by the disturbance that kills LVM.
const LVM_KILLED_AT_START: &str =
    "lvmd: LVM does not work; try the same on the command line: fullreport failed (terminated by a signal)";

/// The supervised programs of a cluster.
#[derive(Debug)]
pub(super) struct Programs<'a> {
    cluster: &'a Cluster,
    nodes: &'a [Node],
    history: &'a History,
    kept: Mutex<Vec<Supervised>>,
    next_node: AtomicUsize,
    /// Exits of the nodes' programs before the test.
    before: usize,
    node_kills: AtomicUsize,
}

/// A supervised process of this machine.
#[derive(Debug)]
struct Supervised {
    name: &'static str,
    command: Command,
    /// True for a program of the product, which must never exit unexpectedly.
    is_ours: bool,
    is_killed: bool,
    kills: usize,
    exits: usize,
}

impl<'a> Programs<'a> {
    /// Starts two replicas of the controller, of which one leads, and the sidecars, which retry after a few seconds at
    /// most. kube-scheduler is supervised because it exits when it has missed in an outage that a pod was deleted and
    /// created again.
    pub(super) fn start(
        cluster: &'a Cluster,
        nodes: &'a [Node],
        spec: &TopolvmSpec,
        history: &'a History,
    ) -> Result<Self> {
        let mut kept = Vec::new();
        let socket = controller_socket(cluster);
        for &sidecar in &spec.sidecars {
            sidecar.stop(cluster)?;
            let mut command = sidecar.command(cluster, &socket);
            command.arg("--retry-interval-max=5s");
            kept.push(Supervised::new(sidecar.name(), command, false));
        }
        cluster.stop(SCHEDULER_PROCESS, Duration::ZERO)?;
        kept.push(Supervised::new(SCHEDULER_PROCESS, cluster.scheduler_command(), false));
        let [metrics, other_metrics] = METRICS.map(|address| format!("--metrics-bind-address={address}"));
        let mut command = topolvm::controller_command(cluster, spec, &socket)?;
        command.args(ELECTION).arg(metrics);
        kept.push(Supervised::new(CONTROLLER, command, true));
        let other_socket = cluster.directory().join("controller-2/csi.sock");
        let mut command = topolvm::controller_command(cluster, spec, &other_socket)?;
        command.args(ELECTION).args([other_metrics.as_str(), "--health-probe-bind-address="]);
        kept.push(Supervised::new(OTHER_CONTROLLER, command, true));
        cluster.stop(CONTROLLER, Duration::from_secs(10))?;
        for kept in kept.iter().rev() {
            cluster.spawn(kept.name, &kept.command)?;
        }
        Ok(Self {
            cluster,
            nodes,
            history,
            kept: Mutex::new(kept),
            next_node: AtomicUsize::new(0),
            before: exit_lines(nodes)?.len(),
            node_kills: AtomicUsize::new(0),
        })
    }

    /// Restarts programs that have exited, until `stop` is true.
    pub(super) fn supervise(&self, stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            for kept in self.lock().iter_mut() {
                self.restart_if_exited(kept)?;
            }
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn restart_if_exited(&self, kept: &mut Supervised) -> Result<()> {
        if find_process(self.cluster, kept.name)?.is_some_and(|process| process.is_alive()) {
            return Ok(());
        }
        if kept.is_killed {
            kept.is_killed = false;
        } else {
            kept.exits += 1;
            self.history.record(EVENTS, Fact::Ended(kept.name));
        }
        self.cluster.stop(kept.name, Duration::ZERO)?;
        self.cluster.spawn(kept.name, &kept.command)
    }

    /// Kills a program with SIGKILL.
    pub(super) fn kill(&self, victim: Victim) -> Result<()> {
        match victim {
            Victim::Controller => self.kill_supervised(CONTROLLER),
            Victim::OtherController => self.kill_supervised(OTHER_CONTROLLER),
            Victim::Node => self.kill_in_node(NODE),
            Victim::Lvmd => self.kill_in_node(LVMD),
        }
    }

    fn kill_supervised(&self, name: &str) -> Result<()> {
        let mut all = self.lock();
        let kept = all.iter_mut().find(|kept| kept.name == name).context("no such program")?;
        self.restart_if_exited(kept)?;
        self.history.record(EVENTS, format!("kills {name}"));
        kept.is_killed = true;
        kept.kills += 1;
        find_process(self.cluster, name)?.context("it was not started")?.signal(Signal::KILL)
    }

    fn kill_in_node(&self, name: &str) -> Result<()> {
        let turn = self.next_node.fetch_add(1, Ordering::Relaxed);
        self.kill_on(self.nodes.iter().cycle().nth(turn).context("there are no nodes")?, name)
    }

    /// Kills a program of a node, which starts again.
    pub(super) fn kill_on(&self, node: &Node, name: &str) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(20);
        // It may have been killed a moment ago
        while let Err(error) = node.kill_kept(name) {
            if Instant::now() > end {
                return Err(error);
            }
            sleep(POLL_INTERVAL);
        }
        self.node_kills.fetch_add(1, Ordering::Relaxed);
        self.history.record(EVENTS, format!("killed {name} of {}", node.name()));
        Ok(())
    }

    /// Fails if one of the product's programs exited without being killed, or if there is not exactly one leader.
    pub(super) fn check(&self) -> Result<()> {
        for kept in self.lock().iter().filter(|kept| kept.is_ours) {
            ensure!(kept.exits == 0, "{} exited unexpectedly {} times; see its log", kept.name, kept.exits);
        }
        let ends = exit_lines(self.nodes)?;
        let ends = ends.get(self.before..).unwrap_or_default();
        let kills = self.node_kills.load(Ordering::Relaxed);
        let unexpected: Vec<_> = ends.iter().filter(|end| !end.ends_with("ended, status 137")).collect();
        ensure!(unexpected.is_empty() && ends.len() <= kills, "{kills} kills in the nodes, but these ends: {ends:#?}");
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let leaders = METRICS.iter().filter(|address| self.is_leading(address)).count();
            if leaders == 1 {
                return Ok(());
            }
            if Instant::now() > end {
                bail!("{leaders} controllers are leading");
            }
            sleep(POLL_INTERVAL);
        }
    }

    fn is_leading(&self, address: &str) -> bool {
        topolvm::is_leading(self.cluster, address).unwrap_or(false)
    }

    /// Returns the number of kills, and of exits of programs that are not the product's: sidecars exit when they lose
    /// their driver.
    pub(super) fn counts(&self) -> (usize, usize) {
        let all = self.lock();
        let kills = all.iter().map(|kept| kept.kills).sum::<usize>() + self.node_kills.load(Ordering::Relaxed);
        (kills, all.iter().filter(|kept| !kept.is_ours).map(|kept| kept.exits).sum())
    }

    /// Stops the second controller, which a cluster does not usually have.
    pub(super) fn end(&self) -> Result<()> {
        self.cluster.stop(OTHER_CONTROLLER, Duration::from_secs(10))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Supervised>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Supervised {
    fn new(name: &'static str, command: Command, is_ours: bool) -> Self {
        Self { name, command, is_ours, is_killed: false, kills: 0, exits: 0 }
    }
}

/// Finds a process that the cluster started.
pub(super) fn find_process(cluster: &Cluster, name: &str) -> Result<Option<Process>> {
    Process::from_file(&cluster.directory().join("run").join(format!("{name}.pid")))
}

/// Returns the lines of the nodes' logs that report the exit of a program. An lvmd whose first report was killed exits,
/// and is restarted.
fn exit_lines(nodes: &[Node]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for node in nodes {
        for name in [NODE, LVMD] {
            let log = fs::read(node.log(name)).with_context(|| format!("read the log of {name}"))?;
            let log = String::from_utf8_lossy(&log);
            let is_end = |line: &str| line.starts_with(&format!("{name} ended, status "));
            let lines: Vec<_> = log.lines().collect();
            let ends = lines.windows(2).filter(|lines| matches!(lines, [_, end] if is_end(end)));
            let ends = ends.filter(|lines| !matches!(lines, [last, _] if last.starts_with(LVM_KILLED_AT_START)));
            all.extend(ends.filter_map(|lines| lines.last()).map(|end| (*end).to_owned()));
        }
    }
    Ok(all)
}
