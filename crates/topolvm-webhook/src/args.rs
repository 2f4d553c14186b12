//! Flags of the webhooks, and the configuration that they become.

use std::path::PathBuf;

use topolvm_runtime::ConfigError;
use topolvm_runtime::listen::Listen;

use crate::{CapacityResource, Certificates, SelfManaged, WebhookConfig};

/// The flags of the admission webhooks.
#[derive(Clone, Debug, clap::Args)]
pub struct WebhookArgs {
    /// Serve /pod/mutate and /pvc/mutate over HTTPS. Without this flag they are served if --cert-dir is set.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_webhooks: Option<bool>,

    /// Address of the webhooks.
    #[arg(long, value_name = "ADDRESS", default_value = ":9443")]
    webhook_addr: Listen,

    /// Directory with tls.crt and tls.key, which are reloaded when they change. Empty: the controller creates and
    /// renews a certificate, keeps it in a Secret, and writes its CA certificate to the webhook configuration.
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true)]
    cert_dir: String,

    /// Accept only clients with a certificate of a CA in this file, which is reloaded when it changes. Empty: accept
    /// all clients.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    webhook_client_ca: String,

    /// Amount of the resource topolvm.io/capacity of a pod; the annotations with the sizes do not depend on it
    /// [default: marker, or none with --scheduling-mode=capacity].
    #[arg(long, value_name = "WHAT")]
    pub pod_capacity_resource: Option<CapacityResource>,

    #[command(flatten)]
    self_managed: SelfManaged,
}

impl WebhookArgs {
    /// Returns the namespace of the Service and of what belongs to it; empty is that of this pod.
    #[must_use]
    pub fn namespace(&self) -> String {
        self.self_managed.namespace.clone()
    }

    /// Returns the configuration; `None` when no webhooks are served. Pods get `capacity_resource`, and claims get a
    /// finalizer if `pvc_finalizer` is true.
    pub fn config(
        self,
        capacity_resource: CapacityResource,
        pvc_finalizer: bool,
    ) -> Result<Option<WebhookConfig>, ConfigError> {
        let has_directory = !self.cert_dir.is_empty();
        if !self.enable_webhooks.unwrap_or(has_directory) {
            return Ok(None);
        }
        let Listen::On(address) = self.webhook_addr else {
            return Err(ConfigError::new(
                "--webhook-addr is not a listen address; disable the webhooks with --enable-webhooks=false",
            ));
        };
        let certificates = if has_directory {
            Certificates::Files(self.cert_dir.into())
        } else {
            Certificates::SelfManaged(self.self_managed)
        };
        Ok(Some(WebhookConfig {
            address,
            certificates,
            client_authorities: Some(self.webhook_client_ca).filter(|path| !path.is_empty()).map(PathBuf::from),
            capacity_resource,
            pvc_finalizer,
        }))
    }
}
