//! Certificates of the webhook by the real cert-manager: for pods installed with helm, and for those of the
//! kustomization.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use serde_json::json;
use system_tests::chart;
use system_tests::manifests::{VolumeMode, claim, pod};
use system_tests::product_images;
use testbed::assets;
use testbed::cluster::Cluster;
use testbed::failure::WithState as _;
use testbed::sidecars;
use testbed::suite;
use testbed::topolvm::{self, TopolvmSpec};

use super::bed::{Bed, CLASS, NAMESPACE, pem};
use crate::pods::start_lvmd_on_the_host;

/// Name of the process, its log and the pid file.
const CERT_MANAGER: &str = "cert-manager";
/// Name of the Secret that cert-manager creates for the controller.
const SECRET: &str = "topolvm-mutatingwebhook";
const PORT: u16 = 9443;

pub(super) fn test() -> Trial {
    let name = "webhook_uses_cert_manager_with_helm_and_with_kustomize";
    suite::test(name, issue_certificates)
}

fn issue_certificates() -> Result<()> {
    let spec = product_images::in_pods(TopolvmSpec::nodes(1)?, "overlays/extender-cert-manager")?;
    let directory = tempfile::Builder::new().prefix("topolvm-cert-manager-").tempdir_in("/var/tmp")?;
    let cluster = Cluster::up(&directory.path().join("c"), &spec.cluster)?;
    let bed = Bed { cluster, scratch: directory.path().to_owned() };
    let done = prepare(&bed, &spec).and_then(|()| with_helm(&bed)).and_then(|()| with_kustomize(&bed));
    let done = done.with_state(|| state(&bed));
    bed.cluster.down(None)?;
    done
}

/// Starts cert-manager, and a node for the pods, with lvmd on the host.
fn prepare(bed: &Bed, spec: &TopolvmSpec) -> Result<()> {
    let assets::CertManager { program, crds } = assets::cert_manager()?;
    sidecars::apply_snapshot_crds(&bed.cluster)?;
    let apply = ["apply", "--server-side", "-f"];
    bed.cluster.kubectl_ok(apply.iter().map(Path::new).chain([crds.as_path()]))?;
    bed.cluster.kubectl_ok(["wait", "--for=condition=Established", "--timeout=180s", "crd", "--all"])?;
    let mut command = bed.cluster.command(program);
    command.env("KUBECONFIG", bed.cluster.inner_kubeconfig());
    bed.cluster.spawn(CERT_MANAGER, &command)?;
    bed.cluster.add_nodes(&spec.nodes)?.iter().try_for_each(start_lvmd_on_the_host)
}

fn with_helm(bed: &Bed) -> Result<()> {
    let (chart, values) = (chart::directory(), chart::values("extender-cert-manager"));
    let [chart, values] = [chart.to_string_lossy(), values.to_string_lossy()];
    let install = ["install", "topolvm", &chart, "--create-namespace", "--values", &values];
    let wait = ["--wait", "--timeout=180s"];
    chart::run(&bed.cluster, NAMESPACE, &[&install[..], &wait].concat())?;
    check(bed).context("installed with helm")?;
    chart::run(&bed.cluster, NAMESPACE, &["uninstall", "topolvm", "--wait"]).map(drop)?;
    // cert-manager leaves Secrets where they are
    bed.cluster.kubectl_ok(["delete", "secret", SECRET, "topolvm-webhook-ca", "-n", NAMESPACE])?;
    bed.cluster.ready(CERT_MANAGER, || {
        // The pod of a probe stays where the right to delete it goes before the controller
        let products = "--selector=app.kubernetes.io/component!=extender-probe";
        let pods = bed.cluster.kubectl_ok(["get", "pods", "-n", NAMESPACE, products, "-o", "name"])?;
        ensure!(pods.is_empty(), "pods are left: {pods}");
        Ok(())
    })
}

fn with_kustomize(bed: &Bed) -> Result<()> {
    let storage_class = topolvm::manifests().join("base/storageclass.yaml");
    bed.cluster.apply(&fs::read_to_string(storage_class)?)?;
    topolvm::roll_out(&bed.cluster, &topolvm::manifests().join("overlays/extender-cert-manager"))?;
    check(bed).context("applied with kustomize")
}

/// Checks that the API server trusts the webhook, and that every replica serves the certificate in the Secret.
fn check(bed: &Bed) -> Result<()> {
    bed.cluster.apply(&claim("data", CLASS, "3Gi", VolumeMode::Filesystem).to_string())?;
    // Refused until cainjector has written the authority and the API server has received it
    bed.cluster.ready(CERT_MANAGER, || {
        let user = bed.dry_run_create(&pod("user", "data", VolumeMode::Filesystem))?;
        // Of this kube-scheduler, which has no extender, it is not proven that a pod with the resource is scheduled
        ensure!(user["spec"]["containers"][0]["resources"] == json!({}), "{user}");
        let annotations = &user["metadata"]["annotations"];
        ensure!(*annotations == json!({"capacity.topolvm.io/00default": "3221225472"}), "{user}");
        Ok(())
    })?;
    let authorities = bed.scratch.join("ca.crt");
    fs::write(&authorities, in_secret(bed, "ca.crt")?)?;
    let made = pem(&in_secret(bed, "tls.crt")?).context("no certificate in the Secret")?;
    let selector = "--selector=app.kubernetes.io/component=controller";
    let pods = bed.get(&["pods", "-n", NAMESPACE, selector])?;
    let pods = pods["items"].as_array().context("no list")?;
    ensure!(pods.len() == 2, "{} replicas", pods.len());
    for pod in pods {
        let address: IpAddr = pod["status"]["podIP"].as_str().context("a pod without address")?.parse()?;
        let served = bed.served_certificate(address, PORT, &authorities)?;
        ensure!(served == made, "{address} serves another certificate than that of the Secret");
    }
    bed.cluster.kubectl_ok(["delete", "pvc", "data", "--timeout=180s"]).map(drop)
}

fn in_secret(bed: &Bed, key: &str) -> Result<String> {
    let format = format!("go-template={{{{index .data \"{key}\" | base64decode}}}}");
    bed.cluster.kubectl_ok(["get", "secret", SECRET, "-n", NAMESPACE, "-o", &format])
}

/// Returns the objects of cert-manager, the pods and the log, for a failure.
fn state(bed: &Bed) -> String {
    let shown = ["certificates,certificaterequests,issuers", "pods"].map(|kinds| {
        bed.cluster.kubectl_ok(["describe", kinds, "-n", NAMESPACE]).unwrap_or_else(|error| format!("{error:#}"))
    });
    let log = fs::read_to_string(bed.cluster.log(CERT_MANAGER)).unwrap_or_default();
    format!("{}\nlog of cert-manager:\n{log}", shown.join("\n"))
}
