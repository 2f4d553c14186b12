//! Usage, condition and health of volumes.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lvmd_client::{DeviceClass, DeviceClasses, ThinPool};
use rstest::rstest;
use tokio::time::Instant;
use tonic::{Code, Request, Status};
use topolvm_proto::csi::node_server::Node as _;
use topolvm_proto::csi::volume_health::VolumeHealthEntry;
use topolvm_proto::csi::volume_usage::Unit;
use topolvm_proto::csi::{
    NodeGetStorageHealthRequest, NodeGetVolumeHealthRequest, StorageHealthErrorType, VolumeHealthErrorType, VolumeUsage,
};
use topolvm_testkit::lvm::{FakeVolume, Fault};

use crate::lvmd_process::VG;
use crate::node::{GIB, Node, device};

const HEALTHY: &str = "volume is healthy and operating normally";

impl Node {
    async fn condition(&self) -> (bool, String) {
        let stats = self.usage_and_condition("v1", &self.target()).await.unwrap();
        let condition = stats.volume_condition.unwrap();
        (condition.abnormal, condition.message)
    }

    async fn health(&self) -> Vec<(VolumeHealthErrorType, String)> {
        let entries = self.health_entries().await.unwrap();
        entries.into_iter().map(|entry| (entry.status(), entry.reason)).collect()
    }

    async fn health_entries(&self) -> Result<Vec<VolumeHealthEntry>, Status> {
        let request = NodeGetVolumeHealthRequest {
            volume_id: "v1".to_owned(),
            volume_publish_path: self.target().display().to_string(),
            ..NodeGetVolumeHealthRequest::default()
        };
        let response = self.service.node_get_volume_health(Request::new(request)).await?.into_inner();
        let health = response.volume_health.unwrap();
        assert_eq!(health.volume_id, "v1");
        Ok(health.health_statuses)
    }

    async fn storage_health(&self) -> Vec<(StorageHealthErrorType, String)> {
        let request = Request::new(NodeGetStorageHealthRequest::default());
        let response = self.service.node_get_storage_health(request).await.unwrap().into_inner();
        response.backend_health.into_iter().map(|entry| (entry.status(), entry.reason)).collect()
    }
}

#[tokio::test]
async fn usage_of_a_filesystem_is_bytes_and_inodes() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    let gib = i64::try_from(GIB).unwrap();
    let bytes = VolumeUsage { available: gib / 2, total: gib, used: gib / 4, unit: Unit::Bytes.into() };
    let inodes = VolumeUsage { available: 89, total: 100, used: 11, unit: Unit::Inodes.into() };
    assert_eq!(node.stats("v1", &node.target()).await.unwrap(), [bytes, inodes]);
}

#[tokio::test]
async fn usage_of_a_block_volume_is_its_size() {
    let node = Node::start().await;
    node.publish(node.block()).await.unwrap();
    let size = VolumeUsage { total: i64::try_from(GIB).unwrap(), unit: Unit::Bytes.into(), ..VolumeUsage::default() };
    assert_eq!(node.stats("v1", &node.target()).await.unwrap(), [size]);
}

/// kubelet asks for each volume about once a minute.
#[tokio::test]
async fn a_volume_is_measured_without_a_list_of_the_others() {
    let mut node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    for number in 0..50 {
        node.lvm.add_volume(VG, &format!("other-{number}"), FakeVolume::thick(4 << 20));
    }
    let listed = node.restart_counting();
    for _ in 0..3 {
        assert_eq!(node.condition().await, (false, HEALTHY.to_owned()));
    }
    assert_eq!(listed.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn usage_at_a_path_where_nothing_is_published_is_not_found() {
    let node = Node::start().await;
    for path in [Path::new("some/path"), node.dir.path()] {
        let status = node.stats("v1", path).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound, "{status}");
    }
}

#[tokio::test]
async fn healthy_volume_check_starts_no_lvm_process() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    // Unlike in other tests here, lvmd does not rescan LVM
    node.lvm.show_devices();
    node.condition().await;
    let before = node.lvm.processes();
    assert_eq!(node.condition().await, (false, HEALTHY.to_owned()));
    assert_eq!(node.health().await, []);
    assert_eq!(node.storage_health().await, []);
    assert_eq!(node.lvm.processes(), before);
}

#[rstest]
#[case::filesystem(false)]
#[case::block(true)]
#[tokio::test]
async fn volume_condition_reports_lvm_problems_also_for_block(#[case] is_block: bool) {
    let node = Node::start().await;
    node.publish(if is_block { node.block() } else { node.filesystem() }).await.unwrap();
    node.lvm.edit_volume(VG, "v1", |volume| volume.attr = "-wi-a---p-".to_owned());
    let (abnormal, message) = node.condition().await;
    assert!(abnormal && message.contains("physical volume"), "{message}");
    assert_eq!(node.health().await, [(VolumeHealthErrorType::Inaccessible, "Partial".to_owned())]);
    assert!(!node.stats("v1", &node.target()).await.unwrap().is_empty(), "the usage is still reported");
}

