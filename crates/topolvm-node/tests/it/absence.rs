//! Answers of lvmd that prove that an LV is gone, and others. The answers are bytes on the wire, as lvmds of any make
//! send them.

use std::convert::Infallible;

use lvmd_client::{Absence, LvmdClient};
use rstest::rstest;
use topolvm_node::reconcile::ReconcileError;

use crate::cluster::{Cluster, LV, fresh, reconciler};

/// `google.rpc.Status` with an `ErrorInfo`: `LV_NOT_FOUND` of `lvmd.topolvm.io`.
const LV_NOT_FOUND: &str = "CAUSBGdvbmUaSwoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLkVycm9ySW5mbxIf\
    CgxMVl9OT1RfRk9VTkQSD2x2bWQudG9wb2x2bS5pbw";
/// The same with `VG_NOT_FOUND`.
const VG_NOT_FOUND: &str = "CAUSBGdvbmUaSwoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLkVycm9ySW5mbxIf\
    CgxWR19OT1RfRk9VTkQSD2x2bWQudG9wb2x2bS5pbw";
/// `LV_NOT_FOUND` of `example.com`.
const OF_ANOTHER: &str =
    "CAUSBGdvbmUaRwoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLkVycm9ySW5mbxIbCgxMVl9OT1RfRk9VTkQSC2V4YW1wbGUuY29t";

/// An lvmd that answers "not found" to everything, with these details if any.
fn lvmd(details: &'static str) -> LvmdClient {
    LvmdClient::over(tower::service_fn(move |_request| async move {
        let mut answer = http::Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", "5")
            .header("grpc-message", "gone");
        if !details.is_empty() {
            answer = answer.header("grpc-status-details-bin", details);
        }
        Ok::<_, Infallible>(answer.body(tonic::body::Body::empty()).unwrap())
    }))
}

#[rstest]
#[case::with_proof(LV_NOT_FOUND, Absence::Proven)]
#[case::of_the_group(VG_NOT_FOUND, Absence::Unknown)]
#[case::of_topolvm("", Absence::Claimed)]
#[case::in_another_ones_words(OF_ANOTHER, Absence::Claimed)]
#[case::with_garbage("////", Absence::Claimed)]
#[tokio::test]
async fn a_reason_counts_more_than_the_code(#[case] details: &'static str, #[case] expected: Absence) {
    let error = lvmd(details).remove("u1", "ssd").await.unwrap_err();
    assert_eq!((error.absence(), error.detail().as_str()), (expected, "gone"));
}

/// An object whose LV this lvmd is asked to remove, and what comes of it.
async fn delete(details: &'static str) -> (Cluster, Result<(), ReconcileError>) {
    let mut cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.reconciler = reconciler(&cluster.api, lvmd(details));
    cluster.api.delete(LV, "", "pvc-1");
    let done = cluster.reconcile("pvc-1").await.map(drop);
    (cluster, done)
}

#[tokio::test]
async fn a_proven_absence_lets_the_object_go_without_another_call() {
    let (cluster, done) = delete(LV_NOT_FOUND).await;
    done.unwrap();
    assert!(cluster.api.get_json(LV, "", "pvc-1").is_none());
}

#[rstest]
#[case::its_group_is_missing(VG_NOT_FOUND)]
#[case::no_list_confirms_what_topolvm_claims("")]
#[tokio::test]
async fn an_absence_that_is_not_proven_keeps_the_object(#[case] details: &'static str) {
    let (cluster, done) = delete(details).await;
    assert!(matches!(done, Err(ReconcileError::Remove(_))), "{done:?}");
    assert!(cluster.api.get_json(LV, "", "pvc-1").is_some());
}
