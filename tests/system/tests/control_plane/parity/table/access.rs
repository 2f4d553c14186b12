//! Access modes and volume modes.

use serde_json::{Value, json};

use crate::parity::scenario::{ALPHA, Scenario, on};

pub(super) fn scenarios() -> Vec<Scenario> {
    let claim = |name, patch: Value| Scenario::with_class(name, json!({})).claim("a", [on(ALPHA), patch]);
    let modes = |modes: &[&str]| json!({"spec": {"accessModes": modes}});
    let block = || json!({"spec": {"volumeMode": "Block"}});
    vec![
        claim("read-write-once-pod", modes(&["ReadWriteOncePod"])).bound("a").deleted("a"),
        claim("read-write-many", modes(&["ReadWriteMany"])).failed("a", "MULTI_NODE_MULTI_WRITER"),
        claim("read-only-many", modes(&["ReadOnlyMany"])).failed("a", "MULTI_NODE_READER_ONLY"),
        claim("two-access-modes", modes(&["ReadWriteOnce", "ReadOnlyMany"])).failed("a", "MULTI_NODE_READER_ONLY"),
        claim("block", block()).bound("a").deleted("a"),
        claim("block-once-pod", json!({"spec": {"volumeMode": "Block", "accessModes": ["ReadWriteOncePod"]}}))
            .bound("a"),
        claim("block-many", json!({"spec": {"volumeMode": "Block", "accessModes": ["ReadWriteMany"]}}))
            .failed("a", "MULTI_NODE_MULTI_WRITER"),
        Scenario::with_class("block-with-mount-options", json!({"mountOptions": ["noatime"]}))
            .claim("a", [on(ALPHA), block()])
            .bound("a"),
        claim("explicit-filesystem", json!({"spec": {"volumeMode": "Filesystem"}})).bound("a"),
    ]
}
