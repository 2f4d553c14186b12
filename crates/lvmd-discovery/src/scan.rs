//! One read-only scan of all disks.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use block_device::{Contents, Disk, Machine, Number, OpenDisk};
use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream;
use lvm::{GroupDisk, Host};
use lvmd_config::{DiskGroup, DiskGroups, DiskReport, DiskState, Mode, NodeLabels, Refusal};
use lvmd_engine::LvmReader;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use topolvm_runtime::error_chain;

use super::eligibility::{Facts, find_groups, limit_candidates};
use super::silence::{self, Silence};

/// Timeout for reading a disk, long enough for a sleeping disk to spin up. A disk that does not answer must not delay
/// the discovery of the others.
const DISK_TIMEOUT: Duration = Duration::from_secs(20);
/// Disks that are read at the same time, so that some that do not answer hold up no other for long.
const READ_AT_ONCE: usize = 8;
/// Time after which lvmd checks for which disks LVM may be waiting, and timeout of one read of each. Disks answer in
/// milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// The errors of a scan of all disks.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScanError {
    /// The disks cannot be listed.
    #[error(
        "cannot list the disks of the machine; in a container, lvmd needs hostPID and a privileged security context"
    )]
    Disks(#[source] io::Error),
    /// LVM does not list its physical volumes.
    #[error("LVM does not list the physical volumes of the machine")]
    Lvm(#[source] lvm::Error),
    /// It does not do so in time, and disks do not answer.
    #[error("LVM does not list the physical volumes of the machine: {0}")]
    Silence(String),
}

/// Scans the disks of a machine. Clones share the list of disks that hang.
#[derive(Debug)]
pub(super) struct Scanner<M, R> {
    machine: Arc<M>,
    lvm: LvmReader<R>,
    /// The labels of this node; `None` until a client sends them.
    labels: watch::Receiver<Option<Arc<NodeLabels>>>,
    silence: Silence,
    patience: Duration,
    /// The disks that did not answer when LVM did not end in time, with their paths.
    stuck: Arc<Mutex<Vec<(Number, String)>>>,
}

/// A report and LVM's physical volumes, on which it rests.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) report: DiskReport,
    pub(super) pvs: Vec<GroupDisk>,
}

/// A disk that may be added to its group.
#[derive(Debug)]
pub(super) struct FreeDisk {
    pub(super) group: DiskGroup,
    /// True if the volume group exists.
    pub(super) exists: bool,
    pub(super) path: String,
    /// Keeps the number of the disk from becoming that of another.
    _open: Box<dyn OpenDisk>,
}

impl<M, R> Clone for Scanner<M, R> {
    fn clone(&self) -> Self {
        Self {
            machine: Arc::clone(&self.machine),
            lvm: self.lvm.clone(),
            labels: self.labels.clone(),
            silence: self.silence.clone(),
            patience: self.patience,
            stuck: Arc::clone(&self.stuck),
        }
    }
}

impl<M: Machine, R: Host> Scanner<M, R> {
    /// Creates a scanner of this machine's disks with this LVM. The node has the labels that are in the channel at the
    /// time of a scan.
    pub(super) fn new(
        machine: M,
        lvm: impl Into<LvmReader<R>>,
        labels: watch::Receiver<Option<Arc<NodeLabels>>>,
    ) -> Self {
        Self {
            machine: Arc::new(machine),
            lvm: lvm.into(),
            labels,
            silence: Silence::default(),
            patience: PATIENCE,
            stuck: Arc::default(),
        }
    }

    /// Reports all disks.
    pub(super) async fn report(&self, groups: &DiskGroups) -> Result<DiskReport, ScanError> {
        self.scan(groups, |_| {}).await.map(|scan| scan.report)
    }

