//! The lvm crate and the program lvmd on real LVM, in a guest with two blank disks.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "in a test a panic is the right answer, real programs are what is tested, and random tests tell their seeds"
)]

mod bench;
mod contract;
mod crash;
mod daemon;
mod driver;
mod kills;
mod missing_disk;
mod raid;
mod snapshot;
mod stories;
mod thin;
mod two_daemons;
mod wiping;

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::Trial;
use testbed::guest::GuestSpec;
use testbed::size::GIB;

fn main() -> ExitCode {
    let tests = driver::TESTS
        .iter()
        .chain(daemon::TESTS)
        .chain(contract::TESTS)
        .chain(thin::TESTS)
        .chain(snapshot::TESTS)
        .chain(crash::TESTS)
        .chain(two_daemons::TESTS)
        .chain(kills::TESTS)
        .chain(stories::TESTS)
        .chain(raid::TESTS)
        .chain(wiping::TESTS)
        .chain(missing_disk::TESTS);
    let trials = tests.map(|&(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    // The soak repeats what is random many times.
    let timeout = Duration::from_mins(if std::env::var_os("TOPOLVM_SOAK").is_some() { 120 } else { 10 });
    testbed::suite::in_guest(GuestSpec { disks: vec![GIB, GIB], timeout, ..GuestSpec::default() }, trials.collect())
}
