// Markdown as nodes: text of models is never parsed as markup. If a text grows, only its last block is drawn again.

import { copyButton, h, link, webUrl } from "./dom.js";

const DEEPEST = 6;
/** A paragraph that is longer is shown as it is. */
const LONGEST_INLINE = 20_000;
/** So is a larger table. */
const MOST_COLUMNS = 50;
const MOST_CELLS = 5_000;

// None of these goes back over what it has passed: a line of a hundred thousand blanks takes no longer than another one.
const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})\s(.*)$/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const ITEM = /^( {0,8})([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/;
const TABLE_LINE = /^[|:\- \t]{3,2000}$/;

/** The blocks of a text, each as its lines. */
export function blocks(lines) {
  const found = [];
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    if (line.trim() === "") {
      at += 1;
      continue;
    }
    const [kind, end] = extent(lines, at);
    found.push({ kind, lines: lines.slice(at, end) });
    at = end;
  }
  return found;
}

/** What kind of block begins at a line, and where it ends. */
function extent(lines, at) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) {
    const closing = new RegExp(`^ {0,3}\\${fence[1][0]}{${fence[1].length},}\\s*$`);
    let end = at + 1;
    while (end < lines.length && !closing.test(lines[end])) end += 1;
    return ["code", Math.min(end + 1, lines.length)];
  }
  if (HEADING.test(line)) return ["heading", at + 1];
  if (RULE.test(line)) return ["rule", at + 1];
  if (/^ {0,3}>/.test(line)) return ["quote", until(lines, at, (next) => next.trim() === "")];
  const item = ITEM.exec(line);
  if (item) return ["list", endOfList(lines, at, item)];
  if (line.includes("|") && isRuler(lines[at + 1] ?? "")) {
    return ["table", until(lines, at, (next) => next.trim() === "" || !next.includes("|"))];
  }
  const stops = (next) => next.trim() === "" || FENCE.test(next) || HEADING.test(next) || /^ {0,3}>/.test(next) || /^ {0,3}([-*+]|1[.)])\s+\S/.test(next);
  return ["paragraph", until(lines, at, stops)];
}

function until(lines, at, stops) {
  let end = at + 1;
  while (end < lines.length && !stops(lines[end])) end += 1;
  return end;
}

const isRuler = (line) => TABLE_LINE.test(line) && line.includes("|") && cells(line).every((cell) => /^:?-+:?$/.test(cell));

const isOrdered = (item) => /\d/.test(item[2]);

function endOfList(lines, at, first) {
  let end = at + 1;
  while (end < lines.length) {
    const line = lines[end];
    const item = ITEM.exec(line);
    const indented = /^(\t| {2,})\S/.test(line);
    if (line.trim() === "") {
      const next = lines[end + 1] ?? "";
      const nextItem = ITEM.exec(next);
      if (!/^(\t| {2,})\S/.test(next) && !(nextItem && isOrdered(nextItem) === isOrdered(first))) return end;
    } else if (!indented && item && isOrdered(item) !== isOrdered(first)) {
      return end;
    } else if (!indented && !item && (lines[end - 1].trim() === "" || FENCE.test(line) || HEADING.test(line) || RULE.test(line))) {
      return end;
    }
    end += 1;
  }
  return end;
}

