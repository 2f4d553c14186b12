//! The program serves webhooks with a certificate from files.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::RootCertStore;
use rustls::client::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use topolvm_testkit::fixtures::pod;

use crate::process::{Running, command, nobody_listens};
use crate::webhook_bench::creation;

const NAME: &str = "topolvm-controller.topolvm-system.svc";

/// Puts a new certificate where kubelet puts a Secret: in a directory of its own, to which the link `..data` is pointed in
/// one step. Returns the certificate, PEM.
fn mount_secret(directory: &Path, version: &str) -> String {
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

/// Asks about a pod without volumes, trusting this certificate only. Returns the answer as it came.
async fn ask(address: &str, certificate: &str) -> Result<String, std::io::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connection = TcpStream::connect(address).await?;
    let connector = TlsConnector::from(Arc::new(config));
    let mut connection = connector.connect(ServerName::try_from(NAME).unwrap(), connection).await?;
    let body = creation("pods", json!(pod("user").build())).to_string();
    let head = format!("POST /pod/mutate?timeout=10s HTTP/1.1\r\nhost: {NAME}\r\ncontent-length: {}\r\n", body.len());
    connection.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_secret_that_is_mounted_late_and_exchanged_is_served_without_a_restart() {
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
    program.env("KUBECONFIG", nobody_listens(dir.path())).env("LOG_FORMAT", "json");
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

    // Only half of a pair, as of somebody who writes it in place
    std::fs::write(certificates.join("..2/tls.crt"), &first).unwrap();
    symlink("..2", certificates.join("..data_tmp")).unwrap();
    std::fs::rename(certificates.join("..data_tmp"), certificates.join("..data")).unwrap();
    let warning = until("no new certificate for the webhooks");
    let error = warning["error"].as_str().unwrap();
    assert!(error.starts_with("the private key cannot be used, or is not that of the certificate"), "{error}");
    ask(&address, &second).await.unwrap();
}
