//! The message in which kube-scheduler reports why a pod waits.

/// Returns the reasons of kube-scheduler's message `0/2 nodes are available: 2 Insufficient cpu, 1 ... .`, without the
/// numbers of nodes.
pub(crate) fn scheduling_reasons(message: &str) -> Vec<&str> {
    let Some((_, reasons)) = message.split_once("nodes are available: ") else { return Vec::new() };
    // The rest is about preemption
    let reasons = reasons.split(". ").next().unwrap_or_default().trim_end_matches('.');
    reasons.split(", ").map(without_number).collect()
}

/// Returns a reason without the number of nodes before it.
fn without_number(reason: &str) -> &str {
    match reason.split_once(' ') {
        Some((number, rest)) if number.chars().all(|c| c.is_ascii_digit()) => rest,
        Some(_) | None => reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_those_of_nodes_and_not_of_preemption() {
        let message = "0/3 nodes are available: 2 Insufficient topolvm.io/capacity, 1 node(s) had untolerated \
            taint(s). preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod.";
        let expected = ["Insufficient topolvm.io/capacity", "node(s) had untolerated taint(s)"];
        assert_eq!(scheduling_reasons(message), expected);
        assert_eq!(scheduling_reasons("no nodes available to schedule pods"), [""; 0]);
        let message = "0/1 nodes are available: 1 Insufficient topolvm.io/capacity.";
        assert_eq!(scheduling_reasons(message), ["Insufficient topolvm.io/capacity"]);
    }
}
