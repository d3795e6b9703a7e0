// The conversation of a run: who asked what, what the model and the tools did, and what was answered.
import { api } from "../../core/api.js";
import { h, set } from "../../core/dom.js";
import { cost, count, ms, number, shortId } from "../../core/format.js";
import { icon } from "../../core/icons.js";
import { json, longText } from "../json.js";
import { code, note } from "../page.js";
import { callCard } from "./call.js";
import { failure } from "./failure.js";
import { fields, unpacked } from "./fields.js";
import { outside, picture, webAddress } from "./links.js";
import { markdown } from "./markdown.js";

const OPEN_CALLS = 6;
const DEEPEST = 4;
const MOST_SOURCES = 30;

/**
 * `detail` and `conversation` are as the API has them.  `link(element, id)` is called for each turn and call, so that
 * another part can point at it.
 */
export function thread(detail, conversation, { link = () => {}, depth = 0, rules = null, signal } = {}) {
  const { run } = detail;
  const context = {
    detail,
    depth,
    link,
    rules,
    signal,
    rows: new Map([...detail.invocations, ...(detail.inner_calls ?? [])].map((row) => [row.id, row])),
    approvals: detail.approvals ?? [],
    fewCalls: detail.invocations.length <= OPEN_CALLS,
    sources: new Map(),
  };
  const { messages } = conversation;
  const last = messages.findLastIndex((one) => one.turn === 0 && one.role === "user");
  const earlier = messages.slice(0, Math.max(0, last));
  const rest = messages.slice(Math.max(0, last));
  return h(
    "div.thread",
    conversation.system.length > 0 &&
      folded("Instructions", firstWords(conversation.system), () =>
        conversation.system.map((one) => message(one, context)),
      ),
    earlier.length > 0 &&
      folded(count(earlier.length, "earlier message"), "", () => earlier.map((one) => message(one, context))),
    conversation.notes.map((text) => note("info", text)),
    rest.map((one) => message(one, context)),
    run.error_code && ["failed", "interrupted"].includes(run.status) && failed(detail, conversation),
    sources(context.sources),
    depth < DEEPEST && elsewhere(detail, context),
  );
}

/** Runs that this one started, but not by a call that is shown above. */
function elsewhere({ agent_runs: below = [] }, context) {
  const others = below.filter((run) => !context.rows.has(run.parent_call));
  if (!others.length) return null;
  return h(
    "section.col",
    { "aria-label": "Runs that this one started" },
    h("h3", "Runs that this one started"),
    others.map((run) => nestedRun(run, context)),
  );
}

function failed({ run, errors }, conversation) {
  const title = run.status === "interrupted" ? "The server process ended before the run did" : "The run failed";
  const by =
    run.upstream && /^(http_|upstream)/.test(run.error_code)
      ? `What ${run.upstream} answered`
      : "What the client was told";
  return failure({ title, code: run.error_code, message: conversation.failure, by, help: errors?.[run.error_code] });
}

/** A part that is made when it is opened. */
function folded(title, hint, make) {
  const body = h("div.body");
  const open = (event) => event.target.open && !body.hasChildNodes() && set(body, make());
  return h(
    "details.folded",
    { ontoggle: open },
    h("summary", h("span", title), hint && h("span.muted.cut", hint)),
    body,
  );
}

const firstWords = (messages) =>
  messages
    .flatMap((one) => one.parts)
    .filter((part) => part.kind === "text")
    .map((part) => part.text)
    .join(" ")
    .slice(0, 160);

const ROLES = { user: "User", system: "Instructions", developer: "Instructions", tool: "Tool", output: "Output" };

function message(one, context) {
  const { detail, link } = context;
  const turn = one.turn ? detail.turns.find((row) => row.number === one.turn) : null;
  const model = one.role === "assistant";
  const who = model ? detail.run.model || detail.run.agent || "Program" : (ROLES[one.role] ?? one.role);
  const facts =
    turn &&
    [
      detail.turns.length > 1 && `turn ${turn.number}`,
      turn.duration_s !== null && ms(turn.duration_s * 1000),
      turn.total_tokens !== null && `${number(turn.total_tokens)} tokens`,
      turn.cost !== null && cost(turn.cost),
    ]
      .filter(Boolean)
      .join(" · ");
  const box = h(
    "article.said",
    {
      class: model ? "model" : one.role === "user" ? "user" : "",
      "aria-label": turn ? `${who}, turn ${turn.number}` : who,
      tabindex: -1,
    },
    h("header", h("strong.isolate", who), facts && h("span.muted.small", facts)),
    h(
      "div.parts",
      one.parts.map((part) => shown(part, one, context)),
    ),
  );
  if (turn) link(box, `turn-${turn.number}`);
  return box;
}

