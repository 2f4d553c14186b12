//! The ConfigMap with the fields of a condition: whether a check has failed, and what all have found.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use topolvm_doctor::{CheckResult, Outcome, Report};

use topolvm_kube::{Owner, ReconcileError, find_owner};

use super::DoctorContext;

/// Name of the ConfigMap.
pub(super) const CONFIG_MAP: &str = "topolvm-doctor";
/// Findings that are listed; the size limit of a ConfigMap is 1 MiB.
const LISTED: usize = 100;

/// Writes the ConfigMap.
pub(super) struct ConditionWriter {
    api: Api<ConfigMap>,
    /// The Deployment of this process, with which the ConfigMap goes.
    owner: Option<Owner>,
}

impl ConditionWriter {
    pub(super) async fn new(client: &Client, context: &DoctorContext) -> Self {
        let owner = find_owner(client, &context.namespace, &context.pod).await;
        Self { api: Api::namespaced(client.clone(), &context.namespace), owner }
    }

    /// Writes a report, if the ConfigMap differs from it. Returns the ConfigMap.
    pub(super) async fn write(&self, report: &Report, now: Timestamp) -> Result<ConfigMap, ReconcileError> {
        let found = self.api.get_opt(CONFIG_MAP).await.map_err(ReconcileError::api("get", CONFIG_MAP))?;
        let Some(map) = found else { return self.create(condition(report, None, now)).await };
        let data = condition(report, map.data.as_ref(), now);
        if map.data.as_ref() == Some(&data) {
            return Ok(map);
        }
        let patch = Patch::Merge(json!({ "data": data }));
        let written = self.api.patch(CONFIG_MAP, &PatchParams::default(), &patch).await;
        written.map_err(ReconcileError::api("write", CONFIG_MAP))
    }

    async fn create(&self, data: BTreeMap<String, String>) -> Result<ConfigMap, ReconcileError> {
        let metadata = ObjectMeta {
            name: Some(CONFIG_MAP.to_owned()),
            owner_references: self.owner.as_ref().map(|owner| vec![owner.reference()]),
            ..ObjectMeta::default()
        };
        let map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
        self.api.create(&PostParams::default(), &map).await.map_err(ReconcileError::api("create", CONFIG_MAP))
    }
}

/// Returns the condition of a report, as it goes on from the one before.
fn condition(report: &Report, before: Option<&BTreeMap<String, String>>, now: Timestamp) -> BTreeMap<String, String> {
    let (status, reason) = if report.has_failed() { ("False", "ChecksFailed") } else { ("True", "NoCheckFailed") };
    let before = |key: &str| before.and_then(|before| before.get(key)).cloned();
    let since = before("lastTransitionTime").filter(|_| before("status").as_deref() == Some(status));
    let with = |outcome: Outcome| {
        let checks = report.checks.iter().filter(|check| check.result == outcome);
        let names: Vec<_> = checks.map(|check| check.name).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let message = format!(
        "failed: {}; warnings: {}; unknown: {}",
        with(Outcome::Fail),
        with(Outcome::Warn),
        with(Outcome::Unknown)
    );
    let fields = [
        ("type", "Healthy".to_owned()),
        ("status", status.to_owned()),
        ("reason", reason.to_owned()),
        ("message", message),
        ("lastTransitionTime", since.unwrap_or_else(|| format!("{now:.0}"))),
        ("findings", list_findings(report)),
    ];
    fields.map(|(key, value)| (key.to_owned(), value)).into()
}

/// Returns a line for each finding, and one for its remedy.
fn list_findings(report: &Report) -> String {
    let of_check = |check: &CheckResult| {
        let name = check.name;
        let lines = check.findings.iter().filter(|finding| finding.result != Outcome::Ok).map(move |finding| {
            let remedy = finding.remedy.as_deref().unwrap_or_default();
            format!("{} {name}: {}\n  to do: {remedy}\n", finding.result.as_str(), finding.found)
        });
        lines.collect::<Vec<_>>()
    };
    let lines: Vec<_> = report.checks.iter().flat_map(of_check).collect();
    let more = lines.len().saturating_sub(LISTED);
    let end = if more == 0 { String::new() } else { format!("and {more} more\n") };
    lines.iter().take(LISTED).map(String::as_str).chain([end.as_str()]).collect()
}
