//! NodeStorage objects: their definition, their columns, whose they are, and their end.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::shared::TestCluster;
use testbed::topolvm::{NODE, account_token};
use topolvm_api::{ApiFlavor, node_storage_crd};

use crate::Body;
use crate::fixture::Fixture;

pub(crate) const ALL: &[(&str, Body)] = &[
    ("node_storage_is_written_only_by_its_agent_and_owned_by_node", write_own_alone),
    ("node_storage_keeps_all_fields_and_kubectl_prints_columns", keep_all_fields),
    ("the_older_api_group_has_the_storage_of_nodes_too", use_legacy_group),
];

const STORAGE: &str = "nodestorages.topolvm.io";
const PATH: &str = "/apis/topolvm.io/v1/nodestorages";

/// Returns the object that the agent of a node creates.
fn object(fixture: &TestCluster, node: &str) -> Result<Value> {
    let uid = fixture.kubectl(&["get", "node", node, "-o", "jsonpath={.metadata.uid}"])?;
    let storage = topolvm_api::NodeStorage::new(ApiFlavor::TopoLvm, node, &uid);
    serde_json::to_value(storage).context("no JSON")
}

/// Returns the path of the status of an object, of which nothing that is not defined is taken.
fn status_path(name: &str) -> String {
    format!("{PATH}/{name}/status?fieldValidation=Strict")
}

fn write_own_alone(fixture: &Fixture) -> Result<()> {
    for node in ["ours", "theirs"] {
        fixture.create_node(node)?;
    }
    let token = account_token(&fixture.cluster, NODE, Some("ours"))?;
    let ask = |method: &str, path: &str, body: &Value| fixture.request_as(&token, method, path, &body.to_string());
    let (ours, theirs) = (object(fixture, "ours")?, object(fixture, "theirs")?);
    let mut of_another = ours.clone();
    of_another["metadata"]["ownerReferences"] = theirs["metadata"]["ownerReferences"].clone();
    let mut without_owner = ours.clone();
    without_owner["metadata"]["ownerReferences"] = json!([]);
    // The API server takes a moment to load a new policy
    fixture.cluster.ready("apiserver", || ensure_refused(&ask("POST", PATH, &without_owner)?, "must be owned by"))?;
    ensure_refused(&ask("POST", PATH, &of_another)?, "must be owned by")?;
    ensure_refused(&ask("POST", PATH, &theirs)?, "node ours may not change objects of node theirs")?;

    let (answer, said) = ask("POST", PATH, &ours)?;
    ensure!(answer == 201, "the agent's own object is answered with {answer}: {said}");
    fixture.apply(&theirs)?;
    let status = json!({"status": {"size": "1Gi"}});
    let (answer, said) = ask("PATCH", &status_path("ours"), &status)?;
    ensure!(answer == 200, "the agent's own status is answered with {answer}: {said}");
    ensure_refused(&ask("PATCH", &status_path("theirs"), &status)?, "may not change objects of node theirs")?;
    for name in ["ours", "theirs"] {
        let path = format!("{PATH}/{name}");
        ensure_refused(&ask("PATCH", &path, &json!({"metadata": {"labels": {"a": "b"}}}))?, "cannot patch")?;
        ensure_refused(&ask("DELETE", &path, &json!({}))?, "cannot delete")?;
    }
    refuse_metadata(&ask)?;

    for node in ["ours", "theirs"] {
        fixture.kubectl(&["delete", "node", node, "--timeout=180s"])?;
        fixture.kubectl(&["wait", "--for=delete", &format!("{STORAGE}/{node}"), "--timeout=180s"])?;
    }
    Ok(())
}

/// An agent may only change the status of its object: the role does not allow more.
fn refuse_metadata(ask: &impl Fn(&str, &str, &Value) -> Result<(u16, String)>) -> Result<()> {
    for metadata in [
        json!({"annotations": {"example.com/x": "y"}}),
        json!({"finalizers": ["example.com/x"]}),
        json!({"ownerReferences": []}),
    ] {
        ensure_refused(&ask("PATCH", &format!("{PATH}/ours"), &json!({ "metadata": metadata }))?, "cannot patch")?;
    }
    Ok(())
}

fn ensure_refused((status, said): &(u16, String), why: &str) -> Result<()> {
    ensure!(*status == 403 && said.contains(why), "answered with {status}, and not refused because {why}: {said}");
    Ok(())
}

