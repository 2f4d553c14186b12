//! A cluster that TopoLVM has served: its objects, volumes, snapshots and mounts in the shapes that TopoLVM gives them, served by these
//! programs. And what these programs write, as TopoLVM reads it.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::manifests::{DataSource, VolumeMode, claim, copied_claim, pod, snapshot, storage_class};
use testbed::topolvm::{self, NODE, THIN_CLASS, THIN_POOL, THIN_VG, TopolvmSpec};
use topolvm_api::ApiFlavor::TopoLvm;

use crate::Body;
use crate::fixture::{Fixture, VG, volumes_of};
use crate::webhooks::path_of_manifests;

pub(crate) fn trials() -> Vec<(String, Body)> {
    let all: [(&str, Body); 3] = [
        ("what_topolvm_made_is_mounted_grown_copied_and_deleted_after_the_switch", switched),
        ("what_is_written_here_has_the_shape_that_topolvm_reads", back),
        ("a_size_that_the_status_lacks_is_learned_from_lvm", learned),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

/// Of thin volumes with XFS, and the size of those.
const XFS_CLASS: &str = "thin-xfs";
const XFS: &str = "320Mi";
/// Size of the others.
const SMALL: &str = "64Mi";

fn switched(fixture: &Fixture) -> Result<()> {
    // Two pods run through it all
    for (name, mode) in [("running", VolumeMode::Filesystem), ("device", VolumeMode::Block)] {
        fixture.apply(&claim(name, "waiting", SMALL, mode))?;
        fixture.start(name, mode)?;
    }
    fixture.write("running", "theirs")?;
    let mut class = storage_class(TopoLvm, XFS_CLASS, Some(THIN_CLASS), false);
    class["parameters"]["csi.storage.k8s.io/fstype"] = "xfs".into();
    fixture.apply(&class)?;
    let directory = tempfile::tempdir()?;
    let their_definition = TopolvmSpec { manifests: directory.path().to_owned(), ..fixture.spec.clone() };
    write_their_definition(directory.path())?;
    fixture.switched(&their_definition, || make(fixture), || after(fixture))?;
    fixture.kubectl(&["delete", "storageclass", XFS_CLASS])?;
    let left = fixture.node.script(&format!("lvs --noheadings -o lv_name {VG} {THIN_VG}"))?;
    ensure!(left.trim() == THIN_POOL, "LVs are left: {left}");
    fixture.check_volumes(0)
}

/// The base with the definition and the CSIDriver as TopoLVM installs them: without columns, fields to select by and a policy for `fsGroup`.
fn write_their_definition(directory: &Path) -> Result<()> {
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [format!("{}/base", path_of_manifests(directory)?)],
        "patches": [{
            "target": {"kind": "CustomResourceDefinition"},
            "patch": json!([
                {"op": "remove", "path": "/spec/versions/0/selectableFields"},
                {"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns"},
            ]).to_string(),
        }, {
            "target": {"kind": "CSIDriver"},
            "patch": json!([{"op": "remove", "path": "/spec/fsGroupPolicy"}]).to_string(),
        }],
    });
    fs::write(directory.join("kustomization.yaml"), kustomization.to_string()).context("write the kustomization")
}

