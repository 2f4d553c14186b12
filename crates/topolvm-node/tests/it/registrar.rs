//! Kubelet's side of the plugin registration, over a real socket.

use std::path::Path;
use std::time::{Duration, SystemTime};

use prometheus_client::registry::Registry;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use topolvm_api::ApiFlavor;
use topolvm_node::csi::Registrar;
use topolvm_proto::registration::registration_client::RegistrationClient;
use topolvm_proto::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use topolvm_runtime::CancellationToken;
use topolvm_runtime::grpc::RpcMetrics;

async fn kubelet(socket: &Path) -> RegistrationClient<Channel> {
    let endpoint = Endpoint::try_from(format!("unix:{}", socket.display())).unwrap();
    loop {
        // The registrar listens as soon as it is polled
        if let Ok(channel) = endpoint.connect().await {
            return RegistrationClient::new(channel);
        }
        tokio::task::yield_now().await;
    }
}

fn registrar(dir: &TempDir, shutdown: &CancellationToken) -> impl Future<Output = anyhow::Result<()>> + use<> {
    Registrar::new(ApiFlavor::TopoLvm, dir.path(), Path::new("/csi/csi.sock"))
        .run(RpcMetrics::register(&mut Registry::default()), shutdown.clone())
}

#[tokio::test]
async fn registration_reports_name_and_socket_and_ends_with_agent() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("plugins_registry/topolvm.io-reg.sock");
    let shutdown = CancellationToken::new();
    let asking = async {
        let mut kubelet = kubelet(&socket).await;
        let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        kubelet.notify_registration_status(status).await.unwrap();
        shutdown.cancel();
        info
    };
    let (ended, info) = tokio::join!(registrar(&dir, &shutdown), asking);
    ended.unwrap();
    assert!(!socket.exists());
    let expected = PluginInfo {
        r#type: "CSIPlugin".to_owned(),
        name: "topolvm.io".to_owned(),
        endpoint: "/csi/csi.sock".to_owned(),
        supported_versions: vec!["1.0.0".to_owned()],
    };
    assert_eq!(info, expected);
}

#[tokio::test]
async fn a_driver_that_kubelet_refuses_is_offered_again() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("plugins_registry/topolvm.io-reg.sock");
    let shutdown = CancellationToken::new();
    let asking = async {
        let first = made(&socket).await;
        let status = RegistrationStatus { plugin_registered: false, error: "no API server".to_owned() };
        kubelet(&socket).await.notify_registration_status(status).await.unwrap();
        // kubelet asks again when another socket appears
        while made(&socket).await == first {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let info = kubelet(&socket).await.get_info(InfoRequest {}).await.unwrap().into_inner();
        shutdown.cancel();
        info.name
    };
    let (ended, name) = tokio::join!(registrar(&dir, &shutdown), asking);
    ended.unwrap();
    assert_eq!(name, "topolvm.io");
}

/// Returns the time at which the socket was made, as soon as there is one.
async fn made(socket: &Path) -> SystemTime {
    loop {
        if let Ok(metadata) = std::fs::metadata(socket) {
            return metadata.modified().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
