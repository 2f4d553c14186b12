//! Switches a cluster from TopoLVM: these programs serve objects, volumes, snapshots and mounts in TopoLVM's format.
//! And TopoLVM can read the objects of these programs.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::commands::Commands;
use system_tests::kustomization::{Kustomization, patch};
use system_tests::manifests::{DataSource, VolumeMode, claim, copied_claim, pod, snapshot, storage_class};
use testbed::topolvm::{self, NODE, THIN_CLASS, THIN_POOL, THIN_VG, TopolvmSpec};
use topolvm_api::ApiFlavor::{Legacy, TopoLvm};
use topolvm_api::{ApiFlavor, CREATED_BY, CREATED_BY_LABEL};

use crate::Body;
use crate::fixture::{Fixture, VG, logical_volume_resource};
use crate::old_objects::{AgentMetadata, HOLD, OldObjects};

pub(crate) fn tests() -> Vec<(String, Body)> {
    let all: [(&str, Body); 4] = [
        ("switch_keeps_topolvm_volumes_usable", switched),
        ("switch_keeps_volumes_of_the_older_api_group_usable", switched_legacy),
        ("what_is_written_here_has_the_shape_that_topolvm_reads", compare_with_topolvm),
        ("a_size_that_the_status_lacks_is_learned_from_lvm", learn_sizes),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

/// StorageClass of thin volumes with XFS, and their size.
const XFS_CLASS: &str = "thin-xfs";
const XFS: &str = "320Mi";
/// Size of the other volumes.
const SMALL: &str = "64Mi";

fn switched(fixture: &Fixture) -> Result<()> {
    // Two pods run through it all
    for (name, mode) in [("running", VolumeMode::Filesystem), ("device", VolumeMode::Block)] {
        fixture.apply(&claim(name, "waiting", SMALL, mode))?;
        fixture.start_pod(name, mode)?;
    }
    fixture.write_word("running", "theirs")?;
    let directory = tempfile::tempdir()?;
    Commands::of("switching.md", "Before you switch")?.run_in(&fixture.cluster, directory.path())?;
    let saved = fs::read_to_string(directory.path().join("before.yaml")).context("read before.yaml")?;
    ensure!(saved.contains("kind: PersistentVolume"), "the state is {saved}");
    let old = OldObjects { shared: fixture, node: &fixture.node, flavor: TopoLvm };
    let meanwhile = || {
        create_old_objects(fixture, &old)?;
        mount_as_theirs(fixture)
    };
    let then = || {
        // kubelet publishes all volumes again, as when a node is updated
        fixture.node.kill_kept("kubelet")?;
        fixture.wait_node_ready_again(1)?;
        fixture.wait_ready("running")?;
        check_file(fixture, "running")?;
        use_old_objects(fixture, &old, &["running", "device"])
    };
    switch(fixture, &old, &fixture.spec, "base", meanwhile, then)
}

fn switched_legacy(fixture: &Fixture) -> Result<()> {
    fixture.apply_classes(Legacy)?;
    let old = OldObjects { shared: fixture, node: &fixture.node, flavor: Legacy };
    switch(
        fixture,
        &old,
        &fixture.spec.clone().legacy(),
        "overlays/legacy",
        || create_old_objects(fixture, &old),
        || use_old_objects(fixture, &old, &[]),
    )
}

/// Runs one part when none of our programs but lvmd runs, and another when they have been started on a cluster with
/// TopoLVM's definition.
fn switch(
    fixture: &Fixture,
    old: &OldObjects<'_>,
    spec: &TopolvmSpec,
    manifests: &str,
    meanwhile: impl FnOnce() -> Result<()>,
    then: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut class = storage_class(old.flavor, &old.name(XFS_CLASS), Some(THIN_CLASS), false);
    class["parameters"]["csi.storage.k8s.io/fstype"] = "xfs".into();
    fixture.apply(&class)?;
    let directory = tempfile::tempdir()?;
    let their_definition = TopolvmSpec { manifests: directory.path().to_owned(), ..spec.clone() };
    write_their_definition(directory.path(), manifests, old.flavor)?;
    fixture.run_with_spec(&their_definition, meanwhile, then)?;
    fixture.kubectl(&["delete", "storageclass", &old.name(XFS_CLASS)])?;
    let left = fixture.node.script(&format!("lvs --noheadings -o lv_name {VG} {THIN_VG}"))?;
    ensure!(left.trim() == THIN_POOL, "LVs are left: {left}");
    fixture.check_volumes(0)
}

/// Writes the manifests with the definition and the CSIDriver as TopoLVM installs them: without a short name, columns,
/// fields to select by and a policy for `fsGroup`.
fn write_their_definition(directory: &Path, manifests: &str, flavor: ApiFlavor) -> Result<()> {
    let definition = format!("logicalvolumes.{}", flavor.group());
    let less = json!([
        {"op": "remove", "path": "/spec/names/shortNames"},
        {"op": "remove", "path": "/spec/versions/0/selectableFields"},
        {"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns"},
    ]);
    let patches = vec![
        patch("CustomResourceDefinition", Some(&definition), &less),
        patch("CSIDriver", None, &json!([{"op": "remove", "path": "/spec/fsGroupPolicy"}])),
    ];
    Kustomization { base: manifests, patches, ..Kustomization::default() }.write(directory).map(drop)
}

/// Creates all objects that TopoLVM leaves, while only lvmd of our programs runs.
fn create_old_objects(fixture: &Fixture, old: &OldObjects<'_>) -> Result<()> {
    let node = &fixture.node;
    // A filesystem without status.currentSize, as before 0.36.5 and after some failures, and a device node of before
    // 0.33
    let volume = old.volume_name("fs");
    let id = old.create_logical_volume(&volume, &json!({"size": SMALL}), AgentMetadata::FinalizerAndLabel)?;
    node.script(&format!("lvcreate -qq -n {id} -L 67108864b -W y -y {VG}"))?;
    old.make_filesystem("ext4 -q -F -m0", &format!("{VG}/{id}"))?;
    node.script(&format!("mkdir -p /dev/topolvm && cp -a $(readlink -f /dev/{VG}/{id}) /dev/topolvm/{id}"))?;
    old.patch_status(&volume, &json!({"volumeID": id}))?;
    old.create_bound_claim("fs", "waiting", SMALL, Some("ext4"), &id)?;

    // Without the label, which an administrator has removed
    let volume = old.volume_name("block");
    let spec = json!({"size": SMALL, "deviceClass": "ssd"});
    let id = old.create_logical_volume(&volume, &spec, AgentMetadata::Finalizer { behind_another: false })?;
    // Not active, as after a boot of a machine that activates nothing
    node.script(&format!(
        "lvcreate -qq -n {id} -L 67108864b -W y -y {VG} && echo theirs >/dev/{VG}/{id} && sync \
         && lvchange -qq -a n {VG}/{id}"
    ))?;
    old.patch_status(&volume, &json!({"volumeID": id, "currentSize": SMALL}))?;
    old.create_bound_claim("block", "waiting", SMALL, None, &id)?;

    make_copies(fixture, old)?;

    // Claims on whose volume TopoLVM was still working: nothing done yet; the finalizer set after a foreign one,
    // without the label, and the LV created; failed, and not deleted
    for (name, metadata) in [
        ("requested", AgentMetadata::None),
        ("half", AgentMetadata::Finalizer { behind_another: true }),
        ("failed", AgentMetadata::FinalizerAndLabel),
    ] {
        let claim = old.name(name);
        fixture.apply_claim(&claim, &old.name("immediate"), SMALL)?;
        let volume = format!("pvc-{}", fixture.value("pvc", &claim, ".metadata.uid")?);
        let id = old.create_logical_volume(&volume, &json!({"size": SMALL}), metadata)?;
        match name {
            "half" => drop(node.script(&format!("lvcreate -qq -n {id} -L 67108864b -W y -y {VG}"))?),
            "failed" => old.patch_status(&volume, &json!({"code": 8, "message": "no enough space left on VG"}))?,
            _ => {}
        }
    }
    Ok(())
}

/// Creates a snapshot and a volume restored from it, whose filesystem has the UUID of its source: mounted with nouuid.
fn make_copies(fixture: &Fixture, old: &OldObjects<'_>) -> Result<()> {
    let node = &fixture.node;
    let (original, taken) = (old.volume_name("source"), format!("snapshot-{}", old.name("taken")));
    let class = json!({"size": XFS, "deviceClass": "thin"});
    let source = old.create_logical_volume(&original, &class, AgentMetadata::FinalizerAndLabel)?;
    node.script(&format!("lvcreate -qq -T {THIN_VG}/{THIN_POOL} -n {source} -V 335544320b -W y -y"))?;
    old.make_filesystem("xfs -f", &format!("{THIN_VG}/{source}"))?;
    old.patch_status(&original, &json!({"volumeID": source}))?;
    old.create_bound_claim("source", XFS_CLASS, XFS, Some("xfs"), &source)?;
    let copy = |access: &str, source: &str| {
        json!({
            "size": XFS, "deviceClass": "thin", "source": source, "accessType": access,
        })
    };
    let id = old.create_logical_volume(&taken, &copy("ro", &original), AgentMetadata::FinalizerAndLabel)?;
    node.script(&format!("lvcreate -qq -s -k n -n {id} {THIN_VG}/{source} && lvchange -p r /dev/{THIN_VG}/{id}"))?;
    old.patch_status(&taken, &json!({"volumeID": id}))?;
    old.create_ready_snapshot("taken", &id)?;
    let volume = old.volume_name("restored");
    let restored = old.create_logical_volume(&volume, &copy("rw", &taken), AgentMetadata::FinalizerAndLabel)?;
    node.script(&format!(
        "lvcreate -qq -s -k n -n {restored} {THIN_VG}/{id} && lvchange -k n -a y /dev/{THIN_VG}/{restored}"
    ))?;
    old.patch_status(&volume, &json!({"volumeID": restored, "currentSize": XFS}))?;
    old.create_bound_claim("restored", XFS_CLASS, XFS, Some("xfs"), &restored)
}

/// Replaces the mounts of the running pods by TopoLVM's: one by mount(8), and one that a second publish has stacked.
fn mount_as_theirs(fixture: &Fixture) -> Result<()> {
    let volume = fixture.volume_name("device")?;
    let id = fixture.value("pv", &volume, ".spec.csi.volumeHandle")?;
    let script = format!(
        "fs=$(awk '$5 ~ /csi.pvc-.*.mount$/ {{print $5}}' /proc/self/mountinfo | sort -u) && [ -n \"$fs\" ] \
         && device=$(findmnt -n -o SOURCE $fs | head -n 1) && umount $fs && mount -t ext4 -o defaults $device $fs \
         && publish=$(awk '$5 ~ /volumeDevices.publish/ {{print $5}}' /proc/self/mountinfo) && [ -n \"$publish\" ] \
         && chmod 755 $publish && mount --bind /dev/{VG}/{id} $publish",
    );
    fixture.node.script(&script).map(drop)
}

fn check_file(fixture: &Fixture, pod: &str) -> Result<()> {
    let text = fixture.read_word(pod)?;
    ensure!(text == "theirs", "{pod} reads {text:?}");
    Ok(())
}

/// Uses the old objects with the new programs, and the claims of pods that run.
fn use_old_objects(fixture: &Fixture, old: &OldObjects<'_>, running: &[&str]) -> Result<()> {
    let group = logical_volume_resource(old.flavor);
    let name = |name: &str| old.name(name);
    for (of, mode) in [
        ("fs", VolumeMode::Filesystem),
        ("block", VolumeMode::Block),
        ("source", VolumeMode::Filesystem),
        ("restored", VolumeMode::Filesystem),
    ] {
        fixture.apply(&pod(&name(of), &name(of), mode))?;
    }
    let taken = name("taken");
    fixture.apply(&copied_claim(&name("again"), &name(XFS_CLASS), XFS, DataSource::Snapshot(&taken)))?;
    fixture.apply(&pod(&name("again"), &name("again"), VolumeMode::Filesystem))?;
    fixture.apply(&snapshot(&name("new"), &name("snapshots"), &name("source")))?;
    for pod in ["fs", "source", "restored", "again"].map(name) {
        fixture.wait_ready(&pod)?;
        check_file(fixture, &pod)?;
    }
    fixture.wait_ready(&name("block"))?;
    ensure!(fixture.exec_in_pod(&name("block"), "head -c 6 /data")? == "theirs", "the block volume has other data");
    fixture.wait_snapshot(&name("new"))?;
    let pending = ["requested", "half", "failed"].map(name);
    for claim in &pending {
        fixture.wait_bound(claim)?;
    }
    let half = fixture.volume_name(&name("half"))?;
    let label = format!(".metadata.labels.{}", CREATED_BY_LABEL.replace('.', r"\."));
    for volume in [&old.volume_name("block"), &half] {
        fixture.wait_value(&group, volume, &label, CREATED_BY)?;
    }
    fixture.wait_value(&group, &old.volume_name("fs"), ".status.currentSize", SMALL)?;
    fixture.wait_value(&group, &format!("snapshot-{taken}"), ".status.currentSize", XFS)?;
    for claim in ["fs", "block"].map(name) {
        fixture.request_size(&claim, "128Mi")?;
    }
    for claim in ["fs", "block"].map(name) {
        fixture.wait_value("pvc", &claim, ".status.capacity.storage", "128Mi")?;
    }
    let mebibytes = fixture.filesystem_mebibytes(&name("fs"))?;
    ensure!(mebibytes > 100, "the filesystem has {mebibytes} MiB");
    let bytes = fixture.exec_in_pod(&name("block"), "blockdev --getsize64 /data")?;
    ensure!(bytes.trim() == (128 << 20).to_string(), "the device has {bytes} bytes");

    let log = fs::read_to_string(fixture.node.log(NODE))?;
    // It has the lines of earlier agents, which knew another definition
    let last = log.rsplit("starting").next().unwrap_or_default();
    ensure!(last.contains("cannot select LogicalVolumes by node"), "the definition is not that of TopoLVM");

    let users = ["fs", "block", "source", "restored", "again"].map(name).into_iter();
    let users: Vec<String> = users.chain(running.iter().map(|&name| name.to_owned())).collect();
    end(fixture, old, &users, &pending, &half)
}

/// Deletes all objects and checks for leftovers.
fn end(fixture: &Fixture, old: &OldObjects<'_>, users: &[String], pending: &[String], half: &str) -> Result<()> {
    for name in users {
        fixture.kubectl(&["delete", "pod", name, "--wait=false"])?;
    }
    for name in users {
        fixture.kubectl(&["wait", "--for=delete", &format!("pod/{name}"), "--timeout=180s"])?;
    }
    fixture.cluster.ready("apiserver", || {
        let left = fixture.node.script("ls -A /dev/topolvm; grep kubernetes.io.csi /proc/self/mountinfo || true")?;
        ensure!(left.trim().is_empty(), "left on the node: {left}");
        Ok(())
    })?;
    fixture.kubectl(&["delete", "volumesnapshots", "--all", "--timeout=180s"])?;
    for name in users.iter().chain(pending) {
        fixture.kubectl(&["delete", "pvc", name, "--wait=false"])?;
    }
    // Its LV is removed when only the foreign finalizer is left
    let group = logical_volume_resource(old.flavor);
    fixture.wait_value(&group, half, ".metadata.finalizers", &json!([HOLD]).to_string())?;
    fixture.kubectl(&["patch", &group, half, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])?;
    fixture.kubectl(&["wait", "--for=delete", "pvc,pv", "--all", "--timeout=180s"])?;
    fixture.wait_no_volumes()
}

/// Compares one volume of each kind field by field with TopoLVM's objects: no field is missing that TopoLVM relies on,
/// and none has another value.
fn compare_with_topolvm(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("whole", "thin-now", SMALL)?;
    fixture.wait_bound("whole")?;
    fixture.apply(&snapshot("part", "snapshots", "whole"))?;
    fixture.wait_snapshot("part")?;
    fixture.apply(&copied_claim("copy", "thin-now", SMALL, DataSource::Snapshot("part")))?;
    fixture.wait_bound("copy")?;
    fixture.expand("whole", "128Mi")?;

    let whole = fixture.volume_name("whole")?;
    let content =
        fixture.kubectl(&["get", "volumesnapshotcontent", "-o", "jsonpath={.items[0].status.snapshotHandle}"])?;
    let list: Value =
        serde_json::from_str(&fixture.kubectl(&["get", &logical_volume_resource(TopoLvm), "-o", "json"])?)?;
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
        ensure!(metadata["finalizers"] == json!([TopoLvm.logical_volume_finalizer()]), "{metadata}");
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
    let volume = fixture.get_object("pv", &whole)?;
    let nodes = json!([{"matchExpressions": [
        {"key": "topology.topolvm.io/node", "operator": "In", "values": [fixture.node.name()]},
    ]}]);
    ensure!(volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"] == nodes, "{volume}");
    let node = fixture.get_object("node", fixture.node.name())?;
    for (class, group) in [("00default", VG), ("ssd", VG)] {
        let free = fixture.node.script(&format!("vgs --noheadings --nosuffix --units b -o vg_free {group}"))?;
        let said = &node["metadata"]["annotations"][format!("capacity.topolvm.io/{class}")];
        ensure!(*said == json!(free.trim()), "{class} has {free} bytes and the node says {said}");
    }

    fixture.kubectl(&["delete", "volumesnapshot", "part", "--timeout=180s"])?;
    fixture.delete_claim("whole")?;
    fixture.delete_claim("copy")?;
    fixture.wait_no_volumes()
}

/// Checks that the real size is learned again for objects from which TopoLVM, or an administrator, has removed it.
fn learn_sizes(fixture: &Fixture) -> Result<()> {
    // The requested size, and the size in LVM
    let requests = [("same", "64Mi", "64Mi"), ("unaligned", "65001Ki", "64Mi"), ("larger", "70000Ki", "72Mi")];
    for (name, _, _) in requests {
        fixture.apply(&claim(name, "immediate", SMALL, VolumeMode::Block))?;
    }
    for (name, _, _) in requests {
        fixture.wait_bound(name)?;
    }
    fixture.node.stop_kept(NODE)?;
    let group = logical_volume_resource(TopoLvm);
    for (name, size, _) in requests {
        let volume = fixture.volume_name(name)?;
        let resize = json!({"spec": {"size": size}}).to_string();
        fixture.kubectl(&["patch", &group, &volume, "--type=merge", "-p", &resize])?;
        OldObjects { shared: fixture, node: &fixture.node, flavor: TopoLvm }
            .patch_status(&volume, &json!({"currentSize": null}))?;
    }
    topolvm::start_agent(&fixture.cluster, &fixture.node, &fixture.spec)?;
    for (name, _, size) in requests {
        fixture.wait_value(&group, &fixture.volume_name(name)?, ".status.currentSize", size)?;
    }
    topolvm::wait_for_driver(&fixture.cluster, &fixture.node, fixture.spec.flavor)?;
    for (name, _, _) in requests {
        fixture.delete_claim(name)?;
    }
    fixture.check_volumes(0)
}
