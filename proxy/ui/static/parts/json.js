// JSON as a tree that folds.  Long texts are cut until the user asks for the rest.
import { h, set } from "../core/dom.js";
import { spaced } from "../core/visible.js";

const LONG = 2000;
const MANY = 200;

/** `whole`: nothing is cut or folded, and odd spaces are named, since a person decides about it. */
export function json(value, { open = 2, whole = false } = {}) {
  return h(
    "div.json",
    whole ? node(value, Infinity, undefined, { many: Infinity, leaf: exact, name: spaced }) : node(value, open),
  );
}

const CUT = { many: MANY, leaf, name: (text) => text };

function node(value, open, key, how = CUT) {
  const name =
    key === undefined
      ? null
      : [h("span.k", typeof key === "number" ? String(key) : how.name(JSON.stringify(key))), ": "];
  if (value === null || typeof value !== "object") return h("div.leaf", name, how.leaf(value));
  const list = Array.isArray(value);
  const entries = list ? value.map((one, at) => [at, one]) : Object.entries(value);
  if (!entries.length) return h("div.leaf", name, list ? "[]" : "{}");
  const shown = (part) => part.map(([one, of]) => node(of, open - 1, one, how));
  const box = h("details", { open: open > 0 });
  box.append(h("summary", name, h("span.muted", list ? `[ ${entries.length} ]` : `{ ${entries.length} }`)));
  box.append(...shown(entries.slice(0, how.many)));
  if (entries.length > how.many) {
    const more = h(
      "button.btn.small",
      { type: "button", onclick: () => more.replaceWith(...shown(entries.slice(MANY))) },
      `Show ${entries.length - MANY} more`,
    );
    box.append(more);
  }
  return box;
}

function leaf(value) {
  if (typeof value === "string") return text(JSON.stringify(value), "s");
  return h("span", { class: value === null ? "muted" : typeof value === "number" ? "n" : "b" }, String(value));
}

/** A leaf that is not cut, and whose line feeds are seen as JSON's escapes too. */
function exact(value) {
  if (typeof value !== "string") return leaf(value);
  return h("span.stranger.s", spaced(readable(JSON.stringify(value), "\\n\n")));
}

function text(whole, kind) {
  if (whole.length <= LONG) return h("span.stranger", { class: kind }, readable(whole));
  const box = h("span.stranger", { class: kind }, readable(whole.slice(0, LONG)), "… ");
  const more = h(
    "button.btn.small",
    { type: "button", onclick: () => set(box, readable(whole)) },
    `Show all ${whole.length} characters`,
  );
  return h("span", box, more);
}

/** JSON's escapes of control characters become the page's own marks for them. */
const readable = (quoted, feed = "\n") =>
  quoted.replace(/\\(?:u([0-9a-f]{4})|[\\nt])/gi, (found, code) =>
    code ? String.fromCharCode(parseInt(code, 16)) : ({ "\\n": feed, "\\t": "\t" }[found] ?? found),
  );

/** A long untrusted text, cut at first. */
export function longText(whole, most = 16_384) {
  if (whole.length <= most) return h("div.stranger", whole);
  const box = h("div.stranger", whole.slice(0, most), "…");
  const more = h(
    "button.btn.small",
    {
      type: "button",
      onclick: () => {
        set(box, whole);
        more.remove();
      },
    },
    `Show all ${whole.length.toLocaleString()} characters`,
  );
  return h("div.col", box, more);
}
