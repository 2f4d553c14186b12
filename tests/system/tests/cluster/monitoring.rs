//! The alert rules and the dashboard that ship, in a real Prometheus that scrapes the pods: every query has data, no
//! alert fires while all is well, and planted faults raise theirs.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::manifests::VolumeMode;
use system_tests::monitoring::{self, Prometheus};
use testbed::sidecars::NAMESPACE;

use crate::Body;
use crate::fixture::{Fixture, VG};

const PROMETHEUS: &str = "prometheus";

/// Panels without data here, each with the reason.
const WITHOUT_DATA: [(&str, &str); 8] = [
    ("Certificates", NO_WEBHOOK),
    ("Extender", NO_WEBHOOK),
    ("Time of a webhook call", NO_WEBHOOK),
    ("Webhook calls", NO_WEBHOOK),
    ("Time of an extender call", NO_SCHEDULER),
    ("Verdicts of the extender", NO_SCHEDULER),
    ("To be wiped", NO_WIPING),
    ("Wipe failures", NO_WIPING),
];
const NO_WEBHOOK: &str = "with storage capacity tracking there are no webhooks";
const NO_SCHEDULER: &str = "with storage capacity tracking there is no topolvm-scheduler";
const NO_WIPING: &str = "no device class of the bed wipes";

/// The alert about the StorageClass of the bed that names a device class which no node has.
const OF_THE_BED: &str = "TopolvmDoctorFinding";
/// Alerts about what [`plant_faults`] does.
const PLANTED: [&str; 7] = [
    "TopolvmDeviceClassNearlyFull",
    "TopolvmLvmdConfigNotTaken",
    "TopolvmVolumeFull",
    "TopolvmVolumeInactive",
    "TopolvmVolumeLost",
    "TopolvmVolumeNearlyFull",
    "TopolvmVolumesOrphaned",
];
/// Alerts about a node without lvmd.
const WITHOUT_LVMD: [&str; 2] = ["TopolvmAgentWithoutLvmd", "TopolvmTargetDown"];

/// A series with the labels of its claim and pod, and not of those of the agent's pod.
const OF_A_POD: &str = "topolvm_volume_size_bytes{namespace=\"default\",persistentvolumeclaim=\"thick\",pod=\"thick\"}";
/// A series of a volume that no pod uses.
const OF_NO_POD: &str = "topolvm_volume_size_bytes{namespace=\"default\",persistentvolumeclaim=\"idle\",pod=\"\"}";

/// Name of an LV as if it had been made for a LogicalVolume.
const ORPHAN: &str = "6a1f0c3e-94a5-4d6b-8f3d-2f6f5d0f7c11";

pub(crate) fn trials() -> Vec<(String, Body)> {
    let name = "each_query_for_prometheus_has_data_no_alert_fires_in_a_healthy_cluster_and_faults_raise_theirs";
    vec![(name.to_owned(), watch)]
}

fn watch(fixture: &Fixture) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("topolvm-prometheus-").tempdir_in("/var/tmp")?;
    let rules = monitoring::rules_in_fast_time(monitoring::read_rules()?)?;
    // Calls that are there before the first look, and grow afterwards
    start_volume(fixture, "thick", "waiting")?;
    let prometheus = Prometheus::start(&fixture.cluster, scratch.path(), &rules)?;
    let watched = start_volume(fixture, "pooled", "thin")
        .and_then(|()| wait_for_data(fixture, &prometheus, &rules))
        .and_then(|()| wait_for_silence(fixture, &prometheus))
        .and_then(|()| plant_faults(fixture, &prometheus))
        .and_then(|()| take_lvmd_away(fixture, &prometheus))
        .and_then(|()| check_reasons(&prometheus));
    prometheus.stop()?;
    watched?;
    for name in ["thick", "pooled"] {
        fixture.delete_pod_and_claim(name)?;
    }
    fixture.check_volumes(0)
}

fn start_volume(fixture: &Fixture, name: &str, class: &str) -> Result<()> {
    fixture.apply_claim(name, class, "64Mi")?;
    fixture.start_pod(name, VolumeMode::Filesystem)?;
    fixture.write_word(name, "measured")
}

/// Waits until the dashboard's queries and the recording rules have data.
fn wait_for_data(fixture: &Fixture, prometheus: &Prometheus<'_>, rules: &Value) -> Result<()> {
    let is_expected = |panel: &str| !WITHOUT_DATA.iter().any(|(without, _)| *without == panel);
    let dashboard = monitoring::queries_of_dashboard()?.into_iter().filter(|query| is_expected(&query.panel));
    let mut missing: Vec<String> = dashboard.map(|query| query.expression).collect();
    missing.extend(monitoring::rule_names(rules).records);
    missing.push(format!("{OF_A_POD} and on (node) topolvm_lvmd_device_class_size_bytes"));
    let mut check = || {
        let mut still = Vec::new();
        for expression in &missing {
            if prometheus.query(expression)?.is_empty() {
                still.push(expression.clone());
            }
        }
        missing = still;
        ensure!(missing.is_empty(), "no data for:\n{}", missing.join("\n"));
        Ok(())
    };
    fixture.cluster.ready(PROMETHEUS, &mut check)?;
    let errors = prometheus.errors()?;
    ensure!(errors.is_empty(), "rules that cannot be evaluated: {errors:#?}");
    Ok(())
}

/// Waits until no alert but that of the bed has fired for ten seconds.
fn wait_for_silence(fixture: &Fixture, prometheus: &Prometheus<'_>) -> Result<()> {
    fixture.cluster.ready(PROMETHEUS, || {
        let silent = prometheus.silent_seconds(&[OF_THE_BED], 10)?;
        ensure!(silent >= 10.0, "fired in the last ten seconds: {:?}", prometheus.firing()?);
        Ok(())
    })?;
    wait_for_alerts(fixture, prometheus, &[OF_THE_BED])
}

