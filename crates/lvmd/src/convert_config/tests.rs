use lvmd_config::{DiskGroups, Mode, Pattern};
use rstest::rstest;

use super::*;

/// Converts, and parses the result, which must be valid and without warnings.
fn converted(json: &str) -> (String, DiskGroups) {
    let text = convert(json).unwrap();
    let config = Config::parse("f", &text).unwrap();
    assert_eq!(config.warnings, [""; 0]);
    assert!(config.disk_groups.groups.iter().all(|group| group.mode == Mode::Report));
    (text, config.disk_groups)
}

#[test]
fn a_list_of_patterns_is_split_into_flash_and_turning_disks() {
    let json = r#"{"diskSelector": ["loop+", "vd+"], "diskScanInterval": "300", "diskGroupPolicy": "type",
                   "schedulerStrategy": "spradout"}"#;
    let (text, groups) = converted(json);
    let found: Vec<_> = groups.groups.iter().map(|group| (group.name.as_str(), group.selector.rotational)).collect();
    assert_eq!(found, [("carina-vg-ssd", Some(false)), ("carina-vg-hdd", Some(true))]);
    let selector = &groups.groups[0].selector;
    assert_eq!(
        selector.paths.iter().map(Pattern::as_str).collect::<Vec<_>>(),
        ["/dev/[^/]*loop+[^/]*", "/dev/[^/]*vd+[^/]*"]
    );
    assert_eq!(selector.min_size, Some(10 << 30));
    assert!(text.contains("schedulerStrategy (spreadout)") && text.contains("diskGroupPolicy"), "{text}");
    assert!(text.contains("vgchange --addtag topolvm.io/disk-group=carina-vg-ssd carina-vg-ssd"), "{text}");
}

#[test]
fn groups_keep_their_names_and_what_has_no_counterpart_is_said() {
    let json = r#"{"diskSelector": [
        {"name": "Fast-VG", "re": ["nvme.*n1$"], "policy": "lvm", "nodeLabel": "kubernetes.io/hostname"},
        {"name": "raw", "re": ["vdb"], "policy": "RAW", "nodeLabel": ""},
        {"name": "dir", "re": ["/opt"], "policy": "Host"},
        {"name": "none", "re": [], "policy": "LVM"},
        {"name": "what", "re": ["x"], "policy": "ZFS"}
      ], "diskScanInterval": 60, "schedulerStrategy": "binpack"}"#;
    let (text, groups) = converted(json);
    let names: Vec<_> = groups.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["fast-vg"]);
    assert_eq!(groups.rescan_interval.unwrap().as_secs(), 300);
    for said in [
        "    node-labels: [\"kubernetes.io/hostname\"]",
        "Group raw is not converted: lvmd has no policy RAW",
        "Group dir is not converted: lvmd has no policy HOST",
        "Group none is not converted: it has no pattern",
        "Group what is not converted: its policy is not",
        "schedulerStrategy (binpack)",
    ] {
        assert!(text.contains(said), "{said} in {text}");
    }
}

#[test]
fn the_interval_is_a_number_or_a_text() {
    for (interval, seconds) in
        [("0", None), ("\"0\"", None), ("\"600\"", Some(600)), ("299", Some(300)), ("\"x\"", Some(300))]
    {
        let json = format!(r#"{{"diskSelector": ["sd+"], "diskScanInterval": {interval}}}"#);
        let (_, groups) = converted(&json);
        assert_eq!(groups.rescan_interval.map(|interval| interval.as_secs()), seconds, "{interval}");
    }
}

#[test]
fn groups_that_select_the_same_disks_are_pointed_out() {
    let json = r#"{"diskSelector": [{"name": "a", "re": ["sd+"], "policy": "LVM"},
                                     {"name": "b", "re": ["sd+"], "policy": "LVM"}]}"#;
    let text = convert(json).unwrap();
    assert!(text.contains("# It is not valid yet:") && text.contains("select the same disks"), "{text}");
    Config::parse("f", &text).unwrap_err();
}

#[test]
fn nothing_in_a_file_gets_out_of_its_comment_or_quotes() {
    let json = r#"{"diskSelector": [{"name": "a", "re": ["x\"y\nz"], "policy": "LVM", "nodeLabel": "l\nmode: auto"}]}"#;
    converted(json);
    let text = convert(r#"{"diskSelector": [{"name": "a\nmode: auto", "policy": "raw"}]}"#).unwrap();
    assert!(text.lines().all(|line| line.starts_with('#') || line == "disk-groups: []"), "{text}");
}

#[rstest]
#[case::empty("", "EOF while parsing")]
#[case::yaml("disk-groups: []", "expected value at line 1 column 1")]
#[case::another_object(r#"{"disk-groups": []}"#, "missing field `diskSelector`")]
#[case::a_list("[]", "invalid length 0")]
#[case::neither_pattern_nor_group(r#"{"diskSelector": [3]}"#, "Entry")]
#[case::group_without_a_name(r#"{"diskSelector": [{"re": ["sd+"]}]}"#, "Entry")]
fn another_file_is_refused_with_the_reason(#[case] text: &str, #[case] reason: &str) {
    let error = convert(text).unwrap_err().to_string();
    assert!(error.starts_with("not a config.json of Carina: ") && error.contains(reason), "{error}");
}
