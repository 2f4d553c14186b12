//! Between messages and the engine's types.

use lvm::{LogicalVolume, LvName, Tag};
use topolvm_proto::lvmd as proto;

use crate::engine::{CreateSnapshot, CreateVolume};
use crate::error::InvalidRequest;
use crate::marks;
use crate::usage::{ClassUsage, Usage};

/// Sizes are multiples of this: the largest sector size that is in use.
const SECTOR: u64 = 4096;

/// The metadata of all volumes of a group shares one area of 1 MiB on each disk, of which LVM uses half at a time; when it is
/// full, the group cannot be changed any more. The longest names of Kubernetes in all tags of ours take a third of this.
const MAX_TAGS: usize = 32;
/// In all, of the tags of a request.
const MAX_TAG_BYTES: usize = 4096;

/// A request that can be carried out, whatever the state of the node.
pub(super) fn create_volume(request: proto::CreateLvRequest) -> Result<CreateVolume, InvalidRequest> {
    let proto::CreateLvRequest { name, tags, device_class, lvcreate_option_class, size_bytes } = request;
    let bytes = u64::try_from(size_bytes).ok().filter(|bytes| *bytes > 0 && bytes.is_multiple_of(SECTOR));
    Ok(CreateVolume {
        name: checked_name(name)?,
        device_class,
        option_class: lvcreate_option_class,
        bytes: bytes.ok_or(InvalidRequest::Size(size_bytes))?,
        tags: checked_tags(tags)?,
    })
}

/// The same for a snapshot.
pub(super) fn create_snapshot(request: proto::CreateLvSnapshotRequest) -> Result<CreateSnapshot, InvalidRequest> {
    let proto::CreateLvSnapshotRequest { name, tags, device_class, source_volume, access_type, size_bytes } = request;
    Ok(CreateSnapshot {
        name: checked_name(name)?,
        source: checked_name(source_volume)?,
        device_class,
        bytes: u64::try_from(size_bytes).map_err(|_| InvalidRequest::NegativeSize(size_bytes))?,
        writable: match access_type.as_str() {
            "ro" => false,
            "rw" => true,
            _ => return Err(InvalidRequest::AccessType(access_type.chars().take(32).collect())),
        },
        tags: checked_tags(tags)?,
    })
}

/// A name that a volume can have which somebody was told about.
pub(super) fn checked_name(name: String) -> Result<LvName, InvalidRequest> {
    let name = LvName::try_from(name)?;
    if marks::is_aside_name(&name) { Err(InvalidRequest::ReservedName(name.to_string())) } else { Ok(name) }
}

fn checked_tags(tags: Vec<String>) -> Result<Vec<Tag>, InvalidRequest> {
    // An empty tag says nothing; old clients echo the one that old servers put into their lists.
    let tags: Vec<_> = tags.into_iter().filter(|tag| !tag.is_empty()).collect();
    if tags.len() > MAX_TAGS {
        return Err(InvalidRequest::TooManyTags { tags: tags.len(), most: MAX_TAGS });
    }
    let bytes = tags.iter().map(String::len).sum();
    if bytes > MAX_TAG_BYTES {
        return Err(InvalidRequest::LongTags { bytes, most: MAX_TAG_BYTES });
    }
    tags.into_iter().map(checked_tag).collect()
}

fn checked_tag(tag: String) -> Result<Tag, InvalidRequest> {
    let tag = Tag::try_from(tag)?;
    if marks::is_reserved(&tag) { Err(InvalidRequest::ReservedTag(tag.to_string())) } else { Ok(tag) }
}

/// Sizes of volumes are below 2^63: LVM's own limit is 8 EiB.
pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

pub(super) fn volume(volume: LogicalVolume) -> proto::LogicalVolume {
    proto::LogicalVolume {
        size_bytes: signed(volume.visible_size()),
        dev_major: volume.device.map_or(0, |device| device.major),
        dev_minor: volume.device.map_or(0, |device| device.minor),
        name: volume.name.into(),
        tags: volume.tags.into_iter().map(String::from).collect(),
        path: volume.path.into(),
        attr: volume.attr.to_string(),
    }
}

pub(super) fn watch_response(usage: &Usage) -> proto::WatchResponse {
    let default = usage.default_class();
    proto::WatchResponse {
        free_bytes: default.map_or(0, |class| class.free),
        items: usage.classes.iter().map(watch_item).collect(),
        default_class: default.map_or_else(String::new, |class| class.name.clone()),
    }
}

fn watch_item(class: &ClassUsage) -> proto::WatchItem {
    proto::WatchItem {
        // Of a thin class this is what the group itself has left, as TopoLVM's exporter expects; of another what can be made,
        // because TopoLVM's agent publishes it as the capacity.
        free_bytes: if class.thin.is_some() { class.group_free } else { class.free },
        volume_group_free_bytes: class.group_free,
        device_class: class.name.clone(),
        size_bytes: class.size,
        thin_pool: class.thin.as_ref().map(|thin| proto::ThinPoolItem {
            data_percent: thin.data_percent,
            metadata_percent: thin.metadata_percent,
            overprovision_bytes: class.free,
            size_bytes: thin.size,
            attr: thin.attr.map(|attr| attr.to_string()).unwrap_or_default(),
        }),
    }
}
