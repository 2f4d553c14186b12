//! Requests for a resource: what follows from path, parameters and headers.

use http::HeaderMap;

use super::http_request::{Query, Target, field_manager};
use super::kind::Kind;
use super::ownership::Manager;
use super::selector::Selector;
use super::status_error::StatusError;
use super::store::ObjectName;
use super::write::{Part, Writer};

/// A parsed request for a resource that is served.
pub(super) struct ResourceRequest {
    pub(super) verb: &'static str,
    pub(super) kind: Kind,
    pub(super) target: Target,
    pub(super) query: Query,
    pub(super) headers: HeaderMap,
}

impl ResourceRequest {
    /// Returns the key of the object of this name in the store.
    pub(super) fn key(&self, name: &str) -> ObjectName {
        (self.target.namespace.clone().unwrap_or_default(), name.to_owned())
    }

    /// Returns the part of the object that the path names: all but the status, or the status.
    pub(super) fn part(&self) -> Result<Part, StatusError> {
        match self.target.subresource.as_deref() {
            None => Ok(Part::Main),
            Some("status") if self.kind.has_status => Ok(Part::Status),
            Some(_) => Err(StatusError::no_such_path()),
        }
    }

    /// Returns the writer of a mutating request, a server-side apply or not.
    pub(super) fn writer(&self, applies: bool) -> Result<Writer, StatusError> {
        let part = self.part()?;
        Ok(Writer {
            manager: Manager {
                name: field_manager(&self.query, &self.headers),
                applies,
                subresource: part == Part::Status,
            },
            part,
            dry_run: self.query.get("dryRun") == "All",
        })
    }

    /// Parses the selectors of a list or watch.
    pub(super) fn selector(&self) -> Result<Selector, StatusError> {
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
