//! A certificate with its private key, as the Secret keeps it.

use std::fmt;

use jiff::Timestamp;
use topolvm_runtime::tls::{Certificate, CertificateError, CertificateInfo};

/// A certificate and its private key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct CertificateAndKey {
    pub(super) certificate: String,
    pub(super) key: String,
    pub(super) info: CertificateInfo,
}

impl fmt::Debug for CertificateAndKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the private key
        f.debug_struct("CertificateAndKey").field("info", &self.info).finish_non_exhaustive()
    }
}

impl CertificateAndKey {
    /// Checks that the private key is that of the certificate.
    pub(super) fn new(certificate: String, key: String) -> Result<Self, CertificateError> {
        let info = Certificate::from_pem(certificate.as_bytes(), key.as_bytes())?.info().clone();
        Ok(Self { certificate, key, info })
    }

    /// The form in which TLS serves it.
    pub(super) fn parse(&self) -> Result<Certificate, CertificateError> {
        Certificate::from_pem(self.certificate.as_bytes(), self.key.as_bytes())
    }

    pub(super) fn is_valid(&self, now: Timestamp) -> bool {
        is_valid(&self.info, now)
    }

    /// Returns whether it can be served under all these names.
    pub(super) fn is_for(&self, names: &[String]) -> bool {
        names.iter().all(|name| self.info.dns_names.contains(name))
    }

    /// Returns the time of its renewal: after two thirds of its lifetime.
    pub(super) fn renew_at(&self) -> Timestamp {
        let CertificateInfo { not_before, not_after, .. } = &self.info;
        *not_after - not_after.duration_since(*not_before) / 3
    }
}

/// Returns whether a certificate is valid now: one that was made while the clock was ahead is not valid yet, and API
/// servers refuse it like an expired one.
pub(super) fn is_valid(info: &CertificateInfo, now: Timestamp) -> bool {
    info.not_before <= now && now < info.not_after
}
