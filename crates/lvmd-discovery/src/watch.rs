//! Scans the disks repeatedly: after a kernel event, after the rescan interval, and after a change of the
//! configuration.

use std::sync::Arc;
use std::time::Duration;

use block_device::{Machine, Uevents};
use lvm::Host;
use lvmd_config::{DiskFinding, DiskGroups, DiskReport, DiskState, Mode, NodeLabels, Refusal};
use lvmd_engine::{DiskAddition, Engine, LvmReader};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use topolvm_runtime::{CancellationToken, error_chain};

use super::addition::grow;
use super::memory::Memory;
use super::scan::{Scan, Scanner};

/// Time without a message of the kernel after which a burst of them is over: udev makes the names of a new disk in it.
const QUIET: Duration = Duration::from_millis(300);
/// Longest time for which kernel events delay a scan.
const LONGEST_BURST: Duration = Duration::from_secs(5);

/// Time after which disks that could not be scanned are scanned again.
const RETRY: Duration = Duration::from_mins(1);

/// Disk discovery for an engine.
#[derive(Debug)]
pub struct Discovery<M, R> {
    scanner: Scanner<M, R>,
    engine: Engine<R>,
    groups: watch::Receiver<Arc<DiskGroups>>,
    /// The labels of this node; `None` until a client sends them.
    labels: watch::Receiver<Option<Arc<NodeLabels>>>,
    report: watch::Sender<Arc<DiskReport>>,
    memory: Memory,
    /// Disks that clients want to be added.
    additions: Option<mpsc::Receiver<DiskAddition>>,
}

impl<M: Machine, R: Host> Discovery<M, R> {
    /// Creates the discovery of this machine's disks for this engine, with the groups that it receives.
    pub fn new(
        machine: M,
        lvm: impl Into<LvmReader<R>>,
        engine: Engine<R>,
        groups: watch::Receiver<Arc<DiskGroups>>,
    ) -> Self {
        let labels = engine.node_labels();
        let (scanner, report) = (Scanner::new(machine, lvm, labels.clone()), watch::Sender::default());
        let additions = engine.take_disk_additions();
        Self { scanner, engine, groups, labels, report, memory: Memory::default(), additions }
    }

    /// Subscribes to the report of the last scan.
    pub fn report(&self) -> watch::Receiver<Arc<DiskReport>> {
        self.report.subscribe()
    }

