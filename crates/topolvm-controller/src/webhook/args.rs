//! Flags of the webhooks, and the configuration that they become.

use std::path::PathBuf;

use jiff::SignedDuration;
use topolvm_runtime::ConfigError;
use topolvm_runtime::listen::Listen;

use super::{CapacityResource, Certificates, SelfManaged, WebhookConfig};

/// Shortest life of a certificate: two thirds of it have to be enough for a renewal.
const SHORTEST: SignedDuration = SignedDuration::from_mins(1);
/// Longest: a hundred years.
const LONGEST: SignedDuration = SignedDuration::from_hours(100 * 365 * 24);

/// The flags of the admission webhooks.
#[derive(Clone, Debug, clap::Args)]
pub struct WebhookArgs {
    /// Serve /pod/mutate and /pvc/mutate over HTTPS. Without this flag they are served when --cert-dir is set.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_webhooks: Option<bool>,

    /// Where to serve them.
    #[arg(long, value_name = "ADDRESS", default_value = ":9443")]
    webhook_addr: Listen,

    /// Directory with tls.crt and tls.key, which are read again when they change. Empty: the controller makes and
    /// renews a certificate itself, keeps it in a Secret and writes its authority into the webhook configuration.
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true)]
    cert_dir: String,

    /// Answer only clients with a certificate of an authority in this file, which is read again when it changes. Empty:
    /// answer everybody.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    webhook_client_ca: String,

    /// What a pod gets as the resource topolvm.io/capacity; the annotations with the sizes are the same.
    #[arg(long, value_name = "WHAT", default_value = "marker")]
    pod_capacity_resource: CapacityResource,

    /// Service through which the API server calls the webhooks; its names are in the self-made certificate.
    #[arg(long, value_name = "NAME", default_value = "topolvm-controller")]
    webhook_service: String,

    /// Namespace of that Service and of the Secret. Empty: that of the pod.
    #[arg(long, value_name = "NAMESPACE", default_value = "", hide_default_value = true)]
    webhook_namespace: String,

    /// Secret with the self-made certificate.
    #[arg(long, value_name = "NAME", default_value = "topolvm-webhook-certificate")]
    webhook_secret: String,

    /// MutatingWebhookConfiguration that gets the authority of the self-made certificate.
    #[arg(long, value_name = "NAME", default_value = "topolvm-hook")]
    webhook_configuration: String,

    /// How long a self-made certificate is valid; it is renewed after two thirds of that.
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = parse_lifetime)]
    webhook_certificate_lifetime: SignedDuration,
}

impl WebhookArgs {
    /// `None` when there are no webhooks to serve. `pvc_finalizer` is whether claims get a finalizer.
    pub(crate) fn config(self, pvc_finalizer: bool) -> Result<Option<WebhookConfig>, ConfigError> {
        let has_directory = !self.cert_dir.is_empty();
        if !self.enable_webhooks.unwrap_or(has_directory) {
            return Ok(None);
        }
        let Listen::On(address) = self.webhook_addr else {
            return Err(ConfigError::new(
                "--webhook-addr is no address to listen on; turn webhooks off with --enable-webhooks=false",
            ));
        };
        let certificates = if has_directory {
            Certificates::Files(self.cert_dir.into())
        } else {
            Certificates::SelfManaged(SelfManaged {
                namespace: self.webhook_namespace,
                service: self.webhook_service,
                secret: self.webhook_secret,
                configuration: self.webhook_configuration,
                lifetime: self.webhook_certificate_lifetime,
            })
        };
        Ok(Some(WebhookConfig {
            address,
            certificates,
            client_authorities: Some(self.webhook_client_ca).filter(|path| !path.is_empty()).map(PathBuf::from),
            capacity_resource: self.pod_capacity_resource,
            pvc_finalizer,
        }))
    }
}

fn parse_lifetime(text: &str) -> Result<SignedDuration, String> {
    let lifetime: SignedDuration = text.parse().map_err(|_| "write a duration such as 8760h or 90m".to_owned())?;
    if (SHORTEST..=LONGEST).contains(&lifetime) { Ok(lifetime) } else { Err("between 1m and 876000h".to_owned()) }
}
