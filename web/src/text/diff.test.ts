import { expect, it } from "vitest";

import { changedLines, diffLines } from "./diff";

const signs = (before: string, after: string) => diffLines(before, after).map(({ sign, text }) => sign + text);

it("keeps all lines of both texts, with signs", () => {
  expect(signs("a\nb\nc\nd", "a\nx\nc\nd\ne")).toEqual([" a", "-b", "+x", " c", " d", "+e"]);
  expect(signs("same", "same")).toEqual([" same"]);
  expect(signs("a\nb", "b")).toEqual(["-a", " b"]);
  expect([signs("", "a"), signs("", "")]).toEqual([["+a"], []]);
});

it("marks the changed part of a long line", () => {
  const same = "word ".repeat(400);
  const [before, after] = diffLines(`${same}end`, `${same}other end`);
  expect([before?.text.slice(...(before.changed ?? [])), after?.text.slice(...(after.changed ?? []))]).toEqual(["", "other "]);
});

it("leaves unchanged lines out", () => {
  const lines = Array.from({ length: 20 }, (_, at) => `line ${at}`);
  const found = changedLines(diffLines(lines.join("\n"), lines.with(10, "new").join("\n")), 1);
  expect(found.map((line) => line && line.sign + line.text)).toEqual([null, " line 9", "-line 10", "+new", " line 11", null]);
});

it("finds the difference of large texts at once", () => {
  const large = (word: string) => Array.from({ length: 3_000 }, (_, at) => `${word} ${at}`).join("\n");
  expect(diffLines(large("a"), large("b"))).toHaveLength(6_000);
});
