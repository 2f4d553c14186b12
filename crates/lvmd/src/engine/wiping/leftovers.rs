//! Volumes of lvmd's in volume groups that the configuration does not name any more: those that can still be used, and those that an
//! earlier process was wiping.

use std::time::Duration;

use lvm::{Host, VgName};
use topolvm_runtime::{CancellationToken, error_chain};

use crate::engine::Engine;
use crate::marks;

/// After LVM failed it is asked again after this, then twice as late each time ...
const FIRST_RETRY: Duration = Duration::from_secs(10);
/// ... up to this.
const LAST_RETRY: Duration = Duration::from_mins(10);

/// Looks for them again and again when it failed at the start of the process, until it has looked.
pub(in crate::engine) async fn look_for_leftovers<R: Host>(
    engine: Engine<R>,
    mut failure: lvm::Error,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let looking = async {
        let mut retry = FIRST_RETRY;
        loop {
            let error = error_chain(&failure);
            tracing::warn!(error, "cannot look for volumes of lvmd's in other volume groups");
            tokio::time::sleep(retry).await;
            retry = LAST_RETRY.min(retry * 2);
            match engine.adopt_leftovers().await {
                Ok(()) => return,
                Err(error) => failure = error,
            }
        }
    };
    shutdown.run_until_cancelled(looking).await;
    shutdown.cancelled().await;
    Ok(())
}

impl<R: Host> Engine<R> {
    /// Looks for them once. Groups with such volumes are looked after from then on.
    pub(in crate::engine) async fn adopt_leftovers(&self) -> Result<(), lvm::Error> {
        let known: Vec<VgName> = self.groups().into_keys().collect();
        for group in self.inner.lvm.volume_groups_except(&known).await? {
            if group.volumes.iter().any(marks::is_managed) {
                tracing::warn!(vg = %group.name, "volumes that lvmd made are in a volume group without a device class");
                self.look_after(group);
            }
        }
        self.publish();
        Ok(())
    }
}
