//! Noticing what others change: an administrator's vgextend, another lvmd, a thin pool that fills up, a disk that goes.
//!
//! Every second the headers of the metadata areas are read, a block of each physical volume, and device-mapper is asked
//! about its devices; LVM is only asked when something is different. The alternatives know less: LVM's backup directory is in
//! another container as likely as not and can be switched off, and uevents tell of devices, not of metadata.

use std::sync::Arc;
use std::time::Duration;

use lvm::Host;
use tokio::time::Instant;
use topolvm_runtime::CancellationToken;

use super::Engine;
use super::group::{Group, Verdict};
use crate::marks;

/// Between two looks at the devices.
const EVERY: Duration = Duration::from_secs(1);
/// LVM is asked this often although nothing seems to have changed ...
const SAFETY: Duration = Duration::from_mins(10);
/// ... and this often if the devices do not tell.
const BLIND: Duration = Duration::from_mins(1);
/// After LVM failed it is asked again after a second, then twice as late each time, up to this.
const LAST_RETRY: Duration = Duration::from_mins(1);

/// Keeps what is known of a group true until the process is about to end, and removes what was left half made in it.
pub(super) async fn follow<R: Host>(
    engine: Engine<R>,
    group: Arc<Group>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let mut half_made = {
        let _turn = group.turn().await;
        engine.resume_suspended(&group).await;
        engine.sweep(&group, &[]).await
    };
    let (mut next_sweep, mut wait) = (Instant::now() + SAFETY, EVERY);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(wait) => {}
            // A change failed so that nobody knows what there is.
            () = group.doubt.notified(), if wait == EVERY => {}
        }
        // Where no class has volumes any more some may still be used, or have to be wiped.
        if !engine.is_used(&group) && !group.get().is_some_and(|known| known.volumes.iter().any(marks::is_managed)) {
            continue;
        }
        // Somebody changes the group and will know.
        let Some(turn) = group.free_turn() else { continue };
        let is_quiet = Instant::now() >= next_sweep;
        if !is_quiet && !engine.is_outdated(&group).await {
            wait = EVERY;
            continue;
        }
        // An LVM that hangs must not hold up the end
        let Some(asked) = shutdown.run_until_cancelled(engine.ask_lvm(&group)).await else { return Ok(()) };
        match asked {
            Ok(()) if is_quiet => {
                half_made = engine.sweep(&group, &half_made).await;
                next_sweep = Instant::now() + SAFETY;
                wait = EVERY;
            }
            Ok(()) => wait = EVERY,
            Err(_) => wait = LAST_RETRY.min(wait * 2),
        }
        drop(turn);
    }
}

impl<R: Host> Engine<R> {
    /// Whether LVM should be asked about a group. Takes over by the way how full its thin pools are.
    async fn is_outdated(&self, group: &Group) -> bool {
        let looks = group.look(self.devices()).await;
        // Device-mapper tells also while LVM waits for a disk.
        if looks.as_ref().is_ok_and(|looks| group.fill(looks.fills())) {
            self.publish();
        }
        if group.staleness().is_some() {
            return true;
        }
        let Ok(looks) = looks else { return group.age() >= BLIND };
        match group.judge(looks) {
            Verdict::Outdated => true,
            Verdict::Blind => group.age() >= BLIND,
            Verdict::Current => false,
        }
    }
}
