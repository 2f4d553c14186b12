//! The source of a volume that is a copy: a VolumeSnapshot, or another claim.

use csi_calls::Capabilities;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use topolvm_api::claim::{storage_class, volume_name};
use topolvm_api::{SNAPSHOT_GROUP, SnapshotContent, parse_bytes};
use topolvm_kube::{ReconcileError, has_finalizer, none_if_not_found};
use topolvm_proto::csi::VolumeContentSource;
use topolvm_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};

use crate::error::{PrepareError, SourceProblem};
use crate::known_volume::KnownVolume;
use crate::source_protection::{RESTORING_FINALIZER, protect_claim, protect_snapshot};
use crate::volume_request::{is_block, requested_bytes};
use crate::volume_snapshot::VolumeSnapshot;

const SNAPSHOT: &str = "VolumeSnapshot";
const CLAIM: &str = "PersistentVolumeClaim";
/// Annotation of a VolumeSnapshotContent whose volumes may have another mode than its source.
const ALLOW_MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";

/// The source that a claim names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DataSource {
    /// A VolumeSnapshot of the namespace of the claim.
    Snapshot(String),
    /// Another claim of the namespace.
    Claim(String),
    /// An object of this kind, from which a volume populator makes the volume.
    Populator(String),
}

impl DataSource {
    /// Reads the source that a claim names.
    pub(crate) fn of_claim(claim: &PersistentVolumeClaim) -> Result<Option<Self>, PrepareError> {
        let Some(spec) = &claim.spec else { return Ok(None) };
        let (group, kind, name) = if let Some(source) = &spec.data_source {
            (source.api_group.as_deref(), source.kind.as_str(), source.name.as_str())
        } else if let Some(source) = &spec.data_source_ref {
            if source.namespace.as_ref().is_some_and(|namespace| !namespace.is_empty()) {
                return Err(PrepareError::SourceInOtherNamespace);
            }
            (source.api_group.as_deref(), source.kind.as_str(), source.name.as_str())
        } else {
            return Ok(None);
        };
        if name.is_empty() {
            return Err(PrepareError::UnnamedSource);
        }
        Ok(Some(match (group.unwrap_or_default(), kind) {
            (SNAPSHOT_GROUP, SNAPSHOT) => Self::Snapshot(name.to_owned()),
            ("", CLAIM) => Self::Claim(name.to_owned()),
            (_, kind) => Self::Populator(kind.to_owned()),
        }))
    }

    /// Checks that the driver copies such a source.
    pub(crate) fn check_supported(&self, capabilities: Capabilities) -> Result<(), PrepareError> {
        match self {
            Self::Snapshot(_) if !capabilities.snapshots => Err(PrepareError::SourceUnsupported(SNAPSHOT)),
            Self::Claim(_) if !capabilities.clones => Err(PrepareError::SourceUnsupported(CLAIM)),
            Self::Snapshot(_) | Self::Claim(_) | Self::Populator(_) => Ok(()),
        }
    }
}

/// Finds what the source of a claim is to the driver, and protects it from deletion.
pub(crate) struct SourceFinder<'a> {
    pub(crate) client: &'a Client,
    pub(crate) driver: &'a str,
    pub(crate) claim: &'a PersistentVolumeClaim,
}

