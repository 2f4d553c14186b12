//! Filesystems that another process holds frozen, and thaws when this one dies.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin};
use tokio::time::timeout;

/// Text that the other process reads when the filesystems are to be thawed.
pub(crate) const DONE: &str = "done";
/// Timeout for its end.
const END_TIMEOUT: Duration = Duration::from_mins(1);

/// Frozen filesystems. Dropping it has them thawed by the process that froze them.
#[derive(Debug)]
#[must_use]
pub struct Freeze {
    process: Option<(Child, ChildStdin)>,
}

impl Freeze {
    /// Returns a freeze of nothing, for runners that work in memory.
    pub fn without_process() -> Self {
        Self { process: None }
    }

    pub(crate) fn of_process(child: Child, stdin: ChildStdin) -> Self {
        Self { process: Some((child, stdin)) }
    }

    /// Thaws the filesystems. Returns whether nothing can have been written to any of the devices until now: each
    /// filesystem was frozen all the time, and no device without one was opened.
    pub async fn thaw(self) -> bool {
        let Some((child, mut stdin)) = self.process else { return true };
        // Fails when the process has ended at its time limit
        let written = stdin.write_all(DONE.as_bytes()).await;
        drop(stdin);
        if let Ok(Ok(ended)) = timeout(END_TIMEOUT, child.wait_with_output()).await {
            if !ended.stderr.is_empty() {
                let stderr = String::from_utf8_lossy(&ended.stderr);
                tracing::warn!(stderr = stderr.trim(), "messages while filesystems were thawed");
            }
            ended.status.success() && written.is_ok()
        } else {
            tracing::error!("filesystems may still be frozen; run `fsfreeze --unfreeze DIRECTORY`");
            false
        }
    }
}
