use rstest::rstest;

use crate::config::Config;
use crate::disk_group::Mode;

fn parse(groups: &str) -> Result<Config, String> {
    Config::parse("lvmd.yaml", groups).map_err(|error| error.to_string())
}

const GROUP: &str = "disk-groups: [{name: ssd, paths: [/dev/sd.]}]";

#[test]
fn disk_group_defaults_to_report_mode_and_an_optional_class() {
    let config = parse(GROUP).unwrap();
    let group = &config.disk_groups.groups[0];
    assert_eq!((group.mode, group.max_disks), (Mode::Report, None));
    assert_eq!(config.disk_groups.rescan_interval.unwrap().as_secs(), 300);
    assert_eq!(config.disk_groups.settle_time.as_secs(), 60);
    let class = config.classes.get("ssd").unwrap();
    assert!(class.optional && !class.default && class.thin_pool.is_none());
    assert_eq!((class.volume_group.as_str(), class.spare), ("ssd", 10 << 30));
    assert_eq!(config.warnings, [""; 0]);
}

#[test]
fn disk_group_uses_a_renamed_class_or_a_configured_class() {
    let config = parse(
        "disk-groups: [{name: vg1, device-class: fast, spare-gb: 1, rotational: false, mode: auto, max-disks: 2}, \
         {name: vg2, rotational: true}]\n\
         device-classes: [{name: slow, volume-group: vg2, default: true}]\nrescan-interval: 0",
    )
    .unwrap();
    let names: Vec<_> = config.classes.iter().map(|class| (class.name.as_str(), class.volume_group.as_str())).collect();
    assert_eq!(names, [("slow", "vg2"), ("fast", "vg1")]);
    assert!(config.classes.iter().all(|class| class.optional));
    assert_eq!(config.classes.get("fast").unwrap().spare, 1 << 30);
    assert_eq!((config.disk_groups.groups[0].mode, config.disk_groups.groups[0].max_disks), (Mode::Auto, Some(2)));
    assert_eq!(config.disk_groups.rescan_interval, None);
}

#[rstest]
#[case("{paths: [/dev/sdb]}", "it has no name")]
#[case("{name: -a, paths: [/dev/sdb]}", "begins with a hyphen")]
#[case("{name: a}", "it selects no disks")]
#[case("{name: a, paths: []}", "paths is an empty list")]
#[case("{name: a, paths: ['[']}", "is not a valid pattern")]
#[case("{name: a, paths: ['x)|(y']}", "is not a valid pattern")]
#[case("{name: a, paths: /dev/sdb}", "paths must be a list")]
#[case("{name: a, transports: [ide]}", "unknown transport \"ide\"; use nvme, sata")]
#[case("{name: a, rotational: 'no'}", "rotational must be true or false")]
#[case("{name: a, mode: on, paths: [x]}", "mode")]
#[case("{name: a, mode: automatic, paths: [x]}", "use report or auto")]
#[case("{name: a, min-size-gb: 2, max-size-gb: 1}", "larger than max-size-gb")]
#[case("{name: a, max-disks: 0, paths: [x]}", "max-disks is 0")]
#[case("{name: a+b, paths: [x]}", "device-class \"a+b\": a name consists of letters")]
#[case("{name: a, paths: [x]}, {name: a, paths: [y]}", "another disk group has the same name")]
#[case("{name: a, paths: [x]}, {name: b, device-class: a, paths: [y]}", "another class has the same name")]
#[case("{name: a, paths: [x]}, {name: b, paths: [x]}", "disk groups \"a\" and \"b\" select the same disks")]
#[case("{name: a, min-size-gb: 1}, {name: b, rotational: true}", "disk groups \"a\" and \"b\" select the same disks")]
#[case("{name: a, paths: [x], node-labels: []}", "node-labels is an empty list")]
#[case("{name: a, paths: [x], node-labels: b=c}", "node-labels must be a list")]
#[case("{name: a, paths: [x], node-labels: {b: c}}", "node-labels must be a list")]
#[case("{name: a, paths: [x], node-labels: [b: c]}", "each entry of node-labels must be a string")]
#[case("{name: a, paths: [x], node-labels: [b c]}", "each entry of node-labels must be a label, KEY=VALUE or KEY")]
#[case("{name: a, paths: [x], node-labels: ['b=c,d=e']}", "\"b=c,d=e\" is invalid: its value must have")]
#[case("{name: a, node-labels: [b]}", "it selects no disks")]
#[case("{name: a, paths: [x], node-labels: [k]}, {name: b, paths: [x]}", "select the same disks")]
#[case("{name: a, paths: [x], node-labels: [k]}, {name: b, paths: [x], node-labels: [l]}", "select the same disks")]
#[case("{name: a, paths: [x], node-labels: [k=1]}, {name: b, paths: [x], node-labels: [k]}", "different values of one")]
#[case(
    "{name: a, paths: [x], node-labels: [k=1, k=2]}, {name: b, paths: [x], node-labels: [k=2, k=3]}",
    "select the same disks"
)]
fn mistakes_are_named_with_their_line(#[case] groups: &str, #[case] expected: &str) {
    let said = parse(&format!("\ndisk-groups: [{groups}]")).unwrap_err();
    assert!(said.starts_with("lvmd.yaml:2: ") && said.contains(expected), "{said}");
}

