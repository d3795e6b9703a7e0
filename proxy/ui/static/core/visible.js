// Characters that would act or hide are drawn as their names.  Only this file knows which they are.

/* Controls (without tab and line feed), soft hyphen, joiners and fillers, zero-width, direction marks,
   line separators, odd spaces that look like none, variation selectors, tags, lone surrogates. */
const HIDDEN =
  /\u001B\[[0-9;:?]*[ -/]*[@-~]|\u001B\][^\u0007\u001B]{0,200}(?:\u0007|\u001B\\)|[\u0000-\u0008\u000B-\u001F\u007F-\u009F\u00AD\u034F\u061C\u115F\u1160\u17B4\u17B5\u180B-\u180F\u200B-\u200F\u2028-\u202F\u2060-\u206F\u3164\uFE00-\uFE0F\uFEFF\uFFA0\uFFF0-\uFFFB\u2800]|[\u{1BCA0}-\u{1BCA3}\u{1D173}-\u{1D17A}\u{E0000}-\u{E0FFF}]|\p{Cs}|\p{Co}/gu;
const ANY = new RegExp(HIDDEN.source, "u");
const NAMES = { 0: "NUL", 7: "BEL", 8: "BS", 11: "VT", 12: "FF", 13: "CR", 27: "ESC", 127: "DEL" };
const PICTURE = /\p{Extended_Pictographic}|\p{Emoji_Modifier}|[\u0023\u002A\u0030-\u0039]/u;

/** The name of an invisible character. */
function name(found) {
  const code = found.codePointAt(0);
  const rest = found.slice(code > 0xffff ? 2 : 1);
  const tail = [...rest].map((one) => (ANY.test(one) ? `⟨${word(one.codePointAt(0))}⟩` : one)).join("");
  return `⟨${word(code)}⟩${tail}`;
}

const word = (code) => NAMES[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;

/** Whether a joiner or selector belongs to an emoji, where it is harmless. */
function drawn(text, at, found) {
  if (found !== "\u200D" && found !== "\uFE0F") return false;
  const before = text.slice(Math.max(0, at - 2), at);
  if (found === "\uFE0F") return PICTURE.test([...before].at(-1) ?? "");
  const after = String.fromCodePoint(text.codePointAt(at + 1) ?? 32);
  return (
    (PICTURE.test([...before].at(-1) ?? "") || before.endsWith("\uFE0F")) && /\p{Extended_Pictographic}/u.test(after)
  );
}

/* Spaces that look like an ordinary one, or like none. */
const SPACES = /[\u00A0\u1680\u2000-\u200A\u205F\u3000]/g;

/** The text with its odd spaces as names, for texts that a person decides about. */
export const spaced = (text) => text.replace(SPACES, (found) => `⟨${word(found.codePointAt(0))}⟩`);

/** The text as nodes: text, and a chip for each invisible character. */
export function chips(text) {
  if (!ANY.test(text)) return [document.createTextNode(text)];
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (drawn(text, match.index, match[0])) continue;
    if (match[0] === "\r" && text[match.index + 1] === "\n") continue;
    if (match.index > from) parts.push(document.createTextNode(text.slice(from, match.index)));
    const chip = document.createElement("span");
    chip.className = "ctl";
    chip.textContent = name(match[0]);
    parts.push(chip);
    from = match.index + match[0].length;
  }
  if (from < text.length) parts.push(document.createTextNode(text.slice(from)));
  return parts;
}

/** The text for an attribute, with the same names. */
export function plain(text) {
  if (!ANY.test(text)) return text;
  return text.replace(HIDDEN, (found, ...rest) => (drawn(text, rest.at(-2), found) ? found : name(found)));
}
