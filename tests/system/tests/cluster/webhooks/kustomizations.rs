//! All kustomizations in `deploy/manifests`, built by kubectl and shown to a real API server.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testbed::topolvm;

use super::bed::{Bed, NAMESPACE, path_of_manifests};
use super::cert_manager;

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
const COMPONENTS: [&str; 11] = [
    "certificate-cert-manager",
    "certificate-secret",
    "certificate-self-managed",
    "legacy",
    "pvc-finalizer",
    "scheduler-daemonset",
    "scheduler-deployment",
    "secure-metrics",
    "webhooks",
    "without-snapshots",
    "without-workloads",
];
/// Those that start nothing.
const WITHOUT_PODS: [&str; 3] = ["overlays/legacy-guide", "overlays/legacy-objects", "overlays/objects"];
/// Where the controller serves webhooks unless it is told otherwise.
const WEBHOOK_PORT: u64 = 9443;

pub(super) fn built(bed: &Bed) -> Result<()> {
    cert_manager::define(bed)?;
    bed.cluster.kubectl_ok(["create", "namespace", NAMESPACE])?;
    let mut count = 0;
    let mut try_all = |base: &str, components: &[&[&str]]| -> Result<()> {
        for components in components {
            let what = format!("{base} with {components:?}");
            check(bed, &format!("built-{count}"), base, components).context(what)?;
            count += 1;
        }
        Ok(())
    };
    let overlays = names(&topolvm::manifests().join("overlays"))?;
    ensure!(overlays == OVERLAYS, "{overlays:?}");
    let components = names(&topolvm::manifests().join("components"))?;
    ensure!(components == COMPONENTS, "{components:?}");

    // What is documented, and what an administrator will mix; a component in either order
    let plain: &[&[&str]] =
        &[&[], &["secure-metrics"], &["webhooks"], &["webhooks", "pvc-finalizer", "secure-metrics"]];
    let hooked: &[&[&str]] = &[&[], &["secure-metrics"], &["pvc-finalizer"], &["pvc-finalizer", "secure-metrics"]];
    let older: &[&[&str]] =
        &[&["legacy"], &["legacy", "pvc-finalizer"], &["pvc-finalizer", "legacy", "secure-metrics"]];
    try_all("base", plain)?;
    for name in ["legacy", "lvmd", "embedded-lvmd", "objects", "legacy-objects"] {
        try_all(&format!("overlays/{name}"), &plain[..2])?;
    }
    for overlay in ["overlays/extender", "overlays/extender-cert-manager"] {
        try_all(overlay, hooked)?;
        try_all(overlay, older)?;
    }
    try_all("overlays/legacy-extender", hooked)?;
    try_all("overlays/legacy-guide", &[&[]])
}

/// The kustomizations in a directory, sorted.
fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    let names = entries.into_iter().filter(|entry| entry.path().join("kustomization.yaml").is_file());
    let mut names: Vec<_> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

fn check(bed: &Bed, name: &str, base: &str, components: &[&str]) -> Result<()> {
    let cluster = &bed.cluster;
    let directory = bed.scratch.join(name);
    fs::create_dir(&directory)?;
    let ours = path_of_manifests(&directory)?;
    let components: Vec<String> = components.iter().map(|name| format!("{ours}/components/{name}")).collect();
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [format!("{ours}/{base}")], "components": components,
    });
    fs::write(directory.join("kustomization.yaml"), kustomization.to_string())?;
    let built = directory.join("built.yaml");
    fs::write(&built, cluster.kubectl_ok([Path::new("kustomize"), &directory])?)?;
    let built = built.to_string_lossy();
    // Server-side, where a field that the API server does not know is an error
    let apply = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-o", "json", "-f", &built];
    let list: Value = serde_json::from_str(&cluster.kubectl_ok(apply)?)?;
    let objects = Objects(list["items"].as_array().context("no list")?);
    objects.check_roles()?;
    objects.check_flavor()?;
    objects.check_workloads(base)?;
    if objects.of("MutatingWebhookConfiguration").next().is_some() {
        objects.check_webhooks()?;
    }
    if objects.of("Certificate").next().is_some() {
        objects.check_certificates()?;
    }
    if base == "overlays/legacy-guide" {
        objects.check_names_of_the_guide()?;
    }
    Ok(())
}

/// What was built, as the API server would keep it.
struct Objects<'a>(&'a [Value]);

