//! Builds all kustomizations in `deploy/manifests` with kubectl and validates them with a real API server.

mod monitoring;
mod pods;
mod references;
mod webhooks;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::kustomization::Kustomization;
use testbed::topolvm;

use super::cert_manager;
use super::setup::{NAMESPACE, Setup};

const OVERLAYS: [&str; 14] = [
    "daemonset-scheduler",
    "deployment-scheduler",
    "embedded-lvmd",
    "extender",
    "extender-cert-manager",
    "extender-manual-secret",
    "legacy",
    "legacy-extender",
    "legacy-guide",
    "legacy-objects",
    "lvmd",
    "objects",
    "storage-capacity",
    "systemd-lvmd",
];
const COMPONENTS: [&str; 20] = [
    "certificate-cert-manager",
    "certificate-secret",
    "certificate-self-managed",
    "extended-resources",
    "group-snapshots",
    "inventory",
    "legacy",
    "monitoring",
    "node-label",
    "pvc-finalizer",
    "rebuild",
    "scheduler-daemonset",
    "scheduler-deployment",
    "secure-metrics",
    "sidecars",
    "ui",
    "webhooks",
    "without-pod-io-limits",
    "without-snapshots",
    "without-workloads",
];
const CERTIFICATES: [&str; 3] = ["certificate-cert-manager", "certificate-secret", "certificate-self-managed"];
/// Kustomizations without pods.
const WITHOUT_PODS: [&str; 2] = ["overlays/legacy-objects", "overlays/objects"];
/// Default port of the controller's webhooks.
const WEBHOOK_PORT: u64 = 9443;

pub(super) fn check_kustomizations(setup: &Setup) -> Result<()> {
    cert_manager::define_kinds(setup)?;
    monitoring::define_kinds(setup)?;
    setup.cluster.kubectl_ok(["create", "namespace", NAMESPACE])?;
    let mut count = 0;
    let mut try_all = |base: &str, components: &[&[&str]]| -> Result<()> {
        for components in components {
            let what = format!("{base} with {components:?}");
            check(setup, &format!("built-{count}"), base, components).context(what)?;
            count += 1;
        }
        Ok(())
    };
    let overlays = names(&topolvm::manifests().join("overlays"))?;
    ensure!(overlays == OVERLAYS, "{overlays:?}");
    let components = names(&topolvm::manifests().join("components"))?;
    ensure!(components == COMPONENTS, "{components:?}");

    // Documented combinations, and those that administrators may mix; a component in either order
    let plain: &[&[&str]] =
        &[&[], &["secure-metrics"], &["webhooks"], &["webhooks", "pvc-finalizer", "secure-metrics", "monitoring"]];
    let hooked: &[&[&str]] = &[&[], &["secure-metrics"], &["pvc-finalizer"], &["pvc-finalizer", "secure-metrics"]];
    let older: &[&[&str]] =
        &[&["legacy"], &["legacy", "pvc-finalizer"], &["pvc-finalizer", "legacy", "secure-metrics"]];
    try_all("base", plain)?;
    for name in ["legacy", "lvmd", "embedded-lvmd", "objects", "legacy-objects"] {
        try_all(&format!("overlays/{name}"), &plain[..2])?;
    }
    try_all(
        "overlays/lvmd",
        &[&["sidecars", "legacy"], &["sidecars", "without-snapshots"], &["sidecars", "webhooks"]],
    )?;
    try_all(
        "overlays/lvmd",
        &[&["webhooks", "sidecars", "group-snapshots"], &["sidecars", "group-snapshots", "legacy"]],
    )?;
    try_all("overlays/lvmd", &[&["extended-resources", "sidecars", "ui"], &["node-label", "sidecars", "legacy"]])?;
    let alone: &[&[&str]] = &[&["rebuild"], &["extended-resources"], &["inventory", "ui"], &["without-pod-io-limits"]];
    try_all("overlays/lvmd", alone)?;
    for name in ["systemd-lvmd", "storage-capacity"] {
        try_all(&format!("overlays/{name}"), &[&[], &["sidecars", "without-snapshots"], &["sidecars", "legacy"]])?;
    }
    for overlay in ["overlays/extender", "overlays/extender-cert-manager"] {
        try_all(overlay, hooked)?;
        try_all(overlay, older)?;
    }
    for overlay in ["overlays/extender-manual-secret", "overlays/daemonset-scheduler", "overlays/deployment-scheduler"]
    {
        try_all(overlay, &[&[], &["pvc-finalizer", "secure-metrics", "sidecars", "without-snapshots", "legacy"]])?;
    }
    for (index, overlay) in ["lvmd", "embedded-lvmd", "systemd-lvmd"].iter().enumerate() {
        for (other, certificate) in CERTIFICATES.iter().enumerate() {
            // Each lvmd and each certificate meets both ways of scheduling
            let scheduler = ["scheduler-daemonset", "scheduler-deployment"][(index + other) % 2];
            try_all(&format!("overlays/{overlay}"), &[&["webhooks", certificate, scheduler]])?;
        }
    }
    let everything = [
        "inventory",
        "webhooks",
        "certificate-secret",
        "pvc-finalizer",
        "secure-metrics",
        "scheduler-deployment",
        "sidecars",
        "without-snapshots",
        "without-pod-io-limits",
        "monitoring",
    ];
    try_all(
        "overlays/lvmd",
        &[&[&everything[..], &["legacy"]].concat(), &[&everything[..], &["without-workloads"]].concat()],
    )?;
    try_all("overlays/legacy-extender", &[&[], &["secure-metrics"], &["sidecars", "without-snapshots"]])?;
    try_all("overlays/legacy-guide", &[&[]])
}