#[tokio::test]
async fn full_thin_pool_is_the_condition_of_its_volumes_and_node() {
    let node = Node::start().await;
    node.publish(node.block()).await.unwrap();
    let pool = ThinPool { bytes: GIB, data_percent: 100.0, metadata_percent: 20.0, problem: None };
    let classes = vec![DeviceClass { name: "ssd".to_owned(), group_bytes: GIB, thin_pool: Some(pool), free_bytes: 0 }];
    let default_class = Some("ssd".to_owned());
    node.device_classes.send_replace(DeviceClasses { is_connected: true, classes, default_class });
    let (abnormal, message) = node.condition().await;
    assert!(abnormal && message.contains("100.0 % full"), "{message}");
    assert_eq!(node.health().await, [(VolumeHealthErrorType::Inaccessible, "ThinPoolFull".to_owned())]);
    let expected = (StorageHealthErrorType::StorageUnreachable, "ThinPoolFull".to_owned());
    assert_eq!(node.storage_health().await, [expected]);
}

/// The API server refuses the whole status of a pod with two conditions of the same status and reason.
#[tokio::test]
async fn volume_health_names_each_reason_once() {
    let node = Node::start().await;
    node.publish(node.block()).await.unwrap();
    node.lvm.edit_volume(VG, "v1", |volume| volume.attr = "-wi-a---p-".to_owned());
    let problem = "twi-aotzp-".parse::<lvm::LvAttr>().unwrap().problem();
    let thin_pool = Some(ThinPool { bytes: GIB, data_percent: 1.0, metadata_percent: 1.0, problem });
    let class = |name: &str| DeviceClass { name: name.to_owned(), group_bytes: GIB, thin_pool, free_bytes: 0 };
    let (classes, default_class) = (vec![class("ssd"), class("hdd")], Some("ssd".to_owned()));
    node.device_classes.send_replace(DeviceClasses { is_connected: true, classes, default_class });
    let [entry] = node.health_entries().await.unwrap().try_into().unwrap();
    assert_eq!((entry.status(), entry.reason.as_str()), (VolumeHealthErrorType::Inaccessible, "Partial"));
    assert!(entry.message.contains("; ") && entry.message.contains("device class ssd"), "{}", entry.message);
    let expected = (StorageHealthErrorType::StorageUnreachable, "Partial".to_owned());
    assert_eq!(node.storage_health().await, [expected]);
}

/// kubelet asks for one volume after the other, and keeps the last conditions of one for which it gets an error.
#[tokio::test]
async fn volume_health_is_an_error_soon_while_lvm_hangs() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    let mut hanging = node.lvm.pause("fullreport");
    let asked = Instant::now();
    let wait = async {
        hanging.reached().await;
        tokio::time::pause();
    };
    let (answer, ()) = tokio::join!(node.health_entries(), wait);
    assert_eq!(answer.unwrap_err().code(), Code::DeadlineExceeded);
    assert!(asked.elapsed() < Duration::from_secs(6));
    tokio::time::resume();
    hanging.resume();
    assert_eq!(node.health().await, []);
}

#[tokio::test]
async fn failed_lvmd_list_hides_no_usage_and_is_not_abnormal() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.lvm.fail_always("fullreport", Fault::says("cannot read"));
    assert_eq!(node.stats("v1", &node.target()).await.unwrap().len(), 2);
    let (abnormal, message) = node.condition().await;
    assert!(!abnormal && message.contains("unknown"), "{message}");
}

#[tokio::test]
async fn an_lv_that_is_gone_from_lvm_is_a_loss_of_data() {
    let node = Node::start().await;
    node.lvm.remove_volume(VG, "v1");
    assert_eq!(node.health().await, [(VolumeHealthErrorType::DataLoss, "LogicalVolumeMissing".to_owned())]);
}

#[tokio::test]
async fn a_filesystem_that_the_kernel_has_made_read_only_is_degraded() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.machine.stop_writes(&device());
    let (abnormal, message) = node.condition().await;
    assert!(abnormal && message.contains("read-only"), "{message}");
    assert_eq!(node.health().await, [(VolumeHealthErrorType::Degraded, "FilesystemReadOnly".to_owned())]);
}

#[tokio::test]
async fn filesystem_on_a_failed_disk_is_abnormal_and_inaccessible() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.machine.fail(&node.target());
    let (abnormal, message) = node.condition().await;
    assert!(abnormal && message.contains("Input/output error"), "{message}");
    assert_eq!(node.health().await, [(VolumeHealthErrorType::Inaccessible, "FilesystemUnreadable".to_owned())]);
}

#[tokio::test]
async fn hung_disk_costs_one_thread_for_all_condition_calls() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.machine.hang(&node.target());
    let before = node.machine.inspections();
    for _ in 0..3 {
        let (abnormal, message) = node.condition().await;
        assert!(abnormal && message.contains("does not answer"), "{message}");
    }
    assert_eq!(node.machine.inspections(), before + 1);
    node.machine.answer();
    assert_eq!(node.condition().await, (false, HEALTHY.to_owned()));
}

#[tokio::test]
async fn health_of_an_unknown_volume_is_not_found() {
    let node = Node::start().await;
    let ask = async |id: &str| {
        let request = NodeGetVolumeHealthRequest { volume_id: id.to_owned(), ..NodeGetVolumeHealthRequest::default() };
        node.service.node_get_volume_health(Request::new(request)).await.unwrap_err().code()
    };
    assert_eq!(ask("").await, Code::InvalidArgument);
    assert_eq!(ask("v2").await, Code::NotFound);
}

#[tokio::test]
async fn storage_health_is_unreachable_while_lvmd_is_away() {
    let node = Node::start().await;
    node.device_classes.send_modify(|device_classes| device_classes.is_connected = false);
    let expected = (StorageHealthErrorType::StorageUnreachable, "LvmdUnreachable".to_owned());
    assert_eq!(node.storage_health().await, [expected]);
}
