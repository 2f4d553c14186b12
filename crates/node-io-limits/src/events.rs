//! Kubernetes Events of pods, as `kubectl describe` shows them.

use k8s_openapi::api::core::v1::ObjectReference;
use published_pods::PodInfo;
use topolvm_kube::EventRecorder;

/// Publishes Events of pods.
#[derive(Debug)]
pub(crate) struct Events(pub(crate) EventRecorder);

impl Events {
    /// Publishes that limits of I/O which a pod is to have are not in force.
    pub(crate) async fn io_limits_not_in_force(&self, pod: &PodInfo, reason: &str, message: &str) {
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        };
        self.0.publish_warning(&regarding, reason, "LimitIO", message).await;
    }
}