/// Waits until these alerts fire, and checks their texts.
fn wait_for_alerts(fixture: &Fixture, prometheus: &Prometheus<'_>, wanted: &[&str]) -> Result<()> {
    fixture.cluster.ready(PROMETHEUS, || {
        let firing = prometheus.firing()?;
        let silent: Vec<_> = wanted.iter().filter(|name| !firing.contains(**name)).collect();
        ensure!(silent.is_empty(), "{silent:?} do not fire, and these do: {firing:?}");
        Ok(())
    })?;
    for text in prometheus.texts()? {
        ensure!(!text.contains("no value") && !text.contains("{{") && !text.contains("error"), "{text}");
    }
    Ok(())
}

fn wait_for_end(fixture: &Fixture, prometheus: &Prometheus<'_>, gone: &[&str]) -> Result<()> {
    fixture.cluster.ready(PROMETHEUS, || {
        let firing = prometheus.firing()?;
        let left: BTreeSet<_> = firing.iter().filter(|name| gone.contains(&name.as_str())).collect();
        ensure!(left.is_empty(), "{left:?} still fire");
        Ok(())
    })
}

/// Plants faults of volumes and of lvmd's configuration together, waits for their alerts, and mends them.
fn plant_faults(fixture: &Fixture, prometheus: &Prometheus<'_>) -> Result<()> {
    for claim in ["lost", "idle"] {
        fixture.apply_claim(claim, "immediate", "16Mi")?;
        fixture.wait_bound(claim)?;
    }
    let uid = |claim: &str| fixture.value("logicalvolumes.topolvm.io", &fixture.volume_name(claim)?, ".metadata.uid");
    let (lost, idle) = (uid("lost")?, uid("idle")?);
    let config = fixture.kubectl(&["get", "configmap", "-n", NAMESPACE, "topolvm-lvmd", "-o", "json"])?;
    let config: Value = serde_json::from_str(&config).context("kubectl prints no JSON")?;

    fixture.exec_in_pod("thick", "dd if=/dev/zero of=/data/filler bs=1M 2>/dev/null; sync")?;
    let orphan = format!("lvcreate -qy -Wn -Zn -n {ORPHAN} -l 100%FREE {VG}");
    fixture.node.script(&format!("lvremove -qfy {VG}/{lost} && lvchange -an {VG}/{idle} && {orphan}"))?;
    set_lvmd_config(fixture, &json!("device-classes: []"))?;
    wait_for_alerts(fixture, prometheus, &PLANTED)?;
    ensure!(!prometheus.query(OF_NO_POD)?.is_empty(), "a volume that no pod uses has a pod");

    set_lvmd_config(fixture, &config["data"]["lvmd.yaml"])?;
    fixture.node.script(&format!("lvchange -ay {VG}/{idle} && lvremove -qfy {VG}/{ORPHAN}"))?;
    fixture.exec_in_pod("thick", "rm /data/filler && sync")?;
    for claim in ["lost", "idle"] {
        fixture.delete_claim(claim)?;
    }
    wait_for_end(fixture, prometheus, &PLANTED)
}

/// Sets lvmd.yaml of lvmd in pods, and has kubelet look at it at once.
fn set_lvmd_config(fixture: &Fixture, text: &Value) -> Result<()> {
    let patch = json!({"data": {"lvmd.yaml": text}});
    let patch = ["patch", "configmap", "-n", NAMESPACE, "topolvm-lvmd", "--type=merge", "-p", &patch.to_string()];
    fixture.kubectl(&patch)?;
    let version = fixture.kubectl(&[
        "get",
        "configmap",
        "-n",
        NAMESPACE,
        "topolvm-lvmd",
        "-o",
        "jsonpath={.metadata.resourceVersion}",
    ])?;
    let annotation = format!("example.com/configuration={version}");
    let selector = "-l=app.kubernetes.io/component=lvmd";
    fixture.kubectl(&["annotate", "pods", "-n", NAMESPACE, selector, "--overwrite", &annotation]).map(drop)
}

/// Takes lvmd off the node until the alerts about it fire.
fn take_lvmd_away(fixture: &Fixture, prometheus: &Prometheus<'_>) -> Result<()> {
    let select = |nodes: Value| {
        let patch = json!({"spec": {"template": {"spec": {"nodeSelector": nodes}}}}).to_string();
        fixture.kubectl(&["patch", "daemonset", "-n", NAMESPACE, "topolvm-lvmd", "--type=merge", "-p", &patch])
    };
    select(json!({"example.com/lvmd": "nowhere"}))?;
    let fired = wait_for_alerts(fixture, prometheus, &WITHOUT_LVMD);
    select(Value::Null)?;
    fixture.kubectl(&["rollout", "status", "-n", NAMESPACE, "daemonset/topolvm-lvmd", "--timeout=60s"])?;
    fired?;
    prometheus.find_pods()?;
    wait_for_end(fixture, prometheus, &WITHOUT_LVMD)
}

/// Checks that no panel which is said to have no data has some.
fn check_reasons(prometheus: &Prometheus<'_>) -> Result<()> {
    let queries = monitoring::queries_of_dashboard()?;
    for (panel, reason) in WITHOUT_DATA {
        let query = queries.iter().find(|query| query.panel == panel);
        let query = query.with_context(|| format!("there is no panel {panel}"))?;
        ensure!(prometheus.query(&query.expression)?.is_empty(), "{panel} has data although {reason}");
    }
    Ok(())
}
