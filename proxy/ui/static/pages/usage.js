// Usage by day and by model, key, tool or person.
import { api, query } from "../core/api.js";
import { h, set } from "../core/dom.js";
import { NONE, ago, cost, duration, number, short } from "../core/format.js";
import { icon } from "../core/icons.js";
import { remember } from "../core/router.js";
import { stacked } from "../parts/chart.js";
import { empty, figures, head, note } from "../parts/page.js";
import { csv } from "../parts/runs/export.js";
import { save } from "../parts/run/actions.js";

const BY = [
  ["model", "Model"],
  ["key", "Key"],
  ["tool", "Tool"],
  ["caller", "Person"],
];
const SPAN = [
  ["24h", "Day"],
  ["7d", "7 days"],
  ["30d", "30 days"],
  ["90d", "90 days"],
];
const VALUE = [
  ["total_tokens", "Tokens", short],
  ["cost", "Cost", cost],
  ["runs", "Runs", number],
  ["tool_calls", "Tool calls", number],
  ["errors", "Errors", number],
];

export async function show({ query: asked, signal }) {
  const pick = (list, name, first) => (list.some(([one]) => one === asked.get(name)) ? asked.get(name) : first);
  let by = pick(BY, "by", "model");
  let since = pick(SPAN, "since", "7d");
  let value = pick(VALUE, "show", "total_tokens");
  const box = h("div.col", { style: { gap: "1.1rem" } });
  const below = h("div.col", { style: { gap: "1.1rem" } });
  let table = [];

  async function load() {
    const recent = api(`usage/recent${query({ since })}`, { signal }).catch(() => null);
    const [days, rows] = await Promise.all([
      api(`usage${query({ by: `${by},day`, since })}`, { signal }),
      api(`usage${query({ by, since })}`, { signal }),
    ]);
    draw(days.data, rows.data);
    const lately = await recent;
    if (lately && !signal.aborted) set(below, errorsCard(lately), latencyCard(lately));
  }

  function draw(days, rows) {
    const tools = by === "tool";
    const shown = VALUE.filter(([name]) => !tools || ["tool_calls", "errors"].includes(name));
    const [key, name, format] = shown.find(([one]) => one === value) ?? shown[0];
    if (!rows.length)
      return set(box, h("div.card", empty("usage", "No usage in this period", "Runs are counted when they end.")));
    table = rows;
    const sum = (field) => rows.reduce((total, row) => total + (row[field] ?? 0), 0);
    const sorted = [...rows].sort((a, b) => (b[key] ?? 0) - (a[key] ?? 0));
    set(
      box,
      figures([
        ["Runs", number(sum("runs"))],
        ["Tool calls", number(sum("tool_calls"))],
        ["Errors", number(sum("errors"))],
        !tools && [
          "Tokens",
          short(sum("total_tokens")),
          `${short(sum("input_tokens"))} in, ${short(sum("output_tokens"))} out`,
        ],
        !tools && ["Cost", rows.some((row) => row.cost !== null) ? cost(sum("cost")) : NONE],
      ]),
      h(
        "section.card",
        { "aria-label": `${name} by day` },
        h(
          "header",
          h("h2", `${name} by day`),
          seg(
            "What",
            shown.map(([one, text]) => [one, text]),
            key,
            (next) => {
              value = next;
              store();
              draw(days, rows);
            },
          ),
        ),
        h("div.body", stacked(days, { by, key, name, format, order: sorted.map((row) => row.group[by]), since })),
      ),
      h(
        "section.card",
        { "aria-label": "Table" },
        h(
          "div.table-box",
          h(
            "table.table.cards",
            h(
              "thead",
              h(
                "tr",
                [
                  BY.find(([one]) => one === by)[1],
                  "Runs",
                  "Calls",
                  "Errors",
                  ...(tools ? ["p50", "p95"] : ["Tokens in", "Tokens out", "Cost"]),
                ].map((one, at) => h("th", { scope: "col", class: at ? "num" : "" }, one)),
              ),
            ),
            h(
              "tbody",
              sorted.map((row) =>
                h(
                  "tr",
                  h("td.lead", h("strong.isolate", label(row.group[by]))),
                  cell("Runs", number(row.runs)),
                  cell("Calls", number(row.tool_calls)),
                  cell("Errors", row.errors ? h("span.badge.bad", number(row.errors)) : "0"),
                  tools
                    ? [cell("p50", duration(row.tool_p50_s)), cell("p95", duration(row.tool_p95_s))]
                    : [
                        cell("Tokens in", plus(row, "input_tokens")),
                        cell("Tokens out", plus(row, "output_tokens")),
                        cell("Cost", cost(row.cost)),
                      ],
                ),
              ),
            ),
          ),
        ),
      ),
    );
  }

  const cell = (name, ...children) => h("td.num", { "data-label": name }, h("span", children));
  const plus = (row, field) => `${number(row[field])}${row.unreported ? "+" : ""}`;
  const store = () =>
    remember(
      query({
        by: by === "model" ? "" : by,
        since: since === "7d" ? "" : since,
        show: value === "total_tokens" ? "" : value,
      }),
    );
  const seg = (name, list, chosen, choose) =>
    h(
      "div.seg",
      { role: "group", "aria-label": name },
      list.map(([one, text]) =>
        h("button", { type: "button", "aria-pressed": String(one === chosen), onclick: () => choose(one) }, text),
      ),
    );
  const bar = h("div.filters");
  const controls = () =>
    set(
      bar,
      seg("By", BY, by, (next) => {
        by = next;
        change();
      }),
      seg("Time", SPAN, since, (next) => {
        since = next;
        change();
      }),
    );
  const change = () => {
    store();
    controls();
    load().catch((error) => error.name !== "AbortError" && set(box, note("bad", error.message)));
  };
  controls();
  await load();
  return {
    title: "Usage",
    node: [
      head(
        "Usage",
        "Tokens, calls and cost, from the record.",
        h("button.btn", { type: "button", onclick: () => saveTable(table, by) }, icon("down"), "Save as CSV"),
      ),
      bar,
      box,
      below,
    ],
  };
}

