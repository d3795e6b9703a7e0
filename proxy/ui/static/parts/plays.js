// Plays of fixtures, from a file that `toolrelay eval --json` printed: what two models did, side by side.
import { h, set } from "../core/dom.js";
import { cost, number } from "../core/format.js";
import { icon } from "../core/icons.js";
import { toolName } from "./badges.js";
import { json } from "./json.js";
import { card, note } from "./page.js";

const MOST_BYTES = 32 << 20;
const MOST = 500;

/** A card in which a person opens the file. It stays in the browser. */
export function plays() {
  const shown = h("div", { "aria-live": "polite" });
  const open = async () => set(shown, await read(input.files[0]));
  const input = h("input", { type: "file", accept: ".json,.jsonl,.ndjson", onchange: open });
  return card(
    "Plays of fixtures",
    null,
    h("div.why", h("label.col", "The output of toolrelay eval --json", input)),
    shown,
  );
}

async function read(file) {
  if (!file) return null;
  if (file.size > MOST_BYTES) return note("warn", "The file is larger than 32 MB.");
  const lines = (await file.text()).split("\n").filter((line) => line.trim());
  try {
    const list = lines.slice(0, MOST).map((line) => JSON.parse(line));
    const cut = lines.length > MOST && note("info", `The first ${MOST} of ${lines.length} plays are shown.`);
    return [cut, list.map(play)];
  } catch {
    return note("warn", "The file is not what toolrelay eval --json prints: one object on each line.");
  }
}

function play(one) {
  const title = h("strong", `${one.fixture}, run ${one.run}`);
  if (one.skipped) return h("div.why", title, h("span.muted", `skipped: ${one.skipped}`));
  const same = (yes, word) => h("span.badge", { class: yes ? "ok" : "warn" }, icon(yes ? "check" : "alert"), word);
  const signs = [
    same(one.same_tools, one.same_tools ? "same tools" : "different tools"),
    same(one.same_arguments, one.same_arguments ? "same arguments" : "different arguments"),
    one.broken_rules.length > 0 && same(false, one.broken_rules.join("; ")),
    one.error && same(false, one.error),
  ];
  const used = `${number(one.input_tokens + one.output_tokens)} tokens, ${cost(one.cost)}, ${one.seconds} s`;
  return h(
    "div.why",
    title,
    h("span.row.wrap", signs),
    h("p.muted.small", used),
    h("div.diff", trace("Recorded", one.recorded), trace("Played", one.played)),
  );
}

const trace = (name, did) =>
  h(
    "div.col",
    h("h3", name),
    did.calls.map((call) => [h("code", toolName(call.name)), h("div.code", json(call.arguments))]),
    h("p.isolate", did.text),
  );
