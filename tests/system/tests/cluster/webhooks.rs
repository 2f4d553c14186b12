//! The admission webhooks: a real API server calls them.

mod capacity;
mod cert_manager;
mod kustomizations;
mod real_cert_manager;
mod relay;
mod renewal;
mod scheduling_mode;
mod setup;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use serde_json::json;
use system_tests::manifests::{VolumeMode, claim, pod, storage_class};
use testbed::topolvm::{self, CONTROLLER};
use topolvm_api::ApiFlavor;

use setup::{CLASS, NAMESPACE, SECRET, Setup, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("webhooks_mutate_pods_and_claims_during_certificate_renewal", call_webhooks),
        test("webhook_certificate_of_two_replicas_renews_without_refusals", renewal::renew_certificate),
        test("pod_webhook_adds_resources_for_claims_and_ephemeral_volumes", capacity::check_capacity),
        test("kustomizations_are_accepted_and_consistent", kustomizations::check_kustomizations),
        test("certificates_of_cert_manager_are_served_and_renewed", cert_manager::serve_certificates),
        real_cert_manager::test(),
    ]
}

fn call_webhooks(setup: &Setup) -> Result<()> {
    let namespace = format!("--webhook-namespace={NAMESPACE}");
    // The shortest lifetime, so that API servers get five seconds to receive a new authority
    let flags = ["--enable-webhooks", "--pvc-finalizer", "--webhook-certificate-lifetime=1m", &namespace];
    topolvm::start(&setup.cluster, &[], &setup.usual_spec("extender", &flags)?)?;
    check(setup)?;
    let mut legacy = setup.usual_spec("legacy-extender", &flags)?;
    legacy.flavor = ApiFlavor::Legacy;
    topolvm::start(&setup.cluster, &[], &legacy)?;
    check_legacy(setup)
}

/// Checks that a claim of our class gets no finalizer in a namespace that is excluded.
fn claim_is_left_alone(setup: &Setup, namespace: &str, class: &str) -> Result<()> {
    let mut alone = claim("alone", class, "3Gi", VolumeMode::Filesystem);
    alone["metadata"]["namespace"] = json!(namespace);
    let alone = setup.dry_run_create(&alone)?;
    let finalizers = &alone["metadata"]["finalizers"];
    ensure!(*finalizers == json!(["kubernetes.io/pvc-protection"]), "the claim in {namespace} has {finalizers}");
    Ok(())
}

/// Checks the webhooks of the older API group, to which the cluster has been switched.
fn check_legacy(setup: &Setup) -> Result<()> {
    let cluster = &setup.cluster;
    cluster.apply(&storage_class(ApiFlavor::Legacy, "old", None, false).to_string())?;
    let old = claim("old", "old", "3Gi", VolumeMode::Filesystem);
    let old = cluster.ready(CONTROLLER, || setup.create(&old, &[]))?;
    let finalizers = &old["metadata"]["finalizers"];
    ensure!(*finalizers == json!(["kubernetes.io/pvc-protection", "topolvm.cybozu.com/pvc"]), "{finalizers}");
    cluster.kubectl_ok(["create", "namespace", "old-left-alone"])?;
    cluster.kubectl_ok(["label", "namespace", "old-left-alone", "topolvm.cybozu.com/webhook=ignore"])?;
    claim_is_left_alone(setup, "old-left-alone", "old")?;
    for (claim, expected) in [
        (
            "old",
            json!({"limits": {"topolvm.cybozu.com/capacity": "1"}, "requests": {"topolvm.cybozu.com/capacity": "1"}}),
        ),
        // Of the group that is not served
        ("data", json!({})),
    ] {
        let pod = setup.dry_run_create(&pod("old", claim, VolumeMode::Filesystem))?;
        let resources = &pod["spec"]["containers"][0]["resources"];
        ensure!(*resources == expected, "the pod with the claim {claim} has {resources}");
    }
    Ok(())
}

