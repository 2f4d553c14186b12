//! The StorageClass informer: the parameters of the StorageClasses of this driver.

use std::future::Future;
use std::sync::Arc;

use k8s_openapi::api::storage::v1::StorageClass;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Api, ResourceExt as _};
use topolvm_api::ApiFlavor;
use topolvm_capacity::ClassParameters;
use topolvm_capacity::minimum_allocation::is_filesystem_parameter;
use topolvm_kube::{Cache, CacheWriter, watch_all};
use topolvm_runtime::CancellationToken;

use crate::object_name;
use crate::request_limit::RequestLimit;

/// Annotation of the class that claims without one get.
const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// The cache of watched StorageClasses. Clones share it.
#[derive(Clone)]
pub(crate) struct StorageClassInformer {
    flavor: ApiFlavor,
    api: Api<StorageClass>,
    pub(crate) cache: Cache<StorageClass>,
    request_limit: RequestLimit,
}

impl StorageClassInformer {
    /// Returns the informer, and the task that keeps its cache current until `shutdown` is cancelled.
    pub(crate) fn new(
        api: Api<StorageClass>,
        flavor: ApiFlavor,
        request_limit: RequestLimit,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = anyhow::Result<()>> + Send) {
        let mut writer = CacheWriter::default();
        let classes = Self { flavor, api: api.clone(), cache: writer.as_reader(), request_limit };
        let task = watch_all("StorageClasses", api, shutdown, move |mut event| {
            if let Event::Apply(class) | Event::InitApply(class) = &mut event {
                prune(flavor, class);
            }
            writer.apply(&event);
        });
        (classes, task)
    }

    /// Returns the parameters of the class that a claim names; `None` if it names none, or one that does not exist or
    /// is of another driver.
    pub(crate) async fn find_own(&self, name: Option<&str>) -> kube::Result<Option<ClassParameters>> {
        let Some(name) = name else { return Ok(None) };
        if let Some(class) = self.cache.get(&ObjectRef::new(name)) {
            return Ok(ClassParameters::from_class(self.flavor, &class));
        }
        if !object_name::is_valid(name) {
            return Ok(None);
        }
        // One that was created together with the claim and the pod may not be in the cache yet
        let class = self.request_limit.run(self.api.get_opt(name)).await?;
        Ok(class.and_then(|class| ClassParameters::from_class(self.flavor, &class)))
    }

    /// Returns the parameters of the class that a claim without one gets, if it is of this driver: of several default
    /// classes the youngest counts, as in Kubernetes.
    pub(crate) async fn find_own_default(&self) -> Option<ClassParameters> {
        // False only when the process ends
        if !self.cache.wait_until_listed().await {
            return None;
        }
        let classes = self.cache.state();
        let is_default =
            |class: &&Arc<StorageClass>| class.annotations().get(IS_DEFAULT).is_some_and(|is| is == "true");
        let defaults = classes.iter().filter(is_default);
        let youngest = defaults.max_by(|a, b| {
            let made = |class: &StorageClass| class.metadata.creation_timestamp.as_ref().map(|time| time.0);
            made(a).cmp(&made(b)).then_with(|| b.metadata.name.cmp(&a.metadata.name))
        })?;
        ClassParameters::from_class(self.flavor, youngest)
    }
}

/// Drops unused fields before the class is cached.
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
        parameters.retain(|key, _| key == flavor.device_class_parameter() || is_filesystem_parameter(key));
    }
}
