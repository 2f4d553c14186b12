//! The process: starts its tasks and opens its sockets.

use std::future::ready;
use std::sync::Arc;

use capacity_publisher::CapacityPublisher;
use cluster_inventory::Inventory;
use doctor_controller::DoctorContext;
use futures::future::try_join_all;
use kube::Client;
use prometheus_client::registry::Registry;
use topolvm_api::ApiFlavor;
use topolvm_doctor::Mode;
use topolvm_kube::{AccessReviews, ExtenderInformer, ReconcileMetrics};
use topolvm_runtime::grpc::RpcMetrics;
use topolvm_runtime::listen::ListenAddress;
use topolvm_runtime::{CancellationToken, ConfigError, LogArgs, Program, RetiredArgs, Tasks, admin, grpc, unix};
use topolvm_webhook::{CapacityResource, WebhookConfig, WebhookContext, Webhooks};

use crate::added_controllers::{
    StartEmbedded, add_doctor, add_growth, add_rebuild, add_release_of_claims, embed_provisioner, embed_resizer,
    embed_snapshotter,
};
use crate::args::EmbeddedConfig;
use crate::leader::{Election, LeaderStatus};
use crate::reconcile::Controllers;
use crate::scheduling::{ProbeSettings, Scheduling, SchedulingMode};
use crate::{Args, Config, Driver};

impl Program for Args {
    const NAME: &'static str = "topolvm-controller";
    type Config = Config;

    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn retired(&self) -> Option<&RetiredArgs> {
        Some(&self.retired)
    }

    fn config(self) -> Result<Config, ConfigError> {
        self.election_timing.check()?;
        self.try_into()
    }

    async fn run(config: Config, tasks: Tasks, shutdown: CancellationToken) -> anyhow::Result<()> {
        let (flavor, minimums) = (config.flavor, config.driver.minimums);
        let (client, credentials) =
            topolvm_kube::client(concat!("topolvm-controller/", env!("CARGO_PKG_VERSION"))).await?;
        tasks.spawn("credentials", credentials.clone().run(shutdown.clone()));
        let mut registry = Registry::default();
        let rpc_metrics = RpcMetrics::register(&mut registry);
        let doctor = doctor_context(&config, &client).register(&mut registry);
        #[expect(clippy::disallowed_methods, reason = "the process decides what time it is")]
        let now = jiff::Timestamp::now;
        let start = |probe: &ProbeSettings| {
            ExtenderInformer::start(&client, probe.namespace_or(&client), &mut registry, &tasks, &shutdown)
        };
        let extender = config.scheduling.probe.as_ref().map(start);
        let context = WebhookContext { client: client.clone(), flavor, minimums, extender: extender.clone(), now };
        let webhooks = serve_webhooks(config.webhooks, context, &mut registry, &tasks, &shutdown)?;
        let driver = Driver::start(client.clone(), flavor, config.driver, now, &tasks, &shutdown);
        driver.reserve_for_claims(&tasks, &shutdown);
        let identity = process_identity();
        let leading = LeaderStatus::register(&mut registry);
        let elect = |lease, timing| Election::new(&client, lease, identity.clone(), timing, now, &leading);
        let election = config.lease.map(|(lease, timing)| elect(lease, timing));
        serve_web_page(config.ui, &driver, &doctor, &tasks, &shutdown);
        if let Some(lists) = config.inventory {
            let inventory = Inventory::new(config.agent_access, client.clone(), &doctor.namespace, driver.volumes());
            lists.start(inventory, AccessReviews::new(client.clone()), &tasks, &shutdown);
        }
        let publish = || driver.capacity_publisher(doctor.namespace.clone(), doctor.pod.clone());
        let publisher = config.publishes_capacity.then(publish);
        let scheduling = Scheduling::register(config.scheduling, extender, &mut registry);
        let reconcile_metrics = ReconcileMetrics::register(&mut registry);
        let (settings, cleanup, namespace) = (config.controllers, config.cleanup, doctor.namespace.clone());
        let mut controllers =
            driver.controllers(settings, cleanup, identity.clone(), reconcile_metrics, scheduling, namespace);
        add_growth(&mut controllers, config.growth);
        add_rebuild(&mut controllers, config.rebuild);
        add_doctor(&mut controllers, doctor);
        let mut embedded = Vec::new();
        if let Some(EmbeddedConfig { lease, timing, settings }) = config.provisioner {
            let context =
                driver.provisioner_context(provisioner_identity(flavor, now()), &controllers, rpc_metrics.clone());
            embedded.push(embed_provisioner(context, settings, elect(lease, timing)));
        } else {
            add_release_of_claims(&mut controllers);
        }
        if let Some(EmbeddedConfig { lease, timing, settings }) = config.resizer {
            embedded.push(embed_resizer(
                driver.resizer_context(&controllers, rpc_metrics.clone()),
                settings,
                elect(lease, timing),
            ));
        }
        if let Some(EmbeddedConfig { lease, timing, settings }) = config.snapshotter {
            embedded.push(embed_snapshotter(
                driver.snapshotter_context(&controllers, rpc_metrics.clone()),
                settings,
                elect(lease, timing),
            ));
        }
        run_leader_work(LeaderWork { controllers, publisher, embedded }, election, &tasks, &shutdown);

        let listener = unix::listen(&config.csi_socket).await?;
        tracing::info!(socket = %config.csi_socket.display(), driver = flavor.driver_name(), "serving CSI");
        let (routes, token) = (driver.routes(), shutdown.clone());
        tasks.spawn("CSI", async move { grpc::serve(listener, routes, &rpc_metrics, token).await });
        config.metrics.start(Arc::new(registry), AccessReviews::new(client), &tasks, &shutdown);
        let health = admin::health_router(move || {
            let accepted = credentials.check().map_err(|rejected| rejected.to_string());
            let ready_driver = accepted.and_then(|()| driver.ready());
            ready(ready_driver.and_then(|()| webhooks.as_ref().map_or(Ok(()), Webhooks::ready)))
        });
        let address = config.health_probe_bind_address;
        tasks.spawn("health", async move { Ok(admin::serve(address, health, shutdown).await?) });
        Ok(())
    }
}

