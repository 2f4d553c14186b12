//! Lists in pages, and lists of what a field selector selects, also where the API server does not know the field.

use std::fmt::Debug;
use std::pin::pin;

use futures::stream::{self, Stream, TryStreamExt as _};
use kube::Api;
use kube::api::ListParams;
use kube::runtime::watcher;
use serde::de::DeserializeOwned;

/// Objects per page, as many as kube's own watcher and kubectl ask for: neither side has to hold a whole large cluster.
const PAGE: u32 = 500;

/// Lists objects page by page. The next page is requested when the objects of the last one have been taken. `params`
/// may have its own limit, for objects that are large.
pub fn list_in_pages<K>(api: &Api<K>, params: ListParams) -> impl Stream<Item = kube::Result<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let page = params.limit.unwrap_or(PAGE);
    stream::try_unfold(Some(params.limit(page)), move |params| async move {
        let Some(params) = params else { return Ok(None) };
        let list = api.list(&params).await?;
        let token = list.metadata.continue_.filter(|token| !token.is_empty());
        let next = token.map(|token| params.continue_token(&token));
        Ok::<_, kube::Error>(Some((stream::iter(list.items.into_iter().map(Ok)), next)))
    })
    .try_flatten()
}

/// Lists the objects that a field selector selects, and of them those for which `is_selected` is true. `is_selected`
/// must be equivalent to the selector: an API server that does not support the field is queried for all objects.
pub async fn list_selected<K>(api: &Api<K>, fields: &str, is_selected: impl Fn(&K) -> bool) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    match list_filtered(api, ListParams::default().fields(fields), &is_selected).await {
        Err(error) if is_unknown_field(&error) => list_filtered(api, ListParams::default(), &is_selected).await,
        listed => listed,
    }
}

async fn list_filtered<K>(api: &Api<K>, params: ListParams, is_selected: &impl Fn(&K) -> bool) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut found = Vec::new();
    let mut objects = pin!(list_in_pages(api, params));
    while let Some(object) = objects.try_next().await? {
        if is_selected(&object) {
            found.push(object);
        }
    }
    Ok(found)
}

/// Returns the selection of the objects of a node by `spec.nodeName`; `None` if the API server cannot select by it, so
/// that a watch receives the objects of all nodes.
pub async fn node_selection<K>(api: &Api<K>, node: &str) -> kube::Result<Option<watcher::Config>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let fields = format!("spec.nodeName={node}");
    match api.list(&ListParams::default().fields(&fields).limit(1)).await {
        Ok(_) => Ok(Some(watcher::Config::default().fields(&fields))),
        Err(error) if is_unknown_field(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether the error is "field label not supported". Fields of custom resources can be selected if their CRD
/// lists them (`selectableFields`), and from Kubernetes 1.31 on, or 1.30 with a feature gate. TopoLVM's CRD lists none.
fn is_unknown_field(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 400)
}

#[cfg(test)]
mod tests {
    use topolvm_api::{ApiFlavor, LogicalVolume};
    use topolvm_testkit::ApiServer;
    use topolvm_testkit::fixtures::logical_volume;

    use super::*;

    const LV: &str = "logicalvolumes.topolvm.io";

    /// A server with this many volumes, each third of them on node `n2`.
    fn server(volumes: usize) -> (ApiServer, Api<LogicalVolume>) {
        let server = ApiServer::new();
        for number in 0..volumes {
            let node = if number % 3 == 0 { "n2" } else { "n1" };
            server.apply_json(logical_volume(&format!("pvc-{number:04}")).on(node).build());
        }
        let api = Api::all_with(server.client(), &ApiFlavor::TopoLvm);
        (server, api)
    }

    async fn of_second_node(api: &Api<LogicalVolume>) -> usize {
        let is_there = |volume: &LogicalVolume| volume.spec.node_name == "n2";
        list_selected(api, "spec.nodeName=n2", is_there).await.unwrap().len()
    }

    #[tokio::test]
    async fn a_long_list_comes_in_pages_and_whole() {
        let (server, api) = server(1001);
        let names: Vec<_> = list_in_pages(&api, ListParams::default())
            .map_ok(|volume| volume.name().to_owned())
            .try_collect()
            .await
            .unwrap();
        assert_eq!((names.len(), names.is_sorted(), server.count("list", LV)), (1001, true, 3));
    }

    #[tokio::test]
    async fn page_list_requests_no_page_beyond_the_found_object() {
        let (server, api) = server(501);
        let mut volumes = pin!(list_in_pages(&api, ListParams::default()));
        assert_eq!(volumes.try_next().await.unwrap().unwrap().name(), "pvc-0000");
        assert_eq!(server.count("list", LV), 1);
    }

    #[tokio::test]
    async fn what_the_server_cannot_select_is_selected_here() {
        let (server, api) = server(9);
        assert!(node_selection(&api, "n2").await.unwrap().is_some());
        assert_eq!(of_second_node(&api).await, 3);
        server.set_selectable_fields(LV, &[]);
        assert!(node_selection(&api, "n2").await.unwrap().is_none());
        assert_eq!(of_second_node(&api).await, 3);
    }

    #[tokio::test]
    async fn a_server_that_fails_is_not_taken_for_one_that_cannot_select() {
        let (server, api) = server(1);
        server.fail_next("list", LV, 2, 500);
        assert!(node_selection(&api, "n2").await.is_err());
        list_selected(&api, "spec.nodeName=n2", |_| true).await.unwrap_err();
        assert_eq!(server.count("list", LV), 2);
    }
}
