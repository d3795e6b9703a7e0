// The differences of two texts by word.
import { h } from "../../core/dom.js";

const MOST = 1500;

const wordsOf = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];

/** Both texts as nodes, with the words marked that only one of them has; long texts stay as they are. */
export function byWord(a, b) {
  const [left, right] = [wordsOf(a), wordsOf(b)];
  if (a === b || left.length > MOST || right.length > MOST) return [[a], [b]];
  const wide = right.length + 1;
  // The longest common part of what follows each pair of places.
  const common = new Uint16Array((left.length + 1) * wide);
  for (let i = left.length - 1; i >= 0; i -= 1)
    for (let j = right.length - 1; j >= 0; j -= 1)
      common[i * wide + j] =
        left[i] === right[j]
          ? common[(i + 1) * wide + j + 1] + 1
          : Math.max(common[(i + 1) * wide + j], common[i * wide + j + 1]);
  const out = [[], []];
  const put = (side, text, only) => {
    const last = out[side].at(-1);
    if (last && last.only === only) last.text += text;
    else out[side].push({ text, only });
  };
  let [i, j] = [0, 0];
  while (i < left.length || j < right.length) {
    if (i < left.length && j < right.length && left[i] === right[j]) {
      put(0, left[i], false);
      put(1, right[j], false);
      i += 1;
      j += 1;
    } else if (j >= right.length || (i < left.length && common[(i + 1) * wide + j] >= common[i * wide + j + 1])) {
      put(0, left[i], true);
      i += 1;
    } else {
      put(1, right[j], true);
      j += 1;
    }
  }
  return out.map((parts) => parts.map(({ text, only }) => (only && text.trim() ? h("mark", text) : text)));
}
