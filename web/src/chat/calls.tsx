// Tool calls, as blocks that open.

import { memo, useState } from "react";

import { print } from "../api/json";
import type { ToolContent } from "../api/types";
import type { Call } from "../conversation/state";
import { Icon, type IconName } from "../shell/icons";
import { useServerName } from "../shell/queries";
import { brief, cut, duration } from "../text/words";
import { FileChip, Picture } from "./files";

const WORDS: Record<string, string> = {
  written: "being written",
  planned: "planned",
  awaiting_approval: "waits for you",
  started: "running",
  done: "done",
  failed: "failed",
  denied: "not allowed",
  cancelled: "stopped",
  unknown: "outcome unknown",
};

const ICONS: Record<string, IconName> = { done: "done", failed: "failed", denied: "close", cancelled: "close", unknown: "unknown", awaiting_approval: "ask" };
const RUNNING = new Set(["written", "planned", "started"]);

const shownState = (call: Call): string => (call.isError && call.state === "done" ? "failed" : call.state);

/** Returns the arguments of a call on one line. */
function summary(call: Call): string {
  const value = call.arguments;
  if (value === null) return brief(call.written);
  const entries = Object.entries(value);
  const only = entries[0]?.[1];
  if (entries.length === 1 && typeof only === "string") return brief(only);
  return entries.length === 0 ? "" : brief(print(value));
}

function time(call: Call, state: string): string {
  const { progress, ms } = call;
  if (RUNNING.has(state) && progress !== null) {
    const part = progress.total !== undefined && progress.total > 0 ? `${Math.round((100 * progress.progress) / progress.total)} %` : String(progress.progress);
    return progress.message ? `${brief(progress.message, 60)} · ${part}` : part;
  }
  if (ms !== null && state === "done") return duration(ms);
  const words = WORDS[state] ?? brief(state, 30);
  return ms === null || state !== "failed" ? words : `${words} · ${duration(ms)}`;
}

function Mark({ state }: { state: string }) {
  return (
    <span className="mark" data-state={state}>
      {RUNNING.has(state) ? <span className="spin" /> : <Icon name={ICONS[state] ?? "unknown"} />}
      <span className="unseen">{WORDS[state] ?? state}</span>
    </span>
  );
}

export const CallView = memo(function CallView({ call }: { call: Call; rev: number }) {
  const [isOpen, setOpen] = useState(false);
  const state = shownState(call);
  return (
    <details className="call" data-state={state} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <Mark state={state} />
        <span className="name">{brief(call.name, 80) || "tool"}</span>
        <span className="summary">{summary(call)}</span>
        <span className="time">{time(call, state)}</span>
      </summary>
      {/* The content of a closed block is not built. */}
      <div className="body">{isOpen && <CallBody call={call} />}</div>
    </details>
  );
});

function CallBody({ call }: { call: Call }) {
  const server = useServerName(call.server);
  return (
    <>
      {server !== "" && (
        <>
          <div className="label">Server</div>
          <p>{brief(server, 80)}</p>
        </>
      )}
      <div className="label">Arguments</div>
      <pre tabIndex={0}>{cut(call.arguments === null ? call.written : print(call.arguments, 2))}</pre>
      {call.content !== null && (
        <>
          <div className="label">{call.isError ? "Error" : "Result"}</div>
          {call.content.map((part, at) => (
            <Content key={at} part={part} />
          ))}
        </>
      )}
      {call.truncated && <p className="faint">The result is longer than this. The model reads no more of it either.</p>}
      {call.state === "unknown" && <p className="faint">The server crashed during this call, so its effect is unknown.</p>}
    </>
  );
}

function Content({ part }: { part: ToolContent }) {
  if (part.type === "text") return <pre tabIndex={0}>{cut(part.text)}</pre>;
  return part.type === "image" ? <Picture part={part} /> : <FileChip part={part} />;
}

/** Several calls of one step, folded into one line. */
export function CallGroup({ calls, rev }: { calls: Call[]; rev: number }) {
  const states = calls.map(shownState);
  const state = states.find((one) => one === "awaiting_approval") ?? states.find((one) => RUNNING.has(one)) ?? states.find((one) => one !== "done") ?? "done";
  const counts = new Map<string, number>();
  for (const call of calls) counts.set(call.name, (counts.get(call.name) ?? 0) + 1);
  const names = [...counts].map(([name, count]) => (count > 1 ? `${brief(name, 40)} ×${count}` : brief(name, 40))).join(", ");
  const ms = calls.reduce((sum, call) => Math.max(sum, call.ms ?? 0), 0);
  return (
    <details className="calls" data-state={state}>
      <summary>
        <Mark state={state} />
        <span className="name">{`${calls.length} calls`}</span>
        <span className="summary">{names}</span>
        <span className="time">{state === "done" ? duration(ms) : (WORDS[state] ?? state)}</span>
      </summary>
      <div className="timeline">
        {calls.map((call) => (
          <CallView key={call.id} call={call} rev={rev} />
        ))}
      </div>
    </details>
  );
}
