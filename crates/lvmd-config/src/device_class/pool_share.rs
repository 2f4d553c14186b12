//! The thin pool that lvmd makes in the volume group of a disk group: how much of the group it takes, and how large its
//! metadata are.

use lvm::{LogicalVolume, PoolSizes, Tag, VolumeGroup};

use super::leaving_disks::LeavingDisks;
use super::pool_space::{GrowthSpace, MAX_METADATA, round_down, round_up};
use crate::disk_group::Mode;

/// Bytes in a block of dm-thin's metadata.
const METADATA_BLOCK: u64 = 4096;
/// Mappings in a leaf of dm-thin's tree that is half full: 252 of 16 bytes fit next to the header of the node.
const MAPPINGS_OF_LEAF: u64 = 126;
/// Volumes and snapshots for which the metadata have a root.
const VOLUMES: u64 = 1000;

/// The part of a disk group that its thin pool takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolShare {
    /// The tag of the volume group in which the pool may be made, and of a pool that was.
    pub tag: Tag,
    /// The treatment of the disks of the group, and of its pool.
    pub mode: Mode,
    /// Percentage of the group that it takes with its metadata.
    pub percent: u64,
    /// Bytes of the metadata; `None` to reckon them.
    pub metadata: Option<u64>,
    /// Bytes of a chunk.
    pub chunk: u64,
}

/// The sizes of a pool that is to be made, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewSizes {
    /// Bytes of its data.
    pub(super) data: u64,
    /// Bytes of its metadata.
    pub(super) metadata: u64,
}

impl PoolShare {
    /// Returns whether lvmd made the pool, or was handed it.
    pub(super) fn owns(&self, pool: &LogicalVolume) -> bool {
        pool.has_tag(&self.tag)
    }

    /// Returns the sizes of a new pool; `None` if the group has not enough free space for one.
    pub(super) fn sizes(&self, group: &VolumeGroup, space: &GrowthSpace) -> Option<NewSizes> {
        let whole = self.wanted(group).min(space.bytes);
        let metadata = self.metadata_of(whole, space.extent)?;
        let data = whole.saturating_sub(metadata.saturating_mul(2));
        (data >= space.extent.max(self.chunk)).then_some(NewSizes { data, metadata })
    }

    /// Returns the sizes to which the pool grows because the group has grown; nothing as long as it has its part, or
    /// nothing is free. What others took of its part stays theirs.
    pub(super) fn growth(&self, pool: &LogicalVolume, group: &VolumeGroup, space: &GrowthSpace) -> PoolSizes {
        let wanted = self.wanted(group);
        let current = pool.metadata_size.unwrap_or(MAX_METADATA);
        let reckoned = if self.metadata.is_some() { None } else { self.metadata_of(wanted, space.extent) };
        let fits = |metadata: &u64| *metadata > current && (metadata - current).saturating_mul(2) <= space.bytes;
        let metadata = reckoned.filter(fits);
        let with_spare = metadata.unwrap_or(current).saturating_mul(2);
        let left = space.bytes.saturating_sub(metadata.map_or(0, |bytes| (bytes - current).saturating_mul(2)));
        let most = pool.size.saturating_add(left);
        let data = wanted.saturating_sub(with_spare).min(most);
        PoolSizes { data: Some(round_down(data, space.extent)).filter(|data| *data > pool.size), metadata }
    }

    /// Returns the bytes that the pool takes of the group in all, without disks that leave it.
    fn wanted(&self, group: &VolumeGroup) -> u64 {
        let stays = group.size.saturating_sub(LeavingDisks::of(group).size);
        let bytes = u128::from(stays) * u128::from(self.percent) / 100;
        round_down(u64::try_from(bytes).unwrap_or(u64::MAX), group.extent_size)
    }

    fn metadata_of(&self, data: u64, extent: u64) -> Option<u64> {
        let bytes = self.metadata.unwrap_or_else(|| reckon_metadata(data, self.chunk));
        round_up(bytes, extent)
    }
}

