//! Decides what to do next with the certificate. Pure.

use jiff::{SignedDuration, Timestamp};

use super::certificate::CertificateAndKey;
use super::content::Content;

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing before this time.
    Wait(Timestamp),
    /// Make an authority and a certificate, and serve it at once: nothing that could be served is trusted.
    StartOver,
    /// Create an authority that signs from now on, next to those of this content.
    NewAuthority(Content),
    /// Serve a new certificate of this authority in the place of the one in this content.
    NewCertificate { content: Content, signer: CertificateAndKey },
}

/// Decides the next step for a Secret with this content, or for a missing one. `held` is its content when it was last
/// read; `settled` is when all API servers trust its authorities, as far as that is known.
pub(super) fn next_step(
    content: Option<&Content>,
    held: Option<&Content>,
    names: &[String],
    lifetime: SignedDuration,
    now: Timestamp,
    settled: Option<Timestamp>,
) -> Step {
    let Some(content) = content else {
        // The deletion of the Secret requests a complete renewal, but until that is trusted the old certificate is
        // served
        return match held {
            Some(held) if held.served.is_valid(now) => Step::NewAuthority(held.clone()),
            Some(_) | None => Step::StartOver,
        };
    };
    let served = &content.served;
    // An authority signs as long as it outlives what it signs
    let signer = content.signer.as_ref().map(|signer| (signer, signer.info.not_after - lifetime));
    let signer = signer.filter(|(signer, until)| signer.is_valid(now) && now < *until);
    let Some((signer, signs_until)) = signer else {
        return if served.is_valid(now) { Step::NewAuthority(content.clone()) } else { Step::StartOver };
    };
    let new_certificate = || Step::NewCertificate { content: content.clone(), signer: signer.clone() };
    let is_due = served.renew_at() <= now || !served.is_for(names) || !content.is_signed();
    let expiry = served.info.not_after;
    match settled {
        // The old one is refused anyway
        _ if !served.is_valid(now) => new_certificate(),
        _ if !is_due => Step::Wait(served.renew_at().min(signs_until)),
        Some(settled) if settled <= now => new_certificate(),
        settled => Step::Wait(settled.map_or(expiry, |settled| settled.min(expiry))),
    }
}
