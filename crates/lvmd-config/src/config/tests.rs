//! Tests of the configuration file: valid and invalid ones, and the messages.

use rstest::rstest;

use super::*;
use crate::device_class::ThinPool;

fn parse(text: &str) -> Result<Config, Vec<String>> {
    Config::parse("lvmd.yaml", text).map_err(|error| error.0)
}

fn classes(entries: &str) -> Result<DeviceClasses, Vec<String>> {
    parse(&format!("device-classes: [{entries}]")).map(|config| config.classes)
}

#[test]
fn the_whole_file_is_understood() {
    let config = parse(
        r#"
socket-name: /run/lvmd.sock
lvm-command-prefix: ["nsenter", "/sbin/lvm"]
device-classes:
  - name: ssd
    volume-group: vg-ssd
    default: true
    spare-gb: 5
    stripe: 2
    stripe-size: 64K
    lvcreate-options: ["--readahead=8"]
  - name: hdd_1.x
    volume-group: vg-hdd
    type: thick
lvcreate-option-classes:
  - name: mirrored
    options: ["--type=raid1"]
"#,
    )
    .unwrap();
    assert_eq!(config.socket, PathBuf::from("/run/lvmd.sock"));
    assert_eq!(config.lvm_command_prefix.unwrap(), ["nsenter", "/sbin/lvm"]);
    assert_eq!(config.warnings, Vec::<String>::new());
    let striping = Striping { stripes: NonZeroU32::new(2).unwrap(), stripe_size: Some("64K".to_owned()) };
    let ssd = DeviceClass {
        name: "ssd".to_owned(),
        volume_group: "vg-ssd".parse().unwrap(),
        optional: false,
        thin_pool: None,
        default: true,
        spare: 5 << 30,
        striping: Some(striping.clone()),
        lvcreate_options: vec!["--readahead=8".to_owned()],
        has_unproven_options: false,
        layout: Layout::parse(&["--readahead=8".to_owned()], Some(&striping)),
        wipe: None,
    };
    assert_eq!(**config.classes.get("ssd").unwrap(), ssd);
    assert_eq!(**config.classes.get("").unwrap(), ssd);
    let hdd = config.classes.get("hdd_1.x").unwrap();
    assert_eq!((hdd.spare, hdd.default, &hdd.striping), (10 << 30, false, &None));
    assert_eq!(config.classes.option_class("mirrored").unwrap().options, ["--type=raid1"]);
    assert_eq!(config.classes.option_class("other"), None);
}

#[test]
fn defaults_stand_in_for_what_is_left_out() {
    let config = parse("device-classes: [{name: a, volume-group: vg}]").unwrap();
    assert_eq!(config.socket, PathBuf::from("/run/topolvm/lvmd.sock"));
    assert_eq!(config.lvm_command_prefix, None);
    assert_eq!(config.classes.get(""), None);
}

#[rstest]
#[case("", None)]
#[case("wipe: none,", None)]
#[case("wipe: discard,", Some(Wipe::Discard))]
#[case("Wipe: zero,", Some(Wipe::Zero))]
fn a_class_says_how_its_volumes_are_wiped(#[case] wipe: &str, #[case] expected: Option<Wipe>) {
    let config = parse(&format!("device-classes: [{{name: a, {wipe} volume-group: vg}}]")).unwrap();
    assert_eq!(config.classes.get("a").unwrap().wipe, expected);
}

#[rstest]
#[case("shred", "lvmd.yaml:3: device class \"a\": unknown wipe \"shred\"; use none, discard or zero")]
#[case("true", "lvmd.yaml:3: wipe must be a string; put it in quotes")]
fn a_way_to_wipe_that_is_none_is_refused_with_its_line(#[case] wipe: &str, #[case] expected: &str) {
    let error = parse(&format!("device-classes:\n- name: a\n  wipe: {wipe}\n  volume-group: vg")).unwrap_err();
    assert_eq!(error, [expected]);
}

