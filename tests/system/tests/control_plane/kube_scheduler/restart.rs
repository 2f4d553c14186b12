//! Reservations after a restart of the extender, and in a second replica: both read them from the API objects only.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::manifests::{VolumeMode, claim};

use super::{ADDRESS, CLASS, NODES, PROGRAM, SELECTED_NODE, Setup, pod, pod_with_claim};
use crate::fixture::GRACE;

/// Pod and claim that are created when the node is reserved for another.
pub(super) const LATE: &str = "late";
/// Process and address of the second replica.
const SECOND: &str = "topolvm-scheduler-2";
const SECOND_ADDRESS: &str = "127.0.0.1:9252";

impl Setup<'_> {
    /// Restarts the extender while a claim has a reservation on a node and no volume, and checks that neither it nor a
    /// second replica reserves the node again.
    pub(super) fn check_reservations_after_restart(&self, settings: &str) -> Result<()> {
        self.start_extender(settings)?;
        self.create(&[claim(LATE, CLASS, "3Gi", VolumeMode::Filesystem), pod_with_claim(LATE)])?;
        self.wait_condition(LATE, "Unschedulable", "1 out of VG free space")?;
        ensure!(self.fixture.value("pvc", LATE, SELECTED_NODE)?.is_empty(), "the node is reserved again");
        self.spawn_extender(SECOND, SECOND_ADDRESS, settings)?;
        let compared = self.compare_replicas();
        self.fixture.cluster.stop(SECOND, GRACE)?;
        compared
    }

    /// Sends both replicas a request for an unknown pod, as kube-scheduler would.
    fn compare_replicas(&self) -> Result<()> {
        let names = NODES.map(|(name, _)| name);
        let request = json!({"Pod": pod("asked", &[("ssd", 3)]), "Nodes": null, "NodeNames": names}).to_string();
        for path in ["/predicate", "/prioritize"] {
            let ask = |address| -> Result<Value> {
                let answer = self.ask(&format!("https://{address}{path}"), Some(&request))?;
                serde_json::from_str(&answer).with_context(|| format!("{path} answers {answer:?}"))
            };
            let (one, two) = (ask(ADDRESS)?, ask(SECOND_ADDRESS)?);
            ensure!(one == two, "to {path} {PROGRAM} says {one} and {SECOND} {two}");
            if path == "/predicate" {
                ensure!(two["nodenames"] == json!(["roomy"]), "it fits elsewhere than on one node: {two}");
                ensure!(two["failedNodes"]["small"] == "out of VG free space", "nothing is reserved there: {two}");
            }
        }
        Ok(())
    }
}
