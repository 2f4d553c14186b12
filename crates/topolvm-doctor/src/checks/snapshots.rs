//! Checks of what makes snapshots.

use jiff::SignedDuration;
use topolvm_api::SNAPSHOT_GROUP;

use crate::facts::Facts;
use crate::finding::Finding;
use crate::objects::list_names;
use crate::read_error::{ReadError, read};
use crate::snapshots::{RESOURCES, Snapshot};
use crate::workloads::Role;

/// Time that snapshot-controller has for a new VolumeSnapshot.
const NOTICED: SignedDuration = SignedDuration::from_mins(2);

pub(super) fn check(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let classes = read(&facts.snapshot_classes)?;
    let ours: Vec<_> = classes.iter().filter(|class| class.driver == facts.flavor.driver_name()).collect();
    if ours.is_empty() {
        return Ok(vec![Finding::ok("no VolumeSnapshotClass of this driver exists")]);
    }
    let names: Vec<_> = ours.iter().filter_map(|class| class.metadata.name.as_deref()).collect();
    let mut findings = Vec::new();
    let served = read(&facts.snapshot_resources)?;
    let missing: Vec<_> = RESOURCES.iter().filter(|resource| !served.iter().any(|one| one == *resource)).collect();
    if !missing.is_empty() {
        findings.push(Finding::fail(
            format!(
                "VolumeSnapshotClass {} exists, but {SNAPSHOT_GROUP} lacks {}",
                list_names(&names),
                list_names(missing)
            ),
            "install the CustomResourceDefinitions and the snapshot-controller of kubernetes-csi/external-snapshotter",
        ));
    }
    for controller in facts.workloads_of(Role::Controller)? {
        if controller.container("csi-snapshotter").is_none() && !controller.embeds("snapshotter") {
            let found = format!(
                "{} has neither --controllers=snapshotter nor csi-snapshotter: no component creates snapshots",
                controller.name
            );
            let remedy = "add snapshotter to --controllers or CONTROLLERS, or the container csi-snapshotter as in \
                          deploy/manifests/components/sidecars, or delete the class";
            findings.push(Finding::fail(found, remedy));
        }
    }
    findings.extend(find_unnoticed(facts, &names)?);
    Ok(Finding::ok_if_none(findings, "CRDs, snapshot-controller and a snapshotter are installed"))
}

/// Returns the finding about VolumeSnapshots of these classes that snapshot-controller has not handled.
fn find_unnoticed(facts: &Facts, classes: &[&str]) -> Result<Option<Finding>, ReadError> {
    let is_unnoticed = |snapshot: &&Snapshot| {
        let class = snapshot.spec.volume_snapshot_class_name.as_deref();
        class.is_some_and(|class| classes.contains(&class))
            && snapshot.status.bound_volume_snapshot_content_name.is_none()
            && facts.is_older(snapshot.metadata.creation_timestamp.as_ref(), NOTICED)
    };
    let unnoticed: Vec<_> = read(&facts.snapshots)?.iter().filter(is_unnoticed).map(full_name).collect();
    Ok((!unnoticed.is_empty()).then(|| {
        Finding::fail(
            format!("no component processes VolumeSnapshot {}", list_names(unnoticed)),
            "start the snapshot-controller of kubernetes-csi/external-snapshotter, once per cluster, and check its log",
        )
    }))
}

fn full_name(snapshot: &Snapshot) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    format!("{}/{}", text(&snapshot.metadata.namespace), text(&snapshot.metadata.name))
}
