//! Turns a pattern that may match a part of a path into one that must match all of it.

/// Returns a pattern that matches the paths of all disks of which the given pattern matches a part. Where possible it
/// excludes links to disks: `sd+` becomes `/dev/[^/]*(?:sd+)[^/]*`.
pub(super) fn anchored(pattern: &str) -> String {
    // In `^a|b$` each anchor is for its own part
    let has_choice = pattern.contains('|');
    let start = pattern.strip_prefix('^').filter(|_| !has_choice);
    let rest = start.unwrap_or(pattern);
    let end = rest.strip_suffix('$').filter(|before| !has_choice && !before.ends_with('\\'));
    let inner = end.unwrap_or(rest);
    let after = if end.is_some() { "" } else { "[^/]*" };
    match inner.strip_prefix("/dev/") {
        Some(name) if !name.contains('/') && !has_choice => format!("/dev/{}{after}", grouped(name)),
        None if start.is_none() && !inner.contains(['/', '^']) => format!("/dev/[^/]*{}{after}", grouped(inner)),
        _ if has_choice => format!(".*(?:{pattern}).*"),
        _ => {
            let before = if start.is_some() { "" } else { ".*" };
            let after = if end.is_some() { "" } else { ".*" };
            format!("{before}{}{after}", grouped(inner))
        }
    }
}

/// Returns the pattern in parentheses where these matter.
fn grouped(pattern: &str) -> String {
    if pattern.contains('|') { format!("(?:{pattern})") } else { pattern.to_owned() }
}

#[cfg(test)]
mod tests {
    use lvmd_config::Pattern;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("sd+", "/dev/[^/]*sd+[^/]*", &["/dev/sda", "/dev/sddd"], &["/dev/vda", "/dev/disk/by-path/sda"])]
    #[case("/dev/sd", "/dev/sd[^/]*", &["/dev/sda"], &["/dev/xsda"])]
    #[case("^/dev/sdb$", "/dev/sdb", &["/dev/sdb"], &["/dev/sdbb", "/dev/sda"])]
    #[case("sd[b-c]$", "/dev/[^/]*sd[b-c]", &["/dev/sdb"], &["/dev/sdba"])]
    #[case("vdb|vdc", "/dev/[^/]*(?:vdb|vdc)[^/]*", &["/dev/vdb", "/dev/vdc"], &["/dev/vda"])]
    #[case("^/dev/vdb|vdc$", ".*(?:^/dev/vdb|vdc$).*", &["/dev/vdb", "/dev/vdc"], &["/dev/vda"])]
    #[case("^/d.*b", "/d.*b.*", &["/dev/sdb"], &["/dev/sda"])]
    fn what_matched_a_part_matches_the_whole(
        #[case] pattern: &str,
        #[case] expected: &str,
        #[case] matching: &[&str],
        #[case] others: &[&str],
    ) {
        let found = anchored(pattern);
        assert_eq!(found, expected);
        let found = Pattern::parse(&found).unwrap();
        assert!(matching.iter().all(|path| found.matches(path)), "{matching:?}");
        assert!(!others.iter().any(|path| found.matches(path)), "{others:?}");
    }
}
