//! Differences from csi-provisioner that are deliberate. docs/compatibility.md lists them for users.

use super::difference::Deliberate;

pub(super) const DELIBERATE: &[Deliberate] = &[];
