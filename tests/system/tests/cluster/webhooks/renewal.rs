//! Automatic renewal of two replicas' certificate while the API server calls them, each time over a new connection. The
//! Secret is one of an earlier version, whose authority cannot sign any more.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use system_tests::manifests::{VolumeMode, claim, pod};
use testbed::pki::Pki;
use testbed::topolvm::{self, CONTROLLER};
use tokio::runtime;
use tokio::time::{MissedTickBehavior, interval};

use super::cert_manager::write_secret;
use super::relay::Relay;
use super::setup::{CLASS, NAMESPACE, SECOND, SECRET, SERVER, Setup, pem};

/// Addresses of the replicas in the Service's endpoints. They are reserved for documentation (RFC 5737).
const REPLICAS: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
/// Port of the relays, to which the Service leads, and that of the replicas.
const PORTS: [u16; 2] = [9443, 9444];
/// Number of certificates that must be served: the first one of the new authority, and two renewed ones.
const CERTIFICATES: usize = 3;
/// Timeout: a certificate of a minute is renewed after two thirds of that, twice; then the earlier authority is
/// removed.
const LIMIT: Duration = Duration::from_mins(4);
/// Number of refused calls at which the test ends.
const ENOUGH: usize = 20;
/// Interval of the requests for a pod and a claim.
const PACE: Duration = Duration::from_millis(200);

pub(super) fn renew_certificate(setup: &Setup) -> Result<()> {
    let former = leave_former_secret(setup)?;
    let relays = start_replicas(setup)?;
    setup.cluster.ready(CONTROLLER, || setup.create(&claim("data", CLASS, "3Gi", VolumeMode::Filesystem), &[]))?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { Callers::new(setup, setup.cluster.client().await?, relays).run(&former).await })
}

/// Creates the Secret as an earlier version left it, with an authority whose private key is lost. Returns the
/// authority.
fn leave_former_secret(setup: &Setup) -> Result<String> {
    setup.cluster.kubectl_ok(["create", "namespace", NAMESPACE])?;
    let directory = setup.scratch.join("former");
    fs::create_dir(&directory)?;
    let former = Pki::create(&directory)?;
    let served = former.server("", None, &[SERVER, &format!("{SERVER}.cluster.local")], &[])?;
    write_secret(setup, SECRET, &served, former.authority())?;
    pem(former.authority()).context("no authority")
}

/// Starts two replicas, each behind a relay.
fn start_replicas(setup: &Setup) -> Result<[Relay; 2]> {
    let cluster = &setup.cluster;
    for address in REPLICAS {
        let address = format!("{address}/32");
        let status = cluster.command("ip").args(["address", "add", &address, "dev", "lo"]).status()?;
        ensure!(status.success(), "ip address add {address}: {status}");
    }
    let namespace = format!("--webhook-namespace={NAMESPACE}");
    // The shortest lifetime, so that API servers get five seconds to receive a new authority
    let common = ["--enable-webhooks", "--pvc-finalizer", "--webhook-certificate-lifetime=1m", &namespace];
    let listen = |address| format!("--webhook-addr={address}:{}", PORTS[1]);
    let mut spec = setup.spec("extender", &REPLICAS, &common)?;
    let mut second = spec.clone();
    spec.controller_arguments.push(listen(REPLICAS[0]));
    topolvm::start(cluster, &[], &spec)?;

    second.controller_arguments.push(listen(REPLICAS[1]));
    second.controller_arguments.extend(["--metrics-bind-address=", "--health-probe-bind-address="].map(str::to_owned));
    let socket = cluster.directory().join("controller/second.sock");
    cluster.spawn(SECOND, &topolvm::controller_command(cluster, &second, &socket)?)?;
    cluster.ready(SECOND, || UnixStream::connect(&socket).context("no socket yet"))?;

    let relay = |address| {
        let [at, to] = PORTS.map(|port| (IpAddr::V4(address), port).into());
        Relay::start(cluster.netns(), at, to)
    };
    Ok([relay(REPLICAS[0])?, relay(REPLICAS[1])?])
}

/// Callers of the webhooks: the API server on behalf of a client that creates pods and claims, and one that calls each
/// replica directly and trusts the bundle in the configuration at that moment.
struct Callers<'a> {
    setup: &'a Setup,
    relays: [Relay; 2],
    authorities: PathBuf,
    pods: Api<Pod>,
    claims: Api<PersistentVolumeClaim>,
    configurations: Api<MutatingWebhookConfiguration>,
    secrets: Api<Secret>,
    /// Certificates that each replica has served, in this order.
    served: [Vec<String>; 2],
    /// Certificates in the Secret, in this order.
    kept: Vec<String>,
    /// Number of calls by the API server.
    calls: usize,
    refused: Vec<String>,
}

impl<'a> Callers<'a> {
    fn new(setup: &'a Setup, client: Client, relays: [Relay; 2]) -> Self {
        Self {
            setup,
            relays,
            authorities: setup.scratch.join("authorities.crt"),
            pods: Api::default_namespaced(client.clone()),
            claims: Api::default_namespaced(client.clone()),
            configurations: Api::all(client.clone()),
            secrets: Api::namespaced(client, NAMESPACE),
            served: [const { Vec::new() }; 2],
            kept: Vec::new(),
            calls: 0,
            refused: Vec::new(),
        }
    }

