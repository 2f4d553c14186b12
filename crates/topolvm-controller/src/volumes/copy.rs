//! Copies: snapshots, volumes restored from a snapshot, and clones.
//!
//! A copy shares its blocks with its source, so that it is made where the source is: on its node, in its device class. It is at
//! least as large. Once made it does not need its source any more.

use tokio::time::Instant;
use topolvm_api::{AccessType, LogicalVolume, parse_bytes};

use super::create::exactly;
use super::delete::Deletion;
use super::existing::{Existing, judge};
use super::volume::{SourceId, size};
use super::{Error, Origin, Placement, Volume, Volumes, Wanted};
use crate::volume_size::VolumeSize;

/// A snapshot to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewSnapshot {
    /// Name of the `LogicalVolume`.
    pub(crate) name: String,
    /// Id of the volume.
    pub(crate) source: String,
    /// Where the caller allows it to be.
    pub(crate) placement: Placement,
}

impl Volumes {
    /// Makes a volume that begins as a copy, as [`ensure`](Self::ensure) makes one that begins empty. `wanted` is what the
    /// caller asks for; what the source decides is filled in here.
    pub(crate) async fn ensure_copy(
        &self,
        wanted: Wanted,
        source: SourceId,
        deadline: Instant,
    ) -> Result<Volume, Error> {
        let object = self.source(&source).await?;
        if let Some(copy) = self.copied_before(&wanted, &source, object.as_ref()).await? {
            return self.await_made(copy, deadline).await;
        }
        let object = object.ok_or_else(|| no_source(&source))?;
        // Also for a pod that was scheduled to another node: the copy can be nowhere else, and where the request allows its
        // node, the scheduler sends the pod after the volume
        let placement = copied_place(&wanted.placement, &object)?;
        let wanted = Wanted {
            size: copied_size(wanted.size, &object)?,
            device_class: copied_class(wanted.device_class, &object)?,
            placement,
            origin: Some(self.origin(&object, source, AccessType::ReadWrite)),
            ..wanted
        };
        self.ensure(&wanted, deadline).await
    }

    /// Takes a snapshot, or finds that it has been taken: the same request any number of times has the same result.
    pub(crate) async fn ensure_snapshot(&self, wanted: NewSnapshot, deadline: Instant) -> Result<Volume, Error> {
        let NewSnapshot { name, source, placement } = wanted;
        let source = SourceId::Volume(source);
        let Some(object) = self.source(&source).await? else {
            return self.made_before(&name, source, deadline).await;
        };
        let wanted = Wanted {
            name,
            size: VolumeSize::of_snapshot(size(&object)),
            device_class: object.spec.device_class.clone(),
            lvcreate_option_class: String::new(),
            placement: copied_place(&placement, &object)?,
            claim: None,
            origin: Some(self.origin(&object, source, AccessType::ReadOnly)),
        };
        self.ensure(&wanted, deadline).await
    }

    /// The copy, if an earlier request has made it or begun to. It is compared with what is asked for and not with its source, which
    /// may have grown since, or be gone: the same request has the same result.
    async fn copied_before(
        &self,
        wanted: &Wanted,
        source: &SourceId,
        source_object: Option<&LogicalVolume>,
    ) -> Result<Option<LogicalVolume>, Error> {
        loop {
            let Some(copy) = self.get(&wanted.name).await? else { return Ok(None) };
            let remembered = SourceId::remembered(self.flavor, &copy);
            // Only the name of its source tells of a copy that TopoLVM made whether it is the one
            let name = match source_object {
                Some(object) => object.name(),
                None if remembered.as_ref() == Some(source) => copy.spec.source.as_str(),
                None => return Ok(None),
            };
            let (name, id, access) = (name.to_owned(), source.clone(), AccessType::ReadWrite);
            let origin = Origin { name, id, access, filesystem: None };
            let mut wanted = Wanted { origin: Some(origin), ..wanted.clone() };
            if wanted.device_class.is_empty() {
                wanted.device_class.clone_from(&copy.spec.device_class);
            }
            match judge(self.flavor, &copy, &wanted) {
                Existing::Adopt => return Ok(Some(copy)),
                // Whatever the answer will be, its node must not make a volume that nobody knows of
                Existing::Useless => match self.delete(copy.name(), exactly(&copy)).await? {
                    Deletion::Gone | Deletion::Leaving => return Ok(None),
                    Deletion::Changed => {}
                },
                Existing::Leaving | Existing::Differs(_) => return Ok(None),
            }
        }
    }

    async fn source(&self, source: &SourceId) -> Result<Option<LogicalVolume>, Error> {
        Ok(self.find(source.kind(), source.id()).await?.filter(|object| !object.is_deleting()))
    }

    fn origin(&self, object: &LogicalVolume, id: SourceId, access: AccessType) -> Origin {
        let filesystem = object.annotation(self.flavor.filesystem()).map(str::to_owned);
        Origin { name: object.metadata.name.clone().unwrap_or_default(), id, access, filesystem }
    }

    /// The snapshot of a volume that is gone. The answer to the first request may have been lost, and the source deleted since:
    /// with "not found" nobody would ever ask for the snapshot again, and nobody would delete it.
    async fn made_before(&self, name: &str, source: SourceId, deadline: Instant) -> Result<Volume, Error> {
        let copy = self.get(name).await?.filter(|object| {
            !object.is_deleting() && SourceId::remembered(self.flavor, object).as_ref() == Some(&source)
        });
        match copy {
            Some(object) => self.await_made(object, deadline).await,
            None => Err(no_source(&source)),
        }
    }
}

fn no_source(source: &SourceId) -> Error {
    Error::NoSource { kind: source.kind(), id: source.id().to_owned() }
}

/// The size of the copy. Who asks for what the source was asked to be gets what the source became: LVM rounds up, and a
/// claim of the same size must do for a copy.
fn copied_size(wanted: VolumeSize, source: &LogicalVolume) -> Result<VolumeSize, Error> {
    let source_bytes = size(source);
    let nominal = parse_bytes(&source.spec.size).unwrap_or(source_bytes).min(source_bytes);
    let too_small = |asked| Error::TooSmall { source_bytes, asked };
    if let Some(asked) = wanted.asked().filter(|&asked| asked < nominal) {
        return Err(too_small(asked));
    }
    wanted.raised_to(source_bytes).ok_or_else(|| too_small(wanted.bytes))
}

/// The class of the copy. A StorageClass that names none leaves it to the source.
fn copied_class(wanted: String, source: &LogicalVolume) -> Result<String, Error> {
    let source_class = source.spec.device_class.clone();
    if wanted.is_empty() || wanted == source_class {
        Ok(source_class)
    } else {
        Err(Error::OtherClass { source_class, wanted })
    }
}

/// The place of the copy.
fn copied_place(wanted: &Placement, source: &LogicalVolume) -> Result<Placement, Error> {
    let node = source.spec.node_name.as_str();
    if wanted.accepts(node) { Ok(Placement::only(node)) } else { Err(Error::SourceElsewhere { node: node.to_owned() }) }
}
