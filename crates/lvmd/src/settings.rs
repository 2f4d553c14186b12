//! The checked settings from flags and configuration file, for the program and for topolvm-node.

use std::path::PathBuf;

use lvm::SystemRunner;
use lvmd_config::Config;
use topolvm_runtime::ConfigError;

use crate::args;

/// The configuration, its file, and the runner of LVM commands.
#[derive(Clone, Debug)]
pub struct Settings<R = SystemRunner> {
    /// The configuration file, which is reloaded from there.
    pub file: PathBuf,
    /// The configuration.
    pub config: Config,
    /// The runner of LVM commands.
    pub runner: R,
}

impl Settings {
    /// Loads and checks a configuration file. `lvm_path` is the path of the lvm program on the host; empty for the
    /// configured one.
    pub fn read(file: PathBuf, lvm_path: &str) -> Result<Self, ConfigError> {
        let config = lvmd_config::load(&file).map_err(|error| ConfigError::new(error.to_string()))?;
        let prefix = lvm_command(config.lvm_command_prefix.as_deref(), lvm_path)?;
        let runner = SystemRunner::new(&prefix).map_err(|error| ConfigError::new(error.to_string()))?;
        let runner = runner.with_environment(args::environment());
        let runner = runner.with_owner(config.socket.display().to_string()).outliving_container();
        Ok(Self { file, config, runner })
    }
}

/// Returns the arguments before the LVM sub-command.
fn lvm_command(configured: Option<&[String]>, lvm_path: &str) -> Result<Vec<String>, ConfigError> {
    match (configured, lvm_path) {
        (Some(prefix), "") => Ok(prefix.to_vec()),
        (Some(_), _) => Err(ConfigError::new(
            "--lvm-path and lvm-command-prefix in the configuration file are mutually exclusive; remove the flag",
        )),
        (None, path) => {
            let mut prefix: Vec<_> = SystemRunner::DEFAULT_PREFIX.iter().map(|word| (*word).to_owned()).collect();
            if let (false, Some(lvm)) = (path.is_empty(), prefix.last_mut()) {
                path.clone_into(lvm);
            }
            Ok(prefix)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(prefix: &[&str]) -> Vec<String> {
        prefix.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn lvm_of_the_host_is_the_default() {
        assert_eq!(lvm_command(None, "").unwrap(), words(SystemRunner::DEFAULT_PREFIX));
    }

    #[test]
    fn the_flag_replaces_the_program_only() {
        let expected = words(&["/usr/bin/nsenter", "-m", "-u", "-i", "-n", "-p", "-t", "1", "/usr/sbin/lvm"]);
        assert_eq!(lvm_command(None, "/usr/sbin/lvm").unwrap(), expected);
    }

    #[test]
    fn the_setting_replaces_everything() {
        assert_eq!(lvm_command(Some(&words(&["/sbin/lvm"])), "").unwrap(), ["/sbin/lvm"]);
    }

    #[test]
    fn flag_and_setting_exclude_each_other() {
        let error = lvm_command(Some(&words(&["/sbin/lvm"])), "/usr/sbin/lvm").unwrap_err().to_string();
        assert!(error.starts_with("--lvm-path and lvm-command-prefix"), "{error}");
        assert!(error.ends_with("remove the flag"), "{error}");
    }
}
