//! The errors of wiping a volume.

use std::io;

use crate::error::Error;

#[derive(Debug, thiserror::Error)]
pub(super) enum WipeError {
    #[error(transparent)]
    Engine(#[from] Error),
    #[error("it is in use")]
    InUse,
    #[error("cannot open its device")]
    Open(#[source] io::Error),
    #[error("its device has only {device} of {volume} bytes")]
    Size { device: u64, volume: u64 },
    #[error("cannot wipe it at byte {at}")]
    Wipe {
        at: u64,
        #[source]
        source: io::Error,
    },
    #[error("cannot make sure that it stays wiped")]
    Flush(#[source] io::Error),
    #[error("the work broke off")]
    Interrupted(#[from] tokio::task::JoinError),
    #[error("the process is about to end")]
    Stopping,
}
