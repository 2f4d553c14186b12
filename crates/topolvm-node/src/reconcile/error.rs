//! Why an object could not be reconciled. Each of these is tried again.

use topolvm_api::ParseQuantityError;

use crate::lvmd;
use crate::mount::{self, DeviceUse};

/// Why an object could not be reconciled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server said no.
    #[error("cannot {action}")]
    Kube {
        /// What was tried.
        action: &'static str,
        /// What came back.
        source: Box<kube::Error>,
    },
    /// The API server said nothing.
    #[error("cannot {action}: the Kubernetes API server did not answer in time")]
    SlowApi {
        /// What was tried.
        action: &'static str,
    },
    /// A patch could not be formed.
    #[error("cannot form a patch")]
    Form(#[from] serde_json::Error),
    /// lvmd is away or busy.
    #[error("waiting for lvmd")]
    LvmdAway(#[source] lvmd::Error),
    /// What is to be copied is not made yet.
    #[error("waiting for the source, LogicalVolume {0}, which has no volume yet")]
    SourceNotReady(String),
    /// The volume cannot grow; the status says so, too.
    #[error("cannot expand the volume")]
    Expand(#[source] lvmd::Error),
    /// The wanted size is no size; the status says so, too.
    #[error("cannot expand the volume")]
    Size(#[from] ParseQuantityError),
    /// The LV cannot be removed.
    #[error("cannot remove the logical volume; the object stays until it is gone")]
    Remove(#[source] lvmd::Error),
    /// Removing it would give somebody the next volume that gets its device number.
    #[error(
        "the device of the logical volume is still in use: {}; the object stays until its last pod has ended on the node",
        .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    InUse(Vec<DeviceUse>),
    /// Nobody knows whether the device is in use.
    #[error("cannot find out whether the device of the logical volume is still in use")]
    DeviceUses(#[source] mount::Error),
    /// lvmd says that there is no such LV, and lists it.
    #[error("lvmd finds no logical volume {0} to remove, but lists it")]
    StillListed(String),
}

impl Error {
    /// The object is not there.
    pub(super) fn is_not_found(&self) -> bool {
        self.status().is_some_and(|code| code == 404)
    }

    /// The object is not there, or is another one of the same name: a patch that tests the UID is invalid then.
    pub(super) fn says_gone(&self) -> bool {
        self.status().is_some_and(|code| matches!(code, 404 | 409 | 422))
    }

    fn status(&self) -> Option<u16> {
        let Self::Kube { source, .. } = self else { return None };
        if let kube::Error::Api(status) = &**source { Some(status.code) } else { None }
    }
}
