// The inside of a run: its time, its steps, and the conversation as of any event.

import { useQuery } from "@tanstack/react-query";
import { useMemo, useRef } from "react";

import * as api from "../api/client";
import type { ContextBudget, Run, RunExplanation, StreamEvent } from "../api/types";
import { CallView } from "../chat/calls";
import { Action, Section } from "../setup/parts";
import { queries } from "../shell/queries";
import { brief, clock, duration, money, number } from "../text/words";
import { conversationAt } from "./conversation";
import { BATCH, NO_EVENTS, readEvents, type RunEvents } from "./events";
import { sentences } from "./explanation";
import { Replay } from "./replay";
import { Sent } from "./sent";
import { phases, steps, type PhaseKind, type Step } from "./timeline";

const NAMES: Record<PhaseKind, string> = { queued: "queued", model: "model", tools: "tools", human: "waits for you", backoff: "backoff", takeover: "takeover" };

interface Inspected extends RunEvents {
  run: Run;
  explanation: RunExplanation;
}

export default function Inspector({ id }: { id: string }) {
  const most = useRef(BATCH);
  const { data, error, dataUpdatedAt, refetch } = useQuery({
    queryKey: ["run", id],
    queryFn: async (): Promise<Inspected> => {
      // The events do not change: only new ones are read.
      const known = queries.getQueryData<Inspected>(["run", id]) ?? NO_EVENTS;
      // The run is read first, so that the events of a run that has ended are complete.
      const [run, explanation] = await Promise.all([api.get<Run>(`/runs/${id}`), api.get<RunExplanation>(`/runs/${id}/explain`)]);
      const { events, hasMore } = await readEvents(id, known, Math.max(most.current, known.events.length));
      return { run, explanation, events, hasMore };
    },
    // Comparing thousands of events costs more than drawing them.
    structuralSharing: false,
    refetchInterval: ({ state }) => (state.data !== undefined && ["completed", "failed", "cancelled"].includes(state.data.run.status) ? false : 3_000),
  });
  if (error !== null) return <p className="trouble empty">{api.words(error)}</p>;
  if (data === undefined) return <p className="faint empty">Reading the run…</p>;
  const { run, explanation, events, hasMore } = data;
  const readMore = () => {
    most.current = events.length + BATCH;
    return refetch();
  };
  return (
    <div className="scroll-page">
      <div className="setup inspector">
        <p>
          <a href={`#/${run.conversation_id}`}>Back to the conversation</a>
        </p>
        <Facts run={run} explanation={explanation} />
        {hasMore && <Cut shown={events.length} readMore={readMore} />}
        <Timeline run={run} events={events} now={dataUpdatedAt} isCut={hasMore} />
        <Steps run={id} events={events} />
        <Replay run={run} events={events} isCut={hasMore} />
      </div>
    </div>
  );
}

/** Says that the run has more events than are shown, and reads more of them. */
function Cut({ shown, readMore }: { shown: number; readMore: () => Promise<unknown> }) {
  return (
    <div className="cut-events" role="status">
      <p className="warning">{`Only the first ${number(shown)} events of the run are shown: its time, steps and conversation end there.`}</p>
      <Action act={readMore}>{`Read up to ${number(BATCH)} more events`}</Action>
    </div>
  );
}

function Facts({ run, explanation }: { run: Run; explanation: RunExplanation }) {
  const facts: [string, string | null][] = [
    ["Status", run.status],
    ["Model", run.model],
    ["Agent", `${run.agent}, version ${run.agent_version}`],
    ["Accepted", clock(run.created_at)],
    ["Attempts", String(run.attempt)],
    ["Tokens", run.usage === undefined ? null : `${number(run.usage.input_tokens)} in, ${number(run.usage.output_tokens)} out`],
    ["Cost", run.usage?.cost === undefined ? null : money(run.usage.cost)],
  ];
  return (
    <Section title="Run" hint={brief(sentences(explanation), 2_000)}>
      <dl className="facts">
        {facts.map(([name, value]) =>
          value === null ? null : (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{brief(value, 120)}</dd>
            </div>
          ),
        )}
      </dl>
      {run.error !== undefined && <p className="trouble">{`${run.error.title}: ${brief(run.error.detail, 600)}`}</p>}
    </Section>
  );
}

