//! Volumes that cannot be unmounted: the Events, without which users see a pod in Terminating and no reason.

use linux_mount::{MountHolder, ProcessName};
use serde_json::Value;
use tonic::{Code, Request};
use topolvm_proto::csi::node_server::Node as _;
use topolvm_proto::csi::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest};

use crate::cluster::LV;
use crate::node::{Node, device};

/// A process that works in a mount.
fn holder(pid: u32) -> Vec<MountHolder> {
    let process = ProcessName { pid, program: "tail".to_owned(), container: None };
    vec![MountHolder::Process { process, path: "/mnt/log".into() }]
}

/// Returns kind and name of the object, note and count of each Event, sorted. All are of failed unmounts.
fn events(node: &Node) -> Vec<(String, String, String, u64)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |event: &Value| {
        assert_eq!((&event["reason"], &event["type"]), (&"UnmountFailed".into(), &"Warning".into()));
        let (about, count) = (&event["regarding"], event["series"]["count"].as_u64().unwrap_or(1));
        (text(&about["kind"]), text(&about["name"]), text(&event["note"]), count)
    };
    let mut events: Vec<_> = node.api.list_json("events.events.k8s.io").iter().map(of).collect();
    events.sort();
    events
}

fn event(kind: &str, name: &str, note: &str, count: u64) -> (String, String, String, u64) {
    (kind.to_owned(), name.to_owned(), note.to_owned(), count)
}

/// Returns the request that publishes the volume to the pod `web-0`.
fn to_pod(node: &Node) -> NodePublishVolumeRequest {
    let context = [("name", "web-0"), ("namespace", "shop"), ("uid", "pod-uid")];
    let context = context.map(|(key, value)| (format!("csi.storage.k8s.io/pod.{key}"), value.to_owned()));
    NodePublishVolumeRequest { volume_context: context.into(), ..node.filesystem() }
}

#[tokio::test]
async fn busy_unmount_is_an_event_of_pod_and_volume_with_holders() {
    let node = Node::start().await;
    node.publish(to_pod(&node)).await.unwrap();
    let mut notes = Vec::new();
    for (pid, times) in [(7, 2), (8, 1)] {
        node.machine.hold_mounts(holder(pid));
        for _ in 0..times {
            let status = node.unpublish().await.unwrap_err();
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(status.message().contains(&format!("process {pid} (tail) uses /mnt/log")), "{status}");
            notes.push(status.message().to_owned());
        }
    }
    let [first, _, second] = <[String; 3]>::try_from(notes).unwrap();
    let expected = [("LogicalVolume", "pvc-1"), ("Pod", "web-0")]
        .map(|(kind, name)| [event(kind, name, &first, 2), event(kind, name, &second, 1)]);
    assert_eq!(events(&node), expected.as_flattened());

    node.machine.hold_mounts(Vec::new());
    node.unpublish().await.unwrap();
    assert_eq!((node.machine.mounts().len(), events(&node).len()), (0, 4));
}

#[tokio::test]
async fn busy_unstage_is_an_event_of_the_volume() {
    let node = Node::start().await;
    let staging = node.dir.path().join("globalmount");
    node.machine.mount_by_hand(&device(), &staging);
    node.machine.hold_mounts(holder(7));
    let staging_target_path = staging.display().to_string();
    let request = NodeUnstageVolumeRequest { volume_id: "v1".to_owned(), staging_target_path };
    let status = node.service.node_unstage_volume(Request::new(request)).await.unwrap_err();
    assert_eq!(events(&node), [event("LogicalVolume", "pvc-1", status.message(), 1)]);
}

#[tokio::test]
async fn busy_unmount_of_a_volume_without_object_is_an_event_of_pod() {
    let node = Node::start().await;
    node.copy_volume();
    let request = NodePublishVolumeRequest { volume_id: "v2".to_owned(), ..to_pod(&node) };
    let NodePublishVolumeRequest { volume_id, target_path, .. } = request.clone();
    node.publish(request).await.unwrap();
    node.api.delete(LV, "", "pvc-2");
    node.machine.hold_mounts(holder(7));
    let request = NodeUnpublishVolumeRequest { volume_id, target_path };
    let status = node.service.node_unpublish_volume(Request::new(request)).await.unwrap_err();
    assert_eq!(events(&node), [event("Pod", "web-0", status.message(), 1)]);
}