fn check(setup: &Setup) -> Result<()> {
    let cluster = &setup.cluster;
    // Refused until the API server has received the authority
    let data = claim("data", CLASS, "3Gi", VolumeMode::Filesystem);
    let data = cluster.ready(CONTROLLER, || setup.create(&data, &[]))?;
    let finalizers = &data["metadata"]["finalizers"];
    ensure!(*finalizers == json!(["kubernetes.io/pvc-protection", "topolvm.io/pvc"]), "the claim has {finalizers}");
    let foreign = setup.create(&claim("foreign", "foreign-class", "3Gi", VolumeMode::Filesystem), &[])?;
    ensure!(foreign["metadata"]["finalizers"] == json!(["kubernetes.io/pvc-protection"]), "{foreign}");

    let user = pod("user", "data", VolumeMode::Filesystem);
    let changed = setup.dry_run_create(&user)?;
    let annotation = &changed["metadata"]["annotations"]["capacity.topolvm.io/00default"];
    ensure!(*annotation == json!((3_u64 << 30).to_string()), "the pod has the annotation {annotation}");
    let resources = &changed["spec"]["containers"][0]["resources"];
    let expected = json!({"limits": {"topolvm.io/capacity": "1"}, "requests": {"topolvm.io/capacity": "1"}});
    ensure!(*resources == expected, "the pod has {resources}");

    // A claim for a statically provisioned volume
    let empty = setup.create(&claim("by-hand", "", "3Gi", VolumeMode::Filesystem), &[])?;
    ensure!(empty["metadata"]["finalizers"] == json!(["kubernetes.io/pvc-protection"]), "{empty}");
    let by_hand = setup.dry_run_create(&pod("by-hand", "by-hand", VolumeMode::Filesystem))?;
    ensure!(by_hand["spec"]["containers"][0]["resources"] == json!({}), "{by_hand}");

    cluster.kubectl_ok(["create", "namespace", "left-alone"])?;
    cluster.kubectl_ok(["label", "namespace", "left-alone", "topolvm.io/webhook=ignore"])?;
    cluster.ready(CONTROLLER, || cluster.kubectl_ok(["get", "serviceaccount", "default", "-n", "left-alone"]))?;
    let mut alone = user.clone();
    alone["metadata"]["namespace"] = json!("left-alone");
    let alone = setup.dry_run_create(&alone)?;
    ensure!(alone["spec"]["containers"][0]["resources"] == json!({}), "{alone}");
    for namespace in ["left-alone", "kube-system", NAMESPACE] {
        claim_is_left_alone(setup, namespace, CLASS)?;
    }

    // A deleted Secret is recreated with a new certificate
    let served = || cluster.kubectl_ok(["get", "secret", SECRET, "-n", NAMESPACE, "-o", r"jsonpath={.data.tls\.crt}"]);
    let first = served()?;
    cluster.kubectl_ok(["delete", "secret", SECRET, "-n", NAMESPACE])?;
    let end = Instant::now() + Duration::from_mins(1);
    let mut calls = 0;
    while served().ok().is_none_or(|now| now == first) {
        ensure!(Instant::now() < end, "no new certificate within a minute");
        setup.dry_run_create(&user).context("while the certificate was renewed")?;
        calls += 1;
    }
    ensure!(calls > 0, "no call was made meanwhile");
    for _ in 0..10 {
        setup.dry_run_create(&user).context("after the certificate was renewed")?;
    }

    // While no controller answers, pods without claims can be created and others cannot
    cluster.stop(CONTROLLER, Duration::from_secs(10))?;
    let mut plain = user.clone();
    plain["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    setup.dry_run_create(&plain).context("a pod without claims, without a controller")?;
    let refused = setup.dry_run_create(&user).err().context("a pod with a claim was made without a controller")?;
    ensure!(format!("{refused:#}").contains("pod-hook.topolvm.io"), "{refused:#}");
    Ok(())
}
