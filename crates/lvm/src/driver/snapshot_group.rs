//! Creates thin snapshots of several volumes of a group with the contents of one moment.
//!
//! The filesystems of all sources are frozen first, so that none of them changes until LVM has taken the last snapshot.
//! Devices that are suspended would do as well, but LVM takes no snapshot of one that it did not suspend itself: it
//! does not send the message to the thin pool, which then no longer agrees with LVM's metadata.

use std::time::Duration;

use super::batch::{CreatedBatch, reports_created};
use super::{Lvm, messages};
use crate::volume::mapper_name;
use crate::{Error, Host, LvName, LvmCommand, NewSnapshot, Output, Tag, VgName};

/// Longest time that filesystems stay frozen. Their writers wait; the kernel logs those that wait for 120 seconds.
const FREEZE_LIMIT: Duration = Duration::from_secs(30);

impl<R: Host> Lvm<R> {
    /// Creates thin snapshots, as large as their sources and each with its own making tag, and removes the tags if LVM
    /// created all of them while nothing was written to any source. Otherwise the snapshots that exist keep their tags.
    /// `active` are the sources that have a device.
    pub async fn snapshot_group(
        &self,
        vg: &VgName,
        snapshots: &[(NewSnapshot<'_>, &Tag)],
        active: &[&LvName],
    ) -> CreatedBatch {
        let creations: Vec<_> = snapshots.iter().map(|(snapshot, _)| LvmCommand::snapshot(snapshot)).collect();
        let created = self.create_frozen(vg, snapshots, &creations, active).await;
        self.runner.record_outcome(&creations, created.as_ref().err());
        let names = || snapshots.iter().map(|(snapshot, making)| (snapshot.name, *making));
        match created {
            Ok(()) => match self.remove_making_tags(vg, names()).await {
                Ok(group) => CreatedBatch::of(group, names(), &vec![true; snapshots.len()]),
                Err(error) => CreatedBatch::unknown(error, snapshots.len()),
            },
            Err(error) => CreatedBatch::failed(error, self.volume_group(vg).await.ok(), snapshots.len()),
        }
    }

    /// Creates the snapshots while the sources are frozen. When it returns, none of them is.
    async fn create_frozen(
        &self,
        vg: &VgName,
        snapshots: &[(NewSnapshot<'_>, &Tag)],
        creations: &[LvmCommand],
        active: &[&LvName],
    ) -> Result<(), Error> {
        let Some(first) = creations.first() else { return Ok(()) };
        // Before the freeze, because it takes time
        let confined = self.confine(creations, &[]).await?;
        let devices: Vec<_> = active.iter().map(|source| mapper_name(vg, source.as_str(), "")).collect();
        let frozen = self.runner.freeze(&devices, FREEZE_LIMIT).await;
        let frozen = frozen.map_err(|error| Error::from_run(creations, error))?;
        let freeze = frozen.map_err(|Output { stderr, .. }| Error::NotFrozen { stderr: stderr.trim().to_owned() })?;
        let output = self.run_unconfined(&confined).await;
        let was_frozen = freeze.thaw().await;
        let output = output?;
        tracing::debug!(?devices, was_frozen, said = messages(&output), "took snapshots of one moment");
        if !snapshots.iter().all(|(snapshot, _)| reports_created(&output, snapshot.name)) {
            let error = Error::from_output(first, vg, None, &output);
            return Err(if matches!(error, Error::Frozen { .. }) { Error::FreezesOnce } else { error });
        }
        if was_frozen { Ok(()) } else { Err(Error::ThawedEarly { vg: vg.clone(), limit: FREEZE_LIMIT }) }
    }
}
