// Signs for states: always a word or a sign beside the colour.
import { h } from "../core/dom.js";
import { icon } from "../core/icons.js";

const RUN = {
  running: ["info", "Running"],
  completed: ["ok", "Completed"],
  suspended: ["warn", "Suspended"],
  failed: ["bad", "Failed"],
  cancelled: ["", "Cancelled"],
  interrupted: ["bad", "Interrupted"],
};
const SIGNS = { ok: "check", bad: "cross", warn: "clock", info: null, "": "block" };

export const statusWord = (status) => RUN[status]?.[1] ?? status;

export function statusBadge(status) {
  const [kind, text] = RUN[status] ?? ["", status];
  return h("span.badge", { class: kind }, kind === "info" ? h("i.spin") : icon(SIGNS[kind]), h("span", text));
}

export function statusDot(status) {
  const [kind] = RUN[status] ?? [""];
  return status === "running" ? h("i.spin") : h("i.dot", { class: kind });
}

/** The short name of a tool: without its provider's prefix. */
export const toolName = (id) =>
  id
    .replace(/^core__/, "")
    .replace(/^mcp__/, "")
    .replace("__", " › ");

const CALL = {
  success: ["ok", "check", "succeeded"],
  started: ["info", null, "runs"],
  error: ["bad", "cross", "failed"],
  cancelled: ["", "block", "cancelled"],
  interrupted: ["bad", "alert", "interrupted"],
};
const WORDS = {
  timeout: ["warn", "clock", "timed out"],
  policy_denied: ["warn", "block", "denied"],
  approval_required: ["warn", "clock", "waits for approval"],
  approval_denied: ["warn", "block", "denied by a person"],
};

export function callState(call) {
  return WORDS[call.error_code] ?? CALL[call.status] ?? ["", "info", call.status];
}

/** A tool as a badge, with the outcome of its call; dashed if the tool is no longer loaded. */
export function toolBadge(call, { known = true } = {}) {
  const [kind, sign, word] = callState(call);
  return h(
    "span.badge.tool-badge",
    {
      class: `${kind} ${known ? "" : "gone"}`,
      title: `${call.tool}: ${word}${call.error_code ? ` (${call.error_code})` : ""}`,
    },
    sign ? icon(sign) : h("i.spin"),
    h("span", toolName(call.tool)),
    h("span.unseen", word),
  );
}

/** Equal calls of a run as one badge with a number. */
export function toolBadges(calls = [], more = 0, most = 6) {
  const groups = new Map();
  for (const call of calls) {
    const key = `${call.tool} ${call.status} ${call.error_code}`;
    groups.set(key, { call, count: (groups.get(key)?.count ?? 0) + 1 });
  }
  const shown = [...groups.values()].slice(0, most).map(({ call, count }) => {
    const one = toolBadge(call);
    if (count > 1) one.append(h("span", `×${count}`));
    return one;
  });
  const rest = more + Math.max(0, groups.size - most);
  if (rest) shown.push(h("span.badge", `+${rest}`));
  return h("div.badges", shown);
}

export const dialectName = (wire) =>
  ({ chat: "Chat", responses: "Responses", anthropic: "Messages", messages: "Messages", ollama: "Ollama", mcp: "MCP" })[
    wire
  ] ?? wire;
