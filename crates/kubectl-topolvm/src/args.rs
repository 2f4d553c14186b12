//! Flags.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;
use cli_runtime::connection::ClusterArgs;
use cli_runtime::output::{OutputArgs, ReportFormat};

use crate::disk::DiskCommand;
use crate::orphans::OrphanCommand;
use crate::undelete;

/// Installs TopoLVM, shows its volumes and free space, and checks the installation.
#[derive(Clone, Debug, Parser)]
#[command(name = "kubectl-topolvm", bin_name = "kubectl topolvm", version)]
pub struct Args {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// Parses the flags of this process; ends it with a message if they are wrong.
    pub(crate) fn read() -> Self {
        Self::parse()
    }
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Installation(topolvm_install::Command),

    /// Shows the free and reserved space of each device class on each node.
    #[command(after_help = "Examples:\n  kubectl topolvm status\n  kubectl topolvm status --watch\n  \
        kubectl topolvm status -o json | jq '.items[] | select(.freeBytes < 10737418240)'")]
    Status {
        #[command(flatten)]
        output: OutputArgs,

        /// Watch, and print again after each change.
        #[arg(long, short)]
        watch: bool,
    },

    /// Shows claims with their PersistentVolumes, LogicalVolumes and LVs, and their problems.
    #[command(after_help = "Examples:\n  kubectl topolvm volumes -A\n  kubectl topolvm volumes -n shop -o wide\n  \
        kubectl topolvm volumes -A -o json | jq '.items[] | select(.problem)'")]
    Volumes {
        #[command(flatten)]
        output: OutputArgs,

        /// Show the claims of all namespaces, and volumes without a claim.
        #[arg(long, short = 'A')]
        all_namespaces: bool,
    },

    /// Shows Events about LogicalVolumes, claims of TopoLVM StorageClasses, their pods, and the nodes' storage, newest
    /// last.
    #[command(after_help = "Examples:\n  kubectl topolvm events -A\n  kubectl topolvm events -n shop -o wide")]
    Events {
        #[command(flatten)]
        output: OutputArgs,

        /// Show the Events of claims and pods in all namespaces.
        #[arg(long, short = 'A')]
        all_namespaces: bool,
    },

    /// Restarts pods that wait for topolvm-scheduler although the scheduling mode is now capacity.
    ///
    /// These are pods that kube-scheduler rejects only because of the resource topolvm.io/capacity. They have never
    /// run; each is deleted, and its controller recreates it without the resource. Pods without a controller are only
    /// listed.
    #[command(after_help = "Examples:\n  kubectl topolvm restart-pending -A --dry-run\n  \
        kubectl topolvm restart-pending -n shop")]
    RestartPending {
        #[command(flatten)]
        output: OutputArgs,

        /// Restart the pods of all namespaces.
        #[arg(long, short = 'A')]
        all_namespaces: bool,

        /// Print what would be restarted.
        #[arg(long)]
        dry_run: bool,
    },

    /// Lists, restores and deletes LVs whose LogicalVolumes do not exist.
    #[command(after_help = "Examples:\n  kubectl topolvm orphans list\n  \
        kubectl topolvm orphans restore node1 topolvm.quarantine.0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a -n shop \
        --claim data")]
    Orphans {
        #[command(subcommand)]
        command: OrphanCommand,
    },

    /// Recreates LogicalVolumes that are being deleted, or were deleted, while a PersistentVolume or
    /// VolumeSnapshotContent refers to their volumes. No LV is changed, and pods keep running.
    #[command(after_help = "Examples:\n  kubectl topolvm undelete pvc-0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a\n  \
        kubectl topolvm undelete --all --dry-run")]
    Undelete {
        #[command(flatten)]
        flags: undelete::UndeleteFlags,
    },

    /// Manages the disks of nodes: lists them, adds blank disks, moves volumes off a disk while they are in use,
    /// removes disks from their volume groups, and drops missing disks.
    ///
    /// Each command creates a DiskOperation. topolvm-node and lvmd carry it out, whether or not the command waits for
    /// it.
    #[command(after_help = "Examples:\n  kubectl topolvm disk list n1\n  \
        kubectl topolvm disk add n1 ata-ST4000NM_ZC2\n  \
        kubectl topolvm disk remove n1 /dev/sdb --rate 100Mi --yes\n  \
        kubectl topolvm disk evacuate n1 /dev/sdb --stop")]
    Disk {
        #[command(subcommand)]
        command: DiskCommand,
    },

    /// Checks the installation. The exit status is 1 if a check failed.
    #[command(after_help = "Examples:\n  kubectl topolvm doctor\n  kubectl topolvm doctor -n storage\n  \
        kubectl topolvm doctor -o json | jq '.checks[] | select(.result != \"ok\")'")]
    Doctor {
        /// Output format.
        #[arg(long, short, value_enum, default_value_t)]
        output: ReportFormat,
    },

    /// Opens the web page of topolvm-controller in a browser: capacity, volumes, problems. Ctrl-C stops it.
    ///
    /// The command forwards a local port to the leader pod. This requires the rights get and create of
    /// pods/portforward. The page is disabled unless the installation enables it with --ui of install or upgrade.
    #[command(after_help = "Examples:\n  kubectl topolvm ui\n  kubectl topolvm ui --no-browser --port 8082")]
    Ui {
        /// Local port [default: any free port].
        #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
        port: Option<u16>,

        /// Print the address and do not open a browser.
        #[arg(long)]
        no_browser: bool,
    },

    /// Creates an archive of objects, logs and the doctor report for support. Secrets are never included.
    #[command(
        after_help = "Examples:\n  kubectl topolvm support-bundle\n  kubectl topolvm support-bundle -f - | tar tz"
    )]
    SupportBundle {
        /// File to create, or - for standard output. The file must not exist [default: topolvm-support-TIME.tar.gz].
        #[arg(long, short = 'f', value_name = "FILE")]
        file: Option<PathBuf>,
    },

    /// Prints the completion script for a shell.
    #[command(after_help = "Examples:\n  source <(kubectl topolvm completions bash)")]
    Completions {
        /// The shell.
        shell: Shell,
    },

    /// Prints the manual page.
    #[command(after_help = "Examples:\n  kubectl topolvm man | man -l -\n  \
        kubectl topolvm man --directory /usr/local/share/man/man1")]
    Man {
        /// Write a page for each command to this directory instead.
        #[arg(long, value_name = "DIRECTORY")]
        directory: Option<PathBuf>,
    },

    /// Prints the version of this program, and of the API server if it is reachable.
    Version,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_flags_fit_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_version_is_printed_as_by_the_other_programs() {
        let printed = Args::try_parse_from(["kubectl-topolvm", "--version"]).unwrap_err();
        assert_eq!(printed.to_string(), concat!("kubectl-topolvm ", env!("CARGO_PKG_VERSION"), "\n"));
    }

    #[test]
    fn flags_of_the_cluster_stand_before_or_after_the_command() {
        for words in [["-n", "shop", "volumes", "-A"], ["volumes", "-A", "--namespace", "shop"]] {
            let args = Args::try_parse_from(["kubectl-topolvm"].into_iter().chain(words)).unwrap();
            assert_eq!(args.cluster.namespace.as_deref(), Some("shop"));
            assert!(matches!(args.command, Command::Volumes { all_namespaces: true, .. }));
        }
    }
}
