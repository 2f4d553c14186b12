//! The StorageClasses of the cluster, as far as they say something about our volumes.

use std::future::Future;

use futures::FutureExt as _;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher::Event;
use topolvm_api::ApiFlavor;
use topolvm_kube::watch_all;
use topolvm_runtime::CancellationToken;

use super::object_name;
use super::request_limit::Reads;
use super::requested_capacity::OurClass;
use crate::minimum_allocation;

/// Annotation of the class that claims without one get.
const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// Reads the watched StorageClasses. Clones share them.
#[derive(Clone)]
pub(crate) struct StorageClasses {
    flavor: ApiFlavor,
    api: Api<StorageClass>,
    store: Store<StorageClass>,
    reads: Reads,
}

impl StorageClasses {
    /// The classes, and the task that keeps them current until `shutdown` is cancelled.
    pub(crate) fn new(
        api: Api<StorageClass>,
        flavor: ApiFlavor,
        reads: Reads,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = anyhow::Result<()>> + Send) {
        let mut writer = store::Writer::default();
        let classes = Self { flavor, api: api.clone(), store: writer.as_reader(), reads };
        let task = async move {
            watch_all("StorageClasses", api, shutdown, |mut event| {
                if let Event::Apply(class) | Event::InitApply(class) = &mut event {
                    prune(flavor, class);
                }
                writer.apply_watcher_event(&event);
            })
            .await
        };
        (classes, task)
    }

    /// Whether all classes have been listed once.
    pub(crate) fn is_synced(&self) -> bool {
        matches!(self.store.wait_until_ready().now_or_never(), Some(Ok(())))
    }

    /// The class of this name, if there is one and it is ours.
    pub(crate) async fn ours(&self, name: &str) -> kube::Result<Option<OurClass>> {
        if let Some(class) = self.store.get(&ObjectRef::new(name)) {
            return Ok(OurClass::of(self.flavor, &class));
        }
        if !object_name::is_object_name(name) {
            return Ok(None);
        }
        // One that was made together with the claim and the pod may not have been told yet
        let class = self.reads.get(self.api.get_opt(name)).await?;
        Ok(class.and_then(|class| OurClass::of(self.flavor, &class)))
    }

    /// The class that a claim without one gets, if it is ours: of several the youngest, as in Kubernetes.
    pub(crate) async fn our_default(&self) -> Option<OurClass> {
        // Fails only when the process ends
        self.store.wait_until_ready().await.ok()?;
        let classes = self.store.state();
        let defaults = classes.iter().filter(|class| {
            class
                .metadata
                .annotations
                .as_ref()
                .is_some_and(|annotations| annotations.get(IS_DEFAULT).is_some_and(|value| value == "true"))
        });
        let youngest = defaults.max_by(|a, b| {
            let made = |class: &StorageClass| class.metadata.creation_timestamp.as_ref().map(|time| time.0);
            made(a).cmp(&made(b)).then_with(|| b.metadata.name.cmp(&a.metadata.name))
        })?;
        OurClass::of(self.flavor, youngest)
    }
}

/// Keeps in memory what is read here.
fn prune(flavor: ApiFlavor, class: &mut StorageClass) {
    let metadata = &mut class.metadata;
    metadata.managed_fields = None;
    metadata.labels = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|key, _| key == IS_DEFAULT);
    }
    class.allowed_topologies = None;
    class.mount_options = None;
    if let Some(parameters) = &mut class.parameters {
        parameters.retain(|key, _| key == flavor.device_class_parameter() || minimum_allocation::is_parameter(key));
    }
}
