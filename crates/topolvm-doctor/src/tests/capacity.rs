//! Faults of storage capacity tracking.

use rstest::rstest;
use serde_json::{Value, json};

use super::{assert_named, assert_sound, class, of, sound, workload};
use crate::{Facts, Outcome, Role};

/// Arguments of a csi-provisioner that publishes free space.
pub(super) const PUBLISHING: [&str; 2] = ["--enable-capacity", "--capacity-ownerref-level=2"];

/// An installation whose csi-provisioner has these arguments, and the objects that it makes.
pub(super) fn with_provisioner(arguments: &[&str]) -> Facts {
    let mut facts = sound();
    let variables = json!([{"name": "POD_NAME"}, {"name": "NAMESPACE"}]);
    let container = json!({"name": "csi-provisioner", "args": arguments, "env": variables});
    facts.workloads.as_mut().unwrap()[0].containers = vec![of(container)];
    facts.nodes.as_mut().unwrap()[0].metadata.creation_timestamp = of(json!("2026-01-01T00:00:00Z"));
    facts.classes.as_mut().unwrap()[0].metadata.creation_timestamp = of(json!("2026-01-01T00:00:00Z"));
    facts.capacities = Ok(vec![of(capacity("n1", "fast", "5", "2026-01-01T00:00:00Z"))]);
    facts
}

pub(super) fn capacity(node: &str, class: &str, bytes: &str, changed: &str) -> Value {
    json!({
        "metadata": {"name": format!("csisc-{node}"), "namespace": "topolvm-system", "managedFields": [
            {"manager": "csi-provisioner", "time": changed},
        ]},
        "storageClassName": class, "capacity": bytes,
        "nodeTopology": {"matchLabels": {"topology.topolvm.io/node": node}},
    })
}

#[rstest]
#[case::no_publisher(Outcome::Fail, "objects are missing for node and StorageClass: n1 and fast",
    "--enable-capacity", |facts: &mut Facts| facts.capacities = Ok(Vec::new()))]
#[case::no_flag(Outcome::Fail, "it runs without --enable-capacity", "/containers/0/args/-", |facts: &mut Facts| {
    facts.workloads.as_mut().unwrap()[0].containers[0].args = Some(vec!["-v=3".to_owned()]);
})]
#[case::no_variables(Outcome::Fail, "variable POD_NAME, it lacks the environment variable NAMESPACE",
    r#""path":"/spec/template/spec/containers/0/env","value":[{"name":"POD_NAME""#, |facts: &mut Facts| {
    facts.workloads.as_mut().unwrap()[0].containers[0].env = None;
})]
#[case::no_owner(Outcome::Warn, "belong to its pod or ReplicaSet", r#""value":"--capacity-ownerref-level=2""#,
    |facts: &mut Facts| {
    facts.workloads.as_mut().unwrap()[0].containers[0].args = Some(vec!["--enable-capacity".to_owned()]);
})]
#[case::owner_of_pod(Outcome::Warn, "belong to its pod or ReplicaSet", "or set --controllers=capacity",
    |facts: &mut Facts| {
    let arguments = ["--enable-capacity", "--capacity-ownerref-level=1"].map(str::to_owned);
    facts.workloads.as_mut().unwrap()[0].containers[0].args = Some(arguments.into());
})]
#[case::node_is_gone(Outcome::Warn, "on node n9: the node does not exist", "delete csistoragecapacity csisc-n9",
    |facts: &mut Facts| {
    facts.capacities.as_mut().unwrap().push(of(capacity("n9", "fast", "5", "2026-01-01T00:00:00Z")));
})]
#[case::class_is_gone(Outcome::Warn, "no StorageClass of this driver", "csistoragecapacity", |facts: &mut Facts| {
    facts.capacities.as_mut().unwrap().push(of(capacity("n1", "slow", "5", "2026-01-01T00:00:00Z")));
})]
#[case::two(Outcome::Warn, "it is a duplicate", "delete csistoragecapacity", |facts: &mut Facts| {
    facts.capacities.as_mut().unwrap().push(of(capacity("n1", "fast", "5", "2026-01-01T00:00:00Z")));
})]
#[case::out_of_date(Outcome::Warn, "reports 9 bytes, but the node has only 5", "is recreated", |facts: &mut Facts| {
    facts.capacities = Ok(vec![of(capacity("n1", "fast", "9", "2026-01-01T00:50:00Z"))]);
})]
fn a_fault_of_capacity_tracking_is_named(
    #[case] result: Outcome,
    #[case] found: &str,
    #[case] remedy: &str,
    #[case] fault: fn(&mut Facts),
) {
    let mut facts = with_provisioner(&PUBLISHING);
    assert_sound(&facts);
    fault(&mut facts);
    assert_named(&facts, "capacity-tracking", result, found, remedy);
}

