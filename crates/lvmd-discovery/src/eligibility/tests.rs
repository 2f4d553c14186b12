use block_device::Use;
use lvm::Device;
use lvmd_config::Config;
use rstest::rstest;

use super::*;

const CONFIG: &str = "disk-groups:
  - {name: ssd, paths: [/dev/sd.], rotational: false, max-disks: 2}
  - {name: hdd, paths: ['/dev/sd[a-z]'], rotational: true, transports: [sata, usb, iscsi]}
  - {name: odd, by-id: [.*-odd]}";

fn disk(letter: char) -> Disk {
    Disk {
        name: format!("sd{letter}"),
        path: format!("/dev/sd{letter}"),
        number: Number { major: 8, minor: u32::from(letter) },
        sequence: 1,
        size: 1 << 40,
        read_only: false,
        rotational: Some(false),
        removable: false,
        model: None,
        serial: None,
        wwid: None,
        transport: Some("sata"),
        ids: vec![format!("ata-{letter}")],
        bus_paths: Vec::new(),
        uses: Vec::new(),
    }
}

fn pv(letter: char, vg: Option<&str>) -> GroupDisk {
    GroupDisk {
        vg: vg.map(|vg| vg.parse().unwrap()),
        vg_tags: vg.map(|vg| format!("topolvm.io/disk-group={vg}").into()).into_iter().collect(),
        other_machine: None,
        extent_size: 4 << 20,
        missing_pvs: 0,
        path: format!("/dev/sd{letter}"),
        uuid: letter.to_string(),
        device: Some(Device { major: 8, minor: u32::from(letter) }),
        tags: Box::default(),
        size: 1 << 39,
        used: 0,
        device_size: 1 << 39,
        start: 0,
    }
}

/// Judges the first of these disks.
fn judge_one(disks: &[Disk], pvs: &[GroupDisk]) -> DiskFinding {
    let groups = Config::parse("f", CONFIG).unwrap().disk_groups;
    let found = find_groups(&groups, pvs, None);
    Facts::new(&groups, pvs, &found, None, disks).evaluate(disks[0].clone())
}

fn state(disk: Disk, pvs: &[GroupDisk]) -> DiskState {
    judge_one(&[disk], pvs).state
}

fn reasons(disk: Disk, pvs: &[GroupDisk]) -> Vec<&'static str> {
    let state = state(disk, pvs);
    let DiskState::Refused(reasons) = state else { panic!("{state:?}") };
    reasons.iter().map(Refusal::label).collect()
}

#[test]
fn disk_without_refusal_is_a_candidate_of_its_disk_group() {
    let found = judge_one(&[disk('b')], &[]);
    assert_eq!((found.group.unwrap().as_str(), found.state), ("ssd", DiskState::Candidate));
    assert_eq!(state(Disk { rotational: None, ..disk('b') }, &[]), DiskState::NotSelected);
}

#[test]
fn a_disk_that_two_groups_select_is_taken_by_neither() {
    let both = Disk { ids: vec!["x-odd".to_owned()], ..disk('b') };
    let found = judge_one(&[both], &[]);
    assert_eq!(found.group, None);
    let text = found.describe(None);
    assert!(text.contains("several disk groups select it: ssd, odd"), "{text}");
}

#[rstest]
#[case(Disk { read_only: true, ..disk('b') }, &["read_only"])]
#[case(Disk { uses: vec![Use::Partition("sdb1".to_owned())], ..disk('b') }, &["in_use"])]
#[case(Disk { uses: vec![Use::Holder("dm-1".to_owned())], read_only: true, ..disk('b') }, &["read_only", "in_use"])]
#[case(Disk { removable: true, ..disk('b') }, &["removable"])]
#[case(Disk { transport: Some("usb"), ..disk('b') }, &["removable"])]
#[case(Disk { transport: Some("iscsi"), ..disk('b') }, &["network"])]
#[case(Disk { transport: Some("nvme-tcp"), ..disk('b') }, &["network"])]
fn reasons_against_a_disk_are_reported(#[case] disk: Disk, #[case] expected: &[&str]) {
    assert_eq!(reasons(disk, &[]), expected);
}

#[test]
fn a_group_that_names_a_transport_takes_such_disks() {
    for (transport, removable) in [("usb", true), ("iscsi", false)] {
        let named = Disk { rotational: Some(true), transport: Some(transport), removable, ..disk('b') };
        assert_eq!(state(named, &[]), DiskState::Candidate, "{transport}");
    }
}

#[test]
fn paths_to_the_same_disk_are_refused() {
    let path = |letter| Disk { wwid: Some("naa.5".to_owned()), ..disk(letter) };
    let found = judge_one(&[path('b'), path('c'), disk('d')], &[]);
    assert_eq!(found.state, DiskState::Refused(vec![Refusal::SeveralPaths(vec!["/dev/sdc".to_owned()])]));
}

