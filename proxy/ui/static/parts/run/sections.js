// Further facts of a run, each in a section that one opens.
import { h, set } from "../../core/dom.js";
import { bytes, cost, duration, moment, number, shortId, when } from "../../core/format.js";
import { dialectName, statusBadge } from "../badges.js";
import { json } from "../json.js";
import { copyButton, empty, facts } from "../page.js";
import { whyCard } from "../why.js";

const NO_MEMORY =
  "When a client sends a conversation again, toolrelay puts back the hidden turns behind its answers. " +
  "This request sent no answer back, and no later run continues this one.";

/** The sections; `open` names the one that is open, and `choose(name)` is called when one is opened or closed. */
export function sections(detail, open, choose) {
  const withheld = (detail.offer ?? []).filter((one) => one.outcome === "withheld").length;
  const kept = detail.kept_from_client?.length ?? 0;
  const list = [
    [
      "why",
      "Why (not)?",
      withheld ? `${withheld} withheld` : "the tools that were offered",
      () => whyCard(detail.offer ?? []),
    ],
    ["kept", "Kept from the client", kept ? number(kept) : "nothing", () => keptFrom(detail)],
    ["memory", "Memory", detail.memory ? "turns put back" : "none", () => memory(detail.memory)],
    ["facts", "Facts", "ids, dialect, prompt", () => h("div.body", about(detail))],
    ["json", "JSON", "the record of this run", () => raw(detail)],
  ];
  return h(
    "div.sections",
    list.map(([name, title, hint, make]) => section(name, title, hint, make, open, choose)),
  );
}

function section(name, title, hint, make, open, choose) {
  const body = h("div.inner");
  const toggled = (event) => {
    if (event.target !== box) return;
    if (box.open && !body.hasChildNodes()) set(body, make());
    choose(box.open ? name : null);
  };
  const head = h("summary", h("h2", title), h("span.muted.small", hint));
  const box = h("details.card.section", { open: open === name, "data-section": name, ontoggle: toggled }, head, body);
  if (open === name) set(body, make());
  return box;
}

function raw(detail) {
  return h(
    "div.body.col",
    h(
      "div.row.end",
      copyButton(() => JSON.stringify(detail, null, 2), "JSON"),
    ),
    json(detail, { open: 2 }),
  );
}

function keptFrom({ kept_from_client: list }) {
  if (!list?.length)
    return empty("check", "Nothing was kept from the client", "It got everything that the upstream sent.");
  return h(
    "div",
    list.map((one) => h("div.why", h("strong", one.what), h("span"), h("p.muted", one.why))),
  );
}

const KINDS = {
  answer: "behind an answer",
  calls: "beside the client’s calls",
  carried: "beside the client’s calls, carried by the client",
  response: "a response by its id",
};

function memory(value) {
  if (!value) return empty("info", "Nothing to put back", NO_MEMORY);
  const link = (id) => h("a", { href: `/ui/runs/${id}` }, h("code", shortId(id)));
  const row = (title, middle, text) => h("li.why", h("strong", title), middle, text && h("p.muted", text));
  const given = "The turn that waits for the client’s results, encrypted. The record does not have it.";
  const putBack = (one) => {
    const change = one.loosely ? ", after a change in the conversation" : "";
    return row("Put back from", link(one.run), `${KINDS[one.kind] ?? one.kind}, ${bytes(one.bytes)}${change}`);
  };
  const outcome = (one) => {
    const kind = one.put_back ? "ok" : one.outcome === "nothing_hidden" ? "" : "warn";
    return row(one.outcome.replaceAll("_", " "), h("span.badge", { class: kind }, number(one.count)), one.meaning);
  };
  return h("ul.memory", [
    value.given_bytes > 0 && row("Given to the client", bytes(value.given_bytes), given),
    value.continues && row("Continues", link(value.continues)),
    value.continued_by.map((one) =>
      row("Continued by", h("span.row", link(one.run), statusBadge(one.status)), when(one.started_at)),
    ),
    value.put_back.map(putBack),
    value.outcomes.map(outcome),
  ]);
}

function about({ run, wire }) {
  return facts([
    ["Run", h("code", run.id)],
    ["Request", h("code", run.request_id)],
    ["Caller", run.caller_name ? `${run.caller_name} (${run.caller})` : run.caller],
    ["Dialect", dialectName(run.wire)],
    ["Model", run.model],
    ["Upstream", run.upstream],
    ["Began", moment(run.started_at)],
    ["Ended", run.ended_at && moment(run.ended_at)],
    ["Finish reason", run.finish_reason],
    ["Trace", run.trace],
    ["Prompt hash", run.prompt_hash && h("code", run.prompt_hash.slice(0, 16))],
    ["Budget used up", run.spent],
    ["Turns without usage", run.unreported || null],
    ["Fields left out", run.left_out?.join(", ")],
    ["Captured bytes", wire?.captured ? bytes(wire.bytes) : "none"],
  ]);
}

const NAMES = { turns: "Turns", calls: "Tool calls", tokens: "Tokens", cost: "Cost", time: "Time" };

/** How much of each budget the run has used. */
export function budgets(list) {
  if (!list?.length) return null;
  return h("div.budgets", { role: "group", "aria-label": "Budgets" }, list.map(budget));
}

function budget(one) {
  const format = one.unit === "s" ? duration : one.name === "cost" ? cost : number;
  const [used, most] = [format(one.used), format(one.max)];
  const part = one.max ? Math.min(1, one.used / one.max) : 0;
  const kind = one.spent || part >= 1 ? "bad" : part > 0.8 ? "warn" : "";
  const name = NAMES[one.name] ?? one.name;
  const label = `${name}: ${used} of ${most}, set by ${one.setting}`;
  return h(
    "div",
    { title: one.setting },
    h("div.row", h("span.soft", name), h("span", used, h("span.muted", ` of ${most}`))),
    h("span.meter", { class: kind, role: "img", "aria-label": label }, h("i", { style: { width: `${part * 100}%` } })),
  );
}
