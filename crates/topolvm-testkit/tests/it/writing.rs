//! Creating, replacing and patching.

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use topolvm_api::LogicalVolume;
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{claim, logical_volume, node};

use crate::support::{refusal, volumes};

fn merge(patch: serde_json::Value) -> Patch<serde_json::Value> {
    Patch::Merge(patch)
}

fn apply(mut configuration: serde_json::Value) -> Patch<serde_json::Value> {
    for (key, value) in [("apiVersion", "topolvm.io/v1"), ("kind", "LogicalVolume")] {
        configuration.as_object_mut().unwrap().insert(key.to_owned(), value.into());
    }
    Patch::Apply(configuration)
}

async fn created(server: &ApiServer, name: &str) -> LogicalVolume {
    let volume = logical_volume(name).build();
    volumes(server).create(&PostParams::default(), &volume).await.unwrap()
}

#[tokio::test]
async fn a_created_object_gets_what_only_the_server_knows() {
    let server = ApiServer::new();
    let volume = created(&server, "a").await;
    assert_eq!(volume.metadata.generation, Some(1));
    assert_eq!(volume.uid().len(), 36);
    assert!(volume.metadata.creation_timestamp.is_some());
    let other = created(&server, "b").await;
    assert_ne!(volume.uid(), other.uid());
    assert_ne!(volume.resource_version(), other.resource_version());
}

#[tokio::test]
async fn a_name_that_is_taken_already_exists() {
    let server = ApiServer::new();
    created(&server, "a").await;
    let again = volumes(&server).create(&PostParams::default(), &logical_volume("a").build()).await;
    assert_eq!(
        refusal(again),
        (409, "AlreadyExists".to_owned(), "logicalvolumes.topolvm.io \"a\" already exists".to_owned())
    );
}

#[tokio::test]
async fn a_name_is_generated_where_only_its_beginning_is_given() {
    let server = ApiServer::new();
    let api: Api<PersistentVolumeClaim> = Api::namespaced(server.client(), "default");
    let mut wanted = claim("").build();
    wanted.metadata.generate_name = Some("data-".to_owned());
    wanted.metadata.name = None;
    let one = api.create(&PostParams::default(), &wanted).await.unwrap().name_any();
    let two = api.create(&PostParams::default(), &wanted).await.unwrap().name_any();
    assert!(one.starts_with("data-") && one.len() == 10, "{one}");
    assert_ne!(one, two);
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let server = ApiServer::new();
    let params = PostParams { dry_run: true, ..PostParams::default() };
    volumes(&server).create(&params, &logical_volume("a").build()).await.unwrap();
    assert_eq!(server.get_json("logicalvolumes", "", "a"), None);
}

#[tokio::test]
async fn the_status_is_written_through_its_subresource_only() {
    let server = ApiServer::new();
    let api = volumes(&server);
    let with_status = logical_volume("a").ready("u", "1Gi").build();
    let volume = api.create(&PostParams::default(), &with_status).await.unwrap();
    assert_eq!(volume.status, None);

    let both = merge(json!({"spec": {"size": "2Gi"}, "status": {"volumeID": "u"}}));
    let through_status = api.patch_status("a", &PatchParams::default(), &both).await.unwrap();
    assert_eq!((through_status.spec.size.0.as_str(), through_status.volume_id()), ("1Gi", Some("u")));
    assert_eq!(through_status.metadata.generation, Some(1));

    let other = merge(json!({"spec": {"size": "2Gi"}, "status": {"volumeID": "v"}}));
    let through_main = api.patch("a", &PatchParams::default(), &other).await.unwrap();
    assert_eq!((through_main.spec.size.0.as_str(), through_main.volume_id()), ("2Gi", Some("u")));
    assert_eq!(through_main.metadata.generation, Some(2));
}

#[tokio::test]
async fn replacing_an_old_state_is_a_conflict() {
    let server = ApiServer::new();
    let api = volumes(&server);
    let old = created(&server, "a").await;
    server.edit("logicalvolumes", "", "a", |volume| volume["spec"]["size"] = "3Gi".into());
    let replaced = api.replace("a", &PostParams::default(), &old).await;
    assert_eq!(
        refusal(replaced),
        (
            409,
            "Conflict".to_owned(),
            "Operation cannot be fulfilled on logicalvolumes.topolvm.io \"a\": the object has been modified; \
             please apply your changes to the latest version and try again"
                .to_owned()
        )
    );
    let mut blind = old;
    blind.metadata.resource_version = None;
    assert_eq!(refusal(api.replace("a", &PostParams::default(), &blind).await).0, 422);
}

#[tokio::test]
async fn a_patch_may_demand_a_version_or_a_uid() {
    let server = ApiServer::new();
    let api = volumes(&server);
    created(&server, "a").await;
    let patch = merge(json!({"metadata": {"resourceVersion": "1"}, "spec": {"size": "2Gi"}}));
    assert_eq!(refusal(api.patch("a", &PatchParams::default(), &patch).await).0, 409);
    let patch = merge(json!({"metadata": {"uid": "other"}, "spec": {"size": "2Gi"}}));
    assert_eq!(refusal(api.patch("a", &PatchParams::default(), &patch).await).0, 409);
}

