// One run: what happened when, why its tools were offered or not, and actions.
import { api } from "../core/api.js";
import { h, set, toast } from "../core/dom.js";
import { NONE, bytes, cost, count, duration, moment, ms, number, shortId, when } from "../core/format.js";
import { icon } from "../core/icons.js";
import { keys } from "../core/keys.js";
import { on } from "../core/live.js";
import { go } from "../core/router.js";
import { dialectName, statusBadge, toolBadges } from "../parts/badges.js";
import { dialog } from "../parts/dialog.js";
import { json, longText } from "../parts/json.js";
import { card, code, copy, copyButton, empty, facts, figures, head, menu, note, tabs } from "../parts/page.js";
import { timeline } from "../parts/timeline.js";
import { whyCard } from "../parts/why.js";

export async function show({ params, session, signal }) {
  const path = `runs/${params.id}`;
  let detail = await api(path, { signal });
  const top = h("div.col", { style: { gap: "1.1rem" } });
  let line = null;

  function draw() {
    const { run } = detail;
    line = timeline(detail, line?.pinned());
    set(top, summary(detail), run.error_code && note("bad", h("strong", run.error_code), " ", run.status === "failed" ? "ended this run." : "occurred in this run."), h("section.card", { "aria-label": "Timeline" }, h("header", h("h2", "Timeline"), toolBadges(run.calls ?? [], run.calls_more ?? 0, 4)), line.element, budgets(detail.budgets)));
  }
  draw();

  let timer = 0;
  on("run", (row) => {
    if (row.id !== params.id) return;
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const next = await api(path, { signal }).catch(() => null);
      if (next && !signal.aborted) {
        detail = next;
        const pinned = line.element.contains(document.activeElement) ? document.activeElement.closest("tr")?.dataset.id : null;
        draw();
        set(status, statusBadge(detail.run.status));
        set(meaning, detail.meaning);
        if (pinned) [...line.element.querySelectorAll("tr")].find((row) => row.dataset.id === pinned)?.querySelector("button").focus({ preventScroll: true });
      }
    }, 150);
  }, signal);
  // If the server cannot capture, there is nothing to inspect.
  const hasWire = Boolean(detail.wire);
  keys({ ...(hasWire && { w: () => go(`/ui/${path}/wire`) }), Escape: () => go("/ui/runs") }, signal);

  const { run } = detail;
  const status = h("span", statusBadge(run.status));
  const meaning = h("p.soft.isolate", detail.meaning);
  const title = run.model || "Direct tool call";
  const actions = [
    hasWire && h("a.btn", { href: `/ui/${path}/wire` }, icon("wire"), "Wire"),
    h("button.btn", { type: "button", onclick: () => replay(path) }, icon("replay"), "Replay"),
    menu("More", "more", [
      ["Copy as curl", "copy", () => copyAs(path, "curl")],
      ["Copy as Python", "copy", () => copyAs(path, "python")],
      ["Compare with…", "compare", () => compareWith(run)],
      ["Save as fixture", "down", () => saveFixture(path)],
      ["Save as JSON", "down", () => download(path)],
      ["Copy the run’s address", "copy", () => copy(location.href, "Address")],
    ]),
  ];
  const parts = tabs(
    "About this run",
    [
      ["tools", "Why (not)?", () => whyCard(detail.offer ?? [])],
      ["messages", "Messages", () => messages(path, detail, session, signal)],
      ["kept", "Kept from the client", () => kept(detail)],
      ["memory", "Memory", () => memory(detail.memory)],
      ["facts", "Facts", () => h("div.body", about(detail))],
      ["json", "JSON", () => h("div.body.col", h("div.row.end", copyButton(() => JSON.stringify(detail, null, 2), "JSON")), json(detail, { open: 2 }))],
    ],
    new URLSearchParams(location.search).get("tab") ?? "tools",
    (id) => history.replaceState(null, "", id === "tools" ? location.pathname : `${location.pathname}?tab=${id}`),
  );
  const below = [detail.agent_runs?.length > 0 && agentRuns(detail.agent_runs), parts];
  const sub = h("span", [run.caller_name ?? run.caller, dialectName(run.wire), run.stream ? "streamed" : "not streamed", when(run.started_at)].filter(Boolean).join(" · "), run.parent_run && [" · part of ", h("a", { href: `/ui/runs/${run.parent_run}` }, shortId(run.parent_run))]);
  return {
    title: `Run ${shortId(run.id)}`,
    node: [
      h("nav.small", { "aria-label": "Breadcrumb" }, h("a", { href: "/ui/runs" }, "Runs"), h("span.muted", " / "), h("code", run.id)),
      head([h("span.isolate", title), run.upstream && h("span.muted", { style: { "font-weight": 400 } }, "→ ", run.upstream), status], sub, actions),
      meaning,
      top,
      below,
    ],
  };
}

