//! The objects that refer to volumes: PersistentVolumes and, to snapshots, VolumeSnapshotContents.

use cli_runtime::connection::Cluster;
use cli_runtime::request::{self, RequestError, RequestResult};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, ResourceExt as _};
use topolvm_api::{ApiFlavor, SnapshotContent, same_lv, waits_for_removal};

/// The objects that can refer to volumes.
#[derive(Debug, Default)]
pub(crate) struct References {
    persistent: Vec<PersistentVolume>,
    contents: Vec<SnapshotContent>,
}

/// An object that refers to a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reference<'a> {
    PersistentVolume(&'a PersistentVolume),
    SnapshotContent(&'a SnapshotContent),
}

impl Reference<'_> {
    /// Returns whether the object is on its way out together with the volume.
    pub(crate) fn waits_for_removal(self) -> bool {
        match self {
            Self::PersistentVolume(persistent) => waits_for_removal(persistent),
            Self::SnapshotContent(content) => content.waits_for_removal(),
        }
    }

    /// Returns kind and name of the object.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::PersistentVolume(persistent) => format!("PersistentVolume {}", persistent.name_any()),
            Self::SnapshotContent(content) => format!("VolumeSnapshotContent {}", content.name_any()),
        }
    }
}

impl References {
    /// Lists them.
    pub(crate) async fn list(cluster: &Cluster) -> RequestResult<Self> {
        let contents: Api<SnapshotContent> = Api::all(cluster.client.clone());
        let contents = match request::list(&contents, &(), "").await {
            // Not every cluster has snapshots
            Err(RequestError::Absent { .. }) => Vec::new(),
            listed => listed?,
        };
        Ok(Self { persistent: request::list_all(&cluster.client).await?, contents })
    }

    /// Finds what refers to the volume with this name in LVM, in quarantine or not.
    pub(crate) fn find(&self, flavor: ApiFlavor, lv: &str) -> Option<Reference<'_>> {
        let driver = flavor.driver_name();
        let refers = |persistent: &&PersistentVolume| {
            let csi = persistent.spec.as_ref().and_then(|spec| spec.csi.as_ref());
            csi.is_some_and(|csi| csi.driver == driver && same_lv(&csi.volume_handle, lv))
        };
        let persistent = self.persistent.iter().find(refers).map(Reference::PersistentVolume);
        let content = || self.contents.iter().find(|content| content.refers_to_lv(driver, lv));
        persistent.or_else(|| content().map(Reference::SnapshotContent))
    }
}
