//! VolumeAttributesClasses of claims.

use serde_json::{Value, json};

use crate::parity::kinds::Kind;
use crate::parity::scenario::{ALPHA, DRIVER, SELF, Scenario, on};

pub(super) fn scenarios() -> Vec<Scenario> {
    let class = |name| Scenario::with_class(name, json!({}));
    let of_class = || json!({"spec": {"volumeAttributesClassName": SELF}});
    let limit = json!({"topolvm.io/read-bytes-per-second": "10Mi"});
    vec![
        class("attributes")
            .create(Kind::AttributesClass, SELF, attributes(DRIVER, &limit))
            .claim("a", [on(ALPHA), of_class()])
            .bound("a")
            .deleted("a"),
        class("attributes-missing")
            .claim("a", [on(ALPHA), of_class()])
            .failed("a", "attributes-missing")
            .create(Kind::AttributesClass, SELF, attributes(DRIVER, &limit))
            .bound("a"),
        class("attributes-of-another-driver")
            .create(Kind::AttributesClass, SELF, attributes("other.example.com", &limit))
            .claim("a", [on(ALPHA), of_class()])
            .failed("a", "other.example.com"),
        class("attributes-unknown-parameter")
            .create(Kind::AttributesClass, SELF, attributes(DRIVER, &json!({"color": "red"})))
            .claim("a", [on(ALPHA), of_class()])
            .failed("a", "color"),
        class("attributes-empty")
            .claim("a", [on(ALPHA), json!({"spec": {"volumeAttributesClassName": ""}})])
            .bound("a"),
    ]
}

fn attributes(driver: &str, parameters: &Value) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": ""},
        "driverName": driver, "parameters": parameters,
    })
}