function summary({ run, turns }) {
  const first = turns[0]?.first_ms;
  const tokens = run.total_tokens === null ? [NONE] : [number(run.total_tokens), `${number(run.input_tokens)} in, ${number(run.output_tokens)} out`];
  return figures([
    ["Took", run.ended_at ? duration(run.duration_s) : "still running"],
    ["First byte", ms(first)],
    ["Turns", number(run.turns)],
    ["Tool calls", number(run.tool_calls)],
    ["Tokens", ...tokens],
    ["Cost", cost(run.cost)],
  ]);
}

function budgets(list) {
  if (!list?.length) return null;
  return h("div.budgets", { role: "group", "aria-label": "Budgets" }, list.map((one) => {
    const part = one.max ? Math.min(1, one.used / one.max) : 0;
    const shown = one.unit === "s" ? [duration(one.used), duration(one.max)] : one.name === "cost" ? [cost(one.used), cost(one.max)] : [number(one.used), number(one.max)];
    const kind = one.spent || part >= 1 ? "bad" : part > 0.8 ? "warn" : "";
    const name = { turns: "Turns", calls: "Tool calls", tokens: "Tokens", cost: "Cost", time: "Time" }[one.name] ?? one.name;
    return h("div", { title: one.setting }, h("div.row", h("span.soft", name), h("span", shown[0], h("span.muted", ` of ${shown[1]}`))), h("span.meter", { class: kind, role: "img", "aria-label": `${name}: ${shown[0]} of ${shown[1]}, set by ${one.setting}` }, h("i", { style: { width: `${part * 100}%` } })));
  }));
}

async function messages(path, detail, session, signal) {
  if (!detail.message_count)
    return empty("block", "No messages were kept", `store.content decides what is kept of conversations; here it is “${session.content ?? "unknown"}”. With “all”, the client’s request is kept, too.`);
  const box = h("div");
  const open = h("button.btn.main", { type: "button", onclick: async () => {
    open.disabled = true;
    try {
      const full = await api(`${path}?content=true`, { signal });
      set(box, full.messages.map(message));
    } catch (error) {
      set(box, h("div.body", note("bad", error.message)));
    }
  } }, "Show the conversation");
  return set(box, empty("runs", count(detail.message_count, "message"), "This is what people and models wrote. When you read it, the server logs that with your name.", open)), box;
}

function message(one) {
  let body = one.content;
  const parts = [];
  if (body !== null && body !== undefined) parts.push(longText(body));
  for (const [name, text] of [["Content", one.content_json], ["Tool calls", one.tool_calls], ["Function call", one.function_call]]) {
    if (!text) continue;
    let value = text;
    try {
      value = JSON.parse(text);
    } catch {
      // Shown as plain text.
    }
    parts.push(h("div.col", h("h3", name), h("div.code", json(value, { open: 3 }))));
  }
  return h("div.message", h("div", h("strong.soft", one.role), h("div.small", one.turn ? `turn ${one.turn}` : "from the client"), one.name && h("code.small", one.name)), h("div.col", parts));
}

function kept({ kept_from_client: list }) {
  if (!list?.length) return empty("check", "Nothing was kept from the client", "It got everything that the upstream sent.");
  return h("div", list.map((one) => h("div.why", h("strong", one.what), h("span"), h("p.muted", one.why))));
}

function memory(value) {
  if (!value) return empty("info", "Nothing to put back", "When a client sends a conversation again, toolrelay puts back the hidden turns behind its answers. This request sent no answer back, and no later run continues this one.");
  const link = (id) => h("a", { href: `/ui/runs/${id}` }, h("code", shortId(id)));
  const kinds = { answer: "behind an answer", calls: "beside the client’s calls", carried: "beside the client’s calls, carried by the client", response: "a response by its id" };
  const row = (title, middle, words) => h("li.why", h("strong", title), middle, words && h("p.muted", words));
  return h("ul.memory", [
    value.given_bytes > 0 && row("Given to the client", bytes(value.given_bytes), "The turn that waits for the client’s results, encrypted. The record does not have it."),
    value.continues && row("Continues", link(value.continues)),
    value.continued_by.map((one) => row("Continued by", h("span.row", link(one.run), statusBadge(one.status)), when(one.started_at))),
    value.put_back.map((one) => row("Put back from", link(one.run), `${kinds[one.kind] ?? one.kind}, ${bytes(one.bytes)}${one.loosely ? ", after a change in the conversation" : ""}`)),
    value.outcomes.map((one) => row(one.outcome.replaceAll("_", " "), h("span.badge", { class: one.put_back ? "ok" : one.outcome === "nothing_hidden" ? "" : "warn" }, number(one.count)), one.meaning)),
  ]);
}

