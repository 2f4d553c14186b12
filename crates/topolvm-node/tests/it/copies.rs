//! Snapshots, restores and clones, as the reconciler makes them in a thin pool.

use std::sync::Arc;

use rstest::rstest;
use serde_json::{Value, json};
use topolvm_api::LogicalVolume;
use topolvm_node::reconcile::{ReconcileError, Reconciler};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{LogicalVolumeBuilder, logical_volume};
use topolvm_testkit::lvm::{FakeLvm, FakeVolume};

use crate::cluster::{LV, reconciler, without_conditions};
use crate::lvmd_process::{LvmdProcess, THIN_CLASS, VG};

const GIB: u64 = 1 << 30;

/// A cluster whose node `n1` has a volume of 1 GiB in a thin pool: object `pvc-0`, LV `u0`.
struct Cluster {
    api: ApiServer,
    lvm: FakeLvm,
    reconciler: Reconciler,
    _lvmd: LvmdProcess,
}

impl Cluster {
    async fn start() -> Self {
        let lvm = FakeLvm::new().with_group(VG, 10 * GIB);
        lvm.add_volume(VG, "pool", FakeVolume::thin_pool(5 * GIB));
        lvm.add_volume(VG, "u0", FakeVolume::thin(GIB, "pool"));
        let lvmd = LvmdProcess::start(&lvm, THIN_CLASS).await;
        let api = ApiServer::new();
        api.apply_json(marked("pvc-0", "u0").ready("u0", "1Gi").build());
        let reconciler = reconciler(&api, lvmd.client());
        Self { api, lvm, reconciler, _lvmd: lvmd }
    }

    /// Reconciles an object and returns its status.
    async fn reconcile(&self, name: &str) -> Result<Value, ReconcileError> {
        let volume: LogicalVolume = serde_json::from_value(self.api.get_json(LV, "", name).unwrap()).unwrap();
        self.reconciler.reconcile(Arc::new(volume)).await?;
        Ok(without_conditions(&self.api.get_json(LV, "", name).unwrap()).unwrap_or_default())
    }

    /// The status of a new object after it was reconciled.
    async fn make(&self, volume: LogicalVolumeBuilder) -> Result<Value, ReconcileError> {
        let volume = volume.build();
        let name = volume.spec.name.clone();
        self.api.apply_json(volume);
        self.reconcile(&name).await
    }
}

/// As the controller creates it.
fn marked(name: &str, uid: &str) -> LogicalVolumeBuilder {
    logical_volume(name)
        .uid(uid)
        .finalizer("topolvm.io/logicalvolume")
        .label("app.kubernetes.io/created-by", "topolvm-controller")
}

#[tokio::test]
async fn a_snapshot_is_a_read_only_copy_of_its_source() {
    let cluster = Cluster::start().await;
    let status = cluster.make(marked("snapshot-1", "u1").from_source("pvc-0", "ro")).await.unwrap();
    assert_eq!(status, json!({"volumeID": "u1", "currentSize": "1Gi"}));
    let snapshot = cluster.lvm.volume(VG, "u1").unwrap();
    assert!(snapshot.attr.starts_with("Vri"), "{}", snapshot.attr);
    assert!(snapshot.tags.contains(&"topolvm.io/logicalvolume=snapshot-1".to_owned()), "{:?}", snapshot.tags);
}

#[tokio::test]
async fn a_restored_volume_is_writable_and_may_be_larger() {
    let cluster = Cluster::start().await;
    let status = cluster.make(marked("pvc-1", "u1").from_source("pvc-0", "rw").sized("2Gi")).await.unwrap();
    assert_eq!(status, json!({"volumeID": "u1", "currentSize": "2Gi"}));
    assert!(cluster.lvm.volume(VG, "u1").unwrap().attr.starts_with("Vwi"));
}

#[tokio::test]
async fn copy_repeated_after_a_lost_answer_is_not_created_twice() {
    let cluster = Cluster::start().await;
    cluster.api.fail_next("patch", LV, 1, 503);
    cluster.make(marked("pvc-1", "u1").from_source("pvc-0", "rw")).await.unwrap_err();
    let status = cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(status, json!({"volumeID": "u1", "currentSize": "1Gi"}));
    assert_eq!(cluster.lvm.count("lvcreate"), 1);
}

#[rstest]
#[case::missing_source(marked("pvc-1", "u1").from_source("pvc-9", "rw"), 5)]
#[case::bad_access_type(marked("pvc-1", "u1").from_source("pvc-0", "rwx"), 3)]
#[case::no_access_type(marked("pvc-1", "u1").from_source("pvc-0", ""), 3)]
#[case::too_small(marked("pvc-1", "u1").from_source("pvc-0", "rw").sized("512Mi"), 11)]
#[case::no_space(marked("pvc-1", "u1").from_source("pvc-0", "rw").sized("90Gi"), 8)]
#[tokio::test]
async fn failed_copy_is_reported_in_the_status(#[case] copy: LogicalVolumeBuilder, #[case] code: i32) {
    let cluster = Cluster::start().await;
    let status = cluster.make(copy).await.unwrap();
    assert_eq!(status.get("code"), Some(&json!(code)), "{status}");
    assert_eq!(status.get("volumeID"), None);
    assert_eq!(cluster.lvm.volumes(VG), ["pool", "u0"]);
}

#[tokio::test]
async fn copy_source_on_another_node_or_failed_is_reported_in_status() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(marked("pvc-far", "u8").on("n2").ready("u8", "1Gi").build());
    cluster.api.apply_json(marked("pvc-bad", "u9").failed(8, "full").build());
    for (name, source) in [("pvc-1", "pvc-far"), ("pvc-2", "pvc-bad")] {
        let status = cluster.make(marked(name, name).from_source(source, "rw")).await.unwrap();
        assert_eq!(status.get("code"), Some(&json!(9)), "{status}");
    }
}

#[tokio::test]
async fn a_source_that_is_still_being_made_is_waited_for() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(marked("pvc-1", "u1").build());
    let error = cluster.make(marked("pvc-2", "u2").from_source("pvc-1", "rw")).await.unwrap_err();
    assert!(matches!(error, ReconcileError::SourceNotReady(_)), "{error}");
    cluster.reconcile("pvc-1").await.unwrap();
    let status = cluster.reconcile("pvc-2").await.unwrap();
    assert_eq!(status.get("volumeID"), Some(&json!("u2")));
}
