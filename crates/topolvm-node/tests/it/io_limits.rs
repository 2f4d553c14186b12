//! Limits of I/O: what objects and pods ask for, what the kernel of the machine has, and what the condition says.

use std::time::{Duration, Instant};

use node_io_limits::IoLimitSettings;
use serde_json::{Value, json};
use topolvm_proto::csi::node_client::NodeClient;
use topolvm_proto::csi::volume_capability::{AccessType, MountVolume};
use topolvm_proto::csi::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::logical_volume;

use crate::cluster::LV;
use crate::lvmd_process::LvmdProcess;
use crate::node::capability;
use crate::whole_agent::{Agent, until_ready};

const EVENTS: &str = "events.events.k8s.io";
const READ_BYTES: &str = "topolvm.io/read-bytes-per-second";
const WRITE_BYTES: &str = "topolvm.io/write-bytes-per-second";
const WRITES: &str = "topolvm.io/write-operations-per-second";
const CARINA_WRITE_BYTES: &str = "carina.storage.io/blkio.throttle.write_bps_device";
const VOLUME: &str = "pvc-1";
const POD: &str = "pod-uid";
/// Settings of an agent that reads no pods.
const WITHOUT_PODS: IoLimitSettings = IoLimitSettings { of_pods: false };

/// An agent with a volume and a pod.
struct Setup {
    api: ApiServer,
    agent: Agent,
    _lvmd: LvmdProcess,
}

impl Setup {
    /// Starts it with these annotations of the LogicalVolume and of the pod.
    async fn start(volume: Value, pod: Value) -> Self {
        Self::start_with(IoLimitSettings::default(), volume, pod).await
    }

    async fn start_with(settings: IoLimitSettings, volume: Value, pod: Value) -> Self {
        let api = ApiServer::new();
        let agent = Agent::start_with_io_limits(&api, settings).await;
        let lvmd = agent.lvmd().await;
        api.apply_json(logical_volume(VOLUME).uid("u1").build());
        until_ready(&api, VOLUME).await;
        let setup = Self { api, agent, _lvmd: lvmd };
        setup.annotate_volume(volume);
        setup.api.apply_json(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web-0", "namespace": "shop", "uid": POD, "annotations": pod},
            "spec": {"nodeName": "n1"},
        }));
        setup
    }

    fn annotate_volume(&self, annotations: Value) {
        self.api.edit(LV, "", VOLUME, |volume| volume["metadata"]["annotations"] = annotations);
    }

    fn annotate_pod(&self, annotations: Value) {
        self.api.edit("pods", "shop", "web-0", |pod| pod["metadata"]["annotations"] = annotations);
    }

    fn request(&self) -> NodePublishVolumeRequest {
        let context = [("pod.name", "web-0"), ("pod.namespace", "shop"), ("pod.uid", POD)];
        let context = context.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()));
        NodePublishVolumeRequest {
            volume_id: "u1".to_owned(),
            target_path: self.agent.dir.path().join("target").display().to_string(),
            volume_capability: Some(capability(AccessType::Mount(MountVolume::default()))),
            volume_context: context.into(),
            ..NodePublishVolumeRequest::default()
        }
    }

    async fn publish(&self) {
        NodeClient::new(self.agent.csi().await).node_publish_volume(self.request()).await.unwrap();
    }

    async fn unpublish(&self) {
        let NodePublishVolumeRequest { volume_id, target_path, .. } = self.request();
        let request = NodeUnpublishVolumeRequest { volume_id, target_path };
        NodeClient::new(self.agent.csi().await).node_unpublish_volume(request).await.unwrap();
    }

    fn limits(&self) -> String {
        self.agent.machine.cgroups().limits(POD)
    }

    /// Waits until the condition has this status, reason and message, all three empty if there is to be none.
    async fn until_condition(&self, status: &str, reason: &str, message: &str) {
        let wanted = [status, reason, message];
        let is_reached = |object: Option<&Value>| {
            let conditions = object?.pointer("/status/conditions")?.as_array()?;
            let limited = conditions.iter().find(|condition| condition["type"] == "IOLimited");
            let text = |key: &str| limited.and_then(|limited| limited[key].as_str()).unwrap_or_default();
            (["status", "reason", "message"].map(text) == wanted).then_some(())
        };
        self.api.until(LV, "", VOLUME, is_reached).await;
    }

    /// Waits until an Event on the pod has this reason, and returns its note.
    async fn event(&self, reason: &str) -> String {
        let name = |event: &Value| event["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        loop {
            let events = self.api.list_json(EVENTS);
            if let Some(event) = events.iter().find(|event| event["reason"] == reason && !name(event).is_empty()) {
                assert_eq!(event["regarding"]["uid"], POD);
                assert_eq!(event["regarding"]["namespace"], "shop");
                return event["note"].as_str().unwrap_or_default().to_owned();
            }
            tokio::task::yield_now().await;
        }
    }

    async fn stop(self) {
        self.agent.stop().await;
    }
}

