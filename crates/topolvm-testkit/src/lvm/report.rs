//! `fullreport` in LVM's JSON, with exactly the fields that were asked for.

use lvm::Output;
use serde_json::{Value, json};

use super::state::{EXTENT, FakeVolume, Group, Refused, State};

impl State {
    pub(super) fn full_report(&self, args: &[&str]) -> Output {
        let (mut vg_fields, mut lv_fields, mut section) = ("", "", "");
        let mut asked = Vec::new();
        let mut words = args.iter();
        while let Some(word) = words.next() {
            match *word {
                "--reportformat" | "--units" => drop(words.next()),
                "--configreport" => section = words.next().copied().unwrap_or_default(),
                "-o" if section == "vg" => vg_fields = words.next().copied().unwrap_or_default(),
                "-o" if section == "lv" => lv_fields = words.next().copied().unwrap_or_default(),
                "--nosuffix" | "-o," => {}
                vg => asked.push(vg),
            }
        }
        let mut missing = Vec::new();
        let mut sections = Vec::new();
        if asked.is_empty() {
            asked = self.groups.keys().map(String::as_str).collect();
        }
        for vg in asked {
            let Some(group) = self.groups.get(vg) else {
                missing.push(vg);
                continue;
            };
            let volumes = group.volumes.iter();
            let volumes: Vec<_> = volumes
                .map(|(name, volume)| row(lv_fields, |field| of_volume(vg, name, volume, group, field)))
                .collect();
            sections.push(json!({
                "vg": [row(vg_fields, |field| of_group(vg, group, field))],
                "pv": [{}],
                "lv": volumes,
                "pvseg": [{}],
                "seg": [{}],
            }));
        }
        let stderr: String = missing.iter().map(|vg| Refused::no_group(vg).stderr).collect();
        let code = if stderr.is_empty() { 0 } else { 5 };
        Output { code: Some(code), stdout: json!({ "report": sections }).to_string().into_bytes(), stderr }
    }
}

fn row(fields: &str, value: impl Fn(&str) -> String) -> Value {
    fields
        .split(',')
        .map(|field| (field.to_owned(), Value::String(value(field))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn of_group(vg: &str, group: &Group, field: &str) -> String {
    match field {
        "vg_name" => vg.to_owned(),
        "vg_uuid" => group.uuid.clone(),
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
        "lv_uuid" => format!("uuid-of-{vg}-{name}"),
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
        "data_percent" | "metadata_percent" => String::new(),
        other => panic!("the fake LVM does not report {other}"),
    }
}
