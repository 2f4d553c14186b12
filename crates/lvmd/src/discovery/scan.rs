//! One look at all disks, which changes nothing.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use block_device::{Contents, Disk, Machine, Number, OpenDisk};
use lvm::{CommandRunner, GroupDisk, Lvm};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use topolvm_runtime::error_chain;

use super::eligibility::{Facts, find_groups, limit_candidates};
use crate::disk_group::{DiskGroup, DiskGroups, NodeLabels};
use crate::disk_report::{DiskReport, Refusal, Verdict};

/// Timeout for what is read of a disk. One that does not answer must not keep the others from being found.
const DISK_TIMEOUT: Duration = Duration::from_secs(30);

/// The errors of a look at all disks.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The inventory cannot be read.
    #[error(
        "cannot list the disks of the machine; in a container lvmd needs hostPID and a privileged security context"
    )]
    Inventory(#[source] io::Error),
    /// LVM does not list its physical volumes.
    #[error("LVM does not list the physical volumes of the machine")]
    Lvm(#[source] lvm::Error),
}

/// Looks at the disks of a machine. Clones share what they know of disks that hang.
#[derive(Debug)]
pub struct Scanner<M, R> {
    machine: Arc<M>,
    lvm: Lvm<R>,
    /// The labels of this node; `None` until somebody tells them.
    labels: watch::Receiver<Option<Arc<NodeLabels>>>,
    /// Disks that a thread waits for.
    busy: Arc<Mutex<HashSet<Number>>>,
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
    /// True if the volume group is there.
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
            busy: Arc::clone(&self.busy),
        }
    }
}

impl<M: Machine, R: CommandRunner> Scanner<M, R> {
    /// Looks at the disks of this machine with this LVM, on a node that has the labels of the channel at the time.
    pub fn new(machine: M, lvm: Lvm<R>, labels: watch::Receiver<Option<Arc<NodeLabels>>>) -> Self {
        Self { machine: Arc::new(machine), lvm, labels, busy: Arc::default() }
    }

    /// Reports all disks.
    pub async fn report(&self, groups: &DiskGroups) -> Result<DiskReport, ScanError> {
        self.scan(groups).await.map(|scan| scan.report)
    }

    pub(super) async fn scan(&self, groups: &DiskGroups) -> Result<Scan, ScanError> {
        let (disks, pvs) = self.inventory().await?;
        let labels = self.labels.borrow().clone();
        let group_findings = find_groups(groups, &pvs, labels.as_deref());
        let facts = Facts::new(groups, &pvs, &group_findings, labels.as_deref(), &disks);
        let mut findings: Vec<_> = disks.iter().cloned().map(|disk| facts.judge(disk)).collect();
        for finding in findings.iter_mut().filter(|finding| finding.verdict == Verdict::Candidate) {
            if let Err(refusal) = self.examine(&finding.disk).await {
                finding.verdict = Verdict::Refused(vec![refusal]);
            }
        }
        limit_candidates(&mut findings, groups, &group_findings);
        Ok(Scan { report: DiskReport { disks: findings, groups: group_findings, failure: None }, pvs })
    }

    /// Lists the disks and LVM's physical volumes.
    async fn inventory(&self) -> Result<(Vec<Disk>, Vec<GroupDisk>), ScanError> {
        let machine = Arc::clone(&self.machine);
        let disks = spawn_blocking(move || machine.disks()).await.map_err(io::Error::other);
        let disks = disks.and_then(|disks| disks).map_err(ScanError::Inventory)?;
        Ok((disks, self.lvm.physical_volumes().await.map_err(ScanError::Lvm)?))
    }

    /// Looks once more at a candidate and its group. Fails if it may not be added.
    pub(super) async fn look_again(&self, groups: &DiskGroups, disk: &Disk) -> Result<FreeDisk, Refusal> {
        let failed = |error: ScanError| Refusal::Failed(error_chain(&error));
        let (disks, pvs) = self.inventory().await.map_err(failed)?;
        let labels = self.labels.borrow().clone();
        let group_findings = find_groups(groups, &pvs, labels.as_deref());
        let facts = Facts::new(groups, &pvs, &group_findings, labels.as_deref(), &disks);
        let same = |now: &&Disk| (now.number, now.sequence, &now.path) == (disk.number, disk.sequence, &disk.path);
        let now = disks.iter().find(same).ok_or_else(|| Refusal::Failed("it has gone".to_owned()))?;
        let mut finding = facts.judge(now.clone());
        limit_candidates(std::slice::from_mut(&mut finding), groups, &group_findings);
        let changed = || Refusal::Failed("it is not the same any more".to_owned());
        match finding.verdict {
            Verdict::Candidate => {}
            Verdict::Refused(reasons) => return Err(reasons.into_iter().next().unwrap_or_else(changed)),
            Verdict::NotSelected | Verdict::Member { .. } => return Err(changed()),
        }
        let group = finding.group.as_ref().and_then(|name| groups.get(name)).ok_or_else(changed)?.clone();
        let exists = group_findings.iter().any(|found| found.name == group.name && found.exists);
        Ok(FreeDisk { group, exists, path: now.path.clone(), _open: self.examine(now).await? })
    }

    /// Returns the open disk if it is blank and nobody uses it. Its number cannot become that of another disk while it
    /// is open.
    async fn examine(&self, disk: &Disk) -> Result<Box<dyn OpenDisk>, Refusal> {
        let (open, contents) = self.look(disk).await?;
        let signature = self.lvm.signature(&disk.path).await.map_err(Refusal::Unreadable)?;
        match (signature, contents) {
            (Some(format), _) => Err(Refusal::Signature(format)),
            (None, Contents::Data(offset)) => Err(Refusal::Data(offset)),
            (None, Contents::Blank) => Ok(open),
        }
    }

    /// Opens, claims and reads a disk, in a thread that may wait for ever. The claim does not last: LVM needs it
    /// itself.
    async fn look(&self, disk: &Disk) -> Result<(Box<dyn OpenDisk>, Contents), Refusal> {
        let number = disk.number;
        let no_answer = || Refusal::Unreadable("it does not answer".to_owned());
        if !self.busy.lock().insert(number) {
            return Err(no_answer());
        }
        let (machine, disk, busy) = (Arc::clone(&self.machine), disk.clone(), Arc::clone(&self.busy));
        let looking = spawn_blocking(move || {
            let found = look(&*machine, &disk);
            busy.lock().remove(&number);
            found
        });
        match timeout(DISK_TIMEOUT, looking).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => Err(Refusal::Unreadable(error.to_string())),
            Err(_) => Err(no_answer()),
        }
    }
}

fn look(machine: &dyn Machine, disk: &Disk) -> Result<(Box<dyn OpenDisk>, Contents), Refusal> {
    let refused = |error: io::Error| {
        let is_claimed = error.kind() == io::ErrorKind::ResourceBusy;
        if is_claimed { Refusal::Claimed } else { Refusal::Unreadable(error.to_string()) }
    };
    let open = machine.open(disk).map_err(refused)?;
    // Held while it is read, so that nobody begins to use it in between
    let claim = open.claim().map_err(refused)?;
    let contents = open.contents().map_err(refused)?;
    drop(claim);
    Ok((open, contents))
}
