// Values of arguments and results as fields that people read; a tree of JSON where they are deep.
import { h, set } from "../../core/dom.js";
import { json } from "../json.js";
import { outside, webAddress } from "./links.js";

const PRIVATE = "[private]";
const LONG = 700;
const MANY = 40;
const DEEP = 3;
const MOST_COLUMNS = 6;

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isPlain = (value) => value === null || typeof value !== "object";

/** The value that a JSON text holds, if it holds an object or a list; else the text. */
export function unpacked(value) {
  if (typeof value !== "string" || !/^\s*[[{]/.test(value) || value.length > 2_000_000) return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

/** What a value looks like to a reader. */
export function fields(value, depth = 0) {
  const shown = unpacked(value);
  if (isPlain(shown)) return leaf(shown);
  if (depth >= DEEP) return h("div.code", json(shown, { open: 1 }));
  if (Array.isArray(shown)) return list(shown, depth);
  const entries = Object.entries(shown);
  if (!entries.length) return h("span.muted", "nothing");
  const row = ([name, of]) => [h("dt.isolate", label(name)), h("dd", fields(of, depth + 1))];
  return h("dl.fields", shorten(entries, row));
}

/** A name of a field as words: `temperature_c` as “temperature c”. */
const label = (name) => (name === PRIVATE ? "private" : name.replaceAll("_", " "));

function list(values, depth) {
  if (!values.length) return h("span.muted", "none");
  if (values.every(isPlain) && values.every((one) => String(one).length < 60 && !webAddress(one)))
    return h(
      "span.isolate",
      values.slice(0, 200).map(String).join(", "),
      values.length > 200 && ` and ${values.length - 200} more`,
    );
  const columns = [...new Set(values.slice(0, MANY).flatMap((one) => (isObject(one) ? Object.keys(one) : [])))];
  const even =
    values.length > 1 &&
    columns.length <= MOST_COLUMNS &&
    values.every((one) => isObject(one) && Object.values(one).every(isPlain));
  if (!even)
    return h(
      "ol.values",
      shorten(values, (one) => h("li", fields(one, depth + 1))),
    );
  const head = h(
    "thead",
    h(
      "tr",
      columns.map((name) => h("th", { scope: "col" }, label(name))),
    ),
  );
  const row = (one) =>
    h(
      "tr",
      columns.map((name) => h("td", one[name] === undefined ? "" : leaf(one[name]))),
    );
  return h(
    "div.table-box",
    { tabindex: 0, role: "group", "aria-label": "Values" },
    h("table", head, h("tbody", shorten(values, row))),
  );
}

/** The first values, and a button for the others. */
function shorten(values, draw) {
  const first = values.slice(0, MANY).map(draw);
  if (values.length <= MANY) return first;
  const rest = values.length - MANY;
  const text = `Show ${rest} more`;
  const button = h(
    "button.btn.small",
    { type: "button", onclick: () => holder.replaceWith(...values.slice(MANY).flatMap(draw)) },
    text,
  );
  const inTable = first[0]?.tagName === "TR";
  const holder = inTable ? h("tr", h("td", button)) : Array.isArray(first[0]) ? h("dd", button) : h("li", button);
  return [...first, holder];
}

function leaf(value) {
  if (value === null) return h("span.muted", "null");
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return h("span.num", String(value));
  if (value === PRIVATE) return h("span.badge.gone", { title: "The tool declares this field private." }, "private");
  if (value === "") return h("span.muted", "empty");
  if (webAddress(value)) return outside(value);
  if (value.length <= LONG) return h("span.stranger", value);
  const box = h("span.stranger", value.slice(0, LONG), "… ");
  const more = h(
    "button.btn.small",
    { type: "button", onclick: () => set(box, value) },
    `Show all ${value.length.toLocaleString()} characters`,
  );
  return h("span", box, more);
}

/** The plain values of an object on one line. */
export function brief(value, most = 90) {
  const shown = unpacked(value);
  if (isPlain(shown)) return shown === null || shown === undefined ? "" : cut(String(shown), most);
  const values = Array.isArray(shown) ? shown : Object.values(shown);
  const parts = values.filter((one) => one !== null && isPlain(one) && one !== PRIVATE).map(String);
  if (!parts.length) return Array.isArray(shown) ? `${shown.length} values` : "";
  return cut(parts.join(", "), most);
}

const cut = (text, most) => {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
};

/** Whether two values are the same JSON. */
export function sameJson(a, b) {
  if (a === b) return true;
  if (isPlain(a) || isPlain(b) || Array.isArray(a) !== Array.isArray(b)) return false;
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => name in b && sameJson(a[name], b[name]));
}