/// Everything that TopoLVM leaves, made while nothing of ours but lvmd runs.
fn make(fixture: &Fixture) -> Result<()> {
    let node = &fixture.node;
    // A filesystem without status.currentSize, as before 0.36.5 and after some failures, and a device node of before 0.33
    let id = object(fixture, "pvc-fs", &json!({"size": SMALL}), &[FINALIZER])?;
    node.script(&format!("lvcreate -qq -n {id} -L 67108864b -W y -y {VG}"))?;
    format(fixture, "ext4 -q -F -m0", &format!("{VG}/{id}"))?;
    node.script(&format!("mkdir -p /dev/topolvm && cp -a $(readlink -f /dev/{VG}/{id}) /dev/topolvm/{id}"))?;
    status(fixture, "pvc-fs", &json!({"volumeID": id}))?;
    bound(fixture, "fs", "waiting", SMALL, VolumeMode::Filesystem, &id)?;

    let spec = json!({"size": SMALL, "deviceClass": "ssd"});
    let id = object(fixture, "pvc-block", &spec, &[FINALIZER])?;
    // Not active, as after a boot of a machine that activates nothing
    node.script(&format!(
        "lvcreate -qq -n {id} -L 67108864b -W y -y {VG} && echo theirs >/dev/{VG}/{id} && sync && lvchange -qq -a n {VG}/{id}"
    ))?;
    status(fixture, "pvc-block", &json!({"volumeID": id, "currentSize": SMALL}))?;
    bound(fixture, "block", "waiting", SMALL, VolumeMode::Block, &id)?;

    // A snapshot and a volume restored from it, whose filesystem has the UUID of its source: mounted with nouuid
    let class = json!({"size": XFS, "deviceClass": "thin"});
    let source = object(fixture, "pvc-source", &class, &[FINALIZER])?;
    node.script(&format!("lvcreate -qq -T {THIN_VG}/{THIN_POOL} -n {source} -V 335544320b -W y -y"))?;
    format(fixture, "xfs -f", &format!("{THIN_VG}/{source}"))?;
    status(fixture, "pvc-source", &json!({"volumeID": source}))?;
    bound(fixture, "source", XFS_CLASS, XFS, VolumeMode::Filesystem, &source)?;
    let copy = |access: &str, source: &str| json!({"size": XFS, "deviceClass": "thin", "source": source, "accessType": access});
    let taken = object(fixture, "snapshot-taken", &copy("ro", "pvc-source"), &[FINALIZER])?;
    node.script(&format!(
        "lvcreate -qq -s -k n -n {taken} {THIN_VG}/{source} && lvchange -p r /dev/{THIN_VG}/{taken}"
    ))?;
    status(fixture, "snapshot-taken", &json!({"volumeID": taken}))?;
    ready(fixture, "taken", &taken)?;
    let restored = object(fixture, "pvc-restored", &copy("rw", "snapshot-taken"), &[FINALIZER])?;
    node.script(&format!(
        "lvcreate -qq -s -k n -n {restored} {THIN_VG}/{taken} && lvchange -k n -a y /dev/{THIN_VG}/{restored}"
    ))?;
    status(fixture, "pvc-restored", &json!({"volumeID": restored, "currentSize": XFS}))?;
    bound(fixture, "restored", XFS_CLASS, XFS, VolumeMode::Filesystem, &restored)?;

    // Claims on whose volume TopoLVM was still working: nothing done yet; the LV made and not reported, with somebody else's finalizer before
    // its own; failed, and not deleted
    for (name, finalizers) in
        [("wished", &[][..]), ("half", &["example.com/hold", FINALIZER]), ("failed", &[FINALIZER])]
    {
        fixture.apply_claim(name, "immediate", SMALL)?;
        let volume = format!("pvc-{}", fixture.kubectl(&["get", "pvc", name, "-o", "jsonpath={.metadata.uid}"])?);
        let id = object(fixture, &volume, &json!({"size": SMALL}), finalizers)?;
        match name {
            "half" => drop(node.script(&format!("lvcreate -qq -n {id} -L 67108864b -W y -y {VG}"))?),
            "failed" => status(fixture, &volume, &json!({"code": 8, "message": "no enough space left on VG"}))?,
            _ => {}
        }
    }

    // The mounts of the running pods: one by mount(8), and one that a second publish has stacked
    node.script(&format!(
        "fs=$(awk '$5 ~ /csi.pvc-.*.mount$/ {{print $5}}' /proc/self/mountinfo | sort -u) && [ -n \"$fs\" ] \
         && device=$(findmnt -n -o SOURCE $fs | head -n 1) && umount $fs && mount -t ext4 -o defaults $device $fs \
         && publish=$(awk '$5 ~ /volumeDevices.publish/ {{print $5}}' /proc/self/mountinfo) && [ -n \"$publish\" ] \
         && chmod 755 $publish && mount --bind /dev/{VG}/{} $publish",
        volume_id(fixture, "device")?,
    ))?;
    Ok(())
}

