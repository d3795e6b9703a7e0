// Client keys with what they may do.  The page shows no secret, and cannot create or revoke keys.
import { api } from "../core/api.js";
import { h } from "../core/dom.js";
import { NONE, ago, cost, count, duration, moment, number, short } from "../core/format.js";
import { icon } from "../core/icons.js";
import { code, empty, head } from "../parts/page.js";

export async function show({ signal }) {
  const list = await api("keys", { signal });
  const columns = ["Key", "Last used", "30 days", "Budget", "Rights", "Models", "Tools", "Limits", "Expires"];
  return {
    title: "Keys",
    node: [
      head("Keys", "Who may use the proxy, and for what. Create and revoke keys on the command line."),
      list.data.length
        ? h(
            "section.card",
            { "aria-label": "Keys" },
            h(
              "div.table-box",
              h(
                "table.table.cards",
                h(
                  "thead",
                  h(
                    "tr",
                    columns.map((one) => h("th", { scope: "col" }, one)),
                  ),
                ),
                h("tbody", list.data.map(row)),
              ),
            ),
          )
        : h(
            "div.card",
            empty(
              "keys",
              "There is no client key yet",
              "Until there is one, clients need the start token, unless the server is open.",
              code("toolrelay keys create NAME", "command"),
            ),
          ),
      h("p.muted.small", count(list.data.length, "key")),
    ],
  };
}

const all = (list) =>
  list === null || list === undefined
    ? h("span.muted", "all")
    : list.length
      ? h(
          "div.badges.wrap",
          list.slice(0, 12).map((one) => h("span.badge.tool-badge", one)),
          list.length > 12 && h("span.badge", `+${list.length - 12}`),
        )
      : h("span.muted", "none");

function row(key) {
  const rights = [
    ["admin", "administrator"],
    ["approves", "approver"],
    ["mint", "makes tokens"],
  ]
    .filter(([name]) => (Array.isArray(key[name]) ? key[name].length : key[name]))
    .map(([, word]) => h("span.badge.accent", word));
  const state = key.revoked_at
    ? h("span.badge.bad", icon("block"), "revoked")
    : !key.valid && h("span.badge.warn", "not valid");
  const limits = Object.entries(key.limits ?? {}).map(([name, value]) =>
    h("div.small", `${name}: ${[value].flat().join(", ")}`),
  );
  return h(
    "tr",
    h(
      "td.lead",
      h("strong", key.name),
      " ",
      state,
      h("div.small.muted", h("code", key.id), key.source === "config" && " from the configuration"),
    ),
    h(
      "td.nowrap",
      { "data-label": "Last used" },
      key.last_used_at
        ? h(
            "a",
            { href: `/ui/runs?key=${encodeURIComponent(key.name)}`, title: moment(key.last_used_at) },
            ago(key.last_used_at),
          )
        : h("span.muted", "never"),
    ),
    h(
      "td.nowrap",
      { "data-label": "30 days" },
      key.month
        ? [
            `${number(key.month.runs)} runs`,
            h(
              "div.small.muted",
              `${short(key.month.total_tokens)} tokens · ${key.month.cost === null ? NONE : cost(key.month.cost)}`,
            ),
          ]
        : h("span.muted", "nothing"),
    ),
    h("td", { "data-label": "Budget" }, (key.budgets ?? []).length ? key.budgets.map(budget) : h("span.muted", "none")),
    h("td", { "data-label": "Rights" }, h("div.badges.wrap", rights.length ? rights : h("span.muted", "requests"))),
    h("td", { "data-label": "Models" }, all(key.models)),
    h("td", { "data-label": "Tools" }, all(key.tools)),
    h("td", { "data-label": "Limits" }, limits.length ? limits : h("span.muted", "the general ones")),
    h("td", { "data-label": "Expires" }, key.expires_at ? moment(key.expires_at) : h("span.muted", "never")),
  );
}

function budget({ kind, used, most, seconds }) {
  const format = kind === "cost" ? cost : short;
  const part = most ? Math.min(1, used / most) : 1;
  const text = `${format(used)} of ${format(most)}${kind === "tokens" ? " tokens" : ""} in ${duration(seconds)}`;
  return h(
    "div.budget",
    h("div.small.nowrap", text),
    h(
      "span.meter",
      { class: part >= 1 ? "bad" : part > 0.8 ? "warn" : "", role: "img", "aria-label": text },
      h("i", { style: { width: `${part * 100}%` } }),
    ),
  );
}