const label = (value) => (value === "" || value === null || value === undefined ? "(none)" : String(value));

const SAVED = [
  "runs",
  "turns",
  "tool_calls",
  "errors",
  "input_tokens",
  "output_tokens",
  "total_tokens",
  "cost",
  "tool_p50_s",
  "tool_p95_s",
];

function saveTable(rows, by) {
  save(
    new Blob([csv([by, ...SAVED], rows, (row, name) => (name === by ? row.group[by] : (row[name] ?? "")))], {
      type: "text/csv",
    }),
    `usage-by-${by}.csv`,
  );
}

const covered = ({ runs, most }) => (runs >= most ? `Of the newest ${number(most)} runs of this time.` : "");

/** The errors of runs by kind, each with its newest message. */
function errorsCard(lately) {
  if (!lately.errors.length) return null;
  const row = (one) =>
    h(
      "tr",
      h("td.lead", h("code", one.code), one.message && h("div.small.stranger", one.message)),
      h("td.num", { "data-label": "Runs" }, number(one.count)),
      h("td", { "data-label": "Last" }, h("a", { href: `/ui/runs/${one.run_id}` }, ago(one.at))),
    );
  return h(
    "section.card",
    { "aria-label": "Errors by kind" },
    h("header", h("h2", "Errors by kind"), h("span.muted.small", covered(lately))),
    h(
      "div.table-box",
      h(
        "table.table.cards",
        h(
          "thead",
          h(
            "tr",
            h("th", { scope: "col" }, "Error"),
            h("th.num", { scope: "col" }, "Runs"),
            h("th", { scope: "col" }, "Last"),
          ),
        ),
        h("tbody", lately.errors.map(row)),
      ),
    ),
  );
}

function latencyCard(lately) {
  if (!lately.data.length) return null;
  const columns = ["Model", "Runs", "Failed", "p50", "p95"];
  const row = (one) =>
    h(
      "tr",
      h("td.lead", h("strong.isolate", label(one.name))),
      [
        ["Runs", number(one.requests)],
        ["Failed", number(one.errors)],
        ["p50", duration(one.p50_s)],
        ["p95", duration(one.p95_s)],
      ].map(([name, text]) => h("td.num", { "data-label": name }, text)),
    );
  return h(
    "section.card",
    { "aria-label": "How long runs take" },
    h("header", h("h2", "How long runs take"), h("span.muted.small", covered(lately))),
    h(
      "div.table-box",
      h(
        "table.table.cards",
        h(
          "thead",
          h(
            "tr",
            columns.map((one, at) => h("th", { scope: "col", class: at ? "num" : "" }, one)),
          ),
        ),
        h("tbody", [...lately.data].sort((a, b) => b.requests - a.requests).map(row)),
      ),
    ),
  );
}