    async fn run(mut self, former: &str) -> Result<()> {
        let began = Instant::now();
        let bundle = self.read_bundle().await?;
        ensure!(
            authorities(&bundle).iter().any(|trusted| trusted == former),
            "the authority of the earlier version is not trusted: {bundle}"
        );
        fs::write(&self.authorities, bundle)?;
        for address in REPLICAS {
            // A Service does not lead to a replica that is not ready
            self.setup
                .cluster
                .ready(CONTROLLER, || self.setup.served_certificate(address.into(), PORTS[1], &self.authorities))?;
        }
        let mut tick = interval(PACE);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut most = 0;
        // Until both replicas have served the certificates of the Secret, and the authority of the earlier version is
        // no longer trusted
        let (bundle, cut) = loop {
            ensure!(self.refused.len() < ENOUGH, "{}, refused: {:#?}", self.sum(), self.refused);
            ensure!(began.elapsed() < LIMIT, "not renewed: {}, refused: {:#?}", self.sum(), self.refused);
            tick.tick().await;
            self.call_by_api_server().await;
            let bundle = self.read_bundle().await?;
            self.call_directly(&bundle)?;
            self.read_secret().await?;
            let cut = [self.relays[0].cut()?, self.relays[1].cut()?];
            let trusted = authorities(&bundle);
            most = most.max(trusted.len());
            let [one, other, kept] = [&self.served[0], &self.served[1], &self.kept].map(|seen| last_certificates(seen));
            if one == other
                && one == kept
                && one.len() == CERTIFICATES
                && !trusted.iter().any(|trusted| trusted == former)
            {
                break (bundle, cut);
            }
        };
        eprintln!("renewal: {:?}, {cut:?} connections, at most {most} authorities: {}", began.elapsed(), self.sum());
        ensure!(self.refused.is_empty(), "refused: {:#?}", self.refused);
        ensure!(most <= 3, "{most} authorities were trusted at a time");
        // Each call had a separate connection, and the API server selects a replica at random
        ensure!(cut.iter().sum::<usize>() >= self.calls, "{cut:?} connections for {} calls", self.calls);
        ensure!(cut.iter().all(|connections| *connections > self.calls / 10), "{cut:?} of {}", self.calls);
        let secret = self.secrets.get(SECRET).await?;
        let known = text(&secret, "ca.crt")?;
        ensure!(authorities(&bundle).iter().all(|trusted| authorities(&known).contains(trusted)), "{bundle}\n{known}");
        Ok(())
    }

    /// Creates a pod and a claim with dry run. Each shows the change of its webhook, so that this has been called.
    async fn call_by_api_server(&mut self) {
        let trying = PostParams { dry_run: true, ..PostParams::default() };
        self.calls += 2;
        let made = async {
            let user = serde_json::from_value(pod("user", "data", VolumeMode::Filesystem))?;
            let user = self.pods.create(&trying, &user).await.context("a pod")?;
            let annotations = user.metadata.annotations.unwrap_or_default();
            ensure!(annotations.contains_key("capacity.topolvm.io/00default"), "the pod was not changed");
            let claim = serde_json::from_value(claim("another", CLASS, "3Gi", VolumeMode::Filesystem))?;
            let claim = self.claims.create(&trying, &claim).await.context("a claim")?;
            let finalizers = claim.metadata.finalizers.unwrap_or_default();
            ensure!(finalizers.iter().any(|entry| entry == "topolvm.io/pvc"), "the claim was not changed");
            Ok(())
        };
        if let Err(error) = made.await {
            self.refused.push(format!("{error:#}"));
        }
    }

    fn call_directly(&mut self, bundle: &str) -> Result<()> {
        fs::write(&self.authorities, bundle)?;
        for (address, seen) in REPLICAS.into_iter().zip(&mut self.served) {
            match self.setup.served_certificate(address.into(), PORTS[1], &self.authorities) {
                Ok(certificate) => push_if_new(seen, certificate),
                Err(error) => self.refused.push(format!("{error:#}")),
            }
        }
        Ok(())
    }

    async fn read_secret(&mut self) -> Result<()> {
        let secret = self.secrets.get(SECRET).await?;
        push_if_new(&mut self.kept, pem(&text(&secret, "tls.crt")?).context("no certificate in the Secret")?);
        Ok(())
    }

    /// Returns the CA bundle of all webhooks of the configuration.
    async fn read_bundle(&self) -> Result<String> {
        let configuration = self.configurations.get("topolvm-hook").await?;
        let webhooks = configuration.webhooks.unwrap_or_default();
        let bundles: Vec<_> = webhooks.into_iter().map(|webhook| webhook.client_config.ca_bundle).collect();
        ensure!(bundles.len() == 2 && bundles[0] == bundles[1], "the webhooks do not trust the same: {bundles:?}");
        let bundle = bundles.into_iter().flatten().next().context("no authority")?;
        Ok(String::from_utf8(bundle.0)?)
    }

    fn sum(&self) -> String {
        let served = self.served.each_ref().map(Vec::len);
        let Self { calls, refused, kept, .. } = self;
        json!({"calls": calls, "refused": refused.len(), "served": served, "kept": kept.len()}).to_string()
    }
}

/// Returns the last [`CERTIFICATES`] of those that were served.
fn last_certificates(seen: &[String]) -> Vec<&String> {
    seen.iter().rev().take(CERTIFICATES).collect()
}

fn push_if_new(seen: &mut Vec<String>, certificate: String) {
    if seen.last() != Some(&certificate) {
        seen.push(certificate);
    }
}

fn text(secret: &Secret, key: &str) -> Result<String> {
    let value = secret.data.as_ref().and_then(|data| data.get(key)).with_context(|| format!("no {key}"))?;
    Ok(String::from_utf8(value.0.clone())?)
}

/// Returns all certificates in a text.
fn authorities(bundle: &str) -> Vec<String> {
    bundle.split_inclusive("-----END CERTIFICATE-----").filter_map(pem).collect()
}
