// Elements, numbers and requests. Whatever comes from the cluster becomes text and never HTML.

/** Makes an element. `text` is its text, `on...` a listener, anything else an attribute; what is undefined is left out. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== undefined && child !== ""));
  return made;
}

/** Sets a text if it is another one: what has not changed stays selected. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export const byId = (id) => document.getElementById(id);

const whole = new Intl.NumberFormat("en");
export const count = (number, one, many = `${one}s`) => `${whole.format(number)} ${number === 1 ? one : many}`;
export const number = (value) => whole.format(value);

/** 12.3 GiB */
export function bytes(value) {
  if (value === undefined || value === null) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${value >= 100 || unit === 0 ? Math.round(value) : Number(value.toPrecision(3))} ${units[unit]}`;
}

/** Share in percent, rounded down: only what is full is 100 %. */
export const percent = (part, all) => (all > 0 ? Math.min(100, Math.floor((part / all) * 100)) : 0);

/** Level of a share in percent, as a class of the style sheet. */
export const level = (share) => (share > 90 ? "full" : share > 75 ? "high" : "fine");

/** A bar for a share in percent. */
export function gauge(share, reserved = 0) {
  const bar = element("span", { class: "gauge", "aria-hidden": "true" });
  for (const [width, name] of [[share + reserved, "reserved"], [share, ""]]) {
    const part = element("i", { class: name || undefined });
    part.style.setProperty("--share", `${Math.min(100, width)}%`);
    bar.append(part);
  }
  return bar;
}

/** A command for a shell, with a button that copies it. */
export function command(text) {
  const copy = element("button", { type: "button", class: "copy", text: "Copy" });
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  return element("div", { class: "command" }, element("pre", { text, tabindex: "0", role: "group", "aria-label": "Command" }), copy);
}

/** Tells people with a screen reader what they have caused. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** Asks the controller. */
export async function ask(path, signal) {
  const answer = await fetch(path, { signal });
  if (!answer.ok) throw new Error((await answer.text()).trim() || `the controller answers ${answer.status}`);
  return answer.json();
}
