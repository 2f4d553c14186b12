//! Counts the writes that the API server has accepted, by its metrics.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context as _, Result};
use testbed::cluster::Cluster;

/// Name of the metric of requests.
const REQUESTS: &str = "apiserver_request_total{";
const VERBS: [&str; 4] = ["POST", "PUT", "PATCH", "APPLY"];
/// Resources that provisioning a volume writes.
const RESOURCES: [&str; 7] = [
    "persistentvolumeclaims",
    "logicalvolumes",
    "persistentvolumes",
    "events",
    "nodes",
    "nodestorages",
    "csistoragecapacities",
];

/// A kind of write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Write {
    /// Resource in an API group and its version; an empty group is the core's.
    pub(super) resource: Resource,
    /// `POST`, `PUT`, `PATCH`, or `APPLY` for a server-side apply.
    pub(super) verb: String,
    /// True for the status subresource.
    pub(super) is_status: bool,
}

/// A resource of the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Resource {
    /// API group; empty is the core's.
    pub(super) group: String,
    pub(super) version: String,
    /// Plural name.
    pub(super) name: String,
}

/// The number of writes of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Writes {
    counts: BTreeMap<Write, usize>,
}

impl Writes {
    /// Reads the writes since the start of the API server.
    pub(super) fn read(cluster: &Cluster) -> Result<Self> {
        Self::parse(&cluster.kubectl_ok(["get", "--raw", "/metrics"])?)
    }

    fn parse(page: &str) -> Result<Self> {
        let mut counts = BTreeMap::new();
        for line in page.lines() {
            let Some((labels, value)) = line.strip_prefix(REQUESTS).and_then(|rest| rest.rsplit_once("} ")) else {
                continue;
            };
            if let Some(write) = Write::parse(labels) {
                let value: usize = value.parse().with_context(|| format!("no number in the metric {line}"))?;
                *counts.entry(write).or_default() += value;
            }
        }
        Ok(Self { counts })
    }

    /// Returns the writes after earlier ones.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let new = |(write, count): (&Write, &usize)| {
            let before = earlier.counts.get(write).copied().unwrap_or_default();
            (*count > before).then(|| (write.clone(), count - before))
        };
        Self { counts: self.counts.iter().filter_map(new).collect() }
    }

    /// Returns the number of all.
    pub(super) fn total(&self) -> usize {
        self.counts.values().sum()
    }

    /// Returns the resources.
    pub(super) fn resources(&self) -> impl Iterator<Item = &Resource> {
        self.counts.keys().map(|write| &write.resource)
    }

    /// Returns the writes of one of several equal parts: each object is created before it is changed.
    pub(super) fn part(&self, number: usize, parts: usize) -> Vec<&Write> {
        let times = |count: usize| (number + 1) * count / parts - number * count / parts;
        let mut part: Vec<_> =
            self.counts.iter().flat_map(|(write, count)| std::iter::repeat_n(write, times(*count))).collect();
        part.sort_by_key(|write| (!write.is_create(), write.is_status));
        part
    }
}

impl fmt::Display for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (Write { resource, verb, is_status }, count) in &self.counts {
            let status = if *is_status { "/status" } else { "" };
            let Resource { group, version: _, name } = resource;
            let dot = if group.is_empty() { "" } else { "." };
            writeln!(f, "{count} {verb} {name}{dot}{group}{status}")?;
        }
        Ok(())
    }
}

impl Write {
    /// Parses the labels of the metric; `None` for other requests.
    fn parse(labels: &str) -> Option<Self> {
        let labels: BTreeMap<&str, &str> =
            labels.split("\",").filter_map(|label| label.trim_end_matches('"').split_once("=\"")).collect();
        let label = |name: &str| labels.get(name).copied().unwrap_or_default();
        let (verb, resource, subresource) = (label("verb"), label("resource"), label("subresource"));
        let is_write = label("code").starts_with('2')
            && VERBS.contains(&verb)
            && RESOURCES.contains(&resource)
            && ["", "status"].contains(&subresource);
        let own = |name: &str| label(name).to_owned();
        is_write.then(|| Self {
            resource: Resource { group: own("group"), version: own("version"), name: own("resource") },
            verb: verb.to_owned(),
            is_status: subresource == "status",
        })
    }

    /// Returns true if it creates an object.
    pub(super) fn is_create(&self) -> bool {
        self.verb == "POST"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(verb: &str, resource: &str, subresource: &str, code: u16, count: usize) -> String {
        format!(
            "apiserver_request_total{{code=\"{code}\",component=\"apiserver\",dry_run=\"\",group=\"\",\
             resource=\"{resource}\",scope=\"resource\",subresource=\"{subresource}\",\
             verb=\"{verb}\",version=\"v1\"}} {count}\n"
        )
    }

    #[test]
    fn writes_are_those_that_were_accepted_since() {
        let before = Writes::parse(&line("POST", "persistentvolumes", "", 201, 3)).unwrap();
        let page = [
            line("POST", "persistentvolumes", "", 201, 5),
            line("POST", "persistentvolumes", "", 409, 7),
            line("GET", "persistentvolumes", "", 200, 7),
            line("PUT", "leases", "", 200, 7),
            line("PUT", "persistentvolumes", "status", 200, 4),
        ];
        let writes = Writes::parse(&page.concat()).unwrap().since(&before);
        assert_eq!(
            (writes.total(), writes.to_string().as_str()),
            (6, "2 POST persistentvolumes\n4 PUT persistentvolumes/status\n")
        );
        let parts: Vec<_> = (0..4).map(|number| writes.part(number, 4)).collect();
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 1, 2]);
        assert!(parts[1][0].is_create() && parts[1][1].is_status);
    }
}