function shown(part, one, context) {
  if (part.kind === "text") return text(part, one, context);
  if (part.kind === "reasoning") return reasoning(part);
  if (part.kind === "call") return call(part, one, context);
  if (part.kind === "image") return h("p", picture(part));
  if (part.kind === "file")
    return h("p", h("span.badge", icon("down"), [part.name || "File", part.media_type].filter(Boolean).join(", ")));
  if (part.kind === "code") return code(part.text, part.language === "output" ? "output" : "program");
  if (part.kind === "refusal") return note("warn", longText(part.text));
  if (part.kind === "result")
    return h(
      "div.col",
      h("span.small.muted", "Result of a call"),
      part.parts.map((inner) => shown(inner, { ...one, role: "tool" }, context)),
    );
  return h(
    "details.folded",
    h("summary", h("span", part.type || "A part of another kind")),
    h("div.body", h("div.code", json(part.value))),
  );
}

/** Texts of models are Markdown; those of people and tools stay as they are, unless they are data. */
function text(part, one, context) {
  const value = unpacked(part.text);
  if (typeof value === "object") {
    const tree = h("details.more", h("summary", "As JSON"), h("div.code", json(value, { open: 3 })));
    return h("div.col.data", fields(value), tree);
  }
  for (const source of part.sources ?? []) add(context.sources, source);
  if (one.role !== "assistant") return longText(part.text);
  const links = [];
  const node = markdown(part.text, links);
  links.forEach((source) => add(context.sources, source));
  return node;
}

function add(list, { url, title }) {
  const address = webAddress(url);
  if (!address || list.size >= MOST_SOURCES) return;
  if (!list.get(address.href)) list.set(address.href, typeof title === "string" && title.length < 200 ? title : "");
}

function reasoning(part) {
  if (part.hidden) return h("p.muted.small", "The model reasoned here; its provider shows nothing of it.");
  return h(
    "details.folded.reasoning",
    h("summary", h("span", "Reasoning"), h("span.muted.cut", part.text.slice(0, 160))),
    h("div.body", longText(part.text)),
  );
}

function call(part, one, context) {
  const { detail, depth, link, rules, rows, approvals, fewCalls } = context;
  const row = part.invocation ? rows.get(part.invocation) : null;
  const approval = approvals.find(
    (each) =>
      (row && each.invocation_id === row.id) ||
      (each.call_id === part.call_id && (one.turn === 0 || each.turn === one.turn)),
  );
  const found = unpacked(part.result?.parts.find((inner) => inner.kind === "text")?.text ?? "");
  if (Array.isArray(found?.results))
    found.results.slice(0, MOST_SOURCES).forEach((each) => each && add(context.sources, each));
  const below = (detail.agent_runs ?? []).filter((each) => row && each.parent_call === row.id);
  const nested = depth < DEEPEST && below.map((run) => nestedRun(run, context));
  const open = one.turn > 0 && (fewCalls || row?.status === "error");
  return callCard({ part, row, approval, errors: detail.errors, rules, link, nested, open });
}

/** What an agent or a program did, read when it is opened. */
function nestedRun(run, { depth, signal, link, rules }) {
  const body = h("div.body");
  const title = run.model ? `What ${run.agent || run.model} did` : "What the program did";
  const open = async (event) => {
    if (!event.target.open || body.hasChildNodes()) return;
    set(body, h("div.skeleton"));
    try {
      const [detail, conversation] = await Promise.all([
        api(`runs/${run.id}`, { signal }),
        api(`runs/${run.id}/conversation`, { signal }),
      ]);
      const own = h("p.small", h("a", { href: `/ui/runs/${run.id}` }, `Open run ${shortId(run.id)}`));
      set(body, own, thread(detail, conversation, { depth: depth + 1, signal, link, rules }));
    } catch (error) {
      if (error.name !== "AbortError") set(body, note("bad", error.message));
    }
  };
  const hint = [count(run.tool_calls, "call"), run.cost !== null && cost(run.cost)].filter(Boolean).join(" · ");
  return h(
    "details.folded.nested",
    { ontoggle: open },
    h("summary", h("span", title), h("span.muted.grow", hint)),
    body,
  );
}

function sources(list) {
  if (!list.size) return null;
  const item = ([url, title]) => h("li", title ? outside(url, title) : outside(url));
  return h("section.sources", { "aria-label": "Sources" }, h("h3", "Sources"), h("ol", [...list].map(item)));
}
