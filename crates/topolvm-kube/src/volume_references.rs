//! The objects that refer to a volume: a PersistentVolume or, to a snapshot, a VolumeSnapshotContent. The API server is
//! asked, and never a cache.

use std::fmt;
use std::pin::pin;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use topolvm_api::{ApiFlavor, LogicalVolume, RemovalFailure, SnapshotContent, refers_to, waits_for_removal};

use crate::api_server::{ApiError, DEADLINE, call};
use crate::list::list_in_pages;

/// An object that refers to a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeReference {
    /// A PersistentVolume.
    PersistentVolume {
        /// Its name.
        name: String,
        /// Namespace and name of its claim, with a slash between them.
        claim: Option<String>,
        /// True if it keeps the volume when its claim goes.
        is_retained: bool,
    },
    /// A VolumeSnapshotContent.
    SnapshotContent {
        /// Its name.
        name: String,
    },
}

impl VolumeReference {
    fn of_persistent_volume(persistent: &PersistentVolume) -> Self {
        let spec = persistent.spec.as_ref();
        let claim = spec.and_then(|spec| spec.claim_ref.as_ref());
        let claim = claim.and_then(|claim| Some(format!("{}/{}", claim.namespace.as_ref()?, claim.name.as_ref()?)));
        let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
        Self::PersistentVolume { name: persistent.name_any(), claim, is_retained: policy != Some("Delete") }
    }

    fn of_snapshot_content(content: &SnapshotContent) -> Self {
        Self::SnapshotContent { name: content.name_any() }
    }

    /// Returns the reason for which the LV stays.
    pub const fn removal_failure(&self) -> RemovalFailure {
        match self {
            Self::PersistentVolume { .. } => RemovalFailure::PersistentVolumeExists,
            Self::SnapshotContent { .. } => RemovalFailure::VolumeSnapshotContentExists,
        }
    }

    /// Returns what an administrator deletes to have the volume removed with its data.
    pub fn owner(&self) -> String {
        match self {
            Self::PersistentVolume { claim: Some(claim), is_retained: false, .. } => format!("claim {claim}"),
            Self::PersistentVolume { name, .. } => format!("PersistentVolume {name}"),
            Self::SnapshotContent { .. } => "VolumeSnapshot".to_owned(),
        }
    }
}

impl fmt::Display for VolumeReference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PersistentVolume { name, claim: Some(claim), .. } => {
                write!(formatter, "PersistentVolume {name} of claim {claim}")
            }
            Self::PersistentVolume { name, claim: None, .. } => write!(formatter, "PersistentVolume {name}"),
            Self::SnapshotContent { name } => write!(formatter, "VolumeSnapshotContent {name}"),
        }
    }
}

/// The objects of the API server that can refer to volumes of a driver.
#[derive(Clone, Debug)]
pub struct VolumeReferences {
    driver: &'static str,
    persistent_volumes: Api<PersistentVolume>,
    snapshot_contents: Api<SnapshotContent>,
}

impl VolumeReferences {
    /// Makes the objects that can refer to volumes of the driver of this API group.
    pub fn new(flavor: ApiFlavor, client: Client) -> Self {
        Self {
            driver: flavor.driver_name(),
            persistent_volumes: Api::all(client.clone()),
            snapshot_contents: Api::all(client),
        }
    }

    /// Returns whether there is a PersistentVolume of this name.
    pub async fn has_persistent_volume(&self, name: &str) -> Result<bool, ApiError> {
        Ok(call(DEADLINE, self.persistent_volumes.get_metadata_opt(name)).await?.is_some())
    }

    /// Returns the volume handle of the PersistentVolume of this name; `None` if there is none, or one of another
    /// driver.
    pub async fn find_volume_handle(&self, name: &str) -> Result<Option<String>, ApiError> {
        let found = call(DEADLINE, self.persistent_volumes.get_opt(name)).await?;
        let csi = found.and_then(|found| found.spec?.csi).filter(|csi| csi.driver == self.driver);
        Ok(csi.map(|csi| csi.volume_handle))
    }

