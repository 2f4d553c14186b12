//! The lvm crate and the program lvmd on real LVM, in a guest with two blank disks.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "in a test a panic is the right answer, real programs are tested, and random tests print their seeds"
)]

mod blkio_limits;
mod burst;
mod container;
mod contract;
mod counted_programs;
mod crash;
mod cut_moves;
mod daemon;
mod disk_groups;
mod disk_groups_of_nodes;
mod disk_requests;
mod disk_scenario;
mod driver;
mod evacuation;
mod evacuation_cut;
mod failing_disk;
mod fixture;
mod foreign_groups;
mod foreign_metadata;
mod group_pools;
mod held_devices;
mod kills;
mod listed_volumes;
mod lvm_conf;
mod lvm_processes;
mod many_disks;
mod missing_disk;
mod moved;
mod node_agent;
mod one_name;
mod pool_growth;
mod pool_repair;
mod power_cut;
mod power_cycles;
mod quarantine;
mod raid;
mod refused_classes;
mod scenarios;
mod scsi_disks;
mod shared_disk_group;
mod shared_group;
mod signatures;
mod slow_disks;
mod snapshot;
mod snapshot_group;
mod survival;
mod thin;
mod two_daemons;
mod two_machines;
mod vacated;
mod wiping;
mod wrong_device;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use testbed::guest::{self, GuestSpec};
use testbed::machine;
use testbed::size::GIB;
use testbed::suite;

use crate::fixture::{OWN_LVM_SETTINGS, run_ok};

/// The tests of a module by name.
type Tests = &'static [(&'static str, fn())];

/// Tests that take long, and that only the soak runs, with all others.
const IN_SOAK: [&str; 9] = [
    "evacuation_keeps_data_when_the_target_disk_fails",
    "evacuation_of_bad_sectors_leaves_only_the_affected_volume",
    "evacuation_without_space_resumes_when_space_is_freed",
    "slow_disks_are_named_and_block_no_other_volume_group",
    // Half a minute and more of the same as others
    "an_image_of_a_mirror_is_moved_to_a_disk_without_another",
    "disk_under_a_full_thin_pool_is_replaced_by_the_next_disk",
    "lvmd_adds_blank_disks_once_and_scans_with_one_process",
    "lvmd_behaves_the_same_with_any_lvm_conf",
    "lvmd_killed_at_any_moment_leaves_pools_that_work",
];

fn main() -> ExitCode {
    if let [role, directory] = std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        match role.as_str() {
            power_cut::ROLE => return power_cut::work(Path::new(directory)),
            evacuation_cut::ROLE => return evacuation_cut::work(Path::new(directory)),
            wrong_device::ROLE => return wrong_device::work(),
            role => {
                if let Some(work) =
                    shared_group::WORKS.iter().chain(shared_disk_group::WORKS).find(|(name, _)| *name == role)
                {
                    return two_machines::work(*work, directory);
                }
            }
        }
    }
    if suite::is_soak() && guest::is_inside() {
        run_ok("cp", &["-r", "/etc/lvm", OWN_LVM_SETTINGS]);
    }
    // A change must not fail because of the random moment of a kill, and not wait for minutes of the same.
    let long: &[Tests] = if suite::is_soak() {
        &[kills::TESTS, scenarios::TESTS, disk_scenario::TESTS, crash::LONG_TESTS, burst::TESTS]
    } else {
        &[]
    };
    let tests = driver::TESTS
        .iter()
        .chain(daemon::TESTS)
        .chain(contract::TESTS)
        .chain(thin::TESTS)
        .chain(snapshot::TESTS)
        .chain(snapshot_group::TESTS)
        .chain(refused_classes::TESTS)
        .chain(crash::TESTS)
        .chain(two_daemons::TESTS)
        .chain(long.iter().copied().flatten())
        .chain(raid::TESTS)
        .chain(wiping::TESTS)
        .chain(quarantine::TESTS)
        .chain(missing_disk::TESTS)
        .chain(held_devices::TESTS)
        .chain(wrong_device::TESTS)
        .chain(survival::TESTS)
        .chain(lvm_conf::TESTS)
        .chain(disk_groups::TESTS)
        .chain(many_disks::TESTS)
        .chain(slow_disks::TESTS)
        .chain(disk_groups_of_nodes::TESTS)
        .chain(foreign_groups::TESTS)
        .chain(one_name::TESTS)
        .chain(evacuation::TESTS)
        .chain(vacated::TESTS)
        .chain(failing_disk::TESTS)
        .chain(cut_moves::TESTS)
        .chain(disk_requests::TESTS)
        .chain(group_pools::TESTS)
        .chain(pool_growth::TESTS)
        .chain(moved::TESTS)
        .chain(container::TESTS)
        .chain(blkio_limits::TESTS);
    let tests = suite::without_soak(&IN_SOAK, tests.map(|&(name, test)| suite::panicking_test(name, test)).collect());
    // Ten minutes on an idle machine, more than thirty beside a cluster: the timeout is for tests that hang, and no
    // limit of speed
    let timeout = Duration::from_mins(if suite::is_soak() { 120 } else { 60 });
    let env = suite::is_soak().then(|| ("LVM_SYSTEM_DIR".to_owned(), OWN_LVM_SETTINGS.to_owned()));
    let env = env.into_iter().collect();
    let spec = GuestSpec { disks: vec![GIB, GIB], timeout, env, ..GuestSpec::default() };
    let code = suite::in_guest(spec, tests);
    if guest::is_inside() {
        return code;
    }
    // Tests with separate guests
    let mut others = shared_group::tests();
    others.extend(shared_disk_group::tests());
    if suite::is_soak() {
        others.extend(evacuation_cut::tests());
        others.extend(power_cut::tests());
    }
    let others = suite::on_host_unless(machine::missing_for_guests(), others);
    if code == ExitCode::SUCCESS { others } else { code }
}
