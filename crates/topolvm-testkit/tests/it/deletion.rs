//! Deletion, finalizers and preconditions.

use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use serde_json::json;
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::logical_volume;

use crate::support::{refusal, volumes};

#[tokio::test]
async fn an_object_without_finalizers_is_gone_at_once() {
    let server = ApiServer::new();
    server.apply_json(logical_volume("a").build());
    let api = volumes(&server);
    let answer = api.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(answer.right().unwrap().is_success());
    assert_eq!(refusal(api.delete("a", &DeleteParams::default()).await).0, 404);
}

#[tokio::test]
async fn finalizers_hold_an_object_until_the_last_is_off() {
    let server = ApiServer::new();
    server.apply_json(logical_volume("a").finalizer("one").finalizer("two").build());
    let api = volumes(&server);
    let marked = api.delete("a", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert!(marked.is_deleting());
    assert_eq!(marked.metadata.generation, Some(2));
    let again = api.delete("a", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(again.resource_version(), marked.resource_version());

    let one_left = Patch::Merge(json!({"metadata": {"finalizers": ["two"]}}));
    api.patch("a", &PatchParams::default(), &one_left).await.unwrap();
    assert!(server.get_json("logicalvolumes", "", "a").is_some());
    let none_left = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("a", &PatchParams::default(), &none_left).await.unwrap();
    assert_eq!(server.get_json("logicalvolumes", "", "a"), None);
}

#[tokio::test]
async fn no_finalizer_can_be_added_to_an_object_that_is_being_deleted() {
    let server = ApiServer::new();
    server.apply_json(logical_volume("a").finalizer("one").build());
    assert!(server.delete("logicalvolumes", "", "a"));
    let patch = Patch::Merge(json!({"metadata": {"finalizers": ["one", "two"]}}));
    let (code, reason, message) = refusal(volumes(&server).patch("a", &PatchParams::default(), &patch).await);
    assert_eq!((code, reason.as_str()), (422, "Invalid"));
    assert_eq!(
        message,
        "LogicalVolume.topolvm.io \"a\" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if \
         the object is being deleted, found new finalizers []string{\"two\"}"
    );
}

#[tokio::test]
async fn a_deletion_may_demand_a_uid_and_a_version() {
    let server = ApiServer::new();
    server.apply_json(logical_volume("a").uid("u-1").build());
    let api = volumes(&server);
    let only = |uid: Option<&str>, version: Option<&str>| DeleteParams {
        preconditions: Some(Preconditions {
            uid: uid.map(str::to_owned),
            resource_version: version.map(str::to_owned),
        }),
        ..DeleteParams::default()
    };
    let (code, reason, _) = refusal(api.delete("a", &only(Some("u-0"), None)).await);
    assert_eq!((code, reason.as_str()), (409, "Conflict"));
    assert_eq!(refusal(api.delete("a", &only(None, Some("1"))).await).0, 409);
    api.delete("a", &only(Some("u-1"), None)).await.unwrap();
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector() {
    let server = ApiServer::new();
    server.apply_json(logical_volume("a").on("n1").build());
    server.apply_json(logical_volume("b").on("n2").build());
    let params = ListParams::default().fields("spec.nodeName=n1");
    volumes(&server).delete_collection(&DeleteParams::default(), &params).await.unwrap();
    let left = server.list_json("logicalvolumes");
    assert_eq!(left.len(), 1);
    assert_eq!(left.first().unwrap()["metadata"]["name"], "b");
}
