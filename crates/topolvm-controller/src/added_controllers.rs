//! Adds to the controllers those that are crates of their own.

use std::future::ready;
use std::sync::Arc;

use claim_growth::{Growth, GrowthArgs, GrowthContext};
use claim_rebuild::{Rebuild, RebuildArgs, RebuildContext};
use doctor_controller::{Doctor, DoctorContext, DoctorSources};
use embedded_provisioner::{Provisioner, ProvisionerArgs, ProvisionerContext, release_held_claims};
use embedded_resizer::{Resizer, ResizerArgs, ResizerContext};
use embedded_snapshotter::{Snapshotter, SnapshotterArgs, SnapshotterContext};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::watcher::Event;
use topolvm_runtime::CancellationToken;

use crate::leader::Election;
use crate::reconcile::Controllers;

/// Adds the automatic growth of claims, unless it is off.
pub(crate) fn add_growth(controllers: &mut Controllers, args: GrowthArgs) {
    if !args.grow_claims {
        return;
    }
    let context = GrowthContext {
        client: controllers.client.clone(),
        flavor: controllers.flavor,
        volumes: controllers.volumes.cache.clone(),
        volumes_changed: controllers.volumes.changes(),
        capacity: controllers.capacity.clone(),
        events: controllers.events.clone(),
        metrics: controllers.metrics.clone(),
    };
    controllers.add_task(move |term| {
        let growth = Growth::new(context.clone());
        term.subscribe(growth.subscriber());
        growth.run()
    });
}

/// Adds the recreation of the claims of lost nodes. Where it is off, it still releases claims that are held for it.
pub(crate) fn add_rebuild(controllers: &mut Controllers, args: RebuildArgs) {
    controllers.rebuilds_claims = args.rebuild_claims;
    let context = RebuildContext {
        client: controllers.client.clone(),
        flavor: controllers.flavor,
        nodes: controllers.nodes.cache.clone(),
        volumes: controllers.volumes.cache.clone(),
        events: controllers.events.clone(),
        metrics: controllers.metrics.clone(),
    };
    controllers.add_task(move |term| Rebuild::new(context.clone(), args, term.claims.clone()).run());
}

/// Adds the checks of the installation.
pub(crate) fn add_doctor(controllers: &mut Controllers, context: DoctorContext) {
    let sources = DoctorSources {
        client: controllers.client.clone(),
        flavor: controllers.flavor,
        volumes: controllers.volumes.cache.clone(),
        extender: controllers.scheduling.extender.clone(),
        events: controllers.events.clone(),
        metrics: controllers.metrics.clone(),
        now: controllers.now,
    };
    controllers.add_task(move |_| Doctor::new(sources.clone(), context.clone()).run());
}

/// Adds the release of claims that the provisioner has held, where it is not used any more.
pub(crate) fn add_release_of_claims(controllers: &mut Controllers) {
    let client = controllers.client.clone();
    controllers.add_task(move |term| release_held_claims(client.clone(), term.claims.clone()));
}

/// Starts a controller that does the work of a sidecar, in each term of this replica as the leader, and ends with the
/// term. Of the controller and the sidecar one at a time runs, also while a cluster changes from one to the other.
pub(crate) type StartEmbedded =
    Arc<dyn Fn(&mut Controllers, CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> + Send + Sync>;

/// Returns the provisioner, which runs while it holds csi-provisioner's Lease.
pub(crate) fn embed_provisioner(
    context: ProvisionerContext,
    settings: ProvisionerArgs,
    lease: Election,
) -> StartEmbedded {
    Arc::new(move |controllers, term| {
        let provisioner = Provisioner::new(context.clone(), settings.clone());
        let subscribed = provisioner.clone();
        subscribe(controllers, move || subscribed.subscriber());
        lease.clone().run(term, move |held| provisioner.clone().run(held)).boxed()
    })
}

/// Returns the resizer, which runs while it holds csi-resizer's Lease.
pub(crate) fn embed_resizer(context: ResizerContext, settings: ResizerArgs, lease: Election) -> StartEmbedded {
    Arc::new(move |controllers, term| {
        let resizer = Resizer::new(context.clone(), settings.clone());
        let subscribed = resizer.clone();
        subscribe(controllers, move || subscribed.subscriber());
        lease.clone().run(term, move |held| resizer.clone().run(held).map(Ok)).boxed()
    })
}

/// Returns the snapshotter, which runs while it holds csi-snapshotter's Lease.
pub(crate) fn embed_snapshotter(
    context: SnapshotterContext,
    settings: SnapshotterArgs,
    lease: Election,
) -> StartEmbedded {
    Arc::new(move |_, term| {
        let snapshotter = Snapshotter::new(context.clone(), settings.clone());
        lease.clone().run(term, move |held| snapshotter.clone().run(held)).boxed()
    })
}

/// Sends the events of the watch of all claims to a subscriber in each term of this replica as the leader.
fn subscribe<S>(controllers: &mut Controllers, subscriber: impl Fn() -> S + Send + Sync + 'static)
where
    S: FnMut(&Event<PersistentVolumeClaim>) + Send + 'static,
{
    controllers.add_task(move |term| {
        term.subscribe(subscriber());
        ready(())
    });
}