    /// Scans the disks until the shutdown begins. Without disk groups it scans none.
    pub async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let scanning = async {
            loop {
                let groups = Arc::clone(&self.groups.borrow_and_update());
                if groups.groups.is_empty() {
                    self.publish(DiskReport::default());
                    tokio::select! {
                        () = wait_for_change(&mut self.groups) => {}
                        addition = next_addition(&mut self.additions) => self.answer(&groups, addition).await,
                    }
                    continue;
                }
                let uevents = subscribe();
                self.watch(&groups, uevents).await;
            }
        };
        shutdown.run_until_cancelled(scanning).await;
        Ok(())
    }

    /// Scans repeatedly until the configuration changes. Programs of the cluster change labels of the node all the
    /// time; only labels that change whether a group is for this node cause a scan.
    async fn watch(&mut self, groups: &DiskGroups, mut uevents: Option<Uevents>) {
        loop {
            let placements = groups.placements(self.labels.borrow_and_update().as_deref());
            let next = self.scan_and_act(groups).await;
            tokio::select! {
                () = wait_for_change(&mut self.groups) => return,
                () = wait_for_labels(&mut self.labels, groups, &placements) => {}
                () = wait_for_burst(&mut uevents) => {}
                () = wait_until(next) => {}
                addition = next_addition(&mut self.additions) => self.answer(groups, addition).await,
            }
        }
    }

    /// Adds a disk that a client wants to be added, if it can be.
    async fn answer(&self, groups: &DiskGroups, addition: DiskAddition) {
        let added = self.scanner.add_requested(&self.engine, groups, &addition).await;
        // The client may have gone
        drop(addition.answer.send(added));
    }

    /// Scans all disks and makes the changes that groups in the mode `auto` require. Returns the latest time of the
    /// next scan.
    pub async fn scan_and_act(&mut self, groups: &DiskGroups) -> Option<Instant> {
        loop {
            let Some(scan) = self.scan_disks(groups).await else { return Some(Instant::now() + RETRY) };
            let (acted, settled) = self.act(groups, &scan).await;
            if !acted {
                let next = [groups.rescan_interval, settled].into_iter().flatten().min();
                return next.map(|delay| Instant::now() + delay);
            }
        }
    }

    /// Scans all disks and publishes the report.
    async fn scan_disks(&mut self, groups: &DiskGroups) -> Option<Scan> {
        let mut scan = match self.scanner.scan(groups, |why| self.publish_failure(why)).await {
            Ok(scan) => scan,
            Err(error) => {
                self.publish_failure(error_chain(&error));
                return None;
            }
        };
        for finding in &mut scan.report.disks {
            if let (DiskState::Candidate, Some(failure)) = (&finding.state, self.memory.recent_failure(&finding.disk)) {
                finding.state = DiskState::Refused(vec![failure.clone()]);
            }
        }
        self.memory.forget_all_but(scan.report.disks.iter().map(|finding| &finding.disk));
        self.memory.note_candidates(candidates(&scan.report).map(|finding| &finding.disk));
        log_changes(&self.report.borrow(), &scan.report);
        self.publish(scan.report.clone());
        Some(scan)
    }

    fn publish(&self, report: DiskReport) {
        let report = Arc::new(report);
        self.report.send_replace(Arc::clone(&report));
        self.engine.publish_disks(report);
    }

    fn publish_failure(&self, failure: String) {
        let mut report = DiskReport::clone(&self.report.borrow());
        if report.failure.as_ref() != Some(&failure) {
            tracing::error!(error = failure, "cannot scan the disks of the machine");
        }
        report.failure = Some(failure);
        self.publish(report);
    }

    /// Grows groups with their disks and adds the first candidate that has settled. Returns true if it changed
    /// something and a new scan is needed, and otherwise the time until the next candidate has settled.
    async fn act(&mut self, groups: &DiskGroups, scan: &Scan) -> (bool, Option<Duration>) {
        let (mut acted, mut next) = self.grow(groups, scan).await;
        for finding in candidates(&scan.report) {
            let Some(group) = finding.group.as_ref().and_then(|name| groups.get(name)) else { continue };
            if group.mode != Mode::Auto {
                continue;
            }
            let remaining = self.memory.remaining(&finding.disk, groups.settle_time);
            if !remaining.is_zero() {
                next = Some(next.map_or(remaining, |next| next.min(remaining)));
                continue;
            }
            let added = self.scanner.add(&self.engine, groups, &group.name, &finding.disk).await;
            log_addition(finding, added.as_ref().err());
            // Also recorded after a success: if LVM does not list the disk then, it is reported, and not added again
            // and again
            let unlisted = || Refusal::Failed("LVM initialized it but does not list it".to_owned());
            self.memory.note_failure(&finding.disk, added.err().unwrap_or_else(unlisted));
            acted = true;
        }
        (acted, next)
    }

    /// Gives groups the space that their disks have grown by. Returns whether something was done, and else after which
    /// time the next disk that LVM could not resize is tried again.
    async fn grow(&mut self, groups: &DiskGroups, scan: &Scan) -> (bool, Option<Duration>) {
        let mut acted = false;
        let mut next: Option<Duration> = None;
        for pv in scan.pvs.iter().filter(|pv| pv.has_grown()) {
            let group = pv.vg.as_ref().and_then(|vg| groups.get(vg)).filter(|group| group.mode == Mode::Auto);
            let is_ours = |tag: lvm::Tag| pv.is_tagged(tag.as_str());
            let Some(group) = group.filter(|group| group.tag().is_ok_and(is_ours)) else { continue };
            // LVM would leave the old metadata on a disk that it cannot write to
            let is_read_only =
                |finding: &DiskFinding| finding.group.as_ref() == Some(&group.name) && finding.disk.read_only;
            if pv.missing_pvs > 0 || scan.report.disks.iter().any(is_read_only) {
                continue;
            }
            let Some(delay) = self.memory.resize_delay(pv) else { continue };
            if !delay.is_zero() {
                next = Some(next.map_or(delay, |next| next.min(delay)));
                continue;
            }
            let (disk, disk_group) = (&pv.path, &group.name);
            let grown = grow(&self.engine, disk_group, pv).await;
            self.memory.note_resize(pv, grown.is_ok());
            match grown {
                Ok(()) => tracing::info!(disk, %disk_group, "a disk has grown; extended its disk group"),
                Err(error) => tracing::error!(
                    disk, %disk_group, %error,
                    "a disk has grown, but its disk group cannot be extended; retrying in five minutes"
                ),
            }
            acted = true;
        }
        (acted, next)
    }
}

