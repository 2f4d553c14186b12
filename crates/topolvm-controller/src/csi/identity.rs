//! CSI's Identity service.

use std::time::Duration;

use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use tonic::{Request, Response, Status};
use topolvm_proto::csi::identity_server::Identity;
use topolvm_proto::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    ProbeRequest, ProbeResponse,
};
use topolvm_proto::plugin;
use topolvm_runtime::error_chain;

use crate::volumes::Volumes;

/// The time that `Probe` waits for the API server. The livenessprobe sidecar waits three seconds for an answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Names the driver and reports whether it is ready.
#[derive(Clone)]
pub(crate) struct IdentityService {
    pub(crate) volumes: Volumes,
}

impl IdentityService {
    /// Returns an error that names the informer that has not listed everything yet, if there is one.
    pub(crate) fn check_synced(&self) -> Result<(), String> {
        let waiting = [
            (self.volumes.objects.informer.cache.is_listed(), "LogicalVolumes"),
            (self.volumes.node_choice.nodes.cache.is_listed(), "Nodes"),
        ];
        match waiting.iter().find(|(synced, _)| !synced) {
            None => Ok(()),
            Some((_, what)) => Err(format!(
                "the {what} have not been listed yet; check that the Kubernetes API server is reachable, and check the \
                 log"
            )),
        }
    }

    /// Checks that the API server answers, by reading the one object that every installation has.
    async fn check_api_server(&self) -> Result<(), String> {
        let api: Api<CSIDriver> = Api::all(self.volumes.objects.client.clone());
        match tokio::time::timeout(PROBE_TIMEOUT, api.get_metadata_opt(self.volumes.objects.flavor.driver_name())).await
        {
            Ok(Ok(Some(_))) => Ok(()),
            Ok(Ok(None)) => {
                tracing::warn!(
                    driver = self.volumes.objects.flavor.driver_name(),
                    "the CSIDriver object does not exist, so pods cannot use volumes; apply all manifests"
                );
                Ok(())
            }
            // Nothing else works with these credentials either
            Ok(Err(kube::Error::Api(status))) if status.code == 401 => {
                Err(format!("the API server rejects the credentials: {}", status.message))
            }
            Ok(Err(kube::Error::Api(status))) if status.code < 500 => {
                tracing::warn!(message = status.message, "cannot read the CSIDriver object; check the ClusterRole");
                Ok(())
            }
            Ok(Err(error)) => Err(error_chain(&error)),
            Err(_elapsed) => Err(format!("no answer within {} s", PROBE_TIMEOUT.as_secs())),
        }
    }
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.volumes.objects.flavor.driver_name().to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(plugin::capabilities()))
    }

    /// Not ready is no error: external-provisioner then asks again every second instead of giving up.
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let ready = match self.check_synced() {
            Ok(()) => self.check_api_server().await,
            waiting => waiting,
        };
        if let Err(reason) = &ready {
            tracing::warn!(reason, "not ready");
        }
        Ok(Response::new(ProbeResponse { ready: Some(ready.is_ok()) }))
    }
}
