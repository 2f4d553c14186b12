use super::*;

fn vg() -> VgName {
    "myvg1".parse().unwrap()
}

fn lv() -> LvName {
    "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a".parse().unwrap()
}

#[test]
fn words_reach_lvms_shell_as_they_are() {
    let line = |args: &[&str]| {
        let line = LvmCommand::new(Effect::Read, args.iter().copied()).shell_line()?;
        Some(line.replace(&format!("--config '{SETTINGS}' "), "SETTINGS "))
    };
    assert_eq!(line(&["lvs", "-o", "a,b"]).as_deref(), Some("lvs SETTINGS -o a,b"));
    assert_eq!(line(&["lvs", "a b", "", "x\"y", "it's"]).as_deref(), Some("lvs SETTINGS 'a b' '' 'x\"y' \"it's\""));
    assert_eq!(line(&["lvs", "'\""]), None);
    assert_eq!(line(&["lvs", "a\nlvremove"]), None);
    assert!(line(&["x"; MAX_SHELL_WORDS - 2]).is_some());
    assert_eq!(line(&["x"; MAX_SHELL_WORDS - 1]), None);
}

#[test]
fn lvm_config_option_merges_settings_of_an_administrator() {
    for options in [&["-Zn", "--config", "a/b=1", "x"][..], &["-Zn", "--config=a/b=1", "x"]] {
        let command = LvmCommand::new(Effect::Change, ["lvcreate"].into_iter().chain(options.iter().copied()));
        let settings = format!("{SETTINGS} {PROCESS_SETTINGS} a/b=1");
        assert_eq!(command.process_words(), ["lvcreate", "--config", &settings, "-Zn", "x"]);
        assert!(command.shell_line().unwrap().contains("config/checks=0 a/b=1' -Zn x"));
    }
}

#[test]
fn the_question_about_the_hosts_settings_is_asked_without_ours() {
    let command = LvmCommand::host_settings();
    assert_eq!(command.process_words(), command.args());
}

#[test]
fn a_report_asks_for_everything_at_once() {
    let (a, b) = (vg(), "b".parse().unwrap());
    insta::assert_snapshot!(
        LvmCommand::report([&a, &b]),
        @"fullreport --noheadings --nameprefixes --units b --nosuffix --configreport vg -o vg_name,vg_uuid,\
          vg_seqno,vg_size,vg_free,vg_extent_size,vg_missing_pv_count,vg_tags,pv_count,lv_count,max_lv,\
          vg_permissions,vg_systemid,vg_exported --configreport lv -o lv_uuid,lv_name,lv_path,lv_size,\
          lv_kernel_major,lv_kernel_minor,origin,origin_size,pool_lv,\
          lv_tags,lv_attr,data_percent,metadata_percent,lv_metadata_size --configreport pv -o pv_name,\
          pv_uuid,pv_major,pv_minor,pv_size,pv_free,pv_missing,pv_allocatable,pv_tags -O vg_name --configreport pvseg \
          -o pv_uuid,pvseg_start,pvseg_size -S segtype=free --configreport seg -o lv_uuid,segtype,stripes -S \
          'segtype!=linear&&segtype!=thin&&segtype!=thin-pool' myvg1 b"
    );
}

#[test]
fn creating_a_plain_volume() {
    let (vg, name) = (vg(), lv());
    let volume =
        NewVolume { vg: &vg, pool: None, name: &name, bytes: 1 << 30, tags: &[], striping: None, options: &[] };
    insta::assert_snapshot!(
        LvmCommand::create(&volume),
        @"lvcreate -n 0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a -L 1073741824b -W y -y myvg1"
    );
}

#[test]
fn creating_a_volume_with_everything() {
    let (vg, name) = (vg(), lv());
    let volume = NewVolume {
        vg: &vg,
        pool: None,
        name: &name,
        bytes: 4096,
        tags: &["a=b".parse().unwrap(), "c&d".parse().unwrap()],
        striping: Some(&Striping { stripes: NonZeroU32::new(2).unwrap(), stripe_size: Some("64k".to_owned()) }),
        options: &["--type=raid1".to_owned(), "it's".to_owned()],
    };
    insta::assert_snapshot!(
        LvmCommand::create(&volume),
        @"lvcreate -n 0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a -L 4096b -W y -y --addtag a=b --addtag 'c&d' -i 2 -I \
          64k --type=raid1 'it'\\''s' myvg1"
    );
}