/** One block as a node. */
function render(block, depth) {
  const { kind, lines } = block;
  if (depth > DEEPEST) return h("p", {}, lines.join("\n"));
  switch (kind) {
    case "code": {
      const [, mark, language] = FENCE.exec(lines[0]);
      const last = lines.length > 1 && new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},}\\s*$`).test(lines.at(-1)) ? -1 : undefined;
      return code(lines.slice(1, last).join("\n"), language.trim().split(/\s/)[0]);
    }
    case "heading": {
      const [, marks, words] = HEADING.exec(lines[0]);
      // The page's own heading is the first.
      return h(`h${Math.min(marks.length + 1, 6)}`, {}, inline(words.trim().replace(/ #{1,6}$/, "")));
    }
    case "rule":
      return h("hr");
    case "quote":
      return h("blockquote", {}, nodes(lines.map((line) => line.replace(/^ {0,3}> ?/, "")), depth + 1));
    case "list":
      return list(lines, depth);
    case "table":
      return table(lines);
    default:
      return h("p", {}, inline(lines.map((line) => line.trimStart()).join("\n")));
  }
}

const nodes = (lines, depth) => blocks(lines).map((block) => render(block, depth));

/** A block of code with a button that copies it. */
export function code(text, language = "") {
  const bar = h("div", { class: "bar" }, h("span", {}, language.slice(0, 30)), copyButton(() => text));
  return h("div", { class: "code" }, bar, h("pre", { tabindex: "0" }, h("code", {}, text)));
}

function list(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const items = [];
  let margin = 0;
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && (items.length === 0 || item[1].length < margin)) {
      margin = Math.max(item[1].length + item[2].length + 1, 2);
      items.push([item[4]]);
    } else {
      const spaces = /^[ \t]*/.exec(line)[0].replaceAll("\t", "    ").length;
      items.at(-1).push(line.trimStart() === "" ? "" : " ".repeat(Math.max(spaces - margin, 0)) + line.trimStart());
    }
  }
  const start = isOrdered(first) ? Number.parseInt(first[2], 10) : 1;
  const attributes = isOrdered(first) && start !== 1 ? { start } : {};
  return h(isOrdered(first) ? "ol" : "ul", attributes, items.map((item) => {
    const inner = nodes(item, depth + 1);
    // An item of one line is no paragraph of its own.
    const [only] = inner;
    return h("li", {}, only?.tagName === "P" ? [...only.childNodes, ...inner.slice(1)] : inner);
  }));
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

function table(lines) {
  const head = cells(lines[0]);
  if (head.length > MOST_COLUMNS || head.length * lines.length > MOST_CELLS) return code(lines.join("\n"));
  const right = cells(lines[1]).map((mark) => mark.endsWith(":"));
  // Missing cells of a row become one wide cell. The number of cells thus stays in proportion to the length of the text.
  const row = (tag, values) => h("tr", {},
    values.slice(0, head.length).map((value, at) => h(tag, { class: right[at] ? "right" : undefined }, inline(value))),
    values.length < head.length ? h(tag, { colspan: head.length - values.length }) : null);
  const body = lines.slice(2).map((line) => row("td", cells(line)));
  return h("div", { class: "wide", tabindex: "0" }, h("table", {}, h("thead", {}, row("th", head)), h("tbody", {}, body)));
}

/** Words with emphasis, code and links, as nodes. */
export function inline(text, depth = 0, inLink = false) {
  if (depth > DEEPEST || text.length > LONGEST_INLINE) return [text];
  const out = [];
  let plain = "";
  const put = (node) => {
    if (plain !== "") out.push(plain);
    plain = "";
    out.push(node);
  };
  const missing = new Set();
  const find = (mark, from) => {
    if (missing.has(mark)) return -1;
    const at = text.indexOf(mark, from);
    if (at < 0) missing.add(mark);
    return at;
  };
  for (let at = 0; at < text.length; ) {
    const letter = text[at];
    const found = SPANS[letter]?.(text, at, find, depth, inLink);
    if (found) {
      put(found.node);
      at = found.end;
    } else if (letter === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else if (letter === "\n") {
      plain = plain.trimEnd();
      put(h("br"));
      at += 1;
    } else {
      // Letters that begin nothing go together; a run of one mark is one thing.
      let end = at + 1;
      if (letter === "*" || letter === "_" || letter === "`" || letter === "~") while (text[end] === letter) end += 1;
      plain += text.slice(at, end);
      at = end;
    }
  }
  if (plain !== "") out.push(plain);
  return out;
}

