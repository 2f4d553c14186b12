//! `make demo`: starts a cluster with the product and prints the steps of its main use case.
#![expect(clippy::print_stdout, reason = "a demonstration for a person in a terminal")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use system_tests::product_images;
use system_tests::scenario::{Reporter, Scenario};
use testbed::topolvm::{self, Topolvm, TopolvmSpec};
use testbed::{assets, machine, program};
use topolvm_api::ApiFlavor;

#[derive(Debug, Parser)]
#[command(about = "A pod writes to a volume that was cut from a real LVM volume group, in a real cluster")]
struct Args {
    /// Keep the cluster at the end, and print how to use and stop it.
    #[arg(long)]
    keep: bool,
    /// Run the product as processes instead of pods: a few seconds faster, and nothing is built into an image.
    #[arg(long)]
    processes: bool,
    /// Directory of the cluster; it must be empty or missing.
    #[arg(long, default_value = "/var/tmp/topolvm-demo")]
    dir: PathBuf,
}

fn main() -> ExitCode {
    if let Some(code) = program::serve() {
        return code;
    }
    let args = Args::parse();
    let start = Instant::now();
    let outcome = run(&args);
    let seconds = start.elapsed().as_secs_f64();
    match outcome {
        Ok(()) => {
            println!("\ndemo: success in {seconds:.0} s");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("\ndemo: FAILED after {seconds:.0} s: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    if let Some(missing) = machine::missing_for_clusters() {
        bail!("{missing}");
    }
    let mut show = PrintingReporter;
    let start = Instant::now();
    assets::kernel()?;
    assets::containerd()?;
    assets::kubernetes_tools()?;
    show.step("kernel, containerd, Kubernetes and the CSI sidecars are there", start.elapsed().as_secs_f64(), "");
    let start = Instant::now();
    let mut spec = TopolvmSpec::nodes(1)?;
    if !args.processes {
        spec = product_images::in_pods(spec, "overlays/lvmd")?;
        show.step("the images are built", start.elapsed().as_secs_f64(), "");
    }
    let start = Instant::now();
    let Topolvm { cluster, nodes } = topolvm::up_with(&args.dir, &spec)?;
    let node = nodes.first().context("the cluster has no node")?;
    let nodes = cluster.kubectl_ok(["get", "nodes", "-o", "wide"])?;
    let nodes = nodes + &cluster.kubectl_ok(["get", "pods", "--namespace=topolvm-system", "-o", "wide"])?;
    show.step("a control plane and a node with the product are up", start.elapsed().as_secs_f64(), &nodes);

    let outcome = Scenario { cluster: &cluster, node, flavor: ApiFlavor::TopoLvm }.run(&mut show);
    if args.keep {
        cluster.keep()?;
        let dir = args.dir.display();
        println!("\nThe cluster stays up. Use it:  export KUBECONFIG={}", cluster.kubeconfig().display());
        println!("Inspect the node:             cargo run -q -p testbed -- node-exec {dir} node1 lvs");
        println!("Stop it:                       make cluster-down DIR={dir}");
    } else {
        cluster.down(None)?;
    }
    outcome
}

/// Prints each step with its seconds and the output that shows it.
struct PrintingReporter;

impl Reporter for PrintingReporter {
    fn step(&mut self, title: &str, seconds: f64, lines: &str) {
        println!("\n[{seconds:5.1} s] {title}");
        for line in lines.lines() {
            println!("          {line}");
        }
    }
}
