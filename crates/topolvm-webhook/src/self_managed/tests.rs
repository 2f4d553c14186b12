//! Replicas over a fake API server, called over real TLS as kube-apiserver calls them. Time is tokio's paused time, for
//! certificates too.

mod clock;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use prometheus_client::metrics::gauge::Gauge;
use rustls::RootCertStore;
use rustls::client::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use topolvm_runtime::tls::{Certificate, ServedCertificate};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::Failure;

use super::certificate::CertificateAndKey;
use super::content::Content;
use super::issue::{new_authority, sign};
use super::{CertificateReconciler, SelfManaged};

const SECRET: &str = "topolvm-webhook-certificate";
const CONFIGURATION: &str = "topolvm-hook";
const CONFIGURATIONS: &str = "mutatingwebhookconfigurations";
const NAME: &str = "topolvm-controller.topolvm-system.svc";
const LIFETIME: SignedDuration = SignedDuration::from_mins(2);

/// The wall clock, which goes with tokio's.
fn now() -> Timestamp {
    thread_local!(static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) });
    let began = BEGAN.get().unwrap_or_else(Instant::now);
    BEGAN.set(Some(began));
    "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::try_from(began.elapsed()).unwrap()
}

#[derive(Debug)]
struct Clock;

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(now().as_second().unsigned_abs())))
    }
}

fn settings() -> SelfManaged {
    SelfManaged {
        namespace: "topolvm-system".to_owned(),
        service: "topolvm-controller".to_owned(),
        secret: SECRET.to_owned(),
        configuration: CONFIGURATION.to_owned(),
        lifetime: LIFETIME,
    }
}

fn configuration() -> Value {
    let webhook = |name: &str, path: &str| {
        json!({
            "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "fieldOfTomorrow": 1,
            "clientConfig": {"service": {"namespace": "topolvm-system", "name": "topolvm-controller", "path": path}},
        })
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION},
        "webhooks": [webhook("pod-hook.topolvm.io", "/pod/mutate"), webhook("pvc-hook.topolvm.io", "/pvc/mutate")],
    })
}

/// The replicas of a controller.
struct Harness {
    api: ApiServer,
    tasks: Tasks,
    shutdown: CancellationToken,
}

impl Harness {
    fn new() -> Self {
        now();
        let shutdown = CancellationToken::new();
        Self { api: ApiServer::new(), tasks: Tasks::new(shutdown.clone()), shutdown }
    }

    fn with_configuration() -> Self {
        let harness = Self::new();
        harness.api.apply_json(configuration());
        harness
    }

    /// Starts a replica; returns what it serves.
    fn replica(&self) -> ServedCertificate {
        self.replica_with(settings())
    }

    fn replica_with(&self, settings: SelfManaged) -> ServedCertificate {
        let served = ServedCertificate::new("webhooks", Gauge::default());
        let reconciler = CertificateReconciler::new(self.api.client(), settings, now, served.clone());
        self.tasks.spawn("webhook certificate", reconciler.run(self.shutdown.clone()));
        served
    }

    /// The bundle of the configuration, the same for all its webhooks.
    fn bundle(&self) -> Option<String> {
        let configuration = self.api.get_json(CONFIGURATIONS, "", CONFIGURATION)?;
        let webhooks = configuration["webhooks"].as_array()?.iter();
        let bundles: Vec<_> = webhooks.map(|webhook| &webhook["clientConfig"]["caBundle"]).collect();
        assert!(bundles.iter().all(|bundle| *bundle == bundles[0]));
        bundles[0].as_str()?;
        let ByteString(bundle) = serde_json::from_value(bundles[0].clone()).ok()?;
        String::from_utf8(bundle).ok()
    }

    async fn until_published(&self) -> String {
        self.api.until(CONFIGURATIONS, "", CONFIGURATION, |_| self.bundle()).await
    }

    fn secret(&self) -> Option<Content> {
        let secret = self.api.get_json("secrets", "topolvm-system", SECRET)?;
        Some(Content::read(&serde_json::from_value(secret).unwrap()).unwrap())
    }

    fn put(&self, content: &Content) {
        let mut secret = serde_json::to_value(content.secret(SECRET)).unwrap();
        secret["metadata"]["namespace"] = json!("topolvm-system");
        self.api.apply_json(secret);
    }
}

