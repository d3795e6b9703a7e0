// Builds the page from nodes.  Every text goes through `visible`, so untrusted text cannot act or hide.
import { chips, plain } from "./visible.js";

const SVG = "http://www.w3.org/2000/svg";

/** An element: `h("a.btn", {href: "/ui"}, "text", node, [more])`.  Texts become text nodes, never markup. */
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  return fill(element, props, children);
}

/** The same for SVG. */
export function svg(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElementNS(SVG, name);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  return fill(element, props, children);
}

function fill(element, props, children) {
  const plainProps = props && typeof props === "object" && !(props instanceof Node) && !Array.isArray(props);
  if (plainProps) for (const [name, value] of Object.entries(props)) put(element, name, value);
  else if (props !== undefined && props !== null) children.unshift(props);
  add(element, children);
  return element;
}

function put(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (typeof value === "function") element.addEventListener(name.slice(2), value);
  else if (name === "class") value.split(" ").forEach((one) => one && element.classList.add(one));
  else if (name === "style") for (const [key, of] of Object.entries(value)) element.style.setProperty(key, of);
  else if (name === "value" || name === "checked") element[name] = value;
  else if (name === "href" || name === "src") element.setAttribute(name, address(String(value)));
  else if (name.startsWith("on")) throw new TypeError(`${name} takes a function`);
  else element.setAttribute(name, value === true ? "" : plain(String(value)));
}

/** The address if it cannot run code, else `#`. */
function address(text) {
  return /^(\/(?!\/)|#|\?|https:\/\/|blob:|data:image\/(png|jpeg|webp|gif);base64,)/.test(text) ? text : "#";
}

/** Append nodes, texts and lists of both. */
export function add(element, ...children) {
  for (const child of children.flat(9)) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) element.append(child);
    else for (const part of chips(String(child))) element.append(part);
  }
  return element;
}

/** Replace what an element holds. */
export function set(element, ...children) {
  element.replaceChildren();
  return add(element, ...children);
}

/** Say something to screen readers, politely. */
export function say(text) {
  const said = document.getElementById("said");
  said.textContent = "";
  requestAnimationFrame(() => (said.textContent = plain(text)));
}

/** A short message at the corner, which is also read out. */
export function toast(text) {
  let box = document.querySelector(".toasts");
  if (!box) document.body.append((box = h("div.toasts")));
  const one = h("div.toast", text);
  box.append(one);
  say(text);
  setTimeout(() => one.remove(), 3500);
}

/** A new id for labels. */
let last = 0;
export const unique = (prefix) => `${prefix}-${++last}`;