#[test]
fn a_member_stays_one_whatever_the_selectors_say() {
    let other = Disk { rotational: Some(true), read_only: true, path: "/dev/xyz".to_owned(), ..disk('b') };
    assert_eq!(state(other, &[pv('b', Some("ssd"))]), DiskState::Member { has_grown: false, evacuation: None });
    let grown = GroupDisk { device_size: 1 << 40, ..pv('b', Some("ssd")) };
    assert_eq!(state(disk('b'), &[grown]), DiskState::Member { has_grown: true, evacuation: None });
}

#[test]
fn a_member_that_is_to_be_emptied_is_known_by_its_tag() {
    for (used, evacuation) in [(1 << 30, Evacuation::Begun), (0, Evacuation::Done)] {
        let leaving = GroupDisk { tags: ["topolvm.io/evacuate=remove:0".into()].into(), used, ..pv('b', Some("ssd")) };
        let expected = DiskState::Member { has_grown: false, evacuation: Some(evacuation) };
        assert_eq!(state(disk('b'), &[leaving]), expected);
    }
}

#[test]
fn a_physical_volume_of_another_group_or_of_none_is_not_touched() {
    assert_eq!(reasons(disk('b'), &[pv('b', Some("root"))]), ["physical_volume"]);
    assert_eq!(reasons(disk('b'), &[pv('b', None)]), ["physical_volume"]);
}

#[test]
fn volume_group_without_the_disk_group_tag_is_not_extended() {
    let foreign = GroupDisk { vg_tags: ["topolvm.io/disk-group=other".into()].into(), ..pv('a', Some("ssd")) };
    assert_eq!(reasons(disk('b'), &[foreign]), ["group_not_ours"]);
    assert_eq!(state(disk('b'), &[pv('a', Some("ssd"))]), DiskState::Candidate);
}

#[test]
fn disk_of_another_machine_is_in_no_disk_group() {
    let foreign = |letter| GroupDisk {
        vg_tags: Box::default(),
        other_machine: Some("topolvm.io/machine=a".into()),
        missing_pvs: 1,
        ..pv(letter, Some("ssd"))
    };
    // The name is not free, nor is the group one to extend
    assert_eq!(reasons(disk('b'), &[foreign('a')]), ["other_machine"]);
    assert_eq!(reasons(disk('b'), &[foreign('b')]), ["other_machine"]);
    // A group of this machine of the same name
    for pvs in [[foreign('a'), pv('c', Some("ssd"))], [pv('c', Some("ssd")), foreign('a')]] {
        assert_eq!(state(disk('b'), &pvs), DiskState::Candidate);
        assert_eq!(reasons(disk('a'), &pvs), ["other_machine"]);
        let groups = Config::parse("f", CONFIG).unwrap().disk_groups;
        let found = find_groups(&groups, &pvs, None).remove(0);
        assert_eq!((found.exists, found.is_ours, found.disks, found.missing), (true, true, 1, 0));
    }
}

#[test]
fn a_group_without_one_of_its_disks_gets_no_other() {
    let members = [pv('a', Some("ssd")), GroupDisk { device: None, ..pv('c', Some("ssd")) }];
    let members = members.map(|pv| GroupDisk { missing_pvs: 1, ..pv });
    assert_eq!(reasons(disk('b'), &members), ["group_incomplete"]);
    let groups = Config::parse("f", CONFIG).unwrap().disk_groups;
    let found = find_groups(&groups, &members, None).remove(0);
    assert_eq!((found.exists, found.is_ours, found.disks, found.missing), (true, true, 2, 1));
}

#[test]
fn a_group_of_which_a_disk_is_read_only_gets_no_other() {
    let member = Disk { read_only: true, ..disk('a') };
    let found = judge_one(&[disk('b'), member], &[pv('a', Some("ssd"))]);
    let DiskState::Refused(reasons) = &found.state else { panic!("{found:?}") };
    assert_eq!(reasons[0].to_string(), "disk /dev/sda of volume group ssd is read-only");
    assert_eq!(judge_one(&[disk('b'), disk('a')], &[pv('a', Some("ssd"))]).state, DiskState::Candidate);
}

#[test]
fn a_group_gets_no_more_disks_than_it_may_have() {
    let groups = Config::parse("f", CONFIG).unwrap().disk_groups;
    let (pvs, disks) = ([pv('a', Some("ssd"))], [disk('b'), disk('c'), disk('d')]);
    let found = find_groups(&groups, &pvs, None);
    let facts = Facts::new(&groups, &pvs, &found, None, &disks);
    let mut findings: Vec<_> = disks.iter().cloned().map(|disk| facts.evaluate(disk)).collect();
    limit_candidates(&mut findings, &groups, &found);
    let full = DiskState::Refused(vec![Refusal::GroupFull(2)]);
    let states: Vec<_> = findings.into_iter().map(|finding| finding.state).collect();
    assert_eq!(states, [DiskState::Candidate, full.clone(), full]);
}