/// A certificate for these names, and the authority that has signed it.
fn issue(names: &[String], at: Timestamp) -> (CertificateAndKey, CertificateAndKey) {
    let authority = new_authority(at, LIFETIME).unwrap();
    let certificate = sign(&authority, names, at, LIFETIME).unwrap();
    (authority, certificate)
}

fn names() -> [String; 2] {
    [NAME.to_owned(), format!("{NAME}.cluster.local")]
}

/// A call of a client that trusts this bundle.
async fn call(served: &ServedCertificate, bundle: &str) -> Result<(), String> {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_details(provider, Arc::new(Clock))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (near, far) = tokio::io::duplex(16 << 10);
    let acceptor = TlsAcceptor::from(Arc::new(served.config(None).unwrap()));
    let connector = TlsConnector::from(Arc::new(config));
    let called = connector.connect(ServerName::try_from(NAME).unwrap(), near);
    let (_, called) = tokio::join!(acceptor.accept(far), called);
    called.map(drop).map_err(|error| error.to_string())
}

fn authorities(bundle: &str) -> usize {
    bundle.matches("BEGIN CERTIFICATE").count()
}

/// An API server that hears of a change a while after it was made, as one whose watch is slow.
struct SlowApiServer {
    heard: Vec<(Instant, String)>,
}

impl SlowApiServer {
    /// Less than the twelfth of a certificate's life that we give them.
    const LAG: Duration = Duration::from_secs(8);

    fn trusts(&mut self, published: Option<String>) -> Option<&str> {
        if let Some(published) = published
            && self.heard.last().is_none_or(|(_, last)| *last != published)
        {
            self.heard.push((Instant::now(), published));
        }
        let heard = self.heard.iter().rev().find(|(at, _)| at.elapsed() >= Self::LAG)?;
        Some(&heard.1)
    }
}

/// Calls the replicas every second for some minutes, as an API server that is slow to hear, and returns how many
/// certificates there were. Each one, once it is trusted, must be accepted until it expires: some replica may not have
/// heard of its successor.
async fn call_every_second(harness: &Harness, replicas: &[ServedCertificate], minutes: u32) -> usize {
    let mut server = SlowApiServer { heard: Vec::new() };
    let mut seen: Vec<Certificate> = Vec::new();
    let mut calls = 0;
    for second in 0..minutes * 60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let Some(bundle) = server.trusts(harness.bundle()) else { continue };
        for replica in replicas {
            let current = replica.current().unwrap();
            if !seen.iter().any(|old| old.info() == current.info()) {
                seen.push(current);
            }
        }
        for certificate in seen.iter().filter(|certificate| now() < certificate.info().not_after) {
            let late = ServedCertificate::new("webhooks", Gauge::default());
            late.serve(certificate.clone());
            let answer = call(&late, bundle).await;
            assert_eq!(answer, Ok(()), "after {second} s with {} authorities", authorities(bundle));
            calls += 1;
        }
    }
    assert!(calls > minutes * 55, "{calls}");
    seen.len()
}