/// What the programs do with it.
fn after(fixture: &Fixture) -> Result<()> {
    // kubelet publishes all volumes again, as when a node is updated
    fixture.node.kill_kept("kubelet")?;
    fixture.wait_node_ready_again(1)?;

    for (name, mode) in [
        ("fs", VolumeMode::Filesystem),
        ("block", VolumeMode::Block),
        ("source", VolumeMode::Filesystem),
        ("restored", VolumeMode::Filesystem),
    ] {
        fixture.apply(&pod(name, name, mode))?;
    }
    fixture.apply(&copied_claim("again", XFS_CLASS, XFS, DataSource::Snapshot("taken")))?;
    fixture.apply(&pod("again", "again", VolumeMode::Filesystem))?;
    fixture.apply(&snapshot("new", "snapshots", "source"))?;
    for name in ["fs", "source", "restored", "again", "running"] {
        fixture.wait_ready(name)?;
        let text = fixture.read(name)?;
        ensure!(text == "theirs", "{name} reads {text:?}");
    }
    fixture.wait_ready("block")?;
    ensure!(fixture.in_pod("block", "head -c 6 /data")? == "theirs", "the block volume has other data");
    fixture.wait_snapshot("new")?;
    for name in ["wished", "half", "failed"] {
        fixture.wait_bound(name)?;
    }
    fixture.wait_value(&volumes_of(TopoLvm), "pvc-fs", ".status.currentSize", SMALL)?;
    fixture.wait_value(&volumes_of(TopoLvm), "snapshot-taken", ".status.currentSize", XFS)?;
    for name in ["fs", "block"] {
        fixture.request_size(name, "128Mi")?;
    }
    for name in ["fs", "block"] {
        fixture.wait_value("pvc", name, ".status.capacity.storage", "128Mi")?;
    }
    let mebibytes = fixture.in_pod("fs", "df -mP /data | awk 'END {print $2}'")?;
    ensure!(mebibytes.trim().parse::<u32>()? > 100, "the filesystem has {mebibytes} MiB");
    let bytes = fixture.in_pod("block", "blockdev --getsize64 /data")?;
    ensure!(bytes.trim() == (128 << 20).to_string(), "the device has {bytes} bytes");

    let log = fs::read_to_string(fixture.node.log(NODE))?;
    ensure!(log.contains("cannot select LogicalVolumes by node"), "the definition is not that of TopoLVM");

    let half = fixture.volume("half")?;
    let all = ["fs", "block", "source", "restored", "again", "running", "device"];
    for name in all {
        fixture.kubectl(&["delete", "pod", name, "--wait=false"])?;
    }
    for name in all {
        fixture.kubectl(&["wait", "--for=delete", &format!("pod/{name}"), "--timeout=90s"])?;
    }
    fixture.cluster.ready("apiserver", || {
        let left = fixture.node.script("ls -A /dev/topolvm; grep kubernetes.io.csi /proc/self/mountinfo || true")?;
        ensure!(left.trim().is_empty(), "left on the node: {left}");
        Ok(())
    })?;
    fixture.kubectl(&["delete", "volumesnapshots", "--all", "--timeout=90s"])?;
    for name in all.iter().chain(&["wished", "half", "failed"]) {
        fixture.kubectl(&["delete", "pvc", name, "--wait=false"])?;
    }
    // Its LV has gone when only the finalizer is left that is not ours
    let group = volumes_of(TopoLvm);
    fixture.wait_value(&group, &half, ".metadata.finalizers", r#"["example.com/hold"]"#)?;
    fixture.kubectl(&["patch", &group, &half, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])?;
    fixture.kubectl(&["wait", "--for=delete", "pvc,pv", "--all", "--timeout=90s"])?;
    fixture.wait_no_volumes()
}

const FINALIZER: &str = "topolvm.io/logicalvolume";

/// A LogicalVolume as TopoLVM's controller creates it and its agent marks it; its UID.
fn object(fixture: &Fixture, name: &str, spec: &Value, finalizers: &[&str]) -> Result<String> {
    let mut volume = json!({
        "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
        "metadata": {"name": name, "finalizers": finalizers},
        "spec": {"name": name, "nodeName": fixture.node.name()},
    });
    if !finalizers.is_empty() {
        volume["metadata"]["labels"] = json!({"app.kubernetes.io/created-by": "topolvm-controller"});
    }
    for (key, value) in spec.as_object().context("the spec is no object")? {
        volume["spec"][key] = value.clone();
    }
    fixture.apply(&volume)?;
    fixture.kubectl(&["get", &volumes_of(TopoLvm), name, "-o", "jsonpath={.metadata.uid}"])
}

fn status(fixture: &Fixture, name: &str, status: &Value) -> Result<()> {
    let patch = json!({"status": status}).to_string();
    let group = volumes_of(TopoLvm);
    fixture.kubectl(&["patch", &group, name, "--subresource=status", "--type=merge", "-p", &patch]).map(drop)
}

/// A filesystem with a file in it, on a volume group's volume.
fn format(fixture: &Fixture, make: &str, device: &str) -> Result<()> {
    let script = format!(
        "wipefs -qa /dev/{device} && mkfs.{make} /dev/{device} >/dev/null && mkdir -p /run/old && mount /dev/{device} /run/old \
         && chmod 2777 /run/old && echo theirs >/run/old/file && umount /run/old"
    );
    fixture.node.script(&script).map(drop)
}

/// A claim that is bound to a PersistentVolume as external-provisioner writes it for TopoLVM.
fn bound(fixture: &Fixture, name: &str, class: &str, size: &str, mode: VolumeMode, id: &str) -> Result<()> {
    let mut csi = json!({
        "driver": "topolvm.io", "volumeHandle": id,
        "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": "1700000000000-8081-topolvm.io"},
    });
    if mode == VolumeMode::Filesystem {
        csi["fsType"] = json!(if class == XFS_CLASS { "xfs" } else { "ext4" });
    }
    let nodes = json!({"key": "topology.topolvm.io/node", "operator": "In", "values": [fixture.node.name()]});
    fixture.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": format!("pvc-{name}"),
            "annotations": {
                "pv.kubernetes.io/provisioned-by": "topolvm.io",
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
            },
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection"],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}, "csi": csi,
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [nodes]}]}},
            "persistentVolumeReclaimPolicy": "Delete", "storageClassName": class, "volumeMode": format!("{mode:?}"),
        },
    }))?;
    let mut claim = claim(name, class, size, mode);
    claim["metadata"]["annotations"] = json!({
        "volume.beta.kubernetes.io/storage-provisioner": "topolvm.io",
        "volume.kubernetes.io/storage-provisioner": "topolvm.io",
        "volume.kubernetes.io/selected-node": fixture.node.name(),
    });
    // A finalizer of before 0.40
    claim["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection", "topolvm.io/pvc"]);
    claim["spec"]["volumeName"] = json!(format!("pvc-{name}"));
    fixture.apply(&claim)
}

