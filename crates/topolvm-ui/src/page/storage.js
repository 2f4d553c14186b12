// Volume groups, disks and thin pools of the chosen node.

import { ask, byId, bytes, element, gauge, level, percent } from "./dom.js";

let chosen = "";
let shown = "";

/** Shows the storage of a node; of none, nothing. */
export function chooseStorage(node) {
  if (node === chosen) return;
  chosen = node;
  shown = "";
  byId("storage").replaceChildren();
  byId("storage").hidden = node === "";
  refreshStorage();
}

/** Asks for the storage of the chosen node again. */
export async function refreshStorage() {
  if (chosen === "") return;
  const node = chosen;
  let storage;
  try {
    storage = await ask(`/api/storage?node=${encodeURIComponent(node)}`);
  } catch {
    // The line above says that nothing can be asked for
    return;
  }
  const now = JSON.stringify(storage);
  if (node !== chosen || now === shown) return;
  shown = now;
  byId("storage").replaceChildren(
    element("h3", { text: `Disks of ${node}` }),
    ...(storage.unknown ? [element("p", { class: "quiet", text: storage.unknown })] : []),
    ...storage.problems.map((text) => element("div", { class: "finding fail" }, element("p", { text }))),
    element("ul", { class: "storage" }, ...storage.groups.map(group), ...storage.pools.map(pool)));
}

function group(found) {
  const share = percent(found.size - found.free, found.size);
  const disks = found.disks.map((disk) => {
    const path = disk.path || "a disk that lvmd has not seen";
    const text = disk.missing ? `${path}: missing` : `${path}: ${bytes(disk.free)} free of ${bytes(disk.size)}`;
    const isWrong = disk.missing || disk.evacuation?.state === "blocked";
    return element("li", { class: isWrong ? "missing" : undefined, text: text + evacuation(disk.evacuation) });
  });
  return element("li", { class: level(share) },
    element("strong", { text: `Volume group ${found.name}` }), gauge(share),
    element("span", { text: found.size > 0 ? `${bytes(found.free)} free of ${bytes(found.size)}` : "not found by LVM" }),
    disks.length > 0 ? element("ul", {}, ...disks) : undefined);
}

// How far a disk is emptied
function evacuation(found) {
  if (!found) return "";
  const left = found.remaining > 0 ? `, ${bytes(found.remaining)} left` : "";
  return found.state === "blocked" ? `; cannot be emptied${left}: ${found.message}` : `; ${found.state}${left}`;
}

function pool(found) {
  const part = (share, what) => share === null ? `${what} unknown` : `${share} % of ${what}`;
  return element("li", { class: level(found.data ?? 0) },
    element("strong", { text: `Thin pool ${found.name}` }), gauge(found.data ?? 0),
    element("span", { text: `${part(found.data, "data")}, ${part(found.metadata, "metadata")} of ${bytes(found.size)}` }));
}
