//! A release with another name in another namespace: all references are to existing objects.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::chart;

use crate::objects::Objects;

pub(crate) fn check_references() -> Result<()> {
    for values in ["default", "embedded", "scheduler-daemonset", "scheduler-deployment", "monitoring"] {
        let file = chart::values(values);
        let rendered = chart::render("mine", "storage", &["--values", &file.to_string_lossy()])?;
        check(&Objects::parse(&rendered)?).context(values)?;
    }
    Ok(())
}

fn check(objects: &Objects) -> Result<()> {
    for object in objects.all() {
        let namespace = &object["metadata"]["namespace"];
        ensure!(namespace.is_null() || namespace == "storage", "{object}");
        let says_ours = object.to_string().replace(r#"["kube-system","topolvm-system","storage"]"#, "");
        ensure!(!says_ours.contains("topolvm-system"), "another namespace is meant: {object}");
    }
    check_roles(objects)?;
    check_pods(objects)?;
    let policy = objects.find("ValidatingAdmissionPolicy", "mine-topolvm-node-changes-its-own-only")?;
    let agents = &policy["spec"]["matchConditions"][0]["expression"];
    ensure!(
        *agents == "request.userInfo.username == 'system:serviceaccount:storage:mine-topolvm-node'",
        "the policy is for others: {agents}"
    );
    let bound = objects.find("ValidatingAdmissionPolicyBinding", "mine-topolvm-node-changes-its-own-only")?;
    ensure!(bound["spec"]["policyName"] == policy["metadata"]["name"], "{bound}");
    check_webhook(objects)
}

/// Checks that the role and the subjects of each binding exist.
fn check_roles(objects: &Objects) -> Result<()> {
    for binding in objects.of_kind("ClusterRoleBinding").chain(objects.of_kind("RoleBinding")) {
        let text = |value: &Value| value.as_str().map(str::to_owned).context("nothing is named");
        objects.find(&text(&binding["roleRef"]["kind"])?, &text(&binding["roleRef"]["name"])?)?;
        for subject in binding["subjects"].as_array().context("a binding without subjects")? {
            ensure!(subject["namespace"] == "storage", "{binding}");
            objects.find("ServiceAccount", &text(&subject["name"])?)?;
        }
    }
    Ok(())
}

/// Checks that selectors find the pods of their own workload and no others, and that accounts and ConfigMaps of pods
/// exist.
fn check_pods(objects: &Objects) -> Result<()> {
    let mut selectors = BTreeSet::new();
    for workload in objects.of_kind("Deployment").chain(objects.of_kind("DaemonSet")) {
        let (spec, template) = (&workload["spec"], &workload["spec"]["template"]);
        let selector = spec["selector"]["matchLabels"].as_object().context("no selector")?;
        for (label, value) in selector {
            ensure!(template["metadata"]["labels"][label] == *value, "the selector does not find the pods: {workload}");
        }
        ensure!(selectors.insert(json!(selector).to_string()), "two workloads have the same selector: {selector:?}");
        if let Some(account) = template["spec"]["serviceAccountName"].as_str() {
            objects.find("ServiceAccount", account)?;
        }
        for volume in template["spec"]["volumes"].as_array().context("no volumes")? {
            if let Some(map) = volume["configMap"]["name"].as_str() {
                objects.find("ConfigMap", map)?;
            }
        }
    }
    for budget in objects.of_kind("PodDisruptionBudget") {
        let selector = &budget["spec"]["selector"]["matchLabels"];
        ensure!(selectors.contains(&selector.to_string()), "{budget}");
    }
    Ok(())
}

/// Checks that the API server calls an existing Service, and that a controller with a self-managed certificate has all
/// names.
fn check_webhook(objects: &Objects) -> Result<()> {
    let Some(configuration) = objects.of_kind("MutatingWebhookConfiguration").next() else { return Ok(()) };
    let called = &configuration["webhooks"][0]["clientConfig"]["service"];
    objects.find("Service", called["name"].as_str().context("no Service is called")?)?;
    let controller = objects.find("Deployment", "mine-topolvm-controller")?;
    let pod = &controller["spec"]["template"]["spec"];
    let arguments = pod["containers"][0]["args"].to_string();
    if let Some(certificate) = objects.of_kind("Certificate").find(|certificate| certificate["spec"]["isCA"].is_null())
    {
        let host = "mine-topolvm-controller.storage.svc";
        ensure!(certificate["spec"]["dnsNames"].to_string().contains(host), "{certificate}");
        ensure!(arguments.contains("--cert-dir=/certs"), "{arguments}");
        let secret = &certificate["spec"]["secretName"];
        let mounted = pod["volumes"].as_array().into_iter().flatten();
        ensure!(mounted.filter(|volume| volume["secret"]["secretName"] == *secret).count() == 1, "{pod}");
        let from = &configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
        ensure!(from == "storage/mine-topolvm-mutatingwebhook", "{configuration}");
    } else {
        for flag in [
            "--webhook-service=mine-topolvm-controller",
            "--webhook-secret=mine-topolvm-webhook-certificate",
            "--webhook-configuration=mine-topolvm-hook",
        ] {
            ensure!(arguments.contains(flag), "{flag} is missing: {arguments}");
        }
        ensure!(configuration["metadata"]["name"] == "mine-topolvm-hook", "{configuration}");
        let role = objects.find("Role", "mine-topolvm-controller-webhook-certificate")?;
        ensure!(role.to_string().contains(r#""mine-topolvm-webhook-certificate""#), "{role}");
    }
    Ok(())
}
