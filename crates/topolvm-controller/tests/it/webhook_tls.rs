//! The program serves webhooks with a certificate from files.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::client::{ClientConfig, WantsClientCert};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ConfigBuilder, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use topolvm_testkit::fixtures::{creation_review, pod};

use crate::process::{Running, command, unreachable_api_server};

pub(crate) const NAME: &str = "topolvm-controller.topolvm-system.svc";

/// Puts a new certificate where kubelet puts a Secret: in a directory of its own, to which the link `..data` is pointed
/// in one step. Returns the certificate, PEM.
pub(crate) fn mount_secret(directory: &Path, version: &str) -> String {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new([NAME.to_owned()]).unwrap().self_signed(&key).unwrap().pem();
    let content = directory.join(version);
    std::fs::create_dir(&content).unwrap();
    std::fs::write(content.join("tls.crt"), &certificate).unwrap();
    std::fs::write(content.join("tls.key"), key.serialize_pem()).unwrap();
    symlink(version, directory.join("..data_tmp")).unwrap();
    std::fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    for name in ["tls.crt", "tls.key"] {
        if !directory.join(name).is_symlink() {
            symlink(format!("..data/{name}"), directory.join(name)).unwrap();
        }
    }
    certificate
}

/// Speaks TLS with those who have this certificate only.
pub(crate) struct Client(TlsConnector);

impl Client {
    /// Without a certificate of its own.
    pub(crate) fn new(trusted: &str) -> Self {
        Self::with(trusted, ConfigBuilder::<ClientConfig, WantsClientCert>::with_no_client_auth)
    }

    fn with(trusted: &str, own: impl FnOnce(ConfigBuilder<ClientConfig, WantsClientCert>) -> ClientConfig) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        Self(TlsConnector::from(Arc::new(own(builder.with_root_certificates(roots)))))
    }

    pub(crate) async fn connect(&self, address: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let connection = TcpStream::connect(address).await?;
        self.0.connect(ServerName::try_from(NAME).unwrap(), connection).await
    }

    /// Sends a question about a new pod. Returns the answer as it came.
    pub(crate) async fn post(&self, address: &str, body: &[u8]) -> std::io::Result<String> {
        let mut connection = self.connect(address).await?;
        let head =
            format!("POST /pod/mutate?timeout=10s HTTP/1.1\r\nhost: {NAME}\r\ncontent-length: {}\r\n", body.len());
        connection.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).await?;
        connection.write_all(body).await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    /// Asks about a pod without volumes.
    async fn ask(&self, address: &str) -> std::io::Result<String> {
        self.post(address, creation_review("pods", json!(pod("user").build())).to_string().as_bytes()).await
    }
}

async fn ask(address: &str, certificate: &str) -> std::io::Result<String> {
    Client::new(certificate).ask(address).await
}

