// JSON as a tree that folds.  Long texts are cut until the user asks for the rest.
import { h, set } from "../core/dom.js";

const LONG = 2000;
const MANY = 200;

export function json(value, { open = 2 } = {}) {
  return h("div.json", node(value, open));
}

function node(value, open, key) {
  const name = key === undefined ? null : [h("span.k", typeof key === "number" ? String(key) : JSON.stringify(key)), ": "];
  if (value === null || typeof value !== "object") return h("div.leaf", name, leaf(value));
  const list = Array.isArray(value);
  const entries = list ? value.map((one, at) => [at, one]) : Object.entries(value);
  if (!entries.length) return h("div.leaf", name, list ? "[]" : "{}");
  const shown = (part) => part.map(([one, of]) => node(of, open - 1, one));
  const box = h("details", { open: open > 0 });
  box.append(h("summary", name, h("span.muted", list ? `[ ${entries.length} ]` : `{ ${entries.length} }`)));
  box.append(...shown(entries.slice(0, MANY)));
  if (entries.length > MANY) {
    const more = h("button.btn.small", { type: "button", onclick: () => more.replaceWith(...shown(entries.slice(MANY))) }, `Show ${entries.length - MANY} more`);
    box.append(more);
  }
  return box;
}

function leaf(value) {
  if (typeof value === "string") return text(JSON.stringify(value), "s");
  return h("span", { class: value === null ? "muted" : typeof value === "number" ? "n" : "b" }, String(value));
}

function text(whole, kind) {
  if (whole.length <= LONG) return h("span.stranger", { class: kind }, readable(whole));
  const box = h("span.stranger", { class: kind }, readable(whole.slice(0, LONG)), "… ");
  const more = h("button.btn.small", { type: "button", onclick: () => set(box, readable(whole)) }, `Show all ${whole.length} characters`);
  return h("span", box, more);
}

/** JSON's escapes of control characters become the page's own marks for them. */
const readable = (quoted) => quoted.replace(/\\u([0-9a-f]{4})/gi, (_, code) => String.fromCharCode(parseInt(code, 16))).replace(/\\n/g, "\n").replace(/\\t/g, "\t");

/** A long untrusted text, cut at first. */
export function longText(whole, most = 16_384) {
  if (whole.length <= most) return h("div.stranger", whole);
  const box = h("div.stranger", whole.slice(0, most), "…");
  const more = h("button.btn.small", { type: "button", onclick: () => { set(box, whole); more.remove(); } }, `Show all ${whole.length.toLocaleString()} characters`);
  return h("div.col", box, more);
}
