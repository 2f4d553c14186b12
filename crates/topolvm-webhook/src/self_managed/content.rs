//! The content of the Secret: the certificate that is served, and the authorities that API servers are to trust.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use topolvm_api::{CREATED_BY, CREATED_BY_LABEL};
use topolvm_runtime::tls::{CertificateError, CertificateInfo};

use super::certificate::{CertificateAndKey, is_valid};
use super::issue::skew;

/// Keys of the Secret. The first three are those of every Secret with a certificate.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITIES: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";
/// Keys in which an earlier version kept a new certificate until its authority was trusted.
const FORMER_KEYS: [&str; 2] = ["next.crt", "next.key"];

/// The end of one certificate in a PEM text.
const END: &str = "-----END CERTIFICATE-----";

/// A Secret that is not one of ours.
#[derive(Debug, thiserror::Error)]
pub(super) enum ContentError {
    #[error("it has no {0}")]
    Missing(&'static str),
    #[error("its {0} is not text")]
    NotText(&'static str),
    #[error("its {key} is damaged")]
    Damaged { key: &'static str, source: CertificateError },
}

/// The certificate of an authority, PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Authority {
    certificate: String,
    info: CertificateInfo,
}

/// The content of the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    /// The certificate that is served.
    pub(super) served: CertificateAndKey,
    /// The authority that signs the next certificate; none in a Secret of an earlier version, which forgot its key.
    pub(super) signer: Option<CertificateAndKey>,
    /// All that are to be trusted, the signer among them, the newest first.
    authorities: Vec<Authority>,
}

impl Content {
    /// Reads a Secret, also one of an earlier version.
    pub(super) fn read(secret: &Secret) -> Result<Self, ContentError> {
        let text = |key: &'static str| {
            let value = secret.data.as_ref().and_then(|data| data.get(key)).ok_or(ContentError::Missing(key))?;
            String::from_utf8(value.0.clone()).map_err(|_| ContentError::NotText(key))
        };
        let damaged = |key| move |source| ContentError::Damaged { key, source };
        let served = CertificateAndKey::new(text(CERTIFICATE)?, text(KEY)?).map_err(damaged(CERTIFICATE))?;
        let authorities = text(AUTHORITIES)?;
        let pems = authorities.split_inclusive(END).map(str::trim).filter(|pem| !pem.is_empty());
        let authorities = pems.map(|pem| {
            let info = CertificateInfo::from_pem(pem).map_err(damaged(AUTHORITIES))?;
            Ok::<_, ContentError>(Authority { certificate: pem.to_owned(), info })
        });
        let authorities: Vec<_> = authorities.collect::<Result<_, _>>()?;
        // Not always the first: an earlier version that still runs puts its own before it
        let signer = text(AUTHORITY_KEY).ok().and_then(|key| {
            authorities.iter().find_map(|a| CertificateAndKey::new(a.certificate.clone(), key.clone()).ok())
        });
        Ok(Self { served, signer, authorities })
    }

    /// The content with a new authority and its first certificate.
    pub(super) fn new(signer: CertificateAndKey, served: CertificateAndKey) -> Self {
        Self { served, signer: None, authorities: Vec::new() }.with_signer(signer)
    }

    /// Adds an authority that signs from now on. What is served stays.
    pub(super) fn with_signer(mut self, signer: CertificateAndKey) -> Self {
        let CertificateAndKey { certificate, info, .. } = signer.clone();
        self.authorities.insert(0, Authority { certificate, info });
        Self { signer: Some(signer), ..self }
    }

    /// Replaces the certificate that is served by one of the signer. Other authorities go when they are not valid, or
    /// when everything that they signed has expired: certificates of this lifetime, made before the newest authority
    /// was.
    pub(super) fn with_certificate(
        mut self,
        certificate: CertificateAndKey,
        lifetime: SignedDuration,
        now: Timestamp,
    ) -> Self {
        let signer = self.signer.as_ref().map(|signer| signer.certificate.clone());
        let valid = self.authorities.iter().filter(|authority| is_valid(&authority.info, now));
        let newest = valid.map(|authority| authority.info.not_before).max();
        let is_over = newest.is_some_and(|newest| now.duration_since(newest) >= lifetime + skew(lifetime));
        self.authorities.retain(|authority| {
            Some(&authority.certificate) == signer.as_ref() || (is_valid(&authority.info, now) && !is_over)
        });
        Self { served: certificate, ..self }
    }

    /// Returns whether the signer has signed what is served.
    pub(super) fn is_signed(&self) -> bool {
        self.signer.as_ref().is_some_and(|signer| signer.info.subject == self.served.info.issuer)
    }

    /// All authorities that are valid, PEM: what API servers are to trust.
    pub(super) fn bundle(&self, now: Timestamp) -> String {
        let valid = self.authorities.iter().filter(|authority| is_valid(&authority.info, now));
        valid.flat_map(|authority| [authority.certificate.as_str(), "\n"]).collect()
    }

    /// Returns when a Secret was last written, by the clock of the API server.
    pub(super) fn written_at(secret: &Secret) -> Option<Timestamp> {
        secret.metadata.managed_fields.iter().flatten().filter_map(|entry| entry.time.as_ref()).map(|time| time.0).max()
    }

    /// A new Secret with this content.
    pub(super) fn secret(&self, name: &str) -> Secret {
        let labels = BTreeMap::from([(CREATED_BY_LABEL.to_owned(), CREATED_BY.to_owned())]);
        let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
        let data = self.data().into_iter().map(|(key, value)| (key.to_owned(), ByteString(value.into())));
        Secret {
            metadata,
            data: Some(data.collect()),
            type_: Some("kubernetes.io/tls".to_owned()),
            ..Secret::default()
        }
    }

    /// A merge patch that gives the Secret this content, refused when the Secret has changed since it was read.
    pub(super) fn patch(&self, read: &Secret) -> Value {
        let data = self.data().into_iter().map(|(key, value)| (key, Some(ByteString(value.into()))));
        let data: BTreeMap<_, _> = data.chain(FORMER_KEYS.map(|key| (key, None))).collect();
        json!({"metadata": {"uid": read.metadata.uid, "resourceVersion": read.metadata.resource_version}, "data": data})
    }

    fn data(&self) -> BTreeMap<&'static str, String> {
        let authorities = self.authorities.iter().flat_map(|authority| [authority.certificate.as_str(), "\n"]);
        let signer = self.signer.iter().map(|signer| (AUTHORITY_KEY, signer.key.clone()));
        let served = [(CERTIFICATE, self.served.certificate.clone()), (KEY, self.served.key.clone())];
        served.into_iter().chain([(AUTHORITIES, authorities.collect())]).chain(signer).collect()
    }
}
