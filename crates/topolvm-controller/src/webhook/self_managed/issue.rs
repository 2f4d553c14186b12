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
    #[error("the names or times cannot be in a certificate")]
    Rcgen(#[from] rcgen::Error),
    #[error("the certificate that was made cannot be read")]
    Unreadable(#[from] CertificateError),
    #[error("the certificate would be valid beyond the end of all time")]
    Time(#[from] jiff::Error),
}

/// Returns how long before it is made a certificate of this lifetime becomes valid.
pub(super) fn skew(lifetime: SignedDuration) -> SignedDuration {
    SKEW.min(lifetime / 12)
}

/// Makes an authority, which signs itself and is valid for `lifetime` from now.
pub(super) fn new_authority(now: Timestamp, lifetime: SignedDuration) -> Result<CertificateAndKey, IssueError> {
    // Its own name, so that the authorities in a bundle can be told apart
    let mut parameters =
        parameters(CertificateParams::default(), &format!("topolvm webhook authority {now}"), now, lifetime)?;
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
    let mut parameters = parameters(CertificateParams::new(names)?, "topolvm webhook", now, lifetime)?;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    parameters.use_authority_key_identifier_extension = true;
    let issuer = Issuer::from_ca_cert_pem(&authority.certificate, KeyPair::from_pem(&authority.key)?)?;
    let key = KeyPair::generate()?;
    let certificate = parameters.signed_by(&key, &issuer)?.pem();
    Ok(CertificateAndKey::new(certificate, key.serialize_pem())?)
}

fn parameters(
    mut parameters: CertificateParams,
    name: &str,
    now: Timestamp,
    lifetime: SignedDuration,
) -> Result<CertificateParams, jiff::Error> {
    parameters.not_before = SystemTime::from(now.checked_sub(skew(lifetime))?).into();
    parameters.not_after = SystemTime::from(now.checked_add(lifetime)?).into();
    parameters.distinguished_name.push(DnType::CommonName, name);
    Ok(parameters)
}
