// The filters of the list of runs: words to search for, and fields.
import { h, set } from "../../core/dom.js";
import { icon } from "../../core/icons.js";

const STATES = [
  ["", "All"],
  ["running", "Running"],
  ["completed", "Completed"],
  ["failed", "Failed"],
  ["suspended", "Waiting"],
];
const AGES = [
  ["", "Any time"],
  ["15m", "Last 15 min"],
  ["1h", "Last hour"],
  ["24h", "Last day"],
  ["7d", "Last 7 days"],
];
/** What the address of the list may name. */
export const NAMES = [
  "q",
  "status",
  "model",
  "tool",
  "key",
  "since",
  "until",
  "errors",
  "error",
  "min_cost",
  "min_s",
  "id",
];
const FIELDS = [
  ["tool", "Tool", "core__get_weather"],
  ["error", "Error code contains", "timeout"],
  ["min_cost", "Costs at least", "0.01"],
  ["min_s", "Takes at least (s)", "5"],
  ["key", "Key", "webui"],
  ["model", "Model", "gpt-4o-mini"],
];
const LABELS = { min_cost: "cost ≥", min_s: "seconds ≥", error: "error" };
const SHORT = { cost: "min_cost", over: "min_s" };
const PAUSE_MS = 350;

/** Whether a filter needs a search through the record; the others are those of the list. */
export const searches = (filter) => Boolean(filter.q || filter.error || filter.min_cost || filter.min_s);

/** The form; `change(values)` is called with the fields that changed. */
export function filterBar(filter, change) {
  const bar = h("form.filters", {
    role: "search",
    "aria-label": "Filter the runs",
    onsubmit: (event) => event.preventDefault(),
  });
  const search = searchField(filter, (values) => change(values));
  const more = moreFields(filter, (values) => change(values));
  const draw = () => set(bar, search, segments(filter, change), ages(filter, change), more, chips(filter, change));
  draw();
  return { element: bar, draw };
}

function searchField(filter, change) {
  let timer = 0;
  const read = (all) => {
    const words = field.value.trim().split(/\s+/).filter(Boolean);
    const values = { q: "" };
    const rest = [];
    for (const word of words) {
      const [, name, value] = /^([a-z_]+):(.+)$/.exec(word) ?? [null, "", word];
      const known = SHORT[name] ?? name;
      if (all && NAMES.includes(known) && known !== "q") values[known] = value;
      else if (/^run_[0-9a-f]{4,}$/.test(word)) values.id = word;
      else if (!name) rest.push(word);
      else if (!NAMES.includes(known)) rest.push(word);
    }
    values.q = rest.join(" ");
    if (all) field.value = values.q;
    return values;
  };
  const now = (all) => {
    clearTimeout(timer);
    const values = read(all);
    if (Object.entries(values).some(([name, value]) => filter[name] !== value)) change(values);
  };
  const field = h("input.input", {
    type: "search",
    "aria-label":
      "Search questions, answers and tools. Fields: model:fast tool:mcp__* key:webui error:timeout cost:0.1 over:5",
    placeholder: "Search questions and answers, or model:fast tool:mcp__*",
    autocomplete: "off",
    spellcheck: "false",
    value: filter.q,
    oninput: () => {
      clearTimeout(timer);
      timer = setTimeout(() => now(false), PAUSE_MS);
    },
    onkeydown: (event) => event.key === "Enter" && now(true),
  });
  return h("div.search", icon("search"), field, h("kbd", { "aria-hidden": "true" }, "/"));
}

function segments(filter, change) {
  const state = ([value, text]) => {
    const pressed = String(filter.status === value && !filter.errors);
    return h(
      "button",
      { type: "button", "aria-pressed": pressed, onclick: () => change({ errors: "", status: value }) },
      text,
    );
  };
  const wrong = () => change({ status: "", errors: filter.errors ? "" : "true" });
  return h(
    "div.seg",
    { role: "group", "aria-label": "Status" },
    STATES.map(state),
    h("button", { type: "button", "aria-pressed": String(Boolean(filter.errors)), onclick: wrong }, "With errors"),
  );
}

function ages(filter, change) {
  const known = AGES.some(([value]) => value === filter.since);
  const options = known ? AGES : [...AGES, [filter.since, filter.since]];
  return h(
    "select.input",
    { "aria-label": "Time", onchange: (event) => change({ since: event.target.value }) },
    options.map(([value, text]) => h("option", { value, selected: value === filter.since }, text)),
  );
}

function moreFields(filter, change) {
  const field = ([name, label, hint]) =>
    h(
      "label.field",
      h("span", label),
      h("input.input", {
        value: filter[name],
        placeholder: hint,
        name,
        onchange: (event) => change({ [name]: event.target.value.trim() }),
      }),
    );
  const close = (event) => event.key === "Escape" && ((box.open = false), box.querySelector("summary").focus());
  const box = h(
    "details.more-filters",
    { onkeydown: close },
    h("summary.btn", "More filters"),
    h("div.pop", FIELDS.map(field)),
  );
  return box;
}

function chips(filter, change) {
  return NAMES.filter((name) => filter[name] && !["q", "status", "since", "errors"].includes(name)).map((name) =>
    h(
      "button.badge.accent",
      {
        type: "button",
        style: { border: 0 },
        "aria-label": `Remove the filter ${name} ${filter[name]}`,
        onclick: () => change({ [name]: "" }),
      },
      h("span", `${LABELS[name] ?? `${name}:`} ${filter[name]}`),
      icon("cross"),
    ),
  );
}
