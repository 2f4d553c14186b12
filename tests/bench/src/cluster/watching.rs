//! Measures with a watch the time until objects fulfil a condition.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Instant;

use anyhow::{Context as _, Result};
use futures::future::try_join;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::LIMIT;

/// Runs `action` and returns the milliseconds until each object of these names fulfilled a condition, in the order of
/// the names.
pub(super) async fn time_until_all<K>(
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
    let start = Instant::now();
    let seen = async {
        let mut times = BTreeMap::new();
        while times.len() < names.len() {
            let event = events.try_next().await?.context("the watch ended")?;
            let (Event::Apply(object) | Event::InitApply(object)) = event else { continue };
            let name = object.meta().name.clone().unwrap_or_default();
            if names.contains(&name) && condition(&object) {
                times.entry(name).or_insert_with(|| start.elapsed().as_secs_f64() * 1000.0);
            }
        }
        Ok(times)
    };
    let ((), times) = timeout(LIMIT, try_join(action, seen))
        .await
        .with_context(|| format!("not all of {names:?} are ready after {LIMIT:?}"))??;
    names.iter().map(|name| times.get(name).copied().context("no time")).collect()
}

/// Runs `action` and returns the milliseconds until one object fulfilled a condition.
pub(super) async fn time_until<K>(
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
