//! Requests about snapshots, about copies and about lists, parsed once.

use topolvm_api::ApiFlavor;
use topolvm_proto::csi as pb;
use topolvm_proto::csi::volume_content_source::Type;

use super::{RequestError, required};
use crate::csi::topology::placement;
use crate::volumes::{NewSnapshot, Paging, SourceId};

/// What the volume is to be a copy of.
pub(crate) fn content_source(source: Option<&pb::VolumeContentSource>) -> Result<Option<SourceId>, RequestError> {
    let Some(source) = source else {
        return Ok(None);
    };
    match source.r#type.as_ref().ok_or(RequestError::Missing("kind of content source that this driver knows"))? {
        Type::Snapshot(snapshot) => {
            required(&snapshot.snapshot_id, "snapshot_id").map(|id| Some(SourceId::Snapshot(id.to_owned())))
        }
        Type::Volume(volume) => required(&volume.volume_id, "volume_id of the content source")
            .map(|id| Some(SourceId::Volume(id.to_owned()))),
    }
}

/// The snapshot that `CreateSnapshot` asks for.
pub(crate) fn create_snapshot(
    request: &pb::CreateSnapshotRequest,
    flavor: ApiFlavor,
) -> Result<NewSnapshot, RequestError> {
    Ok(NewSnapshot {
        // Kubernetes wants lower case; csi-snapshotter's names (snapshot-<uid>) are already
        name: required(&request.name, "name")?.to_lowercase(),
        source: required(&request.source_volume_id, "source_volume_id")?.to_owned(),
        placement: placement(flavor, request.accessibility_requirements.as_ref())?,
    })
}

/// Which snapshots `ListSnapshots` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListSnapshots {
    /// The one with this id, if it is not empty.
    pub(crate) id: String,
    /// Those of this volume, if it is not empty.
    pub(crate) source: String,
    pub(crate) paging: Paging,
}

impl TryFrom<pb::ListSnapshotsRequest> for ListSnapshots {
    type Error = RequestError;

    fn try_from(request: pb::ListSnapshotsRequest) -> Result<Self, RequestError> {
        Ok(Self {
            id: request.snapshot_id,
            source: request.source_volume_id,
            paging: paging(request.max_entries, request.starting_token)?,
        })
    }
}

/// The page that a list is asked for.
pub(crate) fn paging(max_entries: i32, token: String) -> Result<Paging, RequestError> {
    let max_entries = usize::try_from(max_entries).map_err(|_| RequestError::MaxEntries(max_entries))?;
    Ok(Paging { max_entries, token })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use topolvm_proto::csi::volume_content_source::{SnapshotSource, VolumeSource};

    use super::*;
    use crate::volumes::Placement;

    fn snapshot(id: &str) -> Type {
        Type::Snapshot(SnapshotSource { snapshot_id: id.to_owned() })
    }

    fn volume(id: &str) -> Type {
        Type::Volume(VolumeSource { volume_id: id.to_owned() })
    }

    #[rstest]
    #[case(snapshot("s"), SourceId::Snapshot("s".to_owned()))]
    #[case(volume("v"), SourceId::Volume("v".to_owned()))]
    fn a_source_is_a_snapshot_or_a_volume(#[case] kind: Type, #[case] id: SourceId) {
        assert_eq!(content_source(Some(&pb::VolumeContentSource { r#type: Some(kind) })), Ok(Some(id)));
    }

    #[rstest]
    #[case(None)]
    #[case(Some(snapshot("")))]
    #[case(Some(volume("")))]
    fn a_source_without_kind_or_id_is_refused(#[case] kind: Option<Type>) {
        let refusal = content_source(Some(&pb::VolumeContentSource { r#type: kind }));
        assert!(matches!(refusal, Err(RequestError::Missing(_))), "{refusal:?}");
    }

    #[test]
    fn a_snapshot_needs_a_name_and_a_source() {
        let mut request = pb::CreateSnapshotRequest::default();
        let parse = |request: &_| create_snapshot(request, ApiFlavor::TopoLvm);
        assert_eq!(parse(&request), Err(RequestError::Missing("name")));
        request.name = "Snapshot-1".to_owned();
        assert_eq!(parse(&request), Err(RequestError::Missing("source_volume_id")));
        request.source_volume_id = "v".to_owned();
        let (name, source) = ("snapshot-1".to_owned(), "v".to_owned());
        assert_eq!(parse(&request), Ok(NewSnapshot { name, source, placement: Placement::Anywhere }));
    }

    #[test]
    fn a_page_has_no_negative_number_of_entries() {
        assert_eq!(paging(-1, String::new()), Err(RequestError::MaxEntries(-1)));
        assert_eq!(paging(0, "t".to_owned()), Ok(Paging { max_entries: 0, token: "t".to_owned() }));
    }
}
