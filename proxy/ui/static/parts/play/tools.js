// Which tools a request of the playground offers: those of the policy, none, or those that one ticks in a list.
import { api } from "../../core/api.js";
import { h, set, unique } from "../../core/dom.js";
import { toolName } from "../badges.js";

const WAYS = [
  ["", "All that the policy allows"],
  ["none", "None"],
  ["chosen", "Only these…"],
];

/** The field; `chosen(names)` is called with a value for `x-toolrelay-tools`, or with an empty text for all. */
export function toolChoice(chosen) {
  const picked = new Set();
  const id = unique("tools");
  const list = h("div.pick-list", { role: "group", "aria-label": "Tools of the request" });
  const count = h("small.muted", { "aria-live": "polite" });
  const search = h("input.input", {
    type: "search",
    placeholder: "Search tools",
    "aria-label": "Search tools",
    oninput: () => draw(),
  });
  const box = h("div.pick", { hidden: true }, search, list, count);
  let tools = null;
  const way = h(
    "select.input",
    { id, onchange: change },
    WAYS.map(([value, text]) => h("option", { value }, text)),
  );

  function tell() {
    // Nothing ticked is no tool: an empty header would mean all.
    chosen(way.value === "chosen" ? [...picked].join(", ") || "none" : way.value);
    set(count, tools === null ? "" : `${picked.size} of ${tools.length} chosen`);
  }

  async function change() {
    box.hidden = way.value !== "chosen";
    tell();
    if (box.hidden || tools !== null) return;
    try {
      tools = (await api("tools")).data.filter((one) => !one.withheld);
    } catch (error) {
      return set(list, h("p.small.muted", `The tools could not be read: ${error.message}`));
    }
    draw();
    tell();
  }

  function draw() {
    const words = search.value.toLowerCase().split(/\s+/);
    const fits = (tools ?? []).filter((one) => {
      const text = `${one.id} ${one.description ?? ""}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    set(
      list,
      fits.length
        ? fits.map(line)
        : h("p.small.muted", tools?.length ? "No tool has these words." : "No tool is offered."),
    );
  }

  const line = (tool) =>
    h(
      "label",
      h("input", {
        type: "checkbox",
        checked: picked.has(tool.id),
        onchange: (event) => {
          event.target.checked ? picked.add(tool.id) : picked.delete(tool.id);
          tell();
        },
      }),
      h(
        "span",
        h("code", { title: tool.id }, toolName(tool.id)),
        h("small.muted.isolate", (tool.description ?? "").split("\n")[0].slice(0, 120)),
      ),
    );

  return h("div.field", h("label", { for: id }, "Tools"), way, box);
}
