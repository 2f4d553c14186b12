//! Settings of lvm.conf that change LVM's output and that administrators may use. A program that reads LVM's output
//! must not depend on them.

/// Lines of lvmlocal.conf, one or more for each setting.
pub const LVM_SETTINGS: [&str; 15] = [
    "report { binary_values_as_numeric=1 }",
    "report { compact_output=1 }",
    "report { quoted=0 }",
    "report { mark_hidden_devices=0 }",
    "report { columns_as_rows=1 }",
    "report { list_item_separator=\";\" }",
    "report { output_format=\"json\" }",
    "report { prefixes=1 headings=2 }",
    "report { separator=\",\" aligned=0 buffered=0 }",
    "log { command_names=1 }",
    "log { verbose=2 }",
    "global { units=\"h\" }",
    "global { units=\"S\" suffix=0 }",
    "global { si_unit_consistency=0 units=\"G\" }",
    "activation { auto_set_activation_skip=0 }",
];
