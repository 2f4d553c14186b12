//! What the Secret has: the certificate that is served, the one that comes next, and the authorities to trust.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use topolvm_api::{CREATED_BY, CREATED_BY_LABEL};
use topolvm_runtime::tls::{Certificate, CertificateError, CertificateInfo};

use super::issue::Issued;

/// Keys of the Secret. The first three are those of every Secret with a certificate.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITIES: &str = "ca.crt";
const NEXT_CERTIFICATE: &str = "next.crt";
const NEXT_KEY: &str = "next.key";

/// Where one certificate of a PEM text ends.
const END: &str = "-----END CERTIFICATE-----";

/// Why a Secret is not one of ours.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoredError {
    #[error("it has no {0}")]
    Missing(&'static str),
    #[error("its {0} is not text")]
    NotText(&'static str),
    #[error("its {key} is damaged: {source}")]
    Damaged { key: &'static str, source: CertificateError },
}

/// A certificate and its private key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pair {
    certificate: String,
    key: String,
    pub(super) facts: CertificateInfo,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the private key
        f.debug_struct("Pair").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Pair {
    fn read(certificate: String, key: String, name: &'static str) -> Result<Self, StoredError> {
        let damaged = |source| StoredError::Damaged { key: name, source };
        let pair = Certificate::from_pem(certificate.as_bytes(), key.as_bytes()).map_err(damaged)?;
        Ok(Self { certificate, key, facts: pair.info().clone() })
    }

    /// As TLS takes it.
    pub(super) fn keyed(&self) -> Result<Certificate, CertificateError> {
        Certificate::from_pem(self.certificate.as_bytes(), self.key.as_bytes())
    }

    pub(super) fn is_valid(&self, now: Timestamp) -> bool {
        now < self.facts.not_after
    }

    /// Whether it can be served under all these names.
    pub(super) fn is_for(&self, names: &[String]) -> bool {
        names.iter().all(|name| self.facts.dns_names.contains(name))
    }

    /// After two thirds of its life.
    pub(super) fn renew_at(&self) -> Timestamp {
        let CertificateInfo { not_before, not_after, .. } = &self.facts;
        *not_after - not_after.duration_since(*not_before) / 3
    }
}

/// The certificate of an authority, PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Authority {
    certificate: String,
    not_after: Timestamp,
}

/// What the Secret has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// What is served.
    pub(super) current: Pair,
    /// What will be served when its authority is known to the API servers.
    pub(super) next: Option<Pair>,
    /// The newest first.
    authorities: Vec<Authority>,
}

impl Stored {
    /// Reads a Secret.
    pub(super) fn read(secret: &Secret) -> Result<Self, StoredError> {
        let text = |key: &'static str| {
            let value = secret.data.as_ref().and_then(|data| data.get(key)).ok_or(StoredError::Missing(key))?;
            String::from_utf8(value.0.clone()).map_err(|_| StoredError::NotText(key))
        };
        let next = match text(NEXT_CERTIFICATE) {
            Err(StoredError::Missing(_)) => None,
            certificate => Some(Pair::read(certificate?, text(NEXT_KEY)?, NEXT_CERTIFICATE)?),
        };
        let authorities = text(AUTHORITIES)?;
        let authorities = authorities.split_inclusive(END).map(str::trim).filter(|pem| !pem.is_empty()).map(authority);
        Ok(Self {
            current: Pair::read(text(CERTIFICATE)?, text(KEY)?, CERTIFICATE)?,
            next,
            authorities: authorities.collect::<Result<_, _>>()?,
        })
    }

    /// A certificate where there was none.
    pub(super) fn fresh(issued: Issued) -> Self {
        let (current, authority) = taken(issued);
        Self { current, next: None, authorities: vec![authority] }
    }

    /// With a certificate beside the one that is served, and without authorities that have expired.
    pub(super) fn staged(self, issued: Issued, now: Timestamp) -> Self {
        let (next, authority) = taken(issued);
        let old = self.authorities.into_iter().filter(|authority| now < authority.not_after);
        Self { current: self.current, next: Some(next), authorities: [authority].into_iter().chain(old).collect() }
    }

    /// With the next certificate as the one that is served.
    pub(super) fn promoted(&self, next: &Pair) -> Self {
        Self { current: next.clone(), next: None, authorities: self.authorities.clone() }
    }

    /// All authorities that are still valid, PEM: what API servers are to trust.
    pub(super) fn bundle(&self, now: Timestamp) -> String {
        let valid = self.authorities.iter().filter(|authority| now < authority.not_after);
        valid.flat_map(|authority| [authority.certificate.as_str(), "\n"]).collect()
    }

    /// As a new Secret.
    pub(super) fn secret(&self, name: &str) -> Secret {
        let labels = BTreeMap::from([(CREATED_BY_LABEL.to_owned(), CREATED_BY.to_owned())]);
        let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
        let data = self.data().into_iter().filter_map(|(key, value)| Some((key.to_owned(), ByteString(value?.into()))));
        Secret {
            metadata,
            data: Some(data.collect()),
            type_: Some("kubernetes.io/tls".to_owned()),
            ..Secret::default()
        }
    }

    /// A merge patch for the Secret as it was read, refused when it has changed since.
    pub(super) fn patch(&self, read: &Secret) -> Value {
        let data: BTreeMap<_, _> =
            self.data().into_iter().map(|(key, value)| (key, value.map(|value| ByteString(value.into())))).collect();
        json!({"metadata": {"uid": read.metadata.uid, "resourceVersion": read.metadata.resource_version}, "data": data})
    }

    fn data(&self) -> [(&'static str, Option<String>); 5] {
        let authorities =
            self.authorities.iter().flat_map(|authority| [authority.certificate.as_str(), "\n"]).collect();
        [
            (CERTIFICATE, Some(self.current.certificate.clone())),
            (KEY, Some(self.current.key.clone())),
            (AUTHORITIES, Some(authorities)),
            (NEXT_CERTIFICATE, self.next.as_ref().map(|next| next.certificate.clone())),
            (NEXT_KEY, self.next.as_ref().map(|next| next.key.clone())),
        ]
    }
}

fn authority(pem: &str) -> Result<Authority, StoredError> {
    let facts = CertificateInfo::from_pem(pem).map_err(|source| StoredError::Damaged { key: AUTHORITIES, source })?;
    Ok(Authority { certificate: pem.to_owned(), not_after: facts.not_after })
}

fn taken(issued: Issued) -> (Pair, Authority) {
    let Issued { certificate, key, authority, facts } = issued;
    let authority = Authority { certificate: authority.trim().to_owned(), not_after: facts.not_after };
    (Pair { certificate, key, facts }, authority)
}
