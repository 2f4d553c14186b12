//! Parses the `thin-pool` of a device class.

use lvm::LvName;

use super::keys;
use crate::device_class::{DEFAULT_THRESHOLD, OverprovisionRatio, ThinPool};
use crate::yaml::{Diagnostics, Node};

/// Parses the pool; `None` after an error. Every error names the class.
pub(super) fn parse(node: Node, class: &str, diagnostics: &mut Diagnostics) -> Option<ThinPool> {
    let mut fields = node.fields("thin-pool", diagnostics)?;
    let line = fields.line;
    let name = fields.text(keys::POOL_NAME.name, diagnostics).unwrap_or_default();
    let before = diagnostics.errors.len();
    let ratio = fields.decimal(keys::OVERPROVISION_RATIO.name, diagnostics);
    let is_ratio_invalid = diagnostics.errors.len() > before;
    fields.finish(diagnostics);
    let mut add_error =
        |message: String| diagnostics.error(line, format!("device class {class:?}: thin-pool: {message}"));
    let name = match name.parse::<LvName>() {
        Ok(name) => Some(name),
        Err(_) if name.is_empty() => {
            add_error("it has no name; name the pool in the volume group".to_owned());
            None
        }
        Err(error) => {
            add_error(error.to_string());
            None
        }
    };
    let overprovision = match ratio.map(|ratio| (ratio.parse::<OverprovisionRatio>(), ratio)) {
        Some((Ok(parsed), _)) => Some(parsed),
        Some((Err(error), ratio)) => {
            add_error(format!("overprovision-ratio {ratio}: {error}"));
            None
        }
        None if is_ratio_invalid => None,
        None => {
            add_error("overprovision-ratio is missing; 1.0 promises what the pool has and no more".to_owned());
            None
        }
    };
    Some(ThinPool { name: name?, overprovision: overprovision?, threshold: DEFAULT_THRESHOLD })
}