/// Returns the bytes of metadata that a pool of so much data needs, as `thin_metadata_size` of thin-provisioning-tools
/// reckons them: a block for each leaf of the tree of mappings, half full, one for the root of each volume, and the
/// superblock. A pool of which this is more than LVM takes gets as much as LVM takes.
fn reckon_metadata(data: u64, chunk: u64) -> u64 {
    let leaves = data.div_ceil(chunk.max(1)).div_ceil(MAPPINGS_OF_LEAF);
    let blocks = leaves.saturating_add(VOLUMES).saturating_add(1);
    blocks.saturating_mul(METADATA_BLOCK).min(MAX_METADATA)
}

#[cfg(test)]
mod tests {
    use lvm::PhysicalVolume;
    use rstest::rstest;

    use super::super::DeviceClasses;
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    const TIB: u64 = 1 << 40;

    /// The values are those of `thin_metadata_size -b CHUNK -s DATA -m 1000 -u b`.
    #[rstest]
    #[case(TIB, 64 * KIB, 549_494_784)]
    #[case(GIB, 64 * KIB, 4_636_672)]
    #[case(TIB, 512 * KIB, 72_278_016)]
    #[case(100 * TIB, 64 * KIB, MAX_METADATA)]
    #[case(0, 64 * KIB, 4_100_096)]
    fn metadata_are_reckoned_as_thin_provisioning_tools_do(
        #[case] data: u64,
        #[case] chunk: u64,
        #[case] expected: u64,
    ) {
        assert_eq!(reckon_metadata(data, chunk), expected);
    }

    fn share(percent: u64) -> PoolShare {
        PoolShare { tag: "t".parse().unwrap(), mode: Mode::Auto, percent, metadata: None, chunk: 64 * KIB }
    }

    fn group(size: u64) -> VolumeGroup {
        VolumeGroup {
            name: "vg".parse().unwrap(),
            uuid: String::new(),
            tags: Box::default(),
            max_volumes: 0,
            is_writable: true,
            system_id: None,
            exported: false,
            seqno: 0,
            size,
            free: size,
            extent_size: 4 * MIB,
            missing_pvs: 0,
            pvs: Vec::new(),
            volumes: Vec::new(),
        }
    }

    fn space(bytes: u64) -> GrowthSpace {
        GrowthSpace { bytes, extent: 4 * MIB }
    }

    #[test]
    fn pool_share_counts_metadata_twice_and_fits_free_space() {
        let group = group(100 * GIB);
        // 90 GiB of chunks of 64 KiB need 50 MiB of metadata
        let sizes = share(90).sizes(&group, &space(100 * GIB)).unwrap();
        assert_eq!(sizes, NewSizes { data: 90 * GIB - 104 * MIB, metadata: 52 * MIB });
        let sizes = share(90).sizes(&group, &space(GIB)).unwrap();
        assert_eq!(sizes.data + 2 * sizes.metadata, GIB);
        assert_eq!(share(90).sizes(&group, &space(8 * MIB)), None);
        assert_eq!(share(90).sizes(&group, &space(0)), None);
    }

    #[test]
    fn pool_does_not_grow_into_what_a_leaving_disk_needs() {
        let pv = |free: u64, tags: &[&str]| PhysicalVolume {
            path: String::new(),
            uuid: String::new(),
            device: None,
            size: 50 * GIB,
            free,
            free_areas: Vec::new(),
            allocatable: true,
            tags: tags.iter().map(|tag| (*tag).into()).collect(),
        };
        let (leaving, stays) = (pv(10 * GIB, &["topolvm.io/evacuate=remove:0"]), pv(45 * GIB, &[]));
        let waiting = VolumeGroup { pvs: vec![leaving, stays.clone()], ..group(100 * GIB) };
        let classes = DeviceClasses::default();
        assert_eq!(GrowthSpace::of(&waiting, &classes), space(5 * GIB));
        assert_eq!(share(80).wanted(&waiting), 40 * GIB);
        let all_stay = VolumeGroup { pvs: vec![pv(10 * GIB, &[]), stays], ..group(100 * GIB) };
        assert_eq!(GrowthSpace::of(&all_stay, &classes), space(55 * GIB));
        assert_eq!(share(80).wanted(&all_stay), 80 * GIB);
    }
}
