//! Expansions of volumes whose PersistentVolume an administrator writes.

use serde_json::{Value, json};

use super::device_expansions::expandable;
use super::static_volumes::volume;
use crate::parity::kinds::Kind;
use crate::parity::merge::merge;
use crate::parity::scenario::{ALPHA, DRIVER, SELF, Scenario, VOLUME_ID};

pub(super) fn scenarios() -> Vec<Scenario> {
    let block = || json!({"spec": {"volumeMode": "Block"}});
    let with = |scenario: Scenario, volume: Value| {
        let named = json!({"spec": {"volumeName": SELF}});
        scenario.create(Kind::Volume, SELF, merge(volume, block())).claim("a", [named, block()]).bound("a")
    };
    let with_volume = |name, volume: Value| with(expandable(name, json!({})), volume);
    let ignored = |scenario: Scenario| scenario.request("a", "128Mi").barrier().record();
    let with_logical_volume = |name, volume: Value| {
        let object = json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": ""},
            "spec": {"name": SELF, "nodeName": ALPHA, "size": "64Mi", "deviceClass": "ssd"},
        });
        with(expandable(name, json!({})).create(Kind::LogicalVolume, SELF, object), volume)
    };
    let of_logical_volume = || json!({"spec": {"csi": {"volumeHandle": VOLUME_ID}}});
    vec![
        ignored(with_volume("volume-of-another-driver", volume("other.example.com", "Retain", &json!({})))),
        ignored(with_volume(
            "volume-without-a-driver",
            volume(
                DRIVER,
                "Retain",
                &json!({"spec": {"csi": null, "local": {"path": "/dev/none"}, "nodeAffinity": {
                    "required": {"nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [ALPHA]}]},
                    ]},
                }}}),
            ),
        )),
        with_volume("volume-that-does-not-exist", volume(DRIVER, "Retain", &json!({})))
            .request("a", "128Mi")
            .infeasible("a", "128Mi"),
        with_logical_volume("volume-by-hand", volume(DRIVER, "Retain", &of_logical_volume()))
            .request("a", "128Mi")
            .expanded("a", "128Mi"),
        with_logical_volume("volume-by-hand-and-too-large", volume(DRIVER, "Retain", &of_logical_volume()))
            .request("a", "1Ti")
            .infeasible("a", "1Ti")
            .request("a", "128Mi")
            .expanded("a", "128Mi"),
    ]
}