#[tokio::test]
async fn io_limits_apply_before_the_pod_starts_and_follow_updates() {
    let setup = Setup::start(json!({WRITE_BYTES: "10Mi", WRITES: "70"}), json!({})).await;
    setup
        .until_condition(
            "Unknown",
            "NotPublished",
            "no pod uses the volume; limits of the next pod: bytes written 10Mi/s, writes 70/s",
        )
        .await;
    setup.publish().await;
    assert_eq!(setup.limits(), "bytes written 10Mi/s, writes 70/s");
    setup.until_condition("True", "LimitsInForce", "pod shop/web-0: bytes written 10Mi/s, writes 70/s").await;
    setup.annotate_volume(json!({WRITE_BYTES: "1Mi"}));
    setup.until_condition("True", "LimitsInForce", "pod shop/web-0: bytes written 1Mi/s").await;
    assert_eq!(setup.limits(), "bytes written 1Mi/s");
    setup.annotate_volume(json!({}));
    setup.until_condition("", "", "").await;
    assert_eq!(setup.limits(), "");
    setup.unpublish().await;
    setup.stop().await;
}

#[tokio::test]
async fn io_limits_of_a_pod_can_only_lower_those_of_its_volume() {
    let setup = Setup::start(json!({WRITE_BYTES: "10Mi"}), json!({WRITE_BYTES: "20Mi", READ_BYTES: "5Mi"})).await;
    setup.publish().await;
    assert_eq!(setup.limits(), "bytes read 5Mi/s, bytes written 10Mi/s");
    setup.annotate_pod(json!({CARINA_WRITE_BYTES: "1048576"}));
    setup.until_condition("True", "LimitsInForce", "pod shop/web-0: bytes written 1Mi/s").await;
    setup.annotate_pod(json!({"example.com/other": "a"}));
    setup.until_condition("True", "LimitsInForce", "pod shop/web-0: bytes written 10Mi/s").await;
    setup.annotate_volume(json!({}));
    setup.until_condition("", "", "").await;
    setup.annotate_pod(json!({READ_BYTES: "5Mi"}));
    setup.until_condition("True", "LimitsInForce", "pod shop/web-0: bytes read 5Mi/s").await;
    assert_eq!(setup.limits(), "bytes read 5Mi/s");
    setup.stop().await;
}

#[tokio::test]
async fn invalid_pod_io_limits_are_reported_and_volume_limits_stay() {
    let wrong = json!({WRITE_BYTES: "1Mi", CARINA_WRITE_BYTES: "1000000", READ_BYTES: "5Mi"});
    let setup = Setup::start(json!({WRITE_BYTES: "10Mi"}), wrong).await;
    setup.publish().await;
    assert_eq!(setup.limits(), "bytes written 10Mi/s");
    let problem =
        format!("{WRITE_BYTES} and {CARINA_WRITE_BYTES} set the same limit to different values; remove one of them");
    let message = format!("pod shop/web-0: {problem}; in force: bytes written 10Mi/s");
    setup.until_condition("False", "InvalidIOLimits", &message).await;
    assert_eq!(setup.event("InvalidIOLimits").await, problem);
    setup.annotate_pod(json!({READ_BYTES: "5Mi"}));
    setup.until_condition("True", "LimitsInForce", "pod shop/web-0: bytes read 5Mi/s, bytes written 10Mi/s").await;
    setup.stop().await;
}

#[tokio::test]
async fn limits_of_an_object_that_cannot_be_meant_change_nothing() {
    let setup = Setup::start(json!({WRITE_BYTES: "10Mi"}), json!({})).await;
    setup.publish().await;
    setup.annotate_volume(json!({WRITE_BYTES: "0"}));
    let message = format!(
        "LogicalVolume {VOLUME}: {WRITE_BYTES} is \"0\", which would block all I/O; set a limit greater than 0, or \
         omit it for no limit; the previous I/O limits stay in force"
    );
    setup.until_condition("False", "InvalidIOLimits", &message).await;
    assert_eq!(setup.limits(), "bytes written 10Mi/s");
    setup.stop().await;
}

#[tokio::test]
async fn io_limit_changes_during_an_agent_outage_apply_afterwards() {
    for (volume, pod, expected) in [
        (json!({WRITE_BYTES: "1Mi"}), json!({READ_BYTES: "5Mi"}), "bytes read 5Mi/s, bytes written 1Mi/s"),
        (json!({}), json!({}), ""),
    ] {
        let mut setup = Setup::start(json!({WRITE_BYTES: "10Mi"}), json!({})).await;
        setup.publish().await;
        setup.until_condition("True", "LimitsInForce", "pod shop/web-0: bytes written 10Mi/s").await;
        setup.api.disconnect();
        setup.annotate_volume(volume);
        setup.annotate_pod(pod);
        setup.agent = setup.agent.restart(&setup.api).await;
        setup.api.reconnect();
        let message = format!("pod shop/web-0: {expected}");
        match expected {
            "" => setup.until_condition("", "", "").await,
            _ => setup.until_condition("True", "LimitsInForce", &message).await,
        }
        assert_eq!(setup.limits(), expected);
        setup.stop().await;
    }
}

