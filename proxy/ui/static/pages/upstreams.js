// Upstreams: whether each answers, and what doctor found; and the server itself.
import { api } from "../core/api.js";
import { h } from "../core/dom.js";
import { NONE, ago, count, duration, number } from "../core/format.js";
import { icon } from "../core/icons.js";
import { dialectName } from "../parts/badges.js";
import { code, empty, facts, figures, head } from "../parts/page.js";

const BREAKER = { closed: ["ok", "check", "answers"], open: ["bad", "cross", "set aside"], half_open: ["warn", "clock", "on trial"] };
const FOUND = { ok: ["ok", "check"], no: ["bad", "cross"], quirk: ["warn", "alert"], open: ["", "help"] };

export async function show({ signal }) {
  const [list, health] = await Promise.all([api("upstreams", { signal }), api("health", { signal }).catch(() => null)]);
  return {
    title: "Upstreams",
    node: [
      head("Upstreams", "Where requests go, whether each upstream answers, and what doctor found."),
      health && figures([["Server", health.status === "ok" ? "OK" : health.status, health.version], ["Workers", number(health.workers)], ["Record", health.record?.healthy ? "OK" : "not available", health.record?.kind], ["Pending writes", number(health.record?.waiting), health.record?.lost ? `${health.record.lost} lost` : null], ["Open pages", number(health.listeners)], health.mcp && ["MCP servers", number(health.mcp.ready), health.mcp.failed ? `${health.mcp.failed} failed` : null]]),
      list.data.length ? h("div.tiles", list.data.map(tile)) : h("div.card", empty("upstreams", "No upstream is configured", "An upstream is a server that answers for a model.")),
    ],
  };
}

function tile(one) {
  const [kind, sign, word] = BREAKER[one.breaker?.state] ?? ["", "info", one.breaker?.state ?? "unknown"];
  return h(
    "section.card.tile",
    { "aria-label": one.id },
    h("div.row", h("h2.grow.cut", one.id), h("span.badge", { class: kind, title: "State of the circuit breaker in this worker" }, icon(sign), word)),
    facts([["Address", h("code", one.base_url)], ["Speaks", (one.wires ?? []).map(dialectName).join(", ")], ["Models", h("div.badges.wrap", (one.models ?? []).slice(0, 10).map((model) => h("span.badge.tool-badge", model)))], ["Tools", one.tools === false ? "not offered here" : null],
      ["Requests", one.requests === undefined || one.requests === null ? null : `${number(one.requests)}${one.errors ? `, ${number(one.errors)} failed` : ""}`],
      ["Failures in a row", one.breaker?.failures || null], ["Set aside for", one.breaker?.open_for_s ? duration(one.breaker.open_for_s) : null]]),
    one.doctor
      ? h("details", { open: one.doctor.findings.some((found) => found.outcome === "no") }, h("summary", `Doctor, ${one.doctor.at ? ago(one.doctor.at) : NONE}${one.doctor.model ? `, ${one.doctor.model}` : ""}: ${count(one.doctor.findings.length, "finding")}`), h("ul.col", { style: { "margin-top": ".5rem" } }, one.doctor.findings.map(finding)))
      : h("details", h("summary.muted", "Not examined by doctor yet"), code(`toolrelay doctor --upstream ${one.id}`, "command")),
  );
}

function finding(one) {
  const [kind, sign] = FOUND[one.outcome] ?? ["", "info"];
  return h("li.row.wrap", h("span.badge", { class: kind }, icon(sign), one.outcome), h("span", one.check), one.note && h("span.muted.small", one.note));
}
