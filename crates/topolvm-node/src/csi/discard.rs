//! Discards the free blocks of a new filesystem after it was published. mkfs leaves that out: a disk takes its time for
//! it, and the pod would have to wait.

use std::sync::Arc;

use linux_mount::Mounter;
use topolvm_runtime::{CancellationToken, error_chain};

use super::CsiError;
use super::discard_queue::Discard;
use super::mounts::Mounts;

impl<M: Mounter> Mounts<M> {
    /// Discards the free blocks of new filesystems until the shutdown begins. Nothing is lost when that does not come
    /// about: the disk only does not learn that the blocks are free.
    pub(super) async fn discard_free_blocks(self: Arc<Self>, shutdown: CancellationToken) -> anyhow::Result<()> {
        loop {
            while !shutdown.is_cancelled()
                && let Some(next) = self.discards.start_next(&shutdown)
            {
                let discarded = self.discard(&next).await;
                self.discards.end(&next);
                if let Err(error) = discarded {
                    let (path, error) = (next.target.display(), error_chain(&error));
                    tracing::warn!(%path, error, "cannot discard the free blocks of a new filesystem; run fstrim");
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = self.discards.pushed() => {}
            }
        }
    }

    async fn discard(&self, discard: &Discard) -> Result<(), CsiError> {
        // Of a path without a mount it would be the filesystem around it
        if self.access.mounter.mounts_at(&discard.target).await?.is_empty() {
            return Ok(());
        }
        Ok(self.access.mounter.discard_free_blocks(&discard.target, &discard.stop).await?)
    }
}
