import { QueryClientProvider } from "@tanstack/react-query";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, it } from "vitest";

import type { McpServer, Me, ToolReview } from "../api/types";
import { queries } from "../shell/queries";
import { ReviewCard } from "./review";

const SERVER = `mcp_${"0".repeat(32)}`;
const REVIEW = {
  id: "pin_1",
  server: SERVER,
  tool: "send",
  status: "changed",
  seen_at: "2026-01-31T12:00:00Z",
  definition_hash: "1",
  description: `${"long ".repeat(400)}new end`,
  parameters: { type: "object", properties: { to: { type: "string" } } },
  hints: { destructiveHint: true },
  before: { definition_hash: "0", description: `${"long ".repeat(400)}end`, parameters: { type: "object" }, hints: { readOnlyHint: true } },
} as unknown as ToolReview;

function shown(me: Partial<Me>): HTMLElement {
  queries.setQueryData(["me"], me);
  queries.setQueryData(["mcp-servers"], [{ id: SERVER, name: "mail" }] as McpServer[]);
  const markup = renderToStaticMarkup(
    <QueryClientProvider client={queries}>
      <ReviewCard review={REVIEW} />
    </QueryClientProvider>,
  );
  return new DOMParser().parseFromString(markup, "text/html").body;
}

it("shows both versions whole, with their hints and the name of the server", () => {
  const card = shown({ id: "user_1", role: "admin" });
  const texts = [...card.querySelectorAll(".diff")].map((diff) => diff.textContent);
  expect(texts).toHaveLength(3);
  expect(texts[0]).toContain(`- ${"long ".repeat(400)}end`);
  expect(texts[0]).toContain(`+ ${"long ".repeat(400)}new end`);
  expect([...card.querySelectorAll(".diff mark")].map((mark) => mark.textContent)).toContain("new ");
  expect(texts[1]).toContain('      "type": "string"');
  expect(texts[2]).toContain('-   "readOnlyHint": true');
  expect(texts[2]).toContain('+   "destructiveHint": true');
  expect(card.querySelector(".card-head")?.textContent).toContain("of mail");
});

it("lets only those accept a change who may do so", () => {
  expect([shown({ id: "user_1", role: "admin" }), shown({ id: "user_2", role: "member" })].map((card) => card.querySelector("button") !== null)).toEqual([true, false]);
});