#[test]
fn users_and_groups_that_may_use_the_socket_are_numbers() {
    let with = |keys: &str| parse(&format!("{keys}\ndevice-classes: [{{name: a, volume-group: vg}}]"));
    assert_eq!(with("").unwrap().peers, Peers::default());
    let peers = Peers { uids: [1000, 4_294_967_294].into(), gids: [7].into() };
    assert_eq!(with("allowed-uids: [1000, 4294967294]\nallowed-gids: [7]").unwrap().peers, peers);
    let mistakes = with("allowed-uids: [-1, 4294967295]\nallowed-gids: [disk]").unwrap_err();
    let expected = [
        "lvmd.yaml:1: each entry of allowed-uids must be a whole number from 0 to 4294967294",
        "lvmd.yaml:1: each entry of allowed-uids must be a whole number from 0 to 4294967294",
        "lvmd.yaml:2: each entry of allowed-gids must be a whole number from 0 to 4294967294",
    ];
    assert_eq!(mistakes, expected);
    assert_eq!(with("allowed-uids: 0").unwrap_err(), ["lvmd.yaml:1: allowed-uids must be a list"]);
}

#[test]
fn a_thin_class_keeps_only_a_spare_that_is_written_down() {
    let pool = "type: thin, thin-pool: {name: pool, overprovision-ratio: 1.0}";
    let classes = classes(&format!(
        "{{name: plain, volume-group: vg, {pool}}}, {{name: kept, volume-group: vg2, spare-gb: 3, {pool}}}, {{name: \
         thick, volume-group: vg}}"
    ))
    .unwrap();
    let spare = |class: &str| classes.get(class).unwrap().spare >> 30;
    assert_eq!((spare("plain"), spare("kept"), spare("thick")), (0, 3, 10));
}

#[test]
fn a_spare_of_zero_is_not_the_default_spare() {
    let classes = classes("{name: a, volume-group: vg, spare-gb: 0}").unwrap();
    assert_eq!(classes.get("a").unwrap().spare, 0);
}

#[test]
fn zero_stripes_mean_no_striping() {
    let classes = classes("{name: a, volume-group: vg, stripe: 0, stripe-size: 4k}").unwrap();
    assert_eq!(classes.get("a").unwrap().striping, None);
}

#[test]
fn keys_are_read_in_any_case() {
    let config =
        parse("Device-Classes: [{NAME: a, Volume-Group: vg, Spare-GB: 1, DEFAULT: true}]\nSOCKET-NAME: /s").unwrap();
    assert_eq!(config.socket, PathBuf::from("/s"));
    assert_eq!(config.classes.get("").unwrap().spare, 1 << 30);
    assert_eq!(config.warnings, Vec::<String>::new());
}

#[test]
fn unknown_keys_are_reported_and_harmless() {
    let config = parse("colour: red\ndevice-classes:\n- name: a\n  volume-group: vg\n  sparegb: 3\n").unwrap();
    let expected =
        ["lvmd.yaml:5: unknown key \"sparegb\" is ignored", "lvmd.yaml:1: unknown key \"colour\" is ignored"];
    assert_eq!(config.warnings, expected);
}

#[test]
fn of_option_classes_with_one_name_the_last_counts() {
    let config = parse(
        "device-classes: [{name: a, volume-group: vg}]\nlvcreate-option-classes: [{name: o, options: [one]}, {name: o, \
         options: [two]}]",
    )
    .unwrap();
    assert_eq!(config.classes.option_class("o").unwrap().options, ["two"]);
}

#[rstest]
#[case("4")]
#[case("4m")]
#[case("4G")]
#[case("512b")]
fn stripe_sizes(#[case] size: &str) {
    assert!(classes(&format!("{{name: a, volume-group: vg, stripe: 2, stripe-size: '{size}'}}")).is_ok());
}

#[test]
fn a_number_stands_for_its_text() {
    let classes = classes("{name: 1, volume-group: vg, stripe: 2, stripe-size: 4}").unwrap();
    assert_eq!(classes.get("1").unwrap().striping.as_ref().unwrap().stripe_size.as_deref(), Some("4"));
}

