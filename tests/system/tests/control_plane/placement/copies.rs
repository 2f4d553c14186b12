//! Clones whose source is on another node than the scheduler would choose, or may choose.

use anyhow::Result;
use serde_json::{Value, json};
use system_tests::manifests::{DataSource, copied_claim};
use testbed::sidecars::Sidecar;
use testbed::topolvm::controller_socket;

use super::bed::{Bed, FAR, NEAR, THIN, Wanted, device_claim};

const WANTED: Wanted<'_> = (THIN, 1);

pub(super) fn place_beside_source(bed: &Bed<'_>) -> Result<()> {
    let pinned = |name: &str, node: &str| {
        let mut pod = bed.pod(name, &[(name, WANTED)]);
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        pod
    };
    bed.apply(&[device_claim("source", WANTED), pinned("source", NEAR)])?;
    bed.wait_volume("source", NEAR)?;
    let affinity = |pod: &str| {
        json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"beside": pod}}},
        ]}})
    };
    let mut other = bed.pod("other", &[]);
    other["metadata"]["labels"] = json!({"beside": "other"});
    other["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": FAR});
    let mut beside = bed.pod("beside", &[("beside", WANTED)]);
    beside["spec"]["affinity"] = affinity("other");
    bed.apply(&[other, clone("beside"), beside, clone("free"), bed.pod("free", &[("free", WANTED)])])?;

    // Whichever node the scheduler chose first
    bed.wait_scheduled("free", NEAR)?;
    bed.wait_volume("free", NEAR)?;
    // The copy cannot be where the pod has to be
    bed.wait_volume("beside", NEAR)?;
    bed.fixture.wait_event("Pod", "beside", "Warning FailedScheduling", "node affinity")?;
    refuse_strictly(bed, &pinned("strict", FAR))
}

/// Clones for a pod that can run on another node alone, where csi-provisioner allows only the node of the pod.
fn refuse_strictly(bed: &Bed<'_>, pod: &Value) -> Result<()> {
    let (cluster, socket) = (&bed.fixture.cluster, controller_socket(&bed.fixture.cluster));
    Sidecar::UpstreamProvisioner.stop(cluster)?;
    Sidecar::Provisioner.start(cluster, &socket)?;
    bed.apply(&[clone("strict"), pod.clone()])?;
    let words = format!("the source of the copy is on node {NEAR}");
    bed.fixture.wait_event("PersistentVolumeClaim", "strict", "Warning ProvisioningFailed", &words)?;
    bed.check_pending("strict")?;
    Sidecar::Provisioner.stop(cluster)?;
    let mut provisioner = Sidecar::UpstreamProvisioner.command(cluster, &socket);
    provisioner.arg("--capacity-poll-interval=1s");
    cluster.spawn(Sidecar::UpstreamProvisioner.name(), &provisioner)
}

fn clone(name: &str) -> Value {
    let mut claim = copied_claim(name, THIN, "1Gi", DataSource::Claim("source"));
    claim["spec"]["volumeMode"] = json!("Block");
    claim
}
