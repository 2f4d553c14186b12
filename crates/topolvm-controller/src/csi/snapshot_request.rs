//! Parses requests about snapshots, about the source of a copy, and about pages of lists.

use std::collections::BTreeSet;

use topolvm_api::{ApiFlavor, MAX_SNAPSHOT_GROUP};
use topolvm_proto::csi as pb;
use topolvm_proto::csi::volume_content_source::Type;

use super::request::{RequestError, required_field};
use super::topology::parse_placement;
use crate::volumes::{ContentSource, PageRequest, SnapshotGroupRequest, SnapshotRequest};

/// Parses the snapshot or volume that a new volume is to be a copy of.
pub(crate) fn parse_content_source(
    source: Option<&pb::VolumeContentSource>,
) -> Result<Option<ContentSource>, RequestError> {
    let Some(source) = source else { return Ok(None) };
    let kind = source.r#type.as_ref();
    Ok(Some(match kind.ok_or(RequestError::MissingField("supported kind of content source"))? {
        Type::Snapshot(source) => {
            ContentSource::Snapshot(required_field(&source.snapshot_id, "snapshot_id")?.to_owned())
        }
        Type::Volume(source) => {
            ContentSource::Volume(required_field(&source.volume_id, "volume_id of the content source")?.to_owned())
        }
    }))
}

/// Parses the snapshot that `CreateSnapshot` asks for.
pub(crate) fn parse_create_snapshot(
    request: &pb::CreateSnapshotRequest,
    flavor: ApiFlavor,
) -> Result<SnapshotRequest, RequestError> {
    Ok(SnapshotRequest {
        // Kubernetes wants lower case; csi-snapshotter's names (snapshot-<uid>) are already
        name: required_field(&request.name, "name")?.to_lowercase(),
        source: required_field(&request.source_volume_id, "source_volume_id")?.to_owned(),
        placement: parse_placement(flavor, request.accessibility_requirements.as_ref())?,
        group: None,
    })
}

/// Parses the group of snapshots that `CreateVolumeGroupSnapshot` requests.
pub(crate) fn parse_create_group(
    request: &pb::CreateVolumeGroupSnapshotRequest,
) -> Result<SnapshotGroupRequest, RequestError> {
    // As the names of snapshots
    let id = required_field(&request.name, "name")?.to_lowercase();
    let mut sources = BTreeSet::new();
    for source in &request.source_volume_ids {
        if !sources.insert(required_field(source, "source_volume_ids")?.to_owned()) {
            return Err(RequestError::RepeatedSource(source.clone()));
        }
    }
    if sources.is_empty() || sources.len() > MAX_SNAPSHOT_GROUP {
        return Err(RequestError::GroupSize(sources.len()));
    }
    Ok(SnapshotGroupRequest { id, sources: sources.into_iter().collect() })
}

/// Parses the page that a list is asked for.
pub(crate) fn parse_page(max_entries: i32, token: String) -> Result<PageRequest, RequestError> {
    let max_entries = usize::try_from(max_entries).map_err(|_| RequestError::NegativeMaxEntries(max_entries))?;
    Ok(PageRequest { max_entries, token })
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
    #[case(snapshot("s"), ContentSource::Snapshot("s".to_owned()))]
    #[case(volume("v"), ContentSource::Volume("v".to_owned()))]
    fn a_source_is_a_snapshot_or_a_volume(#[case] kind: Type, #[case] id: ContentSource) {
        assert_eq!(parse_content_source(Some(&pb::VolumeContentSource { r#type: Some(kind) })), Ok(Some(id)));
    }

    #[rstest]
    #[case(None)]
    #[case(Some(snapshot("")))]
    #[case(Some(volume("")))]
    fn a_source_without_kind_or_id_is_refused(#[case] kind: Option<Type>) {
        let refusal = parse_content_source(Some(&pb::VolumeContentSource { r#type: kind }));
        assert!(matches!(refusal, Err(RequestError::MissingField(_))), "{refusal:?}");
    }

    #[test]
    fn a_snapshot_needs_a_name_and_a_source() {
        let mut request = pb::CreateSnapshotRequest::default();
        let parse = |request: &_| parse_create_snapshot(request, ApiFlavor::TopoLvm);
        assert_eq!(parse(&request), Err(RequestError::MissingField("name")));
        request.name = "Snapshot-1".to_owned();
        assert_eq!(parse(&request), Err(RequestError::MissingField("source_volume_id")));
        request.source_volume_id = "v".to_owned();
        let (name, source) = ("snapshot-1".to_owned(), "v".to_owned());
        assert_eq!(parse(&request), Ok(SnapshotRequest { name, source, placement: Placement::Anywhere, group: None }));
    }

    #[rstest]
    #[case::no_name("", &["v"], RequestError::MissingField("name"))]
    #[case::no_volume("g", &[], RequestError::GroupSize(0))]
    #[case::empty_id("g", &["v", ""], RequestError::MissingField("source_volume_ids"))]
    #[case::repeated("g", &["v", "u", "v"], RequestError::RepeatedSource("v".to_owned()))]
    fn group_without_name_or_valid_volumes_is_refused(
        #[case] name: &str,
        #[case] sources: &[&str],
        #[case] refusal: RequestError,
    ) {
        let source_volume_ids = sources.iter().map(|&source| source.to_owned()).collect();
        let request =
            pb::CreateVolumeGroupSnapshotRequest { name: name.to_owned(), source_volume_ids, ..Default::default() };
        assert_eq!(parse_create_group(&request), Err(refusal));
    }

    #[test]
    fn group_of_more_volumes_than_can_be_frozen_is_refused() {
        let source_volume_ids = (0..=MAX_SNAPSHOT_GROUP).map(|number| format!("v{number}")).collect();
        let request =
            pb::CreateVolumeGroupSnapshotRequest { name: "g".to_owned(), source_volume_ids, ..Default::default() };
        assert_eq!(parse_create_group(&request), Err(RequestError::GroupSize(MAX_SNAPSHOT_GROUP + 1)));
    }

    #[test]
    fn group_is_the_same_in_any_order_of_its_volumes() {
        let group = |sources: [&str; 2]| {
            let source_volume_ids = sources.map(str::to_owned).into();
            parse_create_group(&pb::CreateVolumeGroupSnapshotRequest {
                name: "Group-1".to_owned(),
                source_volume_ids,
                ..Default::default()
            })
        };
        let sources = vec!["u".to_owned(), "v".to_owned()];
        assert_eq!(group(["v", "u"]), Ok(SnapshotGroupRequest { id: "group-1".to_owned(), sources }));
        assert_eq!(group(["u", "v"]), group(["v", "u"]));
    }

    #[test]
    fn a_page_has_no_negative_number_of_entries() {
        assert_eq!(parse_page(-1, String::new()), Err(RequestError::NegativeMaxEntries(-1)));
        assert_eq!(parse_page(0, "t".to_owned()), Ok(PageRequest { max_entries: 0, token: "t".to_owned() }));
    }
}
