//! The informer of the ConfigMap in which the leader keeps whether kube-scheduler calls the extender.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use topolvm_api::{EXTENDER_PROBE, EXTENDER_PROVEN_KEY, EXTENDER_REASON_KEY};
use topolvm_runtime::{CancellationToken, Tasks};

use crate::watch::watch_one;

/// Outcome of the extender probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtenderState {
    /// kube-scheduler is proven to call the extender.
    Proven,
    /// It is not, for this reason.
    NotProven(String),
}

impl ExtenderState {
    /// Returns the state before the first probe has ended.
    fn unprobed() -> Self {
        Self::NotProven("kube-scheduler has not been probed yet".to_owned())
    }

    fn from_config_map(map: &ConfigMap) -> Self {
        let value = |key| map.data.as_ref().and_then(|data: &BTreeMap<String, String>| data.get(key));
        match (value(EXTENDER_PROVEN_KEY).map(String::as_str), value(EXTENDER_REASON_KEY)) {
            (Some("true"), _) => Self::Proven,
            (_, Some(reason)) => Self::NotProven(reason.clone()),
            (_, None) => Self::unprobed(),
        }
    }

    /// Returns the data of the ConfigMap.
    #[must_use]
    pub fn to_data(&self) -> BTreeMap<String, String> {
        let (proven, reason) = match self {
            Self::Proven => ("true", ""),
            Self::NotProven(reason) => ("false", reason.as_str()),
        };
        BTreeMap::from(
            [(EXTENDER_PROVEN_KEY, proven), (EXTENDER_REASON_KEY, reason)]
                .map(|(key, value)| (key.to_owned(), value.to_owned())),
        )
    }
}

/// The outcome of the extender probes, as the ConfigMap has it. Clones share it.
#[derive(Clone, Debug)]
pub struct ExtenderInformer {
    /// `None` until the watch has listed the ConfigMap.
    state: watch::Receiver<Option<ExtenderState>>,
}

impl ExtenderInformer {
    /// Starts the watch of the ConfigMap in this namespace, and adds the metric to the registry. The watch ends when
    /// `shutdown` is cancelled.
    pub fn start(
        client: &Client,
        namespace: &str,
        registry: &mut Registry,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) -> Self {
        let proven = Gauge::default();
        let help = "1 while the probe confirms that kube-scheduler calls the scheduler extender, otherwise 0";
        registry.register("topolvm_extender_proven", help, proven.clone());
        let (sender, state) = watch::channel(None);
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let mut listed = None;
        let watching =
            watch_one("outcome of the extender probe", api, EXTENDER_PROBE, shutdown.clone(), move |event| {
                let found = match event {
                    Event::Init => {
                        listed = None;
                        return;
                    }
                    Event::InitApply(map) => {
                        listed = Some(ExtenderState::from_config_map(&map));
                        return;
                    }
                    Event::InitDone => listed.take(),
                    Event::Apply(map) => Some(ExtenderState::from_config_map(&map)),
                    Event::Delete(_) => None,
                };
                record(&sender, &proven, found.unwrap_or_else(ExtenderState::unprobed));
            });
        tasks.spawn("watch of the extender probe's outcome", watching);
        Self { state }
    }

    /// Returns whether the watch has listed the ConfigMap.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.state.borrow().is_some()
    }

    /// Waits until the watch has listed the ConfigMap, or has ended.
    pub async fn wait_until_listed(&self) {
        // An error is the end of the watch, with the process
        drop(self.state.clone().wait_for(Option::is_some).await);
    }

    /// Returns the state, which may be a moment old.
    #[must_use]
    pub fn state(&self) -> ExtenderState {
        self.state.borrow().clone().unwrap_or_else(ExtenderState::unprobed)
    }
}

/// Keeps a new state, and logs it when pods are treated in another way from now on.
fn record(sender: &watch::Sender<Option<ExtenderState>>, gauge: &Gauge, state: ExtenderState) {
    let is_proven = state == ExtenderState::Proven;
    gauge.set(i64::from(is_proven));
    let before = sender.send_replace(Some(state.clone()));
    if before.is_some_and(|before| (before == ExtenderState::Proven) == is_proven) {
        return;
    }
    match state {
        ExtenderState::Proven => {
            tracing::info!(
                "the probe confirms that kube-scheduler calls topolvm-scheduler; pods get the capacity resource"
            );
        }
        ExtenderState::NotProven(reason) => tracing::warn!(
            reason,
            "the probe does not confirm that kube-scheduler calls topolvm-scheduler; pods do not get the capacity \
             resource and are scheduled without regard to free space (docs/scheduling.md)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use topolvm_testkit::ApiServer;

    use super::*;

    #[test]
    fn written_state_is_read_and_no_state_proves_nothing() {
        for state in [ExtenderState::Proven, ExtenderState::NotProven("full".to_owned())] {
            let map = ConfigMap { data: Some(state.to_data()), ..ConfigMap::default() };
            assert_eq!(ExtenderState::from_config_map(&map), state);
        }
        assert_eq!(ExtenderState::from_config_map(&ConfigMap::default()), ExtenderState::unprobed());
    }

    #[tokio::test]
    async fn the_state_and_the_metric_follow_the_config_map() {
        let server = ApiServer::new();
        let (shutdown, mut registry) = (CancellationToken::new(), Registry::default());
        let tasks = Tasks::new(shutdown.clone());
        let informer = ExtenderInformer::start(&server.client(), "default", &mut registry, &tasks, &shutdown);
        assert!(!informer.is_listed());
        let mut changes = informer.state.clone();
        let mut expect = async |state: &ExtenderState, metric: &str| {
            changes.wait_for(|found| found.as_ref() == Some(state)).await.unwrap();
            let mut page = String::new();
            prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
            assert!(page.contains(metric), "{page}");
        };
        expect(&ExtenderState::unprobed(), "topolvm_extender_proven 0").await;
        let map = |state: &ExtenderState| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": EXTENDER_PROBE, "namespace": "default"},
                "data": state.to_data(),
            })
        };
        server.apply_json(map(&ExtenderState::Proven));
        expect(&ExtenderState::Proven, "topolvm_extender_proven 1").await;
        let refuted = ExtenderState::NotProven("no extender".to_owned());
        server.apply_json(map(&refuted));
        expect(&refuted, "topolvm_extender_proven 0").await;
        server.apply_json(map(&ExtenderState::Proven));
        expect(&ExtenderState::Proven, "topolvm_extender_proven 1").await;
        server.delete("configmaps", "default", EXTENDER_PROBE);
        expect(&ExtenderState::unprobed(), "topolvm_extender_proven 0").await;
        shutdown.cancel();
        tasks.wait().await.unwrap();
    }
}