/// A VolumeSnapshot as external-snapshotter has it for TopoLVM.
fn ready(fixture: &Fixture, name: &str, id: &str) -> Result<()> {
    fixture.apply(&json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {
            "name": format!("snapcontent-{name}"),
            "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"],
        },
        "spec": {
            "deletionPolicy": "Delete", "driver": "topolvm.io", "source": {"snapshotHandle": id},
            "volumeSnapshotClassName": "snapshots", "volumeSnapshotRef": {"namespace": "default", "name": name},
        },
    }))?;
    fixture.apply(&json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "volumeSnapshotClassName": "snapshots",
            "source": {"volumeSnapshotContentName": format!("snapcontent-{name}")},
        },
    }))
}

fn volume_id(fixture: &Fixture, claim: &str) -> Result<String> {
    let volume = fixture.volume(claim)?;
    fixture.kubectl(&["get", "pv", &volume, "-o", "jsonpath={.spec.csi.volumeHandle}"])
}

/// One volume of each kind, field by field: nothing is missing that TopoLVM relies on, and nothing is said otherwise.
fn back(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("whole", "thin-now", SMALL)?;
    fixture.wait_bound("whole")?;
    fixture.apply(&snapshot("part", "snapshots", "whole"))?;
    fixture.wait_snapshot("part")?;
    fixture.apply(&copied_claim("copy", "thin-now", SMALL, DataSource::Snapshot("part")))?;
    fixture.wait_bound("copy")?;
    fixture.grow("whole", "128Mi")?;

    let whole = fixture.volume("whole")?;
    let content =
        fixture.kubectl(&["get", "volumesnapshotcontent", "-o", "jsonpath={.items[0].status.snapshotHandle}"])?;
    let list: Value = serde_json::from_str(&fixture.kubectl(&["get", &volumes_of(TopoLvm), "-o", "json"])?)?;
    let objects = list["items"].as_array().context("no list")?;
    ensure!(objects.len() == 3, "{} objects", objects.len());
    let taken =
        objects.iter().find(|object| object["metadata"]["uid"] == json!(content)).context("no such snapshot")?;
    for object in objects {
        let (metadata, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
        let name = &metadata["name"];
        let (size, mut expected) = if *name == json!(whole) { ("128Mi", json!({})) } else { (SMALL, json!({})) };
        for (key, value) in [
            ("name", name.clone()),
            ("nodeName", json!(fixture.node.name())),
            ("deviceClass", json!("thin")),
            ("size", json!(size)),
        ] {
            expected[key] = value;
        }
        if object == taken {
            expected["source"] = json!(whole);
            expected["accessType"] = json!("ro");
        } else if *name != json!(whole) {
            // The name of the source, not its id
            expected["source"] = taken["metadata"]["name"].clone();
            expected["accessType"] = json!("rw");
        }
        ensure!(*spec == expected, "the spec is {spec} and not {expected}");
        let mut known = status.clone();
        known.as_object_mut().context("no status")?.remove("conditions");
        ensure!(known == json!({"volumeID": metadata["uid"], "currentSize": size}), "{status}");
        ensure!(metadata["finalizers"] == json!([FINALIZER]), "{metadata}");
        ensure!(metadata["labels"] == json!({"app.kubernetes.io/created-by": "topolvm-controller"}), "{metadata}");
        ensure!(metadata["annotations"]["topolvm.io/pendingdeletion"].is_null(), "{metadata}");
        let id = metadata["uid"].as_str().context("no UID")?;
        let lv = fixture
            .node
            .script(&format!("lvs --noheadings --units b -o lv_size,pool_lv,lv_permissions {THIN_VG}/{id}"))?;
        let bytes = if size == SMALL { 64 << 20 } else { 128 << 20 };
        let permissions = if object == taken { "read-only" } else { "writeable" };
        let words: Vec<_> = lv.split_whitespace().map(str::to_owned).collect();
        ensure!(words == [format!("{bytes}B"), THIN_POOL.to_owned(), permissions.to_owned()], "the LV is {lv}");
    }
    let volume = fixture.object("pv", &whole)?;
    let nodes = json!([{"matchExpressions": [
        {"key": "topology.topolvm.io/node", "operator": "In", "values": [fixture.node.name()]},
    ]}]);
    ensure!(volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"] == nodes, "{volume}");
    let node = fixture.object("node", fixture.node.name())?;
    for (class, group) in [("00default", VG), ("ssd", VG)] {
        let free = fixture.node.script(&format!("vgs --noheadings --nosuffix --units b -o vg_free {group}"))?;
        let said = &node["metadata"]["annotations"][format!("capacity.topolvm.io/{class}")];
        ensure!(*said == json!(free.trim()), "{class} has {free} bytes and the node says {said}");
    }

    fixture.kubectl(&["delete", "volumesnapshot", "part", "--timeout=60s"])?;
    fixture.delete_claim("whole")?;
    fixture.delete_claim("copy")?;
    fixture.wait_no_volumes()
}

/// Objects of which TopoLVM, or an administrator, has taken away what they say about the real size.
fn learned(fixture: &Fixture) -> Result<()> {
    // The size that is then asked for, and the one that LVM makes of it
    let wishes = [("same", "64Mi", "64Mi"), ("unaligned", "65001Ki", "64Mi"), ("larger", "70000Ki", "72Mi")];
    for (name, _, _) in wishes {
        fixture.apply(&claim(name, "immediate", SMALL, VolumeMode::Block))?;
    }
    for (name, _, _) in wishes {
        fixture.wait_bound(name)?;
    }
    fixture.node.stop_kept(NODE)?;
    let group = volumes_of(TopoLvm);
    for (name, size, _) in wishes {
        let volume = fixture.volume(name)?;
        let wish = json!({"spec": {"size": size}}).to_string();
        fixture.kubectl(&["patch", &group, &volume, "--type=merge", "-p", &wish])?;
        status(fixture, &volume, &json!({"currentSize": null}))?;
    }
    topolvm::start_agent(&fixture.cluster, &fixture.node, &fixture.spec)?;
    for (name, _, size) in wishes {
        fixture.wait_value(&group, &fixture.volume(name)?, ".status.currentSize", size)?;
    }
    topolvm::wait_for_driver(&fixture.cluster, &fixture.node, fixture.spec.flavor)?;
    for (name, _, _) in wishes {
        fixture.delete_claim(name)?;
    }
    fixture.check_volumes(0)
}
