// The difference of two texts by lines. Knows no page.

export interface DiffLine {
  sign: " " | "-" | "+";
  text: string;
  /** The changed part of a line that replaces another one: from this letter to that. */
  changed?: [number, number];
}

/** Limit of compared pairs of lines; beyond it, the whole changed region counts as replaced. */
const MOST_PAIRS = 1_000_000;

/** Returns how often `holds` is true in a row, from 0 on; at most `most`. */
function countWhile(most: number, holds: (at: number) => boolean): number {
  let count = 0;
  while (count < most && holds(count)) count += 1;
  return count;
}

const linesOf = (text: string): string[] => (text === "" ? [] : text.split("\n"));

/** Returns all lines of both texts in their order, with signs for removed and added ones. */
export function diffLines(before: string, after: string): DiffLine[] {
  const [old, now] = [linesOf(before), linesOf(after)];
  const shorter = Math.min(old.length, now.length);
  const head = countWhile(shorter, (at) => old[at] === now[at]);
  const tail = countWhile(shorter - head, (at) => old[old.length - 1 - at] === now[now.length - 1 - at]);
  const kept = (text: string): DiffLine => ({ sign: " ", text });
  return [
    ...old.slice(0, head).map(kept),
    ...markChangedParts(compareLines(old.slice(head, old.length - tail), now.slice(head, now.length - tail))),
    ...old.slice(old.length - tail).map(kept),
  ];
}

/** Compares lists by their longest common subsequence. */
function compareLines(old: string[], now: string[]): DiffLine[] {
  const removed = (text: string): DiffLine => ({ sign: "-", text });
  const added = (text: string): DiffLine => ({ sign: "+", text });
  if (old.length * now.length > MOST_PAIRS) return [...old.map(removed), ...now.map(added)];
  const width = now.length + 1;
  /** The length of the longest common subsequence of the lines from `i` and from `j` on, at `i * width + j`. */
  const lengths = new Uint32Array((old.length + 1) * width);
  const length = (i: number, j: number): number => lengths[i * width + j] ?? 0;
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) lengths[i * width + j] = old[i] === now[j] ? length(i + 1, j + 1) + 1 : Math.max(length(i + 1, j), length(i, j + 1));
  }
  const found: DiffLine[] = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    const [one, other] = [old[i], now[j]];
    if (one !== undefined && one === other) {
      found.push({ sign: " ", text: one });
      i += 1;
      j += 1;
    } else if (one !== undefined && (other === undefined || length(i + 1, j) >= length(i, j + 1))) {
      found.push(removed(one));
      i += 1;
    } else if (other !== undefined) {
      found.push(added(other));
      j += 1;
    }
  }
  return found;
}

/** Marks the changed part of lines that replace as many others. */
function markChangedParts(lines: DiffLine[]): DiffLine[] {
  const result = [...lines];
  for (let at = 0; at < result.length; at += 1) {
    const removed = countWhile(result.length - at, (next) => result[at + next]?.sign === "-");
    const added = countWhile(result.length - at - removed, (next) => result[at + removed + next]?.sign === "+");
    for (let pair = 0; removed === added && pair < removed; pair += 1) {
      const [one, other] = [result[at + pair], result[at + removed + pair]];
      if (one === undefined || other === undefined) continue;
      const shorter = Math.min(one.text.length, other.text.length);
      let head = countWhile(shorter, (letter) => one.text[letter] === other.text[letter]);
      let tail = countWhile(shorter - head, (letter) => one.text[one.text.length - 1 - letter] === other.text[other.text.length - 1 - letter]);
      // A letter of two code units stays whole.
      if (/[\ud800-\udbff]$/.test(one.text.slice(0, head))) head -= 1;
      if (/^[\udc00-\udfff]/.test(one.text.slice(one.text.length - tail))) tail -= 1;
      // Lines without a common part are replaced as a whole.
      if (head + tail === 0) continue;
      result[at + pair] = { ...one, changed: [head, one.text.length - tail] };
      result[at + removed + pair] = { ...other, changed: [head, other.text.length - tail] };
    }
    at += Math.max(0, removed + added - 1);
  }
  return result;
}

/** Returns the changed lines with some unchanged ones around them. `null` stands for lines that are left out. */
export function changedLines(lines: DiffLine[], around = 2): (DiffLine | null)[] {
  const isShown = lines.map((_, at) => lines.slice(Math.max(0, at - around), at + around + 1).some(({ sign }) => sign !== " "));
  const found: (DiffLine | null)[] = [];
  lines.forEach((line, at) => {
    if (isShown[at] === true) found.push(line);
    else if (found.at(-1) !== null) found.push(null);
  });
  return found;
}
