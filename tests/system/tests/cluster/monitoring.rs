//! The alert rules and the dashboard that ship, in a real Prometheus that scrapes the pods: every query has data, no
//! alert fires in a healthy cluster, and injected faults raise theirs.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::commands;
use system_tests::manifests::VolumeMode;
use system_tests::monitoring::{
    self, OF_REFUSED_CLASS, OF_VOLUMES, Prometheus, WITHOUT_DATA_FOR_CAPACITY, WITHOUT_LVMD,
};
use system_tests::{plugin, workloads};

use crate::Body;
use crate::fixture::{Fixture, VG};

/// Name of the DaemonSet of lvmd.
const LVMD: &str = "topolvm-lvmd";

/// A series with the labels of its claim and pod, and not of those of the agent's pod.
const OF_A_POD: &str = "topolvm_volume_size_bytes{namespace=\"default\",persistentvolumeclaim=\"thick\",pod=\"thick\"}";
/// A series of a volume that no pod uses.
const OF_NO_POD: &str = "topolvm_volume_size_bytes{namespace=\"default\",persistentvolumeclaim=\"idle\",pod=\"\"}";

/// Name of an LV like those for LogicalVolumes.
const ORPHAN: &str = "6a1f0c3e-94a5-4d6b-8f3d-2f6f5d0f7c11";

/// A disk group in mode `report`: the disks of the node's volume group are not blank.
const DISK_GROUP: &str = "disk-groups:\n- {name: more, paths: [\"/dev/ubd[a-z]\"]}\n";
/// Limits that the pod does not reach.
const LIMITS: [&str; 4] = [
    "topolvm.io/read-bytes-per-second=1Gi",
    "topolvm.io/write-bytes-per-second=1Gi",
    "topolvm.io/read-operations-per-second=100000",
    "topolvm.io/write-operations-per-second=100000",
];

pub(crate) fn tests() -> Vec<(String, Body)> {
    let name = "prometheus_queries_have_data_and_alerts_fire_only_on_faults";
    vec![(name.to_owned(), watch)]
}

fn watch(fixture: &Fixture) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("topolvm-prometheus-").tempdir_in("/var/tmp")?;
    let rules = monitoring::rules_in_fast_time(monitoring::read_rules()?)?;
    let config = select_disks(fixture)?;
    // Calls that exist before the first scrape, and increase afterwards
    start_volume(fixture, "thick", "waiting")?;
    fixture.kubectl(&["annotate", "pod", "thick"].into_iter().chain(LIMITS).collect::<Vec<_>>())?;
    let prometheus = Prometheus::start(&fixture.cluster, scratch.path(), &rules)?;
    let watched = start_volume(fixture, "pooled", "thin")
        .and_then(|()| wait_for_data(&prometheus, &rules))
        .and_then(|()| wait_for_silence(&prometheus))
        .and_then(|()| inject_faults(fixture, &prometheus))
        .and_then(|()| take_lvmd_away(fixture, &prometheus))
        .and_then(|()| check_reasons(&prometheus));
    prometheus.stop()?;
    // Also after a failure: other tests use the cluster
    workloads::set_lvmd_config(&fixture.cluster, &config)?;
    watched?;
    for name in ["thick", "pooled"] {
        fixture.delete_pod_and_claim(name)?;
    }
    fixture.check_volumes(0)
}

/// Has lvmd report the actions that it would take for the disks of the node, and returns the previous configuration.
fn select_disks(fixture: &Fixture) -> Result<Value> {
    let before = workloads::lvmd_config(&fixture.cluster)?;
    let text = before.as_str().context("lvmd.yaml is no text")?;
    workloads::set_lvmd_config(&fixture.cluster, &json!(format!("{text}\n{DISK_GROUP}")))?;
    Ok(before)
}

fn start_volume(fixture: &Fixture, name: &str, class: &str) -> Result<()> {
    fixture.apply_claim(name, class, "64Mi")?;
    fixture.start_pod(name, VolumeMode::Filesystem)?;
    fixture.write_word(name, "measured")
}

/// Waits until the queries of dashboard and documentation and the recording rules have data.
fn wait_for_data(prometheus: &Prometheus<'_>, rules: &Value) -> Result<()> {
    let is_expected = |panel: &str| !WITHOUT_DATA_FOR_CAPACITY.iter().any(|(without, _)| *without == panel);
    let dashboard = monitoring::queries_of_dashboard()?.into_iter().filter(|query| is_expected(&query.panel));
    let mut expected: Vec<String> = dashboard.map(|query| query.expression).collect();
    expected.extend(monitoring::rule_names(rules).records);
    // Nothing in a healthy cluster is below the limit of a query
    let of_page = commands::queries("metrics.md", "Queries")?.into_iter();
    expected.extend(of_page.map(|query| query.trim_end_matches(" < 0").to_owned()));
    expected.push(format!("{OF_A_POD} and on (node) topolvm_lvmd_device_class_size_bytes"));
    prometheus.wait_for_data(expected)?;
    let errors = prometheus.errors()?;
    ensure!(errors.is_empty(), "rules that cannot be evaluated: {errors:#?}");
    Ok(())
}

