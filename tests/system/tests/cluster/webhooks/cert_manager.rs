//! Webhooks with certificates of cert-manager, which the test emulates: it reads the objects of
//! `overlays/extender-cert-manager` and issues the requested certificates.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::manifests::{VolumeMode, claim, pod};
use testbed::network::GATEWAY;
use testbed::pki::{Identity, Pki};
use testbed::topolvm::{self, CONTROLLER};

use super::relay::Relay;
use super::setup::{CLASS, NAMESPACE, Setup, pem};

/// Name of the Secret that is mounted at `--cert-dir` in the documentation.
pub(super) const MOUNTED: &str = "topolvm-mutatingwebhook";
/// Port of the controller; the Service leads to a relay.
const PORT: u16 = 9444;
/// Timeout for the controller to notice changed files.
const LIMIT: Duration = Duration::from_mins(1);

/// Creates the CustomResourceDefinitions of cert-manager with those of their fields that are in use here. Others are
/// refused, so that typos are found.
pub(super) fn define_kinds(setup: &Setup) -> Result<()> {
    let text = json!({"type": "string"});
    let object =
        |required: &[&str], fields: Value| json!({"type": "object", "required": required, "properties": fields});
    let reference = object(&["name"], json!({"name": text, "kind": text, "group": text}));
    let texts = |of: &Value| json!({"type": "array", "items": of});
    let issuer = object(
        &[],
        json!({
            "selfSigned": {"type": "object"},
            "ca": object(&["secretName"], json!({"secretName": text})),
        }),
    );
    let certificate = object(
        &["issuerRef", "secretName"],
        json!({
            "secretName": text, "duration": text, "issuerRef": reference, "commonName": text,
            "isCA": {"type": "boolean"}, "dnsNames": texts(&text),
            "usages": texts(&json!({
                "type": "string", "enum": ["digital signature", "key encipherment", "server auth"],
            })),
        }),
    );
    for (kind, spec) in [("Issuer", issuer), ("Certificate", certificate)] {
        let plural = format!("{}s", kind.to_lowercase());
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.cert-manager.io")},
            "spec": {
                "group": "cert-manager.io", "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural},
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": object(&["spec"], json!({"spec": spec}))},
                }],
            },
        });
        setup.cluster.apply(&definition.to_string())?;
    }
    setup.cluster.kubectl_ok(["wait", "--for=condition=Established", "--timeout=180s", "crd", "--all"]).map(drop)
}

pub(super) fn serve_certificates(setup: &Setup) -> Result<()> {
    define_kinds(setup)?;
    let mount = Mount { setup, directory: setup.scratch.join("certs") };
    fs::create_dir(&mount.directory)?;
    let certificates = format!("--cert-dir={}", mount.directory.display());
    let listen = format!("--webhook-addr=:{PORT}");
    let spec = setup.usual_spec("extender-cert-manager", &[&certificates, &listen, "--pvc-finalizer"])?;
    topolvm::start(&setup.cluster, &[], &spec)?;
    wait_readiness(setup, "503 waiting for the certificate of the webhooks")?;
    let [at, to] = [9443, PORT].map(|port| (IpAddr::V4(GATEWAY), port).into());
    let relay = Relay::start(setup.cluster.netns(), at, to)?;

    let mut manager = CertManager::new(setup);
    manager.issue("first")?;
    let first = mount.exchange("..1")?;
    manager.inject()?;
    let data = claim("data", CLASS, "3Gi", VolumeMode::Filesystem);
    // Refused until the API server has received the authority
    setup.cluster.ready(CONTROLLER, || setup.create(&data, &[]))?;
    call(setup)?;
    ensure!(mount.is_served(&first)?, "another certificate than that of the Secret is served");
    wait_readiness(setup, "200")?;

    // By the same authority, as almost all renewals are: nothing is refused, before kubelet has exchanged the files and
    // after
    manager.issue("first")?;
    manager.inject()?;
    call(setup).context("after cert-manager has renewed the certificate")?;
    let (connections, second) = (relay.cut()?, mount.exchange("..2")?);
    ensure!(second != first, "it is the same certificate");
    let end = Instant::now() + LIMIT;
    let mut calls = 0;
    let mut is_served = false;
    while !is_served {
        ensure!(Instant::now() < end, "the new certificate is not served");
        is_served = mount.is_served(&second)?;
        call(setup).context("while the certificate is exchanged")?;
        calls += 1;
        let now = relay.cut()?;
        ensure!(now >= connections + calls, "the API server has used a connection again: {now}");
    }

    // By another one: refused until kubelet has exchanged the files, without a restart
    manager.issue("second")?;
    manager.inject()?;
    setup.cluster.ready(CONTROLLER, || {
        relay.cut()?;
        let refused = call(setup).err().context("the authority before it is still trusted")?;
        ensure!(format!("{refused:#}").contains("failed to verify certificate"), "{refused:#}");
        Ok(())
    })?;
    let third = mount.exchange("..3")?;
    setup.cluster.ready(CONTROLLER, || {
        relay.cut()?;
        call(setup)
    })?;
    ensure!(mount.is_served(&third)? && third != second, "the certificate of the new authority is not served");
    Ok(())
}

