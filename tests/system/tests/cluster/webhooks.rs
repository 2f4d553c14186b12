//! The admission webhooks with a certificate of their own: a real API server calls them. The cluster has no nodes, because nothing has to run.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};
use system_tests::manifests::{VolumeMode, claim, pod, storage_class};
use testbed::cluster::Cluster;
use testbed::network::GATEWAY;
use testbed::topolvm::{self, CONTROLLER, Topolvm, TopolvmSpec};
use topolvm_api::ApiFlavor;

const NAMESPACE: &str = "topolvm-system";
const SECRET: &str = "topolvm-webhook-certificate";

pub(crate) fn trials() -> Vec<Trial> {
    let body = || webhooks().map_err(|error| Failed::from(format!("{error:#}")));
    vec![Trial::test("new_pods_and_claims_are_changed_also_while_the_certificate_is_renewed", body)]
}

fn webhooks() -> Result<()> {
    let directory = tempfile::Builder::new().prefix("topolvm-webhooks-").tempdir_in("/var/tmp")?;
    let manifests = directory.path().join("manifests");
    write_manifests(&manifests, "extender")?;
    let mut spec = TopolvmSpec::nodes(0)?;
    spec.manifests = manifests;
    spec.sidecars.clear();
    // The shortest life that there is, so that API servers get five seconds to hear of a new authority
    let flags = ["--enable-webhooks", "--pvc-finalizer", "--webhook-certificate-lifetime=1m"];
    spec.controller_arguments = flags.map(str::to_owned).into();
    spec.controller_arguments.push(format!("--webhook-namespace={NAMESPACE}"));
    let Topolvm { cluster, .. } = topolvm::up_with(&directory.path().join("c"), &spec)?;
    let result = check(&cluster, directory.path()).and_then(|()| {
        spec.flavor = ApiFlavor::Legacy;
        spec.manifests = directory.path().join("legacy-manifests");
        write_manifests(&spec.manifests, "legacy-extender")?;
        topolvm::start(&cluster, &[], &spec)?;
        check_legacy(&cluster, directory.path())
    });
    let result = result.map_err(|error| {
        let log = fs::read_to_string(cluster.log(CONTROLLER)).unwrap_or_default();
        error.context(format!("log of the controller:\n{log}"))
    });
    cluster.down(None)?;
    result
}

/// The manifests that users apply for the extender, and the finalizer. The controller is no pod here, so that its Service has to be told where
/// it is.
fn write_manifests(directory: &Path, overlay: &str) -> Result<()> {
    fs::create_dir(directory)?;
    let ours = path_of_manifests(directory)?;
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [format!("{ours}/overlays/{overlay}"), "endpoints.yaml"],
        "components": [format!("{ours}/components/pvc-finalizer")],
        "patches": [{
            "target": {"kind": "Service", "name": "topolvm-controller"},
            "patch": json!([{"op": "remove", "path": "/spec/selector"}]).to_string(),
        }],
    });
    fs::write(directory.join("kustomization.yaml"), kustomization.to_string())?;
    let endpoints = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "topolvm-controller", "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": "topolvm-controller"},
        },
        "addressType": "IPv4", "ports": [{"name": "webhook", "port": 9443}],
        "endpoints": [{"addresses": [GATEWAY.to_string()]}],
    });
    fs::write(directory.join("endpoints.yaml"), endpoints.to_string()).context("write the endpoints")
}

/// The manifests that users apply, as a kustomization in this directory names them: it takes no absolute paths.
pub(crate) fn path_of_manifests(directory: &Path) -> Result<String> {
    let up: String = directory.canonicalize()?.components().skip(1).map(|_| "../").collect();
    let ours = topolvm::manifests().canonicalize()?;
    Ok(format!("{up}{}", ours.strip_prefix("/")?.display()))
}

/// Creates an object and returns what the API server made of it.
fn create(cluster: &Cluster, scratch: &Path, object: &Value, flags: &[&str]) -> Result<Value> {
    let file = scratch.join("object.json");
    fs::write(&file, object.to_string())?;
    let file = file.to_string_lossy();
    let arguments = ["create", "-o", "json", "-f", &file].into_iter().chain(flags.iter().copied());
    Ok(serde_json::from_str(&cluster.kubectl_ok(arguments)?)?)
}

/// A claim of a class of ours in a namespace that is left out gets no finalizer.
fn claim_is_left_alone(cluster: &Cluster, scratch: &Path, namespace: &str, class: &str) -> Result<()> {
    let mut alone = claim("alone", class, "3Gi", VolumeMode::Filesystem);
    alone["metadata"]["namespace"] = json!(namespace);
    let alone = create(cluster, scratch, &alone, &["--dry-run=server"])?;
    let finalizers = &alone["metadata"]["finalizers"];
    ensure!(*finalizers == json!(["kubernetes.io/pvc-protection"]), "the claim in {namespace} has {finalizers}");
    Ok(())
}

