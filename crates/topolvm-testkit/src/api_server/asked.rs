//! A request for a resource, with what follows from its path, parameters and headers.

use http::HeaderMap;

use super::kind::Kind;
use super::ownership::Manager;
use super::refusal::Refusal;
use super::request::{Query, Target, manager};
use super::selector::Selector;
use super::store::ObjectName;
use super::write::{Part, Writer};

/// A request for a resource, understood.
pub(super) struct Asked {
    pub(super) verb: &'static str,
    pub(super) kind: Kind,
    pub(super) target: Target,
    pub(super) query: Query,
    pub(super) headers: HeaderMap,
}

impl Asked {
    pub(super) fn key(&self, name: &str) -> ObjectName {
        (self.target.namespace.clone().unwrap_or_default(), name.to_owned())
    }

    pub(super) fn part(&self) -> Result<Part, Refusal> {
        match self.target.subresource.as_deref() {
            None => Ok(Part::Main),
            Some("status") if self.kind.has_status => Ok(Part::Status),
            Some(_) => Err(Refusal::no_such_path()),
        }
    }

    pub(super) fn writer(&self, applies: bool) -> Result<Writer, Refusal> {
        let part = self.part()?;
        Ok(Writer {
            manager: Manager { name: manager(&self.query, &self.headers), applies, subresource: part == Part::Status },
            part,
            dry_run: self.query.get("dryRun") == "All",
        })
    }

    pub(super) fn selector(&self) -> Result<Selector, Refusal> {
        let (fields, labels) = (self.query.get("fieldSelector"), self.query.get("labelSelector"));
        match &self.target.name {
            // The old way to watch one object
            Some(name) => {
                Selector::parse(&self.kind, self.target.namespace.as_deref(), &format!("metadata.name={name}"), labels)
            }
            None => Selector::parse(&self.kind, self.target.namespace.as_deref(), fields, labels),
        }
    }
}
