//! Answers of the extender: to which nodes a pod may go, how good each of them is, and where evictions let it go.

use std::ops::Deref;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use crate::capacity::{Capacity, Requested};
use crate::extender::{
    Candidates, Error, FailedNodes, HostPriority, NamesResult, PreemptionCandidate, PreemptionRequest,
    PreemptionResult, Request, nodes_result,
};
use crate::metrics::Metrics;
use crate::node_cache::{NodeCache, Nodes};
use crate::predicate::{FilterReason, check_node};
use crate::prioritize::Scoring;
use crate::reservations::{Fit, OthersReservations, Reservations};

/// Time for which an answer may wait until the nodes of other pods are known. kube-scheduler writes them within
/// milliseconds, and waits for an answer for 5 s unless configured otherwise.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Answers requests from what is known.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) scoring: Scoring,
    pub(crate) nodes: Option<NodeCache>,
    pub(crate) reservations: Option<Reservations>,
    pub(crate) metrics: Metrics,
}

impl Answers {
    /// Checks that the watched objects have been listed; the error names the missing ones.
    pub(crate) fn check_ready(&self) -> Result<(), Error> {
        if self.nodes.as_ref().is_some_and(|nodes| !nodes.is_listed()) {
            return Err(Error::NotListed);
        }
        self.check_reservations()
    }

    fn check_reservations(&self) -> Result<(), Error> {
        let is_missing = self.reservations.as_ref().is_some_and(|reservations| !reservations.is_listed());
        if is_missing { Err(Error::ReservationsNotListed) } else { Ok(()) }
    }

    /// Returns the pieces of the answer that lists the nodes with enough free space.
    pub(crate) async fn filter(&self, body: &Bytes, request: &Request) -> Result<Vec<Bytes>, Error> {
        let results = self.decide(request).await?;
        self.metrics.count_results(&results);
        if let Some(reservations) = &self.reservations {
            let allowed = request.node_names().zip(&results).filter(|(_, result)| result.is_ok());
            reservations.allow(&request.pod, &request.requested, allowed.map(|(name, _)| name));
        }
        let mut failed = FailedNodes::new();
        for (name, result) in request.node_names().zip(&results) {
            if let Err(reason) = result {
                failed.insert(name, reason.to_string());
            }
        }
        match &request.candidates {
            Candidates::Nodes(nodes) => {
                let nodes_and_results = nodes.items.iter().zip(&results);
                let kept = nodes_and_results.filter_map(|(node, result)| result.is_ok().then_some(node));
                Ok(nodes_result(body, nodes, &kept.collect::<Vec<_>>(), &failed)?)
            }
            Candidates::Names(names) => {
                let names = names.iter().map(String::as_str).zip(&results);
                let kept = names.filter_map(|(name, result)| result.is_ok().then_some(name));
                Ok(vec![serde_json::to_vec(&NamesResult::new(kept.collect(), &failed))?.into()])
            }
        }
    }

    /// Decides about each node. If the pod fits nowhere unless another pod goes elsewhere, waits a moment for that to
    /// be known. If it fits on none of the Nodes in the cache, waits a moment for their updates: a change of a Node may
    /// have made kube-scheduler try again, which it would not do for minutes if the change is not known here yet.
    async fn decide(&self, request: &Request) -> Result<Vec<Result<(), FilterReason>>, Error> {
        let deadline = Instant::now() + LONGEST_WAIT;
        let mut changes = self.reservations.as_ref().map(Reservations::changes);
        let cache = self.nodes.as_ref().filter(|_| matches!(request.candidates, Candidates::Names(_)));
        let mut news = cache.map(NodeCache::news);
        loop {
            let fits = self.check_nodes(request)?;
            let fits_nowhere = !fits.contains(&Fit::Fits);
            let may_change = fits_nowhere && fits.contains(&Fit::Depends);
            let mut has_changed = match changes.as_mut().filter(|_| may_change) {
                Some(changes) => timeout_at(deadline, changes.changed()).await.is_ok(),
                None => false,
            };
            if fits_nowhere
                && !has_changed
                && let Some(news) = &mut news
            {
                has_changed = news.wait().await;
            }
            if !has_changed {
                return Ok(fits.into_iter().map(Fit::into_result).collect());
            }
        }
    }

