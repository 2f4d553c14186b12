//! `uninstall`: all that `install` has made goes, and no volume with it.

mod nodes;
mod users;

use std::cmp::Reverse;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::api::DeleteParams;
use kube::{Api, Client, ResourceExt};
use topolvm_api::ApiFlavor;

use crate::args::{ClusterArgs, ReportFormat};
use crate::error::Error;
use crate::install::manifests::NAMESPACE;
use crate::install::object::{ObjectId, is_ours};
use crate::install::plan::{Action, Step};
use crate::install::record::Record;
use crate::install::{InstallError, apply, check_namespace, print_plan, tell};
use crate::reading::{self, Gap, resource};
use crate::{connection, output};

/// What a removal that keeps volumes leaves: volumes cannot be without these, or are described by them.
const OF_VOLUMES: [&str; 5] = ["Namespace", "CustomResourceDefinition", "CSIDriver", "StorageClass", "ConfigMap"];
/// What topolvm-controller writes by itself.
const CERTIFICATE: &str = "topolvm-webhook-certificate";
const LEASE: &str = "topolvm";

/// How far to go.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct How {
    /// Remove the programs also where volumes exist. These, their objects and what defines them stay.
    #[arg(long)]
    keep_volumes: bool,

    /// Print what would be removed.
    #[arg(long)]
    dry_run: bool,

    /// How long the end of each object may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,

    /// How to print what is removed.
    #[arg(long, short, value_enum, default_value_t)]
    output: ReportFormat,
}

/// Removes the installation, unless somebody uses it.
pub(crate) async fn run(cluster: &ClusterArgs, how: How) -> Result<(), Error> {
    check_namespace(cluster)?;
    let client = connection::client(cluster).await?;
    let Some(record) = Record::read(&client).await? else {
        return nothing(&client).await;
    };
    let flavor = record.options.flavor();
    if !how.keep_volumes {
        let users = users::list(&client, flavor).await?;
        if !users.is_empty() {
            return Err(InstallError::InUse(users).into());
        }
    }
    let steps = steps(&client, &record, how.keep_volumes).await?;
    print_plan(&steps, how.output, false)?;
    if how.dry_run {
        return Ok(());
    }
    let removal = Removal { client, record, limit: Duration::from_secs(how.timeout) };
    if how.keep_volumes {
        removal.programs(&steps).await?;
    } else {
        removal.all(flavor, &steps).await?;
    }
    Ok(())
}

/// There is no record: a second removal, or the installation is somebody else's.
async fn nothing(client: &Client) -> Result<(), Error> {
    let drivers = Api::<CSIDriver>::all(client.clone());
    for flavor in [ApiFlavor::TopoLvm, ApiFlavor::Legacy] {
        if reading::one(&drivers, flavor.driver_name()).await?.is_some() {
            let problem = format!(
                "the CSIDriver {flavor} is there, and not of this command; remove it in the way in which it was \
                 installed, as kubectl delete -k or helm uninstall"
            );
            return Err(InstallError::Unfit(vec![problem]).into());
        }
    }
    output::print("nothing is installed\n")
}

/// What is there and goes, in this order.
async fn steps(client: &Client, record: &Record, keeps_volumes: bool) -> Result<Vec<Step>, InstallError> {
    let mut steps = Vec::new();
    for id in ordered(record, keeps_volumes) {
        // What has another owner now is his
        if id.get(client).await?.is_some_and(|found| is_ours(&found)) {
            steps.push(Step { action: Action::Remove, id: id.clone(), differences: Vec::new(), object: None });
        }
    }
    Ok(steps)
}

fn ordered(record: &Record, keeps_volumes: bool) -> Vec<&ObjectId> {
    let goes = |id: &&ObjectId| match id.kind.as_str() {
        kind if keeps_volumes => !OF_VOLUMES.contains(&kind),
        "Namespace" => record.has_made_namespace,
        _ => true,
    };
    let mut ids: Vec<_> = record.objects.iter().filter(goes).collect();
    // A webhook without its controller refuses pods
    ids.sort_by_key(|id| (id.kind != "MutatingWebhookConfiguration", Reverse(id.rank())));
    ids
}

struct Removal {
    client: Client,
    record: Record,
    limit: Duration,
}

impl Removal {
    /// Everything, when there are no volumes.
    async fn all(&self, flavor: ApiFlavor, steps: &[Step]) -> Result<(), InstallError> {
        let (programs, rest): (Vec<_>, Vec<_>) = steps
            .iter()
            .cloned()
            .partition(|step| step.id.is_workload() || step.id.kind == "MutatingWebhookConfiguration");
        apply::prune(&self.client, &programs, self.limit).await?;
        // Agents would write it again
        nodes::clean(&self.client, flavor, self.limit).await?;
        let (namespace, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(|step| step.id.kind == "Namespace");
        apply::prune(&self.client, &rest, self.limit).await?;
        if namespace.is_empty() {
            self.leavings(flavor).await?;
        }
        apply::prune(&self.client, &namespace, self.limit).await?;
        tell("removed; what the nodes have in /run/topolvm and below kubelet's plugins directory does no harm");
        Ok(())
    }

    /// Deployments, DaemonSets and what they need.
    async fn programs(&self, steps: &[Step]) -> Result<(), InstallError> {
        apply::prune(&self.client, steps, self.limit).await?;
        let mut record = self.record.clone();
        record.objects.retain(|id| OF_VOLUMES.contains(&id.kind.as_str()));
        record.is_removed = true;
        record.write(&self.client, Some(&self.record)).await?;
        tell(
            "the programs are removed, and volumes are as they were; kubectl topolvm install brings the programs back",
        );
        Ok(())
    }

    /// What the programs have made in a namespace that stays.
    async fn leavings(&self, flavor: ApiFlavor) -> Result<(), InstallError> {
        let leases = Api::<Lease>::namespaced(self.client.clone(), NAMESPACE);
        let found = reading::list_of(&leases, &(), "").await?;
        // As the sidecars make names of that of the driver
        let driver = flavor.driver_name().replace('.', "-");
        let is_of_programs = |name: &str| name == LEASE || name.ends_with(&driver);
        let names: Vec<_> = found.iter().map(ResourceExt::name_any).filter(|name| is_of_programs(name)).collect();
        for name in names {
            gone(leases.delete(&name, &DeleteParams::default()).await.map(drop), resource::<Lease>(&()))?;
        }
        let secrets = Api::<Secret>::namespaced(self.client.clone(), NAMESPACE);
        gone(secrets.delete(CERTIFICATE, &DeleteParams::default()).await.map(drop), resource::<Secret>(&()))?;
        let id = Record::id();
        if let Some(found) = id.get(&self.client).await? {
            apply::delete(&self.client, &id, &found, self.limit).await?;
        }
        Ok(())
    }
}

/// What is not there is gone too.
fn gone(deleted: Result<(), kube::Error>, resource: String) -> Result<(), InstallError> {
    match deleted {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        deleted => deleted.map_err(|error| Gap::new("delete", resource, error).into()),
    }
}
