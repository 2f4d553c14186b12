//! A request of a client to add a disk to its disk group, passed from the engine to the discovery of disks.

use tokio::sync::oneshot;

use crate::error::Error;

/// A disk that a client wants to be added.
#[derive(Debug)]
pub(crate) struct DiskAddition {
    /// Path of the disk, for example `/dev/sdb`.
    pub(crate) path: String,
    /// The path in `/dev/disk/by-id` that the disk must have; empty if it must have none.
    pub(crate) stable_name: String,
    /// Receives the outcome.
    pub(crate) answer: oneshot::Sender<Result<(), Error>>,
}