#[test]
fn disk_groups_of_disjoint_nodes_may_select_the_same_disks() {
    let groups = "disk-groups:
      - {name: fast, paths: [/dev/sd.], node-labels: [storage.example.com/kind=fast, topology.kubernetes.io/zone]}
      - {name: slow, paths: [/dev/sd.], node-labels: [storage.example.com/kind=slow, storage.example.com/kind=old]}";
    let config = parse(groups).unwrap();
    let nodes: Vec<_> = config.disk_groups.groups.iter().map(|group| group.node_labels.to_string()).collect();
    let expected =
        ["storage.example.com/kind=fast,topology.kubernetes.io/zone", "storage.example.com/kind in (old,slow)"];
    assert_eq!(nodes, expected);
    assert!(config.classes.iter().all(|class| class.optional));
    assert!(parse(GROUP).unwrap().disk_groups.groups[0].node_labels.is_everything());
}

#[test]
fn a_wrong_label_is_named_with_its_own_line() {
    let said = parse("disk-groups:\n- name: a\n  paths: [x]\n  node-labels:\n  - good=1\n  - bad label\n").unwrap_err();
    assert!(said.starts_with("lvmd.yaml:6: each entry of node-labels must be a label"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn what_the_class_says_is_not_said_by_the_group_as_well() {
    let class = "device-classes: [{name: c, volume-group: ssd}]\ndisk-groups: [{name: ssd, rotational: false";
    parse(&format!("{class}}}]")).unwrap();
    for key in ["device-class: c", "spare-gb: 1"] {
        let said = parse(&format!("{class}, {key}}}]")).unwrap_err();
        assert!(said.contains("a device class already uses this volume group"), "{said}");
    }
}

#[test]
fn a_thin_class_of_a_group_is_warned_of_its_pool() {
    let class = "{name: t, volume-group: ssd, type: thin, thin-pool: {name: p, overprovision-ratio: 1}}";
    let config = parse(&format!("{GROUP}\ndevice-classes: [{class}]")).unwrap();
    assert!(
        config.warnings[0].contains("lvmd does not create the thin pool of device class \"t\""),
        "{:?}",
        config.warnings
    );
}

fn parse_pool(pool: &str, more: &str) -> Result<Config, String> {
    parse(&format!("disk-groups: [{{name: ssd, paths: [/dev/sd.], mode: auto, thin-pool: {pool}}}]{more}"))
}

#[test]
fn a_group_with_a_thin_pool_has_a_thin_class() {
    let config = parse_pool("{overprovision-ratio: 10}", "").unwrap();
    let class = config.classes.get("ssd").unwrap();
    assert!(class.optional);
    assert_eq!(class.spare, 0);
    let pool = class.thin_pool.as_ref().unwrap();
    assert_eq!((pool.name.as_str(), pool.overprovision.to_string().as_str()), ("pool", "10.0"));
    let share = pool.share.as_ref().unwrap();
    assert_eq!((share.tag.as_str(), share.mode), ("topolvm.io/disk-group=ssd", Mode::Auto));
    assert_eq!((share.percent, share.metadata, share.chunk), (95, None, 64 << 10));
    assert_eq!(config.warnings, [""; 0]);
}

#[test]
fn all_of_a_pool_can_be_said() {
    let pool = "{name: p, size-percent: 50, metadata-size-mb: 100, chunk-size-kb: 192, overprovision-ratio: 1}";
    let config = parse_pool(pool, "").unwrap();
    let pool = config.classes.get("ssd").unwrap().thin_pool.clone().unwrap();
    let share = pool.share.unwrap();
    assert_eq!((share.percent, share.metadata, share.chunk), (50, Some(100 << 20), 192 << 10));
}

#[test]
fn disk_group_pool_serves_one_class_and_the_rest_another() {
    let thin = "{name: t, volume-group: ssd, type: thin, thin-pool: {name: pool, overprovision-ratio: 2}}";
    let config = parse_pool("{}", &format!("\ndevice-classes: [{thin}, {{name: rest, volume-group: ssd}}]")).unwrap();
    let names: Vec<_> = config.classes.iter().map(|class| class.name.as_str()).collect();
    assert_eq!(names, ["t", "rest"]);
    assert!(config.classes.iter().all(|class| class.optional));
    assert!(config.classes.get("t").unwrap().thin_pool.as_ref().unwrap().share.is_some());
    assert_eq!(config.warnings, [""; 0]);
    // A class of its own beside a thick one
    let config = parse_pool("{overprovision-ratio: 1}", "\ndevice-classes: [{name: rest, volume-group: ssd}]").unwrap();
    assert!(config.classes.get("ssd").unwrap().thin_pool.is_some());
}

#[rstest]
#[case("{}", "overprovision-ratio is missing")]
#[case("{overprovision-ratio: 0.5}", "less than 1.0")]
#[case("{overprovision-ratio: 1, name: -a}", "thin-pool: ")]
#[case("{overprovision-ratio: 1, size-percent: 0}", "size-percent is 0")]
#[case("{overprovision-ratio: 1, size-percent: 101}", "size-percent must be a whole number from 0 to 100")]
#[case("{overprovision-ratio: 1, metadata-size-mb: 1}", "metadata-size-mb is less than the minimum of 2")]
#[case("{overprovision-ratio: 1, metadata-size-mb: 16193}", "metadata-size-mb must be a whole number from 0 to 16192")]
#[case("{overprovision-ratio: 1, chunk-size-kb: 0}", "not a multiple of 64")]
#[case("{overprovision-ratio: 1, chunk-size-kb: 100}", "not a multiple of 64")]
#[case("{overprovision-ratio: 1, chunk-size-kb: 1048640}", "chunk-size-kb must be a whole number from 0 to 1048576")]
#[case("pool", "thin-pool must be a mapping")]
fn mistakes_about_a_pool_are_named(#[case] pool: &str, #[case] expected: &str) {
    let said = parse_pool(pool, "").unwrap_err();
    assert!(said.starts_with("lvmd.yaml:1: ") && said.contains(expected), "{said}");
}

#[test]
fn the_ratio_of_a_configured_pool_is_not_said_again() {
    let thin = "{name: t, volume-group: ssd, type: thin, thin-pool: {name: pool, overprovision-ratio: 2}}";
    let said = parse_pool("{overprovision-ratio: 2}", &format!("\ndevice-classes: [{thin}]")).unwrap_err();
    assert!(said.contains("remove overprovision-ratio from the disk group"), "{said}");
}
