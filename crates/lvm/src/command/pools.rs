//! Commands that create and extend thin pools.

use super::{Effect, LvmCommand, full_name, tag_options};
use crate::{LvName, Tag, VgName};

/// A thin pool to create.
#[derive(Clone, Debug)]
pub struct NewPool<'a> {
    /// Its volume group.
    pub vg: &'a VgName,
    /// Its name.
    pub name: &'a LvName,
    /// Bytes for data, a multiple of the extent.
    pub bytes: u64,
    /// Bytes for metadata, a multiple of the extent. LVM keeps as many again in the group for their repair.
    pub metadata: u64,
    /// Bytes of a chunk, the unit in which it gives out space.
    pub chunk: u64,
    /// Tags that it carries from the first moment.
    pub tags: &'a [Tag],
}

/// The sizes that a thin pool is to grow to, in bytes; `None` for what stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSizes {
    /// Of its data.
    pub data: Option<u64>,
    /// Of its metadata.
    pub metadata: Option<u64>,
}

impl LvmCommand {
    /// Creates a thin pool with these properties, whatever lvm.conf sets for new pools. It zeroes new blocks, so that
    /// no volume exposes the data of another. It passes discards to the disks. While it is full, writes wait for the
    /// minute in which dm-thin allows its extension, because a database stops after a failed sync and continues after a
    /// slow one.
    pub fn create_pool(pool: &NewPool<'_>) -> Self {
        let (bytes, metadata) = (format!("{}b", pool.bytes), format!("{}b", pool.metadata));
        let chunk = format!("{}b", pool.chunk);
        let mut args = vec!["lvcreate", "--type", "thin-pool", "-n", pool.name.as_str(), "-L", &bytes];
        args.extend(["--poolmetadatasize", &metadata, "--chunksize", &chunk]);
        args.extend(["--zero", "y", "--discards", "passdown", "-y"]);
        // LVM 2.03 takes --errorwhenfull of pools that exist only.
        args.extend(["--config", "activation/error_when_full=0"]);
        args.extend(tag_options("--addtag", pool.tags));
        args.push(pool.vg.as_str());
        Self::new(Effect::Change, args)
    }

    /// Makes the metadata of a thin pool larger, and what LVM keeps for their repair.
    pub fn extend_metadata(vg: &VgName, pool: &LvName, bytes: u64) -> Self {
        let size = format!("{bytes}b");
        Self::new(Effect::Change, ["lvextend", "-y", "--poolmetadatasize", &size, &full_name(vg, pool)])
    }

    /// Reports whether dmeventd monitors a logical volume, and so extends a thin pool if lvm.conf enables it.
    pub fn monitoring(vg: &VgName, name: &LvName) -> Self {
        let fields = ["lvs", "--noheadings", "--nameprefixes", "-o", "lv_name,seg_monitor"];
        Self::new(Effect::Read, fields.into_iter().chain([full_name(vg, name).as_str()]))
    }
}
