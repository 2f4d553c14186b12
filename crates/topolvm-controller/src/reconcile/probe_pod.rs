//! The probe pod, and the answer of kube-scheduler. Pure.
//!
//! It requests the resource that only the extender's entry in kube-scheduler's configuration makes acceptable, so that
//! a kube-scheduler without that entry refuses it, and a device class that no node has, so that the extender refuses
//! it. In neither case can it run. Its condition `PodScheduled` shows which of the two has refused it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, Pod, PodSpec, ResourceRequirements, SeccompProfile, SecurityContext, Toleration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use topolvm_api::ApiFlavor;

/// Name of the probe pod.
pub(super) const PROBE_POD: &str = "topolvm-extender-probe";
/// Device class that the pod asks for.
const DEVICE_CLASS: &str = "extender-probe.topolvm.io";
/// Bytes of it, as many as no node has: 1 EiB.
const BYTES: u64 = 1 << 60;
/// Reasons for which an extender, ours or TopoLVM's, refuses a node.
const REASONS: [&str; 3] = ["no capacity annotation", "out of VG free space", "bad capacity annotation"];

/// The answer of kube-scheduler to the probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The extender has refused the pod.
    Called,
    /// kube-scheduler has refused it for want of the resource, with this message.
    NotCalled(String),
    /// Neither; the text describes the answer.
    Unclear(String),
}

/// Returns the pod. It passes all filters that come before the extender: it fits on every node, whatever the taints.
/// PodSecurity admits it at the level `restricted`. Should it be scheduled all the same, its image is not pulled.
pub(super) fn probe_pod(flavor: ApiFlavor) -> Pod {
    let resource = BTreeMap::from([(flavor.capacity_resource().to_owned(), Quantity("1".to_owned()))]);
    let container = Container {
        name: "probe".to_owned(),
        image: Some("topolvm.invalid/extender-probe".to_owned()),
        image_pull_policy: Some("Never".to_owned()),
        resources: Some(ResourceRequirements {
            limits: Some(resource.clone()),
            requests: Some(resource),
            ..ResourceRequirements::default()
        }),
        security_context: Some(restricted()),
        ..Container::default()
    };
    let what_for = "tests whether kube-scheduler calls topolvm-scheduler; never runs, and is deleted immediately";
    let annotations = [
        (flavor.capacity_annotation(DEVICE_CLASS), BYTES.to_string()),
        (flavor.extender_probe().to_owned(), what_for.to_owned()),
    ];
    Pod {
        metadata: ObjectMeta {
            name: Some(PROBE_POD.to_owned()),
            labels: Some([("app.kubernetes.io/component".to_owned(), "extender-probe".to_owned())].into()),
            annotations: Some(annotations.into()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![container],
            tolerations: Some(vec![Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() }]),
            restart_policy: Some("Never".to_owned()),
            termination_grace_period_seconds: Some(0),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

/// Returns the security context that PodSecurity demands at the level `restricted`.
fn restricted() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() }),
        ..SecurityContext::default()
    }
}

/// Returns the answer in the pod's condition; `None` while kube-scheduler has not tried to schedule it.
pub(super) fn read_answer(flavor: ApiFlavor, pod: &Pod) -> Option<Answer> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
    if scheduled.status == "True" {
        return Some(Answer::Unclear(
            "the probe pod was scheduled although topolvm-scheduler rejects it on all nodes".to_owned(),
        ));
    }
    if scheduled.reason.as_deref() == Some("SchedulingGated") {
        return None;
    }
    let message = scheduled.message.clone().unwrap_or_default();
    let is_insufficient = message.contains(&format!("Insufficient {}", flavor.capacity_resource()));
    Some(if is_insufficient {
        Answer::NotCalled(message)
    } else if REASONS.iter().any(|reason| message.contains(reason)) {
        Answer::Called
    } else {
        Answer::Unclear(message)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn answer(status: &str, reason: &str, message: &str) -> Option<Answer> {
        let mut pod = json!(probe_pod(ApiFlavor::TopoLvm));
        let condition = json!({"type": "PodScheduled", "status": status, "reason": reason, "message": message});
        pod["status"] = json!({"conditions": [condition]});
        read_answer(ApiFlavor::TopoLvm, &serde_json::from_value(pod).unwrap())
    }

    #[rstest]
    #[case("0/2 nodes are available: 2 no capacity annotation. preemption: 0/2 nodes are available: ...")]
    #[case("0/1 nodes are available: 1 out of VG free space.")]
    #[case("0/3 nodes are available: 1 Too many pods, 2 no capacity annotation.")]
    fn a_reason_of_the_extender_proves_that_it_is_called(#[case] message: &str) {
        assert_eq!(answer("False", "Unschedulable", message), Some(Answer::Called));
    }

    #[rstest]
    #[case("0/1 nodes are available: 1 Insufficient topolvm.io/capacity.")]
    #[case("0/2 nodes are available: 1 Too many pods, 2 Insufficient topolvm.io/capacity. preemption: ...")]
    fn a_resource_that_no_node_has_proves_that_it_is_not(#[case] message: &str) {
        assert_eq!(answer("False", "Unschedulable", message), Some(Answer::NotCalled(message.to_owned())));
    }

    #[rstest]
    #[case("no nodes available to schedule pods")]
    #[case("Post \"http://127.0.0.1:9251/predicate\": dial tcp 127.0.0.1:9251: connect: connection refused")]
    // Of the older API group
    #[case("0/1 nodes are available: 1 Insufficient topolvm.cybozu.com/capacity.")]
    fn anything_else_proves_nothing(#[case] message: &str) {
        assert_eq!(answer("False", "SchedulerError", message), Some(Answer::Unclear(message.to_owned())));
    }

    #[test]
    fn probe_pod_that_was_scheduled_or_untried_proves_nothing() {
        assert!(matches!(answer("True", "", ""), Some(Answer::Unclear(_))));
        assert_eq!(answer("False", "SchedulingGated", "gated"), None);
        assert_eq!(read_answer(ApiFlavor::TopoLvm, &probe_pod(ApiFlavor::TopoLvm)), None);
    }

    #[test]
    fn the_pod_asks_for_what_no_node_has_and_does_no_harm() {
        let pod = json!(probe_pod(ApiFlavor::Legacy));
        let annotations = &pod["metadata"]["annotations"];
        assert_eq!(annotations["capacity.topolvm.cybozu.com/extender-probe.topolvm.io"], BYTES.to_string());
        let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
        let resource = json!({"topolvm.cybozu.com/capacity": "1"});
        assert_eq!(container["resources"], json!({"limits": resource, "requests": resource}));
        assert_eq!(spec["tolerations"], json!([{"operator": "Exists"}]));
        // Without volumes, so that the pod webhook is not called
        assert_eq!((&spec["volumes"], &spec["automountServiceAccountToken"]), (&json!(null), &json!(false)));
        assert_eq!(container["imagePullPolicy"], "Never");
    }
}
