import { describe, expect, it } from "vitest";

import { webUrl } from "./link-urls";

describe("addresses of others", () => {
  it("become links for the web only", () => {
    expect([webUrl("javascript:alert(1)"), webUrl("data:text/html,x"), webUrl("https://example.org/a")]).toEqual([null, null, "https://example.org/a"]);
  });
});