/// Returns the names of the kustomizations in a directory, sorted.
fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    let names = entries.into_iter().filter(|entry| entry.path().join("kustomization.yaml").is_file());
    let mut names: Vec<_> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

fn check(setup: &Setup, name: &str, base: &str, components: &[&str]) -> Result<()> {
    let cluster = &setup.cluster;
    let directory = setup.scratch.join(name);
    Kustomization { base, components, ..Kustomization::default() }.write(&directory)?;
    let built = directory.join("built.yaml");
    fs::write(&built, cluster.kubectl_ok([Path::new("kustomize"), &directory])?)?;
    let built = built.to_string_lossy();
    // Server-side, where an unknown field is an error
    let apply = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-o", "json", "-f", &built];
    let list: Value = serde_json::from_str(&cluster.kubectl_ok(apply)?)?;
    let objects = Objects(list["items"].as_array().context("no list")?);
    objects.check_roles()?;
    objects.check_flavor()?;
    objects.check_workloads(base, components)?;
    objects.check_pod_readers(components)?;
    objects.check_pods()?;
    objects.check_references()?;
    objects.check_monitors()?;
    if objects.of_kind("MutatingWebhookConfiguration").next().is_some() {
        objects.check_webhooks()?;
    }
    if objects.of_kind("Certificate").next().is_some() {
        objects.check_certificates()?;
    }
    if base == "overlays/legacy-guide" {
        objects.check_names_of_the_guide()?;
    }
    Ok(())
}

/// The objects of a kustomization, as the API server would store them.
struct Objects<'a>(&'a [Value]);

