//! Faults of volumes, snapshots, nodes, certificates and clocks, and what an older installation has left.

use std::sync::Arc;

use rstest::rstest;
use serde_json::{Value, json};
use topolvm_api::LogicalVolume;

use super::{assert_named, assert_sound, class, exempt, extender, lease, metrics, of, persistent_volume, sound};
use crate::{Backend, Facts, Outcome, examine};

const LONG_AGO: &str = "2026-01-01T00:00:00Z";

fn logical_volume(name: &str, node: &str) -> LogicalVolume {
    of(json!({
        "metadata": {"name": name, "creationTimestamp": LONG_AGO, "finalizers": ["topolvm.io/logicalvolume"]},
        "spec": {"name": name, "nodeName": node, "size": "1Gi", "deviceClass": "ssd"}, "status": {"volumeID": name},
    }))
}

fn persistent(handle: &str) -> Value {
    json!({
        "metadata": {"name": handle}, "status": {"phase": "Bound"},
        "spec": {"csi": {"driver": "topolvm.io", "volumeHandle": handle}},
    })
}

fn with_volume() -> Facts {
    let mut facts = sound();
    facts.volumes = Ok(vec![Arc::new(logical_volume("v", "n1"))]);
    facts.persistent = Ok(vec![persistent_volume(&persistent("v"))]);
    facts
}

/// Returns the only volume.
fn volume_of(facts: &mut Facts) -> &mut LogicalVolume {
    Arc::make_mut(&mut facts.volumes.as_mut().unwrap()[0])
}

#[test]
fn what_belongs_to_nothing_is_named() {
    assert_sound(&with_volume());
    let mut facts = with_volume();
    facts.persistent = Ok(Vec::new());
    assert_named(
        &facts,
        "volumes",
        Outcome::Warn,
        "no PersistentVolume refers to",
        "delete logicalvolumes.topolvm.io v",
    );
    volume_of(&mut facts).metadata.creation_timestamp = of(json!("2026-01-01T00:59:00Z"));
    assert_sound(&facts);
    let mut facts = with_volume();
    facts.volumes = Ok(Vec::new());
    assert_named(&facts, "volumes", Outcome::Fail, "PersistentVolume v has no LogicalVolume", "undelete --all");
    let mut facts = with_volume();
    let annotate = |facts: &mut Facts, orphans: &str| {
        let metadata = &mut facts.nodes.as_mut().unwrap()[0].metadata;
        metadata.annotations.get_or_insert_default().insert("topolvm.io/orphans".to_owned(), orphans.to_owned());
    };
    let orphan = json!({"lv": "u7", "logicalVolume": "pvc-7", "deviceClass": "ssd", "bytes": 1, "note": "left alone"});
    annotate(&mut facts, &json!({"volumes": [orphan]}).to_string());
    let found = "node n1: LV u7 has no LogicalVolume (it was created for pvc-7): left alone";
    assert_named(&facts, "volumes", Outcome::Warn, found, "restore it, or delete it");
    let remedy = "restore with -n NAMESPACE --claim NAME also creates";
    assert_named(&facts, "volumes", Outcome::Warn, found, remedy);
    annotate(&mut facts, "7");
    assert_named(&facts, "volumes", Outcome::Warn, "cannot read its list", "not older than topolvm-node");
    let mut facts = with_volume();
    facts.volumes = Ok(vec![Arc::new(logical_volume("v", "n9"))]);
    assert_named(&facts, "volumes", Outcome::Warn, "on node n9, which does not exist", "--stale-period");
    let mut facts = with_volume();
    volume_of(&mut facts).metadata.deletion_timestamp = of(json!(LONG_AGO));
    assert_named(
        &facts,
        "volumes",
        Outcome::Fail,
        "is deleted, but still has the finalizers",
        "topolvm-node on node n1",
    );
    volume_of(&mut facts).status.as_mut().unwrap().conditions = vec![of(json!({
        "type": "Removed", "status": "False", "reason": "RemoveFailed", "message": "v is the file of /dev/loop7",
        "lastTransitionTime": LONG_AGO,
    }))];
    assert_named(&facts, "volumes", Outcome::Fail, "cannot be removed: v is the file of /dev/loop7", "release the LV");
    let blocked = json!({
        "type": "Removed", "status": "False", "reason": "PersistentVolumeExists",
        "message": "PersistentVolume v refers to the volume", "lastTransitionTime": LONG_AGO,
    });
    volume_of(&mut facts).status.as_mut().unwrap().conditions = vec![of(blocked)];
    volume_of(&mut facts).metadata.deletion_timestamp = of(json!("2026-01-01T00:59:59Z"));
    let found = "LogicalVolume v of node n1 is being deleted, but its data is still needed";
    assert_named(&facts, "volumes", Outcome::Fail, found, "kubectl topolvm undelete v");
    let mut facts = with_volume();
    volume_of(&mut facts).status.as_mut().unwrap().conditions = vec![of(json!({
        "type": "Ready", "status": "False", "reason": "VolumeLost", "message": "", "lastTransitionTime": LONG_AGO,
    }))];
    assert_named(&facts, "volumes", Outcome::Fail, "the LV of LogicalVolume v does not exist", "vgcfgrestore");
}

