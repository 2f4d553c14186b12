//! The calls and messages of lvmd, as `proto/lvmd.proto` has them.

use std::collections::HashMap;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto};

use super::{code, table};
use crate::tools::repository;

/// Number of `message_type` in a file and of `field` in a message, in the paths of comments.
const MESSAGE: i32 = 4;
const FIELD: i32 = 2;

fn file() -> anyhow::Result<FileDescriptorProto> {
    let directory = repository().join("proto");
    let mut compiler = protox::Compiler::new([&directory])?;
    let set = compiler.include_source_info(true).open_file("lvmd.proto")?.file_descriptor_set();
    set.file.into_iter().next_back().ok_or_else(|| anyhow::anyhow!("lvmd.proto is empty"))
}

/// Returns the table of calls with their request and answer.
pub(super) fn calls() -> anyhow::Result<String> {
    let file = file()?;
    let rows = file.service.iter().flat_map(|service| {
        service.method.iter().map(|method| {
            let call = format!("{}.{}/{}", file.package(), service.name(), method.name());
            let message = |name: &str| code(name.rsplit('.').next().unwrap_or_default());
            let stream = if method.server_streaming() { "a stream of " } else { "" };
            [code(&call), message(method.input_type()), format!("{stream}{}", message(method.output_type()))]
        })
    });
    Ok(table(["Call", "Request", "Answer"], rows))
}

/// The fields of all messages.
pub(super) fn messages() -> anyhow::Result<String> {
    let file = file()?;
    let comments = comments(&file);
    let mut rows = Vec::new();
    for (message, place) in file.message_type.iter().zip(0..) {
        rows.extend(fields(message, place, &comments));
    }
    Ok(table(["Message", "Field", "Number", "Type", "Meaning"], rows))
}

fn fields(message: &DescriptorProto, place: i32, comments: &HashMap<Vec<i32>, String>) -> Vec<[String; 5]> {
    let row = |(field, number): (&FieldDescriptorProto, i32)| {
        let meaning = comments.get(&vec![MESSAGE, place, FIELD, number]).cloned().unwrap_or_default();
        [code(message.name()), code(field.name()), field.number().to_string(), kind(field), meaning]
    };
    message.field.iter().zip(0..).map(row).collect()
}

fn kind(field: &FieldDescriptorProto) -> String {
    let kind = if field.r#type() == Type::Message {
        code(field.type_name().rsplit('.').next().unwrap_or_default())
    } else {
        field.r#type().as_str_name().trim_start_matches("TYPE_").to_lowercase()
    };
    if field.label() == Label::Repeated { format!("repeated {kind}") } else { kind }
}

/// Comments beside a field, by its path.
fn comments(file: &FileDescriptorProto) -> HashMap<Vec<i32>, String> {
    let locations = file.source_code_info.iter().flat_map(|info| &info.location);
    locations.map(|location| (location.path.clone(), location.trailing_comments().trim().to_owned())).collect()
}
