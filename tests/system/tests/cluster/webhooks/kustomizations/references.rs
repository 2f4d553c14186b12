//! Checks that the objects to which those of a kustomization refer exist, or are created by other programs.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::topolvm;

use super::{Objects, cert_manager};

/// Secrets that cert-manager creates or, without it, the administrator (docs/webhooks.md).
const MADE_BY_OTHERS: [&str; 2] = [cert_manager::MOUNTED, "mutatingwebhook"];

impl Objects<'_> {
    pub(super) fn check_references(&self) -> Result<()> {
        for workload in self.workloads() {
            let name = &workload["metadata"]["name"];
            self.check_volumes(workload).with_context(|| format!("the volumes of {name}"))?;
            let pod = workload["spec"]["template"]["spec"].to_string();
            let other = ["configMapKeyRef", "secretKeyRef", "envFrom", "imagePullSecrets"];
            let other = other.into_iter().find(|reference| pod.contains(reference));
            ensure!(other.is_none(), "this test does not follow {other:?} of {name}");
        }
        if self.workloads().next().is_some() {
            for service in self.of_kind("Service") {
                self.check_service(service).with_context(|| format!("the Service {}", service["metadata"]["name"]))?;
            }
        }
        for budget in self.of_kind("PodDisruptionBudget") {
            self.selected_workload(&budget["spec"]["selector"]["matchLabels"])?;
        }
        Ok(())
    }

    fn check_volumes(&self, workload: &Value) -> Result<()> {
        let namespace = &workload["metadata"]["namespace"];
        let pod = &workload["spec"]["template"]["spec"];
        for volume in pod["volumes"].as_array().into_iter().flatten() {
            if let Some(name) = volume["configMap"].get("name") {
                self.find("ConfigMap", namespace, name)?;
            }
            if let Some(name) = volume["secret"]["secretName"].as_str() {
                ensure!(MADE_BY_OTHERS.contains(&name), "no program creates the Secret {name}");
            }
        }
        let names: Vec<&Value> =
            pod["volumes"].as_array().into_iter().flatten().map(|volume| &volume["name"]).collect();
        for container in pod["containers"].as_array().context("no containers")? {
            for mount in container["volumeMounts"].as_array().into_iter().flatten() {
                ensure!(names.contains(&&mount["name"]), "there is no volume for {mount}");
            }
        }
        Ok(())
    }

    /// Checks that the Service leads to a port of pods. kube-scheduler's configuration names that of the extender.
    fn check_service(&self, service: &Value) -> Result<()> {
        let metadata = &service["metadata"];
        let pod = &self.selected_workload(&service["spec"]["selector"])?["spec"]["template"]["spec"];
        let containers = pod["containers"].as_array().context("no containers")?;
        let open: Vec<&Value> = containers.iter().filter_map(|one| one["ports"].as_array()).flatten().collect();
        let ports = service["spec"]["ports"].as_array().context("no ports")?;
        for port in ports {
            let target = &port["targetPort"];
            let leads_to = |open: &&&Value| open["containerPort"] == *target || open["name"] == *target;
            ensure!(open.iter().any(|open| leads_to(&open)), "{port} leads to none of {open:?}");
        }
        if metadata["name"] == "topolvm-scheduler" {
            let file = topolvm::manifests().join("../../scheduler-config/scheduler-config-service.yaml");
            let [name, namespace] = ["name", "namespace"].map(|part| metadata[part].as_str().unwrap_or_default());
            let address = format!("- urlPrefix: http://{name}.{namespace}.svc:{}", ports[0]["port"]);
            let config = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
            ensure!(config.lines().any(|line| line.trim() == address), "kube-scheduler does not use {address}");
        }
        Ok(())
    }

    /// Returns the workload whose pods have these labels.
    fn selected_workload(&self, labels: &Value) -> Result<&Value> {
        let labels = labels.as_object().context("no labels")?;
        let has = |workload: &&Value| {
            let own = &workload["spec"]["template"]["metadata"]["labels"];
            labels.iter().all(|(key, value)| own[key] == *value)
        };
        self.workloads().find(has).with_context(|| format!("no pods have the labels {labels:?}"))
    }
}