/// Has a node name an LV without a LogicalVolume, in quarantine.
fn with_orphan(facts: &mut Facts) {
    let orphan = json!({
        "lv": "topolvm.quarantine.u7", "logicalVolume": "pvc-7", "deviceClass": "ssd", "bytes": 1, "note": "kept",
    });
    let metadata = &mut facts.nodes.as_mut().unwrap()[0].metadata;
    let annotation = json!({"volumes": [orphan]}).to_string();
    metadata.annotations.get_or_insert_default().insert("topolvm.io/orphans".to_owned(), annotation);
}

#[test]
fn lv_that_an_object_has_is_no_orphan() {
    let mut facts = with_volume();
    with_orphan(&mut facts);
    volume_of(&mut facts).metadata.annotations =
        Some([("topolvm.io/adopted".to_owned(), "topolvm.quarantine.u7".to_owned())].into());
    assert_sound(&facts);
    let mut facts = with_volume();
    with_orphan(&mut facts);
    volume_of(&mut facts).metadata.uid = Some("u7".to_owned());
    assert_sound(&facts);
}

#[rstest]
#[case::released("Released")]
#[case::bound("Bound")]
fn orphan_of_a_persistent_volume_is_never_offered_for_deletion(#[case] phase: &str) {
    let mut facts = with_volume();
    with_orphan(&mut facts);
    let mut kept = persistent("archive");
    kept["spec"]["csi"]["volumeHandle"] = json!("u7");
    kept["status"]["phase"] = json!(phase);
    facts.persistent.as_mut().unwrap().push(persistent_volume(&kept));
    let found = "LV topolvm.quarantine.u7 has no LogicalVolume, and PersistentVolume archive refers to it";
    assert_named(&facts, "volumes", Outcome::Fail, found, "kubectl topolvm undelete pvc-7");
    assert!(!format!("{:?}", examine(&facts)).contains("orphans delete"));
}

#[test]
fn orphan_is_restored_by_a_command_that_names_its_claim() {
    let mut facts = with_volume();
    with_orphan(&mut facts);
    let mut old = persistent("pvc-7");
    old["spec"]["claimRef"] = json!({"namespace": "shop", "name": "data"});
    old["spec"]["storageClassName"] = json!("fast");
    old["spec"]["csi"]["fsType"] = json!("xfs");
    old["status"]["phase"] = json!("Released");
    facts.persistent.as_mut().unwrap().push(persistent_volume(&old));
    let command = "kubectl topolvm orphans restore n1 topolvm.quarantine.u7 -n shop --claim data --name pvc-7-restored \
        --storage-class fast --filesystem xfs";
    let found = "LV topolvm.quarantine.u7 has no LogicalVolume";
    assert_named(&facts, "volumes", Outcome::Warn, found, command);
    // A claim of the name, and no PersistentVolume
    facts.persistent.as_mut().unwrap().pop();
    facts.claims = Ok(vec![of(json!({
        "metadata": {"name": "data", "namespace": "shop"}, "spec": {"volumeName": "pvc-7"},
    }))]);
    assert_named(&facts, "volumes", Outcome::Warn, found, "u7 -n shop --claim data-restored");
}