#[test]
fn space_of_another_layout_is_that_of_its_option_class() {
    let mut facts = with_provisioner(&PUBLISHING);
    let parameters = json!({"topolvm.io/device-class": "ssd", "topolvm.io/lvcreate-option-class": "linear"});
    facts.classes = Ok(vec![of(class(&parameters, "WaitForFirstConsumer"))]);
    let annotations = facts.nodes.as_mut().unwrap()[0].metadata.annotations.as_mut().unwrap();
    let layout = |free: u64| json!({"free": free, "stripes": 1, "images": 1});
    let layouts = json!({"ssd": {"": layout(5), "linear": layout(9)}}).to_string();
    annotations.insert("topolvm.io/lvcreate-option-class-capacity".to_owned(), layouts);
    facts.capacities = Ok(vec![of(capacity("n1", "fast", "9", "2026-01-01T00:50:00Z"))]);
    assert_sound(&facts);
    facts.capacities = Ok(vec![of(capacity("n1", "fast", "10", "2026-01-01T00:50:00Z"))]);
    assert_named(
        &facts,
        "capacity-tracking",
        Outcome::Warn,
        "reports 10 bytes, but the node has only 9",
        "is recreated",
    );
}

#[test]
fn capacity_tracking_accepts_fresh_objects_and_own_publisher() {
    let mut facts = with_provisioner(&PUBLISHING);
    facts.capacities = Ok(vec![of(capacity("n1", "fast", "9", "2026-01-01T00:59:00Z"))]);
    assert_sound(&facts);
    for embeds in [
        json!({"args": ["--embed=capacity"]}),
        json!({"env": [{"name": "EMBED", "value": "capacity"}]}),
        json!({"args": ["--controllers", "provisioner,capacity"]}),
        json!({"args": ["--controllers=provisioner,capacity", "--controllers=resizer"]}),
        json!({"env": [{"name": "CONTROLLERS", "value": "provisioner,capacity"}]}),
    ] {
        let mut controller = embeds;
        controller["name"] = json!("topolvm-controller");
        let mut facts = with_provisioner(&[]);
        facts.workloads.as_mut().unwrap()[0].containers.push(of(controller.clone()));
        assert_sound(&facts);
        facts.capacities = Ok(Vec::new());
        assert_named(&facts, "capacity-tracking", Outcome::Fail, "n1 and fast", "leading topolvm-controller replica");
        let mut facts = with_provisioner(&PUBLISHING);
        facts.workloads.as_mut().unwrap()[0].containers.push(of(controller));
        assert_named(&facts, "capacity-tracking", Outcome::Warn, "both csi-provisioner of", "remove --enable-capacity");
    }
    // Without a publisher and its leases no objects are expected
    let mut facts = with_provisioner(&[]);
    facts.workloads.as_mut().unwrap()[0] = workload(Role::Controller, "topolvm-system", 2);
    (facts.capacities, facts.provisioner_leases) = (Ok(Vec::new()), Ok(Vec::new()));
    assert_sound(&facts);
}
