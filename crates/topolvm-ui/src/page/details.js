// All that is known of one volume.

import { byId, bytes, command, element, number } from "./dom.js";

let openFor = "";

/** Opens the dialog for a volume. */
export function openDetails(row, usage, group) {
  openFor = row.name;
  const dialog = byId("details");
  fill(dialog, row, usage, group);
  dialog.showModal();
}

/** Shows what is new about the volume of the open dialog. */
export function updateDetails(row, usage, group) {
  const dialog = byId("details");
  if (dialog.open && openFor === row.name) fillFacts(dialog.querySelector("dl"), row, usage);
}

function fill(dialog, row, usage, group) {
  const facts = element("dl");
  fillFacts(facts, row, usage);
  const describe = `kubectl describe logicalvolumes.${group} ${row.name}`;
  const close = element("button", { type: "button", class: "plain", text: "Close", onclick: () => dialog.close() });
  const parts = [element("h2", { id: "details-title", text: row.claim ? `${row.namespace}/${row.claim}` : row.name })];
  if (row.problem) {
    parts.push(element("div", { class: "finding fail" },
      element("p", {}, element("span", { class: "kind", text: "Problem" }), row.problem.what),
      element("p", {}, element("strong", { text: "What to do: " }), row.problem.remedy)));
  }
  parts.push(facts, command(describe));
  if (row.claim) parts.push(command(`kubectl -n ${row.namespace} describe persistentvolumeclaim ${row.claim}`));
  parts.push(element("p", {}, close));
  dialog.replaceChildren(...parts);
}

function fillFacts(list, row, usage) {
  const known = usage?.now;
  const rates = usage?.rates;
  const size = known?.filesystemSize;
  const used = size === undefined || size === null ? undefined : size - known.filesystemAvailable;
  const facts = [
    ["State", row.state],
    ["Node", row.node],
    ["Device class", row.class || "(default)"],
    ["Size", bytes(row.size) + (row.requested ? `, requested ${bytes(row.requested)}` : "")],
    ["Filesystem", used === undefined ? "" : `${bytes(used)} of ${bytes(size)} used, ${bytes(known.filesystemAvailable)} free`],
    ["In the pool", known?.thinUsed ? `${bytes(known.thinUsed)} used` : ""],
    ["Pod", known?.pod],
    ["Reads", rates ? `${number(Math.round(rates.reads))}/s, ${bytes(rates.readBytes)}/s${latency(rates.readLatency)}` : ""],
    ["Writes", rates ? `${number(Math.round(rates.writes))}/s, ${bytes(rates.writtenBytes)}/s${latency(rates.writeLatency)}` : ""],
    ["In flight", known?.ioNow === undefined || known?.ioNow === null ? "" : number(known.ioNow)],
    ["Usage", usage?.unknown ? `unknown: ${usage.unknown}` : ""],
    ["Copy of", row.source],
    ["LogicalVolume", row.name],
    ["LV", row.lv],
    ["Created", row.created ? new Date(row.created).toLocaleString() : ""],
  ];
  const shown = facts.filter(([, value]) => value);
  list.replaceChildren(...shown.flatMap(([term, value]) => [element("dt", { text: term }), element("dd", { text: value })]));
}

const latency = (seconds) => (seconds === undefined ? "" : `, ${(seconds * 1000).toPrecision(2)} ms each`);
