//! Prepares the CreateVolume request for a claim: reads what it refers to, and changes nothing but the finalizer of a
//! source.

use std::collections::HashMap;
use std::sync::Arc;

use csi_calls::Capabilities;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, SecretReference};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client, ResourceExt as _};
use topolvm_api::claim::selected_node;
use topolvm_kube::{ReconcileError, none_if_not_found, read_secret};
use topolvm_proto::csi::{CreateVolumeRequest, VolumeContentSource};

use crate::attempt::{Attempt, VolumeSecrets};
use crate::attributes_class::AttributesClass;
use crate::content_source::{DataSource, SourceFinder};
use crate::error::PrepareError;
use crate::node_topologies::NodeTopologies;
use crate::volume_request::{capabilities, capacity_range, filesystem, parameters};

/// The dependencies of preparations.
#[derive(Clone)]
pub(crate) struct Preparation {
    pub(crate) client: Client,
    pub(crate) driver: String,
    pub(crate) default_filesystem: String,
    pub(crate) topologies: NodeTopologies,
}

/// The result of a preparation.
#[derive(Debug)]
pub(crate) enum Prepared {
    /// The volume can be requested.
    Attempt(Box<Attempt>),
    /// A volume populator makes the volume, from a source of this kind.
    LeftToPopulator(String),
}

impl Preparation {
    /// Prepares the request for the volume of this name.
    pub(crate) async fn prepare(
        &self,
        claim: Arc<PersistentVolumeClaim>,
        class: Arc<StorageClass>,
        name: String,
        announced: Capabilities,
    ) -> Result<Prepared, PrepareError> {
        let source = DataSource::of_claim(&claim)?;
        if let Some(source) = &source {
            source.check_supported(announced)?;
        }
        if let Some(DataSource::Populator(kind)) = source {
            return Ok(Prepared::LeftToPopulator(kind));
        }
        if claim.spec.as_ref().is_some_and(|spec| spec.selector.is_some()) {
            return Err(PrepareError::Selector);
        }
        let filesystem = filesystem(&class, &self.default_filesystem)?;
        let secrets = VolumeSecrets::resolve(&class, &name, &claim)?;
        let allowed = class.allowed_topologies.as_deref().unwrap_or_default();
        let topology = match selected_node(&claim).filter(|node| !node.is_empty()) {
            Some(node) => self.topologies.of_selected(node, allowed).await?,
            None => self.topologies.of_all(&claim.name_any(), allowed).await?,
        };
        let request = CreateVolumeRequest {
            capacity_range: Some(capacity_range(&claim)?),
            volume_capabilities: capabilities(&claim, &class, &filesystem, announced)?,
            parameters: parameters(&class, &claim, &name)?,
            mutable_parameters: self.mutable_parameters(&claim).await?,
            secrets: self.read_secret(secrets.provisioner.as_ref()).await?,
            accessibility_requirements: Some(topology),
            // Last, because it changes the source
            volume_content_source: self.find_source(&claim, source).await?,
            name,
        };
        Ok(Prepared::Attempt(Box::new(Attempt { claim, class, filesystem, secrets, request })))
    }

    /// Returns the contents of a Secret.
    pub(crate) async fn read_secret(
        &self,
        reference: Option<&SecretReference>,
    ) -> Result<HashMap<String, String>, PrepareError> {
        let Some(reference) = reference else { return Ok(HashMap::new()) };
        let name = reference.name.as_deref().unwrap_or_default();
        let namespace = reference.namespace.as_deref().unwrap_or_default();
        Ok(read_secret(&self.client, namespace, name).await?)
    }

    /// Returns the parameters of the VolumeAttributesClass that the claim names.
    async fn mutable_parameters(&self, claim: &PersistentVolumeClaim) -> Result<HashMap<String, String>, PrepareError> {
        let name = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(HashMap::new()) };
        let found = none_if_not_found(Api::<AttributesClass>::all(self.client.clone()).get(name).await);
        let found = found.map_err(ReconcileError::api("read VolumeAttributesClass", name))?;
        let class = found.ok_or_else(|| PrepareError::AttributesClassMissing(name.to_owned()))?;
        if class.driver_name != self.driver {
            let (name, driver) = (name.to_owned(), class.driver_name);
            return Err(PrepareError::AttributesClassOfOtherDriver { name, driver });
        }
        Ok(class.parameters.into_iter().collect())
    }

    async fn find_source(
        &self,
        claim: &PersistentVolumeClaim,
        source: Option<DataSource>,
    ) -> Result<Option<VolumeContentSource>, PrepareError> {
        let finder = SourceFinder { client: &self.client, driver: &self.driver, claim };
        Ok(match source {
            Some(DataSource::Snapshot(name)) => Some(finder.find_snapshot(&name).await?),
            Some(DataSource::Claim(name)) => Some(finder.find_claim(&name).await?),
            Some(DataSource::Populator(_)) | None => None,
        })
    }
}
