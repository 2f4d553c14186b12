//! Registers the driver with kubelet, as the sidecar node-driver-registrar does.
//!
//! kubelet watches its `plugins_registry` directory, connects to each socket that appears there and calls GetInfo.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use topolvm_api::ApiFlavor;
use topolvm_proto::registration::registration_server::{Registration, RegistrationServer};
use topolvm_proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use topolvm_runtime::grpc::{RpcMetrics, serve};
use topolvm_runtime::{Backoff, CancellationToken, unix};

/// Back-off after kubelet has refused the driver.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// The registration of the driver with kubelet.
#[derive(Clone, Debug)]
pub struct Registrar {
    /// Socket in kubelet's directory.
    socket: PathBuf,
    driver: &'static str,
    csi_socket: PathBuf,
}

impl Registrar {
    /// Makes the registration of the driver whose CSI socket kubelet finds at `csi_socket`.
    pub fn new(flavor: ApiFlavor, kubelet_dir: &Path, csi_socket: &Path) -> Self {
        let driver = flavor.driver_name();
        Self {
            socket: kubelet_dir.join("plugins_registry").join(format!("{driver}-reg.sock")),
            driver,
            csi_socket: csi_socket.to_owned(),
        }
    }

    /// Serves the registration until `shutdown` is cancelled. After a refusal, for example while the kubelet cannot
    /// register the driver with the API server, the socket is recreated: the kubelet queries a socket once, when it
    /// appears.
    pub async fn run(self, metrics: RpcMetrics, shutdown: CancellationToken) -> anyhow::Result<()> {
        let mut backoff = RETRY;
        while let Some(reason) = self.serve_until_refused(&metrics, &shutdown).await? {
            let pause = backoff.fail();
            tracing::error!(
                driver = self.driver,
                reason,
                again_in_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
                "kubelet refused to register the driver"
            );
            if shutdown.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Serves the registration until `shutdown` is cancelled; returns kubelet's reason when it refuses the driver.
    async fn serve_until_refused(
        &self,
        metrics: &RpcMetrics,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<Option<String>> {
        // That of the agent before may end last
        if !unix::wait_until_free(&self.socket, shutdown).await {
            return Ok(None);
        }
        let listener = unix::listen(&self.socket).await?;
        tracing::info!(socket = %self.socket.display(), "waiting for kubelet to register the driver");
        let (refusal, mut refused) = watch::channel(None);
        let service = RegistrationService { registrar: self.clone(), refusal };
        let stop = shutdown.child_token();
        let serving = serve(listener, Routes::new(RegistrationServer::new(service)), metrics, stop.clone());
        tokio::pin!(serving);
        let reason = tokio::select! {
            result = &mut serving => return result.map(|()| None),
            Ok(reason) = refused.wait_for(Option::is_some) => reason.clone(),
        };
        // Ends in order, so that kubelet gets its answer and the socket is removed
        stop.cancel();
        serving.await?;
        Ok(reason)
    }
}

struct RegistrationService {
    registrar: Registrar,
    /// Kubelet's reason for refusing the driver.
    refusal: watch::Sender<Option<String>>,
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.registrar.driver.to_owned(),
            endpoint: self.registrar.csi_socket.display().to_string(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!(driver = self.registrar.driver, "kubelet registered the driver");
        } else {
            self.refusal.send_replace(Some(status.error));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