function about({ run, wire }) {
  return facts([
    ["Run", h("code", run.id)], ["Request", h("code", run.request_id)], ["Caller", run.caller_name ? `${run.caller_name} (${run.caller})` : run.caller],
    ["Dialect", dialectName(run.wire)], ["Model", run.model], ["Upstream", run.upstream], ["Began", moment(run.started_at)], ["Ended", run.ended_at && moment(run.ended_at)],
    ["Finish reason", run.finish_reason], ["Trace", run.trace], ["Prompt hash", run.prompt_hash && h("code", run.prompt_hash.slice(0, 16))], ["Budget used up", run.spent],
    ["Turns without usage", run.unreported || null], ["Fields left out", run.left_out?.join(", ")], ["Captured bytes", wire?.captured ? bytes(wire.bytes) : "none"],
  ]);
}

function agentRuns(list) {
  return card("Runs that this one started", null, h("ul", list.map((run) => h("li.why", h("a", { href: `/ui/runs/${run.id}` }, run.model, " ", h("code", shortId(run.id))), statusBadge(run.status)))));
}

async function copyAs(path, as) {
  try {
    const found = await api(`${path}/copy?as=${as}`);
    await copy(found.text, as === "curl" ? "curl command" : "Python program");
    if (found.note) toast(found.note);
  } catch (error) {
    toast(error.message);
  }
}

async function saveFixture(path) {
  try {
    const response = await fetch(`/ui/api/${path}/fixture`, { credentials: "same-origin" });
    if (!response.ok) throw new Error((await response.json().catch(() => null))?.error?.message ?? `The server answered ${response.status}.`);
    save(await response.blob(), `${path.split("/").at(-1)}.zip`);
  } catch (error) {
    toast(error.message);
  }
}

async function download(path) {
  try {
    save(new Blob([JSON.stringify(await api(`${path}/export`), null, 2)], { type: "application/json" }), `${path.split("/").at(-1)}.json`);
  } catch (error) {
    toast(error.message);
  }
}

function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

async function replay(path) {
  const body = h("div.col", h("div.row.muted", h("i.spin"), "Replaying with the current configuration. No upstream is called and no tool runs."));
  dialog("Replay offline", body);
  try {
    const found = await api(`${path}/replay`, { method: "POST", body: {} });
    set(
      body,
      h("p", found.same ? h("span.badge.ok", icon("check"), "The same as recorded") : h("span.badge.warn", icon("alert"), `${count(found.differences?.length ?? 0, "difference")}`)),
      (found.differences ?? []).map((one) => h("div.col", h("h3", one.where), h("div.diff", h("div.col", h("span.muted.small", "Recorded"), h("pre.code", text(one.was))), h("div.col", h("span.muted.small", "Replayed"), h("pre.code", text(one.is)))))),
      found.notes?.length > 0 && h("details", { open: true }, h("summary", "Notes"), h("ul", found.notes.map((one) => h("li.stranger", one)))),
    );
  } catch (error) {
    set(body, note("warn", error.message));
  }
}

const text = (value) => (typeof value === "string" ? value : Array.isArray(value) ? value.join("\n") || "none" : JSON.stringify(value, null, 2));

async function compareWith(run) {
  const body = h("div.col", h("div.skeleton"));
  const close = dialog("Compare with another run", body);
  try {
    const page = await api("runs?limit=100");
    const others = page.data.filter((one) => one.id !== run.id).sort((a, b) => (b.prompt_hash === run.prompt_hash) - (a.prompt_hash === run.prompt_hash)).slice(0, 30);
    if (!others.length) return set(body, h("p.muted", "There is no other run yet."));
    set(body, h("p.muted", "Runs of the same prompt come first: their requests have the same model, instructions and tools."), h("ul", others.map((one) =>
      h("li", h("a.row", { href: `/ui/compare?a=${run.id}&b=${one.id}`, onclick: () => close(), style: { padding: ".45rem 0", color: "inherit" } }, statusBadge(one.status), h("span.grow.cut", one.model), one.prompt_hash === run.prompt_hash && h("span.badge.accent", "same prompt"), h("span.muted.nowrap", when(one.started_at)))))));
  } catch (error) {
    set(body, note("bad", error.message));
  }
}
