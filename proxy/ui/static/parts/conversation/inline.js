// Markdown within a paragraph, as nodes: code, emphasis, links.  HTML is text.  Each character is read a bounded
// number of times.
import { h } from "../../core/dom.js";
import { inlinePicture, outside, picture } from "./links.js";

const DEEPEST = 5;
const LONGEST_LABEL = 1000;
const LONGEST_ADDRESS = 2048;
const SPECIAL = /[\\`*_~[!<]|https?:\/\//g;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;
const ADDRESS = /https?:\/\/[^\s<>"`|]{1,2000}/y;
const TAGS = { "**": "strong", __: "strong", "~~": "s", "*": "em", _: "em" };

/** The nodes and texts of a paragraph.  `links` collects the addresses that it links to. */
export function inline(text, links = [], depth = 0) {
  const out = [];
  const missing = new Set();
  let plain = 0;
  let at = 0;
  const flush = (end) => end > plain && out.push(text.slice(plain, end));
  const take = (node, end) => {
    flush(at);
    out.push(node);
    at = plain = end;
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text);
    if (!next) break;
    at = next.index;
    const found = read(text, at, next[0], { links, depth, missing });
    if (found) take(found.node, found.end);
    else at += next[0].length;
  }
  flush(text.length);
  return out;
}

function read(text, at, sign, state) {
  if (sign === "\\") return escaped(text, at);
  if (sign === "`") return codeSpan(text, at, state.missing);
  if (sign === "[") return link(text, at, state);
  if (sign === "!") return text[at + 1] === "[" ? image(text, at, state) : null;
  if (sign === "<") return bracketed(text, at, state);
  if (sign === "*" || sign === "_" || sign === "~") return emphasis(text, at, state);
  return bare(text, at, state);
}

function escaped(text, at) {
  const next = text[at + 1];
  return next !== undefined && PUNCTUATION.test(next) ? { node: next, end: at + 2 } : null;
}

function codeSpan(text, at, missing) {
  let size = 1;
  while (text[at + size] === "`") size += 1;
  const fence = "`".repeat(size);
  if (missing.has(fence)) return { node: fence, end: at + size };
  let end = text.indexOf(fence, at + size);
  while (end !== -1 && text[end + size] === "`") {
    while (text[end] === "`") end += 1;
    end = text.indexOf(fence, end);
  }
  if (end === -1) {
    missing.add(fence);
    return { node: fence, end: at + size };
  }
  const inner = text.slice(at + size, end).replace(/\n/g, " ");
  return { node: h("code", /^ .+ $/.test(inner) ? inner.slice(1, -1) : inner), end: end + size };
}

/** The label and the address of `[label](address)` at the bracket. */
function linked(text, at, missing) {
  if (missing.has("](")) return null;
  const close = text.indexOf("](", at + 1);
  if (close === -1) {
    missing.add("](");
    return null;
  }
  const label = text.slice(at + 1, Math.min(close, at + 1 + LONGEST_LABEL + 1));
  if (label.length > LONGEST_LABEL || label.includes("[")) return null;
  if (text.startsWith("data:", close + 2)) return picturesAddress(text, at, close, missing);
  let deep = 1;
  let end = close + 2;
  const most = Math.min(text.length, end + LONGEST_ADDRESS);
  for (; end < most; end += 1) {
    if (text[end] === "(") deep += 1;
    else if (text[end] === ")" && (deep -= 1) === 0) break;
    else if (text[end] === "\n") return null;
  }
  if (deep) return null;
  const address = text
    .slice(close + 2, end)
    .trim()
    .replace(/^<|>$/g, "")
    .split(/\s+["'(]/)[0];
  return { label, address, end: end + 1 };
}

/** The same for `[label](data:…)`: base64 has no brackets, but any length. */
function picturesAddress(text, at, close, missing) {
  const end = missing.has(")") ? -1 : text.indexOf(")", close);
  if (end === -1) {
    missing.add(")");
    return null;
  }
  const [address] = text
    .slice(close + 2, end)
    .trim()
    .split(/\s/);
  return { label: text.slice(at + 1, close), address, end: end + 1 };
}

function link(text, at, { links, depth, missing }) {
  const found = linked(text, at, missing);
  if (!found) return null;
  links.push({ url: found.address, title: found.label });
  const label = depth < DEEPEST ? inline(found.label, [], depth + 1) : [found.label];
  return { node: outside(found.address, ...label), end: found.end };
}

function image(text, at, { missing }) {
  const found = linked(text, at + 1, missing);
  if (!found) return null;
  const inside = inlinePicture(found.address);
  return {
    node: inside ? picture(inside) : outside(found.address, `Image: ${found.label || "without a title"}`),
    end: found.end,
  };
}

function bracketed(text, at, { links }) {
  ADDRESS.lastIndex = at + 1;
  const found = ADDRESS.exec(text);
  if (!found || text[ADDRESS.lastIndex] !== ">") return null;
  links.push({ url: found[0], title: "" });
  return { node: outside(found[0]), end: at + found[0].length + 2 };
}

function bare(text, at, { links }) {
  if (at > 0 && WORD.test(text[at - 1])) return null;
  ADDRESS.lastIndex = at;
  const found = ADDRESS.exec(text)?.[0];
  if (!found) return null;
  let address = found.replace(/[.,:;!?'*_~\]}]+$/, "");
  while (address.endsWith(")") && address.split(")").length > address.split("(").length) address = address.slice(0, -1);
  links.push({ url: address, title: "" });
  return { node: outside(address), end: at + address.length };
}

function emphasis(text, at, { links, depth, missing }) {
  const sign = text[at];
  const mark = text[at + 1] === sign ? sign + sign : sign;
  const after = text[at + mark.length];
  const tag = TAGS[mark];
  if (!tag || after === undefined || /\s/.test(after) || missing.has(mark) || depth >= DEEPEST) return skip(text, at);
  if (sign === "_" && at > 0 && WORD.test(text[at - 1])) return skip(text, at);
  let end = text.indexOf(mark, at + mark.length + 1);
  for (let tries = 0; end !== -1 && !closes(text, end, mark); tries += 1) {
    end = tries < 50 ? text.indexOf(mark, end + 1) : -1;
  }
  if (end === -1) {
    missing.add(mark);
    return skip(text, at);
  }
  return { node: h(tag, inline(text.slice(at + mark.length, end), links, depth + 1)), end: end + mark.length };
}

function closes(text, end, mark) {
  if (/\s/.test(text[end - 1])) return false;
  if (mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark)) return false;
  return mark[0] !== "_" || !WORD.test(text[end + mark.length] ?? " ");
}

/** A run of signs that begins nothing. */
function skip(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end += 1;
  return { node: text.slice(at, end), end };
}
