//! Checks request messages and turns them into the engine's types, and the engine's types into answers.

use std::collections::{BTreeSet, HashMap};

use lvm::{LogicalVolume, LvName, Tag, VgName};
use lvmd_config::{Capacity, ClassCapacity, LayoutCapacity, tags};
use lvmd_engine::{AdoptVolume, CreateSnapshot, CreateVolume};
use topolvm_proto::lvmd as proto;

use super::invalid_request::InvalidRequest;

/// Sizes of new volumes are multiples of this many bytes: the largest sector size that is in use.
const SECTOR: u64 = 4096;

/// Most tags of a request. The metadata of all volumes of a group shares one area of 1 MiB on each disk, of which LVM
/// uses half at a time; when it is full, the group cannot be changed any more. The longest names of Kubernetes in all
/// tags of topolvm-node take a third of this.
const MAX_TAGS: usize = 32;
/// Most snapshots of a request: all users of their sources wait until the last one is taken.
const MAX_SNAPSHOTS: usize = 32;
/// Most characters of all tags of a request together.
const MAX_TAG_BYTES: usize = 4096;

/// Parses a request for a volume.
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

/// Parses a request for a snapshot.
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

/// Parses a request for snapshots of one moment.
pub(super) fn create_snapshot_group(
    request: proto::CreateLvSnapshotsRequest,
) -> Result<Vec<CreateSnapshot>, InvalidRequest> {
    let requested = request.snapshots.len();
    if requested == 0 || requested > MAX_SNAPSHOTS {
        return Err(InvalidRequest::SnapshotCount { requested, most: MAX_SNAPSHOTS });
    }
    let wanted: Vec<_> = request.snapshots.into_iter().map(create_snapshot).collect::<Result<_, _>>()?;
    let (mut names, mut sources) = (BTreeSet::new(), BTreeSet::new());
    for snapshot in &wanted {
        if snapshot.writable || snapshot.bytes != 0 {
            return Err(InvalidRequest::SnapshotOfGroup(snapshot.name.to_string()));
        }
        if !names.insert(snapshot.name.as_str()) || !sources.insert(snapshot.source.as_str()) {
            return Err(InvalidRequest::RepeatedSnapshot(snapshot.name.to_string()));
        }
    }
    Ok(wanted)
}

/// Parses the name of a volume group.
pub(super) fn volume_group(name: String) -> Result<VgName, InvalidRequest> {
    Ok(VgName::try_from(name)?)
}

/// Parses the name of a volume. Names of volumes that are being wiped or in quarantine are reserved.
pub(super) fn checked_name(name: String) -> Result<LvName, InvalidRequest> {
    let name = LvName::try_from(name)?;
    let is_reserved = tags::is_wiping_name(name.as_str())
        || tags::quarantined_uid(name.as_str()).is_some()
        || tags::probe_name().is_ok_and(|probe| probe == name);
    if is_reserved { Err(InvalidRequest::ReservedName(name.to_string())) } else { Ok(name) }
}

/// Parses the name of a volume that is the UID of an object.
pub(super) fn object_uid(name: String) -> Result<LvName, InvalidRequest> {
    if lvm::is_uuid(&name) { Ok(LvName::try_from(name)?) } else { Err(InvalidRequest::NoObjectUid(name)) }
}

/// Parses the name of a volume in quarantine.
pub(super) fn quarantined_name(name: String) -> Result<LvName, InvalidRequest> {
    if tags::quarantined_uid(&name).is_none() {
        return Err(InvalidRequest::NotQuarantined(name.chars().take(128).collect()));
    }
    Ok(LvName::try_from(name)?)
}

/// Parses a request for a volume that another object gets.
pub(super) fn adopt_volume(request: proto::AdoptLvRequest) -> Result<AdoptVolume, InvalidRequest> {
    let proto::AdoptLvRequest { name, device_class, new_name, size_bytes, tags } = request;
    let is_quarantined = tags::quarantined_uid(&name).is_some();
    Ok(AdoptVolume {
        name: if is_quarantined { quarantined_name(name)? } else { object_uid(name)? },
        device_class,
        new_name: object_uid(new_name)?,
        bytes: u64::try_from(size_bytes).map_err(|_| InvalidRequest::NegativeSize(size_bytes))?,
        tags: checked_tags(tags)?,
    })
}

fn checked_tags(tags: Vec<String>) -> Result<Vec<Tag>, InvalidRequest> {
    // Old clients send back the empty tag that old servers put into their lists.
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
    if tags::is_reserved(&tag) { Err(InvalidRequest::ReservedTag(tag.to_string())) } else { Ok(tag) }
}

/// Converts a size for a message. Sizes of volumes are below 2^63: LVM's own limit is 8 EiB.
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
        ..proto::LogicalVolume::default()
    }
}

/// Converts a list of volumes, with their origins, and with their pools and the bytes that they use there.
pub(super) fn volumes(volumes: Vec<LogicalVolume>, thin_usage: &HashMap<Box<str>, u64>) -> Vec<proto::LogicalVolume> {
    let with_details = |listed: LogicalVolume| proto::LogicalVolume {
        thin_used_bytes: thin_usage.get(&listed.name).copied(),
        origin: listed.origin.clone().map(String::from).unwrap_or_default(),
        origin_size_bytes: listed.origin_size.unwrap_or_default(),
        thin_pool: listed.pool.clone().map(String::from).unwrap_or_default(),
        ..volume(listed)
    };
    volumes.into_iter().map(with_details).collect()
}

pub(super) fn watch_response(capacity: &Capacity) -> proto::WatchResponse {
    let default = capacity.default_class();
    proto::WatchResponse {
        free_bytes: default.map_or(0, |class| class.free_bytes),
        items: capacity.classes.iter().map(watch_item).collect(),
        default_class: default.map_or_else(String::new, |class| class.name.clone()),
    }
}

fn watch_item(class: &ClassCapacity) -> proto::WatchItem {
    proto::WatchItem {
        // Of a thin class the free bytes of the group itself, as TopoLVM's exporter expects; of a thick one the free
        // bytes of the class, because TopoLVM's agent publishes them as the capacity.
        free_bytes: if class.thin.is_some() { class.group_free_bytes } else { class.free_bytes },
        volume_group_free_bytes: class.group_free_bytes,
        device_class: class.name.clone(),
        size_bytes: class.size,
        thin_pool: class.thin.as_ref().map(|thin| proto::ThinPoolItem {
            data_percent: thin.data_percent,
            metadata_percent: thin.metadata_percent,
            overprovision_bytes: class.free_bytes,
            size_bytes: thin.size,
            attr: thin.attr.map(|attr| attr.to_string()).unwrap_or_default(),
        }),
        option_classes: class.layouts.iter().map(option_class_item).collect(),
    }
}

fn option_class_item(capacity: &LayoutCapacity) -> proto::OptionClassItem {
    let LayoutCapacity { option_class, free_bytes, stripes, images } = capacity.clone();
    proto::OptionClassItem { lvcreate_option_class: option_class, free_bytes, stripes, images }
}
