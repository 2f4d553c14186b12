//! Creates a volume, or finds that it has been created: the same request any number of times has the same result.

use std::collections::BTreeMap;

use kube::api::PostParams;
use tokio::time::Instant;
use topolvm_api::{CREATED_BY, CREATED_BY_LABEL, LogicalVolume, LogicalVolumeSpec, format_bytes};

use super::delete::{Deletion, exact_version};
use super::error::ApiFailure;
use super::existing::{Existing, compare_existing};
use super::objects::api_error;
use super::{ClaimName, Volume, VolumeError, VolumeRequest, Volumes};

impl Volumes {
    /// Creates the volume unless it exists, and waits until its node has provisioned it. When the node cannot, the
    /// object is deleted and the error has the node's code and message.
    pub(crate) async fn create(&self, request: &VolumeRequest, deadline: Instant) -> Result<Volume, VolumeError> {
        let name = request.name.as_str();
        // Mostly there is none: then one POST is all that it takes
        let mut existing = match self.objects.informer.cache.get(name) {
            Some(_) => self.objects.read(name).await?,
            None => None,
        };
        loop {
            let Some(object) = existing else {
                if let Some(object) = self.create_object(request, deadline).await? {
                    return self.objects.wait_provisioned(object, deadline).await;
                }
                existing = self.objects.read(name).await?;
                continue;
            };
            let request = &self.request_for_existing(request, &object).await?;
            match compare_existing(self.objects.flavor, &object, request) {
                Existing::Matches => return self.objects.wait_provisioned(object, deadline).await,
                Existing::Differs(difference) => {
                    return Err(VolumeError::AlreadyExists { name: name.to_owned(), difference });
                }
                Existing::Unprovisioned => {
                    tracing::info!(name, node = object.spec.node_name, "replacing an object without a volume");
                    let was_cached = self.objects.is_cached(&object);
                    match self.objects.delete_object(name, exact_version(&object)).await? {
                        Deletion::Done => {}
                        Deletion::Pending => self.wait_name_free(&object, was_cached, deadline).await?,
                        Deletion::Conflict => {
                            existing = self.objects.read(name).await?;
                            continue;
                        }
                    }
                }
                Existing::BeingDeleted => self.wait_name_free(&object, false, deadline).await?,
            }
            existing = None;
        }
    }

    /// Returns the effective request for this object. If the object has no volume and is on another node than the
    /// preferred one, the object is requested again where the scheduler has selected that node: the pod may have been
    /// rescheduled since.
    async fn request_for_existing(
        &self,
        request: &VolumeRequest,
        object: &LogicalVolume,
    ) -> Result<VolumeRequest, VolumeError> {
        let is_elsewhere = request.placement.prefers_another(&object.spec.node_name);
        let mut request = request.clone();
        if is_elsewhere && object.volume_id().is_none() && !object.is_deleting() {
            request.placement = self.node_choice.narrow_to_selected_node(&request).await?;
        }
        Ok(request)
    }

    /// Waits until the object is deleted, so that its name is free.
    async fn wait_name_free(
        &self,
        object: &LogicalVolume,
        was_cached: bool,
        deadline: Instant,
    ) -> Result<(), VolumeError> {
        if self.objects.wait_deleted(object, was_cached, deadline).await? {
            Ok(())
        } else {
            Err(VolumeError::StillBeingDeleted { name: object.name().to_owned(), node: object.spec.node_name.clone() })
        }
    }

    /// Creates the object; `None` if there is one of that name.
    async fn create_object(
        &self,
        request: &VolumeRequest,
        deadline: Instant,
    ) -> Result<Option<LogicalVolume>, VolumeError> {
        let reserved = match self.node_choice.choose_node(request, deadline).await {
            // Until the watch shows the object, concurrent requests see the reservation of this one
            Ok(node) => self.node_choice.reserve(request, &node).await.map(|(hold, claim)| (node, hold, claim)),
            Err(error) => Err(error),
        };
        let (node, hold, claim) = match reserved {
            Ok(reserved) => reserved,
            // The volume itself may be what fills the nodes: a repeated request must find it
            Err(error) => return self.objects.read(&request.name).await?.map_or(Err(error), |_| Ok(None)),
        };
        let object = self.build_object(request, node, claim);
        let params = PostParams { field_manager: Some(CREATED_BY.to_owned()), ..PostParams::default() };
        match self.objects.api().create(&params, &object).await {
            Ok(object) => {
                hold.created();
                tracing::info!(
                    name = request.name,
                    node = object.spec.node_name,
                    bytes = request.size.bytes,
                    device_class = request.device_class,
                    "created a LogicalVolume"
                );
                Ok(Some(object))
            }
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(None),
            Err(kube::Error::Api(status)) if status.is_invalid() => Err(VolumeError::InvalidObject {
                name: request.name.clone(),
                source: ApiFailure::from(kube::Error::Api(status)),
            }),
            Err(error) => Err(api_error("create", &request.name)(error)),
        }
    }

    /// Builds the object to create. It has the finalizer and the label from the start, so that the node agent can begin
    /// with the LV at once; TopoLVM's agent adds both itself, one after the other.
    fn build_object(&self, request: &VolumeRequest, node_name: String, claim: Option<ClaimName>) -> LogicalVolume {
        let source = request.source.as_ref();
        let mut object = LogicalVolume::new(
            self.objects.flavor,
            LogicalVolumeSpec {
                name: request.name.clone(),
                node_name,
                size: format_bytes(request.size.bytes),
                device_class: request.device_class.clone(),
                lvcreate_option_class: request.lvcreate_option_class.clone(),
                source: source.map(|source| source.object_name.clone()).unwrap_or_default(),
                access_type: source.map_or("", |source| source.access.as_str()).to_owned(),
            },
        );
        let claim = claim.map(|claim| (self.objects.flavor.claim(), format!("{}/{}", claim.namespace, claim.name)));
        let id = source.map(|source| (source.id.annotation(self.objects.flavor), source.id.id().to_owned()));
        let filesystem =
            source.and_then(|source| source.filesystem.clone()).map(|value| (self.objects.flavor.filesystem(), value));
        let requested = request.size.requested_other_than(request.size.bytes);
        let requested = requested.map(|bytes| (self.objects.flavor.requested_size(), format_bytes(bytes).0));
        let group = source.and_then(|source| source.group.as_ref());
        let group = group.map(|group| group.annotations(self.objects.flavor));
        let limits = request.io_limits.annotations(self.objects.flavor).filter_map(|(key, value)| Some((key, value?)));
        let annotations = [claim, id, filesystem, requested].into_iter().flatten();
        let annotations = annotations.chain(group.into_iter().flatten()).chain(limits);
        let annotations: BTreeMap<_, _> = annotations.map(|(key, value)| (key.to_owned(), value)).collect();
        object.metadata.annotations = (!annotations.is_empty()).then_some(annotations);
        object.metadata.finalizers = Some(vec![self.objects.flavor.logical_volume_finalizer().to_owned()]);
        object.metadata.labels = Some(BTreeMap::from([(CREATED_BY_LABEL.to_owned(), CREATED_BY.to_owned())]));
        object
    }
}
