//! A program: flags that become a valid configuration, and then a run until it ends or is stopped.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::error::ErrorKind;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{LogArgs, RetiredArgs, Tasks};

/// Exit status for bad flags or a bad configuration (`EX_USAGE` of sysexits).
const EXIT_USAGE: u8 = 64;
/// Interval at which free memory of the heap is returned to the kernel, which takes microseconds.
const TRIM_INTERVAL: Duration = Duration::from_secs(10);

/// A configuration that cannot work, as one sentence that names the fix.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    /// An error with this sentence.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// One of our programs. The type that implements it holds the flags.
pub trait Program: clap::Parser {
    /// Name in logs.
    const NAME: &'static str;
    /// The flags and files, checked; nothing in it can be wrong any more.
    type Config: Send;

    /// Returns the flags of the log.
    fn log(&self) -> &LogArgs;

    /// Flags of TopoLVM that have another name or no meaning here; none for a program that takes none.
    fn retired(&self) -> Option<&RetiredArgs> {
        None
    }

    /// Checks the flags and reads the configuration file. No socket is open yet.
    fn config(self) -> Result<Self::Config, ConfigError>;

    /// Starts everything. What runs on is handed to `tasks`; the process ends when the first task does, or when
    /// `shutdown` is cancelled and all tasks have ended.
    fn run(
        config: Self::Config,
        tasks: Tasks,
        shutdown: CancellationToken,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// The body of `main`: 0 after an orderly end, 64 for bad flags or configuration, 1 when the run failed.
#[expect(clippy::print_stderr, reason = "the reason of a failed start belongs on standard error, whatever logs go to")]
pub fn main<P: Program>() -> ExitCode {
    let program = match P::try_parse() {
        Ok(program) => program,
        Err(error) => return print_help(&error),
    };
    memory::share_heap();
    install_logging(&program);
    // kube and the TLS servers take the process-wide provider; a second installation is harmless
    #[cfg(feature = "tls")]
    drop(rustls::crypto::ring::default_provider().install_default());
    let (status, error) = match program.config() {
        Ok(config) => match run_in_runtime::<P>(config) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => (ExitCode::FAILURE, error),
        },
        Err(error) => (ExitCode::from(EXIT_USAGE), error.into()),
    };
    eprintln!("{}: {error:#}", P::NAME);
    status
}

/// Prints help, version, or what is wrong with the flags.
fn print_help(error: &clap::Error) -> ExitCode {
    // clap prints help and version to standard output and everything else to standard error
    drop(error.print());
    let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if asked_for { ExitCode::SUCCESS } else { ExitCode::from(EXIT_USAGE) }
}

/// Installs the log of the process, and logs which flags have no effect.
fn install_logging(program: &impl Program) {
    program.log().install(program.retired().map(RetiredArgs::log_settings).unwrap_or_default());
    if let Some(retired) = program.retired() {
        retired.warn();
    }
}

/// Runs the program in an async runtime until it ends.
fn run_in_runtime<P: Program>(config: P::Config) -> anyhow::Result<()> {
    // One thread: the programs wait for LVM, the kernel and the API server, and each thread more has its stack and its
    // share of the heap
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the async runtime")?;
    tracing::info!(program = P::NAME, version = env!("CARGO_PKG_VERSION"), "starting");
    let ended = runtime.block_on(run::<P>(config));
    // Dropped, the runtime would wait for threads that hang in a file system whose disk has failed
    runtime.shutdown_background();
    if ended.is_ok() {
        tracing::info!(program = P::NAME, "stopped");
    }
    ended
}

/// Gives back again and again what was needed for a moment only: by the start, or for a list of all volumes.
async fn trim_heap(shutdown: CancellationToken) -> anyhow::Result<()> {
    let mut interval = tokio::time::interval(TRIM_INTERVAL);
    // The first comes at once
    interval.tick().await;
    while shutdown.run_until_cancelled(interval.tick()).await.is_some() {
        memory::trim();
    }
    Ok(())
}

async fn run<P: Program>(config: P::Config) -> anyhow::Result<()> {
    let shutdown = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let tasks = Tasks::new(shutdown.clone());
    tasks.spawn("memory", trim_heap(shutdown.clone()));
    let program = async {
        let starting = P::run(config, tasks.clone(), shutdown.clone());
        if let Some(started) = shutdown.run_until_cancelled(starting).await {
            started?;
        }
        tasks.wait().await
    };
    tokio::pin!(program);
    // A signal while starting up ends the start; one while running is an orderly end.
    let stopping = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("received a stop signal");
        shutdown.cancel();
    };
    tokio::select! {
        result = &mut program => return result,
        () = stopping => {}
    }
    tokio::select! {
        result = &mut program => result,
        // A second signal means "now".
        _ = terminate.recv() => Err(anyhow::anyhow!("exiting immediately after a second signal")),
        _ = interrupt.recv() => Err(anyhow::anyhow!("exiting immediately after a second signal")),
    }
}