#[test]
fn volume_restored_without_a_claim_is_named_with_the_command() {
    let mut facts = with_volume();
    facts.persistent = Ok(Vec::new());
    volume_of(&mut facts).metadata.annotations = Some([("topolvm.io/adopted".to_owned(), "u7".to_owned())].into());
    let command = "kubectl topolvm orphans restore n1 u7 -n NAMESPACE --claim NAME";
    assert_named(&facts, "volumes", Outcome::Warn, "no PersistentVolume refers to", command);
}

#[test]
fn node_metrics_report_thin_pools_and_volume_groups() {
    for (text, result, found) in [
        (
            "topolvm_thinpool_data_percent{node=\"n1\",device_class=\"thin\"} 85.5",
            Outcome::Warn,
            "thin: 85.5 % of data used",
        ),
        (
            "topolvm_thinpool_metadata_percent{node=\"n1\",device_class=\"thin\"} 97",
            Outcome::Fail,
            "97 % of metadata used",
        ),
        (
            "topolvm_volumegroup_size_bytes{node=\"n1\",device_class=\"ssd\"} 0",
            Outcome::Fail,
            "the volume group of device class ssd does not exist",
        ),
        ("topolvm_lvmd_connected{node=\"n1\"} 0", Outcome::Fail, "cannot reach lvmd"),
        ("topolvm_lvmd_volume_group_stale{volume_group=\"vg\"} 1", Outcome::Fail, "report the volume group vg"),
        ("topolvm_lvmd_volume_group_missing_physical_volumes{volume_group=\"vg\"} 1", Outcome::Fail, "are missing"),
        ("topolvm_lvmd_config_last_reload_successful 0", Outcome::Warn, "lvmd rejects it"),
        (
            "topolvm_lvmd_volume_group_pools_ignoring_discards{volume_group=\"vg\"} 1",
            Outcome::Warn,
            "node n1: 1 thin pools of the volume group vg ignore discards",
        ),
        (
            "topolvm_lvmd_device_class_used_spare_bytes{device_class=\"ssd\"} 4096",
            Outcome::Warn,
            "node n1: 4096 bytes of the spare of device class ssd are in use",
        ),
        (
            "topolvm_lvmd_device_class_refused{device_class=\"ssd\"} 1",
            Outcome::Warn,
            "node n1: LVM creates no volumes in device class ssd",
        ),
        ("topolvm_stacked_mounts{node=\"n1\"} 31", Outcome::Warn, "node n1: 31 mounts are stacked"),
        ("topolvm_inactive_volumes{node=\"n1\"} 3", Outcome::Warn, "node n1: 3 LVs of ready LogicalVolumes"),
    ] {
        let mut facts = sound();
        facts.metrics = vec![metrics("n1", text)];
        assert_named(&facts, "storage", result, found, "");
    }
    let healthy = "topolvm_inactive_volumes 0\ntopolvm_stacked_mounts 0\n\
        topolvm_lvmd_volume_group_pools_ignoring_discards{volume_group=\"vg\"} 0\n\
        topolvm_lvmd_device_class_used_spare_bytes{device_class=\"ssd\"} 0\n\
        topolvm_lvmd_device_class_refused{device_class=\"ssd\"} 0\n\
        topolvm_thinpool_data_percent{device_class=\"thin\"} 79\ntopolvm_lvmd_connected 1\n\
        topolvm_volumegroup_size_bytes{device_class=\"ssd\"} 1\n\
        topolvm_volumegroup_size_bytes{device_class=\"thin\"} 0\ntopolvm_thinpool_size_bytes{device_class=\"thin\"} 1\n\
        topolvm_lvmd_volume_group_stale{volume_group=\"vg\"} 0\ntopolvm_lvmd_config_last_reload_successful 1\n";
    let mut facts = sound();
    facts.metrics = vec![metrics("n1", healthy)];
    assert_sound(&facts);
}

