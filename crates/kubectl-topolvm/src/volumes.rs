//! `volumes`: claim, PersistentVolume, LogicalVolume and LV in one row each, with problem and remedy.

mod index;
mod problem;

use std::collections::BTreeSet;

use cli_runtime::connection::Cluster;
use cli_runtime::objects::Objects;
use cli_runtime::output::{self, Format, Row};
use cli_runtime::size::human;
use cli_runtime::table::table;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde::Serialize;
use topolvm_api::{ApiFlavor, LogicalVolume, Readiness, parse_bytes};
use topolvm_doctor::VolumeProblem;

use crate::error::Error;

use index::Index;

/// A claim with its PersistentVolume, LogicalVolume and LV; missing ones are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeRow {
    namespace: String,
    claim: String,
    persistent_volume: String,
    logical_volume: String,
    /// Name of the LV in LVM.
    lv: String,
    node: String,
    /// Empty for the node's default class.
    device_class: String,
    storage_class: String,
    /// The real size, or the requested one until the volume exists.
    size_bytes: Option<u64>,
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<VolumeProblem>,
    #[serde(skip)]
    kind: String,
}

impl Row for VolumeRow {
    fn name(&self) -> Option<String> {
        (!self.logical_volume.is_empty()).then(|| format!("{}/{}", self.kind, self.logical_volume))
    }
}

/// The three objects of a volume, as far as they exist.
#[derive(Clone, Copy, Debug, Default)]
struct Binding<'a> {
    claim: Option<&'a PersistentVolumeClaim>,
    persistent: Option<&'a PersistentVolume>,
    volume: Option<&'a LogicalVolume>,
}

/// Prints the rows of one namespace, or all.
pub(crate) async fn run(
    cluster: &Cluster,
    format: Format,
    namespace: Option<&str>,
    now: Timestamp,
) -> Result<(), Error> {
    let objects = Objects::list(cluster, namespace).await?;
    let rows = rows(cluster.flavor, &objects, namespace, now);
    Ok(output::print(&output::render(format, &rows, |wide| in_table(&rows, wide))?)?)
}

/// Returns a row for each claim, and without a namespace also for each PersistentVolume without a claim and each
/// LogicalVolume without either.
pub(crate) fn rows(flavor: ApiFlavor, objects: &Objects, namespace: Option<&str>, now: Timestamp) -> Vec<VolumeRow> {
    let mut bindings: Vec<Binding<'_>> = Vec::new();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let index = Index::new(flavor, objects);
    let claims = objects.our_claims(flavor);
    for claim in &claims {
        let bound = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
        let persistent = index.persistent(bound);
        // Before there is a PersistentVolume the LogicalVolume is named after the claim already
        let future = format!("pvc-{}", claim.uid().unwrap_or_default());
        let volume = match persistent {
            Some(persistent) => index.volume_of(persistent),
            None => index.volume(bound).or_else(|| index.volume(&future)),
        };
        bindings.push(Binding { claim: Some(claim), persistent, volume });
    }
    if namespace.is_none() {
        let with_claim: BTreeSet<_> =
            bindings.iter().filter_map(|binding| binding.persistent?.metadata.name.clone()).collect();
        for persistent in objects.our_persistent(flavor) {
            if !with_claim.contains(&persistent.name_any()) {
                let volume = index.volume_of(persistent);
                bindings.push(Binding { claim: None, persistent: Some(persistent), volume });
            }
        }
        seen.extend(bindings.iter().filter_map(|binding| binding.volume).map(LogicalVolume::name));
        let alone = objects.volumes.iter().filter(|volume| !seen.contains(volume.name()));
        bindings.extend(alone.map(|volume| Binding { volume: Some(volume), ..Binding::default() }));
    }
    let mut rows: Vec<_> = bindings.into_iter().map(|binding| row(flavor, &index, binding, now)).collect();
    rows.sort_by_cached_key(|row| {
        (row.claim.is_empty(), row.namespace.clone(), row.claim.clone(), row.logical_volume.clone())
    });
    rows
}

