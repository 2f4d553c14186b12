//! Filesystem types, by each key that names one.

use serde_json::{Value, json};

use crate::parity::scenario::{ALPHA, Scenario, on, parameters};

pub(super) fn scenarios() -> Vec<Scenario> {
    let claim = |name, keys: Value| Scenario::with_class(name, parameters(&keys)).claim("a", [on(ALPHA)]);
    vec![
        claim("fstype-ext4", json!({"csi.storage.k8s.io/fstype": "ext4"})).bound("a"),
        claim("fstype-xfs", json!({"csi.storage.k8s.io/fstype": "xfs"})).bound("a"),
        claim("fstype-btrfs", json!({"csi.storage.k8s.io/fstype": "btrfs"})).bound("a"),
        claim("fstype-old-key", json!({"fstype": "xfs"})).bound("a"),
        claim("fstype-old-key-mixed-case", json!({"fsType": "xfs"})).bound("a"),
        claim("fstype-empty", json!({"csi.storage.k8s.io/fstype": ""})).bound("a"),
        claim("fstype-by-two-keys", json!({"csi.storage.k8s.io/fstype": "xfs", "fstype": "xfs"})).failed("a", "fstype"),
        claim("fstype-unsupported", json!({"csi.storage.k8s.io/fstype": "vfat"})).failed("a", "vfat"),
        Scenario::with_class("fstype-of-block", parameters(&json!({"csi.storage.k8s.io/fstype": "xfs"})))
            .claim("a", [on(ALPHA), json!({"spec": {"volumeMode": "Block"}})])
            .bound("a"),
        Scenario::with_class("fstype-unsupported-of-block", parameters(&json!({"csi.storage.k8s.io/fstype": "vfat"})))
            .claim("a", [on(ALPHA), json!({"spec": {"volumeMode": "Block"}})])
            .bound("a"),
    ]
}