function emphasis(text, at, find, depth, inLink) {
  const letter = text[at];
  let width = 1;
  while (text[at + width] === letter && width < 3) width += 1;
  if (letter === "~" && width !== 2) return null;
  if (letter === "_" && /[\p{L}\p{N}]/u.test(text[at - 1] ?? "")) return null;
  // 2*3*4 is a product.
  if (letter === "*" && width === 1 && /\d/.test(text[at - 1] ?? "") && /\d/.test(text[at + 1] ?? "")) return null;
  const begin = at + width;
  if (/^\s|^$/.test(text[begin] ?? "")) return null;
  const mark = letter.repeat(width);
  for (let tries = 0, end = find(mark, begin); end >= 0 && tries < 40; tries += 1, end = find(mark, end + width)) {
    const isTight = !/\s/.test(text[end - 1]) && text[end - 1] !== "\\";
    const isWhole = text[end + width] !== letter && (width > 1 || text[end - 1] !== letter);
    const isAtEnd = letter !== "_" || !/[\p{L}\p{N}]/u.test(text[end + width] ?? "");
    if (end === begin || !isTight || !isWhole || !isAtEnd) continue;
    const inner = inline(text.slice(begin, end), depth + 1, inLink);
    const node = letter === "~" ? h("del", {}, inner) : width === 1 ? h("em", {}, inner) : width === 2 ? h("strong", {}, inner) : h("strong", {}, h("em", {}, inner));
    return { node, end: end + width };
  }
  return null;
}

const isPadded = (text) => text.startsWith(" ") && text.endsWith(" ") && text.trim() !== "";

function codeSpan(text, at, find) {
  let width = 1;
  while (text[at + width] === "`") width += 1;
  const mark = "`".repeat(width);
  for (let tries = 0, end = find(mark, at + width); end >= 0 && tries < 40; tries += 1) {
    let after = end + width;
    while (text[after] === "`") after += 1;
    if (after === end + width && text[end - 1] !== "`") {
      const inner = text.slice(at + width, end).replaceAll("\n", " ");
      return { node: h("code", {}, isPadded(inner) ? inner.slice(1, -1) : inner), end: after };
    }
    end = find(mark, after);
  }
  return null;
}

/** `[words](url)`; of a picture, a link to it: nothing is loaded from elsewhere. What is no link stays the text that it is. */
function linkSpan(text, at, find, depth, inLink) {
  const middle = find("](", at);
  if (inLink || middle < 0 || middle - at > 1000) return null;
  // Brackets within the words.
  if (text.slice(at + 1, middle).includes("[") && !text.slice(at + 1, middle).includes("]")) return null;
  const target = /^\]\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/.exec(text.slice(middle, middle + 2500));
  const url = target && webUrl(target[1]);
  if (!url) return null;
  const words = inline(text.slice(at + 1, middle), depth + 1, true);
  return { node: link(url, words.length > 0 ? words : url), end: middle + target[0].length };
}

function bareUrl(text, at, _find, _depth, inLink) {
  if (inLink || !(text.startsWith("https://", at) || text.startsWith("http://", at)) || /\w/.test(text[at - 1] ?? "")) return null;
  let [words] = /^[^\s<>"'`*|]+/.exec(text.slice(at, at + 2000));
  // Punctuation at the end of a sentence is not part of the URL, and neither are closing brackets that the URL does not open.
  let surplus = words.split(")").length - words.split("(").length;
  let end = words.length;
  for (; ".,;:!?)".includes(words[end - 1]); end -= 1) {
    if (words[end - 1] !== ")") continue;
    if (surplus <= 0) break;
    surplus -= 1;
  }
  words = words.slice(0, end);
  const url = webUrl(words);
  return url ? { node: link(url, words), end: at + words.length } : null;
}

const SPANS = {
  "`": codeSpan,
  "*": emphasis,
  _: emphasis,
  "~": emphasis,
  "[": linkSpan,
  h: bareUrl,
  "!": (text, at, ...rest) => (text[at + 1] === "[" ? linkSpan(text, at + 1, ...rest) : null),
};
Object.setPrototypeOf(SPANS, null);

/** A text that may grow. */
export class Markdown {
  node = h("div", { class: "text" });
  #shown = [];

  update(text) {
    const found = blocks(text.split("\n"));
    const sources = found.map((block) => `${block.kind}\n${block.lines.join("\n")}`);
    let same = 0;
    while (same < sources.length && same < this.#shown.length && sources[same] === this.#shown[same]) same += 1;
    while (this.node.childNodes.length > same) this.node.lastChild.remove();
    this.node.append(...found.slice(same).map((block) => render(block, 0)));
    this.#shown = sources;
  }
}
