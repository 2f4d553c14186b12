//! `orphans delete`: gives the LV to an object and deletes that, so that the agent removes it as it removes volumes.

use kube::Api;
use topolvm_api::LogicalVolume;

use super::adoption::{self, Adoption};
use crate::connection::Cluster;
use crate::error::Error;
use crate::output;

/// Removes an LV.
pub(super) async fn run(cluster: &Cluster, node: &str, lv: &str) -> Result<(), Error> {
    let name = format!("orphan-{}", lv.to_lowercase());
    let adoption = Adoption { node, lv, name: Some(name), annotations: Vec::new() };
    let volume = adoption.run(cluster).await?;
    let api: Api<LogicalVolume> = Api::all_with(cluster.client.clone(), &cluster.flavor);
    adoption::delete(cluster, &api, &volume).await?;
    output::print(&format!(
        "LogicalVolume {} has the LV and is deleted; topolvm-node on node {node} removes both\n",
        volume.name()
    ))
}