/// The same in the older API group, to which the cluster has been switched.
fn check_legacy(cluster: &Cluster, scratch: &Path) -> Result<()> {
    cluster.apply(&storage_class(ApiFlavor::Legacy, "old", None, false).to_string())?;
    let old = claim("old", "old", "3Gi", VolumeMode::Filesystem);
    let old = cluster.ready(CONTROLLER, || create(cluster, scratch, &old, &[]))?;
    let finalizers = &old["metadata"]["finalizers"];
    ensure!(*finalizers == json!(["kubernetes.io/pvc-protection", "topolvm.cybozu.com/pvc"]), "{finalizers}");
    cluster.kubectl_ok(["create", "namespace", "old-left-alone"])?;
    cluster.kubectl_ok(["label", "namespace", "old-left-alone", "topolvm.cybozu.com/webhook=ignore"])?;
    claim_is_left_alone(cluster, scratch, "old-left-alone", "old")?;
    for (claim, expected) in [
        (
            "old",
            json!({"limits": {"topolvm.cybozu.com/capacity": "1"}, "requests": {"topolvm.cybozu.com/capacity": "1"}}),
        ),
        // Of the group that is not served
        ("data", json!({})),
    ] {
        let pod = create(cluster, scratch, &pod("old", claim, VolumeMode::Filesystem), &["--dry-run=server"])?;
        let resources = &pod["spec"]["containers"][0]["resources"];
        ensure!(*resources == expected, "the pod with the claim {claim} has {resources}");
    }
    Ok(())
}

fn check(cluster: &Cluster, scratch: &Path) -> Result<()> {
    let create = |object: &Value, flags: &[&str]| create(cluster, scratch, object, flags);

    // Refused until the API server has heard of the authority
    let data = claim("data", "topolvm-provisioner", "3Gi", VolumeMode::Filesystem);
    let data = cluster.ready(CONTROLLER, || create(&data, &[]))?;
    let finalizers = &data["metadata"]["finalizers"];
    ensure!(*finalizers == json!(["kubernetes.io/pvc-protection", "topolvm.io/pvc"]), "the claim has {finalizers}");
    let foreign = create(&claim("foreign", "somebody-elses", "3Gi", VolumeMode::Filesystem), &[])?;
    ensure!(foreign["metadata"]["finalizers"] == json!(["kubernetes.io/pvc-protection"]), "{foreign}");

    let user = pod("user", "data", VolumeMode::Filesystem);
    let changed = create(&user, &["--dry-run=server"])?;
    let annotation = &changed["metadata"]["annotations"]["capacity.topolvm.io/00default"];
    ensure!(*annotation == json!((3_u64 << 30).to_string()), "the pod has the annotation {annotation}");
    let resources = &changed["spec"]["containers"][0]["resources"];
    let expected = json!({"limits": {"topolvm.io/capacity": "1"}, "requests": {"topolvm.io/capacity": "1"}});
    ensure!(*resources == expected, "the pod has {resources}");

    // A claim for a volume that somebody has made by hand
    let empty = create(&claim("by-hand", "", "3Gi", VolumeMode::Filesystem), &[])?;
    ensure!(empty["metadata"]["finalizers"] == json!(["kubernetes.io/pvc-protection"]), "{empty}");
    let by_hand = create(&pod("by-hand", "by-hand", VolumeMode::Filesystem), &["--dry-run=server"])?;
    ensure!(by_hand["spec"]["containers"][0]["resources"] == json!({}), "{by_hand}");

    cluster.kubectl_ok(["create", "namespace", "left-alone"])?;
    cluster.kubectl_ok(["label", "namespace", "left-alone", "topolvm.io/webhook=ignore"])?;
    cluster.ready(CONTROLLER, || cluster.kubectl_ok(["get", "serviceaccount", "default", "-n", "left-alone"]))?;
    let mut alone = user.clone();
    alone["metadata"]["namespace"] = json!("left-alone");
    let alone = create(&alone, &["--dry-run=server"])?;
    ensure!(alone["spec"]["containers"][0]["resources"] == json!({}), "{alone}");
    for namespace in ["left-alone", "kube-system", NAMESPACE] {
        claim_is_left_alone(cluster, scratch, namespace, "topolvm-provisioner")?;
    }

    // Whoever deletes the Secret gets a new certificate
    let served = || cluster.kubectl_ok(["get", "secret", SECRET, "-n", NAMESPACE, "-o", r"jsonpath={.data.tls\.crt}"]);
    let first = served()?;
    cluster.kubectl_ok(["delete", "secret", SECRET, "-n", NAMESPACE])?;
    let end = Instant::now() + Duration::from_mins(1);
    let mut calls = 0;
    while served().ok().is_none_or(|now| now == first) {
        ensure!(Instant::now() < end, "no new certificate within a minute");
        create(&user, &["--dry-run=server"]).context("while the certificate was renewed")?;
        calls += 1;
    }
    ensure!(calls > 0, "no call was made meanwhile");
    for _ in 0..10 {
        create(&user, &["--dry-run=server"]).context("after the certificate was renewed")?;
    }

    // While no controller answers, pods without claims can be made and others cannot
    cluster.stop(CONTROLLER, Duration::from_secs(10))?;
    let mut plain = user.clone();
    plain["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    create(&plain, &["--dry-run=server"]).context("a pod without claims, without a controller")?;
    let refused =
        create(&user, &["--dry-run=server"]).err().context("a pod with a claim was made without a controller")?;
    ensure!(format!("{refused:#}").contains("pod-hook.topolvm.io"), "{refused:#}");
    Ok(())
}
