//! `fullreport` in LVM's words, with exactly the fields that were asked for.

use lvm::Output;

use super::state::{EXTENT, FakeVolume, Group, Refused, State};

impl State {
    pub(super) fn full_report(&self, args: &[&str]) -> Output {
        let (mut vg_fields, mut pv_fields, mut area_fields, mut lv_fields) = ("", "", "", "");
        let (mut segment_fields, mut section) = ("", "");
        let mut asked = Vec::new();
        let mut words = args.iter();
        while let Some(word) = words.next() {
            match *word {
                "--units" | "-O" | "-S" => drop(words.next()),
                "--configreport" => section = words.next().copied().unwrap_or_default(),
                "-o" if section == "vg" => vg_fields = words.next().copied().unwrap_or_default(),
                "-o" if section == "pv" => pv_fields = words.next().copied().unwrap_or_default(),
                "-o" if section == "pvseg" => area_fields = words.next().copied().unwrap_or_default(),
                "-o" if section == "lv" => lv_fields = words.next().copied().unwrap_or_default(),
                "-o" if section == "seg" => segment_fields = words.next().copied().unwrap_or_default(),
                "--nosuffix" | "--noheadings" | "--nameprefixes" | "-o," => {}
                vg => asked.push(vg),
            }
        }
        let mut missing = Vec::new();
        let mut lines = Vec::new();
        if asked.is_empty() {
            asked = self.groups.keys().map(String::as_str).collect();
        }
        for vg in asked {
            let Some(group) = self.groups.get(vg) else {
                missing.push(vg);
                continue;
            };
            lines.push(row(vg_fields, |field| of_group(vg, group, field)));
            lines.extend((0..group.pvs).map(|pv| row(pv_fields, |field| of_physical_volume(group, pv, field))));
            lines.extend((0..group.pvs).map(|pv| row(area_fields, |field| of_free_area(group, pv, field))));
            let volumes = group.volumes.iter();
            lines.extend(
                volumes.map(|(name, volume)| row(lv_fields, |field| of_volume(vg, name, volume, group, field))),
            );
            let telling = group.volumes.values().filter(|volume| volume.segment_type().is_some());
            lines.extend(telling.map(|volume| row(segment_fields, |field| of_segment(volume, field))));
            lines.push("  ".to_owned());
        }
        let stderr: String = missing.iter().map(|vg| Refused::no_group(vg).stderr).collect();
        let code = if stderr.is_empty() { 0 } else { 5 };
        Output { code: Some(code), stdout: (lines.join("\n") + "\n").into_bytes(), stderr, ..Output::default() }
    }
}

impl State {
    pub(super) fn group_names(&self) -> String {
        self.groups.keys().map(|vg| row("vg_name", |_| vg.clone())).collect::<Vec<_>>().join("\n")
    }
}

fn row(fields: &str, value: impl Fn(&str) -> String) -> String {
    let fields = fields.split(',').map(|field| format!("LVM2_{}='{}'", field.to_uppercase(), value(field)));
    format!("  {}", fields.collect::<Vec<_>>().join(" "))
}

fn of_physical_volume(group: &Group, pv: u32, field: &str) -> String {
    let is_missing = pv < group.missing_pvs;
    match field {
        "pv_name" if is_missing => "[unknown]".to_owned(),
        "pv_name" => format!("/dev/fake{pv}"),
        "pv_uuid" => format!("{}-{pv}", group.uuid),
        "pv_major" | "pv_minor" if is_missing => "-1".to_owned(),
        "pv_major" => "8".to_owned(),
        "pv_minor" => pv.to_string(),
        "pv_free" => (group.free_extents_of(pv) * EXTENT).to_string(),
        "pv_missing" if is_missing => "missing".to_owned(),
        "pv_missing" => String::new(),
        "pv_allocatable" => "allocatable".to_owned(),
        other => panic!("the fake LVM does not report {other}"),
    }
}

/// All that is free on a disk is in one piece.
fn of_free_area(group: &Group, pv: u32, field: &str) -> String {
    match field {
        "pv_uuid" => format!("{}-{pv}", group.uuid),
        "pvseg_start" => "0".to_owned(),
        "pvseg_size" => group.free_extents_of(pv).to_string(),
        other => panic!("the fake LVM does not report {other}"),
    }
}

fn of_group(vg: &str, group: &Group, field: &str) -> String {
    match field {
        "vg_name" => vg.to_owned(),
        "vg_uuid" => group.uuid.clone(),
        "vg_seqno" => group.seqno.to_string(),
        "pv_count" => group.pvs.to_string(),
        "lv_count" => group.volumes.len().to_string(),
        "vg_size" => (group.extents * EXTENT).to_string(),
        "vg_free" => (group.free_extents() * EXTENT).to_string(),
        "vg_extent_size" => EXTENT.to_string(),
        "vg_missing_pv_count" => group.missing_pvs.to_string(),
        other => panic!("the fake LVM does not report {other}"),
    }
}

fn of_volume(vg: &str, name: &str, volume: &FakeVolume, group: &Group, field: &str) -> String {
    let device = |number: u32| {
        if volume.active { number.to_string() } else { "-1".to_owned() }
    };
    let origin_size = || {
        let origin = group.volumes.get(volume.origin.as_deref()?)?;
        Some(origin.bytes().to_string())
    };
    match field {
        "lv_uuid" => volume.uuid.clone(),
        "lv_name" => name.to_owned(),
        "lv_path" => format!("/dev/{vg}/{name}"),
        "lv_size" => volume.bytes().to_string(),
        "lv_kernel_major" => device(253),
        "lv_kernel_minor" => device(volume.minor),
        "origin" => volume.origin.clone().unwrap_or_default(),
        "origin_size" => origin_size().unwrap_or_default(),
        "pool_lv" => volume.pool.clone().unwrap_or_default(),
        "lv_tags" => volume.tags.join(","),
        "lv_attr" => volume.shown_attr(),
        "data_percent" if volume.attr.starts_with('t') => format!("{:.2}", volume.data_percent),
        "metadata_percent" if volume.attr.starts_with('t') => format!("{:.2}", volume.metadata_percent),
        "lv_metadata_size" if volume.attr.starts_with('t') => EXTENT.to_string(),
        "data_percent" | "metadata_percent" | "lv_metadata_size" => String::new(),
        other => panic!("the fake LVM does not report {other}"),
    }
}

fn of_segment(volume: &FakeVolume, field: &str) -> String {
    match field {
        "lv_uuid" => volume.uuid.clone(),
        "segtype" => volume.segment_type().unwrap_or("linear").to_owned(),
        "stripes" if volume.attr.starts_with('r') => (volume.allocated / (volume.extents + 1)).to_string(),
        "stripes" => volume.stripes.to_string(),
        other => panic!("the fake LVM does not report {other}"),
    }
}