impl Objects<'_> {
    fn of(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    fn named(&self, kind: &str, namespace: &Value, name: &Value) -> Result<&Value> {
        let is_it =
            |object: &&Value| object["metadata"]["name"] == *name && object["metadata"]["namespace"] == *namespace;
        self.of(kind).find(is_it).with_context(|| format!("there is no {kind} {namespace}/{name}"))
    }

    /// Whoever is given a role, and the role, are there.
    fn check_roles(&self) -> Result<()> {
        for binding in self.of("ClusterRoleBinding").chain(self.of("RoleBinding")) {
            let role = binding["roleRef"]["kind"].as_str().context("a binding to nothing")?;
            let namespace = if role == "Role" { &binding["metadata"]["namespace"] } else { &Value::Null };
            self.named(role, namespace, &binding["roleRef"]["name"])?;
            for subject in binding["subjects"].as_array().context("a binding for nobody")? {
                self.named("ServiceAccount", &subject["namespace"], &subject["name"])?;
            }
        }
        Ok(())
    }

    /// The pods are those of the overlay, of accounts that are there, in the mode of the API group, and with webhooks where there is a
    /// configuration for them.
    fn check_workloads(&self, base: &str) -> Result<()> {
        let workloads: Vec<_> = self.of("Deployment").chain(self.of("DaemonSet")).collect();
        let names: Vec<_> = workloads.iter().filter_map(|workload| workload["metadata"]["name"].as_str()).collect();
        let expected: &[&str] = match base {
            base if WITHOUT_PODS.contains(&base) => &[],
            "overlays/lvmd" => &["topolvm-controller", "topolvm-lvmd", "topolvm-node"],
            _ => &["topolvm-controller", "topolvm-node"],
        };
        ensure!(names == expected, "{names:?}");
        let driver = self.of("CSIDriver").next().context("no CSIDriver")?["metadata"]["name"].to_string();
        for workload in workloads {
            let pod = &workload["spec"]["template"]["spec"];
            let program = &pod["containers"][0];
            if pod["automountServiceAccountToken"] == json!(false) {
                continue;
            }
            self.named("ServiceAccount", &workload["metadata"]["namespace"], &pod["serviceAccountName"])?;
            let legacy = program["env"].to_string().contains("USE_LEGACY");
            ensure!(legacy == driver.contains("cybozu"), "{program}");
            if program["name"] == json!("topolvm-controller") {
                let serves = program["args"].to_string().contains("--enable-webhooks");
                ensure!(serves == self.webhooks().next().is_some(), "{program}");
            } else {
                ensure!(program["args"].to_string().contains(driver.trim_matches('"')), "{program}");
            }
        }
        Ok(())
    }

    /// The driver, the definition, the roles and the webhooks are of one API group. Storage capacity is tracked where no webhook writes the
    /// resource that only the extender understands.
    fn check_flavor(&self) -> Result<()> {
        let driver = self.of("CSIDriver").next().context("no CSIDriver")?;
        let group = driver["metadata"]["name"].as_str().context("a driver without a name")?;
        let other = if group == "topolvm.io" { "topolvm.cybozu.com" } else { "topolvm.io" };
        let definition = json!(format!("logicalvolumes.{group}"));
        self.named("CustomResourceDefinition", &Value::Null, &definition)?;
        let roles: Vec<&Value> = self.of("ClusterRole").filter_map(|role| role["rules"].as_array()).flatten().collect();
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

    /// Pods may be deleted where claims get the finalizer, and nowhere else.
    fn check_deletion_of_pods(&self, rules: &[&Value]) -> Result<()> {
        let deletes = |rule: &&&Value| {
            let has = |list: &Value, what: &str| list.as_array().is_some_and(|list| list.contains(&json!(what)));
            has(&rule["resources"], "pods") && has(&rule["verbs"], "delete")
        };
        let has_finalizer = self.webhooks().any(|webhook| webhook["clientConfig"]["service"]["path"] == "/pvc/mutate");
        let may_delete = rules.iter().any(|rule| deletes(&rule));
        ensure!(may_delete == has_finalizer, "pods may be deleted: {may_delete}, finalizers: {has_finalizer}");
        Ok(())
    }

    fn webhooks(&self) -> impl Iterator<Item = &Value> {
        self.of("MutatingWebhookConfiguration").filter_map(|object| object["webhooks"].as_array()).flatten()
    }

    /// Each webhook is called through a Service that leads to the controller.
    fn check_webhooks(&self) -> Result<()> {
        for webhook in self.webhooks() {
            let called = &webhook["clientConfig"]["service"];
            let service = self.named("Service", &called["namespace"], &called["name"])?;
            let ports = service["spec"]["ports"].as_array().context("no ports")?;
            let port = ports.iter().find(|port| port["port"] == called["port"]).context("no such port")?;
            ensure!(port["targetPort"] == WEBHOOK_PORT, "{service}");
            self.check_policy(service)?;
            ensure!(["/pod/mutate", "/pvc/mutate"].map(Value::from).contains(&called["path"]), "{called}");
            let name = webhook["name"].as_str().unwrap_or_default();
            ensure!(name.starts_with("pod-hook.") == (called["path"] == "/pod/mutate"), "{webhook}");
        }
        Ok(())
    }

    /// The policy is for the pods behind the Service, and lets the webhooks, the metrics and the probes be reached.
    fn check_policy(&self, service: &Value) -> Result<()> {
        let metadata = &service["metadata"];
        let policy = &self.named("NetworkPolicy", &metadata["namespace"], &metadata["name"])?["spec"];
        ensure!(policy["podSelector"]["matchLabels"] == service["spec"]["selector"], "{policy}");
        let rules = policy["ingress"].as_array().context("nothing is let in")?;
        let ports: Vec<&Value> = rules.iter().filter_map(|rule| rule["ports"].as_array()).flatten().collect();
        for wanted in [WEBHOOK_PORT, 8080, 8081, 9808] {
            let is_open = |port: &&&Value| {
                let first = port["port"].as_u64().unwrap_or(0);
                (first..=port["endPort"].as_u64().unwrap_or(first)).contains(&wanted)
            };
            ensure!(ports.iter().any(|port| is_open(&port)), "port {wanted} cannot be reached: {policy}");
        }
        Ok(())
    }

    /// What a Deployment, a DaemonSet and Certificates of the old guide refer to has the name that they say, and
    /// nothing has ours beside it.
    fn check_names_of_the_guide(&self) -> Result<()> {
        let mut accounts: Vec<&Value> = self.of("ServiceAccount").map(|account| &account["metadata"]["name"]).collect();
        accounts.sort_by_key(|name| name.as_str());
        ensure!(accounts == ["controller", "node"], "{accounts:?}");
        let services: Vec<&Value> = self.of("Service").collect();
        let [service] = services[..] else { anyhow::bail!("{services:?}") };
        ensure!(service["metadata"]["name"] == "controller", "{service}");
        ensure!(service["spec"]["selector"] == json!({"app.kubernetes.io/name": "controller"}), "{service}");
        let hook = self.of("MutatingWebhookConfiguration").next().context("no configuration")?;
        let from = &hook["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
        ensure!(from == "topolvm-system/mutatingwebhook", "{hook}");
        let policy = self.of("ValidatingAdmissionPolicy").next().context("no policy")?;
        let agents = policy["spec"]["matchConditions"][0]["expression"].as_str().unwrap_or_default();
        ensure!(agents.ends_with("'system:serviceaccount:topolvm-system:node'"), "{agents}");
        Ok(())
    }

    /// The authority that is injected is that of a certificate for the Service, and it is kept where the documents tell to mount it.
    fn check_certificates(&self) -> Result<()> {
        let configuration = self.of("MutatingWebhookConfiguration").next().context("no configuration")?;
        let from = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"].as_str();
        let (namespace, name) = from.and_then(|from| from.split_once('/')).context("no authority is injected")?;
        let certificate = self.named("Certificate", &json!(namespace), &json!(name))?;
        ensure!(certificate["spec"]["secretName"] == cert_manager::MOUNTED, "{certificate}");
        let names = certificate["spec"]["dnsNames"].as_array().context("a certificate without names")?;
        for webhook in self.webhooks() {
            let called = &webhook["clientConfig"]["service"];
            let host = [&called["name"], &called["namespace"]].map(|part| part.as_str().unwrap_or_default());
            ensure!(names.contains(&json!(format!("{}.svc", host.join(".")))), "{host:?} is none of {names:?}");
            ensure!(called["namespace"] == certificate["metadata"]["namespace"], "{certificate}");
        }
        for certificate in self.of("Certificate") {
            let issuer = &certificate["spec"]["issuerRef"]["name"];
            self.named("Issuer", &certificate["metadata"]["namespace"], issuer)?;
        }
        Ok(())
    }
}
