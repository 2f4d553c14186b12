//! `uninstall`: removes everything that `install` has made, and no volume.

mod args;
mod nodes;
mod rebuilding;
mod users;

use std::cmp::Reverse;
use std::time::Duration;

use cli_runtime::connection::ClusterArgs;
use cli_runtime::request;
use cli_runtime::{connection, output};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::{Api, Client, ResourceExt};
use topolvm_api::ApiFlavor;

use crate::install::manifests::NAMESPACE;
use crate::install::object::ObjectId;
use crate::install::plan::{Step, removals};
use crate::install::record::Record;
use crate::install::{InstallError, apply, check_namespace, print_plan, print_progress};

pub(crate) use args::UninstallFlags;
pub(crate) use users::list as list_users;

/// Kinds that stay with --keep-volumes: volumes need them, or are described by them.
const OF_VOLUMES: [&str; 5] = ["Namespace", "CustomResourceDefinition", "CSIDriver", "StorageClass", "ConfigMap"];
/// Secret that topolvm-controller writes.
const CERTIFICATE: &str = "topolvm-webhook-certificate";
const LEASE: &str = "topolvm";

/// Runs `uninstall`; refuses while volumes or claims exist, unless these are kept.
pub(crate) async fn run(cluster: &ClusterArgs, flags: UninstallFlags) -> Result<(), InstallError> {
    check_namespace(cluster)?;
    let client = connection::client(cluster).await?;
    let Some(record) = Record::read(&client).await? else {
        return report_not_installed(&client).await;
    };
    let flavor = record.options.flavor();
    if record.options.trial.is_some() && !flags.keep_volumes {
        let problem = "nodes have files of a trial; remove them with kubectl topolvm trial --remove";
        return Err(InstallError::Unfit(vec![problem.to_owned()]));
    }
    if !flags.keep_volumes {
        let users = users::list(&client, flavor).await?;
        if !users.is_empty() {
            return Err(InstallError::InUse(users));
        }
    }
    let held = rebuilding::list(&client, flavor).await?;
    if !held.is_empty() {
        return Err(InstallError::Rebuilding(held));
    }
    let steps = removals(&client, ordered(&record, flags.keep_volumes)).await?;
    print_plan(&steps, flags.output, false)?;
    if flags.dry_run {
        return Ok(());
    }
    let removal = Removal { client, record, limit: Duration::from_secs(flags.timeout) };
    if flags.keep_volumes {
        removal.remove_programs(&steps).await?;
    } else {
        removal.remove_all(flavor, &steps).await?;
    }
    Ok(())
}

/// Ends without a record: it was removed already, or installed in another way, which is an error.
async fn report_not_installed(client: &Client) -> Result<(), InstallError> {
    let drivers = Api::<CSIDriver>::all(client.clone());
    for flavor in [ApiFlavor::TopoLvm, ApiFlavor::Legacy] {
        if request::get(&drivers, flavor.driver_name()).await?.is_some() {
            let problem = format!(
                "the CSIDriver {flavor} exists and was not created by this command; remove it the way it was \
                 installed, for example with kubectl delete -k or helm uninstall"
            );
            return Err(InstallError::Unfit(vec![problem]));
        }
    }
    Ok(output::print("nothing is installed\n")?)
}

/// Returns the recorded objects to remove, in their order.
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
    /// Removes everything, when there are no volumes.
    async fn remove_all(&self, flavor: ApiFlavor, steps: &[Step]) -> Result<(), InstallError> {
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
            self.remove_leftovers(flavor).await?;
        }
        apply::prune(&self.client, &namespace, self.limit).await?;
        print_progress(
            "removed; files that remain on the nodes in /run/topolvm and below the kubelet's plugins directory are \
             harmless",
        );
        Ok(())
    }

    /// Removes Deployments, DaemonSets and what they need, and keeps volumes.
    async fn remove_programs(&self, steps: &[Step]) -> Result<(), InstallError> {
        apply::prune(&self.client, steps, self.limit).await?;
        let mut record = self.record.clone();
        record.objects.retain(|id| OF_VOLUMES.contains(&id.kind.as_str()));
        record.is_removed = true;
        record.write(&self.client, Some(&self.record)).await?;
        print_progress(
            "the programs are removed, and the volumes are unchanged; kubectl topolvm install reinstalls the programs",
        );
        Ok(())
    }

    /// Removes the Leases and the Secret that the programs have made in a namespace that stays.
    async fn remove_leftovers(&self, flavor: ApiFlavor) -> Result<(), InstallError> {
        let leases = Api::<Lease>::namespaced(self.client.clone(), NAMESPACE);
        let found = request::list(&leases, &(), "").await?;
        // As the sidecars make names of that of the driver
        let driver = flavor.driver_name().replace('.', "-");
        let is_of_programs = |name: &str| name == LEASE || name.ends_with(&driver);
        let names: Vec<_> = found.iter().map(ResourceExt::name_any).filter(|name| is_of_programs(name)).collect();
        for name in names {
            request::delete(&leases, &name).await?;
        }
        let secrets = Api::<Secret>::namespaced(self.client.clone(), NAMESPACE);
        request::delete(&secrets, CERTIFICATE).await?;
        let id = Record::id();
        if let Some(found) = id.get(&self.client).await? {
            apply::delete(&self.client, &id, &found, self.limit).await?;
        }
        Ok(())
    }
}
