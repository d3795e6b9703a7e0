// Saves the runs that the filter lists, as a table or as JSON lines.
import { toast } from "../../core/dom.js";
import { count } from "../../core/format.js";
import { save } from "../run/actions.js";

const MOST = 5000;
const COLUMNS = [
  "started_at",
  "status",
  "question",
  "answer",
  "model",
  "upstream",
  "caller_name",
  "wire",
  "turns",
  "tool_calls",
  "tools",
  "input_tokens",
  "output_tokens",
  "total_tokens",
  "cost",
  "duration_s",
  "error_code",
  "id",
];

/** `load(before)` gives a page of the list, `texts(runs)` the questions and answers of its runs by id. */
export async function exportRuns(form, load, texts) {
  const rows = [];
  let before;
  let page;
  try {
    do {
      page = await load(before);
      const known = await texts(page.data);
      rows.push(...page.data.map((run) => ({ ...run, ...known.get(run.id) })));
      before = page.last_id;
    } while (page.has_more && rows.length < MOST);
  } catch (error) {
    return toast(error.message);
  }
  const text = form === "csv" ? csv(COLUMNS, rows, value) : `${rows.map((row) => JSON.stringify(row)).join("\n")}\n`;
  save(new Blob([text], { type: form === "csv" ? "text/csv" : "application/x-ndjson" }), `runs.${form}`);
  toast(`${count(rows.length, "run")} exported${page.has_more ? "; the filter has more" : ""}.`);
}

/** A table as a text that spreadsheets read; `of(row, name)` is the value of a cell. */
export const csv = (columns, rows, of) =>
  `${[columns.join(","), ...rows.map((row) => columns.map((name) => cell(of(row, name))).join(","))].join("\r\n")}\r\n`;

function value(row, name) {
  if (name === "started_at") return new Date(row.started_at * 1000).toISOString();
  if (name === "tools") return (row.calls ?? []).map((call) => call.tool).join(" ");
  return row[name] ?? "";
}

/** A cell of a table.  A spreadsheet would run a text that begins like a formula. */
function cell(of) {
  const text = String(of);
  const safe = typeof of === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