    /// Scans all disks. Reports the disks that do not answer while LVM waits for them.
    pub(super) async fn scan(&self, groups: &DiskGroups, held_up: impl Fn(String) + Sync) -> Result<Scan, ScanError> {
        let disks = self.disks().await?;
        let pvs = self.physical_volumes(&disks, held_up).await?;
        let labels = self.labels.borrow().clone();
        let group_findings = find_groups(groups, &pvs, labels.as_deref());
        let facts = Facts::new(groups, &pvs, &group_findings, labels.as_deref(), &disks);
        let mut findings: Vec<_> = disks.iter().cloned().map(|disk| facts.evaluate(disk)).collect();
        let candidates = findings.iter_mut().filter(|finding| finding.state == DiskState::Candidate);
        let examined = stream::iter(candidates).for_each_concurrent(READ_AT_ONCE, async |finding| {
            let group = finding.group.as_ref().and_then(|name| groups.get(name));
            let is_added = group.is_some_and(|group| group.mode == Mode::Auto);
            let claims = if is_added { Claims::Briefly } else { Claims::Never };
            if let Err(refusal) = self.examine(&finding.disk, claims).await {
                finding.state = DiskState::Refused(vec![refusal]);
            }
        });
        examined.await;
        limit_candidates(&mut findings, groups, &group_findings);
        Ok(Scan { report: DiskReport { disks: findings, groups: group_findings, failure: None }, pvs })
    }

    async fn disks(&self) -> Result<Vec<Disk>, ScanError> {
        let machine = Arc::clone(&self.machine);
        let disks = spawn_blocking(move || machine.disks()).await.map_err(io::Error::other);
        disks.and_then(|disks| disks).map_err(ScanError::Disks)
    }

    /// Lists LVM's physical volumes. While LVM does not answer, reports which of these disks do not answer either.
    async fn physical_volumes(
        &self,
        disks: &[Disk],
        held_up: impl Fn(String) + Sync,
    ) -> Result<Vec<GroupDisk>, ScanError> {
        // An LVM process that waits for a dead disk survives even SIGKILL, so lvmd must not start one with each scan.
        if let Some(silence) = self.describe_stuck() {
            return Err(ScanError::Silence(silence));
        }
        let mut listing = pin!(self.lvm.physical_volumes());
        let listed = if let Ok(listed) = timeout(self.patience, &mut listing).await {
            listed
        } else {
            self.touch(disks).await;
            if let Some(silence) = self.describe_silence(disks) {
                held_up(silence);
            }
            listing.await
        };
        self.note_stuck(disks, matches!(listed, Err(lvm::Error::Timeout { .. })));
        listed.map_err(|error| self.describe_silence(disks).map_or(ScanError::Lvm(error), ScanError::Silence))
    }

    /// Remembers which disks do not answer if LVM has not ended in time.
    fn note_stuck(&self, disks: &[Disk], has_timed_out: bool) {
        let silent = disks.iter().filter(|disk| has_timed_out && self.silence.is_waiting(disk.number));
        *self.stuck.lock() = silent.map(|disk| (disk.number, disk.path.clone())).collect();
    }

    /// Names those of them that still do not answer, if there are any.
    fn describe_stuck(&self) -> Option<String> {
        let mut stuck = self.stuck.lock();
        stuck.retain(|(number, _)| self.silence.is_waiting(*number));
        silence::describe(stuck.iter().map(|(_, path)| path.as_str()))
    }

    /// Reads a block of each disk, at the same time.
    async fn touch(&self, disks: &[Disk]) {
        join_all(disks.iter().map(async |disk| {
            let (machine, number, disk) = (Arc::clone(&self.machine), disk.number, disk.clone());
            let touch = move || machine.open(&disk).and_then(|open| open.touch());
            // An error is an answer
            drop(self.silence.ask(number, self.patience, touch).await);
        }))
        .await;
    }

    /// Names the disks that still have a waiting thread, if there are any.
    fn describe_silence(&self, disks: &[Disk]) -> Option<String> {
        let silent = disks.iter().filter(|disk| self.silence.is_waiting(disk.number));
        silence::describe(silent.map(|disk| disk.path.as_str()))
    }

