// A request as the client wrote it beside the one that the upstream got, member by member, by meaning.
import { h, set } from "../../core/dom.js";
import { icon } from "../../core/icons.js";
import { sameJson } from "../conversation/fields.js";
import { json } from "../json.js";

/** Names of different dialects for the same thing; the first that a request has stands for all. */
const EQUAL = [
  ["messages", "input"],
  ["instructions", "system"],
  ["max_tokens", "max_completion_tokens", "max_output_tokens"],
  ["stop", "stop_sequences"],
  ["response_format", "text", "format", "output_config"],
  ["reasoning_effort", "reasoning", "thinking", "think"],
  ["options", "temperature"],
];
const STATES = {
  same: ["ok", "check", "same"],
  changed: ["info", "tools", "translated"],
  omitted: ["warn", "block", "left out"],
  added: ["", "plus", "added"],
};

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** Rows of the members of both objects: `[name, left, right, state]`. */
export function members(left, right) {
  const rows = [];
  const rest = new Map(Object.entries(right));
  for (const [name, value] of Object.entries(left)) {
    const other = rest.has(name)
      ? name
      : (EQUAL.find((group) => group.includes(name)) ?? []).find((one) => rest.has(one));
    if (other === undefined) rows.push([name, value, undefined, "omitted"]);
    else {
      const same = other === name && sameJson(value, rest.get(other));
      rows.push([other === name ? name : `${name} → ${other}`, value, rest.get(other), same ? "same" : "changed"]);
      rest.delete(other);
    }
  }
  for (const [name, value] of rest) rows.push([name, undefined, value, "added"]);
  const order = ["omitted", "changed", "added", "same"];
  return rows.sort((a, b) => order.indexOf(a[3]) - order.indexOf(b[3]));
}

/** The table, or null if one of the texts is no JSON object; blanks and the order of members do not count. */
export function meaningOf(leftText, rightText) {
  let sides = [];
  try {
    sides = [leftText, rightText].map((text) => JSON.parse(text));
  } catch {
    return null;
  }
  if (!sides.every(isObject)) return null;
  const rows = members(...sides);
  const gone = rows.filter(([, , , state]) => state === "omitted").length;
  const value = (one) => (one === undefined ? h("span.muted", "–") : h("div.code", json(one, { open: 1 })));
  const row = ([name, left, right, state]) => {
    const [kind, sign, word] = STATES[state];
    const badge = h("span.badge", { class: kind }, icon(sign), word);
    return h(
      "tr",
      h("th.lead", { scope: "row" }, h("code", name), h("div", badge)),
      h("td", { "data-label": "Client" }, value(left)),
      h("td", { "data-label": "Upstream" }, state === "same" ? h("span.muted", "the same") : value(right)),
    );
  };
  const head = h(
    "thead",
    h(
      "tr",
      ["Member", "The client sent", "The upstream got"].map((text) => h("th", { scope: "col" }, text)),
    ),
  );
  const hint = gone ? `${gone} left out` : "nothing left out";
  const body = h("div.body");
  const open = () =>
    !body.hasChildNodes() && set(body, h("div.table-box", h("table.table.cards", head, h("tbody", rows.map(row)))));
  return h(
    "details.folded.meaning",
    { ontoggle: open },
    h("summary", h("span", "Compared as JSON"), h("span.muted", hint)),
    body,
  );
}