/// An authority of clients.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    /// A client that it has signed a certificate for.
    fn client(&self, trusted: &str, purpose: ExtendedKeyUsagePurpose) -> Client {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![purpose];
        let chain = vec![params.signed_by(&key, &self.issuer).unwrap().der().clone()];
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        Client::with(trusted, |builder| builder.with_client_auth_cert(chain, key).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn webhook_certificate_files_are_reloaded_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = dir.path().join("certs");
    std::fs::create_dir(&certificates).unwrap();
    let flags = [
        format!("--csi-socket={}", dir.path().join("csi.sock").display()),
        format!("--cert-dir={}", certificates.display()),
        "--webhook-addr=127.0.0.1:0".to_owned(),
        "--metrics-bind-address=".to_owned(),
        "--health-probe-bind-address=".to_owned(),
    ];
    let mut program = command(&flags.each_ref().map(String::as_str));
    program.env("KUBECONFIG", unreachable_api_server(dir.path())).env("LOG_FORMAT", "json");
    let mut running = Running(program.stderr(Stdio::piped()).spawn().unwrap());
    let mut log = BufReader::new(running.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut until = |message: &str| {
        let line = log.find(|line| line.contains(&format!(r#""message":"{message}"#)));
        serde_json::from_str::<Value>(&line.expect(message)).unwrap()
    };
    let address = until("serving webhooks\"")["address"].as_str().unwrap().to_owned();

    let first = mount_secret(&certificates, "..1");
    until("serving webhooks with this certificate");
    let answer = ask(&address, &first).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""allowed":true"#), "{answer}");

    let second = mount_secret(&certificates, "..2");
    until("serving webhooks with this certificate");
    ask(&address, &second).await.unwrap();
    ask(&address, &first).await.unwrap_err();

    // Only half of a pair, as when it is written in place
    std::fs::write(certificates.join("..2/tls.crt"), &first).unwrap();
    symlink("..2", certificates.join("..data_tmp")).unwrap();
    std::fs::rename(certificates.join("..data_tmp"), certificates.join("..data")).unwrap();
    let warning = until("cannot load a new certificate for the webhooks");
    let error = warning["error"].as_str().unwrap();
    assert!(error.starts_with("the private key is invalid, or does not belong to the certificate"), "{error}");
    ask(&address, &second).await.unwrap();
}

/// Puts a file in the place of another in one step.
fn exchange(path: &Path, content: &str) {
    let next = path.with_extension("next");
    std::fs::write(&next, content).unwrap();
    std::fs::rename(next, path).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn webhooks_answer_only_clients_with_a_certificate_of_the_ca() {
    let dir = tempfile::tempdir().unwrap();
    let (certificates, authorities) = (dir.path().join("certs"), dir.path().join("clients.crt"));
    std::fs::create_dir(&certificates).unwrap();
    let served = mount_secret(&certificates, "..1");
    let flags = [
        format!("--csi-socket={}", dir.path().join("csi.sock").display()),
        format!("--cert-dir={}", certificates.display()),
        format!("--webhook-client-ca={}", authorities.display()),
        "--webhook-addr=127.0.0.1:0".to_owned(),
        "--metrics-bind-address=".to_owned(),
        "--health-probe-bind-address=".to_owned(),
    ];
    let mut program = command(&flags.each_ref().map(String::as_str));
    program.env("KUBECONFIG", unreachable_api_server(dir.path())).env("LOG_FORMAT", "json");
    let mut running = Running(program.stderr(Stdio::piped()).spawn().unwrap());
    let mut log = BufReader::new(running.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut lines = Vec::new();
    // They come in any order
    let mut until = |message: &str| {
        let text = format!(r#""message":"{message}"#);
        loop {
            if let Some(at) = lines.iter().position(|line: &String| line.contains(&text)) {
                return serde_json::from_str::<Value>(&lines.remove(at)).unwrap();
            }
            lines.push(log.next().expect(message));
        }
    };
    let address = until("serving webhooks\"")["address"].as_str().unwrap().to_owned();
    until("serving webhooks with this certificate");
    until("cannot load new CA certificates for clients of the webhooks");
    let (first, second) = (Authority::new(), Authority::new());
    let anonymous = Client::new(&served);
    let [of_first, of_second] =
        [&first, &second].map(|authority| authority.client(&served, ExtendedKeyUsagePurpose::ClientAuth));
    let a_server = first.client(&served, ExtendedKeyUsagePurpose::ServerAuth);
    // Without CA certificates no client is answered
    for client in [&anonymous, &of_first] {
        client.ask(&address).await.unwrap_err();
    }

    exchange(&authorities, &first.certificate);
    until("webhooks require a client certificate of these CAs");
    for client in [&anonymous, &of_second, &a_server] {
        client.ask(&address).await.unwrap_err();
    }
    for _ in 0..2 {
        let answer = of_first.ask(&address).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    // Who was known may not go on with a TLS session of then
    exchange(&authorities, &second.certificate);
    until("webhooks require a client certificate of these CAs");
    for client in [&anonymous, &of_first] {
        client.ask(&address).await.unwrap_err();
    }
    of_second.ask(&address).await.unwrap();

    exchange(&authorities, "rubbish");
    let warning = until("cannot load new CA certificates for clients of the webhooks");
    assert!(warning["error"].as_str().unwrap().contains("no CA certificate"), "{warning}");
    of_second.ask(&address).await.unwrap();
    anonymous.ask(&address).await.unwrap_err();
}