fn row(flavor: ApiFlavor, index: &Index<'_>, binding: Binding<'_>, now: Timestamp) -> VolumeRow {
    let Binding { claim, persistent, volume } = binding;
    let asked = |volume: &LogicalVolume| parse_bytes(&volume.spec.size).ok();
    let spec = persistent.and_then(|persistent| persistent.spec.as_ref());
    let wanted = claim.and_then(|claim| claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage"));
    let claim_ref = spec.and_then(|spec| spec.claim_ref.as_ref());
    let of_class = claim.and_then(|claim| claim.spec.as_ref()?.storage_class_name.clone());
    let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
    VolumeRow {
        namespace: claim
            .and_then(ResourceExt::namespace)
            .unwrap_or_else(|| text(claim_ref.and_then(|claim| claim.namespace.as_deref()))),
        claim: claim.map_or_else(|| text(claim_ref.and_then(|claim| claim.name.as_deref())), ResourceExt::name_any),
        persistent_volume: persistent.map(ResourceExt::name_any).unwrap_or_default(),
        logical_volume: text(volume.map(LogicalVolume::name)),
        lv: text(volume.and_then(LogicalVolume::volume_id)),
        node: text(volume.map(|volume| volume.spec.node_name.as_str())),
        device_class: text(volume.map(|volume| volume.spec.device_class.as_str())),
        storage_class: of_class.or_else(|| spec?.storage_class_name.clone()).unwrap_or_default(),
        size_bytes: volume
            .and_then(|volume| volume.current_bytes().or_else(|| asked(volume)))
            .or_else(|| wanted.and_then(|size| parse_bytes(size).ok())),
        state: state(binding),
        problem: problem::find_problem(flavor, index, binding, now),
        kind: format!("logicalvolume.{}", flavor.group()),
    }
}

/// Returns the state of a volume as one keyword.
fn state(binding: Binding<'_>) -> String {
    let Some(volume) = binding.volume else {
        return match binding {
            Binding { persistent: Some(_), .. } => "Missing".to_owned(),
            Binding { claim: Some(claim), .. } => phase(claim).to_owned(),
            Binding { .. } => String::new(),
        };
    };
    if volume.is_deleting() {
        return "Deleting".to_owned();
    }
    let readiness = volume.readiness();
    if readiness != Readiness::VolumeReady {
        return readiness.as_str().to_owned();
    }
    match (binding.claim, binding.persistent) {
        (Some(claim), _) if claim.metadata.deletion_timestamp.is_some() => "ClaimDeleting".to_owned(),
        (Some(claim), _) => phase(claim).to_owned(),
        (None, Some(persistent)) => {
            persistent.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default()
        }
        (None, None) if volume.is_snapshot() => "Snapshot".to_owned(),
        (None, None) => "Unused".to_owned(),
    }
}

fn phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

/// Formats the table, and below it problems with their remedies.
fn in_table(rows: &[VolumeRow], wide: bool) -> String {
    let class = |row: &VolumeRow| match row.device_class.as_str() {
        "" if !row.logical_volume.is_empty() => "(default)".to_owned(),
        class => class.to_owned(),
    };
    // csi-provisioner gives both the same name
    let is_same = |row: &VolumeRow| row.persistent_volume.is_empty() || row.persistent_volume == row.logical_volume;
    let mut text = table(
        rows,
        wide,
        &[
            ("NAMESPACE", false, &|row| row.namespace.clone()),
            ("CLAIM", false, &|row| row.claim.clone()),
            ("PV", rows.iter().all(is_same), &|row| row.persistent_volume.clone()),
            ("LOGICALVOLUME", false, &|row| row.logical_volume.clone()),
            ("NODE", false, &|row| row.node.clone()),
            ("CLASS", false, &class),
            ("SIZE", false, &|row| row.size_bytes.map(human).unwrap_or_default()),
            ("STATE", false, &|row| row.state.clone() + if row.problem.is_some() { " (!)" } else { "" }),
            ("STORAGECLASS", true, &|row| row.storage_class.clone()),
            ("LV", true, &|row| row.lv.clone()),
        ],
    );
    for row in rows {
        if let Some(problem) = &row.problem {
            text.extend(["\n", &subject(row), ": ", &problem.what, "\n  to do: ", &problem.remedy, "\n"]);
        }
    }
    text
}

/// Returns the name under which people know the volume: the claim, else the LogicalVolume or PersistentVolume.
fn subject(row: &VolumeRow) -> String {
    match (row.claim.as_str(), row.logical_volume.as_str()) {
        ("", "") => format!("persistentvolume/{}", row.persistent_volume),
        ("", volume) => format!("logicalvolume/{volume}"),
        (claim, _) => format!("{}/{claim}", row.namespace),
    }
}

#[cfg(test)]
mod tests;
