import { expect, it } from "vitest";

import type { MessageItem } from "../conversation/state";
import { contentOf, draftOf, filesOf, putBack, setText, textOf } from "./drafts";

const MESSAGE = {
  kind: "message",
  parts: [
    { type: "text", id: "part_1", text: "look" },
    { type: "image", id: "part_2", media_type: "image/png", file_id: "file_1", name: "a.png", url: "/api/v1/files/file_1/content" },
    { type: "file", id: "part_3", media_type: "application/pdf", url: "https://example.org/b.pdf" },
    { type: "file", id: "part_4", media_type: "text/plain" },
  ],
} as unknown as MessageItem;

const PARTS = [
  { type: "image", file_id: "file_1", name: "a.png" },
  { type: "file", url: "https://example.org/b.pdf", media_type: "application/pdf" },
];

it("sends the files of an edited message again", () => {
  expect(textOf(MESSAGE)).toBe("look");
  expect(contentOf("look again", filesOf(MESSAGE))).toEqual([{ type: "text", text: "look again" }, ...PARTS]);
  expect(contentOf("", filesOf(MESSAGE))).toEqual(PARTS);
});

it("puts a message back before the draft, and its files once", () => {
  setText("conv_1", "later ");
  putBack("conv_1", textOf(MESSAGE), filesOf(MESSAGE));
  expect(draftOf("conv_1").text).toBe("look\nlater");
  putBack("conv_1", "", filesOf(MESSAGE));
  expect(draftOf("conv_1").files.map(({ key }) => key)).toEqual(["part_2", "part_3"]);
});
