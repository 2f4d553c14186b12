// What is wrong now, and what to do about it.

import { announce, byId, command, count, element } from "./dom.js";

/** Findings that are shown before somebody asks for all. */
const FIRST = 4;
const KINDS = { fail: "Failed", warn: "Warning", unknown: "Unknown" };

let shown = "";
let showsAll = false;

/** Shows the findings of the checks, and how many volumes have a problem. `showVolumes` shows these. */
export function showProblems(summary, showVolumes) {
  const { checks, volumes } = summary;
  const now = JSON.stringify([checks?.findings, checks?.at, volumes.withProblem, showsAll]);
  // Rebuilt only when something is new, so that what somebody has selected or focused stays
  if (now === shown) return;
  shown = now;
  const findings = checks?.findings ?? [];
  const parts = [];
  if (volumes.withProblem > 0) {
    const link = element("button", { type: "button", class: "link", text: "Show them", onclick: showVolumes });
    const what = `${count(volumes.withProblem, "volume has", "volumes have")} a problem. `;
    parts.push(element("div", { class: "finding fail" }, element("p", {}, element("span", { class: "kind", text: "Volumes" }), what, link)));
  }
  parts.push(...findings.slice(0, showsAll ? undefined : FIRST).map(finding));
  if (findings.length > FIRST) {
    const text = showsAll ? "Show fewer" : `Show all ${findings.length} findings`;
    const toggle = () => {
      showsAll = !showsAll;
      showProblems(summary, showVolumes);
      byId("problems-body").querySelector(".plain")?.focus();
      announce(showsAll ? `${findings.length} findings` : `${FIRST} findings`);
    };
    parts.push(element("button", { type: "button", class: "plain", text, onclick: toggle }));
  }
  if (checks?.more) parts.push(element("p", { class: "quiet", text: `${count(checks.more, "more finding")}: kubectl topolvm doctor shows all.` }));
  if (parts.length === 0 && checks) parts.push(element("p", { class: "well", text: "No problem found." }));
  parts.push(element("p", { class: "quiet", text: when(checks) }));
  byId("problems").classList.toggle("well-known", findings.length === 0 && volumes.withProblem === 0);
  byId("problems-body").replaceChildren(...parts);
}

function when(checks) {
  if (!checks) {
    return "The checks have not run in this replica of the controller: they start half a minute after it becomes the leader, and need " +
      "--doctor-interval greater than 0. Run kubectl topolvm doctor to check now.";
  }
  return `Checked at ${new Date(checks.at).toLocaleTimeString()}. kubectl topolvm doctor runs more checks.`;
}

function finding(found) {
  const block = element("div", { class: `finding ${found.result}` },
    element("p", {}, element("span", { class: "kind", text: KINDS[found.result] ?? found.result }), `${found.check}: ${found.found}`));
  if (found.remedy) block.append(element("p", {}, element("strong", { text: "What to do: " }), found.remedy));
  block.append(...(found.commands ?? []).map(command));
  return block;
}
