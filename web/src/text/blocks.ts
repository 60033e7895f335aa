// Markdown as tokens. Markup of HTML is text here, so nothing in an answer can become an element.

import { Marked, type Token, type Tokens, type TokensList } from "marked";

export interface MathToken {
  type: "math";
  raw: string;
  text: string;
  isBlock: boolean;
}

const math = (raw: string, text: string, isBlock: boolean): MathToken => ({ type: "math", raw, text: text.trim(), isBlock });

const reader = new Marked({
  gfm: true,
  breaks: true,
  tokenizer: {
    // Markup stays text.
    html: () => undefined,
    tag: () => undefined,
  },
  extensions: [
    {
      name: "mathBlock",
      level: "block",
      start: (source) => source.search(/\$\$|\\\[/),
      tokenizer(source) {
        const found = /^\$\$([^$]{1,5000}?)\$\$[ \t]*(?:\n|$)/.exec(source) ?? /^\\\[([\s\S]{1,5000}?)\\\][ \t]*(?:\n|$)/.exec(source);
        return found === null ? undefined : math(found[0], found[1] ?? "", true);
      },
    },
    {
      name: "mathInline",
      level: "inline",
      start: (source) => source.search(/\$|\\\(|\\\[/),
      tokenizer(source) {
        const block = /^\$\$([^$\n]{1,2000}?)\$\$/.exec(source) ?? /^\\\[([^\n]{1,2000}?)\\\]/.exec(source);
        if (block !== null) return math(block[0], block[1] ?? "", true);
        // A price such as $5 is no formula: a formula has no blank inside its marks, and no digit follows it.
        const inline = /^\$(?=\S)([^$\n]{1,500}?)(?<=\S)\$(?!\d)/.exec(source) ?? /^\\\(([^\n]{1,1000}?)\\\)/.exec(source);
        return inline === null ? undefined : math(inline[0], inline[1] ?? "", false);
      },
    },
  ],
});

/** Longer texts are shown as they are. */
const LONGEST = 400_000;

function lex(text: string): Token[] {
  try {
    return text.length > LONGEST ? [plain(text)] : [...reader.lexer(text)];
  } catch {
    // Nested too deeply.
    return [plain(text)];
  }
}

const plain = (text: string): Tokens.Code => ({ type: "code", raw: text, text });

/** Splits a growing text into blocks. Blocks that can no longer change are read once. */
export class BlockReader {
  #text = "";
  #settled: Token[] = [];
  #settledLength = 0;
  #tail: Token[] = [];

  /** Returns the blocks of a text. `isLive`: it may grow. */
  read(text: string, isLive: boolean): Token[] {
    if (text === this.#text && isLive) return [...this.#settled, ...this.#tail];
    if (!isLive || !text.startsWith(this.#text)) {
      this.#settled = [];
      this.#settledLength = 0;
    }
    this.#text = text;
    if (!isLive) {
      this.#tail = lex(text);
      return this.#tail;
    }
    const blocks = lex(text.slice(this.#settledLength));
    // The last block and the blank lines around it can still grow.
    let kept = blocks.length - 1;
    while (kept > 0 && blocks[kept]?.type === "space") kept -= 1;
    for (const block of blocks.slice(0, Math.max(0, kept))) {
      this.#settled.push(block);
      this.#settledLength += block.raw.length;
    }
    this.#tail = blocks.slice(Math.max(0, kept));
    return [...this.#settled, ...this.#tail];
  }
}

const NAMED: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", hellip: "…", mdash: "—", ndash: "–", rarr: "→", larr: "←", times: "×" };

/** Decodes the references of characters that models write. */
export function decoded(text: string): string {
  if (!text.includes("&")) return text;
  return text.replace(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z]{2,6}));/gi, (all, decimal?: string, hex?: string, name?: string) => {
    if (name !== undefined) return Object.hasOwn(NAMED, name) ? (NAMED[name] ?? all) : all;
    const code = decimal !== undefined ? Number(decimal) : parseInt(hex ?? "", 16);
    return code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff) ? String.fromCodePoint(code) : all;
  });
}

export type { Token, Tokens, TokensList };
