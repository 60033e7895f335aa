import { QueryClientProvider } from "@tanstack/react-query";
import { act } from "react";
import { createRoot } from "react-dom/client";
import { afterEach, beforeEach, expect, it, vi } from "vitest";

import { queries } from "../shell/queries";
import { Agents } from "./agents";

const poet = (revision: number, rounds: number) => ({ id: "agent_1", name: "poet", description: "", scope: "own", version: revision, latest_version: revision, revision, profile: { max_rounds: rounds } });

beforeEach(() => {
  vi.stubGlobal("IS_REACT_ACT_ENVIRONMENT", true);
  queries.setQueryData(["me"], { id: "user_1", role: "admin" });
  queries.setQueryData(["models"], []);
  queries.setQueryData(["tools", "offered"], []);
});
afterEach(() => {
  queries.clear();
  vi.unstubAllGlobals();
});

it("shows the newest version of an agent that is edited again", async () => {
  queries.setQueryData(["agents"], [poet(1, 5)]);
  const box = document.createElement("div");
  document.body.append(box);
  const root = createRoot(box);
  act(() => {
    root.render(
      <QueryClientProvider client={queries}>
        <Agents />
      </QueryClientProvider>,
    );
  });
  const edit = () => {
    act(() => {
      [...box.querySelectorAll("button")].find((button) => button.textContent === "Edit")?.click();
    });
    return box.querySelector<HTMLInputElement>("[name=max_rounds]")?.value;
  };
  expect(edit()).toBe("5");
  await act(async () => {
    queries.setQueryData(["agents"], [poet(2, 9)]);
    await new Promise((resolve) => setTimeout(resolve, 0));
  });
  expect(edit()).toBe("9");
  act(() => {
    root.unmount();
  });
  box.remove();
});
