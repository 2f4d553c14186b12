//! Finds volume groups that no device class names but that have volumes of lvmd's: volumes that are still used, and
//! volumes that an earlier process was wiping. A group that this machine never tagged, and so never had in its
//! configuration, is reported and left alone.

use std::sync::Arc;
use std::time::Duration;

use lvm::{Host, VgName, VolumeGroup};
use lvmd_config::tags;
use topolvm_runtime::{Backoff, error_chain};

use super::group_tags::former_groups;
use super::state::Shared;
use super::tracking::track_group;

/// Back-off after LVM failed.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_mins(10));

/// The volume groups that no device class names.
pub(super) struct UnconfiguredGroups<R> {
    shared: Arc<Shared<R>>,
}

impl<R: Host> UnconfiguredGroups<R> {
    pub(super) fn new(shared: Arc<Shared<R>>) -> Self {
        Self { shared }
    }

    /// Retries [`Self::track_all`] after it failed at the start of the process, until it succeeds.
    pub(super) async fn retry(self, mut failure: lvm::Error) -> anyhow::Result<()> {
        let retries = async {
            let mut backoff = BACKOFF;
            loop {
                let error = error_chain(&failure);
                tracing::warn!(error, "cannot search other volume groups for volumes of lvmd's");
                tokio::time::sleep(backoff.fail()).await;
                match self.track_all().await {
                    Ok(()) => return,
                    Err(error) => failure = error,
                }
            }
        };
        self.shared.shutdown.run_until_cancelled(retries).await;
        self.shared.shutdown.cancelled().await;
        Ok(())
    }

    /// Reads all volume groups of the machine once, and tracks those that have volumes of lvmd's, or had when a class
    /// had them. Fails if one cannot be read, which does not hide the others.
    pub(super) async fn track_all(&self) -> Result<(), lvm::Error> {
        let tracked: Vec<VgName> = self.shared.groups().into_keys().collect();
        let former = former_groups(&self.shared);
        let is_former = |group: &VolumeGroup| former.iter().any(|former| former.uuid == group.uuid);
        let mut outcome = Ok(());
        for group in self.shared.reader().volume_groups_except(&tracked).await? {
            match group {
                Ok(group) if group.volumes.iter().any(tags::is_managed) => self.track_managed(group),
                // The tag that names it is removed again
                Ok(group) if is_former(&group) => track_group(&self.shared, group),
                Ok(_) => {}
                Err(error @ lvm::Error::OtherMachine { .. }) => tracing::warn!("{error}"),
                Err(error) => outcome = Err(error),
            }
        }
        self.shared.publish();
        outcome
    }

    /// Tracks a group with volumes of an lvmd, if it is one of this machine.
    fn track_managed(&self, group: VolumeGroup) {
        let vg = &group.name;
        if self.shared.reader().owner().is_some_and(|tag| !group.has_tag(tag)) {
            tracing::warn!(
                %vg,
                "a volume group without a device class has volumes of an lvmd; it is not tagged as that of this \
                 machine, and is left alone"
            );
            return;
        }
        tracing::warn!(%vg, "volumes that lvmd made are in a volume group without a device class");
        track_group(&self.shared, group);
    }
}
