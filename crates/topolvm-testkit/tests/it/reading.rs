//! GET and LIST.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::core::metadata::PartialObjectMeta;
use kube::{Api, ResourceExt as _};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{logical_volume, node, pod};

use crate::support::{refusal, volumes};

fn names<K: kube::Resource>(items: impl IntoIterator<Item = K>) -> Vec<String> {
    items.into_iter().map(|item| item.meta().name.clone().unwrap()).collect()
}

#[tokio::test]
async fn the_version_is_answered() {
    let version = ApiServer::new().client().apiserver_version().await.unwrap();
    assert_eq!(version.major, "1");
}

#[tokio::test]
async fn missing_object_gets_the_404_message_of_the_real_server() {
    let server = ApiServer::new();
    assert_eq!(
        refusal(volumes(&server).get("pvc-1").await),
        (404, "NotFound".to_owned(), "logicalvolumes.topolvm.io \"pvc-1\" not found".to_owned())
    );
    let pods: Api<Pod> = Api::namespaced(server.client(), "ns");
    assert_eq!(refusal(pods.get("p").await).2, "pods \"p\" not found");
    assert_eq!(pods.get_opt("p").await.unwrap(), None);
}

#[tokio::test]
async fn a_resource_that_is_not_installed_is_an_unknown_path() {
    let server = ApiServer::new();
    server.withdraw("logicalvolumes.topolvm.io");
    let message = refusal(volumes(&server).list(&ListParams::default()).await).2;
    assert_eq!(message, "the server could not find the requested resource");
}

#[tokio::test]
async fn lists_are_narrowed_by_fields_labels_and_namespace() {
    let server = ApiServer::new();
    server.apply_json(logical_volume("a").on("n1").label("app", "x").build());
    server.apply_json(logical_volume("b").on("n2").build());
    server.apply_json(logical_volume("c").on("n1").build());
    let api = volumes(&server);
    let list = async |params: ListParams| names(api.list(&params).await.unwrap());
    assert_eq!(list(ListParams::default()).await, ["a", "b", "c"]);
    assert_eq!(list(ListParams::default().fields("spec.nodeName=n1")).await, ["a", "c"]);
    assert_eq!(list(ListParams::default().fields("spec.nodeName!=n1")).await, ["b"]);
    assert_eq!(list(ListParams::default().fields("metadata.name=b")).await, ["b"]);
    assert_eq!(list(ListParams::default().labels("app=x")).await, ["a"]);
    assert_eq!(list(ListParams::default().labels("app in (x, y)")).await, ["a"]);
    assert_eq!(list(ListParams::default().labels("!app")).await, ["b", "c"]);
    assert_eq!(list(ListParams::default().labels("app!=x")).await, ["b", "c"]);

    server.apply_json(pod("p").namespace("one").build());
    server.apply_json(pod("p").namespace("two").on("n1").build());
    let all: Api<Pod> = Api::all(server.client());
    assert_eq!(all.list(&ListParams::default()).await.unwrap().items.len(), 2);
    assert_eq!(names(all.list(&ListParams::default().fields("spec.nodeName=n1")).await.unwrap()).len(), 1);
    let one: Api<Pod> = Api::namespaced(server.client(), "one");
    let found = one.list(&ListParams::default()).await.unwrap();
    assert_eq!(found.items.first().unwrap().namespace().as_deref(), Some("one"));
    assert_eq!(found.items.len(), 1);
}

#[tokio::test]
async fn a_field_that_is_not_selectable_is_a_bad_request() {
    let server = ApiServer::new();
    let api = volumes(&server);
    let listed = api.list(&ListParams::default().fields("spec.size=1Gi")).await;
    assert_eq!(refusal(listed), (400, "BadRequest".to_owned(), "field label not supported: spec.size".to_owned()));
    server.set_selectable_fields("logicalvolumes", &[]);
    let listed = api.list(&ListParams::default().fields("spec.nodeName=n1")).await;
    assert_eq!(refusal(listed).0, 400);
}

#[tokio::test]
async fn pages_show_the_state_of_the_first_page() {
    let server = ApiServer::new();
    for name in ["a", "b", "c", "d"] {
        server.apply_json(logical_volume(name).build());
    }
    let api = volumes(&server);
    let first = api.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.metadata.remaining_item_count, Some(2));
    server.delete("logicalvolumes", "", "c");
    server.apply_json(logical_volume("e").build());
    let token = first.metadata.continue_.clone().unwrap();
    let second = api.list(&ListParams::default().limit(5).continue_token(&token)).await.unwrap();
    assert_eq!(names(first), ["a", "b"]);
    assert_eq!(second.metadata.continue_, None);
    assert_eq!(names(second), ["c", "d"]);

    server.expire();
    let late = api.list(&ListParams::default().continue_token(&token)).await;
    assert_eq!(refusal(late).0, 410);
}

#[tokio::test]
async fn metadata_alone_can_be_read() {
    let server = ApiServer::new();
    server.apply_json(node("n1").capacity("ssd", 5).build());
    let api: Api<Node> = Api::all(server.client());
    let found: PartialObjectMeta<Node> = api.get_metadata("n1").await.unwrap();
    assert_eq!(found.types.clone().unwrap().kind, "PartialObjectMetadata");
    assert_eq!(found.annotations().get("capacity.topolvm.io/ssd").unwrap(), "5368709120");
    let list = api.list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(names(list), ["n1"]);
}

#[tokio::test]
async fn objects_of_both_groups_live_side_by_side() {
    let server = ApiServer::new();
    server.apply_json(logical_volume("a").build());
    server.apply_json(logical_volume("a").legacy().sized("2Gi").build());
    assert_eq!(server.list_json("logicalvolumes").len(), 2);
    let legacy = server.get_json("logicalvolumes.topolvm.cybozu.com", "", "a").unwrap();
    assert_eq!(legacy["spec"]["size"], "2Gi");
    assert_eq!(volumes(&server).get("a").await.unwrap().spec.size.0, "1Gi");
}