impl Objects<'_> {
    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    fn find(&self, kind: &str, namespace: &Value, name: &Value) -> Result<&Value> {
        let is_it =
            |object: &&Value| object["metadata"]["name"] == *name && object["metadata"]["namespace"] == *namespace;
        self.of_kind(kind).find(is_it).with_context(|| format!("there is no {kind} {namespace}/{name}"))
    }

    /// Checks that the role and the subjects of each binding exist.
    fn check_roles(&self) -> Result<()> {
        for binding in self.of_kind("ClusterRoleBinding").chain(self.of_kind("RoleBinding")) {
            let role = binding["roleRef"]["kind"].as_str().context("a binding to nothing")?;
            let namespace = if role == "Role" { &binding["metadata"]["namespace"] } else { &Value::Null };
            self.find(role, namespace, &binding["roleRef"]["name"])?;
            for subject in binding["subjects"].as_array().context("a binding without subjects")? {
                self.find("ServiceAccount", &subject["namespace"], &subject["name"])?;
            }
        }
        Ok(())
    }

    /// Checks that the pods are those of the overlay, with existing accounts, in the mode of the API group, and with
    /// webhooks where there is a configuration for them.
    fn check_workloads(&self, base: &str, components: &[&str]) -> Result<()> {
        let mut names: Vec<_> = self.workloads().filter_map(|one| one["metadata"]["name"].as_str()).collect();
        names.sort_unstable();
        let is_whole = base == "overlays/legacy-extender";
        let has_scheduler =
            is_whole || base.ends_with("-scheduler") || components.iter().any(|name| name.starts_with("scheduler-"));
        let mut expected = match base {
            "overlays/legacy-guide" => vec!["controller", "node"],
            _ => vec!["topolvm-controller", "topolvm-node"],
        };
        expected.extend((is_whole || base == "overlays/lvmd").then_some("topolvm-lvmd"));
        expected.extend(has_scheduler.then_some("topolvm-scheduler"));
        if WITHOUT_PODS.contains(&base) || components.contains(&"without-workloads") {
            expected.clear();
        }
        expected.sort_unstable();
        ensure!(names == expected, "{names:?} and not {expected:?}");
        let driver = self.of_kind("CSIDriver").next().context("no CSIDriver")?["metadata"]["name"].to_string();
        for workload in self.workloads() {
            let pod = &workload["spec"]["template"]["spec"];
            let program = &pod["containers"][0];
            let legacy = program["env"].to_string().contains("USE_LEGACY");
            let name = program["name"].as_str().unwrap_or_default();
            // lvmd has no API group
            ensure!(legacy == (driver.contains("cybozu") && name != "lvmd"), "{program}");
            let has_account = ["topolvm-controller", "topolvm-node", "topolvm-scheduler"].contains(&name);
            ensure!(has_account == (pod["automountServiceAccountToken"] != json!(false)), "{pod}");
            if has_account {
                self.find("ServiceAccount", &workload["metadata"]["namespace"], &pod["serviceAccountName"])?;
            }
            if name == "topolvm-controller" {
                let serves = program["args"].to_string().contains("--enable-webhooks");
                ensure!(serves == self.webhooks().next().is_some(), "{program}");
                let has = |sidecar: &str| pod["containers"].to_string().contains(sidecar);
                let wanted = components.contains(&"sidecars");
                ensure!(has("csi-provisioner") == wanted && has("csi-resizer") == wanted, "{pod}");
                ensure!(has("csi-snapshotter") == (wanted && !components.contains(&"without-snapshots")), "{pod}");
                let controllers = if wanted { "capacity" } else { "provisioner,capacity,resizer,snapshotter" };
                let variable = json!({"name": "CONTROLLERS", "value": controllers});
                ensure!(program["env"].as_array().is_some_and(|env| env.contains(&variable)), "{program}");
            }
            if name == "topolvm-node" {
                ensure!(program["args"].to_string().contains(driver.trim_matches('"')), "{program}");
            }
        }
        Ok(())
    }

    /// Checks that the agents may read pods unless they have I/O limits of volumes only.
    fn check_pod_readers(&self, components: &[&str]) -> Result<()> {
        let reads = !components.contains(&"without-pod-io-limits");
        let role = self.find("ClusterRole", &Value::Null, &json!("topolvm-system:node"))?;
        let rules = role["rules"].as_array().context("a role without rules")?;
        ensure!(reads == rules.iter().any(|rule| rule["resources"] == json!(["pods"])), "{role}");
        for workload in self.workloads() {
            let program = &workload["spec"]["template"]["spec"]["containers"][0];
            let is_off = program["args"].to_string().contains("--pod-io-limits=false");
            ensure!(is_off == (!reads && program["name"] == "topolvm-node"), "{program}");
        }
        Ok(())
    }

    /// Checks that the driver, the definition, the roles and the webhooks are of one API group. Storage capacity is
    /// tracked where no webhook writes the resource that only the extender understands.
    fn check_flavor(&self) -> Result<()> {
        let driver = self.of_kind("CSIDriver").next().context("no CSIDriver")?;
        let group = driver["metadata"]["name"].as_str().context("a driver without a name")?;
        let other = if group == "topolvm.io" { "topolvm.cybozu.com" } else { "topolvm.io" };
        let definition = json!(format!("logicalvolumes.{group}"));
        self.find("CustomResourceDefinition", &Value::Null, &definition)?;
        let roles: Vec<&Value> =
            self.of_kind("ClusterRole").filter_map(|role| role["rules"].as_array()).flatten().collect();
        let may = |group: &str| roles.iter().any(|rule| rule["apiGroups"] == json!([group]));
        ensure!(may(group) && !may(other), "the roles are not for {group}");
        let mut has_pod_webhook = false;
        for webhook in self.webhooks() {
            let name = webhook["name"].as_str().unwrap_or_default();
            has_pod_webhook |= name == format!("pod-hook.{group}");
            let label = json!({"key": format!("{group}/webhook"), "operator": "NotIn", "values": ["ignore"]});
            let left_out = webhook["namespaceSelector"]["matchExpressions"].as_array().context("no namespaces")?;
            ensure!(left_out.contains(&label), "{name} does not leave out namespaces with the label of {group}");
        }
        let has_configuration = self.webhooks().next().is_some();
        ensure!(has_pod_webhook == has_configuration, "the webhook for pods is not that of {group}");
        ensure!(driver["spec"]["storageCapacity"] == json!(!has_pod_webhook), "{driver}");
        self.check_deletion_of_pods(&roles)
    }

    /// Checks that pods may be deleted only where claims get the finalizer or are recreated.
    fn check_deletion_of_pods(&self, rules: &[&Value]) -> Result<()> {
        let deletes = |rule: &&&Value| {
            let has = |list: &Value, what: &str| list.as_array().is_some_and(|list| list.contains(&json!(what)));
            has(&rule["resources"], "pods") && has(&rule["verbs"], "delete")
        };
        let has_finalizer = self.webhooks().any(|webhook| webhook["clientConfig"]["service"]["path"] == "/pvc/mutate");
        let is_rebuilding = self.of_kind("Deployment").any(|one| one.to_string().contains("--rebuild-claims"));
        let may_delete = rules.iter().any(|rule| deletes(&rule));
        ensure!(
            may_delete == (has_finalizer || is_rebuilding),
            "pods may be deleted: {may_delete}, finalizers: {has_finalizer}, claims recreated: {is_rebuilding}"
        );
        Ok(())
    }
}
