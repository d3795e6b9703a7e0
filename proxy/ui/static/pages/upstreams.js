// Upstreams: whether each answers, and what doctor found; and the server itself.
import { api } from "../core/api.js";
import { h } from "../core/dom.js";
import { NONE, ago, count, duration, number } from "../core/format.js";
import { icon } from "../core/icons.js";
import { dialectName } from "../parts/badges.js";
import { code, empty, facts, figures, head } from "../parts/page.js";

const BREAKER = { open: ["bad", "cross", "set aside"], half_open: ["warn", "clock", "on trial"] };
const FOUND = { ok: ["ok", "check"], no: ["bad", "cross"], quirk: ["warn", "alert"], open: ["", "help"] };

export async function show({ signal }) {
  const [list, health] = await Promise.all([api("upstreams", { signal }), api("health", { signal }).catch(() => null)]);
  return {
    title: "Upstreams",
    node: [
      head("Upstreams", "Where requests go, whether each upstream answers, and what doctor found."),
      health &&
        figures([
          ["Server", health.status === "ok" ? "OK" : health.status, health.version],
          ["Workers", number(health.workers)],
          ["Record", health.record?.healthy ? "OK" : "not available", health.record?.kind],
          ["Pending writes", number(health.record?.waiting), health.record?.lost ? `${health.record.lost} lost` : null],
          ["Open pages", number(health.listeners)],
          health.mcp && [
            "MCP servers",
            number(health.mcp.ready),
            health.mcp.failed ? `${health.mcp.failed} failed` : null,
          ],
        ]),
      list.data.length
        ? h("div.tiles", list.data.map(tile))
        : h(
            "div.card",
            empty("upstreams", "No upstream is configured", "An upstream is a server that answers for a model."),
          ),
    ],
  };
}

function tile(one) {
  const [kind, sign, word] = stateOf(one);
  return h(
    "section.card.tile",
    { "aria-label": one.id },
    h(
      "div.row",
      h("h2.grow.cut", one.id),
      h(
        "span.badge",
        { class: kind, title: "By its circuit breaker in this worker, and the runs of the last day" },
        icon(sign),
        word,
      ),
    ),
    facts([
      ["Address", h("code", one.base_url)],
      ["Speaks", (one.wires ?? []).map(dialectName).join(", ")],
      [
        "Models",
        h(
          "div.badges.wrap",
          (one.models ?? []).slice(0, 10).map((model) => h("span.badge.tool-badge", model)),
        ),
      ],
      ["Tools", one.tools === false ? "not offered here" : null],
      ...lately(one.recent),
      ["Failures in a row", one.breaker?.failures || null],
      ["Set aside for", one.breaker?.open_for_s ? duration(one.breaker.open_for_s) : null],
    ]),
    one.doctor
      ? h(
          "details",
          { open: one.doctor.findings.some((found) => found.outcome === "no") },
          h(
            "summary",
            `Doctor, ${[one.doctor.at ? ago(one.doctor.at) : NONE, one.doctor.model].filter(Boolean).join(", ")}: `,
            count(one.doctor.findings.length, "finding"),
          ),
          h("ul.col", { style: { "margin-top": ".5rem" } }, one.doctor.findings.map(finding)),
        )
      : h(
          "details",
          h("summary.muted", "Not examined by doctor yet"),
          code(`toolrelay doctor --upstream ${one.id}`, "command"),
        ),
  );
}

/** The state of an upstream: it answers only if its last answer is newer than its last error. */
function stateOf({ breaker, recent }) {
  if (BREAKER[breaker?.state]) return BREAKER[breaker.state];
  if (!recent) return ["", "clock", "not asked in a day"];
  const { last_success_at: good, last_error: bad } = recent;
  if (bad && bad.at > (good ?? 0)) return ["bad", "cross", "fails"];
  return good ? ["ok", "check", "answers"] : ["", "clock", "no answer yet"];
}

function lately(recent) {
  if (!recent) return [["Last day", "no run used it"]];
  const { requests, errors, error_rate: rate, last_success_at: good, last_error: bad } = recent;
  const failed = errors
    ? h("span.badge", { class: rate > 0.05 ? "bad" : "warn" }, `${number(errors)} failed (${percent(rate)})`)
    : h("span.muted", "none failed");
  return [
    ["Runs, last day", h("span.row.wrap", number(requests), failed)],
    ["Last success", good ? ago(good) : "none in a day"],
    [
      "Last error",
      bad &&
        h(
          "div.col",
          h("span", h("code", bad.code), ` ${ago(bad.at)} · `, h("a", { href: `/ui/runs/${bad.run_id}` }, "its run")),
          bad.message && h("span.small.stranger", bad.message),
        ),
    ],
    ["Takes", recent.p50_s === null ? null : `${duration(recent.p50_s)} (p50), ${duration(recent.p95_s)} (p95)`],
  ];
}

const percent = (part) => `${part < 0.01 ? (part * 100).toFixed(1) : Math.round(part * 100)} %`;

function finding(one) {
  const [kind, sign] = FOUND[one.outcome] ?? ["", "info"];
  return h(
    "li.row.wrap",
    h("span.badge", { class: kind }, icon(sign), one.outcome),
    h("span", one.check),
    one.note && h("span.muted.small", one.note),
  );
}
