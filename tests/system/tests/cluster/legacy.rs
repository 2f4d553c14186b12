//! The older API group `topolvm.cybozu.com`, served by the same programs in the same cluster.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use system_tests::manifests::{DataSource, VolumeMode, copied_claim, snapshot};
use system_tests::scenario::Scenario;
use testbed::topolvm::{CONTROLLER, NODE, THIN_VG, account_token};
use topolvm_api::ApiFlavor::{Legacy, TopoLvm};

use crate::Body;
use crate::fixture::{Fixture, logical_volume_resource};
use crate::job::SilentReporter;

pub(crate) fn tests() -> Vec<(String, Body)> {
    vec![("older_api_group_serves_all_features_and_ignores_the_newer".to_owned(), use_older_group)]
}

fn use_older_group(fixture: &Fixture) -> Result<()> {
    // Of the group that will not be served: a volume in use, and one whose object is deleted during the test
    fixture.apply_claim("other", "thin", "64Mi")?;
    fixture.start_pod("other", VolumeMode::Filesystem)?;
    fixture.write_word("other", "mine")?;
    fixture.apply_claim("doomed", "thin-now", "64Mi")?;
    fixture.wait_bound("doomed")?;
    let [other, doomed] = ["other", "doomed"].map(|claim| fixture.volume_name(claim));
    let (other, doomed) = (other?, doomed?);
    let untouched = fixture.get_object(&logical_volume_resource(TopoLvm), &other)?;

    // Requests that were refused earlier do not count
    let logs = [fixture.cluster.log(CONTROLLER), fixture.node.log(NODE)];
    let logged = |log: &PathBuf| Ok::<_, anyhow::Error>(fs::read_to_string(log)?.to_lowercase());
    let before = [logged(&logs[0])?.len(), logged(&logs[1])?.len()];
    fixture.run_with_spec(
        &fixture.spec.clone().legacy(),
        || Ok(()),
        || {
            fixture.kubectl(&["delete", &logical_volume_resource(TopoLvm), &doomed, "--wait=false"])?;
            fixture.apply_classes(Legacy)?;
            Scenario { cluster: &fixture.cluster, node: &fixture.node, flavor: Legacy }.run(&mut SilentReporter)?;
            check_names(fixture)?;
            check_admission(fixture)?;
            for (log, before) in logs.iter().zip(before) {
                let log = logged(log)?;
                let log = log.get(before..).context("the log has been cut")?;
                let refused: Vec<_> = log.lines().filter(|line| line.contains("forbidden")).collect();
                ensure!(refused.is_empty(), "a right is missing in the manifests: {refused:#?}");
            }
            ensure!(fixture.read_word("other")? == "mine", "the other volume has changed");
            let now = fixture.get_object(&logical_volume_resource(TopoLvm), &other)?;
            ensure!(now == untouched, "the other group's object was {untouched} and is {now}");
            let leaving = fixture.get_object(&logical_volume_resource(TopoLvm), &doomed)?;
            ensure!(leaving["metadata"]["finalizers"] == json!(["topolvm.io/logicalvolume"]), "{leaving}");
            let volumes = fixture.node.script(&format!("lvs --noheadings -o lv_name {THIN_VG}"))?;
            ensure!(volumes.contains(uid(&leaving)), "the LV of the other group has gone: {volumes}");
            Ok(())
        },
    )?;

    // The group is served again, and the object goes with its claim
    fixture.delete_claim("doomed")?;
    fixture.delete_pod_and_claim("other")?;
    fixture.wait_no_volumes()?;
    fixture.check_volumes(0)
}

/// Creates a snapshot and a restored volume, and checks every name of the group that others read.
fn check_names(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("old", "legacy-thin", "64Mi")?;
    fixture.start_pod("old", VolumeMode::Filesystem)?;
    fixture.write_word("old", "before")?;
    fixture.apply(&snapshot("old", "legacy-snapshots", "old"))?;
    fixture.wait_snapshot("old")?;
    fixture.write_word("old", "after")?;
    fixture.apply(&copied_claim("old-restored", "legacy-thin", "64Mi", DataSource::Snapshot("old")))?;
    fixture.start_pod("old-restored", VolumeMode::Filesystem)?;
    ensure!(fixture.read_word("old-restored")? == "before", "the restored volume has other data");
    fixture.expand("old", "128Mi")?;

    let volume = fixture.get_object(&logical_volume_resource(Legacy), &fixture.volume_name("old")?)?;
    ensure!(volume["metadata"]["finalizers"] == json!(["topolvm.cybozu.com/logicalvolume"]), "{volume}");
    ensure!(volume["metadata"]["annotations"]["topolvm.cybozu.com/resize-requested-at"].is_string(), "{volume}");
    let node = fixture.get_object("node", fixture.node.name())?;
    let metadata = &node["metadata"];
    for annotation in ["capacity.topolvm.cybozu.com/00default", "capacity.topolvm.cybozu.com/thin"] {
        ensure!(metadata["annotations"][annotation].is_string(), "no {annotation}: {metadata}");
    }
    ensure!(metadata["finalizers"].to_string().contains("topolvm.cybozu.com/node"), "{metadata}");
    ensure!(metadata["labels"]["topology.topolvm.cybozu.com/node"] == json!(fixture.node.name()), "{metadata}");
    let tags = fixture.node.script(&format!("lvs --noheadings -o lv_tags {THIN_VG}/{}", uid(&volume)))?;
    ensure!(tags.contains("topolvm.cybozu.com/logicalvolume=pvc-"), "the tags are {tags}");

    fixture.delete_pod_and_claim("old")?;
    fixture.kubectl(&["delete", "volumesnapshot", "old", "--timeout=180s"])?;
    fixture.delete_pod_and_claim("old-restored")?;
    let group = logical_volume_resource(Legacy);
    fixture.kubectl(&["wait", "--for=delete", &group, "--all", "--timeout=180s"]).map(drop)
}

/// Checks that the admission policy limits an agent to its own node in this group too.
fn check_admission(fixture: &Fixture) -> Result<()> {
    fixture.apply(&json!({
        "apiVersion": "topolvm.cybozu.com/v1", "kind": "LogicalVolume", "metadata": {"name": "elsewhere"},
        "spec": {"name": "elsewhere", "nodeName": "yours", "size": "1Gi"},
    }))?;
    let token = account_token(&fixture.cluster, NODE, Some(fixture.node.name()))?;
    let path = "/apis/topolvm.cybozu.com/v1/logicalvolumes/elsewhere";
    let patch = r#"{"metadata":{"finalizers":["topolvm.cybozu.com/logicalvolume"]}}"#;
    let (status, said) = fixture.request_as(&token, "PATCH", path, patch)?;
    ensure!(status == 403 && said.contains("may not change objects of node yours"), "{status}: {said}");
    fixture.kubectl(&["delete", &logical_volume_resource(Legacy), "elsewhere", "--timeout=180s"]).map(drop)
}

fn uid(object: &serde_json::Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or("no uid")
}