#[test]
fn creating_a_thin_volume() {
    let (vg, name, pool) = (vg(), lv(), "pool0".parse().unwrap());
    let volume = NewVolume {
        vg: &vg,
        pool: Some(&pool),
        name: &name,
        bytes: 8192,
        tags: &["t".parse().unwrap()],
        striping: None,
        options: &["--readahead=8".to_owned()],
    };
    insta::assert_snapshot!(
        LvmCommand::create(&volume),
        @"lvcreate -T myvg1/pool0 -n 0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a -V 8192b -W y -y --addtag t \
          --readahead=8"
    );
}

#[test]
fn creating_a_snapshot() {
    let (vg, source, name) = (vg(), lv(), "s".parse().unwrap());
    let snapshot = NewSnapshot { vg: &vg, source: &source, name: &name, tags: &[], read_only: false };
    insta::assert_snapshot!(
        LvmCommand::snapshot(&snapshot),
        @"lvcreate -s -k n -n s myvg1/0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a"
    );
    let snapshot = NewSnapshot { tags: &["t".parse().unwrap()], read_only: true, ..snapshot };
    insta::assert_snapshot!(
        LvmCommand::snapshot(&snapshot),
        @"lvcreate -s -k n -n s -p r --addtag t myvg1/0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a"
    );
}

#[test]
fn resizing_removing_and_tagging() {
    insta::assert_snapshot!(
        LvmCommand::extend(&vg(), &lv(), 8192),
        @"lvextend -y -L 8192b myvg1/0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a"
    );
    insta::assert_snapshot!(
        LvmCommand::refresh(&vg(), &lv()),
        @"lvchange --refresh myvg1/0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a"
    );
    insta::assert_snapshot!(
        LvmCommand::remove(&vg(), &lv()),
        @"lvremove -f myvg1/0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a"
    );
    insta::assert_snapshot!(
        LvmCommand::remove_selected(&vg(), "ejNx40-Wq3e", Some("topolvm.io/making=/run/a.sock#1.0")),
        @r#"lvremove -f -S 'lv_uuid=ejNx40-Wq3e&&lv_tags={"topolvm.io/making=/run/a.sock#1.0"}' myvg1"#
    );
    let tags = ["a".parse().unwrap()];
    insta::assert_snapshot!(
        LvmCommand::change_tags_of(&vg(), "ejNx40", &tags, &[]),
        @"lvchange --addtag a -S lv_uuid=ejNx40 myvg1"
    );
    insta::assert_snapshot!(
        LvmCommand::remove_selected(&vg(), "ejNx40", None),
        @"lvremove -f -S lv_uuid=ejNx40 myvg1"
    );
    insta::assert_snapshot!(
        LvmCommand::change_tags(&vg(), &lv(), &["a".parse().unwrap()], &["b".parse().unwrap()]),
        @"lvchange --addtag a --deltag b myvg1/0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a"
    );
}

#[test]
fn only_reports_may_be_stopped_half_way() {
    assert_eq!(LvmCommand::report([]).effect(), Effect::Read);
    assert_eq!(LvmCommand::remove(&vg(), &lv()).effect(), Effect::Change);
    assert_eq!(LvmCommand::extend(&vg(), &lv(), 1).effect(), Effect::Change);
}

#[test]
fn a_piece_is_moved_by_the_process_that_is_started() {
    insta::assert_snapshot!(
        LvmCommand::move_extents("/dev/sdb", (5, 260), Some("/dev/sdc")),
        @"pvmove --config global/use_lvmpolld=0 --alloc anywhere -i 1 /dev/sdb:5-260 /dev/sdc"
    );
}

#[test]
fn a_physical_volume_is_closed_and_tagged_at_once() {
    let tag: Tag = "topolvm.io/evacuate=keep:0".parse().unwrap();
    insta::assert_snapshot!(
        LvmCommand::change_pv("/dev/sdb", false, &[tag], &[]),
        @"pvchange -x n --addtag topolvm.io/evacuate=keep:0 /dev/sdb"
    );
}
