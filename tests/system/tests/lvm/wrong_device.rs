//! The node agent with a link in /dev that leads to another volume.

use std::path::Path;
use std::sync::Arc;

use kube::runtime::watcher::Event;
use lvmd::{Config, Engine, InstanceId, routes};
use tokio::sync::watch;
use tonic::{Code, Request, Status};
use topolvm_api::ApiFlavor;
use topolvm_kube::LogicalVolumeWriter;
use topolvm_node::Volumes;
use topolvm_node::capacity::DeviceClasses;
use topolvm_node::csi::{Agent, NodeService};
use topolvm_node::lvmd_client::LvmdClient;
use topolvm_node::mount::SystemMounter;
use topolvm_proto::csi::node_server::Node as _;
use topolvm_proto::csi::volume_capability::access_mode::Mode;
use topolvm_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use topolvm_proto::csi::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest, VolumeCapability};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::logical_volume;

use crate::fixture::{Groups, lvm, run_ok, wait};

pub(crate) const TESTS: &[(&str, fn())] =
    &[("a_link_to_another_volume_is_refused_and_that_volume_keeps_every_byte", a_link_to_another_volume)];

const CLASS: &str = "device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}]";

fn publish(access_type: AccessType) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: "v1".to_owned(),
        target_path: "/run/target/mount".to_owned(),
        volume_capability: Some(VolumeCapability {
            access_type: Some(access_type),
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        }),
        ..NodePublishVolumeRequest::default()
    }
}

fn a_link_to_another_volume() {
    let _groups = Groups::one();
    run_ok("lvcreate", &["-qy", "-L64m", "-n", "v1", "myvg1"]);
    run_ok("lvcreate", &["-qy", "-L64m", "-n", "other", "myvg1"]);
    // What nobody has a name for is formatted where it lies on the volume itself
    run_ok("dd", &["if=/dev/urandom", "of=/dev/myvg1/other", "bs=1M", "count=64", "oflag=direct"]);
    let sum = || run_ok("sha256sum", &["/dev/mapper/myvg1-other"]);
    let before = sum();
    wait(async {
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let classes = Config::parse("lvmd.yaml", CLASS).unwrap().classes;
        let maker = InstanceId::new(Path::new("lvmd.sock"), None);
        let engine = Engine::start(lvm(), classes, maker, &tasks, shutdown.clone()).await.unwrap();
        let lvmd = LvmdClient::over(routes(&engine));
        let (api, mut own) = (ApiServer::new(), LogicalVolumeWriter::default());
        let volume = logical_volume("pvc-1").on("n1").uid("v1").ready("v1", "64Mi").build();
        api.apply_json(volume.clone());
        for event in [Event::Init, Event::InitApply(volume), Event::InitDone] {
            own.apply(event);
        }
        let volumes = Volumes::new(ApiFlavor::TopoLvm, own.as_reader(), api.client(), "n1".to_owned());
        let device_classes = watch::Sender::new(DeviceClasses::default());
        let agent =
            Agent::new(volumes, lvmd, SystemMounter::new(), device_classes.subscribe(), "/dev/topolvm".into(), false);
        let node = NodeService::new(ApiFlavor::TopoLvm, "n1".to_owned(), Arc::new(agent), tasks.clone());
        let publish = async |access_type| -> Result<(), Status> {
            node.node_publish_volume(Request::new(publish(access_type))).await.map(drop)
        };

        std::fs::remove_file("/dev/myvg1/v1").unwrap();
        std::os::unix::fs::symlink("/dev/mapper/myvg1-other", "/dev/myvg1/v1").unwrap();
        for access_type in [AccessType::Mount(MountVolume::default()), AccessType::Block(BlockVolume {})] {
            let status = publish(access_type).await.unwrap_err();
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(status.message().contains("vgmknodes"), "{status}");
        }
        assert_eq!(sum(), before);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains("/run/target"), "{mounts}");

        // What the message says
        std::fs::remove_file("/dev/myvg1/v1").unwrap();
        run_ok("vgmknodes", &["-qq", "myvg1"]);
        publish(AccessType::Mount(MountVolume::default())).await.unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(
            mounts.lines().any(|line| line.contains("/run/target/mount") && line.contains(" /dev/myvg1/v1 ")),
            "{mounts}"
        );
        let unpublish =
            NodeUnpublishVolumeRequest { volume_id: "v1".to_owned(), target_path: "/run/target/mount".to_owned() };
        node.node_unpublish_volume(Request::new(unpublish)).await.unwrap();
        // The device is held by nobody any more
        run_ok("lvremove", &["-qqy", "myvg1/v1"]);
        assert_eq!(sum(), before);
        shutdown.cancel();
        tasks.wait().await.unwrap();
    });
}
