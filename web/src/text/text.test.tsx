import { describe, expect, it } from "vitest";

import { exact, isExact, parse, print, spelling } from "../api/json";
import { BlockReader, decoded } from "./blocks";
import { brief, dayGroup, escaped, since, spelled } from "./words";

const kinds = (text: string): string[] => new BlockReader().read(text, false).filter((token) => token.type !== "space").map((token) => token.type);

describe("blocks of Markdown", () => {
  const text = "# One\n\ntext **bold**\n\n```js\nlet a = 1;\n\nlet b;\n```\n\n- a\n- b\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n$$x^2$$\n\nend";

  it("are the same for a growing text as for the whole one", () => {
    const growing = new BlockReader();
    for (let at = 1; at <= text.length; at += 3) growing.read(text.slice(0, at), true);
    const live = growing.read(text, true).filter((token) => token.type !== "space");
    expect(live.map((token) => token.raw.trim())).toEqual(new BlockReader().read(text, false).filter((token) => token.type !== "space").map((token) => token.raw.trim()));
    expect(kinds(text)).toEqual(["heading", "paragraph", "code", "list", "table", "mathBlock", "paragraph"].map((kind) => (kind === "mathBlock" ? "math" : kind)));
  });

  it("keeps the identity of blocks that no longer change", () => {
    const reader = new BlockReader();
    const [first] = reader.read("# One\n\ntwo\n\nthree", true);
    const [again] = reader.read("# One\n\ntwo\n\nthree and more\n\nfour", true);
    expect(again).toBe(first);
  });

  it("has no markup of HTML", () => {
    expect(kinds("<script>alert(1)</script>\n\n<div>a</div>")).toEqual(["paragraph", "paragraph"]);
  });

  it("reads long hostile lines in time", () => {
    const begun = performance.now();
    for (const hostile of [" ".repeat(50_000), "*".repeat(20_000), "[".repeat(5_000), "|a".repeat(20_000), "$".repeat(5_000), `${"> ".repeat(2_000)}x`]) new BlockReader().read(hostile, false);
    expect(performance.now() - begun).toBeLessThan(5_000);
  });

  it("takes prices for text", () => {
    const [paragraph] = new BlockReader().read("It costs $5 and then $10.", false) as { tokens?: { type: string }[] }[];
    expect(paragraph?.tokens?.some((token) => token.type === "math")).toBe(false);
    const [formula] = new BlockReader().read("So $x+1$ and \\(y\\).", false) as { tokens?: { type: string }[] }[];
    expect(formula?.tokens?.filter((token) => token.type === "math")).toHaveLength(2);
  });

  it("decodes references of characters once", () => {
    expect(decoded("a &amp; b &lt;c&gt; &#65;&#x42; &amp;lt; &unknown; &#xD800;")).toBe("a & b <c> AB &lt; &unknown; &#xD800;");
  });
});

describe("numbers", () => {
  it("keep their digits where the browser can, and say so where it cannot", () => {
    const value = parse('{"n":12345678901234567890,"m":1.10,"list":[1.0]}') as { n: number; list: number[] };
    if (isExact(value)) {
      expect(print(value)).toBe('{"n":12345678901234567890,"m":1.10,"list":[1.0]}');
      expect(spelling(value, "n")).toBe("12345678901234567890");
      expect(JSON.stringify({ x: exact(value, "n") })).toBe('{"x":12345678901234567890}');
    } else {
      expect(spelling(value, "n")).toBe(String(value.n));
    }
  });
});

describe("texts of others", () => {
  it("show invisible characters where a person decides", () => {
    expect(spelled("o\u200bn\u202ee\n")).toBe("o<U+200B>n<U+202E>e\n");
    expect(escaped('{"a":"o\u200bn"}')).toBe('{"a":"o\\u200bn"}');
    expect(brief(" a\n\u200b b ", 3)).toBe("a b");
  });

  it("are grouped by day", () => {
    const now = new Date(2026, 0, 20, 12);
    const at = (days: number) => new Date(2026, 0, 20 - days, 23).toISOString();
    const times = [0, 5 * 60_000, 3 * 3_600_000, 2 * 86_400_000].map((ms) => since(new Date(now.getTime() - ms).toISOString(), now));
    expect(times).toEqual(["now", "5m", "3h", "2d"]);
    expect(since("2001-06-15T12:00:00Z", now)).toContain("2001");
    expect([0, 1, 3, 10, 60].map((days) => dayGroup(at(days), now))).toEqual(["Today", "Yesterday", "Previous 7 days", "Previous 30 days", "Older"]);
  });
});
