//! Parses the `thin-pool` of a device class.

use lvm::LvName;

use super::keys;
use super::yaml::{Fields, Node, read_decimal, read_string};
use crate::device_class::{DEFAULT_THRESHOLD, InvalidRatio, OverprovisionRatio, ThinPool};

/// Parses the pool of a class; `None` after an error.
pub(super) fn parse(node: Option<Node>, class: &Fields<'_>) -> Option<ThinPool> {
    let no_pool = "a class of type thin needs a thin-pool with name and overprovision-ratio";
    let node = class.check(node.ok_or(no_pool))?;
    let diagnostics = class.diagnostics;
    let mut fields = node.read(keys::THIN_POOL.name, diagnostics, |node| Fields::read(node, diagnostics))?;
    fields.place = format!("{}thin-pool: ", class.place);
    let name = fields.take(keys::POOL_NAME, read_string).unwrap_or_default();
    let ratio = fields.take(keys::OVERPROVISION_RATIO, Ok);
    fields.warn_of_unknown_keys();
    let name = fields.check(parse_name(&name));
    let no_ratio = "overprovision-ratio is missing; 1.0 promises what the pool has and no more";
    let ratio = fields.check(ratio.ok_or(no_ratio)).and_then(|node| parse_ratio(node, &fields));
    Some(ThinPool { name: name?, overprovision: ratio?, threshold: DEFAULT_THRESHOLD, share: None })
}

pub(super) fn parse_name(name: &str) -> Result<LvName, String> {
    if name.is_empty() {
        return Err("it has no name; name the pool in the volume group".to_owned());
    }
    name.parse().map_err(|error: lvm::InvalidName| error.to_string())
}

pub(super) fn parse_ratio(node: Node, pool: &Fields<'_>) -> Option<OverprovisionRatio> {
    let key = keys::OVERPROVISION_RATIO.name;
    let ratio = node.read(key, pool.diagnostics, read_decimal)?;
    pool.check(ratio.parse().map_err(|error: InvalidRatio| format!("{key} {ratio}: {error}")))
}
