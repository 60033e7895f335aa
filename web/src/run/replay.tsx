// Shows the conversation as of any event of a run.

import { useQuery } from "@tanstack/react-query";
import { Fragment, useDeferredValue, useLayoutEffect, useMemo, useRef, useState } from "react";

import { print } from "../api/json";
import type { Run, StreamEvent } from "../api/types";
import { progressText } from "../chat/progress";
import { RunView } from "../chat/run";
import { isOver, showsEnd, type State } from "../conversation/state";
import { Failure, Section } from "../setup/parts";
import { Icon } from "../shell/icons";
import { cut } from "../text/words";
import { conversationAt, readSurroundings } from "./conversation";

const NOTHING = { events: [], messages: [], isCut: false };

/** `isCut` is whether the run has events after these. */
export function Replay({ run, events, isCut }: { run: Run; events: StreamEvent[]; isCut: boolean }) {
  // `null` is the last event: a run under way gets more of them.
  const [chosen, choose] = useState<number | null>(null);
  const place = Math.min(chosen ?? events.length, events.length);
  const event = events[place - 1];
  const hasEnded = run.finished_at !== undefined;
  const { data: around, error } = useQuery({ queryKey: ["surroundings", run.id, hasEnded, isCut ? events.length : null], queryFn: () => readSurroundings(run, events), enabled: events.length > 0 });
  // A large conversation takes longer to replay than the slider takes to move.
  const shown = useDeferredValue(place);
  const state = useMemo(() => conversationAt(around ?? NOTHING, events, shown), [around, events, shown]);
  const step = (by: number) => choose(Math.min(events.length, Math.max(1, place + by)));
  if (event === undefined) return null;
  return (
    <Section title="Conversation at an event" hint="Move the slider to see the conversation as it was after each event of the run.">
      <div className="scrubber">
        <button type="button" className="quiet icon" aria-label="Event before" title="Event before" disabled={place === 1} onClick={() => step(-1)}>
          <Icon name="back" />
        </button>
        <input type="range" min={1} max={events.length} value={place} aria-label="Event" aria-valuetext={`${event.type}, ${place} of ${events.length}`} onChange={(change) => choose(Number(change.target.value))} />
        <button type="button" className="quiet icon" aria-label="Event after" title="Event after" disabled={place === events.length} onClick={() => step(1)}>
          <Icon name="forth" />
        </button>
      </div>
      <details className="event-detail">
        <summary>
          <code>{event.type}</code> <span className="faint">{`${"seq" in event ? `seq ${event.seq}, ` : ""}${new Date(event.at).toLocaleTimeString()}, ${place} of ${events.length}`}</span>
        </summary>
        <pre className="output" tabIndex={0}>
          {cut(print(event.data, 2), 10_000)}
        </pre>
      </details>
      <Failure error={error} />
      {isCut && place === events.length && <p className="faint">The run has events after this one, which are not read yet.</p>}
      {around?.isCut === true && <p className="warning">The conversation is too long to be shown whole. Some messages are missing.</p>}
      {around === undefined && error === null && <p className="faint">Reading the messages before this run…</p>}
      <Conversation run={run.id} state={state} />
    </Section>
  );
}

/** The conversation, to read: nothing in it can be clicked or answered. */
function Conversation({ run: inspected, state }: { run: string; state: State }) {
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const node = box.current;
    if (node !== null) node.scrollTop = node.scrollHeight;
  }, [state]);
  const runs = [...state.runs.values()];
  const run = state.runs.get(inspected);
  return (
    <>
      {run !== undefined && !isOver(run) && <p className="faint">{`This run: ${progressText(run, state, null)}`}</p>}
      <div id="replay" className="replay" ref={box} tabIndex={0} role="region" aria-label="Conversation at this event">
        <fieldset disabled>
          {runs.map((one, at) => (
            <Fragment key={one.id}>
              {one.id === inspected && runs.length > 1 && <p className="run-begins">This run</p>}
              <RunView run={one} rev={one.rev} state={state} isNewest={at === runs.length - 1} isEnd={showsEnd(one, runs[at + 1])} />
            </Fragment>
          ))}
        </fieldset>
      </div>
    </>
  );
}
