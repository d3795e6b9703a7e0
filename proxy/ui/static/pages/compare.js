// Two runs beside each other, or two models that played the same fixture.
import { api, query } from "../core/api.js";
import { h } from "../core/dom.js";
import { cost, duration, number, shortId, when } from "../core/format.js";
import { icon } from "../core/icons.js";
import { statusBadge, toolName } from "../parts/badges.js";
import { json } from "../parts/json.js";
import { answers } from "../parts/compare/answers.js";
import { card, empty, head } from "../parts/page.js";
import { plays } from "../parts/plays.js";
import { timeline } from "../parts/timeline.js";

export async function show({ query: asked, signal }) {
  const [a, b] = [asked.get("a"), asked.get("b")];
  if (!a || !b)
    return {
      title: "Compare",
      node: [
        head("Compare"),
        h("div.card", empty("compare", "Choose two runs", "Open a run and choose “Compare with…”.")),
        plays(),
      ],
    };
  const found = await api(`compare${query({ a, b })}`, { signal });
  const longest = 1000 * Math.max(found.a.run.duration_s ?? 0, found.b.run.duration_s ?? 0);
  const side = (name, detail) =>
    h(
      "section.card",
      { "aria-label": `Run ${name}` },
      h(
        "header",
        h("h2", h("a", { href: `/ui/runs/${detail.run.id}` }, `${name} · ${shortId(detail.run.id)}`)),
        statusBadge(detail.run.status),
        h("span.muted.small", when(detail.run.started_at)),
      ),
      timeline(detail, { end: longest }).element,
    );
  const rows = [
    ["Took", duration(found.a.run.duration_s), duration(found.b.run.duration_s)],
    ["Tokens", number(found.a.run.total_tokens), number(found.b.run.total_tokens)],
    ["Cost", cost(found.a.run.cost), cost(found.b.run.cost)],
    ...found.fields.map((one) => [one.name.replaceAll("_", " "), shown(one.a), shown(one.b)]),
  ];
  const seen = new Set();
  const unique = rows.filter(([name]) => !seen.has(name) && seen.add(name));
  return {
    title: "Compare",
    node: [
      head(
        "Compare two runs",
        found.same_prompt
          ? "Both requests have the same model, instructions and tools."
          : "The requests differ in model, instructions or tools.",
      ),
      answers(found.a.run.id, found.b.run.id, signal),
      h("div.diff", side("A", found.a), side("B", found.b)),
      card(
        "Differences",
        null,
        h(
          "div.table-box",
          h(
            "table.table",
            h(
              "thead",
              h(
                "tr",
                ["What", "A", "B"].map((one) => h("th", { scope: "col" }, one)),
              ),
            ),
            h(
              "tbody",
              unique.map(([name, x, y]) =>
                h(
                  "tr",
                  h("th", { scope: "row" }, name),
                  h("td.isolate", x),
                  h("td.isolate", x === y ? y : h("strong", y)),
                ),
              ),
            ),
          ),
        ),
      ),
      found.calls.length > 0 && card("Calls", null, h("div", found.calls.map(call))),
    ],
  };
}

const shown = (value) =>
  value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);

function call(one) {
  const same = (yes, word) =>
    h(
      "span.badge",
      { class: yes ? "ok" : "warn" },
      icon(yes ? "check" : "alert"),
      yes ? `same ${word}` : `different ${word}`,
    );
  const half = (side) =>
    side
      ? h(
          "div.col",
          h("code", toolName(side.tool)),
          h("div.code", json(side.arguments_redacted)),
          h("div.code", json(side.result_redacted ?? side.error_code)),
        )
      : h("p.muted", "No such call.");
  return h(
    "div.why",
    h("strong", `Turn ${one.turn}, call ${one.seq}`),
    h("span.row", same(one.same_arguments, "arguments"), same(one.same_result, "result")),
    h("div.diff", half(one.a), half(one.b)),
  );
}
