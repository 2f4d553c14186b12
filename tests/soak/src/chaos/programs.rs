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
use testbed::sidecars::{NAMESPACE, Sidecar};
use testbed::topolvm::{self, CONTROLLER, LVMD, NODE, TopolvmSpec, controller_socket};

use super::controllers::{Controllers, OTHER_CONTROLLER, flags, is_replaceable};
use super::history::{Cause, EVENTS, Fact, History};
use super::plan::Victim;

/// Addresses at which the replicas serve metrics, in the network of the cluster.
const METRICS: [&str; 2] = ["127.0.0.1:8080", "127.0.0.1:8090"];
/// Flags for a leader election in seconds.
const ELECTION: [&str; 3] =
    ["--leader-election-lease-duration=5s", "--leader-election-renew-deadline=3s", "--leader-election-retry-period=1s"];
/// Time for a program to exit when it is replaced.
const GRACE: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Beginning of the last message of an lvmd whose first report was killed by the disturbance that kills LVM.
const LVM_KILLED_AT_START: &str =
    "lvmd: LVM does not work; try the same on the command line: fullreport failed (terminated by a signal)";

/// The supervised programs of a cluster.
#[derive(Debug)]
pub(super) struct Programs<'a> {
    cluster: &'a Cluster,
    nodes: &'a [Node],
    spec: &'a TopolvmSpec,
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
    owner: Owner,
    /// True for a sidecar while topolvm-controller replaces it.
    is_off: bool,
    is_killed: bool,
    kills: usize,
    exits: usize,
}

/// Owner of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The product's, which must never exit unexpectedly.
    Product,
    /// The CSI project's, which topolvm-controller can replace.
    Csi,
    Kubernetes,
}

impl<'a> Programs<'a> {
    /// Starts two replicas of the controller, of which one leads, and the sidecars that it does not replace. They retry
    /// after a few seconds at most. kube-scheduler is supervised because it exits when it has missed in an outage that
    /// a pod was deleted and created again.
    pub(super) fn start(
        cluster: &'a Cluster,
        nodes: &'a [Node],
        spec: &'a TopolvmSpec,
        controllers: Controllers,
        history: &'a History,
    ) -> Result<Self> {
        let is_embedded = controllers == Controllers::Embedded;
        let mut kept = Vec::new();
        for &sidecar in &spec.sidecars {
            sidecar.stop(cluster)?;
            let owner = if is_replaceable(sidecar) { Owner::Csi } else { Owner::Kubernetes };
            let is_off = is_embedded && owner == Owner::Csi;
            kept.push(Supervised {
                is_off,
                ..Supervised::new(sidecar.name(), sidecar_command(cluster, sidecar), owner)
            });
        }
        cluster.stop(SCHEDULER_PROCESS, Duration::ZERO)?;
        kept.push(Supervised::new(SCHEDULER_PROCESS, cluster.scheduler_command(), Owner::Kubernetes));
        for (name, command) in controller_commands(cluster, spec, is_embedded)? {
            kept.push(Supervised::new(name, command, Owner::Product));
        }
        cluster.stop(CONTROLLER, GRACE)?;
        for kept in kept.iter().rev().filter(|kept| !kept.is_off) {
            cluster.spawn(kept.name, &kept.command)?;
        }
        Ok(Self {
            cluster,
            nodes,
            spec,
            history,
            kept: Mutex::new(kept),
            next_node: AtomicUsize::new(0),
            before: exit_lines(nodes)?.len(),
            node_kills: AtomicUsize::new(0),
        })
    }

    /// Has topolvm-controller replace the sidecars, or the sidecars topolvm-controller. As in a roll-out the new
    /// programs start before all of the old ones have ended, so that the Leases decide which of them work.
    pub(super) fn change_controllers(&self) -> Result<()> {
        let mut all = self.lock();
        let is_embedded = all.iter().any(|kept| kept.owner == Owner::Csi && !kept.is_off);
        self.history.record(EVENTS, format!("changes to controllers that are embedded: {is_embedded}"));
        if !is_embedded {
            for kept in all.iter_mut().filter(|kept| kept.owner == Owner::Csi) {
                kept.is_off = false;
                self.cluster.spawn(kept.name, &kept.command)?;
            }
        }
        for (name, command) in controller_commands(self.cluster, self.spec, is_embedded)? {
            let kept = all.iter_mut().find(|kept| kept.name == name).context("no such program")?;
            kept.command = command;
            self.replace(kept)?;
            self.cluster.spawn(kept.name, &kept.command)?;
        }
        if is_embedded {
            for kept in all.iter_mut().filter(|kept| kept.owner == Owner::Csi) {
                kept.is_off = true;
                self.replace(kept)?;
            }
        }
        Ok(())
    }

    /// Ends a program in favour of another one.
    fn replace(&self, kept: &mut Supervised) -> Result<()> {
        kept.is_killed = false;
        self.history.record(EVENTS, Fact::Ended(kept.name, Cause::Replacement));
        self.cluster.stop(kept.name, GRACE)
    }

    /// Restarts programs that have exited, until `stop` is true.
    pub(super) fn supervise(&self, stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            for kept in self.lock().iter_mut().filter(|kept| !kept.is_off) {
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
            self.history.record(EVENTS, Fact::Ended(kept.name, Cause::Exit));
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

    fn kill_supervised(&self, name: &'static str) -> Result<()> {
        let mut all = self.lock();
        let kept = all.iter_mut().find(|kept| kept.name == name).context("no such program")?;
        self.restart_if_exited(kept)?;
        self.history.record(EVENTS, Fact::Ended(name, Cause::Kill));
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
        for kept in self.lock().iter().filter(|kept| kept.owner == Owner::Product) {
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
        (kills, all.iter().filter(|kept| kept.owner != Owner::Product).map(|kept| kept.exits).sum())
    }

    /// Stops the second controller, which a cluster does not usually have.
    pub(super) fn end(&self) -> Result<()> {
        self.cluster.stop(OTHER_CONTROLLER, GRACE)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Supervised>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Supervised {
    fn new(name: &'static str, command: Command, owner: Owner) -> Self {
        Self { name, command, owner, is_off: false, is_killed: false, kills: 0, exits: 0 }
    }
}

fn sidecar_command(cluster: &Cluster, sidecar: Sidecar) -> Command {
    let mut command = sidecar.command(cluster, &controller_socket(cluster));
    if is_replaceable(sidecar) {
        command.args(["--leader-election", &format!("--leader-election-namespace={NAMESPACE}")]).args(ELECTION);
    }
    command.arg("--retry-interval-max=5s");
    command
}

/// Returns the command lines of the replicas of the controller by name. The first has the socket of the sidecars.
fn controller_commands(
    cluster: &Cluster,
    spec: &TopolvmSpec,
    is_embedded: bool,
) -> Result<[(&'static str, Command); 2]> {
    let [metrics, other_metrics] = METRICS.map(|address| format!("--metrics-bind-address={address}"));
    let mut command = topolvm::controller_command(cluster, spec, &controller_socket(cluster))?;
    command.args(ELECTION).args(flags(is_embedded)).arg(metrics);
    let other_socket = cluster.directory().join("controller-2/csi.sock");
    let mut other = topolvm::controller_command(cluster, spec, &other_socket)?;
    other.args(ELECTION).args(flags(is_embedded)).args([other_metrics.as_str(), "--health-probe-bind-address="]);
    Ok([(CONTROLLER, command), (OTHER_CONTROLLER, other)])
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
