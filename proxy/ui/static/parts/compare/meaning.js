// A request as the client wrote it beside the one that the upstream got, member by member, by meaning.
import { h, set } from "../../core/dom.js";
import { icon } from "../../core/icons.js";
import { sameJson } from "../conversation/fields.js";
import { json } from "../json.js";

const STATES = {
  same: ["ok", "check", "same"],
  changed: ["info", "tools", "translated"],
  omitted: ["warn", "block", "left out"],
  added: ["", "plus", "added"],
};

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/**
 * Rows of the members of both objects: `[name, left, right, state, why]`.  `table` has for each member of the client's
 * dialect those that say the same in the upstream's, `to`, and `why` there is none.
 */
export function members(left, right, table = {}) {
  const rows = [];
  const rest = new Map(Object.entries(right));
  for (const [name, value] of Object.entries(left)) {
    const others = (table[name]?.to ?? [name]).filter((one) => one in right);
    if (!others.length && name in right) others.push(name);
    if (!others.length) {
      rows.push([name, value, undefined, "omitted", table[name]?.why]);
      continue;
    }
    const there = others.length === 1 ? right[others[0]] : Object.fromEntries(others.map((one) => [one, right[one]]));
    const same = others[0] === name && sameJson(value, there);
    rows.push([others[0] === name ? name : `${name} → ${others.join(", ")}`, value, there, same ? "same" : "changed"]);
    others.forEach((one) => rest.delete(one));
  }
  for (const [name, value] of rest) rows.push([name, undefined, value, "added"]);
  const order = ["omitted", "changed", "added", "same"];
  return rows.sort((a, b) => order.indexOf(a[3]) - order.indexOf(b[3]));
}

/** The table, or null if one of the texts is no JSON object; blanks and the order of members do not count. */
export function meaningOf(leftText, rightText, { members: table, left_out: leftOut = [] } = {}) {
  let sides = [];
  try {
    sides = [leftText, rightText].map((text) => JSON.parse(text));
  } catch {
    return null;
  }
  if (!sides.every(isObject)) return null;
  const rows = members(...sides, table);
  const gone = rows.filter(([, , , state]) => state === "omitted").length;
  const value = (one) => (one === undefined ? h("span.muted", "–") : h("div.code", json(one, { open: 1 })));
  const row = ([name, left, right, state, why]) => {
    const [kind, sign, word] = STATES[state];
    const badge = h("span.badge", { class: kind }, icon(sign), word);
    return h(
      "tr",
      h("th.lead", { scope: "row" }, h("code", name), h("div", badge)),
      h("td", { "data-label": "Client" }, value(left)),
      h(
        "td",
        { "data-label": "Upstream" },
        state === "same" ? h("span.muted", "the same") : why ? h("span.muted", why) : value(right),
      ),
    );
  };
  const head = h(
    "thead",
    h(
      "tr",
      ["Member", "The client sent", "The upstream got"].map((text) => h("th", { scope: "col" }, text)),
    ),
  );
  const inside = leftOut.filter(
    ({ field }) => !rows.some(([name, , , state]) => name === field && state === "omitted"),
  );
  const hint = gone + inside.length ? `${gone + inside.length} left out` : "nothing left out";
  const more =
    inside.length > 0 &&
    h(
      "div.body",
      h("p.small", "Left out within members:"),
      h(
        "ul.small",
        inside.map(({ field, why }) => h("li", h("code.isolate", field), why && h("span.muted", `: ${why}`))),
      ),
    );
  const body = h("div.body");
  const open = () =>
    !body.hasChildNodes() &&
    set(body, h("div.table-box", h("table.table.cards", head, h("tbody", rows.map(row)))), more);
  return h(
    "details.folded.meaning",
    { ontoggle: open },
    h("summary", h("span", "Compared as JSON"), h("span.muted", hint)),
    body,
  );
}