function Timeline({ run, events, now, isCut }: { run: Run; events: StreamEvent[]; now: number; isCut: boolean }) {
  const last = Date.parse(events.at(-1)?.at ?? run.created_at);
  // The last phase of a run that has not ended goes on.
  const end = isCut ? last : run.finished_at === undefined ? Math.max(now, last) : Date.parse(run.finished_at);
  const found = phases(events, end);
  const whole = Math.max(1, end - (found[0]?.from ?? end));
  const sums = new Map<PhaseKind, number>();
  for (const phase of found) sums.set(phase.kind, (sums.get(phase.kind) ?? 0) + phase.to - phase.from);
  return (
    <Section title="Time" hint={isCut ? `${duration(whole)} until the last event that is shown` : `${duration(whole)} in all`}>
      <div className="timeline-bar" role="img" aria-label={[...sums].map(([kind, ms]) => `${NAMES[kind]}: ${duration(ms)}`).join(", ")}>
        {found.map((phase) => (
          <span key={`${phase.from}-${phase.kind}`} className={`phase ${phase.kind}`} style={{ flexGrow: (phase.to - phase.from) / whole }} title={`${phase.label}: ${duration(phase.to - phase.from)}`} />
        ))}
      </div>
      <ul className="legend">
        {[...sums].map(([kind, ms]) => (
          <li key={kind}>
            <span className={`phase ${kind}`} />
            {`${NAMES[kind]} ${duration(ms)}`}
          </li>
        ))}
      </ul>
    </Section>
  );
}

/** The steps as a tree: each with its figures, and with its calls below it. */
function Steps({ run, events }: { run: string; events: StreamEvent[] }) {
  const found = steps(events);
  const calls = useMemo(() => conversationAt({ events: [], messages: [], isCut: false }, events, events.length).calls, [events]);
  return (
    <Section title="Steps">
      <ol className="step-tree">
        {found.map((step) => (
          <li key={step.number} data-kind={step.kind}>
            <div className="step-line">
              <strong>{`${step.number}. ${step.kind === "model" ? "Model" : "Tools"}`}</strong>
              <span className="faint">{figures(step)}</span>
            </div>
            {step.request !== null && <p className="faint">{request(step.request, step.tools)}</p>}
            {step.failedAttempts.map((title, at) => (
              <p key={at} className="trouble">{`A try failed: ${brief(title, 200)}`}</p>
            ))}
            {step.kind === "model" && <Sent run={run} step={step.number} isFinished={step.ms !== null} />}
            {step.calls.map((id) => {
              const call = calls.get(id);
              return call === undefined ? null : <CallView key={id} call={call} rev={events.length} />;
            })}
          </li>
        ))}
      </ol>
    </Section>
  );
}

function figures({ ms, usage }: Step): string {
  const facts = [
    ms === null ? "not finished" : duration(ms),
    usage === null ? null : `${usage.estimated === true ? "about " : ""}${number(usage.input_tokens)} tokens in, ${number(usage.output_tokens)} out`,
    usage?.cost === undefined ? null : money(usage.cost),
  ];
  return facts.filter((fact) => fact !== null).join(" · ");
}

function request({ tokenizer, used, window, unit }: ContextBudget, tools: Step["tools"]): string {
  const size = `The request had ${tokenizer === undefined ? "about " : ""}${number(used)} of ${number(window)} ${unit === "chars" ? "characters" : "tokens"}`;
  return `${size}${tools === null ? "" : `, with ${tools.offered} of ${tools.of} tools`}.`;
}
