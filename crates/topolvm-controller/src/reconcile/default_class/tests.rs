use rstest::rstest;
use topolvm_api::ApiFlavor;
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{StorageClassBuilder, storage_class};

use super::super::tests::harness::{DEFAULTS, Harness};
use crate::scheduling::Scheduling;

/// A Node with these capacity annotations, by device class.
fn node(name: &str, classes: &[(&str, &str)]) -> serde_json::Value {
    let annotations: serde_json::Map<_, _> =
        classes.iter().map(|(class, free)| (format!("capacity.topolvm.io/{class}"), (*free).into())).collect();
    serde_json::json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": annotations}})
}

/// The Events and the number in the metric, with these Nodes and this StorageClass.
async fn check(nodes: &[(&str, &[(&str, &str)])], class: StorageClassBuilder) -> (Vec<(String, String)>, i64) {
    let server = ApiServer::new();
    for (name, classes) in nodes {
        server.apply_json(node(name, classes));
    }
    server.apply_json(class.build());
    let scheduling = Scheduling::default();
    let used = scheduling.clone();
    let harness = Harness::start_with(&server, ApiFlavor::TopoLvm, DEFAULTS, |_, _, _, _| used);
    harness.settle().await;
    let found = (harness.events(), scheduling.nodes_without_default_class.get());
    harness.end().await;
    // Another replica leads now; the alert takes the largest number of all replicas
    assert_eq!(scheduling.nodes_without_default_class.get(), 0);
    found
}

#[rstest]
#[case::of_ours(&[("ssd", "240"), ("hdd", "7"), ("00default", "0")])]
#[case::of_topolvm(&[("ssd", "240")])]
#[tokio::test(start_paused = true)]
async fn node_without_a_default_class_is_reported_if_one_is_needed(#[case] classes: &[(&str, &str)]) {
    let other: &[(&str, &str)] = &[("ssd", "5"), ("00default", "5")];
    let named = check(&[("n1", classes), ("n2", other)], storage_class("topolvm-provisioner")).await;
    assert_eq!(named, (vec![("NoDefaultDeviceClass".to_owned(), "n1".to_owned())], 1));
}

#[rstest]
#[case::names_its_class(&[("ssd", "240"), ("00default", "0")], storage_class("c").device_class("ssd"))]
#[case::of_another_driver(&[("ssd", "240")], storage_class("c").provisioner("ebs.example"))]
// The default class itself may be full
#[case::full(&[("ssd", "0"), ("hdd", "7"), ("00default", "0")], storage_class("c"))]
#[case::no_class_at_all(&[("00default", "0")], storage_class("c"))]
#[case::no_agent(&[], storage_class("c"))]
#[tokio::test(start_paused = true)]
async fn a_node_that_lacks_nothing_is_not_named(
    #[case] classes: &[(&str, &str)],
    #[case] storage_class: StorageClassBuilder,
) {
    assert_eq!(check(&[("n1", classes)], storage_class).await, (Vec::new(), 0));
}