/// Serves the web page, unless it is off.
fn serve_web_page(
    address: Option<ListenAddress>,
    driver: &Driver,
    doctor: &DoctorContext,
    tasks: &Tasks,
    shutdown: &CancellationToken,
) {
    let Some(address) = address else { return };
    let page = driver.web_page(doctor.namespace.clone(), doctor.checked(), shutdown);
    tracing::info!(%address, "serving the web page");
    tasks.spawn("web page", async move { Ok(page.serve(&address).await?) });
}

/// Returns what the controller of checks has to know of this process. An empty namespace is that of the service
/// account, an empty name that of the host.
fn doctor_context(config: &Config, client: &Client) -> DoctorContext {
    let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let namespace = given(&config.pod_namespace).unwrap_or_else(|| client.default_namespace().to_owned());
    let pod = given(&config.pod_name).unwrap_or_else(host_name);
    let marks = |webhooks: &WebhookConfig| webhooks.capacity_resource != CapacityResource::None;
    let mode = match config.scheduling.mode {
        Some(SchedulingMode::Extender) => Mode::Extender,
        None if config.webhooks.as_ref().is_some_and(marks) => Mode::Extender,
        Some(SchedulingMode::Capacity) | None => Mode::Capacity,
    };
    let mut context =
        DoctorContext::new(namespace, pod, mode, config.publishes_capacity, config.doctor.doctor_interval);
    context.provisions_volumes = config.provisioner.is_some();
    context
}

/// Starts the webhooks that the configuration asks for, and serves them.
fn serve_webhooks(
    config: Option<WebhookConfig>,
    context: WebhookContext,
    registry: &mut Registry,
    tasks: &Tasks,
    shutdown: &CancellationToken,
) -> anyhow::Result<Option<Webhooks>> {
    let Some(config) = config else { return Ok(None) };
    let webhooks = Webhooks::start(context, &config, registry, tasks, shutdown)?;
    webhooks.serve(config.address, tasks, shutdown);
    Ok(Some(webhooks))
}

/// The work of one replica at a time.
#[derive(Clone)]
struct LeaderWork {
    controllers: Controllers,
    publisher: Option<CapacityPublisher>,
    embedded: Vec<StartEmbedded>,
}

impl LeaderWork {
    /// Runs all of it until `term` is cancelled.
    async fn run(self, term: CancellationToken) -> anyhow::Result<()> {
        let Self { mut controllers, publisher, embedded } = self;
        let embedded = try_join_all(embedded.iter().map(|start| start(&mut controllers, term.clone())));
        let publishing = async {
            match publisher {
                Some(publisher) => publisher.run(term.clone()).await,
                None => Ok(()),
            }
        };
        let controllers = Box::pin(controllers.run(term.clone()));
        tokio::try_join!(controllers, publishing, embedded).map(drop)
    }
}

/// Runs the work of the leader while this process is it; always where there is no leader election.
fn run_leader_work(work: LeaderWork, election: Option<Election>, tasks: &Tasks, shutdown: &CancellationToken) {
    let shutdown = shutdown.clone();
    match election {
        Some(election) => {
            tasks.spawn("leader election", election.run(shutdown, move |term| work.clone().run(term)));
        }
        None => tasks.spawn("controllers", work.run(shutdown)),
    }
}

/// Returns the holder identity of this process in the Lease and in Events: the name of the pod, and a random number
/// because the pod's next process must not take itself for the leader that it was.
fn process_identity() -> String {
    format!("{}_{}", host_name(), read_line("/proc/sys/kernel/random/uuid"))
}

/// Returns the identity of this provisioner in PersistentVolumes, which has the form of csi-provisioner's.
fn provisioner_identity(flavor: ApiFlavor, now: jiff::Timestamp) -> String {
    format!("{}-{}-{}", now.as_millisecond(), std::process::id(), flavor.driver_name())
}

/// Returns the name of this machine, in a pod mostly that of the pod.
fn host_name() -> String {
    read_line("/proc/sys/kernel/hostname")
}

fn read_line(path: &str) -> String {
    std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}
