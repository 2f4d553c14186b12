//! Parses the `wipe` of a device class.

use lvm::Wipe;

use crate::yaml::{Diagnostics, Node};

/// Parses how volumes are wiped; `None` for not at all, or after an error.
pub(super) fn parse(node: Node, class: &str, diagnostics: &mut Diagnostics) -> Option<Wipe> {
    let line = node.line;
    let text = node.text("wipe", diagnostics)?;
    if text == "none" {
        return None;
    }
    let wipe = text.parse();
    if wipe.is_err() {
        diagnostics.error(line, format!("device class {class:?}: wipe {text:?} is unknown; use none, discard or zero"));
    }
    wipe.ok()
}
