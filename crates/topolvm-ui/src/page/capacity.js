// The map of capacity: device classes, and the nodes of one of them.

import { announce, byId, bytes, count, element, gauge, level, number, percent } from "./dom.js";

/** Nodes up to which each has a card; of more each is a small square. */
const CARDS = 60;

let chosen;
let nodesOf = new Map();
let selectedNode = "";
let selectNode = () => {};
let shown = "";

/** Prepares the controls. `select` is called with the node whose volumes are to be shown, or nothing. */
export function startCapacity(select) {
  selectNode = select;
  byId("node-filter").addEventListener("input", () => showNodes());
  byId("node-order").addEventListener("change", () => showNodes());
  byId("nodes").addEventListener("click", (event) => {
    const node = event.target.closest(".node")?.dataset.node;
    if (node) selectNode(node === selectedNode ? "" : node);
  });
  byId("nodes").addEventListener("keydown", moveFocus);
}

/** Marks the node whose volumes are shown. */
export function markNode(node) {
  selectedNode = node;
  for (const mark of byId("nodes").children) mark.setAttribute("aria-pressed", String(mark.dataset.node === node));
}

/** Shows the nodes and classes of a summary. */
export function showCapacity(summary) {
  const now = JSON.stringify(summary.nodes);
  if (now === shown) return;
  shown = now;
  nodesOf = new Map();
  for (const node of summary.nodes) {
    for (const found of node.classes) {
      if (!nodesOf.has(found.name)) nodesOf.set(found.name, []);
      const size = (found.free ?? 0) + found.used;
      const share = found.free === null ? 100 : percent(found.used, size);
      nodesOf.get(found.name).push({ ...found, node: node.name, exists: node.exists, size, share });
    }
  }
  byId("nodes-bar").hidden = nodesOf.size === 0;
  if (nodesOf.size === 0) {
    byId("classes").replaceChildren();
    byId("nodes").classList.remove("dense");
    byId("nodes").replaceChildren(noNodes(summary));
    return;
  }
  if (!nodesOf.has(chosen)) chosen = fullest();
  showClasses();
  showNodes();
}

function noNodes(summary) {
  if (!summary.isListed) return element("p", { class: "quiet", text: "The controller is still listing the objects of the cluster." });
  return element("div", { class: "empty" },
    element("h3", { text: "No node offers storage yet" }),
    element("p", { text: "topolvm-node publishes the free space of a node when lvmd has a volume group there. Check that both run on the nodes with disks, and that lvmd.yaml names their volume group:" }),
    element("pre", { text: "kubectl -n topolvm-system get pods -o wide\nkubectl topolvm doctor", tabindex: "0", role: "group", "aria-label": "Commands" }));
}

const sum = (nodes, key) => nodes.reduce((total, node) => total + (node[key] ?? 0), 0);

function fullest() {
  const shares = [...nodesOf].map(([name, nodes]) => [percent(sum(nodes, "used"), sum(nodes, "size")), name]);
  return shares.sort((a, b) => b[0] - a[0])[0][1];
}

function showClasses() {
  const focused = document.activeElement?.dataset?.class;
  const cards = [...nodesOf].sort(([a], [b]) => a.localeCompare(b)).map(([name, nodes]) => {
    const used = sum(nodes, "used"), size = sum(nodes, "size"), share = percent(used, size);
    const full = nodes.filter((node) => node.share > 90).length;
    const label = name || "(default)";
    const card = element("button", { type: "button", class: `class ${level(share)}`, "aria-pressed": String(name === chosen), "data-class": name },
      element("strong", { text: nodes.some((node) => node.isDefault) && name ? `${label} · default` : label }),
      gauge(share),
      element("span", { text: `${bytes(sum(nodes, "free"))} free of ${bytes(size)}` }),
      element("span", { text: `${count(nodes.length, "node")}${full ? `, ${number(full)} over 90 %` : ""} · ${count(sum(nodes, "volumes"), "volume")}` }));
    card.addEventListener("click", () => {
      chosen = name;
      showClasses();
      showNodes();
      announce(`Nodes with ${label}`);
    });
    return card;
  });
  byId("classes").replaceChildren(...cards);
  if (focused !== undefined) cards.find((card) => card.dataset.class === focused)?.focus({ preventScroll: true });
}

function showNodes() {
  const wanted = byId("node-filter").value.trim().toLowerCase();
  const all = nodesOf.get(chosen) ?? [];
  const nodes = all.filter((node) => node.node.includes(wanted));
  const byName = (a, b) => a.node.localeCompare(b.node, "en", { numeric: true });
  const worst = (a, b) => Number(a.exists) - Number(b.exists) || b.share - a.share || byName(a, b);
  nodes.sort(byId("node-order").value === "name" ? byName : worst);
  byId("nodes-count").textContent = nodes.length === all.length ? count(all.length, "node") : `${number(nodes.length)} of ${count(all.length, "node")}`;
  const focused = document.activeElement?.closest("#nodes .node")?.dataset.node;
  const box = byId("nodes");
  const top = box.scrollTop;
  const isDense = nodes.length > CARDS;
  box.classList.toggle("dense", isDense);
  const marks = nodes.map((node) => mark(node, isDense));
  const first = marks.find((node) => node.dataset.node === focused) ?? marks[0];
  // One stop for the tab key; arrow keys go from node to node
  first?.setAttribute("tabindex", "0");
  box.replaceChildren(...(marks.length ? marks : [element("p", { class: "quiet", text: "No node name matches." })]));
  box.scrollTop = top;
  if (focused && first) first.focus({ preventScroll: true });
}

function mark(node, isDense) {
  const space = node.free === null ? "publishes no free space" : `${bytes(node.free)} free of ${bytes(node.size)}`;
  const text = node.exists ? space : "the Node no longer exists";
  const reserved = node.reserved ? ` · ${bytes(node.reserved)} reserved` : "";
  const more = `${node.share} %${reserved} · ${count(node.volumes, "volume")}`;
  return element("button", {
    type: "button", class: `node ${node.exists ? "" : "gone "}${level(node.share)}`, tabindex: "-1",
    title: isDense ? `${node.node}: ${text} · ${more}` : undefined,
    "aria-label": isDense ? `${node.node}: ${text} · ${more}` : undefined,
    "aria-pressed": String(node.node === selectedNode), "data-node": node.node,
  },
  element("strong", { text: node.node }), gauge(node.share, percent(node.reserved, node.size)),
  element("span", { text }), element("span", { text: more }));
}

function moveFocus(event) {
  const marks = [...byId("nodes").querySelectorAll(".node")];
  const at = marks.indexOf(document.activeElement);
  if (at < 0) return;
  const across = marks.filter((mark) => mark.offsetTop === marks[0].offsetTop).length;
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across, Home: -at, End: marks.length - 1 - at }[event.key];
  const next = marks[at + (step ?? 0)];
  if (step === undefined || !next) return;
  event.preventDefault();
  marks[at].setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}
