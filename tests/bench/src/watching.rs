//! Measures with a watch the time until objects fulfil a condition.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::future::try_join;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

/// Timeout of a wait for one object: longer than any takes on the slowest machine.
const LIMIT: Duration = Duration::from_mins(2);
/// Time by which it is longer for each further object.
const LIMIT_PER_OBJECT: Duration = Duration::from_secs(2);

/// Number of objects up to which an error names them.
const FEW: usize = 100;

/// Runs `action` and returns the milliseconds until each object of these names fulfilled a condition, in the order of
/// the names.
pub(crate) async fn time_until_all<K>(
    api: &Api<K>,
    names: &[String],
    condition: impl Fn(&K) -> bool,
    action: impl Future<Output = Result<()>>,
) -> Result<Vec<f64>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut events = watcher(api.clone(), watcher::Config::default()).boxed();
    // Later changes arrive as events
    while !matches!(events.try_next().await?.context("the watch ended")?, Event::InitDone) {}
    let wanted: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let limit = LIMIT + LIMIT_PER_OBJECT * u32::try_from(names.len()).context("too many objects")?;
    let start = Instant::now();
    let seen = async {
        let mut times = BTreeMap::new();
        while times.len() < wanted.len() {
            let event = events.try_next().await?.context("the watch ended")?;
            let (Event::Apply(object) | Event::InitApply(object)) = event else { continue };
            let name = object.meta().name.clone().unwrap_or_default();
            if wanted.contains(name.as_str()) && condition(&object) {
                times.entry(name).or_insert_with(|| start.elapsed().as_secs_f64() * 1000.0);
            }
        }
        Ok(times)
    };
    let ((), times) = timeout(limit, try_join(action, seen))
        .await
        .with_context(|| format!("not all of {} are ready after {limit:?}", describe(names)))??;
    names.iter().map(|name| times.get(name).copied().context("no time")).collect()
}

/// Names objects, if they are few.
fn describe(names: &[String]) -> String {
    if names.len() > FEW { format!("{} objects", names.len()) } else { names.join(", ") }
}

/// Runs `action` and returns the milliseconds until one object fulfilled a condition.
pub(crate) async fn time_until<K>(
    api: &Api<K>,
    name: &str,
    condition: impl Fn(&K) -> bool,
    action: impl Future<Output = Result<()>>,
) -> Result<f64>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let times = time_until_all(api, &[name.to_owned()], condition, action).await?;
    times.first().copied().context("no time")
}

/// Returns true if a claim is Bound.
pub(crate) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Bound"))
}
