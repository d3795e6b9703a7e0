// MCP servers: whether each is connected, and whether its tools are as they were allowed.
import { api } from "../core/api.js";
import { h } from "../core/dom.js";
import { count, ms } from "../core/format.js";
import { icon } from "../core/icons.js";
import { json } from "../parts/json.js";
import { code, empty, facts, head, note } from "../parts/page.js";

const STATE = {
  ready: ["ok", "check"],
  connecting: ["info", null],
  starting: ["info", null],
  failed: ["bad", "cross"],
  unreachable: ["bad", "cross"],
  stopped: ["", "block"],
  off: ["", "block"],
};
const PIN = { pinned: "ok", allowed: "ok", new: "warn", changed: "bad", moved: "bad", gone: "" };

export async function show({ signal }) {
  const list = await api("mcp", { signal });
  return {
    title: "MCP servers",
    node: [
      head("MCP servers", list.data.length ? count(list.data.length, "server") : null),
      list.data.length
        ? h("div.tiles", list.data.map(server))
        : h(
            "div.card",
            empty(
              "mcp",
              "No MCP server is configured",
              "Tools of MCP servers are offered to models once a person has allowed their definitions.",
              code('[mcp.servers.NAME]\ncommand = "COMMAND"', "configuration"),
            ),
          ),
    ],
  };
}

function server(one) {
  const [kind, sign] = STATE[one.state] ?? ["warn", "alert"];
  const drifted = one.tools.filter((tool) => ["changed", "moved"].includes(tool.state));
  return h(
    "section.card.tile",
    { "aria-label": one.id },
    h(
      "div.row",
      h("h2.grow.cut", one.id),
      h("span.badge", { class: kind }, sign ? icon(sign) : h("i.spin"), one.state),
    ),
    facts([
      ["Reached by", h("code", one.reached_by)],
      ["Calls itself", [one.server_name, one.server_version].filter(Boolean).join(" ")],
      ["Protocol", one.protocol],
      ["Lists its tools in", one.list_ms === null ? null : ms(one.list_ms)],
      ["Reconnects", one.reconnects || null],
      ["Last error", one.last_error && h("span.isolate", one.last_error)],
      ["Reason", one.reason],
    ]),
    drifted.length > 0 &&
      note(
        "bad",
        `${count(drifted.length, "tool")} changed since a person allowed ${drifted.length === 1 ? "it" : "them"}, `,
        `and ${drifted.length === 1 ? "is" : "are"} withheld.`,
      ),
    one.tools.length > 0 &&
      h(
        "details",
        { open: drifted.length > 0 || one.tools.length < 6 },
        h("summary", count(one.tools.length, "tool")),
        h("ul.col", { style: { "margin-top": ".5rem" } }, one.tools.map(tool)),
      ),
    one.left_out?.length > 0 &&
      h(
        "details",
        h("summary.muted", `${count(one.left_out.length, "tool")} left out`),
        h(
          "ul.col",
          one.left_out.map((left) => h("li", h("code", left.name), h("span.muted", `: ${left.reason}`))),
        ),
      ),
  );
}

function tool(one) {
  return h(
    "li.col",
    { style: { gap: ".2rem" } },
    h(
      "div.row",
      h("code.grow.cut", { title: one.name }, one.name),
      h("span.badge", { class: PIN[one.state] ?? "" }, one.state),
    ),
    one.withheld && h("p.small.muted", `Withheld: ${one.withheld}`),
    one.difference &&
      h("details", { open: true }, h("summary.small", "What changed"), h("div.code", one.difference.map(line))),
    one.pinned && !one.current && h("details", h("summary.small", "What was allowed"), h("div.code", json(one.pinned))),
    one.pinned &&
      one.current &&
      h(
        "details",
        h("summary.small", "Both definitions"),
        h(
          "div.diff",
          h("div.col", h("span.small.muted", "Allowed"), h("div.code", json(one.pinned))),
          h("div.col", h("span.small.muted", "Now"), h("div.code", json(one.current))),
        ),
      ),
  );
}

const CHANGE = { "-": "gone", "+": "added" };

/** A line of a difference; the server wrote what hides in it out. */
function line(text) {
  return h("div.stranger", { class: CHANGE[text[0]] ?? "muted" }, text);
}