#[tokio::test(start_paused = true)]
async fn certificates_are_renewed_without_a_refused_request() {
    let harness = Harness::with_configuration();
    let replicas = [harness.replica(), harness.replica()];
    let first = harness.until_published().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let patches = harness.api.count("patch", CONFIGURATIONS);
    // A renewal every 77 s
    let certificates = call_every_second(&harness, &replicas, 15).await;
    assert!((9..=12).contains(&certificates), "{certificates}");
    // All of the same authority: the bundle need not change
    assert_eq!(harness.bundle().unwrap(), first);
    assert_eq!(harness.api.count("patch", CONFIGURATIONS), patches);
    harness.shutdown.cancel();
    harness.tasks.wait().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn webhook_ca_near_expiry_is_replaced_without_refused_requests() {
    let harness = Harness::with_configuration();
    let replicas = [harness.replica(), harness.replica()];
    let first = harness.until_published().await;
    // After 18 minutes it cannot sign for two minutes any more
    tokio::time::sleep(Duration::from_mins(17)).await;
    assert_eq!(harness.bundle().unwrap(), first);
    call_every_second(&harness, &replicas, 5).await;
    let bundle = harness.bundle().unwrap();
    assert_eq!(authorities(&bundle), 1);
    assert_ne!(bundle, first);
}

/// An earlier version made an authority for each certificate and forgot its key. Here it is in the middle of a renewal.
#[tokio::test(start_paused = true)]
async fn webhook_secret_migration_refuses_no_request() {
    let harness = Harness::with_configuration();
    let former = [1, 2].map(|age| {
        let at = now() - SignedDuration::from_secs(age);
        let authority = new_authority(at, LIFETIME).unwrap();
        let certificate = sign(&authority, &names(), at, LIFETIME).unwrap();
        (authority.certificate, certificate)
    });
    let [(next_authority, next), (authority, served)] = former;
    let bundle = format!("{next_authority}\n{authority}\n");
    let encoded = |text: &str| ByteString(text.as_bytes().to_vec());
    harness.api.apply_json(json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": SECRET, "namespace": "topolvm-system"},
        "data": {
            "tls.crt": encoded(&served.certificate), "tls.key": encoded(&served.key), "ca.crt": encoded(&bundle),
            "next.crt": encoded(&next.certificate), "next.key": encoded(&next.key),
        },
    }));
    harness.api.edit(CONFIGURATIONS, "", CONFIGURATION, |configuration| {
        for webhook in configuration["webhooks"].as_array_mut().unwrap() {
            webhook["clientConfig"]["caBundle"] = json!(encoded(&bundle));
        }
    });
    let replicas = [harness.replica(), harness.replica()];
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(replicas[0].current().unwrap().info(), &served.info);
    assert_eq!(authorities(&harness.bundle().unwrap()), 3);
    let certificates = call_every_second(&harness, &replicas, 4).await;
    assert!((4..=5).contains(&certificates), "{certificates}");
    assert_eq!(authorities(&harness.bundle().unwrap()), 1);
    let secret = harness.api.get_json("secrets", "topolvm-system", SECRET).unwrap();
    let keys: BTreeSet<_> = secret["data"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["ca.crt", "ca.key", "tls.crt", "tls.key"].into());
}

#[tokio::test(start_paused = true)]
async fn webhook_secret_deletion_renews_certificate_without_refusals() {
    let harness = Harness::with_configuration();
    let replicas = [harness.replica(), harness.replica()];
    harness.until_published().await;
    let first = harness.secret().unwrap();
    let deleting = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(harness.api.delete("secrets", "topolvm-system", SECRET));
    };
    let (certificates, ()) = tokio::join!(call_every_second(&harness, &replicas, 1), deleting);
    assert_eq!(certificates, 2);
    assert_ne!(harness.secret().unwrap().served, first.served);
    assert_ne!(harness.secret().unwrap().signer, first.signer);
}

