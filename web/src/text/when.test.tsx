import { Profiler, act } from "react";
import { createRoot } from "react-dom/client";
import { afterEach, beforeEach, expect, it, vi } from "vitest";

import { When } from "./when";
import { clock, date, relative } from "./words";

const NOW = new Date(2026, 0, 20, 12, 0);
const before = (minutes: number, of = NOW) => new Date(of.getTime() - minutes * 60_000).toISOString();

beforeEach(() => {
  vi.useFakeTimers({ now: NOW });
  vi.stubGlobal("IS_REACT_ACT_ENVIRONMENT", true);
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

it("counts minutes for an hour, then names the time, the day and the year", () => {
  const [today, yesterday, earlier, old] = [before(180), before(60 * 15), before(60 * 24 * 4), before(60 * 24 * 400)];
  expect([0, 0.5, 1, 2, 59].map((minutes) => relative(before(minutes), NOW))).toEqual(["just now", "just now", "1 minute ago", "2 minutes ago", "59 minutes ago"]);
  expect(relative(today, NOW)).toBe(clock(today, NOW));
  expect(relative(yesterday, NOW)).toBe(`yesterday, ${clock(yesterday, new Date(yesterday))}`);
  expect(relative(earlier, NOW)).toBe(clock(earlier, NOW));
  expect(relative(old, NOW)).toBe(`${date(old)}, ${clock(old, new Date(old))}`);
  expect(relative("no time", NOW)).toBe("");
});

it("shows a time of a clock that is ahead", () => {
  expect(relative(before(-0.5), NOW)).toBe("just now");
  expect(relative(before(-5), NOW)).toBe(clock(before(-5), NOW));
});

it("draws only those times again whose words change", () => {
  const drawn: string[] = [];
  const box = document.createElement("div");
  const root = createRoot(box);
  const times = { recent: before(1), old: before(60 * 24 * 4) };
  act(() => {
    root.render(
      Object.entries(times).map(([name, at]) => (
        <Profiler key={name} id={name} onRender={(id) => drawn.push(id)}>
          <When at={at} />
        </Profiler>
      )),
    );
  });
  const [recent, old] = box.querySelectorAll("time");
  expect([recent?.textContent, recent?.dateTime, recent?.title]).toEqual(["1 minute ago", times.recent, new Date(times.recent).toLocaleString()]);
  act(() => {
    vi.advanceTimersByTime(65_000);
  });
  expect(recent?.textContent).toBe("2 minutes ago");
  expect([old?.textContent, drawn]).toEqual([clock(times.old, NOW), ["recent", "old", "recent"]]);
  act(() => {
    root.unmount();
  });
  expect(vi.getTimerCount()).toBe(0);
});