/// Two groups of the same disks on nodes that exclude each other, and one of disks that may be the same, on others.
const NODES: &str = "disk-groups:
  - {name: fast, paths: [/dev/sd.], node-labels: [kind=fast]}
  - {name: slow, paths: [/dev/sd.], node-labels: [kind=slow, kind=old]}
  - {name: odd, by-id: [.*-odd], node-labels: [odd]}";

/// Judges a disk on a node with these labels.
fn judge_on(config: &str, labels: Option<&str>, disk: &Disk, pvs: &[GroupDisk]) -> DiskFinding {
    let groups = Config::parse("f", config).unwrap().disk_groups;
    let labels = labels.map(|labels| lvmd_config::parse_node_labels(labels).unwrap());
    let found = find_groups(&groups, pvs, labels.as_ref());
    Facts::new(&groups, pvs, &found, labels.as_ref(), std::slice::from_ref(disk)).evaluate(disk.clone())
}

#[rstest]
#[case("kind=fast", Some("fast"), DiskState::Candidate)]
#[case("kind=old,zone=a", Some("slow"), DiskState::Candidate)]
#[case("kind=fast,odd=", Some("fast"), DiskState::Candidate)]
fn a_disk_is_for_the_group_of_its_node(#[case] labels: &str, #[case] group: Option<&str>, #[case] state: DiskState) {
    let found = judge_on(NODES, Some(labels), &disk('b'), &[]);
    assert_eq!((found.group.as_ref().map(VgName::as_str), found.state), (group, state));
}

#[test]
fn disk_is_refused_by_each_group_whose_node_labels_differ() {
    for labels in ["", "kind=other", "odd=1"] {
        let found = judge_on(NODES, Some(labels), &disk('b'), &[]);
        assert_eq!((&found.group, found.state.refusals().len()), (&None, 2), "{labels}");
        let expected = "disk group fast applies to nodes with the labels kind=fast, which this node does not have; \
                        disk group slow applies to nodes with the labels kind in (old,slow), which this node does not \
                        have";
        assert_eq!(found.describe(None), expected);
        assert!(found.state.refusals().iter().all(|refusal| refusal.label() == "other_nodes"));
    }
    assert_eq!(
        judge_on(NODES, Some(""), &Disk { path: "/dev/vda".to_owned(), ..disk('b') }, &[]).state,
        DiskState::NotSelected
    );
}

#[test]
fn until_the_labels_are_known_a_disk_is_taken_by_none() {
    let found = judge_on(NODES, None, &disk('b'), &[]);
    assert_eq!((&found.group, found.state.refusals().len()), (&None, 2));
    let text = found.describe(None);
    assert!(
        text.starts_with("disk group fast applies to nodes with the labels kind=fast, and topolvm-node has not"),
        "{text}"
    );
}

#[test]
fn disk_of_a_group_with_unknown_node_labels_joins_no_other() {
    let config = "disk-groups:
      - {name: all, paths: [/dev/sd.]}
      - {name: odd, by-id: [.*-odd], node-labels: [odd]}";
    let odd = Disk { ids: vec!["x-odd".to_owned()], ..disk('b') };
    let found = judge_on(config, None, &odd, &[]);
    assert_eq!(found.group.as_ref().map(VgName::as_str), Some("odd"));
    let [refusal] = found.state.refusals() else { panic!("{found:?}") };
    assert_eq!(refusal.label(), "node_labels_unknown");
    for (labels, disk) in [(None, disk('b')), (Some(""), odd.clone()), (Some("odd="), disk('b'))] {
        let found = judge_on(config, labels, &disk, &[]);
        assert_eq!((found.group.unwrap().as_str(), found.state), ("all", DiskState::Candidate));
    }
    assert_eq!(judge_on(config, Some("odd="), &odd, &[]).state.refusals()[0].label(), "several_groups");
}

#[test]
fn a_disk_that_two_groups_of_a_node_select_is_taken_by_neither() {
    let both = Disk { ids: vec!["x-odd".to_owned()], ..disk('b') };
    let found = judge_on(NODES, Some("kind=fast,odd=1"), &both, &[]);
    assert!(found.describe(None).contains("several disk groups select it: fast, odd"), "{found:?}");
    assert_eq!(judge_on(NODES, Some("kind=fast"), &both, &[]).group.unwrap().as_str(), "fast");
}

#[test]
fn a_member_stays_one_on_a_node_whose_label_has_gone() {
    for labels in [None, Some(""), Some("kind=slow")] {
        let found = judge_on(NODES, labels, &disk('b'), &[pv('b', Some("fast"))]);
        assert_eq!(found.state, DiskState::Member { has_grown: false, evacuation: None });
        assert_eq!(found.group.unwrap().as_str(), "fast");
    }
}
