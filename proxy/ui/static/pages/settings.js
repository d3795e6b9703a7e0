// The settings in force.  The page only shows them; they are changed in the configuration.
import { api, query } from "../core/api.js";
import { h, set } from "../core/dom.js";
import { count } from "../core/format.js";
import { icon } from "../core/icons.js";
import { remember } from "../core/router.js";
import { empty, head } from "../parts/page.js";

export async function show({ query: asked, signal }) {
  const found = await api("settings", { signal });
  let text = asked.get("q") ?? "";
  let changed = asked.get("changed") === "1";
  const box = h("div.col", { style: { gap: "1.1rem" } });

  function draw() {
    const rows = found.data.filter(
      (one) => (!changed || one.changed) && `${one.name} ${one.description}`.toLowerCase().includes(text.toLowerCase()),
    );
    const groups = new Map();
    for (const one of rows) {
      const group = one.name.includes(".") ? one.name.split(".")[0] : "general";
      groups.set(group, [...(groups.get(group) ?? []), one]);
    }
    remember(query({ q: text, changed: changed ? "1" : "" }));
    set(
      box,
      rows.length
        ? [...groups].map(([group, list]) =>
            h(
              "section.card",
              { "aria-label": group },
              h("header", h("h2", h("code", `[${group}]`)), h("span.muted.small", count(list.length, "setting"))),
              list.map(row),
            ),
          )
        : h("div.card", empty("settings", "No setting matches", "")),
    );
  }

  const search = h(
    "div.search",
    icon("search"),
    h("input.input", {
      type: "search",
      "aria-label": "Search the settings",
      placeholder: "Search",
      value: text,
      oninput: (event) => {
        text = event.target.value;
        draw();
      },
    }),
    h("kbd", { "aria-hidden": "true" }, "/"),
  );
  const only = h(
    "label.check",
    h("input", {
      type: "checkbox",
      checked: changed,
      onchange: (event) => {
        changed = event.target.checked;
        draw();
      },
    }),
    "Only what differs from the defaults",
  );
  draw();
  return {
    title: "Settings",
    node: [
      head("Settings", "The settings in force. Change them in the configuration."),
      h("div.filters", search, only),
      box,
    ],
  };
}

const shown = (value) =>
  value === null || value === undefined
    ? h("span.muted", "not set")
    : h("code.isolate", typeof value === "string" ? (value === "" ? '""' : value) : JSON.stringify(value));

function row(one) {
  return h(
    "div.settings-row",
    h("div", h("code", one.name), one.changed && [" ", h("span.badge.accent", "changed")]),
    h(
      "div",
      shown(one.value),
      one.secret && h("span.muted.small", " (a secret; its value is never shown)"),
      one.changed && !one.secret && h("span.muted.small", " default ", shown(one.default)),
    ),
    h("p", one.description),
  );
}
