//! `fullreport` and `vgs`, with exactly the requested fields.

use lvm::Output;

use super::change::{Result, split_path};
use super::state::{CommandError, EXTENT, FakeVolume, Group, State};

/// The arguments of `fullreport`: volume groups, and the fields of each section of the report.
#[derive(Default)]
struct ReportRequest<'a> {
    vgs: Vec<&'a str>,
    vg_fields: &'a str,
    pv_fields: &'a str,
    area_fields: &'a str,
    lv_fields: &'a str,
    segment_fields: &'a str,
}

impl<'a> ReportRequest<'a> {
    fn parse(args: &[&'a str]) -> Self {
        let mut request = Self::default();
        let mut section = "";
        let mut words = args.iter().copied();
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap_or_default();
            match word {
                "--units" | "-O" | "-S" => drop(value()),
                "--configreport" => section = value(),
                "-o" if section == "vg" => request.vg_fields = value(),
                "-o" if section == "pv" => request.pv_fields = value(),
                "-o" if section == "pvseg" => request.area_fields = value(),
                "-o" if section == "lv" => request.lv_fields = value(),
                "-o" if section == "seg" => request.segment_fields = value(),
                "--nosuffix" | "--noheadings" | "--nameprefixes" | "-o," => {}
                vg => request.vgs.push(vg),
            }
        }
        request
    }

    /// Returns the lines about a group.
    fn report_group(&self, vg: &str, group: &Group) -> Vec<String> {
        let mut lines = vec![row(self.vg_fields, |field| of_group(vg, group, field))];
        lines.extend((0..group.pvs).map(|pv| row(self.pv_fields, |field| of_physical_volume(group, pv, field))));
        lines.extend((0..group.pvs).map(|pv| row(self.area_fields, |field| of_free_area(group, pv, field))));
        let volumes = group.volumes.iter();
        lines.extend(
            volumes.map(|(name, volume)| row(self.lv_fields, |field| of_volume(vg, name, volume, group, field))),
        );
        let with_segments = group.volumes.values().filter(|volume| volume.segment_type().is_some());
        lines.extend(with_segments.map(|volume| row(self.segment_fields, |field| of_segment(volume, field))));
        lines.push("  ".to_owned());
        lines
    }
}

impl State {
    pub(super) fn full_report(&self, args: &[&str], disks: Option<&[String]>) -> Output {
        let mut request = ReportRequest::parse(args);
        if request.vgs.is_empty() {
            request.vgs = self.groups.keys().map(String::as_str).collect();
        }
        let (mut lines, mut stderr) = (Vec::new(), String::new());
        for vg in &request.vgs {
            let is_visible = |group: &&Group| disks.is_none_or(|disks| group.pv_paths().any(|pv| disks.contains(&pv)));
            match self.groups.get(*vg).filter(is_visible) {
                Some(group) => lines.extend(request.report_group(vg, group)),
                None => stderr += &CommandError::no_group(vg).stderr,
            }
        }
        let code = if stderr.is_empty() { 0 } else { 5 };
        Output { code: Some(code), stdout: (lines.join("\n") + "\n").into_bytes(), stderr, ..Output::default() }
    }

    /// Reports whether dmeventd monitors a volume.
    pub(super) fn monitoring(&mut self, args: &[&str]) -> Result {
        let ["--noheadings", "--nameprefixes", "-o", fields @ "lv_name,seg_monitor", target] = args else {
            return Err(CommandError::usage("Invalid arguments"));
        };
        let (vg, name) = split_path(target)?;
        let volume = self.find_group(vg)?.volumes.get(name);
        let volume =
            volume.ok_or_else(|| CommandError::failed(format!("Failed to find logical volume \"{target}\"")))?;
        Ok(row(fields, |field| if field == "lv_name" { name } else { volume.monitoring }.to_owned()))
    }

    /// Lists the volumes of a group. It has no hidden ones.
    pub(super) fn all_volumes(&mut self, args: &[&str]) -> Result {
        let ["-a", "--noheadings", "--nameprefixes", "-o", fields @ "lv_name,lv_attr,segtype,lv_parent", vg] = args
        else {
            return Err(CommandError::usage("Invalid arguments"));
        };
        let group = self.find_group(vg)?;
        let volume = |(name, volume): (&String, &FakeVolume)| {
            row(fields, |field| match field {
                "lv_parent" => String::new(),
                "segtype" => of_segment(volume, field),
                field => of_volume(vg, name, volume, group, field),
            })
        };
        Ok(group.volumes.iter().map(volume).collect::<Vec<_>>().join("\n"))
    }

    /// Lists the physical volumes of all groups.
    pub(super) fn physical_volume_paths(&self) -> String {
        let row = |(group, pv): (&Group, u32)| row("pv_name,pv_uuid", |field| of_physical_volume(group, pv, field));
        let pvs = self.groups.values().flat_map(|group| (0..group.pvs).map(move |pv| (group, pv)));
        pvs.map(row).collect::<Vec<_>>().join("\n")
    }

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
        "pv_name" => group.pv_path(pv),
        "pv_uuid" => format!("{}-{pv}", group.uuid),
        "pv_major" | "pv_minor" if is_missing => "-1".to_owned(),
        "pv_major" => "8".to_owned(),
        "pv_minor" => pv.to_string(),
        "pv_size" => (group.extents_of(pv) * EXTENT).to_string(),
        "pv_free" => (group.free_extents_of(pv) * EXTENT).to_string(),
        "pv_missing" if is_missing => "missing".to_owned(),
        "pv_missing" | "pv_tags" => String::new(),
        "pv_allocatable" => "allocatable".to_owned(),
        other => panic!("the fake LVM does not report {other}"),
    }
}

/// Returns a field of the one free area of a disk.
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
        "vg_tags" => group.tags.join(","),
        "vg_seqno" => group.seqno.to_string(),
        "vg_systemid" => group.system_id.clone(),
        "vg_exported" if group.is_exported => "exported".to_owned(),
        "vg_exported" => String::new(),
        "pv_count" => group.pvs.to_string(),
        "lv_count" => group.volumes.len().to_string(),
        "vg_size" => (group.extents * EXTENT).to_string(),
        "vg_free" => (group.free_extents() * EXTENT).to_string(),
        "vg_extent_size" => EXTENT.to_string(),
        "vg_missing_pv_count" => group.missing_pvs.to_string(),
        "max_lv" => group.max_volumes.to_string(),
        "vg_permissions" => "writeable".to_owned(),
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
    // Only the kernel knows how full a pool is
    let is_active_pool = volume.active && volume.attr.starts_with('t');
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
        "lv_attr" => volume.reported_attr(),
        "data_percent" if is_active_pool => format!("{:.2}", volume.data_percent),
        "metadata_percent" if is_active_pool => format!("{:.2}", volume.metadata_percent),
        "lv_metadata_size" if volume.attr.starts_with('t') => (volume.metadata_extents * EXTENT).to_string(),
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
