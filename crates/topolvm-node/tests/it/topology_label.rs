//! The topology label of the own Node over a fake API server.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::core::PartialObjectMeta;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use topolvm_api::ApiFlavor;
use topolvm_node::topology_label::TopologyLabel;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;

use crate::node_storage::events;

const MINUTE: Duration = Duration::from_mins(1);

/// The keeper of the label of node n1.
struct Keeper {
    api: ApiServer,
    flavor: ApiFlavor,
    nodes: watch::Sender<Option<PartialObjectMeta<Node>>>,
    tasks: Tasks,
    shutdown: CancellationToken,
}

impl Keeper {
    /// Starts it on a node whose driver the kubelet has registered, if `is_registered`.
    fn start(flavor: ApiFlavor, is_registered: bool, labels: &Value) -> Self {
        Self::start_on(ApiServer::new(), flavor, is_registered, labels)
    }

    fn start_on(api: ApiServer, flavor: ApiFlavor, is_registered: bool, labels: &Value) -> Self {
        let driver = json!({"name": flavor.driver_name(), "nodeID": "n1", "topologyKeys": [flavor.topology_key()]});
        let drivers = if is_registered { json!([driver]) } else { json!([]) };
        api.apply_json(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n1"},
            "spec": {"drivers": drivers},
        }));
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let selection = "storage=yes".parse().unwrap();
        let label = TopologyLabel::new(flavor, "n1".to_owned(), selection, api.client());
        let (nodes, node) = watch::channel(None);
        tasks.spawn("topology label", label.run(node, shutdown.clone()));
        let keeper = Self { api, flavor, nodes, tasks, shutdown };
        keeper.label(labels);
        keeper
    }

    /// Gives the Node these labels, as another controller.
    fn label(&self, labels: &Value) {
        self.api.apply_json(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": labels},
        }));
        self.show();
    }

    /// Shows the Node to the agent, as its watch does.
    fn show(&self) {
        let node = self.api.get_json("nodes", "", "n1").unwrap();
        self.nodes.send_replace(Some(serde_json::from_value(node).unwrap()));
    }

    /// Returns the label after a minute in which the watch works.
    async fn settled(&self) -> Value {
        sleep(MINUTE).await;
        self.show();
        sleep(MINUTE).await;
        self.api.get_json("nodes", "", "n1").unwrap()["metadata"]["labels"][self.flavor.topology_key()].clone()
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
    }
}

#[rstest]
#[case::new_group(ApiFlavor::TopoLvm)]
#[case::old_group(ApiFlavor::Legacy)]
#[tokio::test(start_paused = true)]
async fn topology_label_of_another_node_is_corrected(#[case] flavor: ApiFlavor) {
    let key = flavor.topology_key();
    for is_registered in [true, false] {
        let keeper = Keeper::start(flavor, is_registered, &json!({key: "n2", "storage": "yes", "other": "kept"}));
        assert_eq!(keeper.settled().await, "n1");
        let labels = &keeper.api.get_json("nodes", "", "n1").unwrap()["metadata"]["labels"];
        assert_eq!(labels["other"], "kept");
        let events = events(&keeper.api);
        let named = format!("the label {key} was \"n2\"; topolvm-node set it to \"n1\"");
        assert!(events[0].0 == "TopologyLabelCorrected" && events[0].1.contains(&named), "{events:?}");
        keeper.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn topology_label_is_restored_only_with_a_registered_driver() {
    for (is_registered, expected) in [(true, json!("n1")), (false, Value::Null)] {
        let keeper = Keeper::start(ApiFlavor::TopoLvm, is_registered, &json!({"storage": "yes"}));
        assert_eq!(keeper.settled().await, expected);
        assert_eq!(events(&keeper.api).len(), usize::from(is_registered));
        keeper.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn topology_label_of_a_node_without_storage_is_left_alone() {
    let keeper = Keeper::start(ApiFlavor::TopoLvm, true, &json!({"topology.topolvm.io/node": "n2"}));
    assert_eq!(keeper.settled().await, "n2");
    keeper.stop().await;
}

#[tokio::test(start_paused = true)]
async fn topology_label_that_another_controller_writes_is_no_race() {
    let keeper = Keeper::start(ApiFlavor::TopoLvm, true, &json!({"storage": "yes"}));
    for _ in 0..600 {
        keeper.label(&json!({"topology.topolvm.io/node": "n2", "storage": "yes"}));
        sleep(Duration::from_secs(1)).await;
    }
    let writes = keeper.api.count("patch", "nodes");
    assert!((10..30).contains(&writes), "{writes} corrections in ten minutes");
    assert_eq!(keeper.settled().await, "n1");
    keeper.stop().await;
}

#[tokio::test(start_paused = true)]
async fn topology_label_refusal_is_reported_with_the_command() {
    let api = ApiServer::new();
    api.fail_next("patch", "nodes", 1, 403);
    let keeper =
        Keeper::start_on(api, ApiFlavor::TopoLvm, true, &json!({"topology.topolvm.io/node": "n2", "storage": "yes"}));
    assert_eq!(keeper.settled().await, "n1", "it is tried again");
    let events = events(&keeper.api);
    let wrong = events.iter().find(|(reason, _)| reason == "TopologyLabelWrong").unwrap();
    assert!(wrong.1.contains("kubectl label node n1 topology.topolvm.io/node=n1 --overwrite"), "{wrong:?}");
    keeper.stop().await;
}
