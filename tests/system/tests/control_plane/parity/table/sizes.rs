//! Sizes of claims.

use serde_json::json;

use crate::parity::kinds::Kind;
use crate::parity::scenario::{ALPHA, Scenario, Until, immediate_on, on, size};

pub(super) fn scenarios() -> Vec<Scenario> {
    let claim = |name, bytes| Scenario::with_class(name, json!({})).claim("a", [on(ALPHA), size(bytes)]);
    // On a separate node, because the controller reserves what pending claims request
    let too_large = |name, node, bytes| {
        let class = Scenario::with_class(name, json!({})).node(node, 1, 0);
        class.claim("a", [on(node), size(bytes)]).failed("a", "ResourceExhausted")
    };
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
        too_large("size-larger-than-node", "small-2", "100Ti").unselected("a"),
        too_large("size-near-the-largest", "small-3", "7Ei").unselected("a"),
        Scenario::with_class("size-larger-than-all-nodes", immediate_on("small-4"))
            .node("small-4", 1, 0)
            .claim("a", [size("100Ti")])
            .failed("a", "ResourceExhausted")
            // Each attempt creates a LogicalVolume
            .wait(Kind::Claim, "a", Until::Retried)
            .deleted("a"),
        Scenario::with_class("size-of-block", json!({})).claim("a", [on(ALPHA), size("1000001"), block()]).bound("a"),
    ]
}