    fn check_nodes(&self, request: &Request) -> Result<Vec<Fit>, Error> {
        let Request { pod, requested, candidates } = request;
        if !requested.is_empty() {
            self.check_reservations()?;
        }
        let others = self.reservations.as_ref().map(|reservations| reservations.of_others(pod));
        let check = |name: &str, capacity: &Capacity| check_fit(others.as_ref(), name, capacity, requested);
        match candidates {
            Candidates::Nodes(nodes) => Ok(nodes.items.iter().map(|node| check(&node.name, &node.capacity)).collect()),
            Candidates::Names(names) => {
                let nodes = self.cached_nodes()?;
                let check_name = |name: &str| match nodes.get(name) {
                    Some(capacity) => check(name, capacity),
                    None => Fit::Fails(FilterReason::UnknownNode),
                };
                Ok(names.iter().map(String::as_str).map(check_name).collect())
            }
        }
    }

    fn cached_nodes(&self) -> Result<impl Deref<Target = Nodes>, Error> {
        let cache = self.nodes.as_ref().ok_or(Error::NamesOnly)?;
        cache.read().ok_or(Error::NotListed)
    }

    /// Returns the candidates on which the pod fits when the victims are gone. kube-scheduler finds candidates by its
    /// own plugins, and would evict pods on nodes that are refused to the pod afterwards. A node of which the cache
    /// does not know stays. So do all where there is no cache: an error would end the preemption.
    pub(crate) async fn preempt<'a>(&self, request: &'a PreemptionRequest<'a>) -> PreemptionResult<'a> {
        let mut news = self.nodes.as_ref().map(NodeCache::news);
        loop {
            let kept = self.keep_candidates(request);
            // Without a candidate kube-scheduler may not try the pod again for minutes
            let has_changed = match news.as_mut().filter(|_| kept.is_empty()) {
                Some(news) => news.wait().await,
                None => false,
            };
            if !has_changed {
                let (candidates, kept_count) = (request.candidates.len(), kept.len());
                if kept_count < candidates {
                    // The message of the pod contains only that there is no candidate
                    tracing::info!(
                        pod = &*request.pod.uid,
                        candidates,
                        kept = kept_count,
                        "nodes without free space are no candidates for preemption"
                    );
                }
                return kept.into_iter().collect();
            }
        }
    }

    fn keep_candidates<'a>(&self, request: &'a PreemptionRequest<'a>) -> Vec<&'a PreemptionCandidate<'a>> {
        let PreemptionRequest { pod, requested, candidates } = request;
        let Some(nodes) = self.nodes.as_ref().and_then(NodeCache::read) else { return candidates.iter().collect() };
        let others = self.reservations.as_ref().map(|reservations| reservations.of_others(pod));
        let may_fit = |candidate: &PreemptionCandidate<'_>| {
            let name = candidate.node.as_str();
            nodes.get(name).is_none_or(|capacity| {
                !matches!(check_fit(others.as_ref(), name, capacity, &candidate.required(requested)), Fit::Fails(_))
            })
        };
        candidates.iter().filter(|candidate| may_fit(candidate)).collect()
    }

    /// Returns the answer how good each node is. One that the cache does not know has no space.
    pub(crate) fn prioritize(&self, request: &Request) -> Result<String, Error> {
        let Request { pod, requested, candidates } = request;
        if requested.is_empty() {
            return Ok("null".to_owned());
        }
        self.check_reservations()?;
        let others = self.reservations.as_ref().map(|reservations| reservations.of_others(pod));
        let score = |node: &str, capacity: &Capacity| {
            let reserved = |class: &str| others.as_ref().map_or(0, |others| others.bytes(node, class, capacity));
            self.scoring.score_node(capacity, requested, reserved)
        };
        let scores: Vec<HostPriority<'_>> = match candidates {
            Candidates::Nodes(nodes) => {
                let nodes = nodes.items.iter().map(|node| (node.name.as_str(), score(&node.name, &node.capacity)));
                nodes.map(|(host, score)| HostPriority { host, score }).collect()
            }
            Candidates::Names(names) => {
                let nodes = self.cached_nodes()?;
                let score = |host: &str| nodes.get(host).map_or(0, |capacity| score(host, capacity));
                names.iter().map(|name| HostPriority { host: name, score: score(name) }).collect()
            }
        };
        Ok(serde_json::to_string(&scores)?)
    }
}

/// Checks that a node has the requested bytes in addition to the bytes that are reserved for others, where that is
/// known.
fn check_fit(others: Option<&OthersReservations<'_>>, name: &str, capacity: &Capacity, requested: &Requested) -> Fit {
    match others {
        Some(others) => others.check_node(name, capacity, requested),
        None => check_node(capacity, requested, |_| 0).map_or_else(Fit::Fails, |()| Fit::Fits),
    }
}