impl SourceFinder<'_> {
    /// Finds the snapshot of this name.
    pub(crate) async fn find_snapshot(&self, name: &str) -> Result<VolumeContentSource, PrepareError> {
        let refuse = |problem| PrepareError::SourceNotUsable { kind: SNAPSHOT, name: name.to_owned(), problem };
        let api: Api<VolumeSnapshot> = Api::namespaced(self.client.clone(), &self.namespace());
        let snapshot = none_if_not_found(api.get(name).await);
        let snapshot = snapshot.map_err(ReconcileError::api("read VolumeSnapshot", name))?;
        let snapshot = snapshot.ok_or_else(|| PrepareError::SourceMissing { kind: SNAPSHOT, name: name.to_owned() })?;
        // One with the finalizer was being restored before it was deleted
        if snapshot.metadata.deletion_timestamp.is_some() && !has_finalizer(&snapshot.metadata, RESTORING_FINALIZER) {
            return Err(refuse(SourceProblem::Deleted));
        }
        let content = snapshot.status.bound_volume_snapshot_content_name.as_deref();
        let content = content.ok_or_else(|| refuse(SourceProblem::NotBound))?;
        let found = none_if_not_found(Api::<SnapshotContent>::all(self.client.clone()).get(content).await);
        let found = found.map_err(ReconcileError::api("read VolumeSnapshotContent", content))?;
        let content = found.ok_or_else(|| refuse(SourceProblem::NotBound))?;
        let handle = self.check_snapshot(&snapshot, &content).map_err(|error| match error {
            SourceCheckError::Problem(problem) => refuse(problem),
            SourceCheckError::Prepare(error) => error,
        })?;
        protect_snapshot(self.client, &snapshot).await?;
        Ok(csi_source(Type::Snapshot(SnapshotSource { snapshot_id: handle })))
    }

    /// Finds the claim of this name, and its volume among the known ones.
    pub(crate) async fn find_claim(&self, name: &str) -> Result<VolumeContentSource, PrepareError> {
        let refuse = |problem| PrepareError::SourceNotUsable { kind: CLAIM, name: name.to_owned(), problem };
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &self.namespace());
        let source = none_if_not_found(api.get(name).await).map_err(ReconcileError::api("read claim", name))?;
        let source = source.ok_or_else(|| PrepareError::SourceMissing { kind: CLAIM, name: name.to_owned() })?;
        let volume = volume_name(&source).ok_or_else(|| refuse(SourceProblem::NotBound))?;
        let found = none_if_not_found(Api::<PersistentVolume>::all(self.client.clone()).get(volume).await);
        let found = found.map_err(ReconcileError::api("read PersistentVolume", volume))?;
        let found = found.ok_or_else(|| refuse(SourceProblem::NotBound))?;
        let handle = self.check_claim(&source, &found).map_err(|error| match error {
            SourceCheckError::Problem(problem) => refuse(problem),
            SourceCheckError::Prepare(error) => error,
        })?;
        protect_claim(self.client, &source).await?;
        Ok(csi_source(Type::Volume(VolumeSource { volume_id: handle })))
    }

    fn namespace(&self) -> String {
        self.claim.namespace().unwrap_or_default()
    }

    /// Returns the id of a snapshot that may be restored to the claim.
    fn check_snapshot(&self, snapshot: &VolumeSnapshot, content: &SnapshotContent) -> Result<String, SourceCheckError> {
        let bound = &content.spec.volume_snapshot_ref;
        let is_bound = bound.uid == snapshot.metadata.uid
            && bound.namespace == snapshot.metadata.namespace
            && bound.name == snapshot.metadata.name;
        if !is_bound {
            return Err(SourceProblem::BoundToOther.into());
        }
        if content.spec.driver != self.driver {
            return Err(SourceProblem::OtherDriver(content.spec.driver.clone()).into());
        }
        let handle = content.status.snapshot_handle.clone().filter(|_| snapshot.status.ready_to_use == Some(true));
        let handle = handle.ok_or(SourceProblem::NotReady)?;
        if let Some(size) = &snapshot.status.restore_size {
            self.check_size(parse_bytes(size).map_err(PrepareError::from)?)?;
        }
        if let Some(mode) = &content.spec.source_volume_mode {
            let requested = self.claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref());
            let may_change = content.annotations().get(ALLOW_MODE_CHANGE).is_some_and(|value| value == "true");
            if requested.is_some_and(|requested| requested != mode) && !may_change {
                return Err(SourceProblem::ModeChange { mode: mode.clone(), content: content.name_any() }.into());
            }
        }
        Ok(handle)
    }

    /// Returns the id of the volume of a claim that may be cloned to this one.
    fn check_claim(
        &self,
        source: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<String, SourceCheckError> {
        if source.meta().deletion_timestamp.is_some() {
            return Err(SourceProblem::Deleted.into());
        }
        if storage_class(source).is_none() {
            return Err(SourceProblem::WithoutClass.into());
        }
        let driver = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()).map_or("none", |csi| csi.driver.as_str());
        let Some(known) = KnownVolume::from_object(self.driver, volume) else {
            return Err(SourceProblem::OtherDriver(driver.to_owned()).into());
        };
        let phase = source.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase != Some("Bound") || known.phase != "Bound" {
            return Err(SourceProblem::NotBound.into());
        }
        let is_bound = known.claim.as_ref().is_some_and(|claim| {
            Some(&claim.uid) == source.metadata.uid.as_ref()
                && Some(&claim.namespace) == source.metadata.namespace.as_ref()
                && Some(&claim.name) == source.metadata.name.as_ref()
        });
        if !is_bound {
            return Err(SourceProblem::BoundToOther.into());
        }
        self.check_size(requested_bytes(source)?)?;
        if known.is_block != is_block(self.claim) {
            return Err(SourceProblem::OtherMode(if known.is_block { "Block" } else { "Filesystem" }).into());
        }
        Ok(known.handle)
    }

    fn check_size(&self, source_bytes: u64) -> Result<(), SourceCheckError> {
        let requested = requested_bytes(self.claim)?;
        if requested < source_bytes {
            return Err(SourceProblem::Larger { source_bytes, requested }.into());
        }
        Ok(())
    }
}

/// A check of a source failed, or could not be made.
#[derive(Debug)]
enum SourceCheckError {
    Problem(SourceProblem),
    Prepare(PrepareError),
}

impl From<SourceProblem> for SourceCheckError {
    fn from(problem: SourceProblem) -> Self {
        Self::Problem(problem)
    }
}

impl From<PrepareError> for SourceCheckError {
    fn from(error: PrepareError) -> Self {
        Self::Prepare(error)
    }
}

/// Returns a source for CSI.
fn csi_source(r#type: Type) -> VolumeContentSource {
    VolumeContentSource { r#type: Some(r#type) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "callers write the JSON in the call")]
    fn claim(spec: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "copy", "namespace": "default"}, "spec": spec})).unwrap()
    }

    #[rstest]
    #[case::none(json!({}), None)]
    #[case::snapshot(
        json!({"dataSource": {"apiGroup": SNAPSHOT_GROUP, "kind": "VolumeSnapshot", "name": "s"}}),
        Some(DataSource::Snapshot("s".to_owned())),
    )]
    #[case::claim(
        json!({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "c"}}),
        Some(DataSource::Claim("c".to_owned())),
    )]
    #[case::populator(
        json!({"dataSourceRef": {"apiGroup": "a.example", "kind": "Image", "name": "i"}}),
        Some(DataSource::Populator("Image".to_owned())),
    )]
    fn data_source_is_read_from_either_field(#[case] spec: Value, #[case] expected: Option<DataSource>) {
        assert_eq!(DataSource::of_claim(&claim(spec)).unwrap(), expected);
    }

    #[rstest]
    #[case(json!({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "c", "namespace": "other"}}))]
    #[case(json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": ""}}))]
    fn data_source_is_refused(#[case] spec: Value) {
        assert!(DataSource::of_claim(&claim(spec)).unwrap_err().is_permanent());
    }
}
