// Numbers beside the pointer or the focused element.  Nothing is shown only here.
import { h } from "../core/dom.js";

let box = null;

function place(x, y) {
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
  box.style.top = `${y + 18 + height > innerHeight ? y - height - 12 : y + 18}px`;
}

export function hideTip() {
  box?.remove();
  box = null;
}

/** Show `make()` while the element is hovered or focused. */
export function tip(element, make) {
  const show = (x, y) => {
    hideTip();
    box = h("div.tip", { "aria-hidden": "true" }, make());
    document.body.append(box);
    place(x, y);
  };
  element.addEventListener(
    "pointerenter",
    (event) => event.pointerType !== "touch" && show(event.clientX, event.clientY),
  );
  element.addEventListener("pointermove", (event) => box && place(event.clientX, event.clientY));
  element.addEventListener("pointerleave", hideTip);
  element.addEventListener("focusin", (event) => {
    if (!event.target.matches(":focus-visible")) return;
    const { left, bottom } = event.target.getBoundingClientRect();
    show(left, bottom - 8);
  });
  element.addEventListener("focusout", hideTip);
}

export const tipRows = (list) =>
  h(
    "dl",
    list
      .filter((one) => one && one[1] !== null && one[1] !== undefined)
      .map(([name, value]) => [h("dt", name), h("dd", value)]),
  );

addEventListener("popstate", hideTip);
addEventListener("scroll", hideTip, true);
