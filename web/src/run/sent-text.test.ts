import { expect, it } from "vitest";

import { contentText, isShort, optionFacts, roleName, sentOf, size } from "./sent-text";

it("folds long texts, and texts of many lines", () => {
  expect([isShort("a".repeat(800)), isShort("a".repeat(801)), isShort("a\n".repeat(20))]).toEqual([true, false, false]);
  expect([size("one"), size("one\ntwo")]).toEqual(["3 characters, 1 line", "7 characters, 2 lines"]);
});

it("names the options that were set", () => {
  expect(optionFacts({ temperature: 0.5, stop: [], max_output_tokens: 4096, reasoning_effort: "high" })).toEqual([
    ["temperature", "0.5"],
    ["max output tokens", "4096"],
    ["reasoning effort", "high"],
  ]);
});

it("tells messages of the server from those of people", () => {
  expect([roleName({ role: "user" }), roleName({ role: "user", internal: true }), roleName({ role: "assistant" })]).toEqual(["User", "User · added by the server", "Model"]);
});

it("shows the texts of a result, and names its files", () => {
  expect(contentText([{ type: "text", text: "one" }, { type: "file", file_id: "file_1", media_type: "text/plain", name: "a.txt" } as never])).toBe("one\n[file: a.txt]");
});

it("tells how much of a file's text was sent", () => {
  expect([sentOf({ chars: 1200, bytes: 2 ** 64 }), sentOf({ chars: 9000, bytes: 4000 })]).toEqual(["its first 1,200 characters", "its first 4,000 bytes"]);
});
