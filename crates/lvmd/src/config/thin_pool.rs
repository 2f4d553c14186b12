//! The `thin-pool` of a device class.

use lvm::LvName;

use super::keys;
use crate::device_class::{DEFAULT_THRESHOLD, ThinPool};
use crate::overprovision::Overprovision;
use crate::yaml::{Findings, Node};

/// The pool, unless something is wrong with it; everything that is wrong becomes a problem of the class.
pub(super) fn read(node: Node, class: &str, findings: &mut Findings) -> Option<ThinPool> {
    let mut fields = node.fields("thin-pool", findings)?;
    let line = fields.line;
    let name = fields.text(keys::POOL_NAME.name, findings).unwrap_or_default();
    let before = findings.problems.len();
    let ratio = fields.decimal(keys::OVERPROVISION_RATIO.name, findings);
    let ratio_is_no_number = findings.problems.len() > before;
    fields.finish(findings);
    let mut complain =
        |message: String| findings.problem(line, format!("device class {class:?}: thin-pool: {message}"));
    let name = match name.parse::<LvName>() {
        Ok(name) => Some(name),
        Err(_) if name.is_empty() => {
            complain("it has no name; name the pool in the volume group".to_owned());
            None
        }
        Err(error) => {
            complain(error.to_string());
            None
        }
    };
    let overprovision = match ratio.map(|ratio| (ratio.parse::<Overprovision>(), ratio)) {
        Some((Ok(parsed), _)) => Some(parsed),
        Some((Err(error), ratio)) => {
            complain(format!("overprovision-ratio {ratio}: {error}"));
            None
        }
        None if ratio_is_no_number => None,
        None => {
            complain("overprovision-ratio is missing; 1.0 promises what the pool has and no more".to_owned());
            None
        }
    };
    Some(ThinPool { name: name?, overprovision: overprovision?, threshold: DEFAULT_THRESHOLD })
}