    /// Scans a candidate and its group again. Fails if the disk may not be added.
    pub(super) async fn rescan(&self, groups: &DiskGroups, disk: &Disk) -> Result<FreeDisk, Refusal> {
        let failed = |error: ScanError| Refusal::Failed(error_chain(&error));
        let disks = self.disks().await.map_err(failed)?;
        let pvs = self.physical_volumes(&disks, |_| {}).await.map_err(failed)?;
        let labels = self.labels.borrow().clone();
        let group_findings = find_groups(groups, &pvs, labels.as_deref());
        let facts = Facts::new(groups, &pvs, &group_findings, labels.as_deref(), &disks);
        let same = |now: &&Disk| (now.number, now.sequence, &now.path) == (disk.number, disk.sequence, &disk.path);
        let now = disks.iter().find(same).ok_or_else(|| Refusal::Failed("it was removed".to_owned()))?;
        let mut finding = facts.evaluate(now.clone());
        limit_candidates(std::slice::from_mut(&mut finding), groups, &group_findings);
        let changed = || Refusal::Failed("it changed since the scan".to_owned());
        match finding.state {
            DiskState::Candidate => {}
            DiskState::Refused(reasons) => return Err(reasons.into_iter().next().unwrap_or_else(changed)),
            DiskState::NotSelected | DiskState::Member { .. } => return Err(changed()),
        }
        let group = finding.group.as_ref().and_then(|name| groups.get(name)).ok_or_else(changed)?.clone();
        let exists = group_findings.iter().any(|found| found.name == group.name && found.exists);
        Ok(FreeDisk { group, exists, path: now.path.clone(), _open: self.examine(now, Claims::WhileRead).await? })
    }

    /// Returns the open disk if it is blank and, with a claim, no other program uses it. Its number cannot become that
    /// of another disk while it is open. A blkid that is not waited for any more is ended.
    async fn examine(&self, disk: &Disk, claims: Claims) -> Result<Box<dyn OpenDisk>, Refusal> {
        let examining = async {
            let (open, contents) = self.read_disk(disk, claims).await?;
            let signature = self.lvm.signature(&disk.path).await.map_err(Refusal::Unreadable)?;
            match (signature, contents) {
                (Some(format), _) => Err(Refusal::Signature(format)),
                (None, Contents::Data(offset)) => Err(Refusal::Data(offset)),
                (None, Contents::Blank) => Ok(open),
            }
        };
        timeout(DISK_TIMEOUT, examining).await.unwrap_or_else(|_| Err(no_answer()))
    }

    /// Opens and reads a disk, in a thread that may wait forever. A claim does not last: LVM needs it itself.
    async fn read_disk(&self, disk: &Disk, claims: Claims) -> Result<(Box<dyn OpenDisk>, Contents), Refusal> {
        let (machine, number, disk) = (Arc::clone(&self.machine), disk.number, disk.clone());
        match self.silence.ask(number, DISK_TIMEOUT, move || read_disk(&*machine, &disk, claims)).await {
            Some(Ok(found)) => found,
            Some(Err(error)) => Err(Refusal::Unreadable(error.to_string())),
            None => Err(no_answer()),
        }
    }
}

fn no_answer() -> Refusal {
    Refusal::Unreadable("it does not answer".to_owned())
}

/// The time for which a disk is claimed, so that no other program can mount or format it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claims {
    /// Not at all: lvmd only reports it.
    Never,
    /// For an instant after it was read, to find out whether another program uses it.
    Briefly,
    /// While it is read, because LVM gets it next.
    WhileRead,
}

fn read_disk(machine: &dyn Machine, disk: &Disk, claims: Claims) -> Result<(Box<dyn OpenDisk>, Contents), Refusal> {
    let refused = |error: io::Error| {
        let is_claimed = error.kind() == io::ErrorKind::ResourceBusy;
        if is_claimed { Refusal::Claimed } else { Refusal::Unreadable(error.to_string()) }
    };
    let open = machine.open(disk).map_err(refused)?;
    let claim = if claims == Claims::WhileRead { Some(open.claim().map_err(refused)?) } else { None };
    let contents = open.contents().map_err(refused)?;
    drop(claim);
    if claims == Claims::Briefly {
        drop(open.claim().map_err(refused)?);
    }
    Ok((open, contents))
}

#[cfg(test)]
mod tests;
