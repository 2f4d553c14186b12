//! Paths that product code may name in certain files only.

use super::finding::Finding;
use super::source::{NamedPath, Source};

/// Paths, where they belong, and what to do elsewhere.
struct Place {
    /// Paths with all that is below them.
    paths: &'static [&'static str],
    /// Packages in which the rule holds; in all of the product if there are none.
    packages: &'static [&'static str],
    /// Parts of the names of files in which they may stand.
    files: &'static [&'static str],
    /// Advice, after the path and `: `.
    advice: &'static str,
}

const PLACES: [Place; 7] = [
    Place {
        paths: &["tonic::Status"],
        packages: &[],
        files: &["/grpc.rs", "/grpc/", "/csi.rs", "/csi/"],
        advice: "return a typed error, and turn it into a status in grpc or csi",
    },
    Place {
        paths: &["std::process::Command", "tokio::process::Command"],
        packages: &[],
        files: &[
            "lvm/src/system",
            "linux-mount/src/",
            "topolvm-install/src/install/rendering.rs",
            "kubectl-topolvm/src/ui/browser.rs",
        ],
        advice: "start LVM through lvm::CommandRunner and other programs in linux-mount",
    },
    Place {
        paths: &["rustix::mount"],
        packages: &[],
        files: &["linux-mount/src/"],
        advice: "mount through the port linux_mount::Mounter",
    },
    Place {
        paths: &["std::env::var", "std::env::var_os", "std::env::vars", "std::env::vars_os", "std::env::args"],
        packages: &[],
        files: &["/args.rs", "/build.rs"],
        advice: "declare a flag with its variable in args.rs, and pass the value",
    },
    Place {
        paths: &["clap::Parser", "clap::Args", "clap::Subcommand"],
        packages: &[],
        files: &["/args.rs", "topolvm-runtime/src/"],
        advice: "declare flags in args.rs",
    },
    Place {
        paths: &[
            "std::env",
            "std::thread",
            "std::time::Instant",
            "std::time::SystemTime",
            "tokio::spawn",
            "tokio::task::spawn",
        ],
        packages: &["lvm", "topolvm-api", "topolvm-doctor"],
        files: &["lvm/src/system", "lvm/src/group_lock"],
        advice: "this crate is pure: take the value as a parameter, and leave tasks to the caller",
    },
    Place {
        paths: &[
            "capacity_publisher",
            "claim_growth",
            "claim_rebuild",
            "cluster_inventory",
            "doctor_controller",
            "embedded_provisioner",
            "embedded_resizer",
            "embedded_snapshotter",
            "lvmd_discovery",
            "node_inventory",
            "node_io_limits",
            "node_orphans",
            "node_storage",
            "topolvm_ui",
            "topolvm_webhook",
        ],
        packages: &["lvmd", "topolvm-controller", "topolvm-node"],
        files: &["/args.rs", "/run.rs", "/daemon.rs", "/driver.rs", "/added_controllers.rs"],
        advice: "the core knows no further capability: start it where the program is put together",
    },
];

/// Finds paths in files in which they may not stand.
pub(crate) fn find_misplaced(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is_product()) {
        for place in PLACES.iter().filter(|place| place.holds_in(source)) {
            let misplaced = source.paths.iter().filter_map(|path| Some((path.line, place.find(source, path)?)));
            findings.extend(misplaced.map(|(line, path)| {
                Finding::new(source, line, format!("{path} does not belong here: {}", place.advice))
            }));
        }
    }
    findings
}

impl Place {
    fn holds_in(&self, source: &Source) -> bool {
        let is_meant = self.packages.is_empty() || self.packages.contains(&source.package());
        is_meant && !self.files.iter().any(|part| source.file.contains(part))
    }

    /// Returns the path of this rule that a path of a file means.
    fn find(&self, source: &Source, path: &NamedPath) -> Option<&'static str> {
        let full = expand(source, path);
        self.paths.iter().find(|wanted| full == **wanted || full.starts_with(&format!("{wanted}::"))).copied()
    }
}

/// Returns the path with the import of the same file in the place of its first segment.
fn expand(source: &Source, path: &NamedPath) -> String {
    let import =
        source.paths.iter().find(|import| import.import.is_some() && import.import.as_ref() == path.segments.first());
    match (import, path.import.is_none()) {
        (Some(import), true) => {
            let below = path.segments.iter().skip(1);
            import.segments.iter().chain(below).map(String::as_str).collect::<Vec<_>>().join("::")
        }
        _ => path.segments.join("::"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(file: &str, text: &str) -> Vec<String> {
        let source = Source::parse(file, text.to_owned()).unwrap();
        find_misplaced(&[source]).iter().map(|finding| finding.message.split(' ').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_status_code_outside_of_the_edge_is_found() {
        let text = "use tonic::{Code, Status};";
        assert_eq!(find("crates/topolvm-node/src/health.rs", text), ["tonic::Status"]);
        assert!(find("crates/topolvm-node/src/csi/node.rs", text).is_empty());
        assert!(find("crates/lvmd/src/grpc/vg_service.rs", text).is_empty());
    }

    #[test]
    fn places_lint_finds_processes_mounts_variables_and_flags() {
        let file = "crates/lvmd-engine/src/engine.rs";
        assert_eq!(find(file, "fn f() { std::process::Command::new(\"lvs\"); }"), ["std::process::Command"]);
        assert_eq!(find(file, "use tokio::process::Command;"), ["tokio::process::Command"]);
        assert_eq!(find(file, "use rustix::mount::mount_bind;"), ["rustix::mount"]);
        assert_eq!(find(file, "use std::env;\nfn f() { env::var_os(\"HOME\"); }"), ["std::env::var_os"]);
        assert_eq!(find(file, "#[derive(clap::Args)]\nstruct Flags;"), ["clap::Args"]);
        assert!(find(file, "use std::env;\nfn f() { env::temp_dir(); }").is_empty());
        assert!(find("crates/lvmd/src/args.rs", "use clap::Parser;").is_empty());
    }

    #[test]
    fn places_lint_finds_a_capability_that_the_core_names() {
        let text = "use claim_growth::Growth;";
        assert_eq!(find("crates/topolvm-controller/src/reconcile.rs", text), ["claim_growth"]);
        assert!(find("crates/topolvm-controller/src/added_controllers.rs", text).is_empty());
    }

    #[test]
    fn a_clock_in_a_pure_crate_is_found() {
        assert_eq!(find("crates/topolvm-api/src/a.rs", "use std::time::{Duration, Instant};"), ["std::time::Instant"]);
        assert!(find("crates/lvmd/src/a.rs", "use std::time::Instant;").is_empty());
    }

    #[test]
    fn tools_and_tests_are_free() {
        assert!(find("xtask/src/a.rs", "use std::process::Command;").is_empty());
        assert!(find("crates/topolvm-testkit/src/a.rs", "use std::process::Command;").is_empty());
    }
}