/// Creates a pod with dry run. The change of the webhook shows in it, so that this has been called.
fn call(setup: &Setup) -> Result<()> {
    let user = setup.dry_run_create(&pod("user", "data", VolumeMode::Filesystem))?;
    let resources = &user["spec"]["containers"][0]["resources"]["requests"];
    ensure!(*resources == json!({"topolvm.io/capacity": "1"}), "{user}");
    Ok(())
}

/// Waits until `/readyz` answers with this status and this text at its beginning.
fn wait_readiness(setup: &Setup, wanted: &str) -> Result<()> {
    let url = "http://127.0.0.1:8081/readyz";
    setup.cluster.ready(CONTROLLER, || {
        let mut command = setup.cluster.command("curl");
        command.args(["--silent", "--max-time", "10", "--write-out", "\n%{http_code}", url]);
        let said = String::from_utf8(command.output().context("run curl")?.stdout)?;
        let (text, status) = said.rsplit_once('\n').context("curl says nothing")?;
        let said = format!("{status} {text}");
        ensure!(said.starts_with(wanted), "{said:?} and not {wanted:?}");
        Ok(())
    })
}

/// Plays cert-manager with its cainjector.
struct CertManager<'a> {
    setup: &'a Setup,
    /// Authorities by the Secret in which they are stored and their generation.
    authorities: BTreeMap<(String, String), Pki>,
}

impl<'a> CertManager<'a> {
    fn new(setup: &'a Setup) -> Self {
        Self { setup, authorities: BTreeMap::new() }
    }

    /// Issues all certificates that are requested, with the authorities of this generation.
    fn issue(&mut self, generation: &str) -> Result<()> {
        let list = self.setup.get(&["certificates.cert-manager.io", "-n", NAMESPACE])?;
        let (authorities, others): (Vec<&Value>, Vec<&Value>) =
            list["items"].as_array().context("no list")?.iter().partition(|asked| asked["spec"]["isCA"] == true);
        for asked in authorities {
            ensure!(self.issuer(asked)?["selfSigned"] == json!({}), "an authority without an issuer: {asked}");
            let secret = text(&asked["spec"]["secretName"])?;
            if let Entry::Vacant(entry) = self.authorities.entry((secret.clone(), generation.to_owned())) {
                let directory = self.setup.scratch.join(format!("{secret}-{generation}"));
                fs::create_dir(&directory)?;
                let authority = entry.insert(Pki::create(&directory)?);
                write_secret(self.setup, &secret, &Identity::read(&directory, "ca")?, authority.authority())?;
            }
        }
        for asked in others {
            let signer = text(&self.issuer(asked)?["ca"]["secretName"])?;
            let authority = self.authorities.get(&(signer, generation.to_owned())).context("no authority signs it")?;
            let names = asked["spec"]["dnsNames"].as_array().into_iter().flatten();
            let names: Vec<&str> = names.filter_map(Value::as_str).collect();
            let issued = authority.server("", None, &names, &[])?;
            write_secret(self.setup, &text(&asked["spec"]["secretName"])?, &issued, authority.authority())?;
        }
        Ok(())
    }

