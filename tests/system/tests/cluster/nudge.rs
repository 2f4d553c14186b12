//! Prompt filesystem expansion by an annotation of pods: kubelet examines a pod, and so whether its filesystem must
//! grow, only when the pod changes or at its sync interval.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use system_tests::manifests::VolumeMode;
use testbed::sidecars::Sidecar;
use testbed::topolvm::{self, CONTROLLER};

use crate::Body;
use crate::fixture::Fixture;

pub(crate) fn tests() -> Vec<(String, Body)> {
    let name = "pending_filesystem_resize_completes_once_a_controller_leads";
    vec![(name.to_owned(), expand_with_long_sync_interval)]
}

const KUBELET: &str = "/etc/kubelet.yaml";
const LEASE: [&str; 4] = ["lease", "topolvm", "-n", "topolvm-system"];

/// Expands a volume with kubelet's sync interval at an hour instead of a minute or two, so that only a change of the
/// pod can be the cause.
fn expand_with_long_sync_interval(fixture: &Fixture) -> Result<()> {
    fixture.node.script(&format!("echo 'syncFrequency: 1h' >>{KUBELET}"))?;
    let done = restart_kubelet(fixture, "1h0m0s").and_then(|()| expand_and_lead(fixture));
    fixture.node.script(&format!("sed -i '/^syncFrequency/d' {KUBELET}"))?;
    restart_kubelet(fixture, "1m0s")?;
    done?;
    fixture.delete_pod_and_claim("nudged")?;
    fixture.check_volumes(0)
}

fn expand_and_lead(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("nudged", "waiting", "64Mi")?;
    fixture.start_pod("nudged", VolumeMode::Filesystem)?;
    fixture.write_word("nudged", "kept")?;
    // A replica that does not lead still serves csi-resizer
    hold_lease(fixture, Some("another-holder"))?;
    let waiting = wait_leading(fixture, false).and_then(|()| expand_without_leader(fixture));
    hold_lease(fixture, None)?;
    waiting?;
    wait_leading(fixture, true)?;
    fixture.wait_value("pvc", "nudged", ".status.capacity.storage", "256Mi")?;
    // Since Kubernetes 1.37 each claim has the condition `Unused`
    fixture.wait_value("pvc", "nudged", ".status.conditions[?(@.type!=\"Unused\")].type", "")?;
    let after = fixture.filesystem_mebibytes("nudged")?;
    ensure!(after > 200, "the filesystem has {after} MiB");
    ensure!(fixture.read_word("nudged")? == "kept", "the file did not survive");
    let restarts = fixture.value("pod", "nudged", ".status.containerStatuses[0].restartCount")?;
    ensure!(restarts == "0", "the container was started {restarts} times again");
    Ok(())
}

/// Expands the volume without a leader: the claim waits for kubelet, and the filesystem keeps its size.
fn expand_without_leader(fixture: &Fixture) -> Result<()> {
    Sidecar::Resizer.start(&fixture.cluster, &topolvm::controller_socket(&fixture.cluster))?;
    let pending = fixture.expand("nudged", "256Mi").and_then(|()| {
        fixture.kubectl(&["wait", "--for=condition=FileSystemResizePending", "pvc/nudged", "--timeout=180s"])
    });
    Sidecar::Resizer.stop(&fixture.cluster)?;
    pending?;
    let before = fixture.filesystem_mebibytes("nudged")?;
    ensure!(before < 100, "the filesystem has {before} MiB although kubelet was not triggered");
    let shown = fixture.value("pvc", "nudged", ".status.capacity.storage")?;
    ensure!(shown == "64Mi", "the claim shows {shown}");
    Ok(())
}

/// Gives the Lease to a holder for an hour, or frees it.
fn hold_lease(fixture: &Fixture, holder: Option<&str>) -> Result<()> {
    let seconds = if holder.is_some() { 3600 } else { 1 };
    let patch = json!({"spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds}}).to_string();
    let arguments = ["patch"].into_iter().chain(LEASE).chain(["--type=merge", "-p", &patch]);
    fixture.kubectl(&arguments.collect::<Vec<_>>()).map(drop)
}

fn wait_leading(fixture: &Fixture, wanted: bool) -> Result<()> {
    fixture.cluster.ready(CONTROLLER, || {
        let now = topolvm::is_leading(&fixture.cluster, "127.0.0.1:8080")?;
        ensure!(now == wanted, "whether it leads: {now}");
        Ok(())
    })
}

/// Kills kubelet and waits until the new one uses its changed configuration.
fn restart_kubelet(fixture: &Fixture, frequency: &str) -> Result<()> {
    fixture.node.kill_kept("kubelet")?;
    let path = format!("/api/v1/nodes/{}/proxy/configz", fixture.node.name());
    fixture.cluster.ready("apiserver", || {
        let config: Value = serde_json::from_str(&fixture.kubectl(&["get", "--raw", &path])?)?;
        let now = &config["kubeletconfig"]["syncFrequency"];
        ensure!(*now == json!(frequency), "kubelet syncs pods every {now}");
        Ok(())
    })
}
