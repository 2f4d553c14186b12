//! Refusal of values that contradict each other, that are unknown, or that are meant for another chart.

use anyhow::{Context as _, Result, ensure};
use system_tests::chart;

/// Flag that skips values.schema.json, as people do whose tools cannot read it.
const WITHOUT_SCHEMA: &str = "--skip-schema-validation";
const WEBHOOK: &str = "webhook.podMutatingWebhook.enabled=true";
const TRACKING: &str = "controller.storageCapacityTracking.enabled=true";
const NO_TRACKING: &str = "controller.storageCapacityTracking.enabled=false";

/// Values, the message of the schema and that of the template, which is only reached without the schema.
type Contradiction = (&'static [&'static str], Option<&'static str>, Option<&'static str>);

/// Values that contradict the scheduling mode, all with the same message of the template.
const AGAINST_THE_MODE: [(&[&str], &str); 6] = [
    (&["scheduling.mode=capacity", WEBHOOK], "/webhook/podMutatingWebhook/enabled"),
    (&["scheduling.mode=capacity", "scheduler.enabled=true"], "/scheduler/enabled"),
    (&["scheduling.mode=capacity", "scheduler.external=true"], "/scheduler/external"),
    (&["scheduling.mode=capacity", NO_TRACKING], "/controller/storageCapacityTracking/enabled"),
    (&["scheduling.mode=extender", "webhook.podMutatingWebhook.enabled=false"], "/webhook/podMutatingWebhook/enabled"),
    (&["scheduling.mode=extender", "scheduler.enabled=false"], "/scheduler/enabled"),
];

const CONTRADICTIONS: [Contradiction; 24] = [
    // helm 4 leaves out values whose default is none, so that the path ends before them
    (&["scheduler.enabled=true"], Some("/webhook/podMutatingWebhook"), Some("scheduler.enabled: ")),
    (&["scheduler.external=true"], Some("/webhook/podMutatingWebhook"), Some("scheduler.enabled: ")),
    (&[WEBHOOK, NO_TRACKING], Some("at '/scheduler"), Some("webhook.podMutatingWebhook.enabled: ")),
    (&["scheduling.mode=both"], Some("/scheduling/mode"), Some("scheduling.mode: ")),
    (
        &["scheduling.mode=extender", TRACKING],
        Some("/controller/storageCapacityTracking/enabled"),
        Some("controller.storageCapacityTracking.enabled: "),
    ),
    (
        &[WEBHOOK, "scheduler.enabled=true", TRACKING],
        Some("/controller/storageCapacityTracking/enabled"),
        Some("controller.storageCapacityTracking.enabled: "),
    ),
    (
        &[WEBHOOK, NO_TRACKING, "scheduler.enabled=true", "scheduler.external=true"],
        Some("/scheduler/enabled"),
        Some("scheduler.external: "),
    ),
    (
        &[
            WEBHOOK,
            NO_TRACKING,
            "scheduler.enabled=true",
            "scheduler.type=deployment",
            "scheduler.options.listen.host=localhost",
        ],
        Some("/scheduler/options/listen/host"),
        Some("scheduler.options.listen.host: "),
    ),
    (&["webhook.selfManaged=true"], Some("/webhook/certManager"), Some("webhook.selfManaged: ")),
    (&["node.lvmdEmbedded=true"], Some("/lvmd/managed"), Some("set lvmd.managed to false")),
    (
        &["node.lvmdEmbedded=true", "lvmd.managed=false", "lvmd.additionalConfigs[0].deviceClasses[0].name=a"],
        Some("/lvmd/additionalConfigs"),
        Some("lvmd.additionalConfigs: "),
    ),
    (
        &["controller.leaderElection.enabled=false"],
        Some("/controller/replicaCount"),
        Some("set controller.replicaCount to 1"),
    ),
    (&["lvmd.socketName=/run/other/lvmd.sock"], None, Some("node.lvmdSocket: ")),
    (&["image.tag=1"], None, Some("image.tag: use image.reference")),
    (&["cert-manager.enabled=true"], None, Some("Install it first: https://cert-manager.io/")),
    (&["image.repository=example.com/topolvm/topolvm-with-sidecar"], None, Some("image.repository: ")),
    (&["node.volumes[0].name=a"], None, Some("use node.additionalVolumes")),
    (&["lvmd.volumes[0].name=a"], None, Some("use lvmd.additionalVolumes")),
    (&["args.csi_resizer[0]=--timeout=1m"], None, Some("set controller.resizer to csi-resizer")),
    (&["snapshot.groups=true", "snapshot.enabled=false"], None, Some("snapshot.groups: ")),
    // Names and types are checked by the schema only
    (&["nodes.lvmdEmbedded=true"], Some("additional properties 'nodes' not allowed"), None),
    (&["controller.replicaCount=two"], Some("got string, want integer"), None),
    (&["image.other=1", "nodes.lvmdEmbedded=true"], Some("additional properties 'other' not allowed"), None),
    (&["lvmd.deviceClasses[0].name=a"], Some("missing property 'volume-group'"), None),
];

pub(crate) fn check_refusals() -> Result<()> {
    let against_the_mode =
        AGAINST_THE_MODE.map(|(values, by_schema)| (values, Some(by_schema), Some("scheduling.mode: the ")));
    for (values, by_schema, by_template) in CONTRADICTIONS.into_iter().chain(against_the_mode) {
        let mut arguments: Vec<&str> = values.iter().flat_map(|value| ["--set", *value]).collect();
        if let Some(wanted) = by_schema {
            check(&arguments, wanted)?;
        }
        if let Some(wanted) = by_template {
            if by_schema.is_some() {
                arguments.push(WITHOUT_SCHEMA);
            }
            check(&arguments, wanted)?;
        }
    }
    Ok(())
}

fn check(arguments: &[&str], wanted: &str) -> Result<()> {
    let rendered = chart::render("topolvm", "topolvm-system", arguments);
    let refusal = rendered.err().with_context(|| format!("{arguments:?} are taken"))?.to_string();
    ensure!(refusal.contains(wanted), "{arguments:?}: {wanted:?} is not in {refusal}");
    Ok(())
}
