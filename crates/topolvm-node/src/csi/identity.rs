//! The CSI Identity service.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use topolvm_api::ApiFlavor;
use topolvm_proto::csi;
use topolvm_proto::csi::identity_server::Identity;
use topolvm_proto::plugin;

use super::ReadinessCheck;

/// Serves GetPluginInfo, GetPluginCapabilities and Probe.
pub(crate) struct IdentityService {
    flavor: ApiFlavor,
    readiness: Arc<ReadinessCheck>,
}

impl IdentityService {
    /// Makes the service of a driver. `readiness` answers Probe.
    pub(crate) const fn new(flavor: ApiFlavor, readiness: Arc<ReadinessCheck>) -> Self {
        Self { flavor, readiness }
    }
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        Ok(Response::new(csi::GetPluginInfoResponse {
            name: self.flavor.driver_name().to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: std::collections::HashMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(plugin::capabilities()))
    }

    async fn probe(&self, _: Request<csi::ProbeRequest>) -> Result<Response<csi::ProbeResponse>, Status> {
        self.readiness.check().await?;
        Ok(Response::new(csi::ProbeResponse { ready: Some(true) }))
    }
}
