// Tools: their effects, what policy decides, and whether their definitions are as they were allowed.
import { api, query } from "../core/api.js";
import { h, set } from "../core/dom.js";
import { cost, ms, number } from "../core/format.js";
import { icon } from "../core/icons.js";
import { remember } from "../core/router.js";
import { toolName } from "../parts/badges.js";
import { dialog } from "../parts/dialog.js";
import { json } from "../parts/json.js";
import { code, empty, facts, head, note } from "../parts/page.js";
import { change } from "../parts/why.js";

const PIN = {
  allowed: ["ok", "pinned"],
  pinned: ["ok", "pinned"],
  new: ["warn", "new"],
  changed: ["bad", "changed"],
  moved: ["bad", "moved"],
  gone: ["", "gone"],
};

export async function show({ query: asked, signal }) {
  const list = await api("tools", { signal });
  let text = asked.get("q") ?? "";
  const box = h("div");
  const offered = list.data.filter((one) => !one.withheld).length;

  function draw() {
    const rows = list.data.filter((one) =>
      `${one.id} ${one.description ?? ""}`.toLowerCase().includes(text.toLowerCase()),
    );
    set(
      box,
      !list.data.length
        ? h(
            "div.card",
            empty(
              "tools",
              "No tool is loaded",
              "toolrelay has built-in tools. Name MCP servers and your own tools in the configuration.",
            ),
          )
        : h(
            "section.card",
            { "aria-label": "Tools" },
            h(
              "div.table-box",
              h(
                "table.table.cards",
                h(
                  "thead",
                  h(
                    "tr",
                    ["Tool", "Effect", "Policy", "Definition", "Calls today", "p95"].map((one, at) =>
                      h("th", { scope: "col", class: at > 3 ? "num" : "" }, one),
                    ),
                  ),
                ),
                h("tbody", rows.map(row)),
              ),
            ),
          ),
    );
  }

  function row(tool) {
    const pin = tool.pin && (PIN[tool.pin.state] ?? ["", tool.pin.state]);
    return h(
      "tr.act",
      { onclick: () => open(tool) },
      h(
        "td.lead",
        h(
          "button.btn.ghost.small",
          {
            type: "button",
            style: { padding: 0, "min-height": 0 },
            onclick: (event) => {
              event.stopPropagation();
              open(tool);
            },
          },
          h("code", h("strong", toolName(tool.id))),
        ),
        h("div.muted.small", { style: { "max-width": "44rem" } }, firstLine(tool.description)),
      ),
      h("td.nowrap", { "data-label": "Effect" }, tool.effect?.replaceAll("_", " ")),
      h(
        "td",
        { "data-label": "Policy" },
        tool.withheld
          ? h("span.badge.warn", icon("block"), h("span", "withheld"))
          : h("span.badge.ok", icon("check"), h("span", "offered")),
      ),
      h(
        "td",
        { "data-label": "Definition" },
        pin ? h("span.badge", { class: pin[0] }, pin[1]) : h("code.small.muted.nowrap", tool.digest?.slice(0, 8)),
      ),
      h(
        "td.num",
        { "data-label": "Calls today" },
        tool.used
          ? h("span", number(tool.used.calls), tool.used.errors > 0 && h("span.muted", ` (${tool.used.errors} failed)`))
          : "–",
      ),
      h("td.num", { "data-label": "p95" }, tool.used ? ms(tool.used.p95_ms) : "–"),
    );
  }

  const search = h(
    "div.search",
    icon("search"),
    h("input.input", {
      type: "search",
      "aria-label": "Search the tools",
      placeholder: "Search",
      value: text,
      oninput: (event) => {
        text = event.target.value;
        remember(query({ q: text }));
        draw();
      },
    }),
    h("kbd", { "aria-hidden": "true" }, "/"),
  );
  draw();
  return {
    title: "Tools",
    node: [
      head(
        "Tools",
        `${number(list.data.length)} loaded, ${number(offered)} offered to models.`,
        h(
          "button.btn",
          { type: "button", onclick: () => explain(list.data) },
          icon("help"),
          "Why is this not offered?",
        ),
      ),
      h("div.filters", search),
      box,
    ],
  };
}

const firstLine = (text) => {
  const line = (text ?? "").split("\n")[0];
  return line.length > 160 ? `${line.slice(0, 160)}…` : line;
};

function open(tool) {
  dialog(
    toolName(tool.id),
    h("p.stranger", tool.description),
    facts([
      ["Id", h("code", tool.id)],
      ["Provider", tool.provider],
      ["Effect", tool.effect?.replaceAll("_", " ")],
      ["Decision", `${tool.decision}${tool.rule ? `, by ${tool.rule}` : ""}`],
      ["Withheld", tool.withheld],
      ["Price of a call", tool.price === null ? null : cost(tool.price)],
      ["Digest", h("code", tool.digest?.slice(0, 16))],
    ]),
    change(tool.change),
    tool.pin &&
      tool.pin.state !== "allowed" &&
      tool.pin.state !== "pinned" &&
      h(
        "div.col",
        note("warn", `Its definition is “${tool.pin.state}”. This page cannot allow it; use the command line:`),
        tool.pin.allow_with && code(tool.pin.allow_with, "command"),
      ),
    tool.used &&
      facts([
        ["Calls today", number(tool.used.calls)],
        ["Failed", number(tool.used.errors)],
        ["p50", ms(tool.used.p50_ms)],
        ["p95", ms(tool.used.p95_ms)],
      ]),
    h("h3", "Parameters"),
    h("div.code", json(tool.parameters, { open: 3 })),
  );
}

/** The chain of decisions for a tool, a key and an upstream. */
function explain(tools) {
  const out = h("div.col");
  const tool = h(
    "select.input",
    tools.map((one) => h("option", { value: one.id }, one.id)),
  );
  const key = h("input.input", { placeholder: "no key", spellcheck: "false" });
  const upstream = h("input.input", { placeholder: "the first upstream", spellcheck: "false" });
  dialog(
    "Why is this not offered?",
    h(
      "form.col",
      {
        onsubmit: async (event) => {
          event.preventDefault();
          try {
            const found = await api(
              `explain${query({ tool: tool.value, key: key.value.trim(), upstream: upstream.value.trim() })}`,
            );
            const good = found.outcome === "offered";
            set(
              out,
              h("span.badge", { class: good ? "ok" : "warn" }, icon(good ? "check" : "block"), found.outcome),
              h(
                "ol.col",
                found.steps.map((step) =>
                  h(
                    "li.row",
                    h("span.badge", { class: /allow|offer|yes/.test(step.outcome) ? "ok" : "warn" }, step.outcome),
                    h("span", step.what),
                    step.rule && h("code.muted", step.rule),
                  ),
                ),
              ),
              change(found.change),
            );
          } catch (error) {
            set(out, note("bad", error.message));
          }
        },
      },
      h("label.field", h("span", "Tool"), tool),
      h("label.field", h("span", "Key"), key),
      h("label.field", h("span", "Upstream"), upstream),
      h("button.btn.main", { type: "submit" }, "Explain"),
    ),
    out,
  );
}