#[tokio::test]
async fn agent_without_pod_io_limits_reads_no_pods() {
    let pod = json!({WRITE_BYTES: "1Mi", READ_BYTES: "5Mi"});
    let setup = Setup::start_with(WITHOUT_PODS, json!({WRITE_BYTES: "10Mi"}), pod).await;
    setup.publish().await;
    assert_eq!(setup.limits(), "bytes written 10Mi/s");
    setup.until_condition("True", "LimitsInForce", "pod shop/web-0: bytes written 10Mi/s").await;
    setup.annotate_volume(json!({WRITE_BYTES: "20Mi"}));
    setup.until_condition("True", "LimitsInForce", "pod shop/web-0: bytes written 20Mi/s").await;
    assert_eq!(setup.limits(), "bytes written 20Mi/s");
    setup.annotate_volume(json!({}));
    setup.until_condition("", "", "").await;
    assert_eq!(setup.limits(), "");
    let of_pods: Vec<_> = setup.api.requests().into_iter().filter(|(_, path)| path.contains("/pods")).collect();
    assert!(of_pods.is_empty(), "{of_pods:?}");
    setup.stop().await;
}

#[tokio::test]
async fn pod_io_limits_end_when_they_are_switched_off() {
    for (volume, expected) in [(json!({WRITE_BYTES: "10Mi"}), "bytes written 10Mi/s"), (json!({}), "")] {
        let mut setup = Setup::start(volume, json!({WRITE_BYTES: "1Mi"})).await;
        setup.publish().await;
        setup.until_condition("True", "LimitsInForce", "pod shop/web-0: bytes written 1Mi/s").await;
        setup.agent = setup.agent.restart_with(&setup.api, WITHOUT_PODS).await;
        match expected {
            "" => setup.until_condition("", "", "").await,
            _ => setup.until_condition("True", "LimitsInForce", &format!("pod shop/web-0: {expected}")).await,
        }
        assert_eq!(setup.limits(), expected);
        setup.stop().await;
    }
}

#[tokio::test]
async fn limits_that_something_else_takes_away_are_set_again() {
    let setup = Setup::start(json!({WRITE_BYTES: "10Mi"}), json!({})).await;
    setup.publish().await;
    setup.until_condition("True", "LimitsInForce", "pod shop/web-0: bytes written 10Mi/s").await;
    // Again and again, until it is not done any more for something else that has happened before
    let (quiet, deadline) = (Duration::from_secs(1), Instant::now() + Duration::from_secs(20));
    loop {
        setup.agent.machine.cgroups().forget_limits();
        let lost = Instant::now();
        while setup.limits() != "bytes written 10Mi/s" {
            assert!(Instant::now() < deadline, "limits that are lost stay so");
            tokio::task::yield_now().await;
        }
        if lost.elapsed() > quiet {
            break;
        }
    }
    setup.annotate_volume(json!({}));
    setup.until_condition("", "", "").await;
    assert_eq!(setup.limits(), "");
    setup.stop().await;
}

#[tokio::test]
async fn io_limits_without_kernel_support_are_reported_and_pods_start() {
    let setup = Setup::start(json!({WRITE_BYTES: "10Mi"}), json!({})).await;
    setup.agent.machine.cgroups().lacks_controller = true;
    setup.publish().await;
    let note = setup.event("IOLimitsFailed").await;
    assert!(note.contains("no cgroup controller for I/O"), "{note}");
    setup.until_condition("False", "IOLimitsFailed", &format!("pod shop/web-0: {note}; in force: nothing")).await;
    setup.agent.machine.cgroups().lacks_controller = false;
    // kubelet updates the status of a pod on each change, such as the start of a container
    setup.api.edit("pods", "shop", "web-0", |pod| pod["status"] = json!({"phase": "Running"}));
    setup.until_condition("True", "LimitsInForce", "pod shop/web-0: bytes written 10Mi/s").await;
    setup.stop().await;
}

#[tokio::test]
async fn a_cgroup_that_kubelet_makes_a_moment_later_is_waited_for() {
    let setup = Setup::start(json!({WRITE_BYTES: "10Mi"}), json!({})).await;
    setup.agent.machine.cgroups().missing = 3;
    setup.publish().await;
    assert_eq!(setup.limits(), "bytes written 10Mi/s");
    assert!(setup.api.list_json(EVENTS).iter().all(|event| event["reason"] != "IOLimitsFailed"));
    setup.stop().await;
}

#[tokio::test]
async fn cgroups_are_not_inspected_without_a_requested_limit() {
    let setup = Setup::start(json!({}), json!({})).await;
    setup.publish().await;
    setup.api.edit("pods", "shop", "web-0", |pod| pod["status"] = json!({"phase": "Running"}));
    setup.annotate_volume(json!({"example.com/seen": "true"}));
    setup.unpublish().await;
    // So that all of it has been seen
    setup.annotate_volume(json!({WRITE_BYTES: "10Mi"}));
    setup
        .until_condition(
            "Unknown",
            "NotPublished",
            "no pod uses the volume; limits of the next pod: bytes written 10Mi/s",
        )
        .await;
    assert_eq!(setup.agent.machine.cgroups().asked, 0);
    setup.stop().await;
}