#[test]
fn a_thick_class_may_carry_a_thin_pool() {
    assert!(classes("{name: a, volume-group: vg, type: thick, thin-pool: {name: p}}").is_ok());
}

#[test]
fn one_thick_and_several_thin_classes_share_a_volume_group() {
    let classes = classes(
        "{name: a, volume-group: vg}, \
         {name: b, volume-group: vg, type: thin, thin-pool: {name: p, overprovision-ratio: 1.0}}, \
         {name: c, volume-group: vg, type: thin, thin-pool: {name: q, overprovision-ratio: 2.5}}, \
         {name: d, volume-group: vg2, type: thin, thin-pool: {name: p, overprovision-ratio: 3}}",
    )
    .unwrap();
    let pool = |class: &str| classes.get(class).unwrap().thin_pool.clone();
    let expected = |name: &str, ratio: &str| {
        Some(ThinPool {
            name: name.parse().unwrap(),
            overprovision: ratio.parse().unwrap(),
            threshold: 100,
            share: None,
            growth: None,
        })
    };
    assert_eq!(pool("a"), None);
    assert_eq!(pool("b"), expected("p", "1"));
    assert_eq!(pool("c"), expected("q", "2.5"));
    assert_eq!(pool("d"), expected("p", "3"));
    assert_eq!(classes.volume_groups().len(), 2);
}

#[test]
fn stripes_of_a_thin_class_have_no_effect_and_are_reported() {
    let config = parse(
        "device-classes: [{name: a, volume-group: vg, stripe: 2, type: thin, thin-pool: {name: p, overprovision-ratio: \
         2}}]",
    )
    .unwrap();
    assert_eq!(config.classes.get("a").unwrap().striping, None);
    assert!(config.warnings[0].contains("stripe has no effect on thin volumes"), "{:?}", config.warnings);
}

#[rstest]
#[case::none("", "no device class is configured")]
#[case::no_name("{volume-group: vg}", r#"device class "": it has no name"#)]
#[case::bad_name("{name: -a, volume-group: vg}", r#"device class "-a": a name consists of letters"#)]
#[case::bad_end("{name: a., volume-group: vg}", r#"device class "a.": a name consists of letters"#)]
#[case::no_group("{name: a}", r#"device class "a": volume-group is missing"#)]
#[case::bad_group(
    "{name: a, volume-group: '--help'}",
    r#"invalid volume group name "--help": it begins with a hyphen"#
)]
#[case::same_name(
    "{name: a, volume-group: vg}, {name: a, volume-group: vg2}",
    r#"device class "a": another class has the same name"#
)]
#[case::same_group(
    "{name: a, volume-group: vg}, {name: b, volume-group: vg}",
    r#"vg already belongs to device class "a""#
)]
#[case::two_defaults(
    "{name: a, volume-group: vg, default: true}, {name: b, volume-group: vg2, default: true}",
    "more than one default device class: a, b"
)]
#[case::unknown_type("{name: a, volume-group: vg, type: fat}", r#"unknown type "fat""#)]
#[case::thin_without_pool(
    "{name: a, volume-group: vg, type: thin}",
    r#"device class "a": a class of type thin requires a thin-pool"#
)]
#[case::pool_without_name(
    "{name: a, volume-group: vg, type: thin, thin-pool: {overprovision-ratio: 2}}",
    r#"device class "a": thin-pool: it has no name"#
)]
#[case::pool_with_a_bad_name(
    "{name: a, volume-group: vg, type: thin, thin-pool: {name: -y, overprovision-ratio: 2}}",
    r#"invalid logical volume name "-y""#
)]
#[case::pool_without_ratio(
    "{name: a, volume-group: vg, type: thin, thin-pool: {name: p}}",
    r#"device class "a": thin-pool: overprovision-ratio is missing"#
)]
#[case::small_ratio(
    "{name: a, volume-group: vg, type: thin, thin-pool: {name: p, overprovision-ratio: 0.99}}",
    r#"device class "a": thin-pool: overprovision-ratio 0.99: it is less than 1.0"#
)]
#[case::endless_ratio(
    "{name: a, volume-group: vg, type: thin, thin-pool: {name: p, overprovision-ratio: .inf}}",
    "non-finite float"
)]
#[case::text_ratio(
    "{name: a, volume-group: vg, type: thin, thin-pool: {name: p, overprovision-ratio: '2'}}",
    "overprovision-ratio must be a number"
)]
#[case::same_pool(
    "{name: a, volume-group: vg, type: thin, thin-pool: {name: p, overprovision-ratio: 2}}, {name: b, volume-group: \
     vg, type: thin, thin-pool: {name: p, overprovision-ratio: 3}}",
    r#"device class "b": thin pool vg/p already belongs to device class "a""#
)]
#[case::stripe_size(
    "{name: a, volume-group: vg, stripe: 2, stripe-size: 4gib}",
    r#"stripe-size "4gib" is not a number"#
)]
#[case::stripe_size_unit(
    "{name: a, volume-group: vg, stripe: 2, stripe-size: k}",
    r#"stripe-size "k" is not a number"#
)]
#[case::negative_spare("{name: a, volume-group: vg, spare-gb: -1}", "spare-gb must be a whole number")]
#[case::huge_spare(
    "{name: a, volume-group: vg, spare-gb: 17179869184}",
    "spare-gb must be a whole number from 0 to 17179869183"
)]
#[case::text_spare("{name: a, volume-group: vg, spare-gb: ten}", "spare-gb must be a whole number")]
#[case::yes_is_no_name("{name: yes, volume-group: vg}", "name must be a string; put it in quotes")]
#[case::no_mapping("a", "each entry of device-classes must be a mapping")]
fn mistakes_are_named(#[case] entries: &str, #[case] expected: &str) {
    let problems = classes(entries).unwrap_err();
    assert!(problems.iter().any(|problem| problem.contains(expected)), "{problems:#?}");
}