#[tokio::test(start_paused = true)]
async fn replicas_that_start_together_serve_the_same_certificate() {
    let harness = Harness::with_configuration();
    let replicas: Vec<ServedCertificate> = (0..5).map(|_| harness.replica()).collect();
    let bundle = harness.until_published().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(authorities(&bundle), 1);
    for replica in &replicas {
        assert_eq!(call(replica, &bundle).await, Ok(()));
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_bundles_of_the_configuration_are_changed() {
    let harness = Harness::with_configuration();
    harness.replica();
    harness.until_published().await;
    let mut after = harness.api.get_json(CONFIGURATIONS, "", CONFIGURATION).unwrap();
    for webhook in after["webhooks"].as_array_mut().unwrap() {
        webhook["clientConfig"].as_object_mut().unwrap().remove("caBundle").unwrap();
    }
    assert_eq!(after["webhooks"], configuration()["webhooks"]);
}

#[tokio::test(start_paused = true)]
async fn removed_bundle_is_written_again_at_once() {
    let harness = Harness::with_configuration();
    harness.replica();
    let bundle = harness.until_published().await;
    harness.api.apply_json(configuration());
    let removed = Instant::now();
    assert_eq!(harness.until_published().await, bundle);
    assert!(removed.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_comes_later_gets_its_bundle() {
    let harness = Harness::new();
    let served = harness.replica();
    tokio::time::sleep(Duration::from_secs(5)).await;
    harness.api.apply_json(configuration());
    let bundle = harness.until_published().await;
    assert_eq!(call(&served, &bundle).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn webhook_configuration_keeps_concurrent_changes() {
    let harness = Harness::with_configuration();
    harness.api.before_next("patch", CONFIGURATIONS, |api| {
        api.edit(CONFIGURATIONS, "", CONFIGURATION, |configuration| {
            configuration["webhooks"].as_array_mut().unwrap().remove(0);
        });
    });
    let served = harness.replica();
    let bundle = harness.until_published().await;
    let after = harness.api.get_json(CONFIGURATIONS, "", CONFIGURATION).unwrap();
    assert_eq!(after["webhooks"].as_array().unwrap().len(), 1);
    assert_eq!(after["webhooks"][0]["name"], "pvc-hook.topolvm.io");
    assert_eq!(harness.api.count("patch", CONFIGURATIONS), 2);
    assert_eq!(call(&served, &bundle).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn webhook_ca_that_is_not_published_signs_no_served_certificate() {
    let harness = Harness::with_configuration();
    let served = harness.replica();
    harness.until_published().await;
    let first = served.current().unwrap().info().clone();
    // The right to write it is taken away
    harness.api.fail_next("patch", CONFIGURATIONS, usize::MAX, 403);
    let authority = harness.secret().unwrap().signer;
    assert!(harness.api.delete("secrets", "topolvm-system", SECRET));
    tokio::time::sleep(Duration::from_secs(110)).await;
    assert_ne!(harness.secret().unwrap().signer, authority);
    assert_eq!(served.current().unwrap().info(), &first);
    // It is given back ten seconds before the old certificate expires
    harness.api.clear_faults();
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert_ne!(served.current().unwrap().info(), &first);
    assert_eq!(call(&served, &harness.bundle().unwrap()).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn webhook_certificate_expired_at_start_is_renewed_by_its_ca() {
    let harness = Harness::with_configuration();
    let (authority, certificate) = issue(&names(), now() - SignedDuration::from_mins(5));
    harness.put(&Content::new(authority, certificate));
    let served = harness.replica();
    let bundle = harness.until_published().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(call(&served, &bundle).await, Ok(()));
    assert_eq!(harness.bundle().unwrap(), bundle);
}

#[tokio::test(start_paused = true)]
async fn webhook_certificate_expired_for_a_day_is_replaced_at_once() {
    let harness = Harness::with_configuration();
    let (authority, certificate) = issue(&names(), now() - SignedDuration::from_hours(24));
    harness.put(&Content::new(authority, certificate));
    let served = harness.replica();
    let began = Instant::now();
    harness.api.until(CONFIGURATIONS, "", CONFIGURATION, |_| harness.bundle()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let bundle = harness.bundle().unwrap();
    assert_eq!(call(&served, &bundle).await, Ok(()));
    assert_eq!(authorities(&bundle), 1);
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn webhook_secret_that_is_invalid_is_rewritten_with_its_labels() {
    let harness = Harness::with_configuration();
    harness.api.apply_json(json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": SECRET, "namespace": "topolvm-system", "labels": {"team": "blue"}},
        "data": {"tls.crt": "AAAA", "other": "AAAA"},
    }));
    let served = harness.replica();
    let bundle = harness.until_published().await;
    assert_eq!(call(&served, &bundle).await, Ok(()));
    let secret = harness.api.get_json("secrets", "topolvm-system", SECRET).unwrap();
    assert_eq!((&secret["metadata"]["labels"]["team"], &secret["data"]["other"]), (&json!("blue"), &json!("AAAA")));
}

#[tokio::test(start_paused = true)]
async fn another_service_name_makes_a_new_certificate() {
    let harness = Harness::with_configuration();
    let (authority, certificate) = issue(&["old.topolvm-system.svc".to_owned()], now());
    harness.put(&Content::new(authority, certificate));
    let served = harness.replica();
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(call(&served, &harness.bundle().unwrap()).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn webhook_certificate_task_retries_and_stops_if_the_api_hangs() {
    let harness = Harness::with_configuration();
    harness.api.fail_next("get", "secrets", 3, 500);
    harness.api.inject("create", "secrets", 1, Failure::Hang);
    let served = harness.replica();
    let bundle = harness.until_published().await;
    assert_eq!(call(&served, &bundle).await, Ok(()));
    harness.api.inject("get", CONFIGURATIONS, 1, Failure::Hang);
    harness.api.edit(CONFIGURATIONS, "", CONFIGURATION, |configuration| {
        configuration["metadata"]["labels"] = json!({"a": "b"});
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    harness.shutdown.cancel();
    harness.tasks.wait().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_private_key_is_in_no_log() {
    let harness = Harness::with_configuration();
    harness.replica();
    harness.until_published().await;
    let text = format!("{:?}", harness.secret().unwrap());
    assert!(!text.contains("PRIVATE"), "{text}");
}
