//! VolumeAttributesClasses of claims.

use serde_json::json;

use crate::parity::scenario::{ALPHA, DRIVER, SELF, Scenario, attributes_class, on};

pub(super) fn scenarios() -> Vec<Scenario> {
    let class = |name| Scenario::with_class(name, json!({}));
    let of_class = || attributes_class(SELF);
    let limit = json!({"topolvm.io/read-bytes-per-second": "10Mi"});
    vec![
        class("attributes")
            .attributes(SELF, DRIVER, &limit)
            .claim("a", [on(ALPHA), of_class()])
            .bound("a")
            .deleted("a"),
        class("attributes-missing")
            .claim("a", [on(ALPHA), of_class()])
            .failed("a", "attributes-missing")
            .attributes(SELF, DRIVER, &limit)
            .bound("a"),
        class("attributes-of-another-driver")
            .attributes(SELF, "other.example.com", &limit)
            .claim("a", [on(ALPHA), of_class()])
            .failed("a", "other.example.com"),
        class("attributes-unknown-parameter")
            .attributes(SELF, DRIVER, &json!({"color": "red"}))
            .claim("a", [on(ALPHA), of_class()])
            .failed("a", "color"),
        class("attributes-empty").claim("a", [on(ALPHA), attributes_class("")]).bound("a"),
    ]
}