fn candidates(report: &DiskReport) -> impl Iterator<Item = &DiskFinding> {
    report.disks.iter().filter(|finding| finding.state == DiskState::Candidate)
}

async fn next_addition(additions: &mut Option<mpsc::Receiver<DiskAddition>>) -> DiskAddition {
    match additions {
        Some(additions) => match additions.recv().await {
            Some(addition) => addition,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

fn subscribe() -> Option<Uevents> {
    let subscribed = Uevents::subscribe();
    if let Err(error) = &subscribed {
        tracing::warn!(%error, "cannot receive kernel events about new disks; disks are found by periodic scans only");
    }
    subscribed.ok()
}

/// Waits for a change of the groups; indefinitely if there can be none.
async fn wait_for_change(groups: &mut watch::Receiver<Arc<DiskGroups>>) {
    if groups.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits until other groups than these are for this node.
async fn wait_for_labels(
    labels: &mut watch::Receiver<Option<Arc<NodeLabels>>>,
    groups: &DiskGroups,
    placements: &[Option<bool>],
) {
    while labels.changed().await.is_ok() {
        if groups.placements(labels.borrow_and_update().as_deref()) != placements {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Waits for a message of the kernel about a block device and those that come with it.
async fn wait_for_burst(uevents: &mut Option<Uevents>) {
    let Some(uevents) = uevents else { return std::future::pending().await };
    uevents.block_device().await;
    let burst = async { while timeout(QUIET, uevents.block_device()).await.is_ok() {} };
    // Later events do not matter: another scan follows
    let _ = timeout(LONGEST_BURST, burst).await;
}

async fn wait_until(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => std::future::pending().await,
    }
}

fn log_addition(finding: &DiskFinding, failure: Option<&Refusal>) {
    let (disk, stable_name) = (&finding.disk.path, finding.disk.stable_name());
    let disk_group = finding.group.as_ref().map(ToString::to_string);
    match failure {
        None => tracing::info!(disk, stable_name, disk_group, "added a disk to its disk group"),
        Some(error) => tracing::error!(disk, stable_name, disk_group, %error, "cannot add a disk to its disk group"),
    }
}

/// Logs what has changed since the last scan.
fn log_changes(before: &DiskReport, now: &DiskReport) {
    for finding in &now.disks {
        // Another disk may have got the name of one that was pulled out
        let is_same = |known: &&DiskFinding| {
            (&known.disk.name, known.disk.sequence) == (&finding.disk.name, finding.disk.sequence)
        };
        let known = before.disks.iter().find(is_same);
        let is_new = known.is_none_or(|known| known.state != finding.state);
        if is_new && finding.state != DiskState::NotSelected {
            let (disk, stable_name) = (&finding.disk.path, finding.disk.stable_name());
            let (disk_group, state) =
                (finding.group.as_ref().map(ToString::to_string), finding.describe(now.mode_of(finding)));
            tracing::info!(disk, stable_name, disk_group, state, "inspected a disk");
        }
    }
    for group in &now.groups {
        let known = before.groups.iter().find(|known| known.name == group.name);
        let was_for_node = known.map(|known| known.is_for_node);
        if !group.nodes.is_everything() && was_for_node != Some(group.is_for_node) {
            let (disk_group, nodes, state) = (&group.name, &group.nodes, group.describe_place());
            tracing::info!(%disk_group, %nodes, state, "evaluated the labels of the node");
        }
        if group.missing > 0 && known.is_none_or(|known| known.missing != group.missing) {
            let (disk_group, missing) = (&group.name, group.missing);
            tracing::error!(%disk_group, missing, "disks of a disk group are missing; no disks are added to it");
        }
    }
}
