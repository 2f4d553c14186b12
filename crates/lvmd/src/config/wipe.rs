//! The `wipe` of a device class.

use lvm::Wipe;

use crate::yaml::{Findings, Node};

/// How volumes are wiped; `None` for not at all, or when that is not what the file says.
pub(super) fn read(node: Node, class: &str, findings: &mut Findings) -> Option<Wipe> {
    let line = node.line;
    let text = node.text("wipe", findings)?;
    if text == "none" {
        return None;
    }
    let wipe = text.parse();
    if wipe.is_err() {
        findings.problem(line, format!("device class {class:?}: wipe {text:?} is unknown; use none, discard or zero"));
    }
    wipe.ok()
}
