//! Parses the `thin-pool` of a device class.

use lvm::LvName;

use super::MAX_GIB;
use super::keys;
use super::yaml::{Fields, Node, read_decimal, read_number_to, read_string};
use crate::device_class::{DEFAULT_THRESHOLD, InvalidRatio, OverprovisionRatio, PoolGrowth, ThinPool};

/// Default of `grow-by-percent`.
const DEFAULT_GROWTH: u32 = 20;

/// Parses the pool of a class; `None` after an error.
pub(super) fn parse(node: Option<Node>, class: &Fields<'_>) -> Option<ThinPool> {
    let no_pool = "a class of type thin requires a thin-pool with name and overprovision-ratio";
    let node = class.check(node.ok_or(no_pool))?;
    let diagnostics = class.diagnostics;
    let mut fields = node.read(keys::THIN_POOL.name, diagnostics, |node| Fields::read(node, diagnostics))?;
    fields.place = format!("{}thin-pool: ", class.place);
    let name = fields.take(keys::POOL_NAME, read_string).unwrap_or_default();
    let ratio = fields.take(keys::OVERPROVISION_RATIO, Ok);
    let growth = take_growth(&mut fields);
    fields.warn_of_unknown_keys();
    let name = fields.check(parse_name(&name));
    let no_ratio = "overprovision-ratio is missing; set 1.0 for no overprovisioning";
    let ratio = fields.check(ratio.ok_or(no_ratio)).and_then(|node| parse_ratio(node, &fields));
    Some(ThinPool { name: name?, overprovision: ratio?, threshold: DEFAULT_THRESHOLD, share: None, growth })
}

/// Takes the growth of a pool that fills up; `None` for none, or after an error.
pub(super) fn take_growth(pool: &mut Fields<'_>) -> Option<PoolGrowth> {
    let at_percent = pool.take(keys::GROW_AT_PERCENT, read_number_to(99));
    let by_percent = pool.take(keys::GROW_BY_PERCENT, read_number_to(100));
    let maximum = pool.take(keys::MAXIMUM_SIZE_GB, read_number_to(MAX_GIB));
    for (key, number) in [(keys::GROW_AT_PERCENT, at_percent), (keys::GROW_BY_PERCENT, by_percent)] {
        if number == Some(0) {
            pool.error(format!("{} is 0; remove it, or set a percentage of at least 1", key.name));
        }
    }
    if maximum == Some(0) {
        pool.error("maximum-size-gb is 0; remove it for no limit");
    }
    if at_percent.is_none() && (by_percent.is_some() || maximum.is_some()) {
        pool.warn("grow-by-percent and maximum-size-gb have no effect without grow-at-percent");
    }
    Some(PoolGrowth {
        at_percent: at_percent?,
        by_percent: by_percent.unwrap_or(DEFAULT_GROWTH),
        maximum: maximum.map(|gib: u64| gib << 30),
    })
}

pub(super) fn parse_name(name: &str) -> Result<LvName, String> {
    if name.is_empty() {
        return Err("it has no name; set it to the name of the pool in the volume group".to_owned());
    }
    name.parse().map_err(|error: lvm::InvalidName| error.to_string())
}

pub(super) fn parse_ratio(node: Node, pool: &Fields<'_>) -> Option<OverprovisionRatio> {
    let key = keys::OVERPROVISION_RATIO.name;
    let ratio = node.read(key, pool.diagnostics, read_decimal)?;
    pool.check(ratio.parse().map_err(|error: InvalidRatio| format!("{key} {ratio}: {error}")))
}
