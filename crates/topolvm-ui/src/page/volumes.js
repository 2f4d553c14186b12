// The list of volumes. The controller filters, sorts and cuts it into pages; here is what is on the screen.

import { announce, ask, byId, bytes, element, gauge, level, number, percent, setText } from "./dom.js";
import { openDetails, updateDetails } from "./details.js";

/** Rows of a page. */
const PAGE = 60;
/** Pages that are kept. */
const KEPT = 12;
/** Rows beyond the screen that are there already. */
const BEYOND = 8;
/** Pause between two questions for the usage of what is on the screen, in milliseconds. */
const USAGE_PAUSE = 10_000;
/** Pause in which somebody who scrolls comes to rest, in milliseconds. */
const SOON = 150;
const BAD = new Set(["CreateFailed", "ExpandFailed", "VolumeLost"]);
const BUSY = new Set(["Creating", "Expanding", "Deleting"]);
const COLUMNS = [
  ["Claim", "name", "name"], ["Node", "at", "node"], ["Class", "class-of", "class"], ["Size", "size number", "size"],
  ["Used", "used"], ["I/O", "io number"], ["Pod", "pod"], ["State", "state-head", "state"],
];

const list = byId("rows");
let group = "";
let query = new URLSearchParams();
let pages = new Map();
let rowElements = new Map();
let matched = 0;
let total = 0;
let version = 0;
let asking;
let isStale = false;
let isMarked = false;
let usage = new Map();
let usageTimer;
let usageDue = 0;
let isAskingUsage = false;
let onEmpty = () => {};

/** Prepares the list. `empty` is called to fill the place of the rows where there are none. */
export function startVolumes(empty) {
  onEmpty = empty;
  byId("head").append(...COLUMNS.map(([label, classes, sort]) => {
    const cell = element("div", { role: "columnheader", class: classes, "aria-sort": sort ? "none" : undefined });
    cell.append(sort ? element("button", { type: "button", text: label, "data-sort": sort }) : label);
    return cell;
  }));
  addEventListener("scroll", () => requestAnimationFrame(render), { passive: true });
  addEventListener("resize", () => requestAnimationFrame(render));
  list.addEventListener("keydown", moveFocus);
  list.addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (row?.volume) openDetails(row.volume, usage.get(row.volume.name), group);
  });
}

export function setGroup(name) {
  group = name;
}

/** Shows the volumes of another query. */
export function setQuery(wanted) {
  query = wanted;
  const sort = query.get("sort") ?? "";
  for (const cell of byId("head").children) {
    const name = cell.firstElementChild?.dataset?.sort;
    if (name) cell.setAttribute("aria-sort", sort === name ? "ascending" : sort === `-${name}` ? "descending" : "none");
  }
  const top = list.getBoundingClientRect().top + scrollY;
  if (scrollY > top) scrollTo({ top: top - 80 });
  return reload(true);
}

/** Asks again for what is on the screen: something has changed. */
export function refresh() {
  return reload(false);
}

async function reload(isNew) {
  // One question at a time: what changes meanwhile is asked for after it
  if (asking && !isNew) { isStale = true; return; }
  asking?.abort();
  const mine = asking = new AbortController();
  isStale = false;
  try {
    const [first, last] = range();
    const wanted = isNew ? [0] : pagesBetween(first, last);
    const answers = await Promise.all(wanted.map((page) => fetchPage(page, mine.signal)));
    version += 1;
    if (isNew) pages = new Map();
    for (const [at, page] of [...pages]) if (!wanted.includes(at)) pages.set(at, { ...page, version: -1 });
    answers.forEach(take);
    if (isNew) announce(`${number(matched)} of ${number(total)} volumes`);
    render();
  } catch (failure) {
    if (failure.name !== "AbortError") setText(byId("matched"), `Not current: ${failure.message}`);
  } finally {
    if (asking === mine) {
      asking = undefined;
      if (isStale) reload(false);
    }
  }
}

async function fetchPage(page, signal) {
  const parameters = new URLSearchParams(query);
  parameters.set("offset", page * PAGE);
  parameters.set("limit", PAGE);
  return ask(`/api/volumes?${parameters}`, signal);
}

function take(answer) {
  ({ matched, total } = answer);
  const at = Math.floor(answer.offset / PAGE);
  pages.delete(at);
  pages.set(at, { rows: answer.rows, version });
  while (pages.size > KEPT) pages.delete(pages.keys().next().value);
}

const pagesBetween = (first, last) => {
  const end = Math.max(0, Math.ceil(Math.min(last, Math.max(matched, 1)) / PAGE) - 1);
  const begin = Math.min(end, Math.floor(first / PAGE));
  return Array.from({ length: end - begin + 1 }, (_, step) => begin + step);
};

