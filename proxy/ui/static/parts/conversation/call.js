// A tool call in its place in the conversation: arguments, result, and what became of it.
import { h, set } from "../../core/dom.js";
import { bytes, cost, ms } from "../../core/format.js";
import { icon } from "../../core/icons.js";
import { askCard } from "../approvals/ask.js";
import { callState, toolName } from "../badges.js";
import { json } from "../json.js";
import { facts } from "../page.js";
import { failure } from "./failure.js";
import { brief, fields, sameJson, unpacked } from "./fields.js";
import { picture } from "./links.js";

const EFFECTS = { state_change: "changes state", external_side_effect: "acts outside" };

/** The text and the pictures of a recorded result. */
function resultOf(part) {
  if (!part.result) return null;
  const texts = part.result.parts.filter((one) => one.kind === "text").map((one) => one.text);
  return {
    value: unpacked(texts.join("\n")),
    pictures: part.result.parts.filter((one) => one.kind === "image"),
    isError: part.result.is_error,
  };
}

/** `[kind, sign, word]` of a call that may have no row: one that waits, or that the client runs. */
function stateOf(row, approval, result) {
  if (row) return callState(row);
  if (approval?.status === "pending") return ["warn", "clock", "waits for approval"];
  if (approval) return ["", "clock", approval.status];
  if (result?.isError) return ["bad", "cross", "failed"];
  return ["", "info", result ? "answered by the client" : "for the client"];
}

/** A value as the tool lets it be shown, with a button for the whole. */
function shownValue(title, redacted, whole, note) {
  const box = h("div.col");
  const draw = (value) => (value === undefined || value === null ? h("p.muted.small", note) : fields(value));
  const hides = whole !== undefined && whole !== null && !sameJson(whole, redacted);
  const reveal = (event) => {
    set(box, draw(whole));
    event.target.closest("button").remove();
  };
  set(box, draw(redacted ?? (hides ? undefined : whole)));
  return h(
    "div.value",
    h("h3.row", title, hides && h("button.btn.small", { type: "button", onclick: reveal }, `Show all of it`)),
    box,
  );
}

/** The values of a call: what its tool lets be shown of them, or all if nothing was recorded by a tool. */
function values(part, row, result) {
  const whole = part.arguments === null ? undefined : unpacked(part.arguments ?? "");
  const own = row ? row.arguments_redacted : whole;
  const failed = row && row.status !== "success";
  const output = row ? row.result_redacted : result?.value;
  return h(
    "div.values",
    shownValue("Arguments", own, whole, "Its arguments are not on record."),
    failed || (!row && !result)
      ? null
      : shownValue("Result", output, result?.value, "The tool shows nothing of its result."),
  );
}

function trouble(row, result, errors) {
  if (!row || !["error", "interrupted", "cancelled"].includes(row.status)) return null;
  const told = result?.value && typeof result.value === "object" ? result.value : {};
  const text = typeof result?.value === "string" ? result.value : (told.message ?? told.error);
  return failure({
    title: `${toolName(row.tool)} ${callState(row)[2]}`,
    code: row.error_code,
    message: typeof text === "string" ? text : null,
    by: "What the tool answered",
    help: errors?.[row.error_code],
  });
}

function more(part, row) {
  if (!row) return null;
  const list = facts([
    ["Decision", row.decision],
    ["Effect", row.effect?.replaceAll("_", " ")],
    ["Provider", row.provider],
    ["Started after", ms(row.offset_ms)],
    ["Result", row.result_bytes ? bytes(row.result_bytes) : null],
    ["Call id", h("code", row.call_id)],
    ["Operation", row.operation_id && h("code", row.operation_id)],
    ["Definition", row.spec_digest && h("code", row.spec_digest.slice(0, 12))],
  ]);
  const raw = { arguments: part.arguments ?? row.arguments_redacted, result: row.result_redacted };
  return h("details.more", h("summary", "Details"), list, h("div.code", json(raw, { open: 2 })));
}

/**
 * The card of a call.  `row` is its execution, `approval` what it waits for or waited for; either may be missing.
 * `nested` makes the conversation of an agent or a program.
 */
export function callCard({ part, row, approval, errors, rules, link, nested, open }) {
  const result = resultOf(part);
  const [kind, sign, word] = stateOf(row, approval, result);
  const running = row && row.status === "started";
  const answer = row ? (row.status === "success" ? row.result_redacted : null) : result?.value;
  const told = row?.description ?? approval?.description;
  const line = [told ?? brief(row?.arguments_redacted ?? part.arguments), brief(answer, 60)]
    .filter(Boolean)
    .join(" → ");
  const summary = h(
    "summary",
    h("span.sign", { class: kind, title: word }, running || !sign ? h("i.spin") : icon(sign), h("span.unseen", word)),
    h("span.name", toolName(row?.tool ?? part.name)),
    h("span.muted.cut.grow.isolate", line),
    EFFECTS[row?.effect] && h("span.badge", EFFECTS[row.effect]),
    kind !== "ok" && !running && h("span.badge", { class: kind }, word),
    /cached|shared/.test(row?.decision ?? "") && h("span.badge", "reused"),
    row?.cost ? h("span.muted.small.nowrap", cost(row.cost)) : null,
    h(
      "span.muted.small.nowrap",
      row ? (running ? "…" : ms(row.duration_s === null ? null : row.duration_s * 1000)) : "",
    ),
  );
  const body = h(
    "div.body",
    approval?.status === "pending" && askCard(approval, { inline: true, rules }),
    trouble(row, result, errors),
    approval?.status !== "pending" && values(part, row, result),
    result?.pictures.length > 0 && h("div.row.wrap", result.pictures.map(picture)),
    approval && approval.status !== "pending" && h("p.small.muted", decision(approval)),
    nested,
    more(part, row),
  );
  const id = row?.id ?? approval?.id ?? part.call_id;
  const box = h(
    "details.call",
    { "data-id": id, open: open || Boolean(approval?.status === "pending") },
    summary,
    body,
  );
  link?.(box, id);
  return box;
}

const decision = (row) =>
  [
    { approved: "Approved", used: "Approved", denied: "Denied", expired: "Nobody decided in time" }[row.status] ??
      row.status,
    row.decided_by && `by ${row.decided_by}`,
    row.reason && `: ${row.reason}`,
  ]
    .filter(Boolean)
    .join(" ");
