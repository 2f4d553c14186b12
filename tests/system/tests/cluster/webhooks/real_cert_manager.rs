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

use super::setup::{CLASS, NAMESPACE, Setup, pem};
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
    let setup = Setup { cluster, scratch: directory.path().to_owned() };
    let done = prepare(&setup, &spec).and_then(|()| with_helm(&setup)).and_then(|()| with_kustomize(&setup));
    let done = done.with_state(|| state(&setup));
    setup.cluster.down(None)?;
    done
}

/// Starts cert-manager, and a node for the pods, with lvmd on the host.
fn prepare(setup: &Setup, spec: &TopolvmSpec) -> Result<()> {
    let assets::CertManager { program, crds } = assets::cert_manager()?;
    sidecars::apply_snapshot_crds(&setup.cluster)?;
    let apply = ["apply", "--server-side", "-f"];
    setup.cluster.kubectl_ok(apply.iter().map(Path::new).chain([crds.as_path()]))?;
    setup.cluster.kubectl_ok(["wait", "--for=condition=Established", "--timeout=180s", "crd", "--all"])?;
    let mut command = setup.cluster.command(program);
    command.env("KUBECONFIG", setup.cluster.inner_kubeconfig());
    setup.cluster.spawn(CERT_MANAGER, &command)?;
    setup.cluster.add_nodes(&spec.nodes)?.iter().try_for_each(start_lvmd_on_the_host)
}

fn with_helm(setup: &Setup) -> Result<()> {
    let (chart, values) = (chart::directory(), chart::values("extender-cert-manager"));
    let [chart, values] = [chart.to_string_lossy(), values.to_string_lossy()];
    let install = ["install", "topolvm", &chart, "--create-namespace", "--values", &values];
    let wait = ["--wait", "--timeout=180s"];
    chart::run(&setup.cluster, NAMESPACE, &[&install[..], &wait].concat())?;
    check(setup).context("installed with helm")?;
    chart::run(&setup.cluster, NAMESPACE, &["uninstall", "topolvm", "--wait"]).map(drop)?;
    // cert-manager leaves Secrets where they are
    setup.cluster.kubectl_ok(["delete", "secret", SECRET, "topolvm-webhook-ca", "-n", NAMESPACE])?;
    setup.cluster.ready(CERT_MANAGER, || {
        // The pod of a probe stays where the right to delete it goes before the controller
        let products = "--selector=app.kubernetes.io/component!=extender-probe";
        let pods = setup.cluster.kubectl_ok(["get", "pods", "-n", NAMESPACE, products, "-o", "name"])?;
        ensure!(pods.is_empty(), "pods are left: {pods}");
        Ok(())
    })
}

fn with_kustomize(setup: &Setup) -> Result<()> {
    let storage_class = topolvm::manifests().join("base/storageclass.yaml");
    setup.cluster.apply(&fs::read_to_string(storage_class)?)?;
    topolvm::roll_out(&setup.cluster, &topolvm::manifests().join("overlays/extender-cert-manager"))?;
    check(setup).context("applied with kustomize")
}

/// Checks that the API server trusts the webhook, and that every replica serves the certificate in the Secret.
fn check(setup: &Setup) -> Result<()> {
    setup.cluster.apply(&claim("data", CLASS, "3Gi", VolumeMode::Filesystem).to_string())?;
    // Refused until cainjector has written the authority and the API server has received it
    setup.cluster.ready(CERT_MANAGER, || {
        let user = setup.dry_run_create(&pod("user", "data", VolumeMode::Filesystem))?;
        // Of this kube-scheduler, which has no extender, it is not proven that a pod with the resource is scheduled
        ensure!(user["spec"]["containers"][0]["resources"] == json!({}), "{user}");
        let annotations = &user["metadata"]["annotations"];
        ensure!(*annotations == json!({"capacity.topolvm.io/00default": "3221225472"}), "{user}");
        Ok(())
    })?;
    let authorities = setup.scratch.join("ca.crt");
    fs::write(&authorities, in_secret(setup, "ca.crt")?)?;
    let made = pem(&in_secret(setup, "tls.crt")?).context("no certificate in the Secret")?;
    let selector = "--selector=app.kubernetes.io/component=controller";
    let pods = setup.get(&["pods", "-n", NAMESPACE, selector])?;
    let pods = pods["items"].as_array().context("no list")?;
    ensure!(pods.len() == 2, "{} replicas", pods.len());
    for pod in pods {
        let address: IpAddr = pod["status"]["podIP"].as_str().context("a pod without address")?.parse()?;
        let served = setup.served_certificate(address, PORT, &authorities)?;
        ensure!(served == made, "{address} serves another certificate than that of the Secret");
    }
    setup.cluster.kubectl_ok(["delete", "pvc", "data", "--timeout=180s"]).map(drop)
}

fn in_secret(setup: &Setup, key: &str) -> Result<String> {
    let format = format!("go-template={{{{index .data \"{key}\" | base64decode}}}}");
    setup.cluster.kubectl_ok(["get", "secret", SECRET, "-n", NAMESPACE, "-o", &format])
}

/// Returns the objects of cert-manager, the pods and the log, for a failure.
fn state(setup: &Setup) -> String {
    let shown = ["certificates,certificaterequests,issuers", "pods"].map(|kinds| {
        setup.cluster.kubectl_ok(["describe", kinds, "-n", NAMESPACE]).unwrap_or_else(|error| format!("{error:#}"))
    });
    let log = fs::read_to_string(setup.cluster.log(CERT_MANAGER)).unwrap_or_default();
    format!("{}\nlog of cert-manager:\n{log}", shown.join("\n"))
}
