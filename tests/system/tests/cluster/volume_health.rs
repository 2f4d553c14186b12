//! Volume conditions as kubelet reports them: since Kubernetes 1.37 in the status of pods and of the CSINode, before
//! that as Events of pods and as a metric.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::node::Node;
use topolvm_api::ApiFlavor::TopoLvm;

use crate::fixture::Fixture;

/// Minor version of the first kubelet that calls NodeGetVolumeHealth and NodeGetStorageHealth of CSI 1.13.
const FIRST_WITH_HEALTH_CALLS: u32 = 37;

impl Fixture {
    /// Waits until kubelet reports a condition of the volume of a pod, with this reason and a message that contains
    /// this text. Events have no reason of the driver.
    pub(crate) fn wait_condition(&self, pod: &str, reason: &str, words: &str) -> Result<()> {
        if !self.kubelet_calls_health()? {
            return self.wait_event_with(pod, "VolumeConditionAbnormal", words).map(drop);
        }
        self.cluster.ready("apiserver", || {
            let conditions = self.volume_conditions(pod)?;
            let is_expected = |condition: &Value| {
                condition["reason"] == reason && condition["message"].as_str().is_some_and(|it| it.contains(words))
            };
            ensure!(conditions.iter().any(is_expected), "the conditions of the volume of {pod} are {conditions:?}");
            Ok(())
        })
    }

    /// Waits until kubelet reports each volume of these pods, whose claims have the same names, as healthy or as not.
    pub(crate) fn wait_health(&self, pods: [&str; 2], is_healthy: bool) -> Result<()> {
        if !self.kubelet_calls_health()? {
            return self.wait_abnormal(pods, u8::from(!is_healthy));
        }
        self.cluster.ready("apiserver", || {
            for pod in pods {
                let conditions = self.volume_conditions(pod)?;
                ensure!(
                    conditions.is_empty() == is_healthy,
                    "the conditions of the volume of {pod} are {conditions:?}"
                );
            }
            Ok(())
        })
    }

    /// Waits until kubelet reports exactly these reasons of the storage of the node in the CSINode. Does nothing with a
    /// kubelet that reports none.
    pub(crate) fn wait_storage_reasons(&self, node: &Node, expected: &[&str]) -> Result<()> {
        if !self.kubelet_calls_health()? {
            return Ok(());
        }
        let path =
            format!(".status.storageHealth[?(@.name==\"{}\")].healthConditions[*].reason", TopoLvm.driver_name());
        self.cluster.ready("apiserver", || {
            let reasons = self.value("csinode", node.name(), &path)?;
            ensure!(reasons == expected.join(" "), "the storage of {} has the reasons {reasons:?}", node.name());
            Ok(())
        })
    }

    /// Returns the conditions of the volumes of a pod in its status.
    fn volume_conditions(&self, pod: &str) -> Result<Vec<Value>> {
        let volumes = self.get_object("pod", pod)?["status"]["volumeHealth"].take();
        let volumes = volumes.as_array().into_iter().flatten();
        Ok(volumes.filter_map(|volume| volume["healthConditions"].as_array()).flatten().cloned().collect())
    }

    /// Waits until kubelet's metric of the volume condition has this value for these claims.
    fn wait_abnormal(&self, claims: [&str; 2], abnormal: u8) -> Result<()> {
        let path = format!("/api/v1/nodes/{}/proxy/metrics", self.node.name());
        self.cluster.ready("apiserver", || {
            let metrics = self.kubectl(&["get", "--raw", &path])?;
            for claim in claims {
                let (family, claim) =
                    ("kubelet_volume_stats_health_status_abnormal{", format!("persistentvolumeclaim=\"{claim}\""));
                let line = metrics.lines().find(|line| line.starts_with(family) && line.contains(&claim));
                ensure!(
                    line.is_some_and(|line| line.ends_with(&format!(" {abnormal}"))),
                    "kubelet says of {claim}: {line:?}"
                );
            }
            Ok(())
        })
    }

    /// Returns whether kubelet calls NodeGetVolumeHealth and does not read the condition in NodeGetVolumeStats.
    fn kubelet_calls_health(&self) -> Result<bool> {
        let version = self.value("node", self.node.name(), ".status.nodeInfo.kubeletVersion")?;
        let minor = version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
        Ok(minor.with_context(|| format!("kubelet has the version {version:?}"))? >= FIRST_WITH_HEALTH_CALLS)
    }
}
