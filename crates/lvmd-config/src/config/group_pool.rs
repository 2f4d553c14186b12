//! Parses the `thin-pool` of a disk group.

use lvm::{LvName, VgName};

use super::keys;
use super::thin_pool::{parse_name, parse_ratio, take_growth};
use super::yaml::{Fields, Node, read_number_to, read_string};
use crate::device_class::{DEFAULT_THRESHOLD, DeviceClass, MAX_METADATA, OverprovisionRatio, PoolShare, ThinPool};
use crate::disk_group::{Mode, disk_group_tag};

/// Default of `name`.
const DEFAULT_NAME: &str = "pool";
/// Default of `size-percent`.
const DEFAULT_PERCENT: u64 = 95;
/// Least `metadata-size-mb`: LVM makes no less.
const MIN_METADATA_MIB: u64 = 2;
/// Default of `chunk-size-kb`, its unit, and the least that dm-thin takes.
const CHUNK_KIB: u64 = 64;
/// Most that dm-thin takes, in KiB.
const MAX_CHUNK_KIB: u64 = 1 << 20;

/// Parses the pool of a disk group and returns it. If a configured class already has the pool, sets the share and the
/// growth of that class's pool and returns `None`. Also returns `None` after an error.
pub(super) fn parse(
    node: Node,
    vg: &VgName,
    mode: Mode,
    classes: &mut [DeviceClass],
    group: &Fields<'_>,
) -> Option<ThinPool> {
    let diagnostics = group.diagnostics;
    let before = diagnostics.error_count();
    let mut fields = node.read(keys::GROUP_POOL.name, diagnostics, |node| Fields::read(node, diagnostics))?;
    fields.place = format!("{}thin-pool: ", group.place);
    let name = fields.take(keys::GROUP_POOL_NAME, read_string);
    let name = fields.check(parse_name(name.as_deref().unwrap_or(DEFAULT_NAME)));
    let ratio = fields.take(keys::OVERPROVISION_RATIO, Ok);
    let has_ratio = ratio.is_some();
    let ratio = ratio.and_then(|node| parse_ratio(node, &fields));
    let share = take_share(&mut fields, vg, mode);
    let growth = take_growth(&mut fields);
    fields.warn_of_unknown_keys();
    let (name, share) = (name?, share?);
    if diagnostics.error_count() > before {
        return None;
    }
    let configured = classes.iter_mut().filter(|class| class.volume_group == *vg);
    let mut pools = configured.filter_map(|class| class.thin_pool.as_mut()).filter(|pool| pool.name == name);
    match (pools.next(), ratio) {
        (Some(_), _) if has_ratio => {
            fields.error("a device class already uses this pool; remove overprovision-ratio from the disk group");
            None
        }
        (Some(pool), _) => {
            pool.share = Some(share);
            pool.growth = growth.or(pool.growth);
            None
        }
        (None, ratio) => Some(ThinPool { growth, ..new_pool(name, ratio, share, &fields)? }),
    }
}

fn new_pool(
    name: LvName,
    ratio: Option<OverprovisionRatio>,
    share: PoolShare,
    fields: &Fields<'_>,
) -> Option<ThinPool> {
    let no_ratio = "overprovision-ratio is missing; set 1.0 for no overprovisioning";
    let overprovision = fields.check(ratio.ok_or(no_ratio))?;
    Some(ThinPool { name, overprovision, threshold: DEFAULT_THRESHOLD, share: Some(share), growth: None })
}

fn take_share(fields: &mut Fields<'_>, vg: &VgName, mode: Mode) -> Option<PoolShare> {
    let percent = fields.take(keys::SIZE_PERCENT, read_number_to(100)).unwrap_or(DEFAULT_PERCENT);
    if percent == 0 {
        fields.error("size-percent is 0, so no pool could be created; remove thin-pool for a group without a pool");
    }
    let metadata = fields.take(keys::METADATA_SIZE_MB, read_number_to(MAX_METADATA >> 20));
    if metadata.is_some_and(|mib| mib < MIN_METADATA_MIB) {
        fields.error("metadata-size-mb is less than the minimum of 2; raise it, or remove it to have it calculated");
    }
    let chunk = fields.take(keys::CHUNK_SIZE_KB, read_number_to(MAX_CHUNK_KIB)).unwrap_or(CHUNK_KIB);
    if chunk == 0 || !chunk.is_multiple_of(CHUNK_KIB) {
        fields.error(format!("chunk-size-kb {chunk} is not a multiple of 64 from 64 to {MAX_CHUNK_KIB}"));
    }
    let tag = fields.check(disk_group_tag(vg))?;
    Some(PoolShare { tag, mode, percent, metadata: metadata.map(|mib| mib << 20), chunk: chunk << 10 })
}
