// Why a tool was offered or not, and the line that changes it.
import { h } from "../core/dom.js";
import { icon } from "../core/icons.js";
import { code, empty } from "./page.js";

const SIGN = {
  offered: ["ok", "check", "Offered"],
  withheld: ["warn", "block", "Withheld"],
  replaced: ["info", "replay", "Replaces a declaration"],
  client: ["", "info", "The client’s own"],
};

/** The change of the configuration that a decision names. */
export function change(one) {
  if (!one?.toml) return null;
  return h(
    "div.col",
    h("p.small.muted", `To change it (${one.setting}):`),
    code(one.toml, "configuration"),
    one.note && h("p.small.muted", one.note),
  );
}

/** One tool: whether it was offered, by which rule, and what would change that. */
export function why(one) {
  const [kind, sign, word] = SIGN[one.outcome] ?? ["", "info", one.outcome];
  return h(
    "div.why",
    h("code.isolate", one.tool),
    h("span.badge", { class: kind }, icon(sign), word),
    h(
      "p.soft",
      (one.outcome === "withheld" && one.reason === one.rule && one.rule ? h("code", one.rule) : one.reason) ??
        (one.outcome === "offered" ? "The model was offered this tool." : "The model did not see this tool."),
      one.rule && one.rule !== one.reason && [" Rule: ", h("code", one.rule), "."],
    ),
    one.change && h("details", h("summary.muted", "What would change this?"), change(one.change)),
  );
}

export function whyCard(offer) {
  if (!offer.length)
    return empty("tools", "No tool was considered", "No server tool is loaded, or the request forbade calls.");
  const order = { withheld: 0 };
  return h("div", [...offer].sort((a, b) => (order[a.outcome] ?? 1) - (order[b.outcome] ?? 1)).map(why));
}
