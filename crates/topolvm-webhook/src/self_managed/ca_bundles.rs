//! The `caBundle`s of the webhook configuration: the authorities that API servers trust when they call the webhooks.

use json_patch::jsonptr::PointerBuf;
use json_patch::{Patch, PatchOperation, TestOperation};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use kube::api::PatchParams;
use serde_json::{Value, json};

use crate::patch::add;

/// The `caBundle`s of the configuration, as they were read.
pub(super) struct CaBundles {
    name: String,
    resource_version: Option<String>,
    /// Name and bundle of every webhook.
    webhooks: Vec<(String, Option<ByteString>)>,
}

impl CaBundles {
    /// Reads the configuration; `None` when there is none of this name.
    pub(super) async fn read(api: &Api<MutatingWebhookConfiguration>, name: &str) -> kube::Result<Option<Self>> {
        let Some(configuration) = api.get_opt(name).await? else { return Ok(None) };
        let webhooks = configuration.webhooks.into_iter().flatten();
        Ok(Some(Self {
            name: name.to_owned(),
            resource_version: configuration.metadata.resource_version,
            webhooks: webhooks.map(|webhook| (webhook.name, webhook.client_config.ca_bundle)).collect(),
        }))
    }

    /// Returns whether all webhooks have exactly this bundle.
    pub(super) fn all_are(&self, bundle: &str) -> bool {
        self.webhooks.iter().all(|(_, trusted)| trusted.as_ref().is_some_and(|trusted| trusted.0 == bundle.as_bytes()))
    }

    /// Writes the bundle, and nothing else, into the configuration as it was read. False when it has changed since.
    pub(super) async fn write(&self, api: &Api<MutatingWebhookConfiguration>, bundle: &str) -> kube::Result<bool> {
        let bundle = json!(ByteString(bundle.into()));
        let test = |path: PointerBuf, value: Value| PatchOperation::Test(TestOperation { path, value });
        let mut operations =
            vec![test(PointerBuf::from_tokens(["metadata", "resourceVersion"]), json!(self.resource_version))];
        for index in 0..self.webhooks.len() {
            let index = index.to_string();
            operations.push(add(
                PointerBuf::from_tokens(["webhooks", index.as_str(), "clientConfig", "caBundle"]),
                bundle.clone(),
            ));
        }
        let patch = kube::api::Patch::<Value>::Json(Patch(operations));
        match api.patch(&self.name, &PatchParams::default(), &patch).await {
            Ok(_) => Ok(true),
            // A test that fails is "invalid"
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
