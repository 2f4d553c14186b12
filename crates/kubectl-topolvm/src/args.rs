//! Flags.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use crate::connection::ClusterArgs;
use crate::disk::DiskCommand;
use crate::orphans::OrphanCommand;
use crate::output::{OutputArgs, ReportFormat};
use crate::{install, trial, undelete, uninstall};

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
    /// Installs TopoLVM: checks the cluster, says what is done, does it, and tries a volume. A second run changes
    /// nothing.
    ///
    /// The exit status is 0 when all is done or nothing was to do, 1 when the cluster does not fit or something failed,
    /// and 2 when flags are wrong. What does not fit is found before anything is changed.
    #[command(after_help = "Examples:\n  kubectl topolvm install --volume-group vg0\n  \
        kubectl topolvm install --lvmd-config lvmd.yaml --image registry.example/topolvm:0.1.0\n  \
        kubectl topolvm install --lvmd embedded --node-selector storage=local --dry-run\n  \
        kubectl topolvm install --render >topolvm.yaml")]
    Install {
        #[command(flatten)]
        options: install::Flags,

        #[command(flatten)]
        run: install::RunFlags,
    },

    /// Changes an installation to this version and to the options that are given. Those that are not given stay.
    ///
    /// Pods are replaced node by node, volumes stay in use. What the installation has no more is removed. The exit
    /// status is that of install.
    #[command(after_help = "Examples:\n  kubectl topolvm upgrade --diff\n  \
        kubectl topolvm upgrade --image registry.example/topolvm:0.2.0\n  \
        kubectl topolvm upgrade --lvmd embedded")]
    Upgrade {
        #[command(flatten)]
        options: install::Flags,

        #[command(flatten)]
        run: install::RunFlags,
    },

    /// Makes a volume group in a file of nodes without a disk for volumes, and installs the programs if they are not
    /// there, to try them. Not for data that you need.
    ///
    /// The exit status is that of install. A second run repairs what somebody has changed, grows the file, or adds
    /// nodes.
    #[command(after_help = "Examples:\n  kubectl topolvm trial\n  \
        kubectl topolvm trial --size 20Gi --node n1 --node n2\n  \
        kubectl topolvm trial --remove")]
    Trial {
        #[command(flatten)]
        flags: trial::TrialFlags,
    },

    /// Removes what install has made. Refuses while volumes or claims exist; no LV is ever removed.
    ///
    /// The exit status is 0 when all is removed or nothing was there, 1 when volumes are in use or something failed,
    /// and 2 when flags are wrong.
    #[command(after_help = "Examples:\n  kubectl topolvm uninstall --dry-run\n  kubectl topolvm uninstall\n  \
        kubectl topolvm uninstall --keep-volumes")]
    Uninstall {
        #[command(flatten)]
        flags: uninstall::UninstallFlags,
    },

    /// Free and promised space of each device class on each node.
    #[command(after_help = "Examples:\n  kubectl topolvm status\n  kubectl topolvm status --watch\n  \
        kubectl topolvm status -o json | jq '.items[] | select(.freeBytes < 10737418240)'")]
    Status {
        #[command(flatten)]
        output: OutputArgs,

        /// Go on, and print again whenever something has changed.
        #[arg(long, short)]
        watch: bool,
    },

    /// Claims with their PersistentVolumes, LogicalVolumes and LVs, and what is wrong with them.
    #[command(after_help = "Examples:\n  kubectl topolvm volumes -A\n  kubectl topolvm volumes -n shop -o wide\n  \
        kubectl topolvm volumes -A -o json | jq '.items[] | select(.problem)'")]
    Volumes {
        #[command(flatten)]
        output: OutputArgs,

        /// Claims of all namespaces, and volumes without a claim.
        #[arg(long, short = 'A')]
        all_namespaces: bool,
    },

    /// Events about LogicalVolumes, claims of our StorageClasses, their pods, and the nodes' storage, the newest last.
    #[command(after_help = "Examples:\n  kubectl topolvm events -A\n  kubectl topolvm events -n shop -o wide")]
    Events {
        #[command(flatten)]
        output: OutputArgs,

        /// Of claims and pods in all namespaces.
        #[arg(long, short = 'A')]
        all_namespaces: bool,
    },

    /// Restarts pods that wait for topolvm-scheduler although the scheduling mode is capacity now.
    ///
    /// These are pods that kube-scheduler refuses for nothing but the resource topolvm.io/capacity. They have never
    /// run; each is deleted, and its controller makes it anew without the resource. Pods without a controller are only
    /// named.
    #[command(after_help = "Examples:\n  kubectl topolvm restart-pending -A --dry-run\n  \
        kubectl topolvm restart-pending -n shop")]
    RestartPending {
        #[command(flatten)]
        output: OutputArgs,

        /// Pods of all namespaces.
        #[arg(long, short = 'A')]
        all_namespaces: bool,

        /// Print what would be restarted.
        #[arg(long)]
        dry_run: bool,
    },

    /// LVs whose LogicalVolumes do not exist: lists, restores and deletes them.
    #[command(after_help = "Examples:\n  kubectl topolvm orphans list\n  \
        kubectl topolvm orphans restore node1 topolvm.quarantine.0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a -n shop \
        --claim data")]
    Orphans {
        #[command(subcommand)]
        command: OrphanCommand,
    },

    /// Makes LogicalVolumes new that are being deleted, or are gone, while a PersistentVolume or VolumeSnapshotContent
    /// refers to their volumes. No LV is touched, and pods go on.
    #[command(after_help = "Examples:\n  kubectl topolvm undelete pvc-0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a\n  \
        kubectl topolvm undelete --all --dry-run")]
    Undelete {
        #[command(flatten)]
        flags: undelete::UndeleteFlags,
    },

    /// Disks of nodes: lists them, adds blank ones, empties them while their volumes are in use, takes them out of
    /// their volume groups, and gives up those that are missing.
    ///
    /// What is asked for is written on the NodeStorage of the node, and topolvm-node and lvmd do it, whether or not
    /// this command waits for it.
    #[command(after_help = "Examples:\n  kubectl topolvm disk list n1\n  \
        kubectl topolvm disk add n1 ata-ST4000NM_ZC2\n  \
        kubectl topolvm disk remove n1 /dev/sdb --rate 100Mi --yes\n  \
        kubectl topolvm disk evacuate n1 /dev/sdb --stop")]
    Disk {
        #[command(subcommand)]
        command: DiskCommand,
    },

    /// Checks of the installation; the exit status is 1 when one has failed.
    #[command(after_help = "Examples:\n  kubectl topolvm doctor\n  kubectl topolvm doctor -n storage\n  \
        kubectl topolvm doctor -o json | jq '.checks[] | select(.result != \"ok\")'")]
    Doctor {
        /// How to print.
        #[arg(long, short, value_enum, default_value_t)]
        output: ReportFormat,
    },

    /// The web page of topolvm-controller in a browser: capacity, volumes, problems. Ctrl-C ends it.
    ///
    /// A port of this machine is forwarded to the pod that leads, which needs the rights get and create of
    /// pods/portforward. The page is off unless the installation turns it on: install and upgrade have --ui.
    #[command(after_help = "Examples:\n  kubectl topolvm ui\n  kubectl topolvm ui --no-browser --port 8082")]
    Ui {
        /// Port of this machine [default: any that is free].
        #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
        port: Option<u16>,

        /// Print the address, and open no browser.
        #[arg(long)]
        no_browser: bool,
    },

    /// Archive of objects, logs and doctor's report for those who help. Secrets are left out.
    #[command(
        after_help = "Examples:\n  kubectl topolvm support-bundle\n  kubectl topolvm support-bundle -f - | tar tz"
    )]
    SupportBundle {
        /// Where to write: a file that does not exist, or - for standard output [default: topolvm-support-TIME.tar.gz].
        #[arg(long, short = 'f', value_name = "FILE")]
        file: Option<PathBuf>,
    },

    /// Script that completes commands and flags of kubectl-topolvm in a shell.
    #[command(after_help = "Examples:\n  source <(kubectl topolvm completions bash)")]
    Completions {
        /// The shell.
        shell: Shell,
    },

    /// Manual page.
    #[command(after_help = "Examples:\n  kubectl topolvm man | man -l -\n  \
        kubectl topolvm man --directory /usr/local/share/man/man1")]
    Man {
        /// Write a page for each command into this directory instead.
        #[arg(long, value_name = "DIRECTORY")]
        directory: Option<PathBuf>,
    },

    /// Version of this program, and of the API server where it can be reached.
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
