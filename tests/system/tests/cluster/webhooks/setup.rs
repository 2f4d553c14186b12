//! A control plane whose API server calls the webhooks. It has no nodes, because no pod has to run.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use system_tests::kustomization::{Kustomization, patch};
use system_tests::manifests::webhook_endpoints;
use testbed::cluster::{Cluster, ClusterSpec};
use testbed::failure::WithState as _;
use testbed::network::GATEWAY;
use testbed::suite;
use testbed::topolvm::{self, TopolvmSpec};

/// Namespace of the product.
pub(super) const NAMESPACE: &str = "topolvm-system";
/// Server name by which the API server calls the webhooks, and which their certificate must have.
pub(super) const SERVER: &str = "topolvm-controller.topolvm-system.svc";
/// Name of the Secret with the self-managed certificate of the controllers.
pub(super) const SECRET: &str = "topolvm-webhook-certificate";
/// Name of the StorageClass in `deploy/manifests/base/storageclass.yaml`.
pub(super) const CLASS: &str = "topolvm-provisioner";
/// Name of the process of a second replica.
pub(super) const SECOND: &str = "topolvm-controller-2";

/// A control plane, and a directory for the files of a test.
pub(super) struct Setup {
    pub(super) cluster: Cluster,
    pub(super) scratch: PathBuf,
}

/// Returns a test with a separate control plane.
pub(super) fn test(name: &str, body: fn(&Setup) -> Result<()>) -> Trial {
    suite::test(name, move || run_test(body))
}

fn run_test(body: fn(&Setup) -> Result<()>) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("topolvm-webhooks-").tempdir_in("/var/tmp")?;
    let cluster = Cluster::up(&directory.path().join("c"), &ClusterSpec::default())?;
    let setup = Setup { cluster, scratch: directory.path().to_owned() };
    let result = body(&setup).with_state(|| setup.logs());
    setup.cluster.down(None)?;
    result
}

impl Setup {
    /// Returns the specification of a controller without sidecars with these further arguments, and the manifests that
    /// users apply for an overlay, with the finalizer of claims. The controllers are not pods here, so their Service
    /// needs their addresses.
    pub(super) fn spec(&self, overlay: &str, endpoints: &[Ipv4Addr], arguments: &[&str]) -> Result<TopolvmSpec> {
        let mut spec = TopolvmSpec::nodes(0)?;
        spec.manifests = self.scratch.join(overlay);
        write_manifests(&spec.manifests, overlay, endpoints)?;
        spec.embeds_controllers = false;
        spec.controller_arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Ok(spec)
    }

    /// Returns the specification with one controller, or a server in front of it, on the usual port.
    pub(super) fn usual_spec(&self, overlay: &str, arguments: &[&str]) -> Result<TopolvmSpec> {
        self.spec(overlay, &[GATEWAY], arguments)
    }

    /// Creates an object and returns it as the API server stored it.
    pub(super) fn create(&self, object: &Value, flags: &[&str]) -> Result<Value> {
        let file = self.scratch.join("object.json");
        fs::write(&file, object.to_string())?;
        let file = file.to_string_lossy();
        let arguments = ["create", "-o", "json", "-f", &file].into_iter().chain(flags.iter().copied());
        Ok(serde_json::from_str(&self.cluster.kubectl_ok(arguments)?)?)
    }

    /// Creates an object with `--dry-run=server` and returns it as the API server would store it.
    pub(super) fn dry_run_create(&self, object: &Value) -> Result<Value> {
        self.create(object, &["--dry-run=server"])
    }

    /// Reads an object, or a list of them.
    pub(super) fn get(&self, what: &[&str]) -> Result<Value> {
        let arguments = ["get", "-o", "json"].iter().chain(what);
        serde_json::from_str(&self.cluster.kubectl_ok(arguments)?).context("kubectl prints no JSON")
    }

    /// Returns the certificate, PEM, that a controller at this address serves to a client that trusts only the
    /// authorities in the file.
    pub(super) fn served_certificate(&self, address: IpAddr, port: u16, authorities: &Path) -> Result<String> {
        let mut command = self.cluster.command("curl");
        command.args(["--silent", "--show-error", "--max-time", "10", "--output", "/dev/null"]).arg("--cacert");
        command.arg(authorities).arg("--resolve").arg(format!("{SERVER}:{port}:{address}"));
        // A GET is answered with 405; only the certificate is checked
        command.args(["--write-out", "%{http_code} %{certs}"]);
        let output = command.arg(format!("https://{SERVER}:{port}/pod/mutate")).output().context("run curl")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let certificate = said.strip_prefix("405 ").and_then(pem);
        certificate.with_context(|| format!("{address}: {said} {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Returns the logs of all programs of the product.
    fn logs(&self) -> String {
        let names = [topolvm::CONTROLLER, SECOND];
        let logs = names.map(|name| fs::read_to_string(self.cluster.log(name)).unwrap_or_default());
        format!("log of the controllers:\n{}", logs.join("\n"))
    }
}

/// Returns the first certificate in a text without line breaks, which differ between programs.
pub(super) fn pem(text: &str) -> Option<String> {
    let (_, text) = text.split_once("-----BEGIN CERTIFICATE-----")?;
    let (text, _) = text.split_once("-----END CERTIFICATE-----")?;
    Some(text.split_whitespace().collect())
}

fn write_manifests(directory: &Path, overlay: &str, endpoints: &[Ipv4Addr]) -> Result<()> {
    let without_selector = json!([{"op": "remove", "path": "/spec/selector"}]);
    // This one has it
    let components: &[&str] = if overlay == "legacy-extender" { &[] } else { &["pvc-finalizer"] };
    let kustomization = Kustomization {
        base: &format!("overlays/{overlay}"),
        components,
        resources: &["endpoints.yaml"],
        patches: vec![patch("Service", Some("topolvm-controller"), &without_selector)],
    };
    kustomization.write(directory)?;
    fs::write(directory.join("endpoints.yaml"), webhook_endpoints(endpoints)).context("write the endpoints")
}
