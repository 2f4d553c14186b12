//! Volumes that may grow by themselves: the agent says on their objects whether they are too small.

use serde_json::{Value, json};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::logical_volume;

use crate::cluster::LV;
use crate::whole_agent::{Agent, until_ready};

const TOO_SMALL_AT: &str = "topolvm.io/too-small-at";

/// Says below which free space a volume is too small.
#[expect(clippy::indexing_slicing, reason = "reading a member that a JSON value lacks gives null")]
fn set_thresholds(api: &ApiServer, name: &str, thresholds: Option<&str>) {
    let mut object = api.get_json(LV, "", name).unwrap();
    object["metadata"]["annotations"]["topolvm.io/growth-thresholds"] = json!(thresholds);
    if thresholds.is_none() {
        let annotations = object["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove("topolvm.io/growth-thresholds");
    }
    api.apply_json(object);
}

#[expect(clippy::indexing_slicing, reason = "reading a member that a JSON value lacks gives null")]
fn annotation(object: &Value, key: &str) -> Value {
    object["metadata"]["annotations"][key].clone()
}

/// Half of each filesystem of the machine is free.
#[tokio::test]
async fn too_small_annotation_exists_only_below_the_free_threshold() {
    let api = ApiServer::new();
    let agent = Agent::start(&api).await;
    let _lvmd = agent.lvmd().await;
    for id in ["full", "ample", "unasked"] {
        api.apply_json(logical_volume(&format!("pvc-{id}")).uid(id).build());
        until_ready(&api, &format!("pvc-{id}")).await;
        agent.publish(id).await;
    }
    set_thresholds(&api, "pvc-ample", Some("space=10%,inodes=10%"));
    set_thresholds(&api, "pvc-full", Some("space=60%,inodes=10%"));
    let reported = api
        .until(LV, "", "pvc-full", |object| Some(annotation(object?, TOO_SMALL_AT)).filter(|value| !value.is_null()));
    assert_eq!(reported.await, "1073741824");
    set_thresholds(&api, "pvc-full", None);
    api.until(LV, "", "pvc-full", |object| annotation(object?, TOO_SMALL_AT).is_null().then_some(())).await;
    for name in ["pvc-ample", "pvc-unasked"] {
        assert_eq!(annotation(&api.get_json(LV, "", name).unwrap(), TOO_SMALL_AT), Value::Null, "{name}");
    }
    agent.stop().await;
}