#[test]
fn a_name_of_63_characters_is_the_longest() {
    assert!(classes(&format!("{{name: {}, volume-group: vg}}", "a".repeat(63))).is_ok());
    let problems = classes(&format!("{{name: {}, volume-group: vg}}", "a".repeat(64))).unwrap_err();
    assert!(problems.iter().any(|problem| problem.contains("63")), "{problems:#?}");
}

#[test]
fn all_mistakes_are_reported_together_with_their_lines() {
    let problems = parse(
        "device-classes:\n- name: ssd\n  volume-group: vg\n  spare-gb: many\n- name: hdd\n- name: hdd\n  volume-group: \
         vg\n  type: fat\n",
    )
    .unwrap_err();
    insta::assert_snapshot!(problems.join("\n"), @r#"
    lvmd.yaml:4: spare-gb must be a whole number from 0 to 17179869183
    lvmd.yaml:5: device class "hdd": volume-group is missing; set it to the volume group of its volumes
    lvmd.yaml:6: device class "hdd": another class has the same name; use unique names
    lvmd.yaml:6: device class "hdd": unknown type "fat"; use thick or thin
    lvmd.yaml:6: device class "hdd": volume group vg already belongs to device class "ssd"
    "#);
}

#[rstest]
#[case("")]
#[case("[]")]
#[case("device-classes: {}")]
#[case("device-classes: [\n")]
#[case("\tx")]
fn a_file_that_is_something_else_is_refused(#[case] text: &str) {
    let problems = parse(text).unwrap_err();
    assert!(problems[0].starts_with("lvmd.yaml:"), "{problems:?}");
}

#[test]
fn a_missing_file_says_what_to_do() {
    let error = load(Path::new("/nonexistent/lvmd.yaml")).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/lvmd.yaml") && error.contains("--config"), "{error}");
}

#[rstest]
#[case("[\"--mirrors 1\"]", "\"--mirrors 1\" is passed to lvcreate as one argument; write \"--mirrors=1\"")]
#[case("[-y]", "-y: lvmd or the class already sets --yes, and LVM refuses a second one")]
#[case("[--no-such-option]", "lvcreate has no option --no-such-option")]
fn options_that_lvm_refuses_are_refused_with_their_line(#[case] options: &str, #[case] reason: &str) {
    let text = format!(
        "device-classes:\n- name: a\n  volume-group: vg\n  lvcreate-options: {options}\nlvcreate-option-classes:\n- \
         name: o\n  options: {options}\n"
    );
    let expected = [
        format!("lvmd.yaml:7: lvcreate-option-class \"o\": options would be refused by LVM: {reason}"),
        format!("lvmd.yaml:4: device class \"a\": lvcreate-options would be refused by LVM: {reason}"),
    ];
    assert_eq!(parse(&text).unwrap_err(), expected);
}

#[test]
fn options_of_unknown_effect_are_accepted_with_a_warning() {
    let config =
        parse("device-classes: [{name: a, volume-group: vg, lvcreate-options: [--type=raid1, /dev/sdb]}]").unwrap();
    let class = config.classes.get("a").unwrap();
    assert_eq!((class.layout.to_string().as_str(), class.has_unproven_options), ("raid1, 2 copies", true));
    let expected = "lvmd.yaml:1: device class \"a\": its published capacity may exceed what LVM can allocate: /dev/sdb \
                    is not an option; physical volumes cannot be listed here";
    assert_eq!(config.warnings, [expected]);
}

#[test]
fn keys_given_twice_are_read_as_the_last_with_a_warning() {
    let config = parse(
        "device-classes:\n- {name: lost, volume-group: vg}\ndevice-classes:\n- name: a\n  volume-group: vg\n  \
         spare-gb: 10\n  Spare-GB: 2.0\n  spare-gb: 3.0\n",
    )
    .unwrap();
    let classes: Vec<_> = config.classes.iter().map(|class| (class.name.as_str(), class.spare >> 30)).collect();
    assert_eq!(classes, [("a", 3)]);
    let expected = [
        "lvmd.yaml:2: device-classes is set more than once; the value in line 4 is used",
        "lvmd.yaml:6: spare-gb is set more than once; the value in line 8 is used",
    ];
    assert_eq!(config.warnings, expected);
}

#[rstest]
#[case("spare-gb: 10.0", Ok(10))]
#[case("spare-gb: 1e1", Ok(10))]
#[case("spare-gb: 010", Ok(8))]
#[case("spare-gb: 0x10", Ok(16))]
#[case("spare-gb: 10.5", Err("lvmd.yaml:4: spare-gb must be a whole number from 0 to 17179869183"))]
#[case("overhead-factor: 1.0", Ok(10))]
#[case(
    "overhead-factor: 1.1",
    Err(
        "lvmd.yaml:4: device class \"a\": overhead-factor is a key of another program and not supported by lvmd; \
         remove it, and reserve that part of the volume group with spare-gb"
    )
)]
fn numbers_are_read_as_go_reads_them(#[case] key: &str, #[case] expected: Result<u64, &str>) {
    let parsed = parse(&format!("device-classes:\n- name: a\n  volume-group: vg\n  {key}\n"));
    let spare = parsed.map(|config| config.classes.get("a").unwrap().spare >> 30);
    assert_eq!(spare, expected.map_err(|expected| vec![expected.to_owned()]));
}

#[test]
fn anchors_and_merges_are_read() {
    let config = parse(
        "x-defaults: &defaults {spare-gb: 0, volume-group: other}\nsocket-name: ''\ndevice-classes:\n- <<: \
         *defaults\n  name: a\n  volume-group: vg\n",
    )
    .unwrap();
    let class = config.classes.get("a").unwrap();
    assert_eq!((class.volume_group.as_str(), class.spare), ("vg", 0));
    assert_eq!(config.socket, PathBuf::from("/run/topolvm/lvmd.sock"));
}

#[test]
fn tabs_are_named_with_their_line() {
    let expected = "lvmd.yaml:2: the line is indented with a tab, which YAML does not allow; use spaces";
    assert_eq!(parse("device-classes:\n\t- name: a\n").unwrap_err(), [expected]);
}
