//! Measures bursts: many claims at once, the same number of CSI calls, and a shell loop of lvcreate in the same guest.

use std::time::Instant;

use anyhow::{Context as _, Result};
use futures::future::{join_all, try_join_all};
use tonic::transport::{Channel, Endpoint};
use topolvm_proto::csi::controller_client::ControllerClient;
use topolvm_proto::csi::volume_capability::access_mode::Mode;
use topolvm_proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use topolvm_proto::csi::{
    CapacityRange, CreateVolumeRequest, DeleteVolumeRequest, Topology, TopologyRequirement, VolumeCapability,
};

use super::setup::{IMMEDIATE, Setup, VG, create};
use crate::figure::{Figure, median};
use crate::watching::{is_bound, time_until_all};
use system_tests::manifests::{VolumeMode, claim};
use testbed::topolvm::controller_socket;

const MIB: i64 = 1 << 20;
const SIZE: i64 = 64 * MIB;

/// A burst of so many volumes, with the names and goals of its figures.
struct Burst {
    volumes: usize,
    rounds: usize,
    bound_p50: (&'static str, f64),
    bound_max: (&'static str, f64),
    volume_p50: &'static str,
    volume_max: &'static str,
    ratio: (&'static str, f64),
}

/// Bursts that are measured. Goals of the times of bursts are TopoLVM's values; those of 20 were measured with pods.
const BURSTS: [Burst; 3] = [
    Burst {
        volumes: 1,
        rounds: 7,
        bound_p50: ("csi.bound.1.p50_ms", 110.0),
        bound_max: ("csi.bound.1.max_ms", 1160.0),
        volume_p50: "csi.volume.1.p50_ms",
        volume_max: "csi.volume.1.max_ms",
        ratio: ("csi.bound.1.ratio_to_lvcreate", f64::INFINITY),
    },
    Burst {
        volumes: 20,
        rounds: 3,
        bound_p50: ("csi.bound.20.p50_ms", 9400.0),
        bound_max: ("csi.bound.20.max_ms", 23300.0),
        volume_p50: "csi.volume.20.p50_ms",
        volume_max: "csi.volume.20.max_ms",
        ratio: ("csi.bound.20.ratio_to_lvcreate", 1.5),
    },
    Burst {
        volumes: 60,
        rounds: 3,
        bound_p50: ("csi.bound.60.p50_ms", 13800.0),
        bound_max: ("csi.bound.60.max_ms", 27000.0),
        volume_p50: "csi.volume.60.p50_ms",
        volume_max: "csi.volume.60.max_ms",
        ratio: ("csi.bound.60.ratio_to_lvcreate", 1.0),
    },
];

/// Milliseconds of the volumes of all rounds.
#[derive(Default)]
struct Samples {
    all: Vec<f64>,
    /// Milliseconds of the last volume of each round.
    last: Vec<f64>,
}

impl Samples {
    fn add(&mut self, times: Vec<f64>) -> f64 {
        let last = times.iter().copied().fold(0.0, f64::max);
        self.last.push(last);
        self.all.extend(times);
        last
    }

    fn figures(self, p50: (&'static str, f64), max: (&'static str, f64)) -> Result<[Figure; 2]> {
        let figure = |(name, goal), values| {
            let value = median(values).context("no samples")?;
            anyhow::Ok(Figure { name, value, unit: "ms", goal })
        };
        // The last of one volume is that volume: there it is the slowest round
        let alone = self.all.len() == self.last.len();
        let last = if alone { vec![self.last.iter().copied().fold(0.0, f64::max)] } else { self.last };
        Ok([figure(p50, self.all)?, figure(max, last)?])
    }
}

pub(super) async fn measure(setup: &Setup<'_>) -> Result<Vec<Figure>> {
    let channel = Endpoint::try_from(format!("unix:{}", controller_socket(setup.cluster).display()))?.connect().await?;
    let csi = ControllerClient::new(channel);
    // Opens connections and warms caches
    time_claims(setup, 2).await?;
    let mut figures = Vec::new();
    for burst in BURSTS {
        let (mut claims, mut volumes, mut shells, mut ratios) =
            (Samples::default(), Samples::default(), vec![], vec![]);
        for _ in 0..burst.rounds {
            let last = claims.add(time_claims(setup, burst.volumes).await?);
            volumes.add(time_csi_creates(setup, &csi, burst.volumes).await?);
            let shell = time_shell_loop(setup, burst.volumes)?;
            ratios.push(last / shell);
            shells.push(shell);
        }
        let (name, goal) = burst.ratio;
        figures.extend(claims.figures(burst.bound_p50, burst.bound_max)?);
        figures.push(Figure { name, value: median(ratios).context("no rounds")?, unit: "ratio", goal });
        figures.extend(volumes.figures((burst.volume_p50, f64::INFINITY), (burst.volume_max, f64::INFINITY))?);
        if burst.volumes == 60 {
            let value = median(shells).context("no rounds")?;
            figures.push(Figure { name: "csi.shell.60_ms", value, unit: "ms", goal: f64::INFINITY });
        }
    }
    Ok(figures)
}

/// Returns the milliseconds from the first request until each claim is Bound.
async fn time_claims(setup: &Setup<'_>, number: usize) -> Result<Vec<f64>> {
    let names: Vec<String> = (0..number).map(|index| format!("burst{index}")).collect();
    let claims = names.iter().map(|name| create(&setup.claims, claim(name, IMMEDIATE, "64Mi", VolumeMode::Filesystem)));
    let action = async { try_join_all(claims).await.map(drop) };
    let times = time_until_all(&setup.claims, &names, is_bound, action).await?;
    setup.delete_claims()?;
    Ok(times)
}

/// Returns the milliseconds of each CreateVolume, all called at once.
async fn time_csi_creates(setup: &Setup<'_>, csi: &ControllerClient<Channel>, number: usize) -> Result<Vec<f64>> {
    let start = Instant::now();
    let calls = (0..number).map(|index| {
        let (mut csi, request) = (csi.clone(), create_request(setup, index));
        async move {
            let volume = csi.create_volume(request).await?.into_inner().volume.context("no volume in the answer")?;
            anyhow::Ok((volume.volume_id, start.elapsed().as_secs_f64() * 1000.0))
        }
    });
    let (volumes, times): (Vec<_>, Vec<_>) = try_join_all(calls).await?.into_iter().unzip();
    let removals = volumes.into_iter().map(|volume_id| {
        let mut csi = csi.clone();
        async move { csi.delete_volume(DeleteVolumeRequest { volume_id, ..DeleteVolumeRequest::default() }).await }
    });
    for removed in join_all(removals).await {
        removed?;
    }
    Ok(times)
}

fn create_request(setup: &Setup<'_>, index: usize) -> CreateVolumeRequest {
    let node = setup.node.name().to_owned();
    let here = Topology { segments: [("topology.topolvm.io/node".to_owned(), node)].into() };
    CreateVolumeRequest {
        name: format!("called{index}"),
        capacity_range: Some(CapacityRange { required_bytes: SIZE, limit_bytes: 0 }),
        volume_capabilities: vec![VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        }],
        accessibility_requirements: Some(TopologyRequirement { requisite: vec![here.clone()], preferred: vec![here] }),
        ..CreateVolumeRequest::default()
    }
}

/// Returns the milliseconds of a loop of so many lvcreate, by the guest's clock.
fn time_shell_loop(setup: &Setup<'_>, number: usize) -> Result<f64> {
    let script = format!(
        "begin=$EPOCHREALTIME\n\
         for i in $(seq {number}); do lvcreate -qqy -L 64m -n shell$i {VG}; done\n\
         end=$EPOCHREALTIME\n\
         for i in $(seq {number}); do lvremove -qqy {VG}/shell$i; done; echo $(( ${{end/./}} - ${{begin/./}} ))"
    );
    let microseconds: f64 =
        setup.node.script(&script)?.trim().parse().context("the shell did not say how long it took")?;
    Ok(microseconds / 1000.0)
}
