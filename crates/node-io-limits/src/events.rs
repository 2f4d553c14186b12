//! Kubernetes Events of pods, as `kubectl describe` shows them.

use published_pods::PodInfo;
use topolvm_kube::EventRecorder;

/// Publishes Events of pods.
#[derive(Debug)]
pub(crate) struct Events(pub(crate) EventRecorder);

impl Events {
    /// Publishes that limits of I/O which a pod is to have are not in force.
    pub(crate) async fn io_limits_not_in_force(&self, pod: &PodInfo, reason: &str, message: &str) {
        self.0.publish_warning(&pod.object_ref(), reason, "LimitIO", message).await;
    }
}
