//! `orphans delete`: gives the LV to an object and deletes that, so that the agent removes it as it removes volumes.

use cli_runtime::connection::Cluster;
use cli_runtime::output;
use kube::Api;
use topolvm_api::LogicalVolume;

use super::adoption::{self, Adoption, Purpose, deletion_name};
use crate::error::Error;

/// Removes an LV that no object has.
pub(super) async fn run(cluster: &Cluster, node: &str, lv: &str) -> Result<(), Error> {
    let name = Some(deletion_name(lv));
    let adoption = Adoption { purpose: Purpose::Delete, node, lv, name, annotations: Vec::new() };
    let earlier = adoption.find_earlier(cluster).await?;
    super::check_unreferenced(cluster, lv).await?;
    let volume = adoption.run(cluster, earlier).await?;
    let api: Api<LogicalVolume> = Api::all_with(cluster.client.clone(), &cluster.flavor);
    adoption::delete(cluster, &api, &volume, None).await?;
    Ok(output::print(&format!(
        "LogicalVolume {} owns the LV and is being deleted; topolvm-node on node {node} removes both\n",
        volume.name()
    ))?)
}
