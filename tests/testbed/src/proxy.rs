//! A proxy of the ClusterIPs of all TCP Services, in place of kube-proxy, without NAT.
//!
//! The range of the Services is local in the cluster's network namespace, so it is enough to listen on each address.
//! The backend is looked up when a connection comes, so that no change of the endpoints can be missed. It sees the
//! proxy as its client.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt as _, reflector::ObjectRef};
use kube::{Api, Client, ResourceExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tracing::warn;

const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Watches and serves until the program is ended.
pub(crate) async fn run(client: Client) -> Result<()> {
    let mut services = Services { client: client.clone(), open: HashMap::new() };
    let mut events = std::pin::pin!(watcher(Api::<Service>::all(client), watcher::Config::default()).default_backoff());
    let mut listed: HashMap<ObjectRef<Service>, Service> = HashMap::new();
    loop {
        match events.try_next().await {
            Ok(Some(Event::Apply(service))) => services.apply(&service).await,
            Ok(Some(Event::Delete(service))) => drop(services.open.remove(&ObjectRef::from_obj(&service))),
            Ok(Some(Event::Init)) => listed.clear(),
            Ok(Some(Event::InitApply(service))) => drop(listed.insert(ObjectRef::from_obj(&service), service)),
            Ok(Some(Event::InitDone)) => {
                services.open.retain(|name, _| listed.contains_key(name));
                for service in listed.drain().map(|(_, service)| service) {
                    services.apply(&service).await;
                }
            }
            Ok(None) => bail!("the watch of the Services ended"),
            // default_backoff tries again.
            Err(e) => warn!("watch of the Services: {e}"),
        }
    }
}

struct Services {
    client: Client,
    open: HashMap<ObjectRef<Service>, HashMap<SocketAddr, Listener>>,
}

/// A listener, which stops listening when it is dropped. Accepted connections stay open.
struct Listener(AbortHandle);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Services {
    async fn apply(&mut self, service: &Service) {
        let wanted = listen_addresses(service);
        let open = self.open.entry(ObjectRef::from_obj(service)).or_default();
        open.retain(|address, _| wanted.contains_key(address));
        for (address, port) in wanted {
            if open.contains_key(&address) {
                continue;
            }
            let listener = match TcpListener::bind(address).await {
                Ok(listener) => listener,
                Err(e) => {
                    warn!("listen on {address}: {e}");
                    continue;
                }
            };
            let backend = Backend {
                slices: Api::namespaced(self.client.clone(), &service.namespace().unwrap_or_default()),
                service: service.name_any(),
                port: port.name.unwrap_or_default(),
            };
            open.insert(address, Listener(tokio::spawn(accept(listener, backend)).abort_handle()));
        }
    }
}

/// Returns the addresses to listen on, with the ports of the Service.
fn listen_addresses(service: &Service) -> HashMap<SocketAddr, ServicePort> {
    // The API server itself listens there.
    if service.namespace().as_deref() == Some("default") && service.name_any() == "kubernetes" {
        return HashMap::new();
    }
    let Some(spec) = &service.spec else { return HashMap::new() };
    // "None" is a headless Service.
    let Some(Ok(address)) = spec.cluster_ip.as_deref().map(str::parse::<IpAddr>) else { return HashMap::new() };
    let ports = spec.ports.iter().flatten();
    ports
        .filter(|port| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP"))
        .filter_map(|port| Some((SocketAddr::new(address, u16::try_from(port.port).ok()?), port.clone())))
        .collect()
}

#[derive(Clone)]
struct Backend {
    slices: Api<EndpointSlice>,
    service: String,
    /// Name of the Service's port, which is also that of the endpoints; empty when there is only one.
    port: String,
}

async fn accept(listener: TcpListener, backend: Backend) {
    loop {
        match listener.accept().await {
            Ok((connection, _)) => drop(tokio::spawn(serve(connection, backend.clone()))),
            Err(e) => warn!("accept a connection for {}: {e}", backend.service),
        }
    }
}

async fn serve(mut connection: TcpStream, backend: Backend) {
    let result = match backend.connect().await {
        Ok(mut to) => tokio::io::copy_bidirectional(&mut connection, &mut to).await.map(drop).map_err(Into::into),
        // kube-proxy also resets the connection when there is no endpoint.
        Err(e) => connection.set_zero_linger().map_err(Into::into).and(Err(e)),
    };
    if let Err(e) = result {
        warn!("connection to {}: {e:#}", backend.service);
    }
}

impl Backend {
    async fn connect(&self) -> Result<TcpStream> {
        let endpoints =
            timeout(DIAL_TIMEOUT, self.ready_endpoints()).await.context("no answer about its endpoints")??;
        let mut last = anyhow::anyhow!("no ready endpoint");
        for endpoint in endpoints {
            match timeout(DIAL_TIMEOUT, TcpStream::connect(endpoint)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(e)) => last = anyhow::Error::new(e).context(format!("connect to {endpoint}")),
                Err(_) => last = anyhow::anyhow!("{endpoint} does not answer"),
            }
        }
        Err(last)
    }

    /// Returns the ready endpoints.
    async fn ready_endpoints(&self) -> Result<Vec<SocketAddr>> {
        let selector = format!("kubernetes.io/service-name={}", self.service);
        let slices = self.slices.list(&ListParams::default().labels(&selector)).await?;
        Ok(slices.items.iter().flat_map(|slice| ready_addresses(slice, &self.port)).collect())
    }
}

/// Returns the ready endpoints of a slice.
fn ready_addresses(slice: &EndpointSlice, port: &str) -> Vec<SocketAddr> {
    let ports = slice.ports.iter().flatten().filter(|p| p.name.as_deref().unwrap_or_default() == port);
    let numbers: Vec<u16> = ports.filter_map(|p| u16::try_from(p.port?).ok()).collect();
    // "A nil value should be interpreted as true" (discovery/v1 EndpointConditions).
    let endpoints = slice.endpoints.iter().filter(|e| e.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true));
    endpoints
        .filter_map(|endpoint| endpoint.addresses.first()?.parse::<IpAddr>().ok())
        .flat_map(|address| numbers.iter().map(move |number| SocketAddr::new(address, *number)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn service(cluster_ip: &str) -> Service {
        from_value(json!({
            "metadata": { "name": "s", "namespace": "n" },
            "spec": { "clusterIP": cluster_ip, "ports": [
                { "name": "web", "port": 80 },
                { "name": "dns", "port": 53, "protocol": "UDP" },
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn only_tcp_ports_of_a_service_with_an_address_are_served() {
        let listening: Vec<_> = listen_addresses(&service("10.96.3.4")).into_keys().collect();
        assert_eq!(listening, ["10.96.3.4:80".parse::<SocketAddr>().unwrap()]);
        assert!(listen_addresses(&service("None")).is_empty());
    }

    #[test]
    fn endpoints_that_are_not_ready_get_no_connections() {
        let endpoint = |address: &str, conditions: Value| json!({ "addresses": [address], "conditions": conditions });
        let slice: EndpointSlice = from_value(json!({
            "metadata": {}, "addressType": "IPv4",
            "ports": [{ "name": "web", "port": 8080 }, { "name": "other", "port": 1 }],
            "endpoints": [
                endpoint("10.244.1.1", json!({ "ready": true })),
                endpoint("10.244.1.2", json!({ "ready": false })),
                endpoint("10.244.1.3", json!({})),
            ],
        }))
        .unwrap();
        let expected: Vec<SocketAddr> = vec!["10.244.1.1:8080".parse().unwrap(), "10.244.1.3:8080".parse().unwrap()];
        assert_eq!(ready_addresses(&slice, "web"), expected);
    }
}