fn keep_all_fields(fixture: &Fixture) -> Result<()> {
    fixture.create_node("full")?;
    let token = account_token(&fixture.cluster, NODE, Some("full"))?;
    let status = full_status();
    let made = object(fixture, "full")?.to_string();
    fixture.cluster.ready("apiserver", || {
        let (answer, said) = fixture.request_as(&token, "POST", PATH, &made)?;
        ensure!(answer == 201 || answer == 409, "{answer}: {said}");
        Ok(())
    })?;
    let patch = json!({ "status": status }).to_string();
    let (answer, said) = fixture.request_as(&token, "PATCH", &status_path("full"), &patch)?;
    ensure!(answer == 200, "{answer}: {said}");
    let stored: Value = serde_json::from_str(&fixture.kubectl(&["get", STORAGE, "full", "-o", "json"])?)?;
    ensure!(stored["status"] == status, "{} became {}", status, stored["status"]);
    let unknown = json!({"status": {"sise": "1Gi"}}).to_string();
    let (answer, said) = fixture.request_as(&token, "PATCH", &status_path("full"), &unknown)?;
    ensure!(answer == 422 && said.contains("unknown field"), "an unknown field is answered with {answer}: {said}");

    // kubectl caches the resources of the API for hours
    fixture.cluster.ready("apiserver", || {
        let resources = fixture.kubectl(&["api-resources", "--cached=false", "-o", "name"])?;
        ensure!(resources.contains(STORAGE) && !resources.contains("topolvm.cybozu.com"), "{resources}");
        Ok(())
    })?;
    let table = fixture.kubectl(&["get", "nst", "full", "-o", "wide"])?;
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    ensure!(lines[0] == ["NAME", "READY", "REASON", "SIZE", "FREE", "AGE", "PROBLEM"], "{table}");
    ensure!(lines[1][..5] == ["full", "False", "PhysicalVolumeMissing", "20Gi", "5Gi"], "{table}");
    ensure!(lines[1][6..].join(" ") == "a disk is missing", "{table}");
    fixture.kubectl(&["delete", "node", "full", "--timeout=180s"])?;
    // doctor, which other tests run, would name its problems
    fixture.kubectl(&["wait", "--for=delete", &format!("{STORAGE}/full"), "--timeout=180s"]).map(drop)
}

/// Returns a status with every field that there is.
fn full_status() -> Value {
    json!({
        "size": "20Gi", "free": "5Gi",
        "volumeGroups": [
            {
                "name": "vg", "uuid": "u", "size": "20Gi", "free": "5Gi", "extentSize": "4Mi",
                "missingPhysicalVolumes": 1, "staleReason": "LVM hangs",
                "physicalVolumes": [
                    {
                        "path": "/dev/sdb", "uuid": "a", "size": "10Gi", "free": "5Gi", "device": "8:16",
                        "allocatable": true,
                    },
                    {"path": "/dev/sdc", "uuid": "b", "size": "10Gi", "missing": true, "allocatable": false},
                    {
                        "path": "/dev/sdd", "uuid": "c", "size": "10Gi", "allocatable": false,
                        "evacuation": {"state": "moving", "message": "moves", "remaining": "1Gi", "remove": true},
                    },
                ],
            },
            {"name": "gone"},
        ],
        "deviceClasses": [
            {"name": "ssd", "default": true, "type": "thick", "volumeGroup": "vg", "size": "20Gi", "free": "0"},
            {"name": "thin", "type": "thin", "volumeGroup": "vg", "thinPool": "pool", "size": "4Gi", "free": "9Gi"},
        ],
        "thinPools": [{
            "volumeGroup": "vg", "name": "pool", "size": "4Gi", "dataPercent": 100, "metadataPercent": 0,
            "problem": "the thin pool is out of data space",
        }],
        "problems": ["a disk is missing", "so is another"],
        "conditions": [{
            "type": "Ready", "status": "False", "reason": "PhysicalVolumeMissing",
            "message": "a disk is missing; and 1 more in status.problems", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    })
}

fn use_legacy_group(fixture: &Fixture) -> Result<()> {
    let definition = "nodestorages.topolvm.cybozu.com";
    fixture.apply(&serde_json::to_value(node_storage_crd(ApiFlavor::Legacy))?)?;
    fixture.kubectl(&["wait", "--for=condition=Established", &format!("crd/{definition}"), "--timeout=180s"])?;
    let object = serde_json::to_value(topolvm_api::NodeStorage::new(ApiFlavor::Legacy, "n1", "u"))?;
    fixture.cluster.ready("apiserver", || fixture.apply(&object))?;
    fixture.kubectl(&["delete", definition, "n1", "--ignore-not-found", "--timeout=180s"])?;
    fixture.kubectl(&["delete", "crd", definition, "--timeout=180s"]).map(drop)
}
