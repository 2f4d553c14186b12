//! Faults of StorageClasses, nodes and webhooks that take more than one fact.

use serde_json::json;
use topolvm_api::ApiFlavor::Legacy;

use super::{
    assert_named, assert_sound, certificate, class, configuration, faults, label_first_node, metrics, of, sound,
};
use crate::{Backend, Facts, Outcome, examine};

#[test]
fn fstype_is_a_parameter_of_csi_provisioner_in_any_case() {
    let mut facts = sound();
    for key in ["fstype", "fsType", "FSTYPE"] {
        let parameters = json!({"topolvm.io/device-class": "ssd", key: "xfs"});
        facts.classes = Ok(vec![of(class(&parameters, "WaitForFirstConsumer"))]);
        assert_sound(&facts);
    }
}

#[test]
fn storage_class_with_several_faults_is_fixed_by_one_command() {
    let mut facts = sound();
    facts.classes = Ok(vec![of(class(&json!({"topolvm.io/device-class": "ssd", "a": "1", "b": "2"}), "Immediate"))]);
    let report = examine(&facts);
    let faults = faults(&report);
    let findings = &faults[0].findings;
    assert_eq!((faults.len(), findings.len()), (1, 3), "{faults:#?}");
    for finding in findings {
        let [command] = finding.commands.as_slice() else { panic!("{finding:?}") };
        assert!(command.contains(r#""parameters":{"topolvm.io/device-class":"ssd"}"#), "{command}");
        assert!(command.contains("WaitForFirstConsumer"), "{command}");
    }
}

#[test]
fn storage_class_of_an_unoffered_class_is_not_recreated() {
    let mut facts = sound();
    facts.classes = Ok(vec![of(class(&json!({"topolvm.io/device-class": "hdd"}), "WaitForFirstConsumer"))]);
    let report = examine(&facts);
    assert_eq!(faults(&report)[0].findings[0].commands, [""; 0]);
}

#[test]
fn allowed_topologies_with_foreign_keys_name_the_driver_key() {
    let with_key = |key: &str| {
        let mut class = class(&json!({"topolvm.io/device-class": "ssd"}), "WaitForFirstConsumer");
        class["allowedTopologies"] = json!([{"matchLabelExpressions": [{"key": key, "values": ["n1"]}]}]);
        let mut facts = sound();
        facts.classes = Ok(vec![of(class)]);
        facts
    };
    assert_sound(&with_key("topology.topolvm.io/node"));
    for key in ["kubernetes.io/hostname", "example.com/tier"] {
        let found = format!("StorageClass fast: allowedTopologies has {key}");
        // The embedded provisioner compares all labels
        assert_sound(&Facts { provisions_volumes: true, ..with_key(key) });
        let facts = with_key(key);
        assert_named(&facts, "storage-classes", Outcome::Fail, &found, "topology.topolvm.io/node");
    }
}

#[test]
fn driver_refused_for_its_topology_label_names_the_label() {
    let mut facts = sound();
    label_first_node(&mut facts, "n2");
    facts.csi_nodes = Ok(Vec::new());
    let report = examine(&facts);
    let [agents, labels] = faults(&report)[..] else { panic!("{report:#?}") };
    assert_eq!((agents.name, labels.name), ("node-agents", "topology-labels"));
    let finding = &agents.findings[0];
    assert!(finding.remedy.as_ref().unwrap().contains("topology.topolvm.io/node=n2"), "{finding:?}");
    assert_eq!(finding.commands, ["kubectl label node n1 topology.topolvm.io/node=n1 --overwrite"]);
}

#[test]
fn node_without_free_space_is_named() {
    let mut facts = sound();
    let nodes = facts.nodes.as_mut().unwrap();
    let full = json!({"metadata": {
        "name": "n2", "finalizers": ["topolvm.io/node"], "labels": {"topology.topolvm.io/node": "n2"},
        "annotations": {"capacity.topolvm.io/00default": "0", "capacity.topolvm.io/ssd": "0"},
    }});
    nodes.push(of(full));
    facts.csi_nodes.as_mut().unwrap().push(of(json!({
        "metadata": {"name": "n2"}, "spec": {"drivers": [{"name": "topolvm.io", "nodeID": "n2"}]},
    })));
    facts.metrics.push(metrics("n2", ""));
    let report = examine(&facts);
    let agents = report.checks.iter().find(|check| check.name == "node-agents").unwrap();
    assert_eq!(agents.findings[0].found, "2 nodes are registered; without free space: n2");
}

/// The node n2, whose agent has no device class and publishes 0 bytes of the default class.
fn with_node_without_class() -> Facts {
    let mut facts = sound();
    facts.nodes.as_mut().unwrap().push(of(json!({"metadata": {
        "name": "n2", "finalizers": ["topolvm.io/node"], "labels": {"topology.topolvm.io/node": "n2"},
        "annotations": {"capacity.topolvm.io/00default": "0"},
    }})));
    facts.csi_nodes.as_mut().unwrap().push(of(json!({
        "metadata": {"name": "n2"}, "spec": {"drivers": [{"name": "topolvm.io", "nodeID": "n2"}]},
    })));
    facts.metrics.push(metrics("n2", ""));
    facts
}

#[test]
fn node_without_a_volume_group_is_named_and_is_no_failure() {
    let mut facts = with_node_without_class();
    assert_sound(&facts);
    let report = examine(&facts);
    let agents = report.checks.iter().find(|check| check.name == "node-agents").unwrap();
    assert_eq!(agents.findings[0].found, "1 node is registered with free space; without a volume group: n2");
    // An agent that publishes nothing has failed
    facts.nodes.as_mut().unwrap().last_mut().unwrap().metadata.annotations = None;
    assert_named(&facts, "node-agents", Outcome::Fail, "node n2: it publishes no free space", "lvmd run on node n2");
}

#[test]
fn nodes_of_which_none_has_a_volume_group_are_a_failure() {
    let mut facts = with_node_without_class();
    facts.nodes.as_mut().unwrap().remove(0);
    facts.csi_nodes.as_mut().unwrap().remove(0);
    facts.classes = Ok(vec![of(class(&json!({}), "WaitForFirstConsumer"))]);
    assert_named(&facts, "node-agents", Outcome::Fail, "no node has a volume group for a device class: n2", "vgcreate");
}

#[test]
fn webhooks_without_a_server_are_to_be_deleted() {
    let mut facts = sound();
    facts.webhooks = Ok(vec![of(configuration(&certificate((2025, 1, 1)), &json!({})))]);
    let (namespace, name) = ("topolvm-system".to_owned(), "topolvm-controller".to_owned());
    facts.backends = vec![Backend { namespace, name, ready: Ok(None) }];
    let arguments = ["--scheduling-mode=capacity"];
    facts.workloads.as_mut().unwrap()[0].containers =
        vec![of(json!({"name": "topolvm-controller", "args": arguments}))];
    let command = "kubectl delete mutatingwebhookconfiguration topolvm-hook";
    assert_named(
        &facts,
        "webhooks",
        Outcome::Fail,
        "which no controller serves: the API server refuses all pods",
        command,
    );
    // A Service leads to a controller that does not listen
    facts.backends[0].ready = Ok(Some(1));
    assert_named(&facts, "webhooks", Outcome::Fail, "which no controller serves", command);
    // Another webhook in the same configuration stays
    let configuration = &mut facts.webhooks.as_mut().unwrap()[0];
    let foreign = json!({
        "name": "a.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": {"url": "https://a"},
    });
    configuration.webhooks.as_mut().unwrap().insert(0, of(foreign));
    assert_named(
        &facts,
        "webhooks",
        Outcome::Fail,
        "which no controller serves",
        r#"{"op":"remove","path":"/webhooks/1"}"#,
    );
    // A Service without a pod for a moment is no leftover where webhooks are served
    let arguments = ["--scheduling-mode=capacity", "--enable-webhooks"];
    facts.workloads.as_mut().unwrap()[0].containers =
        vec![of(json!({"name": "topolvm-controller", "args": arguments}))];
    let report = examine(&facts);
    let webhooks = report.checks.iter().find(|check| check.name == "webhooks").unwrap();
    assert!(webhooks.findings.iter().all(|finding| finding.commands.is_empty()), "{webhooks:?}");
}

#[test]
fn remedies_name_manifests_of_the_older_api_group() {
    let mut facts = sound();
    facts.flavor = Legacy;
    let report = examine(&facts);
    let remedies = report.checks.iter().flat_map(|check| &check.findings).filter_map(|one| one.remedy.as_deref());
    let remedies: Vec<_> = remedies.filter(|remedy| remedy.contains("deploy/manifests")).collect();
    assert!(remedies.len() > 1, "{remedies:?}");
    for remedy in remedies {
        let is_of_group = remedy.contains("legacy") || remedy.contains("topolvm.cybozu.com");
        assert!(is_of_group, "{remedy}");
    }
}
