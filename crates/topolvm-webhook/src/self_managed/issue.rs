//! Makes authorities, and certificates that they sign.

use std::time::SystemTime;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use topolvm_runtime::tls::CertificateError;

use super::certificate::CertificateAndKey;

/// Tolerance for clocks of API servers that are behind ours.
const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// A certificate that cannot be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum IssueError {
    #[error("the names or times are not valid in a certificate")]
    Rcgen(#[from] rcgen::Error),
    #[error("cannot parse the created certificate")]
    Unreadable(#[from] CertificateError),
    #[error("the certificate lifetime is too long")]
    Time(#[from] jiff::Error),
}

/// Lifetime of an authority, in lifetimes of a certificate: ten years with the default one.
const AUTHORITY_LIFETIMES: i32 = 10;

/// Returns how long before it is made something becomes valid, with certificates of this lifetime.
pub(super) fn skew(lifetime: SignedDuration) -> SignedDuration {
    SKEW.min(lifetime / 12)
}

/// Makes an authority for certificates of this lifetime, which signs itself.
pub(super) fn new_authority(now: Timestamp, lifetime: SignedDuration) -> Result<CertificateAndKey, IssueError> {
    // A unique name, which distinguishes the authorities in a bundle
    let name = format!("topolvm webhook authority {now}");
    let valid = [now.checked_sub(skew(lifetime))?, now.checked_add(lifetime * AUTHORITY_LIFETIMES)?];
    let mut parameters = named(CertificateParams::default(), &name, valid);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate()?;
    let certificate = parameters.self_signed(&key)?.pem();
    Ok(CertificateAndKey::new(certificate.trim().to_owned(), key.serialize_pem())?)
}

/// Makes a certificate for a server of these names, which `authority` signs and which is valid for `lifetime` from now.
pub(super) fn sign(
    authority: &CertificateAndKey,
    names: &[String],
    now: Timestamp,
    lifetime: SignedDuration,
) -> Result<CertificateAndKey, IssueError> {
    let valid = [now.checked_sub(skew(lifetime))?, now.checked_add(lifetime)?];
    let mut parameters = named(CertificateParams::new(names)?, "topolvm webhook", valid);
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    parameters.use_authority_key_identifier_extension = true;
    let issuer = Issuer::from_ca_cert_pem(&authority.certificate, KeyPair::from_pem(&authority.key)?)?;
    let key = KeyPair::generate()?;
    let certificate = parameters.signed_by(&key, &issuer)?.pem();
    Ok(CertificateAndKey::new(certificate, key.serialize_pem())?)
}

/// Sets the name and the first and last moment of a certificate.
fn named(mut parameters: CertificateParams, name: &str, [from, until]: [Timestamp; 2]) -> CertificateParams {
    parameters.not_before = SystemTime::from(from).into();
    parameters.not_after = SystemTime::from(until).into();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters
}