/** Height of a row, which the style sheet sets for wide and narrow screens. */
function rowHeight() {
  const style = getComputedStyle(document.documentElement);
  return parseFloat(style.getPropertyValue("--row")) * parseFloat(style.fontSize);
}

/** Returns the numbers of the rows on the screen, the last one excluded. */
function range() {
  const height = rowHeight();
  const top = -list.getBoundingClientRect().top;
  const first = Math.max(0, Math.floor(top / height) - BEYOND);
  return [first, Math.max(first + 1, Math.ceil((top + innerHeight) / height) + BEYOND)];
}

function render() {
  const height = rowHeight();
  const [first, end] = range();
  const last = Math.min(matched, end);
  list.style.setProperty("height", `${matched * height}px`);
  byId("table").setAttribute("aria-rowcount", matched + 1);
  setText(byId("matched"), total === 0 ? "" : matched === total ? `${number(total)} volumes` : `${number(matched)} of ${number(total)} volumes`);
  byId("table").hidden = matched === 0;
  byId("no-rows").hidden = matched !== 0;
  byId("filters").hidden = total === 0;
  if (matched === 0) onEmpty(byId("no-rows"), total);
  const focused = document.activeElement;
  const held = [...rowElements.values()].find((made) => made.contains(focused));
  const wanted = new Map();
  for (let at = first; at < last; at += 1) {
    const row = pages.get(Math.floor(at / PAGE))?.rows[at % PAGE] ?? (held?.at === at ? held.volume : undefined);
    const key = row ? row.name : `#${at}`;
    wanted.set(key, place(rowElements.get(key) ?? blank(), at, height, row));
  }
  for (const [key, made] of rowElements) {
    if (wanted.has(key)) continue;
    // A row with the focus stays beyond the screen until the focus leaves it, or another volume is in its place there
    const stays = made === held && made.at < matched && (made.at < first || made.at >= last);
    stays ? wanted.set(key, place(made, made.at, height, made.volume)) : made.remove();
  }
  rowElements = wanted;
  const ordered = [...wanted.values()].sort((a, b) => a.at - b.at);
  ordered.forEach((made, index) => {
    if (list.children[index] !== made) list.insertBefore(made, list.children[index] ?? null);
  });
  if (held && focused !== document.activeElement) {
    const next = list.contains(focused) ? focused : ordered.find((made) => made.at === held.at)?.querySelector("button");
    (next ?? byId("volumes")).focus({ preventScroll: true });
  }
  askForMissing(first, last);
  planUsage();
  if (last > 0 && !isMarked) {
    isMarked = true;
    // After the next frame, when people see them
    requestAnimationFrame(() => setTimeout(() => performance.mark("rows")));
  }
}

function blank() {
  const cells = COLUMNS.map(([, classes]) => element("div", { role: "cell", class: classes.replace("state-head", "state") }));
  return element("div", { role: "row", class: "row" }, ...cells);
}

/** Puts a row to its place and fills it, if there is something new about it. */
function place(made, at, height, row) {
  if (made.at !== at || made.height !== height) {
    made.at = at;
    made.height = height;
    made.style.setProperty("transform", `translateY(${at * height}px)`);
    made.setAttribute("aria-rowindex", at + 2);
  }
  made.classList.toggle("waiting", !row);
  const known = row && usage.get(row.name);
  const text = JSON.stringify([row, known?.now, known?.unknown]);
  if (row && made.text !== text) {
    made.text = text;
    made.volume = row;
    fill(made.children, row, known);
    updateDetails(row, known, group);
  }
  return made;
}

function fill([name, at, classOf, size, used, io, pod, state], row, known) {
  let button = name.firstElementChild;
  if (!button) name.append((button = element("button", { type: "button", class: "link" })));
  const label = row.claim ? `${row.namespace}/${row.claim}` : row.name;
  if (button.title !== label) {
    button.title = label;
    button.replaceChildren(element("span", { class: "space", text: row.claim ? `${row.namespace}/` : "" }), row.claim || row.name);
  }
  setText(at, row.node);
  at.title = row.node;
  setText(classOf, row.class || "(default)");
  setText(size, bytes(row.size));
  // What is wrong is more than how much is used
  const isWrong = Boolean(row.problem);
  io.hidden = pod.hidden = isWrong;
  isWrong ? used.setAttribute("aria-colspan", 3) : used.removeAttribute("aria-colspan");
  isWrong ? fillProblem(used, row.problem) : fillUsed(used, known);
  setText(io, known?.rates ? `${bytes(known.rates.readBytes + known.rates.writtenBytes)}/s` : "");
  setText(pod, known?.now?.pod ?? "");
  pod.title = known?.now?.pod ?? "";
  const isBad = row.problem || BAD.has(row.state);
  state.className = `state ${isBad ? "bad" : BUSY.has(row.state) ? "busy" : ""}`;
  setText(state, row.problem && !BAD.has(row.state) ? `${row.state} (!)` : row.state);
}

