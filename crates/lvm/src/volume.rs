//! Volume groups, physical volumes, logical volumes and segments, as LVM reports them.

use crate::{Layout, LvAttr, Tag, VgName};

/// A volume group and the visible logical volumes in it, as they were at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeGroup {
    /// Its name.
    pub name: VgName,
    /// LVM's identity of it, which a rename does not change.
    pub uuid: String,
    /// Counts the changes of its metadata, by whomever.
    pub seqno: u64,
    /// Size in bytes.
    pub size: u64,
    /// Bytes in extents that no logical volume uses.
    pub free: u64,
    /// Bytes in one extent, the unit of allocation.
    pub extent_size: u64,
    /// Number of its physical volumes that cannot be found.
    pub missing_pvs: u64,
    /// Its tags.
    pub tags: Box<[Box<str>]>,
    /// Most logical volumes that it may have (`vgchange -l`); 0 for any number.
    pub max_volumes: u64,
    /// True if LVM may change its metadata.
    pub is_writable: bool,
    /// The system ID of the machine that it belongs to (lvmsystemid(7)); most groups have none.
    pub system_id: Option<Box<str>>,
    /// True after `vgexport`: no machine may change it.
    pub exported: bool,
    /// Its physical volumes in the order of its metadata, those that are missing too.
    pub pvs: Vec<PhysicalVolume>,
    /// Its logical volumes in LVM's order, without hidden ones.
    pub volumes: Vec<LogicalVolume>,
}

/// A physical volume of a volume group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhysicalVolume {
    /// Path of its device, for example `/dev/sdb`; meaningless while it is missing.
    pub path: String,
    /// LVM's identity of it.
    pub uuid: String,
    /// Its block device, unless it is missing.
    pub device: Option<Device>,
    /// Bytes in its extents, all of them.
    pub size: u64,
    /// Bytes in extents that no logical volume uses.
    pub free: u64,
    /// The lengths in extents of its free areas, from its beginning to its end.
    pub free_areas: Vec<u64>,
    /// True if LVM takes extents from it; `pvchange -x n` forbids that, and so does a missing device.
    pub allocatable: bool,
    /// Its tags.
    pub tags: Box<[Box<str>]>,
}

/// A logical volume. A node may have thousands, and each report is kept until the next: no field has spare capacity.
#[derive(Clone, Debug, PartialEq)]
pub struct LogicalVolume {
    /// Its name; not an [`LvName`](crate::LvName), because LVM also reports names that users cannot create.
    pub name: Box<str>,
    /// LVM's identity of it.
    pub uuid: Box<str>,
    /// Path of its device node, for example `/dev/vg/lv`.
    pub path: Box<str>,
    /// Size in bytes. For a copy-on-write snapshot this is the space for changes, see [`Self::visible_size`].
    pub size: u64,
    /// Its block device, while it is active.
    pub device: Option<Device>,
    /// The volume that it is a snapshot of.
    pub origin: Option<Box<str>>,
    /// Size in bytes of the origin; also set on a volume that has copy-on-write snapshots.
    pub origin_size: Option<u64>,
    /// The thin pool that it lives in.
    pub pool: Option<Box<str>>,
    /// Its tags.
    pub tags: Box<[Box<str>]>,
    /// Type, state and health.
    pub attr: LvAttr,
    /// Used data in percent: thin pools, thin volumes and snapshots.
    pub data_percent: Option<f64>,
    /// Used metadata of a thin pool in percent.
    pub metadata_percent: Option<f64>,
    /// Size in bytes of the metadata of a thin pool or cache pool.
    pub metadata_size: Option<u64>,
    /// Its last segment, unless that is linear or thin.
    pub segment: Option<Box<Segment>>,
}

/// A segment of a logical volume, a part that is laid out in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// LVM's name of the type, for example `raid1`.
    pub segment_type: Box<str>,
    /// Number of areas side by side: stripes, copies, parity.
    pub images: u16,
}

/// Number of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// Number of the driver.
    pub major: u32,
    /// Number of the device among those of the driver.
    pub minor: u32,
}

impl VolumeGroup {
    /// Returns the bytes of the largest volume of this layout that can be made so that `spare` bytes are left, wherever
    /// these are.
    pub fn largest_volume(&self, layout: &Layout, spare: u64) -> u64 {
        let areas = self.free_areas();
        let free: u64 = areas.iter().copied().flatten().sum();
        let spare = spare
            .checked_div(self.extent_size)
            .map_or(0, |whole| whole + u64::from(!spare.is_multiple_of(self.extent_size)));
        let within = layout.largest_of(free.saturating_sub(spare), self.extent_size);
        layout.largest(self.extent_size, &areas).min(within).saturating_mul(self.extent_size)
    }

    /// Returns whether a volume of this layout and size in bytes can be created.
    pub fn has_free_space(&self, layout: &Layout, bytes: u64) -> bool {
        self.extent_size > 0 && layout.fits(bytes.div_ceil(self.extent_size), self.extent_size, &self.free_areas())
    }

