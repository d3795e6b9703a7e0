// Markdown of a model as nodes: a strict subset without HTML.  What is not known stays text.
import { h } from "../../core/dom.js";
import { longText } from "../json.js";
import { code } from "../page.js";
import { inline } from "./inline.js";

const DEEPEST = 6;
const LONGEST = 100_000;
const MOST_LINES = 5000;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?: +(.*))?$/;
const RULE = /^ {0,3}(?:(?:- *){3,}|(?:\* *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const DIVIDER = /^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;

/** The nodes of a text.  `links` collects the addresses that it links to. */
export function markdown(text, links = []) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  if (text.length > LONGEST || lines.length > MOST_LINES) return longText(text);
  return h("div.md", { dir: "auto" }, blocks(lines, links, 0));
}

function blocks(lines, links, depth) {
  if (depth > DEEPEST) return [h("p", lines.join("\n"))];
  const out = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) {
      at += 1;
      continue;
    }
    const [node, next] = block(lines, at, links, depth);
    out.push(node);
    at = next;
  }
  return out;
}

function block(lines, at, links, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    const level = Math.min(4, heading[1].length);
    return [h(`p.title.title-${level}`, inline((heading[2] ?? "").replace(/ +#+ *$/, ""), links)), at + 1];
  }
  if (RULE.test(line)) return [h("hr"), at + 1];
  if (QUOTE.test(line)) {
    let end = at;
    while (end < lines.length && QUOTE.test(lines[end])) end += 1;
    const inner = lines.slice(at, end).map((one) => one.replace(QUOTE, ""));
    return [h("blockquote", blocks(inner, links, depth + 1)), end];
  }
  if (ITEM.test(line)) return list(lines, at, links, depth);
  if (line.includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") && DIVIDER.test(lines[at + 1]))
    return table(lines, at, links);
  return paragraph(lines, at, links);
}

function fenced(lines, at, [, mark, info]) {
  let end = at + 1;
  const closes = (line) => line.trim().startsWith(mark) && !line.trim().replaceAll(mark[0], "");
  while (end < lines.length && !closes(lines[end])) end += 1;
  const language = info.trim().split(/\s/)[0].slice(0, 30);
  return [code(lines.slice(at + 1, end).join("\n"), language ? `code (${language})` : "code"), end + 1];
}

/** Whether a line begins another block than a paragraph. */
const begins = (line) =>
  !line.trim() || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

function paragraph(lines, at, links) {
  let end = at + 1;
  while (end < lines.length && !begins(lines[end])) end += 1;
  return [
    h(
      "p",
      inline(
        lines
          .slice(at, end)
          .map((line) => line.trimStart())
          .join("\n"),
        links,
      ),
    ),
    end,
  ];
}

function list(lines, at, links, depth) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const found = ITEM.exec(lines[end]);
    if (!found || /\d/.test(found[2]) !== ordered || RULE.test(lines[end])) break;
    const indent = found[0].length || 2;
    const inner = [lines[end].slice(indent)];
    end += 1;
    while (end < lines.length && belongs(lines, end, indent)) {
      inner.push(lines[end].replace(new RegExp(`^ {0,${indent}}`), ""));
      end += 1;
    }
    items.push(inner);
  }
  const start = ordered ? parseInt(first[2], 10) : 1;
  const shown = items.map((inner) => h("li", tight(blocks(inner, links, depth + 1))));
  return [h(ordered ? "ol" : "ul", { start: ordered && start !== 1 ? start : null }, shown), end];
}

/** Whether a line continues the item before it: it is indented, or a paragraph goes on. */
function belongs(lines, at, indent) {
  const line = lines[at];
  if (!line.trim()) {
    const next = lines[at + 1] ?? "";
    return next.startsWith(" ".repeat(Math.min(2, indent))) && Boolean(next.trim());
  }
  return line.startsWith(" ".repeat(Math.min(2, indent))) || !begins(line);
}

/** The content of an item without the paragraph around its first text. */
const tight = ([first, ...rest]) =>
  first?.tagName === "P" && !first.className ? [...first.childNodes, ...rest] : [first, ...rest];

function table(lines, at, links) {
  const cells = (line) =>
    line
      .trim()
      .replace(/^\||\|$/g, "")
      .split(/(?<!\\)\|/)
      .map((cell) => cell.trim().replaceAll("\\|", "|"));
  const aligned = cells(lines[at + 1]).map((cell) =>
    cell.endsWith(":") ? (cell.startsWith(":") ? "mid" : "end") : "",
  );
  const row = (line, tag, props) =>
    h(
      "tr",
      cells(line)
        .slice(0, aligned.length)
        .map((cell, index) => h(tag, { ...props, class: aligned[index] }, inline(cell, links))),
    );
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end += 1;
  const body = lines.slice(at + 2, end).map((line) => row(line, "td", {}));
  return [
    h(
      "div.table-box",
      { tabindex: 0, role: "group", "aria-label": "Table" },
      h("table", h("thead", row(lines[at], "th", { scope: "col" })), h("tbody", body)),
    ),
    end,
  ];
}
