//! The files in `scheduler-config/` and the options in `deploy/manifests` work, and work together.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rstest::rstest;
use serde_json::{Value, json};
use topolvm_api::ApiFlavor;
use topolvm_scheduler::{Config, Scoring};

const V1: &str = "kubescheduler.config.k8s.io/v1";
/// Address of the DaemonSet, beside kube-scheduler.
const HOST: &str = "http://127.0.0.1:9251";
/// Address of the Service of the Deployment.
const SERVICE: &str = "http://topolvm-scheduler.topolvm-system.svc:9251";
const GROUPS: [ApiFlavor; 2] = [ApiFlavor::TopoLvm, ApiFlavor::Legacy];

fn example(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../scheduler-config", name].iter().collect()
}

#[rstest]
#[case("scheduler-options.yaml", "localhost:9251", false)]
#[case("../deploy/manifests/components/scheduler-daemonset/scheduler-options.yaml", "localhost:9251", true)]
#[case("../deploy/manifests/components/scheduler-deployment/scheduler-options.yaml", ":9251", true)]
fn the_options_are_those_that_they_say(#[case] file: &str, #[case] listen: &str, #[case] does_watch: bool) {
    let divisors = BTreeMap::from([("hdd".to_owned(), 10.0), ("ssd".to_owned(), 1.0)]);
    let expected = Config {
        listen: listen.parse().unwrap(),
        scoring: Scoring { divisors, ..Scoring::default() },
        node_cache: does_watch,
        reservations: does_watch,
        ..Config::default()
    };
    assert_eq!(Config::load(&example(file)).unwrap(), expected);
}

/// With the addresses and groups that a file can be given by the lines in its comments.
#[rstest]
#[case("scheduler-config.yaml", V1, &[HOST], &GROUPS[..1])]
#[case("scheduler-config-legacy.yaml", V1, &[HOST], &GROUPS[1..])]
#[case("scheduler-config-service.yaml", V1, &[SERVICE], &GROUPS)]
#[case("scheduler-config-v1beta3.yaml", "kubescheduler.config.k8s.io/v1beta3", &[HOST, SERVICE], &GROUPS)]
#[case("scheduler-config-v1beta2.yaml", "kubescheduler.config.k8s.io/v1beta2", &[HOST, SERVICE], &GROUPS)]
#[case("scheduler-config-v1beta1.yaml", "kubescheduler.config.k8s.io/v1beta1", &[HOST, SERVICE], &GROUPS)]
#[case("scheduler-policy.yaml", "v1", &[HOST, SERVICE], &GROUPS)]
fn examples_agree_in_every_version_of_the_scheduler_api(
    #[case] file: &str,
    #[case] version: &str,
    #[case] addresses: &[&str],
    #[case] groups: &[ApiFlavor],
) {
    let text = std::fs::read_to_string(example(file)).unwrap();
    for (address, group) in addresses.iter().flat_map(|address| groups.iter().map(move |group| (*address, *group))) {
        let resource = group.capacity_resource();
        let changed = exchanged(&text, |line| line.ends_with(address) || line.ends_with(&resource));
        let config: Value = serde_saphyr::from_str(&changed).unwrap();
        let mut expected = json!({
            "urlPrefix": address, "filterVerb": "predicate", "prioritizeVerb": "prioritize",
            "preemptVerb": "preempt", "weight": 1, "nodeCacheCapable": false, "httpTimeout": "30s",
            "managedResources": [{"name": resource, "ignoredByScheduler": true}],
        });
        if version == "v1" {
            // Policy has numbers for durations, and another name for this field
            expected["httpTimeout"] = json!(30_000_000_000_u64);
            expected["enableHttps"] = json!(false);
            assert_eq!(config["kind"], "Policy");
        } else {
            assert_eq!(config["kind"], "KubeSchedulerConfiguration");
            assert_eq!(config["leaderElection"], json!({"leaderElect": true}));
            assert_eq!(config["clientConnection"], json!({"kubeconfig": "/etc/kubernetes/scheduler.conf"}));
        }
        assert_eq!(config["apiVersion"], version);
        assert_eq!(config["extenders"], json!([expected]));
    }
}

#[test]
fn the_files_are_named_in_the_guide() {
    let guide = std::fs::read_to_string(example("../docs/topolvm-scheduler.md")).unwrap();
    for entry in std::fs::read_dir(example("")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(guide.contains(&format!("`{name}`")), "{name}");
    }
}

/// The text with those lines in comments that are wanted in the place of the lines that follow them.
fn exchanged(text: &str, is_wanted: impl Fn(&str) -> bool) -> String {
    let mut lines = text.lines();
    let mut changed = Vec::new();
    while let Some(line) = lines.next() {
        let alternative = line.trim_start().strip_prefix("# - ").filter(|line| is_wanted(line));
        if alternative.is_some() {
            changed.push(line.replacen("# ", "", 1));
            let _original = lines.next();
        } else {
            changed.push(line.to_owned());
        }
    }
    changed.join("\n")
}
