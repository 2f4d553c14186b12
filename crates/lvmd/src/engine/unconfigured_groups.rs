//! Finds volume groups that no device class names but that have volumes of lvmd's: volumes that are still used, and
//! volumes that an earlier process was wiping. A group that this machine never tagged, and so never had in its
//! configuration, is reported and left alone.

use std::time::Duration;

use lvm::{Host, VgName, VolumeGroup};
use topolvm_runtime::{Backoff, CancellationToken, error_chain};

use super::state::Engine;
use crate::tags;

/// Back-off after LVM failed.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_mins(10));

/// Retries [`Engine::track_unconfigured_groups`] after it failed at the start of the process, until it succeeds.
pub(super) async fn retry<R: Host>(
    engine: Engine<R>,
    mut failure: lvm::Error,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let retries = async {
        let mut backoff = BACKOFF;
        loop {
            let error = error_chain(&failure);
            tracing::warn!(error, "cannot look for volumes of lvmd's in other volume groups");
            tokio::time::sleep(backoff.fail()).await;
            match engine.track_unconfigured_groups().await {
                Ok(()) => return,
                Err(error) => failure = error,
            }
        }
    };
    shutdown.run_until_cancelled(retries).await;
    shutdown.cancelled().await;
    Ok(())
}

impl<R: Host> Engine<R> {
    /// Looks through all volume groups of the machine once, and tracks those that have volumes of lvmd's, or had when a
    /// class had them. Fails if one cannot be read, which does not hide the others.
    pub(super) async fn track_unconfigured_groups(&self) -> Result<(), lvm::Error> {
        let tracked: Vec<VgName> = self.groups().into_keys().collect();
        let former = self.former_groups();
        let is_former = |group: &VolumeGroup| former.iter().any(|former| former.uuid == group.uuid);
        let mut outcome = Ok(());
        for group in self.inner.lvm.volume_groups_except(&tracked).await? {
            match group {
                Ok(group) if group.volumes.iter().any(tags::is_managed) => {
                    let vg = &group.name;
                    if self.inner.lvm.owner().is_some_and(|tag| !group.has_tag(tag)) {
                        tracing::warn!(
                            %vg,
                            "a volume group without a device class has volumes of an lvmd; it is not tagged as \
                             that of this machine, and is left alone"
                        );
                        continue;
                    }
                    tracing::warn!(%vg, "volumes that lvmd made are in a volume group without a device class");
                    self.track_group(group);
                }
                // The tag that names it is taken off again
                Ok(group) if is_former(&group) => self.track_group(group),
                Ok(_) => {}
                Err(error @ lvm::Error::OtherMachine { .. }) => tracing::warn!("{error}"),
                Err(error) => outcome = Err(error),
            }
        }
        self.publish();
        outcome
    }
}
