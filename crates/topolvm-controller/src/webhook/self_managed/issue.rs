//! Makes a certificate together with the authority that signs it.

use std::time::SystemTime;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use topolvm_runtime::tls::{CertificateError, CertificateInfo};

/// How far the clocks of API servers may be behind ours.
const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Why no certificate was made.
#[derive(Debug, thiserror::Error)]
pub(super) enum IssueError {
    #[error("the names or times cannot be in a certificate")]
    Rcgen(#[from] rcgen::Error),
    #[error("the certificate that was made cannot be read")]
    Unreadable(#[from] CertificateError),
    #[error("the certificate would be valid beyond the end of all time")]
    Time(#[from] jiff::Error),
}

/// A certificate, its private key and its authority, PEM.
pub(super) struct Issued {
    pub(super) certificate: String,
    pub(super) key: String,
    pub(super) authority: String,
    pub(super) facts: CertificateInfo,
}

/// A certificate for a server of these names, valid for `lifetime` from now.
pub(super) fn issue(names: &[String], now: Timestamp, lifetime: SignedDuration) -> Result<Issued, IssueError> {
    let not_before = now.checked_sub(SKEW.min(lifetime / 12))?;
    let not_after = now.checked_add(lifetime)?;
    let valid = |mut parameters: CertificateParams, name: String| {
        parameters.not_before = SystemTime::from(not_before).into();
        parameters.not_after = SystemTime::from(not_after).into();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters
    };

    // Its own name, so that the authorities in a bundle can be told apart
    let mut authority = valid(CertificateParams::default(), format!("topolvm webhook authority {now}"));
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority_key = KeyPair::generate()?;
    let authority_pem = authority.self_signed(&authority_key)?.pem();

    let mut server = valid(CertificateParams::new(names)?, "topolvm webhook".to_owned());
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    server.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let certificate = server.signed_by(&key, &Issuer::new(authority, authority_key))?.pem();
    let facts = CertificateInfo::from_pem(&certificate)?;
    Ok(Issued { certificate, key: key.serialize_pem(), authority: authority_pem, facts })
}
