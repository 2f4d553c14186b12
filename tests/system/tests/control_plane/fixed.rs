//! Immutable fields of a LogicalVolume, under both definitions.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use topolvm_api::{ApiFlavor, crd};

use crate::Body;
use crate::fixture::Fixture;

pub(crate) const ALL: &[(&str, Body)] = &[("logicalvolume_identity_and_placement_fields_are_immutable", change_fields)];

fn change_fields(fixture: &Fixture) -> Result<()> {
    for flavor in [ApiFlavor::TopoLvm, ApiFlavor::Legacy] {
        let (group, kind) = (flavor.group(), format!("logicalvolumes.{}", flavor.group()));
        // As an upgrade does it
        fixture.apply(&serde_json::to_value(crd(flavor))?)?;
        fixture.kubectl(&["wait", "--for=condition=Established", &format!("crd/{kind}"), "--timeout=180s"])?;
        let volume = |name: &str, more: &[(&str, &str)]| {
            let mut volume = json!({
                "apiVersion": format!("{group}/v1"), "kind": "LogicalVolume", "metadata": {"name": name},
                "spec": {"name": name, "nodeName": "n1", "size": "1Gi"},
            });
            for (field, value) in more {
                volume["spec"][field] = json!(value);
            }
            volume
        };
        fixture.apply(&volume("plain", &[]))?;
        fixture.apply(&volume("full", &[("deviceClass", "ssd"), ("source", "plain"), ("accessType", "rw")]))?;
        let patch = |name: &str, what: &str, patch: &Value| {
            let patch = patch.to_string();
            fixture.kubectl(&["patch", &kind, name, &format!("--subresource={what}"), "--type=merge", "-p", &patch])
        };
        let change = |name: &str, spec: Value| {
            let patch = json!({ "spec": spec }).to_string();
            fixture.kubectl(&["patch", &kind, name, "--type=merge", "-p", &patch])
        };
        for name in ["plain", "full"] {
            for (field, value) in [("name", "x"), ("nodeName", "n2"), ("deviceClass", "hdd"), ("source", "other")] {
                let refused = change(name, json!({ field: value }));
                let message = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
                let expected = format!("{field} says which volume this is and where, and cannot be changed");
                ensure!(message.contains(&expected), "{kind} {name}: {field}: {message:?}");
            }
            // Fields that TopoLVM changes, and equivalent values
            change(name, json!({"size": "2Gi"}))?;
            change(name, json!({"lvcreateOptionClass": "raid"}))?;
            patch(name, "status", &json!({"status": {"volumeID": name, "currentSize": "2Gi"}}))?;
        }
        change("plain", json!({"deviceClass": "", "source": ""}))?;
        change("plain", json!({"deviceClass": null, "source": null, "size": "3Gi"}))?;
        ensure!(change("full", json!({"deviceClass": null})).is_err(), "a class is removed");
        fixture.kubectl(&["delete", &kind, "plain", "full", "--timeout=180s"])?;
    }
    fixture.kubectl(&["delete", "crd", "logicalvolumes.topolvm.cybozu.com", "--timeout=180s"]).map(drop)
}