    /// Returns the spec of the issuer of a certificate.
    fn issuer(&self, asked: &Value) -> Result<Value> {
        let name = text(&asked["spec"]["issuerRef"]["name"])?;
        Ok(self.setup.get(&["issuers.cert-manager.io", &name, "-n", NAMESPACE])?["spec"].take())
    }

    /// Writes authorities into the webhook configurations that request them.
    fn inject(&self) -> Result<()> {
        let list = self.setup.get(&["mutatingwebhookconfigurations"])?;
        for configuration in list["items"].as_array().into_iter().flatten() {
            let from = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"].as_str();
            let Some((namespace, name)) = from.and_then(|from| from.split_once('/')) else { continue };
            let certificate = self.setup.get(&["certificates.cert-manager.io", name, "-n", namespace])?;
            let secret = self.setup.get(&["secret", &text(&certificate["spec"]["secretName"])?, "-n", namespace])?;
            let count = configuration["webhooks"].as_array().map_or(0, Vec::len);
            let operations = (0..count).map(|index| {
                let path = format!("/webhooks/{index}/clientConfig/caBundle");
                json!({"op": "add", "path": path, "value": secret["data"]["ca.crt"]})
            });
            let patch = operations.collect::<Value>().to_string();
            let name = text(&configuration["metadata"]["name"])?;
            self.setup.cluster.kubectl_ok([
                "patch",
                "mutatingwebhookconfiguration",
                &name,
                "--type=json",
                "-p",
                &patch,
            ])?;
        }
        Ok(())
    }
}

fn text(value: &Value) -> Result<String> {
    value.as_str().map(str::to_owned).context("it is not said")
}

/// Writes a certificate into a Secret as cert-manager does.
pub(super) fn write_secret(setup: &Setup, secret: &str, issued: &Identity, authority: &str) -> Result<()> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": secret, "namespace": NAMESPACE},
        "stringData": {"tls.crt": issued.certificate, "tls.key": issued.key, "ca.crt": authority},
    });
    setup.cluster.apply(&secret.to_string()).map(drop)
}

/// A volume of the Secret [`MOUNTED`], as kubelet creates it for the pod of a controller.
struct Mount<'a> {
    setup: &'a Setup,
    directory: PathBuf,
}

impl Mount<'_> {
    /// Writes the Secret's data into a separate directory, and points the link `..data` to it in one step. Returns the
    /// certificate.
    fn exchange(&self, version: &str) -> Result<String> {
        let content = self.directory.join(version);
        fs::create_dir(&content)?;
        for name in ["tls.crt", "tls.key", "ca.crt"] {
            let format = format!("go-template={{{{index .data \"{name}\" | base64decode}}}}");
            let value = self.setup.cluster.kubectl_ok(["get", "secret", MOUNTED, "-n", NAMESPACE, "-o", &format])?;
            fs::write(content.join(name), value)?;
        }
        let [new, data] = ["..data_tmp", "..data"].map(|name| self.directory.join(name));
        symlink(version, &new)?;
        fs::rename(new, data)?;
        for name in ["tls.crt", "tls.key", "ca.crt"] {
            let link = self.directory.join(name);
            if !link.is_symlink() {
                symlink(format!("..data/{name}"), link)?;
            }
        }
        pem(&fs::read_to_string(content.join("tls.crt"))?).context("no certificate in the Secret")
    }

    /// Returns true if the controller serves this certificate to a client that trusts the authority in the Secret that
    /// was mounted last.
    fn is_served(&self, certificate: &str) -> Result<bool> {
        let served = self.setup.served_certificate(IpAddr::V4(GATEWAY), PORT, &self.directory.join("ca.crt"))?;
        Ok(served == certificate)
    }
}
