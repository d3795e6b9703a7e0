// Upstreams: whether each answers, and what doctor found of it; and the server itself.
import { api } from "../core/api.js";
import { h } from "../core/dom.js";
import { NONE, ago, count, number, time } from "../core/format.js";
import { icon } from "../core/icons.js";
import { dialectName } from "../parts/badges.js";
import { code, empty, facts, figures, head } from "../parts/page.js";

const BREAKER = { closed: ["ok", "check", "answers"], open: ["bad", "cross", "set aside"], half_open: ["warn", "clock", "on trial"] };
const FOUND = { ok: ["ok", "check"], defect: ["bad", "cross"], repaired: ["warn", "tools"], unknown: ["", "help"] };

export async function show({ signal }) {
  const [list, health] = await Promise.all([api("upstreams", { signal }), api("health", { signal }).catch(() => null)]);
  return {
    title: "Upstreams",
    node: [
      head("Upstreams", "Where requests go, whether it answers, and what doctor found."),
      health && figures([["Server", health.status === "ok" ? "well" : health.status, health.version], ["Workers", number(health.workers)], ["Record", health.record?.healthy ? "well" : "in trouble", health.record?.kind], ["Waiting writes", number(health.record?.waiting), health.record?.lost ? `${health.record.lost} lost` : null], ["Pages that listen", number(health.listeners)], health.mcp && ["MCP servers", number(health.mcp.ready), health.mcp.failed ? `${health.mcp.failed} failed` : null]]),
      list.data.length ? h("div.tiles", list.data.map(tile)) : h("div.card", empty("upstreams", "No upstream is configured", "An upstream is a server that answers for a model.")),
    ],
  };
}

function tile(one) {
  const [kind, sign, word] = BREAKER[one.breaker?.state] ?? ["", "info", one.breaker?.state ?? "unknown"];
  return h(
    "section.card.tile",
    { "aria-label": one.id },
    h("div.row", h("h2.grow.cut", one.id), h("span.badge", { class: kind, title: "What the circuit breaker of this worker says" }, icon(sign), word)),
    facts([["Address", h("code", one.base_url)], ["Speaks", (one.wires ?? []).map(dialectName).join(", ")], ["Models", h("div.badges.wrap", (one.models ?? []).slice(0, 10).map((model) => h("span.badge.tool-badge", model)))], ["Tools", one.tools === false ? "not offered here" : null],
      ["Requests", one.requests === undefined || one.requests === null ? null : `${number(one.requests)}${one.errors ? `, ${number(one.errors)} failed` : ""}`],
      ["Failures in a row", one.breaker?.failures || null], ["Set aside until", one.breaker?.open_until && time(one.breaker.open_until)]]),
    one.doctor
      ? h("details", { open: one.doctor.findings.some((found) => found.outcome === "defect") }, h("summary", `Doctor, ${one.doctor.at ? ago(one.doctor.at) : NONE}${one.doctor.model ? `, ${one.doctor.model}` : ""}: ${count(one.doctor.findings.length, "finding")}`), h("ul.col", { style: { "margin-top": ".5rem" } }, one.doctor.findings.map(finding)))
      : h("details", h("summary.muted", "Doctor has not looked at it"), code(`toolrelay doctor --upstream ${one.id}`, "command")),
  );
}

function finding(one) {
  const [kind, sign] = FOUND[one.outcome] ?? ["", "info"];
  return h("li.row.wrap", h("span.badge", { class: kind }, icon(sign), one.outcome), h("span", one.check), one.note && h("span.muted.small", one.note));
}
