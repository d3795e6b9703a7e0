// What pages have in common: heads, cards, empty and failed states, tabs, menus.
import { h, set, toast, unique } from "../core/dom.js";
import { icon } from "../core/icons.js";

/** The head of a page: one h1, a line below it, actions at its end. */
export const head = (title, sub, ...actions) =>
  h(
    "header.page-head",
    h("div", h("h1", title), sub && h("p.sub", sub)),
    actions.length > 0 && h("div.actions", actions),
  );

export const card = (title, actions, ...body) =>
  h("section.card", { "aria-label": title }, h("header", h("h2", title), actions), body);

export const note = (kind, ...text) =>
  h("div.note", { class: kind }, icon(kind === "info" ? "info" : "alert"), h("div.grow", text));

/** An empty state: what is missing, why that is fine, and what to do. */
export const empty = (sign, title, text, ...more) =>
  h("div.empty", icon(sign), h("h2", title), text && h("p", text), more);

/** Why a page cannot be shown. */
export function failure(error, again) {
  return h(
    "div.empty",
    { role: "alert" },
    icon("alert"),
    h("h1", error.status === 404 ? "Not found" : "This page cannot be shown"),
    h("p", error.message),
    again && h("button.btn", { type: "button", onclick: again }, icon("replay"), "Try again"),
  );
}

/** Figures beside each other: `[[name, value, small], …]`. */
export const figures = (list, kind = "") =>
  h(
    "dl.figures",
    { class: kind },
    list
      .filter(Boolean)
      .map(([name, value, small]) => h("div", h("dt", name), h("dd", value, small && h("small", " ", small)))),
  );

export const facts = (list) =>
  h(
    "dl.facts",
    list
      .filter((one) => one && one[1] !== null && one[1] !== undefined && one[1] !== "")
      .map(([name, value]) => [h("dt", name), h("dd", value)]),
  );

/** Tabs: `[[id, text, () => node | Promise], …]`; a tab's content is made when it is first opened. */
export function tabs(label, list, chosen, onChoose = () => {}) {
  const panel = h("div", { role: "tabpanel", tabindex: 0 });
  const base = unique("tab");
  panel.id = `${base}-panel`;
  const made = new Map();
  const buttons = list.map(([id, text]) =>
    h(
      "button",
      { type: "button", role: "tab", id: `${base}-${id}`, "aria-controls": panel.id, onclick: () => choose(id) },
      text,
    ),
  );
  const choose = async (id) => {
    const at = Math.max(
      0,
      list.findIndex(([one]) => one === id),
    );
    buttons.forEach((button, index) => {
      button.setAttribute("aria-selected", String(index === at));
      button.tabIndex = index === at ? 0 : -1;
    });
    panel.setAttribute("aria-labelledby", buttons[at].id);
    const [key, , make] = list[at];
    onChoose(key);
    if (!made.has(key)) {
      set(panel, h("div.body", h("div.skeleton")));
      try {
        made.set(key, await make());
      } catch (error) {
        if (error.name === "AbortError") return;
        return set(panel, failure(error));
      }
    }
    if (buttons[at].getAttribute("aria-selected") === "true") set(panel, made.get(key));
  };
  const strip = h(
    "div.tabs",
    {
      role: "tablist",
      "aria-label": label,
      onkeydown: (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const at = buttons.indexOf(document.activeElement);
        const next = buttons[(at + step + buttons.length) % buttons.length];
        next.click();
        next.focus();
      },
    },
    buttons,
  );
  choose(chosen ?? list[0][0]);
  return h("section.card", { "aria-label": label }, strip, panel);
}

/** A button that opens a list of actions. */
export function menu(text, sign, items) {
  const box = h("div.menu");
  const close = (focus) => {
    box.querySelector(".pop")?.remove();
    button.setAttribute("aria-expanded", "false");
    removeEventListener("pointerdown", outside, true);
    if (focus) button.focus();
  };
  const outside = (event) => box.contains(event.target) || close(false);
  const button = h(
    "button.btn",
    {
      type: "button",
      "aria-haspopup": "menu",
      "aria-expanded": "false",
      onclick: () => {
        if (box.querySelector(".pop")) return close(true);
        const pop = h(
          "div.pop",
          { role: "menu" },
          items.map(([name, itemSign, act]) =>
            h(
              "button",
              {
                type: "button",
                role: "menuitem",
                onclick: () => {
                  close(true);
                  act();
                },
              },
              icon(itemSign),
              name,
            ),
          ),
        );
        pop.addEventListener("keydown", (event) => {
          const all = [...pop.children];
          const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
          if (step) all[(all.indexOf(document.activeElement) + step + all.length) % all.length].focus();
          else if (event.key === "Escape") close(true);
          else return;
          event.preventDefault();
          event.stopPropagation();
        });
        box.append(pop);
        button.setAttribute("aria-expanded", "true");
        addEventListener("pointerdown", outside, true);
        pop.firstChild.focus();
      },
    },
    icon(sign),
    text,
  );
  box.append(button);
  return box;
}

/** Copy a text to the clipboard, or show it if that is not allowed. */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    toast(`${what} copied.`);
  } catch {
    const { dialog } = await import("./dialog.js");
    dialog(
      what,
      h("p.muted", "The browser does not let this page use the clipboard. Select the text and copy it."),
      h("textarea.input.mono", { rows: 12, readonly: true, value: text, "aria-label": what }),
    );
  }
}

export const copyButton = (text, what) =>
  h(
    "button.btn.small",
    {
      type: "button",
      "aria-label": `Copy ${what}`,
      onclick: () => copy(typeof text === "function" ? text() : text, what),
    },
    icon("copy"),
    "Copy",
  );

/** Text of a program, with a button that copies it. */
export const code = (text, what) =>
  h("div.code-box", copyButton(text, what), h("pre.code", { tabindex: 0, "aria-label": what }, text));
