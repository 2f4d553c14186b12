//! Reload, stop, watchdog and kills of the systemd unit.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use tonic::Code;

use crate::node::{
    CLASSES, CONFIG, Held, Node, THICK, create, drop_in, held_lvm, is_whole, journal, list, main_process, property,
    run, run_ok, systemctl, wait_until,
};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_reload_takes_a_new_class_over_and_refuses_a_mistake", reloads),
    ("a_stop_waits_for_lvm_and_so_does_a_restart", stops_when_lvm_has_ended),
    ("a_killed_lvmd_comes_back_and_waits_for_the_lvm_that_it_left", restarts_after_a_kill),
    ("watchdog_restarts_a_hung_lvmd_and_lvm_finishes", is_replaced_by_the_watchdog),
    ("systemctl_kill_ends_it_as_a_stop_does", ends_at_systemctl_kill),
];

fn reloads() {
    let _node = Node::new(THICK);
    let lvmd = main_process();
    assert_eq!(list("thin"), Err(Code::FailedPrecondition));
    fs::write(CONFIG, CLASSES).unwrap();
    systemctl("reload");
    wait_until("the new class", || list("thin").is_ok());

    fs::write(CONFIG, CLASSES.replace("ratio: 5", "ratio: much")).unwrap();
    assert!(!run("systemctl", &["reload", "lvmd"]).status.success());
    wait_until("the status reports it", || property("StatusText").contains("the previous configuration is in use"));
    assert!(list("thin").is_ok());
    assert_eq!(property("ActiveState"), "active");

    fs::write(CONFIG, THICK).unwrap();
    systemctl("reload");
    wait_until("the class is gone", || list("thin") == Err(Code::FailedPrecondition));
    wait_until("the status is good again", || property("StatusText") == "LVM works");
    assert!(lvmd.is_alive() && lvmd == main_process());
}

fn stops_when_lvm_has_ended() {
    let _node = Node::new(&held_lvm());
    for (action, name, then) in [("restart", "a", "active"), ("stop", "b", "inactive")] {
        let lvmd = main_process();
        let held = Held::start(name);
        run_ok("systemctl", &["--no-block", action, "lvmd"]);
        wait_until("lvmd is stopping", || property("ActiveState") == "deactivating");
        assert!(lvmd.is_alive() && !is_whole(name));
        held.resume().unwrap();
        wait_until("the action is done", || property("ActiveState") == then);
        assert!(!lvmd.is_alive() && is_whole(name));
    }
    assert_eq!(property("Result"), "success");
    systemctl("start");
    assert_eq!(list("thin").unwrap(), ["a", "b"]);
}

/// Kills lvmd by `meets_its_end` while LVM works: another one starts, waits for LVM, and finds the volume complete.
fn check_survival(meets_its_end: impl FnOnce(&testbed::process::Process)) {
    let old = main_process();
    let held = Held::start("v");
    meets_its_end(&old);
    wait_until("the old lvmd is gone", || !old.is_alive());
    wait_until("another one waits", || property("StatusText").starts_with("waiting for LVM commands"));
    assert_eq!(property("ActiveState"), "activating");
    assert!(!is_whole("v"));
    held.resume().unwrap_err();
    wait_until("it has started", || property("ActiveState") == "active");
    assert!(is_whole("v"), "{}", run_ok("lvs", &["-o", "+lv_tags"]));
    assert_eq!(list("thin").unwrap(), ["v"]);
    create("thin", "w").unwrap();
}

fn restarts_after_a_kill() {
    let _node = Node::new(&held_lvm());
    drop_in("RestartSec=100ms");
    check_survival(|_| drop(run_ok("systemctl", &["kill", "--kill-who=main", "--signal=KILL", "lvmd"])));
    assert_eq!(property("NRestarts"), "1");
}

fn is_replaced_by_the_watchdog() {
    let _node = Node::new(&held_lvm());
    // Only the durations are changed, which are too long for a test; the watchdog and its effect are those of the unit.
    drop_in("WatchdogSec=5s\nTimeoutAbortSec=1s\nRestartSec=100ms");
    systemctl("restart");
    check_survival(|lvmd| {
        kill_process(Pid::from_raw(i32::try_from(lvmd.pid).unwrap()).unwrap(), Signal::STOP).unwrap();
    });
    assert!(journal().contains("Watchdog timeout"), "{}", journal());
}

fn ends_at_systemctl_kill() {
    let _node = Node::new(CLASSES);
    create("thin", "v").unwrap();
    systemctl("kill");
    wait_until("it has ended", || property("ActiveState") == "inactive");
    assert_eq!(["Result", "ExecMainStatus", "NRestarts"].map(property), ["success", "0", "0"]);
    systemctl("start");
    assert_eq!(list("thin").unwrap(), ["v"]);
}
