//! A request of a client to add a disk to its disk group, passed from the engine to the discovery of disks.

use tokio::sync::oneshot;

use crate::error::Error;

/// A disk that a client wants to be added.
#[derive(Debug)]
pub struct DiskAddition {
    /// Path of the disk, for example `/dev/sdb`.
    pub path: String,
    /// The path in `/dev/disk/by-id` that the disk must have; empty if it must have none.
    pub stable_name: String,
    /// Receives the outcome.
    pub answer: oneshot::Sender<Result<(), Error>>,
}
