//! The files in `scheduler-config/` work, and work together.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rstest::rstest;
use serde_json::{Value, json};
use topolvm_api::ApiFlavor;
use topolvm_scheduler::{Config, Scoring};

fn example(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../scheduler-config", name].iter().collect()
}

#[test]
fn the_options_are_those_that_they_say() {
    let divisors = BTreeMap::from([("hdd".to_owned(), 10.0), ("ssd".to_owned(), 1.0)]);
    let expected = Config {
        listen: "localhost:9251".parse().unwrap(),
        scoring: Scoring { divisors, ..Scoring::default() },
        ..Config::default()
    };
    assert_eq!(Config::load(&example("scheduler-options.yaml")).unwrap(), expected);
}

#[rstest]
#[case("scheduler-config.yaml", ApiFlavor::TopoLvm)]
#[case("scheduler-config-legacy.yaml", ApiFlavor::Legacy)]
fn kube_scheduler_is_told_to_ask_for_pods_with_capacity(#[case] file: &str, #[case] flavor: ApiFlavor) {
    let text = std::fs::read_to_string(example(file)).unwrap();
    let config: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(config["apiVersion"], "kubescheduler.config.k8s.io/v1");
    assert_eq!(
        config["extenders"],
        json!([{
            "urlPrefix": "http://127.0.0.1:9251", "filterVerb": "predicate", "prioritizeVerb": "prioritize", "weight": 1,
            "nodeCacheCapable": false, "httpTimeout": "30s",
            "managedResources": [{"name": flavor.capacity_resource(), "ignoredByScheduler": true}],
        }])
    );
}