    /// Searches all objects for one that refers to the volume or snapshot with this id, whatever its name is.
    pub async fn search(&self, id: &str) -> Result<Option<VolumeReference>, ApiError> {
        let persistent = self.search_persistent_volumes(|found| refers_to(found, self.driver, id)).await?;
        if persistent.is_some() {
            return Ok(persistent);
        }
        self.search_snapshot_contents(|found| found.refers_to(self.driver, id)).await
    }

    /// Returns what still needs the volume of an object that is deleted: an object that refers to it, and is not itself
    /// on its way out together with the volume. For a volume of csi-provisioner or csi-snapshotter this takes one
    /// request, because they name their objects after it.
    pub async fn find_user(&self, volume: &LogicalVolume) -> Result<Option<VolumeReference>, ApiError> {
        // What was never made cannot be referred to
        let Some(id) = volume.volume_id() else { return Ok(None) };
        if volume.is_snapshot() {
            self.find_user_of_snapshot(volume.name(), id).await
        } else {
            self.find_user_of_volume(volume.name(), id).await
        }
    }

    async fn find_user_of_volume(&self, name: &str, id: &str) -> Result<Option<VolumeReference>, ApiError> {
        let is_user = |found: &PersistentVolume| !waits_for_removal(found);
        let named = call(DEADLINE, self.persistent_volumes.get_opt(name)).await?;
        match named.filter(|found| refers_to(found, self.driver, id)) {
            Some(found) => Ok(is_user(&found).then(|| VolumeReference::of_persistent_volume(&found))),
            None => self.search_persistent_volumes(|found| refers_to(found, self.driver, id) && is_user(found)).await,
        }
    }

    async fn find_user_of_snapshot(&self, name: &str, id: &str) -> Result<Option<VolumeReference>, ApiError> {
        let is_user = |found: &SnapshotContent| !found.waits_for_removal();
        // snapshot-controller and csi-snapshotter name both after the UID of the VolumeSnapshot
        let named = match name.strip_prefix("snapshot-") {
            Some(uid) => {
                let name = format!("snapcontent-{uid}");
                unless_unserved(call(DEADLINE, self.snapshot_contents.get_opt(&name)).await)?
            }
            None => None,
        };
        match named.filter(|found| found.refers_to(self.driver, id)) {
            Some(found) => Ok(is_user(&found).then(|| VolumeReference::of_snapshot_content(&found))),
            None => self.search_snapshot_contents(|found| found.refers_to(self.driver, id) && is_user(found)).await,
        }
    }

    async fn search_persistent_volumes(
        &self,
        matches: impl Fn(&PersistentVolume) -> bool,
    ) -> Result<Option<VolumeReference>, ApiError> {
        let found = call(DEADLINE, search(&self.persistent_volumes, matches)).await?;
        Ok(found.as_ref().map(VolumeReference::of_persistent_volume))
    }

    async fn search_snapshot_contents(
        &self,
        matches: impl Fn(&SnapshotContent) -> bool,
    ) -> Result<Option<VolumeReference>, ApiError> {
        let found = unless_unserved(call(DEADLINE, search(&self.snapshot_contents, matches)).await)?;
        Ok(found.as_ref().map(VolumeReference::of_snapshot_content))
    }
}

/// Treats an answer about objects without a CustomResourceDefinition as "none exists".
fn unless_unserved<T>(answer: Result<Option<T>, ApiError>) -> Result<Option<T>, ApiError> {
    match answer {
        Err(error) if error.status() == Some(404) => Ok(None),
        answer => answer,
    }
}

async fn search<K>(api: &Api<K>, matches: impl Fn(&K) -> bool) -> kube::Result<Option<K>>
where
    K: Clone + fmt::Debug + DeserializeOwned,
{
    let mut all = pin!(list_in_pages(api, ListParams::default()));
    while let Some(found) = all.try_next().await? {
        if matches(&found) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