#[test]
fn a_node_of_which_no_pod_has_metrics_is_not_said_to_be_well() {
    let mut facts = sound();
    facts.metrics.clear();
    let words = "no metrics of pods report the volume groups and thin pools of node n1";
    assert_named(&facts, "storage", Outcome::Unknown, words, "read its metrics and those of lvmd on the node");
    // The problem of another node is still reported
    facts.metrics = vec![metrics("n2", "topolvm_lvmd_connected 0")];
    assert_named(&facts, "storage", Outcome::Fail, "node n2: topolvm-node cannot reach lvmd", "");
}

#[test]
fn storage_remedies_name_what_to_look_at_and_to_change() {
    let missing = "topolvm_volumegroup_size_bytes{device_class=\"ssd\"} 0";
    let stale = "topolvm_lvmd_volume_group_stale{volume_group=\"vg\"} 1";
    let refused = "topolvm_lvmd_config_last_reload_successful 0";
    let without_volumes = "topolvm_lvmd_device_class_refused{device_class=\"ssd\"} 1";
    for (text, result, remedy) in [
        (missing, Outcome::Fail, "lvmdevices --adddev"),
        (missing, Outcome::Fail, "global_filter"),
        (stale, Outcome::Fail, "lvmdevices --adddev"),
        (stale, Outcome::Fail, "global_filter"),
        (stale, Outcome::Fail, "rename the one that lvmd does not use (vgrename UUID NAME)"),
        (stale, Outcome::Fail, "Do not change a group on a loop device"),
        (refused, Outcome::Warn, "they name the same volume group or thin pool"),
        (without_volumes, Outcome::Warn, "kubectl get nodestorages n1 -o yaml"),
    ] {
        let mut facts = sound();
        facts.metrics = vec![metrics("n1", text)];
        assert_named(&facts, "storage", result, "node n1: ", remedy);
    }
}

#[test]
fn a_kernel_that_refuses_what_mkfs_xfs_makes_is_named() {
    let mut facts = sound();
    let parameters = json!({"csi.storage.k8s.io/fstype": "xfs", "topolvm.io/device-class": "ssd"});
    facts.classes = Ok(vec![of(class(&parameters, "WaitForFirstConsumer"))]);
    for (kernel, is_old) in [("5.4.0-200-generic", true), ("5.10.1", false), ("6.12.9+deb13", false)] {
        facts.nodes.as_mut().unwrap()[0].status = of(json!({"nodeInfo": {
            "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": kernel,
            "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
            "systemUUID": "",
        }}));
        if is_old {
            assert_named(&facts, "kernels", Outcome::Fail, "fast uses xfs, but the kernel of n1", "bigtime=0");
        } else {
            assert_sound(&facts);
        }
    }
}

#[test]
fn leftovers_of_the_other_api_group_are_named_with_commands() {
    let mut facts = sound();
    let metadata = &mut facts.nodes.as_mut().unwrap()[0].metadata;
    metadata.finalizers.as_mut().unwrap().push("topolvm.cybozu.com/node".to_owned());
    let patch = r#"{"op":"remove","path":"/metadata/finalizers/1"}"#;
    assert_named(&facts, "leftovers", Outcome::Warn, "node n1 has the finalizer topolvm.cybozu.com/node", patch);
    let mut facts = sound();
    let annotations = facts.nodes.as_mut().unwrap()[1].metadata.annotations.get_or_insert_default();
    annotations.insert("capacity.topolvm.cybozu.com/ssd".to_owned(), "1".to_owned());
    let command = "kubectl annotate node without-storage capacity.topolvm.cybozu.com/ssd-";
    assert_named(&facts, "leftovers", Outcome::Warn, "has annotations of topolvm.cybozu.com", command);
}

