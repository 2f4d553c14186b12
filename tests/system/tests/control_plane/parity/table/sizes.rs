//! Sizes of claims.

use serde_json::json;

use crate::parity::scenario::{ALPHA, Scenario, immediate_on, on, size};

pub(super) fn scenarios() -> Vec<Scenario> {
    let claim = |name, bytes| Scenario::with_class(name, json!({})).claim("a", [on(ALPHA), size(bytes)]);
    let block = || json!({"spec": {"volumeMode": "Block"}});
    vec![
        claim("size-one-byte", "1").bound("a"),
        claim("size-half-a-byte", "500m").bound("a"),
        claim("size-one-kib", "1Ki").bound("a"),
        claim("size-odd", "1000001").bound("a"),
        claim("size-one-above-extent", "4194305").bound("a"),
        claim("size-decimal", "1G").bound("a"),
        claim("size-decimal-fraction", "1.5Gi").bound("a"),
        claim("size-exponent", "1e9").bound("a"),
        claim("size-larger-than-node", "100Ti").failed("a", "").unselected("a"),
        claim("size-near-the-largest", "7Ei").failed("a", "").unselected("a"),
        Scenario::with_class("size-larger-than-all-nodes", immediate_on(ALPHA))
            .claim("a", [size("100Ti")])
            .failed("a", ""),
        Scenario::with_class("size-of-block", json!({})).claim("a", [on(ALPHA), size("1000001"), block()]).bound("a"),
    ]
}
