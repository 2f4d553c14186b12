//! Checks that the webhooks of a kustomization are called where a controller serves them, with a certificate that is
//! created.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Objects, WEBHOOK_PORT, cert_manager};

impl Objects<'_> {
    pub(super) fn webhooks(&self) -> impl Iterator<Item = &Value> {
        self.of_kind("MutatingWebhookConfiguration").filter_map(|object| object["webhooks"].as_array()).flatten()
    }

    /// Checks that each webhook is called through a Service that leads to the controller.
    pub(super) fn check_webhooks(&self) -> Result<()> {
        for webhook in self.webhooks() {
            let called = &webhook["clientConfig"]["service"];
            let service = self.find("Service", &called["namespace"], &called["name"])?;
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

    /// Checks that the NetworkPolicy is for the pods behind the Service, and admits the webhooks, the metrics and the
    /// probes.
    fn check_policy(&self, service: &Value) -> Result<()> {
        let metadata = &service["metadata"];
        let policy = &self.find("NetworkPolicy", &metadata["namespace"], &metadata["name"])?["spec"];
        ensure!(policy["podSelector"]["matchLabels"] == service["spec"]["selector"], "{policy}");
        let rules = policy["ingress"].as_array().context("nothing is let in")?;
        let ports: Vec<&Value> = rules.iter().filter_map(|rule| rule["ports"].as_array()).flatten().collect();
        for wanted in [WEBHOOK_PORT, 8080, 8081, 9809, 9811] {
            let is_open = |port: &&&Value| {
                let first = port["port"].as_u64().unwrap_or(0);
                (first..=port["endPort"].as_u64().unwrap_or(first)).contains(&wanted)
            };
            ensure!(ports.iter().any(|port| is_open(&port)), "port {wanted} cannot be reached: {policy}");
        }
        Ok(())
    }

    /// Checks the names of objects to which the Deployment, the DaemonSet and the Certificates of TopoLVM's guide
    /// refer, and that no objects with our names exist in addition.
    pub(super) fn check_names_of_the_guide(&self) -> Result<()> {
        let mut accounts: Vec<&Value> =
            self.of_kind("ServiceAccount").map(|account| &account["metadata"]["name"]).collect();
        accounts.sort_by_key(|name| name.as_str());
        ensure!(accounts == ["controller", "node"], "{accounts:?}");
        let services: Vec<&Value> = self.of_kind("Service").collect();
        let [service] = services[..] else { anyhow::bail!("{services:?}") };
        ensure!(service["metadata"]["name"] == "controller", "{service}");
        ensure!(service["spec"]["selector"] == json!({"app.kubernetes.io/name": "controller"}), "{service}");
        let hook = self.of_kind("MutatingWebhookConfiguration").next().context("no configuration")?;
        let from = &hook["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
        ensure!(from == "topolvm-system/mutatingwebhook", "{hook}");
        for (policy, account) in
            [("topolvm-node-changes-its-own-only", "node"), ("topolvm-controller-changes-its-own-only", "controller")]
        {
            let policy = self.find("ValidatingAdmissionPolicy", &Value::Null, &json!(policy))?;
            let user = policy["spec"]["matchConditions"][0]["expression"].as_str().unwrap_or_default();
            ensure!(user.ends_with(&format!("'system:serviceaccount:topolvm-system:{account}'")), "{user}");
        }
        Ok(())
    }

    /// Checks that the authority that is injected is that of a certificate for the Service, in the Secret that is
    /// mounted in the documentation.
    pub(super) fn check_certificates(&self) -> Result<()> {
        let configuration = self.of_kind("MutatingWebhookConfiguration").next().context("no configuration")?;
        let from = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"].as_str();
        let (namespace, name) = from.and_then(|from| from.split_once('/')).context("no authority is injected")?;
        let certificate = self.find("Certificate", &json!(namespace), &json!(name))?;
        ensure!(certificate["spec"]["secretName"] == cert_manager::MOUNTED, "{certificate}");
        let names = certificate["spec"]["dnsNames"].as_array().context("a certificate without names")?;
        for webhook in self.webhooks() {
            let called = &webhook["clientConfig"]["service"];
            let host = [&called["name"], &called["namespace"]].map(|part| part.as_str().unwrap_or_default());
            ensure!(names.contains(&json!(format!("{}.svc", host.join(".")))), "{host:?} is none of {names:?}");
            ensure!(called["namespace"] == certificate["metadata"]["namespace"], "{certificate}");
        }
        for certificate in self.of_kind("Certificate") {
            let issuer = &certificate["spec"]["issuerRef"]["name"];
            self.find("Issuer", &certificate["metadata"]["namespace"], issuer)?;
        }
        Ok(())
    }
}