function fillProblem(cell, problem) {
  cell.className = "used why";
  cell.title = `${problem.what}; to do: ${problem.remedy}`;
  setText(cell, problem.what);
}

function fillUsed(cell, known) {
  const { filesystemSize: size, filesystemAvailable: free, thinUsed } = known?.now ?? {};
  const of = size ?? known?.size;
  const taken = size ? size - free : thinUsed;
  if (taken === undefined || taken === null || !of) {
    cell.className = "used";
    cell.title = known?.unknown ? `unknown: ${known.unknown}` : "";
    setText(cell, known?.unknown ? "unknown" : "");
    return;
  }
  const share = percent(taken, of);
  cell.className = `used ${level(share)}`;
  cell.title = `${bytes(taken)} of ${bytes(of)} ${size ? "of the filesystem" : "in the pool"}`;
  cell.replaceChildren(gauge(share), element("b", { text: `${share} %` }));
}

/** Asks for pages of the rows on the screen that are not there, or are from before the last change. */
function askForMissing(first, last) {
  const missing = pagesBetween(first, last).filter((page) => pages.get(page)?.version !== version);
  if (missing.length > 0 && matched > 0) refresh();
}

/** Plans to ask for the usage of the volumes on the screen: soon for those that are new there, else after a pause. */
function planUsage() {
  if (isAskingUsage || document.hidden) return;
  const isNew = [...rowElements.values()].some((made) => made.volume && !usage.has(made.volume.name));
  const pause = isNew ? SOON : USAGE_PAUSE / 5;
  // Where something changes every second nothing would be asked if each change put it off
  if (usageTimer && usageDue <= Date.now() + pause) return;
  clearTimeout(usageTimer);
  usageDue = Date.now() + pause;
  usageTimer = setTimeout(askForUsage, pause);
}

async function askForUsage() {
  isAskingUsage = true;
  usageTimer = undefined;
  const visible = [...rowElements.values()].map((made) => made.volume).filter((row) => row && !known(row));
  try {
    if (visible.length > 0) takeUsage(visible, await ask(`/api/usage?${new URLSearchParams(visible.map((row) => ["volume", row.name]))}`));
  } catch {
    // What is on the screen stays; the connection tells that it is lost
    for (const row of visible) usage.set(row.name, { ...usage.get(row.name), asked: Date.now() });
  } finally {
    isAskingUsage = false;
    visible.length > 0 ? render() : planUsage();
  }
}

const known = (row) => Date.now() - (usage.get(row.name)?.asked ?? 0) < USAGE_PAUSE;

function takeUsage(rows, answer) {
  const asked = Date.now();
  const on = new Set(rowElements.keys());
  for (const name of usage.keys()) if (!on.has(name)) usage.delete(name);
  for (const row of rows) {
    const now = answer.volumes[row.name];
    const before = usage.get(row.name);
    usage.set(row.name, { asked, now, size: row.size, unknown: answer.unknown[row.node], rates: now && rates(before, now) });
  }
}

/** Returns what a volume has done each second between two answers; the last known where both are the same. */
function rates(before, now) {
  const seconds = before?.now ? (now.at - before.now.at) / 1000 : 0;
  if (seconds <= 0) return before?.rates;
  const grown = (name) => Math.max(0, (now[name] ?? 0) - (before.now[name] ?? 0));
  const each = (time, operations) => (grown(operations) > 0 ? grown(time) / grown(operations) : undefined);
  if (now.reads === null) return undefined;
  return {
    reads: grown("reads") / seconds, writes: grown("writes") / seconds,
    readBytes: grown("readBytes") / seconds, writtenBytes: grown("writtenBytes") / seconds,
    readLatency: each("readSeconds", "reads"), writeLatency: each("writeSeconds", "writes"),
  };
}

/** Arrow keys go from row to row. */
function moveFocus(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const row = event.target.closest(".row");
  if (!step || !row) return;
  event.preventDefault();
  const next = [...rowElements.values()].find((made) => made.at === row.at + step)?.querySelector("button");
  next?.focus({ preventScroll: true });
  next?.closest(".row").scrollIntoView({ block: "nearest" });
}
