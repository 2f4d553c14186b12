//! The part of the benchmark that runs in the guest. It prints the measurements to standard output as JSON.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use tokio::runtime;

use super::daemon::{Client, LvmCommand, Lvmd, THIN_VG, VG};
use super::shell::run_script;
use super::{MEMORY, Measured, PROCESSES, SPEED, memory, processes, speed};

pub(super) fn main() -> ExitCode {
    let measured = measure().and_then(|measured| Ok(serde_json::to_vec(&measured)?));
    let result = measured.and_then(|text| Ok(std::io::stdout().write_all(&text)?));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // No other place to report a failure
            drop(writeln!(std::io::stderr(), "{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<Measured> {
    // Space for the metadata of a thousand volumes
    run_script("pvcreate -qy --metadatasize 16m /dev/ubda /dev/ubdb")?;
    run_script(&format!("vgcreate -qy {VG} /dev/ubda && vgcreate -qy {THIN_VG} /dev/ubdb"))?;
    run_script(&format!("lvcreate -qy -L 4g -T {THIN_VG}/pool0"))?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;

    let wanted: Vec<String> = std::env::args().skip(2).collect();
    let wanted = |families: &[&str]| wanted.iter().any(|wanted| families.contains(&wanted.as_str()));

    let mut measured = Measured { processes: None, speed: None, resident: None };
    if wanted(&[PROCESSES]) {
        let lvmd = Lvmd::start(LvmCommand::CountingScript)?;
        let processes = runtime.block_on(async { processes::measure(&Client::connect().await?).await })?;
        lvmd.stop()?;
        measured.processes = Some(processes);
    }
    if wanted(&SPEED) {
        let lvmd = Lvmd::start(LvmCommand::Lvm)?;
        let speed = runtime.block_on(async { speed::measure(&Client::connect().await?).await })?;
        lvmd.stop()?;
        measured.speed = Some(speed);
    }
    if wanted(&[MEMORY]) {
        measured.resident = Some(runtime.block_on(memory::measure())?);
    }
    Ok(measured)
}