/// Waits until no alert except that of the test cluster has fired for ten seconds.
fn wait_for_silence(prometheus: &Prometheus<'_>) -> Result<()> {
    prometheus.wait_for_silence(&OF_REFUSED_CLASS)?;
    prometheus.wait_for_alerts(&OF_REFUSED_CLASS, || Ok(()))
}

/// Injects faults of volumes and of lvmd's configuration together, waits for their alerts, and repairs them.
fn inject_faults(fixture: &Fixture, prometheus: &Prometheus<'_>) -> Result<()> {
    for claim in ["lost", "idle"] {
        fixture.apply_claim(claim, "immediate", "16Mi")?;
        fixture.wait_bound(claim)?;
    }
    let uid = |claim: &str| fixture.value("logicalvolumes.topolvm.io", &fixture.volume_name(claim)?, ".metadata.uid");
    let (lost, idle) = (uid("lost")?, uid("idle")?);
    let config = workloads::lvmd_config(&fixture.cluster)?;

    fixture.exec_in_pod("thick", "dd if=/dev/zero of=/data/filler bs=1M 2>/dev/null; sync")?;
    let orphan = format!("lvcreate -qy -Wn -Zn -n {ORPHAN} -l 100%FREE {VG}");
    fixture.node.script(&format!("lvremove -qfy {VG}/{lost} && lvchange -an {VG}/{idle} && {orphan}"))?;
    workloads::set_lvmd_config(&fixture.cluster, &json!("device-classes: []"))?;
    prometheus.wait_for_alerts(&OF_VOLUMES, || Ok(()))?;
    ensure!(!prometheus.query(OF_NO_POD)?.is_empty(), "a volume that no pod uses has a pod");
    check_findings(fixture)?;

    workloads::set_lvmd_config(&fixture.cluster, &config)?;
    // With the commands that doctor prints for both
    fixture.node.script(&format!("lvchange -ay -K {VG}/{idle}"))?;
    plugin::run_line(&fixture.cluster, &delete_orphan(fixture))?;
    fixture.exec_in_pod("thick", "rm /data/filler && sync")?;
    for claim in ["lost", "idle"] {
        fixture.delete_claim(claim)?;
    }
    prometheus.wait_for_end(&OF_VOLUMES)?;
    ["storage", "volumes"].into_iter().try_for_each(|check| plugin::wait_until_ok(&fixture.cluster, check))
}

/// Checks that doctor finds the volumes and lvmd.yaml, too, and prints the fix.
fn check_findings(fixture: &Fixture) -> Result<()> {
    let storage = [
        ("1 LVs of ready LogicalVolumes are not active", "lvchange -ay -K VG/LV"),
        ("lvmd.yaml was changed, but lvmd rejects it", "lvmd check-config FILE"),
    ];
    plugin::wait_for_findings(&fixture.cluster, "storage", &storage)?;
    let (lost, orphan) = (fixture.volume_name("lost")?, delete_orphan(fixture));
    let volumes = [
        (format!("the LV of LogicalVolume {lost} does not exist"), "vgcfgrestore, or delete the claim"),
        (format!("LV {ORPHAN} has no LogicalVolume"), orphan.as_str()),
    ];
    let volumes = volumes.each_ref().map(|(found, remedy)| (found.as_str(), *remedy));
    plugin::wait_for_findings(&fixture.cluster, "volumes", &volumes)
}

/// Returns the command that deletes the orphaned LV.
fn delete_orphan(fixture: &Fixture) -> String {
    format!("kubectl topolvm orphans delete {} {ORPHAN} --yes", fixture.node.name())
}

/// Takes lvmd off the node until the alerts about it fire.
fn take_lvmd_away(fixture: &Fixture, prometheus: &Prometheus<'_>) -> Result<()> {
    workloads::keep_off_nodes(&fixture.cluster, LVMD)?;
    let finding = ("topolvm-node cannot reach lvmd", "check that lvmd runs on the node");
    let fired = prometheus
        .wait_for_alerts(&WITHOUT_LVMD, || Ok(()))
        .and_then(|()| plugin::wait_for_findings(&fixture.cluster, "storage", &[finding]));
    workloads::put_back_on_nodes(&fixture.cluster, LVMD)?;
    fired?;
    prometheus.find_pods()?;
    prometheus.wait_for_end(&WITHOUT_LVMD)
}

/// Checks that the panels listed as without data have none.
fn check_reasons(prometheus: &Prometheus<'_>) -> Result<()> {
    let queries = monitoring::queries_of_dashboard()?;
    for (panel, reason) in WITHOUT_DATA_FOR_CAPACITY {
        let query = queries.iter().find(|query| query.panel == panel);
        let query = query.with_context(|| format!("there is no panel {panel}"))?;
        ensure!(prometheus.query(&query.expression)?.is_empty(), "{panel} has data although {reason}");
    }
    Ok(())
}
