//! Clocks that were ahead when something was made, and that are set.

use std::cell::Cell;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Secret;
use prometheus_client::metrics::gauge::Gauge;
use rstest::rstest;
use serde_json::json;
use topolvm_runtime::tls::ServedCertificate;

use super::super::content::Content;
use super::super::issue::{new_authority, sign};
use super::super::{CertificateReconciler, SelfManaged};
use super::{Harness, LIFETIME, authorities, call, call_every_second, issue, names, now, settings};

/// Everything was made while the clock was ahead, or the certificate alone.
#[rstest]
#[case::of_a_valid_authority(SignedDuration::ZERO)]
#[case::with_its_authority(SignedDuration::from_hours(24))]
#[tokio::test(start_paused = true)]
async fn certificate_from_the_future_is_replaced_at_once(#[case] ahead: SignedDuration) {
    let harness = Harness::with_configuration();
    let authority = new_authority(now() + ahead, LIFETIME).unwrap();
    let certificate = sign(&authority, &names(), now() + SignedDuration::from_hours(24), LIFETIME).unwrap();
    harness.put(&Content::new(authority, certificate));
    let served = harness.replica();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let bundle = harness.bundle().unwrap();
    assert_eq!(call(&served, &bundle).await, Ok(()));
    assert_eq!(authorities(&bundle), 1);
    // And stays so, with what is left of the future
    call_every_second(&harness, &[served], 4).await;
}

#[tokio::test(start_paused = true)]
async fn authority_from_the_future_is_replaced_before_it_signs() {
    let harness = Harness::with_configuration();
    let (authority, certificate) = issue(&names(), now());
    let ahead = new_authority(now() + SignedDuration::from_hours(24), LIFETIME).unwrap();
    harness.put(&Content::new(authority, certificate).with_signer(ahead.clone()));
    let served = harness.replica();
    harness.until_published().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    call_every_second(&harness, &[served], 2).await;
    assert_ne!(harness.secret().unwrap().signer, Some(ahead));
}

#[tokio::test(start_paused = true)]
async fn clock_that_is_set_back_ends_a_pause() {
    thread_local!(static AHEAD: Cell<bool> = const { Cell::new(true) });
    let clock = || if AHEAD.get() { now() + SignedDuration::from_hours(24) } else { now() };
    let harness = Harness::with_configuration();
    let served = ServedCertificate::new("webhooks", Gauge::default());
    let settings = SelfManaged { lifetime: SignedDuration::from_hours(24), ..settings() };
    let reconciler = CertificateReconciler::new(harness.api.client(), settings, clock, served.clone());
    harness.tasks.spawn("webhook certificate", reconciler.run(harness.shutdown.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    AHEAD.set(false);
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(call(&served, &harness.bundle().unwrap()).await, Ok(()));
}

#[test]
fn last_write_of_the_secret_is_the_latest_of_its_managers() {
    let secret = json!({"metadata": {"managedFields": [
        {"manager": "a", "operation": "Update", "time": "2026-01-01T00:00:10Z"},
        {"manager": "b", "operation": "Update", "time": "2026-01-01T00:00:20Z"},
        {"manager": "c", "operation": "Update"},
    ]}});
    let written_at = Content::written_at(&serde_json::from_value(secret).unwrap());
    assert_eq!(written_at, Some("2026-01-01T00:00:20Z".parse().unwrap()));
    assert_eq!(Content::written_at(&Secret::default()), None);
}
