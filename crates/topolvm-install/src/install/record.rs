//! The record of an installation for the next run of this program: a ConfigMap in the cluster with the options and the
//! objects.

use std::collections::BTreeSet;

use cli_runtime::request;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::InstallError;
use super::manifests::NAMESPACE;
use super::object::{MANAGED_BY, MANAGER, ObjectId, apply_error};
use super::options::Options;

const NAME: &str = "topolvm-installation";
const KEY: &str = "installation.json";

/// An installation as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    /// Version of the program that wrote it.
    pub(crate) version: String,
    pub(crate) options: Options,
    pub(crate) objects: BTreeSet<ObjectId>,
    /// True if the namespace was made with the installation, so that it is removed with it.
    pub(crate) has_made_namespace: bool,
    /// True if the programs were removed and the volumes kept.
    #[serde(default)]
    pub(crate) is_removed: bool,
}

/// Returns true if the programs are installed by `install` or `trial`, and false if nothing says so.
pub async fn is_installed(client: &Client) -> bool {
    matches!(Record::read(client).await, Ok(Some(record)) if !record.is_removed)
}

impl Record {
    pub(crate) async fn read(client: &Client) -> Result<Option<Self>, InstallError> {
        let api = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
        let Some(found) = request::get(&api, NAME).await? else { return Ok(None) };
        let text = found.data.as_ref().and_then(|data| data.get(KEY)).map(String::as_str).unwrap_or_default();
        serde_json::from_str(text).map(Some).map_err(InstallError::Record)
    }

    /// Writes it, unless `before` is the same.
    pub(crate) async fn write(&self, client: &Client, before: Option<&Self>) -> Result<(), InstallError> {
        if before == Some(self) {
            return Ok(());
        }
        let text = serde_json::to_string(self).map_err(InstallError::Object)?;
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": NAME, "namespace": NAMESPACE, "labels": { MANAGED_BY: MANAGER } },
            "data": { KEY: text },
        });
        let api = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
        let written = api.patch(NAME, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&object)).await;
        written.map(drop).map_err(|error| apply_error(&Self::id(), error))
    }

    /// Returns the identity of the ConfigMap.
    pub(crate) fn id() -> ObjectId {
        ObjectId {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            namespace: Some(NAMESPACE.to_owned()),
            name: NAME.to_owned(),
        }
    }
}