#[test]
fn a_snapshot_that_no_content_refers_to_is_named() {
    let mut snapshot = logical_volume("snapshot-7", "n1");
    snapshot.spec.source = "v".to_owned();
    snapshot.spec.access_type = "ro".to_owned();
    let mut facts = with_volume();
    facts.volumes.as_mut().unwrap().push(Arc::new(snapshot));
    let (found, command) =
        ("no VolumeSnapshotContent refers to LogicalVolume snapshot-7", "delete logicalvolumes.topolvm.io snapshot-7");
    assert_named(&facts, "volumes", Outcome::Warn, found, command);
    let content = |name: &str, driver: &str, source: Value, status: Value| {
        of(json!({"metadata": {"name": name}, "spec": {"driver": driver, "source": source}, "status": status}))
    };
    let (none, handle) = (json!({}), json!({"snapshotHandle": "snapshot-7"}));
    for others in [
        content("c", "topolvm.io", none.clone(), json!({"snapshotHandle": "snapshot-8"})),
        content("snapcontent-7", "topolvm.cybozu.com", handle.clone(), handle.clone()),
    ] {
        facts.snapshot_contents = Ok(vec![others]);
        assert_named(&facts, "volumes", Outcome::Warn, found, command);
    }
    for its_own in [
        content("c", "topolvm.io", none.clone(), handle.clone()),
        content("c", "topolvm.io", handle, none.clone()),
        content("snapcontent-7", "topolvm.io", none.clone(), none),
    ] {
        facts.snapshot_contents = Ok(vec![its_own]);
        assert_sound(&facts);
    }
}

#[test]
fn what_makes_no_snapshots_is_named() {
    let mut facts = sound();
    let snapshot_class = json!({"metadata": {"name": "snaps"}, "driver": "topolvm.io"});
    facts.snapshot_classes = Ok(vec![of(snapshot_class)]);
    let served = |names: &[&str]| Ok(names.iter().map(|name| (*name).to_owned()).collect());
    facts.snapshot_resources = served(&["volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"]);
    facts.workloads.as_mut().unwrap()[0].containers = vec![of(json!({"name": "csi-snapshotter"}))];
    assert_sound(&facts);
    let mut without = facts.clone();
    without.snapshot_resources = served(&["volumesnapshotclasses"]);
    let words = "lacks volumesnapshotcontents, volumesnapshots";
    assert_named(&without, "snapshots", Outcome::Fail, words, "CustomResourceDefinitions");
    let mut without = facts.clone();
    without.workloads.as_mut().unwrap()[0].containers.clear();
    assert_named(&without, "snapshots", Outcome::Fail, "nor csi-snapshotter", "add snapshotter");
    let controller = json!({"name": "topolvm-controller", "args": ["--controllers=resizer,snapshotter"]});
    without.workloads.as_mut().unwrap()[0].containers = vec![of(controller)];
    assert_sound(&without);
    facts.snapshots = Ok(vec![of(json!({
        "metadata": {"name": "s", "namespace": "shop", "creationTimestamp": LONG_AGO},
        "spec": {"volumeSnapshotClassName": "snaps", "source": {"persistentVolumeClaimName": "data"}},
    }))]);
    assert_named(&facts, "snapshots", Outcome::Fail, "VolumeSnapshot shop/s", "start the snapshot-controller");
}