#[tokio::test]
async fn a_write_that_changes_nothing_makes_no_version() {
    let server = ApiServer::new();
    let volume = created(&server, "a").await;
    let same = merge(json!({"spec": {"size": "1Gi"}}));
    let patched = volumes(&server).patch("a", &PatchParams::default(), &same).await.unwrap();
    assert_eq!(patched.resource_version(), volume.resource_version());
}

#[tokio::test]
async fn a_json_patch_whose_test_fails_is_refused_and_changes_nothing() {
    let server = ApiServer::new();
    let api = volumes(&server);
    created(&server, "a").await;
    let patch = |size: &str| -> json_patch::Patch {
        serde_json::from_value(json!([
            {"op": "test", "path": "/spec/size", "value": size},
            {"op": "replace", "path": "/spec/size", "value": "2Gi"},
        ]))
        .unwrap()
    };
    let refused = api.patch("a", &PatchParams::default(), &Patch::Json::<()>(patch("5Gi"))).await;
    assert_eq!(refusal(refused).0, 422);
    let patched = api.patch("a", &PatchParams::default(), &Patch::Json::<()>(patch("1Gi"))).await.unwrap();
    assert_eq!(patched.spec.size.0, "2Gi");
}

#[tokio::test]
async fn strategic_merge_patch_is_refused_for_custom_resources_only() {
    let server = ApiServer::new();
    created(&server, "a").await;
    let patch = Patch::Strategic(json!({"metadata": {"finalizers": ["b"]}}));
    assert_eq!(refusal(volumes(&server).patch("a", &PatchParams::default(), &patch).await).0, 415);

    server.apply_json(node("n1").finalizer("a").build());
    let nodes: Api<Node> = Api::all(server.client());
    let patched = nodes.patch("n1", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.finalizers(), ["a", "b"]);
}

#[tokio::test]
async fn server_side_apply_creates_and_removes_dropped_fields() {
    let server = ApiServer::new();
    let api = volumes(&server);
    let us = PatchParams::apply("us");
    let first = json!({
        "metadata": {"annotations": {"a": "1", "b": "1"}, "finalizers": ["ours"]},
        "spec": {"name": "v", "nodeName": "n1", "size": "1Gi"},
    });
    api.patch("v", &us, &apply(first)).await.unwrap();
    server.edit("logicalvolumes", "", "v", |volume| {
        volume["metadata"]["annotations"]["c"] = "theirs".into();
        volume["metadata"]["finalizers"].as_array_mut().unwrap().push("theirs".into());
    });
    let second = json!({
        "metadata": {"annotations": {"a": "2"}},
        "spec": {"name": "v", "nodeName": "n1", "size": "1Gi"},
    });
    let volume = api.patch("v", &us, &apply(second)).await.unwrap();
    assert_eq!(json!(volume.annotations()), json!({"a": "2", "c": "theirs"}));
    assert_eq!(volume.finalizers(), ["theirs"]);
}

#[tokio::test]
async fn applying_a_field_of_another_manager_needs_force() {
    let server = ApiServer::new();
    let api = volumes(&server);
    created(&server, "a").await;
    let wanted = apply(json!({"spec": {"size": "2Gi"}}));
    assert_eq!(
        refusal(api.patch("a", &PatchParams::apply("us"), &wanted).await),
        (409, "Conflict".to_owned(), "Apply failed with 1 conflict: conflict with \"unknown\": .spec.size".to_owned())
    );
    let forced = api.patch("a", &PatchParams::apply("us").force(), &wanted).await.unwrap();
    assert_eq!(forced.spec.size.0, "2Gi");
    // Ours now
    let again = apply(json!({"spec": {"size": "3Gi"}}));
    api.patch("a", &PatchParams::apply("us"), &again).await.unwrap();
}

#[tokio::test]
async fn applying_a_status_leaves_the_rest_and_does_not_create() {
    let server = ApiServer::new();
    let api = volumes(&server);
    let us = PatchParams::apply("us").force();
    let failed = apply(json!({"status": {"code": 8, "message": "full"}}));
    assert_eq!(refusal(api.patch_status("a", &us, &failed).await).0, 404);
    created(&server, "a").await;
    let volume = api.patch_status("a", &us, &failed).await.unwrap();
    assert_eq!(volume.failure(), Some((8, "full")));
    let done = apply(json!({"status": {"volumeID": "u", "currentSize": "1Gi"}}));
    let volume = api.patch_status("a", &us, &done).await.unwrap();
    assert_eq!((volume.failure(), volume.volume_id()), (None, Some("u")));
    assert_eq!(volume.spec.size.0, "1Gi");
}

#[tokio::test]
async fn server_side_apply_with_a_uid_does_not_recreate_the_object() {
    let server = ApiServer::new();
    let wanted = apply(json!({"metadata": {"uid": "u-1", "finalizers": ["a"]}}));
    let refused = volumes(&server).patch("gone", &PatchParams::apply("us"), &wanted).await;
    assert_eq!(refusal(refused).0, 409);
    assert_eq!(server.get_json("logicalvolumes", "", "gone"), None);
}

#[tokio::test]
async fn the_status_of_a_node_takes_annotations_along() {
    let server = ApiServer::new();
    server.apply_json(node("n1").build());
    let nodes: Api<Node> = Api::all(server.client());
    let patch = merge(json!({"metadata": {"annotations": {"a": "b"}}, "status": {"phase": "Running"}}));
    let patched = nodes.patch_status("n1", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.annotations().get("a").unwrap(), "b");
}
