//! Flags, as clap knows them.

use clap::builder::ArgAction;
use clap::{Arg, Command};

use super::{code, table};

/// All flags of a program that are not hidden.
pub(super) fn of(mut program: Command) -> String {
    program.build();
    let flags = program.get_arguments().filter(|flag| !flag.is_hide_set() && flag.get_long().is_some());
    let flags = flags.filter(|flag| !matches!(flag.get_action(), ArgAction::Help | ArgAction::Version));
    table(["Flag", "Default", "Meaning"], flags.map(|flag| [name(flag), default(flag), meaning(flag)]))
}

/// The flags of a program with commands: those of all commands, and then those of each. A flag that several commands
/// share has one row.
pub(super) fn of_commands(mut program: Command) -> String {
    program.build();
    let global = program.get_arguments().filter(|flag| flag.is_global_set() && flag.get_long().is_some());
    let mut rows: Vec<_> = global.map(|flag| row("all".to_owned(), flag)).collect();
    rows.extend(program.get_subcommands().flat_map(|command| of_command("", command)));
    table(["Command", "Flag", "Meaning"], merge_commands(rows))
}

/// Returns the rows of a command below `parent`, and of the commands below it.
fn of_command(parent: &str, command: &Command) -> Vec<[String; 3]> {
    let path = format!("{parent}{}", command.get_name());
    let flags = command.get_arguments().filter(|flag| !flag.is_global_set() && flag.get_long().is_some());
    let flags = flags.filter(|flag| !matches!(flag.get_action(), ArgAction::Help | ArgAction::Version));
    let own = flags.map(|flag| row(code(&path), flag));
    let below = command.get_subcommands().flat_map(|below| of_command(&format!("{path} "), below));
    own.chain(below).collect()
}

/// Returns the row of a flag of a command. Few of these flags have a default, which is a part of the meaning.
fn row(command: String, flag: &Arg) -> [String; 3] {
    let (meaning, default) = (meaning(flag), default(flag));
    let meaning = if default.is_empty() { meaning } else { format!("{meaning} [default: {default}]") };
    [command, name(flag), meaning]
}

/// Merges rows that differ in their command only.
fn merge_commands(rows: Vec<[String; 3]>) -> Vec<[String; 3]> {
    let mut merged: Vec<[String; 3]> = Vec::new();
    for row in rows {
        match merged.iter_mut().find(|other| other[1..] == row[1..]) {
            Some(other) => other[0] = format!("{}, {}", other[0], row[0]),
            None => merged.push(row),
        }
    }
    merged
}

fn name(flag: &Arg) -> String {
    let values: Vec<&str> = flag.get_value_names().unwrap_or_default().iter().map(clap::builder::Str::as_str).collect();
    let long = flag.get_long().unwrap_or_default();
    // A switch has no value
    let values = if is_switch(flag) { String::new() } else { values.join(" ") };
    let flag_and_value =
        if flag.is_require_equals_set() { format!("--{long}[={values}]") } else { format!("--{long} {values}") };
    let text = code(flag_and_value.trim_end());
    match flag.get_env().and_then(std::ffi::OsStr::to_str) {
        Some(variable) => format!("{text}, {}", code(variable)),
        None => text,
    }
}

/// Returns true for a flag without a value.
fn is_switch(flag: &Arg) -> bool {
    matches!(flag.get_action(), ArgAction::SetTrue)
}

fn default(flag: &Arg) -> String {
    if is_switch(flag) {
        return String::new();
    }
    let values: Vec<&str> = flag.get_default_values().iter().filter_map(|value| value.to_str()).collect();
    code(&values.join(","))
}

fn meaning(flag: &Arg) -> String {
    let help = flag.get_long_help().or_else(|| flag.get_help()).map(ToString::to_string).unwrap_or_default();
    let values = flag.get_possible_values();
    let values: Vec<String> = values
        .iter()
        .filter(|value| !value.is_hide_set() && !["true", "false"].contains(&value.get_name()))
        .map(|value| match value.get_help() {
            Some(help) => format!("{}: {help}", code(value.get_name())),
            None => code(value.get_name()),
        })
        .collect();
    if values.is_empty() { help } else { format!("{help}. {}", values.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_of_several_commands_has_one_row() {
        let row = |command: &str, flag: &str| [command, flag, "m"].map(str::to_owned);
        let merged = merge_commands(vec![row("`a`", "`--x`"), row("`a`", "`--y`"), row("`b`", "`--x`")]);
        assert_eq!(merged, [row("`a`, `b`", "`--x`"), row("`a`", "`--y`")]);
    }
}
