// The page: what is asked for, the changes that the controller tells of, and the filters in the address.

import { ask, byId, bytes, count, element, number } from "./dom.js";
import { markNode, showCapacity, startCapacity } from "./capacity.js";
import { showProblems } from "./problems.js";
import { chooseStorage, refreshStorage } from "./storage.js";
import { refresh, setGroup, setQuery, startVolumes } from "./volumes.js";

/** Least time between two questions for the summary, in milliseconds: it is about the whole cluster. */
const SUMMARY_PAUSE = 1000;
const FILTERS = ["q", "namespace", "class", "state", "node", "sort"];

const form = byId("filters");
let summary;
let summaryTimer;
let events;
let searching;

async function loadSummary() {
  summaryTimer = setTimeout(() => { summaryTimer = undefined; }, SUMMARY_PAUSE);
  try {
    summary = await ask("/api/summary");
  } catch (failure) {
    showConnection("lost", failure.message);
    return;
  }
  setGroup(summary.group);
  showFigures();
  showProblems(summary, () => { setFilters({ state: "problem" }); byId("volumes").focus(); });
  showCapacity(summary);
  showStorage();
  refreshStorage();
  offer("namespace", summary.namespaces);
  offer("class", [...new Set(summary.nodes.flatMap((node) => node.classes.map((found) => found.name)))].filter(Boolean).sort());
  offer("state", Object.keys(summary.volumes.byState), ["problem", "with a problem"]);
  byId("about").textContent = `TopoLVM ${summary.version}, ${summary.group}. This page is read-only.`;
}

function refreshSummary() {
  if (summaryTimer === undefined) { loadSummary(); return; }
  clearTimeout(summaryTimer);
  summaryTimer = setTimeout(loadSummary, SUMMARY_PAUSE);
}

function showFigures() {
  const classes = summary.nodes.flatMap((node) => node.classes);
  const free = classes.reduce((total, found) => total + (found.free ?? 0), 0);
  const size = classes.reduce((total, found) => total + (found.free ?? 0) + found.used, 0);
  const findings = (summary.checks?.findings ?? []).length + (summary.checks?.more ?? 0);
  const problems = findings + summary.volumes.withProblem;
  const figures = [
    [problems === 0 && !summary.checks ? "–" : number(problems), problems === 1 ? "problem" : "problems", problems > 0],
    size > 0 ? [bytes(free), `free of ${bytes(size)}`] : ["–", "no storage yet"],
    [number(summary.volumes.total), summary.volumes.total === 1 ? "volume" : "volumes"],
    [number(summary.nodes.length), `${summary.nodes.length === 1 ? "node" : "nodes"} with storage${summary.otherNodes ? `, ${number(summary.otherNodes)} without` : ""}`],
  ];
  byId("figures").replaceChildren(...figures.map(([value, text, isBad]) =>
    element("li", { class: isBad ? "bad" : undefined }, element("strong", { text: value }), element("span", { text }))));
  document.title = problems > 0 ? `(${problems}) TopoLVM` : "TopoLVM";
}

/** Shows the storage of the chosen node, if what is typed is the name of one. */
function showStorage() {
  const node = form.elements.node.value.trim();
  chooseStorage(summary?.nodes.some((known) => known.name === node) ? node : "");
}

/** Offers values to choose from, and keeps what is chosen. */
function offer(name, values, first) {
  const select = form.elements[name];
  const options = [["", "all"], ...(first ? [first] : []), ...values.map((value) => [value, value])];
  const chosen = select.value;
  if (chosen && !options.some(([value]) => value === chosen)) options.push([chosen, chosen]);
  if (select.options.length === options.length && options.every(([value], at) => select.options[at].value === value)) return;
  select.replaceChildren(...options.map(([value, text]) => element("option", { value, text })));
  select.value = chosen;
}

const fromAddress = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

/** Returns what the filters say. */
function filters() {
  const wanted = new URLSearchParams();
  for (const name of FILTERS) {
    const value = form.elements[name].value.trim();
    if (value) wanted.set(name, value);
  }
  return wanted;
}

/** Sets all filters; those that are not named select everything. */
function setFilters(wanted) {
  for (const name of FILTERS) {
    const field = form.elements[name];
    const value = wanted[name] ?? "";
    if (field.tagName === "SELECT" && ![...field.options].some((option) => option.value === value)) {
      field.append(element("option", { value, text: value }));
    }
    field.value = value;
  }
  applyFilters();
}

function applyFilters() {
  const wanted = filters();
  byId("clear").hidden = FILTERS.every((name) => name === "sort" || !wanted.has(name));
  markNode(wanted.get("node") ?? "");
  showStorage();
  history.replaceState(null, "", wanted.size > 0 ? `#${wanted}` : location.pathname);
  return setQuery(wanted);
}

function showEmpty(place, total) {
  const parts = total > 0
    ? [element("h3", { text: "No volume matches" }), element("button", { type: "button", class: "plain", text: "Show all volumes", onclick: () => setFilters({}) })]
    : [
      element("h3", { text: "No volumes yet" }),
      element("p", { text: "TopoLVM creates a volume for each claim whose StorageClass has its provisioner, on the node of the pod. Check the StorageClasses and the installation:" }),
      element("pre", { text: "kubectl get storageclass\nkubectl topolvm doctor", tabindex: "0", role: "group", "aria-label": "Commands" }),
    ];
  if (place.dataset.kind === String(total > 0)) return;
  place.dataset.kind = String(total > 0);
  place.replaceChildren(element("div", { class: "empty" }, ...parts));
}

function showConnection(state, why = "") {
  const texts = { live: "Live", lost: `Not connected: ${why || "trying again"}`, "": "Connecting" };
  const place = byId("connection");
  if (place.className === state && state === "live") return;
  place.className = state;
  place.textContent = texts[state];
}

/** Follows the changes while somebody looks. */
function follow() {
  events?.close();
  events = undefined;
  if (document.hidden) return;
  events = new EventSource("/api/events");
  events.addEventListener("change", () => {
    showConnection("live");
    refresh();
    refreshSummary();
  });
  events.addEventListener("error", () => {
    showConnection("lost", "is kubectl topolvm ui still running? Trying again");
    if (events?.readyState === EventSource.CLOSED) setTimeout(follow, 2000);
  });
}

function start() {
  startCapacity((node) => setFilters({ ...Object.fromEntries(filters()), node }));
  startVolumes(showEmpty);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    clearTimeout(searching);
    searching = setTimeout(applyFilters, 120);
  });
  byId("clear").addEventListener("click", () => { setFilters({ sort: form.elements.sort.value }); form.elements.q.focus(); });
  byId("head").addEventListener("click", (event) => {
    const sort = event.target.dataset?.sort;
    const now = form.elements.sort.value;
    if (sort) setFilters({ ...Object.fromEntries(filters()), sort: now === sort ? `-${sort}` : now === `-${sort}` ? "" : sort });
  });
  addEventListener("keydown", (event) => {
    const isTyping = /INPUT|SELECT|TEXTAREA/.test(document.activeElement?.tagName ?? "");
    if (event.key === "/" && !isTyping && !byId("details").open) { event.preventDefault(); form.elements.q.focus(); }
  });
  addEventListener("hashchange", () => { if (location.hash.includes("=")) setFilters(fromAddress()); });
  document.addEventListener("visibilitychange", follow);
  setFilters(fromAddress());
  loadSummary();
  follow();
}

start();
