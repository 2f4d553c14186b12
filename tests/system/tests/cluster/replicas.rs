//! Several replicas of the controller serve CSI, and get requests for the same volumes.

use std::collections::HashSet;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::{join, join_all};
use testbed::topolvm::{controller_command, controller_socket};
use tonic::transport::{Channel, Endpoint};
use topolvm_api::ApiFlavor::TopoLvm;
use topolvm_proto::csi::controller_client::ControllerClient;
use topolvm_proto::csi::volume_capability::access_mode::Mode;
use topolvm_proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use topolvm_proto::csi::{
    CapacityRange, CreateVolumeRequest, DeleteVolumeRequest, Topology, TopologyRequirement, Volume, VolumeCapability,
};

use crate::Body;
use crate::fixture::{Fixture, logical_volume_resource};

pub(crate) fn tests() -> Vec<(String, Body)> {
    let name = "two_controllers_create_each_volume_once_in_parallel";
    vec![(name.to_owned(), run_two_controllers)]
}

const SECOND: &str = "topolvm-controller-2";
const VOLUMES: usize = 12;

fn run_two_controllers(fixture: &Fixture) -> Result<()> {
    let cluster = &fixture.cluster;
    let socket = cluster.directory().join("controller-2/csi.sock");
    let mut command = controller_command(cluster, &fixture.spec, &socket)?;
    command.args(["--metrics-bind-address=", "--health-probe-bind-address="]);
    cluster.spawn(SECOND, &command)?;
    let done = cluster.ready(SECOND, || UnixStream::connect(&socket).context("no socket yet")).and_then(|_| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let clients = [connect(&controller_socket(cluster)).await?, connect(&socket).await?];
            create_and_delete(fixture, clients).await
        })
    });
    cluster.stop(SECOND, Duration::from_secs(10))?;
    done
}

async fn connect(socket: &Path) -> Result<ControllerClient<Channel>> {
    let channel = Endpoint::try_from(format!("unix:{}", socket.display()))?.connect().await?;
    Ok(ControllerClient::new(channel))
}

async fn create_and_delete(fixture: &Fixture, [one, two]: [ControllerClient<Channel>; 2]) -> Result<()> {
    let calls = (0..VOLUMES).map(|index| {
        let request = create_request(fixture, &format!("pvc-both-{index}"));
        join(create(one.clone(), request.clone()), create(two.clone(), request))
    });
    let mut ids = HashSet::new();
    for (one, two) in join_all(calls).await {
        let (one, two) = (one?, two?);
        ensure!(one == two, "the answers differ: {one:?} and {two:?}");
        ensure!(one.capacity_bytes == 64 << 20, "{one:?}");
        ids.insert(one.volume_id);
    }
    ensure!(ids.len() == VOLUMES, "{} volumes: {ids:?}", ids.len());
    fixture.check_volumes(VOLUMES)?;
    for index in 0..VOLUMES {
        let id = fixture.value(&logical_volume_resource(TopoLvm), &format!("pvc-both-{index}"), ".status.volumeID")?;
        ensure!(ids.contains(&id), "{id} was returned to no caller");
    }
    let calls = ids.iter().map(|id| join(delete(one.clone(), id), delete(two.clone(), id)));
    for (one, two) in join_all(calls).await {
        one.and(two)?;
    }
    fixture.check_volumes(0)
}

async fn create(mut csi: ControllerClient<Channel>, request: CreateVolumeRequest) -> Result<Volume> {
    csi.create_volume(request).await?.into_inner().volume.context("no volume in the answer")
}

async fn delete(mut csi: ControllerClient<Channel>, id: &str) -> Result<()> {
    let request = DeleteVolumeRequest { volume_id: id.to_owned(), ..DeleteVolumeRequest::default() };
    csi.delete_volume(request).await?;
    Ok(())
}

fn create_request(fixture: &Fixture, name: &str) -> CreateVolumeRequest {
    let here = Topology { segments: [(TopoLvm.topology_key().to_owned(), fixture.node.name().to_owned())].into() };
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: 64 << 20, limit_bytes: 0 }),
        volume_capabilities: vec![VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        }],
        accessibility_requirements: Some(TopologyRequirement { requisite: vec![here.clone()], preferred: vec![here] }),
        ..CreateVolumeRequest::default()
    }
}
