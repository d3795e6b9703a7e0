// A grant: which later calls run without asking, until when, and a button that ends it.
import { api } from "../../core/api.js";
import { h, say, set } from "../../core/dom.js";
import { ago, count, moment, shortId } from "../../core/format.js";
import { icon } from "../../core/icons.js";
import { json } from "../json.js";
import { note } from "../page.js";

const BADGE = {
  active: ["ok", "check", "Active"],
  expired: ["", "clock", "Expired"],
  revoked: ["bad", "block", "Revoked"],
};

/** What a grant means, in one sentence. */
function sentence(row) {
  const calls = [`Calls of `, h("code.isolate", row.tool), ` by ${row.caller_name ?? row.caller}`];
  if (row.status === "revoked")
    return [calls, ` ask again: ${row.revoked_by} revoked this grant ${ago(row.revoked_at)}.`];
  if (row.status === "expired") return [calls, ` ask again: this grant expired on ${moment(row.expires_at)}.`];
  return [
    calls,
    row.scope === "conversation" ? " in the conversation that asked" : "",
    ` run without asking until ${moment(row.expires_at)}.`,
  ];
}

/** A card for a grant. */
export function grantCard(row, { runs = true } = {}) {
  const box = h("article.ask.card", { "aria-label": `Grant for ${row.tool}`, "data-id": row.id });
  let current = row;

  async function revoke(event) {
    event.target.disabled = true;
    try {
      current = { ...current, ...(await api(`approvals/grants/${row.id}`, { method: "DELETE" })) };
      say("Revoked. Later calls ask again.");
      draw();
    } catch (error) {
      draw(error.message);
    }
  }

  function draw(trouble) {
    const [kind, sign, word] = BADGE[current.status] ?? ["", "clock", current.status];
    const limits = Object.keys(current.arguments ?? {}).length > 0;
    box.className = `ask card ${current.status === "active" ? "" : "decided"}`;
    set(
      box,
      h(
        "div.row.wrap",
        h("span.badge", { class: kind }, icon(sign), word),
        h("span.grow"),
        h("span.muted.small", `${count(current.uses, "call")} let through`),
      ),
      h("p", sentence(current)),
      limits
        ? h("div.code", { tabindex: 0, "aria-label": "Limits of arguments" }, json(current.arguments, { open: 3 }))
        : h("p.soft", "Any arguments."),
      current.why && h("p.soft", "For this reason to ask: ", h("span.isolate", current.why)),
      trouble && note("warn", trouble),
      current.status === "active" &&
        h(
          "div.buttons",
          h("button.btn.no", { type: "button", "data-act": "revoke", onclick: revoke }, icon("block"), "Revoke"),
        ),
      h(
        "div.row.wrap.small.muted",
        `Given by ${current.made_by} via ${current.made_via}, ${ago(current.created_at)}`,
        runs && current.run_id && h("a", { href: `/ui/runs/${current.run_id}` }, `Run ${shortId(current.run_id)}`),
      ),
    );
  }

  draw();
  return box;
}