    /// Returns why LVM creates no volumes in it, whatever is free; `None` if nothing in the report is a reason.
    pub fn refusal(&self) -> Option<String> {
        let (vg, most) = (&self.name, self.max_volumes);
        let is_at_limit = most > 0 && u64::try_from(self.volumes.len()).is_ok_and(|volumes| volumes >= most);
        if !self.is_writable {
            Some(format!("volume group {vg} is read-only; see `vgs -o +vg_permissions {vg}`"))
        } else if is_at_limit {
            Some(format!(
                "volume group {vg} has reached its limit of logical volumes ({most}); raise the limit with `vgchange \
                 -l NUMBER {vg}`, or remove volumes"
            ))
        } else {
            None
        }
    }

    /// Returns the free areas in which LVM may make volumes, of each physical volume: none while one is missing.
    fn free_areas(&self) -> Vec<&[u64]> {
        let usable = |pv: &&PhysicalVolume| pv.allocatable && self.missing_pvs == 0;
        self.pvs.iter().filter(usable).map(|pv| pv.free_areas.as_slice()).collect()
    }

    /// Returns the bytes that are free where LVM may make volumes: none while a physical volume is missing.
    pub fn allocatable_bytes(&self) -> u64 {
        self.free_areas().into_iter().flatten().sum::<u64>().saturating_mul(self.extent_size)
    }

    /// Returns the physical volume with this identity.
    pub fn pv_of_uuid(&self, uuid: &str) -> Option<&PhysicalVolume> {
        self.pvs.iter().find(|pv| pv.uuid == uuid)
    }

    /// Returns whether it carries the tag.
    pub fn has_tag(&self, tag: &Tag) -> bool {
        self.tags.iter().any(|existing| **existing == *tag.as_str())
    }

    /// Returns the logical volume with this name.
    pub fn volume(&self, name: &str) -> Option<&LogicalVolume> {
        self.volumes.iter().find(|volume| *volume.name == *name)
    }

    /// Returns the logical volume with this identity.
    pub fn volume_of_uuid(&self, uuid: &str) -> Option<&LogicalVolume> {
        self.volumes.iter().find(|volume| *volume.uuid == *uuid)
    }

    /// Returns the names of the snapshots that would go with `origin`: all copy-on-write snapshots, and the thin ones
    /// whose origin is not in their own pool, which LVM calls external. Others live on without it.
    pub fn snapshots_of<'a>(&'a self, origin: &'a str) -> impl Iterator<Item = &'a str> {
        let pool_of_origin = self.volume(origin).and_then(|origin| origin.pool.as_deref());
        self.volumes
            .iter()
            .filter(move |volume| volume.origin.as_deref() == Some(origin))
            .filter(move |volume| volume.pool.is_none() || volume.pool.as_deref() != pool_of_origin)
            .map(|volume| &*volume.name)
    }
}

/// Returns the name of a volume's device, or of a hidden layer of it, in device-mapper.
pub(crate) fn mapper_name(vg: &VgName, name: &str, layer: &str) -> String {
    format!("{}-{}{layer}", vg.as_str().replace('-', "--"), name.replace('-', "--"))
}

/// Returns whether a device of device-mapper belongs to a move in the group. LVM names their volumes `pvmove0` and so
/// on, and reserves these names.
pub fn is_device_of_move(vg: &VgName, device: &str) -> bool {
    device.starts_with(&mapper_name(vg, "pvmove", ""))
}

impl LogicalVolume {
    /// Returns the layout with which LVM makes it larger: that of its end, whatever options it was made with. A RAID
    /// has its metadata already.
    pub fn layout(&self) -> Layout {
        match self.segment.as_deref() {
            None => Layout::parse(&[], None),
            Some(Segment { segment_type, images }) => Layout::of_segment(segment_type, *images, self.attr.allocation()),
        }
    }

    /// Returns whether it carries the tag.
    pub fn has_tag(&self, tag: &Tag) -> bool {
        self.tags.iter().any(|existing| **existing == *tag.as_str())
    }

    /// Returns the name of its block device in device-mapper: group and volume with a dash in between, their own dashes
    /// doubled. Of a thin pool LVM reports the layer that the thin volumes use.
    pub fn mapper_name(&self, vg: &VgName) -> String {
        let layer = if self.attr.is_thin_pool() { "-tpool" } else { "" };
        mapper_name(vg, &self.name, layer)
    }

    /// Returns the size in bytes of the block device that a reader sees: that of a copy-on-write snapshot is as large
    /// as its origin.
    pub fn visible_size(&self) -> u64 {
        match (&self.origin, &self.pool, self.origin_size) {
            (Some(_), None, Some(origin_size)) => origin_size,
            _ => self.size,
        }
    }
}
