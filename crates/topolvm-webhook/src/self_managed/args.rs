//! Flags of a certificate that the controllers make themselves.

use jiff::SignedDuration;

/// Shortest life of a certificate: two thirds of it have to be enough for a renewal.
const SHORTEST: SignedDuration = SignedDuration::from_mins(1);
/// Longest: a hundred years.
const LONGEST: SignedDuration = SignedDuration::from_hours(100 * 365 * 24);

/// Names of the objects of a self-managed certificate, and its lifetime.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct SelfManaged {
    /// Service through which the API server calls the webhooks; its names are in the self-managed certificate.
    #[arg(long = "webhook-service", value_name = "NAME", default_value = "topolvm-controller")]
    pub service: String,

    /// Namespace of that Service and of the Secret. Empty means the namespace of the pod.
    #[arg(long = "webhook-namespace", value_name = "NAMESPACE", default_value = "", hide_default_value = true)]
    pub namespace: String,

    /// Secret with the self-managed certificate.
    #[arg(long = "webhook-secret", value_name = "NAME", default_value = "topolvm-webhook-certificate")]
    pub secret: String,

    /// MutatingWebhookConfiguration that gets the CA certificate of the self-managed certificate.
    #[arg(long = "webhook-configuration", value_name = "NAME", default_value = "topolvm-hook")]
    pub configuration: String,

    /// Validity of a self-managed certificate; it is renewed after two thirds of that time.
    #[arg(long = "webhook-certificate-lifetime", value_name = "DURATION", default_value = "8760h",
          value_parser = parse_lifetime)]
    pub lifetime: SignedDuration,
}

fn parse_lifetime(text: &str) -> Result<SignedDuration, String> {
    let lifetime: SignedDuration = text.parse().map_err(|_| "use a duration such as 8760h or 90m".to_owned())?;
    if (SHORTEST..=LONGEST).contains(&lifetime) {
        Ok(lifetime)
    } else {
        Err("must be between 1m and 876000h".to_owned())
    }
}
