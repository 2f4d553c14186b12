//! The command line of the test bed: a command in a guest, a cluster for inspection.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, Parser};
use testbed::cluster::{Cluster, ClusterSpec};
use testbed::exec::{Request, Target};
use testbed::guest::{GuestSpec, run};
use testbed::netns::NetNs;
use testbed::node::NodeSpec;
use testbed::topolvm::{self, TopolvmSpec};
use testbed::{agent, assets, exec, program, size};

/// Boots real kernels and a real Kubernetes cluster for the tests.
#[derive(Debug, Parser)]
#[command(version)]
enum Cli {
    /// Run a command in a throw-away guest with device-mapper and blank disks.
    Guest(Guest),
    /// Serve commands to `exec`; runs inside a guest.
    Agent {
        /// Address and port.
        #[arg(long, default_value = "0.0.0.0:7070")]
        listen: SocketAddr,
    },
    /// Have the agent in a guest run a command.
    Exec(Exec),
    /// Fetch and build the programs that guests and clusters need.
    Fetch,
    /// Start a cluster; all its files are in a directory.
    Up {
        /// An empty or new directory.
        directory: PathBuf,
        /// Number of nodes: node1 at 10.77.0.11 and so on.
        #[arg(long, default_value_t = 1)]
        nodes: u8,
        /// Size of each node's volume group myvg1.
        #[arg(long, default_value = "8G", value_parser = size::parse)]
        disk_size: u64,
        /// Memory of each node.
        #[arg(long, default_value = "2G", value_parser = size::parse)]
        memory: u64,
        /// File with further lines of the KubeSchedulerConfiguration, for example an extenders: list.
        #[arg(long)]
        scheduler_config: Option<PathBuf>,
        /// With TopoLVM on it: the programs in this program's directory.
        #[arg(long)]
        topolvm: bool,
    },
    /// End a cluster and remove its directory.
    Down {
        /// The cluster's directory.
        directory: PathBuf,
        /// Keep the logs in this directory.
        #[arg(long)]
        keep_logs: Option<PathBuf>,
    },
    /// Run kubectl as administrator of a cluster.
    Kubectl {
        /// The cluster's directory.
        directory: PathBuf,
        /// kubectl's arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Run a command in a node, as root and outside of all containers.
    NodeExec {
        /// The cluster's directory.
        directory: PathBuf,
        /// The node.
        name: String,
        /// The command.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Reboot a node with its disks kept.
    NodeRestart {
        /// The cluster's directory.
        directory: PathBuf,
        /// The node.
        name: String,
        /// Without writing anything back, as if its power had failed.
        #[arg(long)]
        crash: bool,
    },
    /// Make the images of OCI archives available to the pods of all nodes.
    ImageLoad {
        /// The cluster's directory.
        directory: PathBuf,
        /// The archives.
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct Guest {
    /// Number of blank disks: /dev/ubda, /dev/ubdb, ...
    #[arg(long, default_value_t = 1)]
    disks: usize,
    /// Size of each.
    #[arg(long, default_value = "4G", value_parser = size::parse)]
    disk_size: u64,
    /// The guest's memory.
    #[arg(long, default_value = "768M", value_parser = size::parse)]
    memory: u64,
    /// Seconds after which the guest is killed.
    #[arg(long, default_value_t = 600)]
    timeout: u64,
    /// The CPU it is pinned to; guests take turns when not given.
    #[arg(long)]
    cpu: Option<usize>,
    /// A directory that the guest can write to.
    #[arg(long)]
    out: Option<PathBuf>,
    /// The command's environment.
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    env: Vec<(String, String)>,
    /// With systemd as process 1 and udevd.
    #[arg(long)]
    systemd: bool,
    /// The command; a path is one of this machine.
    #[arg(required = true, last = true)]
    command: Vec<String>,
}

#[derive(Debug, Args)]
struct Exec {
    /// File that the network namespace of the cluster is bound to.
    #[arg(long)]
    netns: Option<PathBuf>,
    /// Seconds after which the command is killed.
    #[arg(long)]
    timeout: Option<u64>,
    /// The command's directory in the guest.
    #[arg(long)]
    cwd: Option<PathBuf>,
    /// The command's environment.
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    env: Vec<(String, String)>,
    /// The agent's address and port.
    address: SocketAddr,
    /// The command.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

fn main() -> ExitCode {
    if let Some(status) = program::serve() {
        return status;
    }
    match dispatch(Cli::parse()) {
        Ok(status) => status,
        Err(e) => {
            drop(writeln!(io::stderr(), "testbed: {e:#}"));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(cli: Cli) -> Result<ExitCode> {
    match cli {
        Cli::Guest(options) => guest(options),
        Cli::Agent { listen } => agent::serve(listen).map(|()| ExitCode::SUCCESS),
        Cli::Exec(options) => exec(options),
        Cli::Fetch => fetch().map(|()| ExitCode::SUCCESS),
        Cli::Up { directory, nodes, disk_size, memory, scheduler_config, topolvm } => {
            let scheduler_config =
                scheduler_config.map(fs::read_to_string).transpose().context("read --scheduler-config")?;
            let specs = (1..=nodes).map(|n| NodeSpec { vg_disks: vec![disk_size], memory, ..NodeSpec::number(n) });
            up(&directory, ClusterSpec { scheduler_config, ..ClusterSpec::default() }, specs.collect(), topolvm)
        }
        Cli::Down { directory, keep_logs } => {
            Cluster::down_in(&directory, keep_logs.as_deref()).map(|()| ExitCode::SUCCESS)
        }
        Cli::Kubectl { directory, arguments } => {
            let mut kubectl = Cluster::open(&directory)?.kubectl_command();
            // Only returns when it fails.
            Err(kubectl.args(arguments).exec()).context("run kubectl")
        }
        Cli::NodeExec { directory, name, command } => {
            let target = Cluster::open(&directory)?.node(&name)?.target();
            exec::command_line(&target, &Request::new(command), None)
        }
        Cli::NodeRestart { directory, name, crash } => {
            Cluster::open(&directory)?.node(&name)?.restart(crash).map(|()| ExitCode::SUCCESS)
        }
        Cli::ImageLoad { directory, archives } => {
            let cluster = Cluster::open(&directory)?;
            archives.iter().try_for_each(|archive| cluster.load_images(archive)).map(|()| ExitCode::SUCCESS)
        }
    }
}

fn exec(options: Exec) -> Result<ExitCode> {
    let target = Target { netns: options.netns.as_deref().map(NetNs::at), address: options.address };
    let request = Request { argv: options.command, env: options.env.into_iter().collect(), cwd: options.cwd };
    exec::command_line(&target, &request, options.timeout.map(Duration::from_secs))
}

fn fetch() -> Result<()> {
    assets::kernel()?;
    assets::containerd()?;
    assets::kubernetes_tools()?;
    assets::csi_sanity()?;
    Ok(())
}

fn up(directory: &Path, cluster: ClusterSpec, nodes: Vec<NodeSpec>, topolvm: bool) -> Result<ExitCode> {
    let begin = Instant::now();
    let cluster = if topolvm {
        topolvm::up_with(directory, &TopolvmSpec { cluster, nodes, ..TopolvmSpec::nodes(0)? })?.cluster
    } else {
        let cluster = Cluster::up(directory, &cluster)?;
        writeln!(io::stderr(), "control plane after {:.1} s", begin.elapsed().as_secs_f32())?;
        cluster.add_nodes(&nodes)?;
        cluster
    };
    cluster.keep()?;
    writeln!(io::stderr(), "ready after {:.1} s", begin.elapsed().as_secs_f32())?;
    writeln!(io::stdout(), "export KUBECONFIG={}", cluster.kubeconfig().display())?;
    writeln!(io::stderr(), "stop it with: make cluster-down DIR={}", cluster.directory().display())?;
    Ok(ExitCode::SUCCESS)
}

fn guest(options: Guest) -> Result<ExitCode> {
    let spec = GuestSpec {
        memory: options.memory,
        disks: vec![options.disk_size; options.disks],
        timeout: Duration::from_secs(options.timeout),
        cpu: options.cpu,
        env: options.env.into_iter().collect::<BTreeMap<_, _>>(),
        out_dir: options.out.map(|out| out.canonicalize().with_context(|| out.display().to_string())).transpose()?,
        systemd: options.systemd,
        ..GuestSpec::new(options.command)
    };
    let finished = run(spec)?;
    Ok(ExitCode::from(u8::try_from(finished.status).unwrap_or(u8::MAX)))
}

fn assignment(text: &str) -> Result<(String, String)> {
    let (name, value) = text.split_once('=').with_context(|| format!("{text:?} is not NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}