#[test]
fn a_copy_that_cannot_be_made_is_named() {
    let claim = |name: &str, class: &str, size: &str, source: Value| {
        let mut claim = json!({
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"storageClassName": class, "resources": {"requests": {"storage": size}}},
        });
        claim["spec"]["dataSource"] = source;
        of(claim)
    };
    let snapshot = || json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    let mut original: k8s_openapi::api::core::v1::PersistentVolumeClaim = claim("data", "fast", "2Gi", Value::Null);
    original.spec.as_mut().unwrap().volume_name = Some("v".to_owned());
    let mut facts = sound();
    let slow = json!({"topolvm.io/device-class": "hdd"});
    let mut slow = class(&slow, "WaitForFirstConsumer");
    slow["metadata"]["name"] = json!("slow");
    facts.classes.as_mut().unwrap().push(of(slow));
    let annotations = facts.nodes.as_mut().unwrap()[0].metadata.annotations.as_mut().unwrap();
    annotations.insert("capacity.topolvm.io/hdd".to_owned(), "5".to_owned());
    facts.snapshots = Ok(vec![of(json!({
        "metadata": {"name": "s", "namespace": "shop"}, "status": {"restoreSize": "2Gi"},
        "spec": {"source": {"persistentVolumeClaimName": "data"}},
    }))]);
    facts.claims = Ok(vec![original.clone(), claim("copy", "fast", "2Gi", snapshot())]);
    assert_sound(&facts);
    // The real size of the source is no matter
    let clone = || json!({"kind": "PersistentVolumeClaim", "name": "data"});
    let mut rounded = original.clone();
    rounded.status = of(json!({"capacity": {"storage": "2052Mi"}}));
    facts.claims = Ok(vec![rounded.clone(), claim("copy", "fast", "2Gi", clone())]);
    assert_sound(&facts);
    facts.claims = Ok(vec![rounded, claim("copy", "fast", "2047Mi", clone())]);
    assert_named(&facts, "copies", Outcome::Fail, "claim shop/copy requests 2047Mi", "at least 2Gi");
    facts.claims = Ok(vec![original.clone(), claim("copy", "fast", "1Gi", snapshot())]);
    assert_named(&facts, "copies", Outcome::Fail, "claim shop/copy requests 1Gi", "at least 2Gi");
    facts.claims = Ok(vec![original.clone(), claim("copy", "slow", "2Gi", snapshot())]);
    let words = "is in the device class \"hdd\", but VolumeSnapshot shop/s is in \"ssd\"";
    assert_named(&facts, "copies", Outcome::Fail, words, "StorageClass fast");
    let gone = json!({"kind": "PersistentVolumeClaim", "name": "gone"});
    facts.claims = Ok(vec![original, claim("copy", "fast", "2Gi", gone)]);
    assert_named(&facts, "copies", Outcome::Fail, "which does not exist", "create the source");
}

#[test]
fn a_clock_that_is_ahead_and_leaders_that_come_and_go_are_named() {
    let mut facts = sound();
    facts.provisioner_leases = Ok(vec![of(lease("topolvm-system", "topolvm-io", "2026-01-01T01:10:00.000000Z"))]);
    assert_named(&facts, "leases", Outcome::Warn, "600 s in the future", "clocks");
    let mut facts = sound();
    let lease = &mut facts.leases.as_mut().unwrap()[0];
    lease.metadata.creation_timestamp = of(json!("2025-12-31T23:00:00Z"));
    let spec = lease.spec.as_mut().unwrap();
    (spec.lease_transitions, spec.acquire_time) = (Some(40), of(json!("2026-01-01T00:59:00.000000Z")));
    assert_named(&facts, "leases", Outcome::Warn, "40 holders in 3 h", "throttled");
}

#[test]
fn a_certificate_for_another_name_and_calls_that_fail_are_named() {
    let mut facts = sound();
    extender(&mut facts, (2027, 1, 1), &exempt(), Some(1));
    let message = "pods \"a\" is forbidden: Internal error occurred: failed calling webhook \"pod-hook.topolvm.io\": \
        tls: failed to verify certificate: x509: certificate is valid for a, not b";
    let event = |time: &str| {
        json!({
            "metadata": {"name": "e", "namespace": "shop"}, "reason": "FailedCreate", "message": message,
            "involvedObject": {"kind": "ReplicaSet"}, "lastTimestamp": time,
        })
    };
    facts.creation_events = Ok(vec![of(event(LONG_AGO))]);
    assert_sound(&facts);
    facts.creation_events = Ok(vec![of(event("2026-01-01T00:58:00Z"))]);
    assert_named(&facts, "webhooks", Outcome::Fail, "certificate is valid for a, not b", "x509");
    facts.creation_events = Ok(Vec::new());
    let service = ("topolvm-system".to_owned(), "other".to_owned());
    let configuration = &mut facts.webhooks.as_mut().unwrap()[0];
    let webhook = &mut configuration.webhooks.as_mut().unwrap()[0];
    webhook.client_config.service.as_mut().unwrap().name.clone_from(&service.1);
    facts.backends = vec![Backend { namespace: service.0, name: service.1, ready: Ok(Some(1)) }];
    assert_named(&facts, "webhooks", Outcome::Fail, "the API server requests other.topolvm-system.svc", "DNS name");
}
