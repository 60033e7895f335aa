// One run: its messages, questions, plan and notes, and its end.

import { useQuery } from "@tanstack/react-query";
import { memo, useState, type ReactNode } from "react";

import * as api from "../api/client";
import type { StreamEvent } from "../api/types";
import { initial, isAgain, isOver, reduce, type Item, type RunEnd, type RunState, type State } from "../conversation/state";
import { Icon } from "../shell/icons";
import { brief, number } from "../text/words";
import { useActions } from "./actions";
import { AskView } from "./questions";
import { MessageView } from "./message";

const REASONS: Record<string, string> = { max_rounds: "the steps were used up", budget: "the budget was used up", length: "the answer was too long", refused: "the model refused" };

interface Props {
  run: RunState;
  rev: number;
  state: State;
  isNewest: boolean;
  /** Whether the end of the run is shown: a later run that replaces or continues it shows the end instead. */
  isEnd: boolean;
}

export const RunView = memo(
  function RunView({ run, state, isNewest, isEnd }: Props) {
    const foot = isEnd && run.end !== null ? <End run={run} end={run.end} isNewest={isNewest && isOver(run)} /> : run.status === "queued" ? <Queued run={run} /> : null;
    const current = <Items run={run} state={state} isOver={isOver(run)} />;
    return (
      <section className={`run${isNewest ? " newest" : ""}`} data-status={run.status}>
        {run.earlier.length > 0 && isAgain(run, isNewest) ? (
          <Versions earlier={run.earlier} foot={foot}>
            {current}
          </Versions>
        ) : (
          <>
            {current}
            {foot !== null && <footer className="end">{foot}</footer>}
          </>
        )}
      </section>
    );
  },
  (one, other) => one.run === other.run && one.rev === other.rev && one.state === other.state && one.isNewest === other.isNewest && one.isEnd === other.isEnd,
);

function Items({ run, state, isOver }: { run: RunState; state: State; isOver: boolean }) {
  return run.items.map((item) => <ItemView key={item.key} item={item} state={state} isOver={isOver} />);
}

/** Pages of 100 events of an earlier answer. */
const EVENT_PAGES = 50;

/** Returns the answer of a run that was replaced, from its events. The messages of users are still in the conversation. */
async function earlierAnswer(id: string): Promise<{ run: RunState; state: State }> {
  const state = initial();
  for (const event of await api.all<StreamEvent>(`/runs/${id}/events`, EVENT_PAGES)) reduce(state, event);
  const run = state.runs.get(id);
  if (run === undefined) throw new api.Problem(410, { detail: "The log does not have this version any more." });
  run.items = run.items.filter((item) => item.kind !== "message" || item.role === "assistant");
  return { run, state };
}

/** An answer that replaced others. It shows one of them in its place, to read. */
function Versions({ earlier, foot, children }: { earlier: string[]; foot: ReactNode; children: ReactNode }) {
  const actions = useActions();
  const [at, setAt] = useState(earlier.length);
  const id = earlier[at];
  const { data, error } = useQuery({ queryKey: ["earlier", id], queryFn: () => earlierAnswer(id ?? ""), enabled: id !== undefined, staleTime: Infinity });
  let shown = children;
  if (id !== undefined) {
    if (error !== null) shown = <p className="trouble">{api.words(error)}</p>;
    else if (data === undefined) shown = <p className="faint">Reading the version…</p>;
    else shown = <Items run={data.run} state={data.state} isOver={false} />;
  }
  return (
    <>
      {shown}
      <footer className="end">
        <span className="version-switch" role="group" aria-label="Versions of the answer">
          <VersionButton icon="back" label="Earlier version" version={at > 0 ? at - 1 : null} show={setAt} />
          <span aria-live="polite">
            <span className="unseen">Version </span>
            {`${at + 1}/${earlier.length + 1}`}
          </span>
          <VersionButton icon="forth" label="Later version" version={id === undefined ? null : at + 1} show={setAt} />
        </span>
        {id === undefined ? (
          foot
        ) : (
          <>
            <Button name="fork-earlier" act={() => actions.forkEarlier(id)}>
              Continue in a copy
            </Button>
            {data?.run.end != null && <End run={data.run} end={data.run.end} isNewest={false} />}
          </>
        )}
      </footer>
    </>
  );
}

/** A button that shows another version. It keeps the focus when there is none. */
function VersionButton({ icon, label, version, show }: { icon: "back" | "forth"; label: string; version: number | null; show: (version: number) => void }) {
  return (
    <button type="button" className="quiet icon" aria-label={label} title={label} aria-disabled={version === null} onClick={() => version !== null && show(version)}>
      <Icon name={icon} />
    </button>
  );
}

function ItemView({ item, state, isOver }: { item: Item; state: State; isOver: boolean }): ReactNode {
  switch (item.kind) {
    case "message":
      return <MessageView item={item} state={state} rev={item.rev} isOver={isOver} />;
    case "ask":
      return <AskView ask={item.ask} rev={item.rev} />;
    case "plan":
      return (
        <ol className="plan" aria-label="Plan">
          {item.steps.map((step) => (
            <li key={step.step} data-state={step.state}>
              <span className="mark">{step.state === "running" ? <span className="spin" /> : step.state === "done" ? <Icon name="done" /> : step.state === "failed" ? <Icon name="failed" /> : step.state === "skipped" ? <Icon name="close" /> : null}</span>
              <span>{brief(step.description, 500)}</span>
              <span className="unseen">{` (${step.state})`}</span>
            </li>
          ))}
        </ol>
      );
    case "note":
      return <p className="note">{item.words}</p>;
  }
}

function Queued({ run }: { run: RunState }) {
  const actions = useActions();
  return (
    <>
      <span>Waits for its turn.</span>
      <button type="button" className="quiet small take-back" onClick={() => void actions.takeBack(run)}>
        Take back
      </button>
    </>
  );
}

/** The end of a run: an error, or what it used. */
function End({ run, end, isNewest }: { run: RunState; end: RunEnd; isNewest: boolean }) {
  const actions = useActions();
  const { status, error, usage, finish, notice, by } = end;
  const early = finish === null ? undefined : REASONS[finish];
  return (
    <>
      {error !== null && (
        <p className="error">
          <strong>{brief(error.title || "It failed", 200)}</strong>{" "}
          <a href={`docs/errors/${error.code}`} target="_blank" rel="noopener">
            {error.code}
          </a>
          {error.detail !== "" && <span className="detail">{brief(error.detail, 1000)}</span>}
        </p>
      )}
      {status === "cancelled" && <span>{by === "interrupt" ? "Stopped for the next message." : "Stopped."}</span>}
      {early !== undefined && <span>{`Ended early: ${early}.`}</span>}
      {notice === "nothing_written" && <p className="warning">The answer speaks of a change, but no call that changes anything has succeeded.</p>}
      {isNewest && status === "failed" && <Button name="resume" act={() => actions.act("resume", run.id)}>Resume</Button>}
      {isNewest && (
        <Button name={`retry${status === "completed" ? " quiet" : ""}`} act={() => actions.act("retry", run.id)}>
          {status === "completed" ? "Answer again" : "Try again"}
        </Button>
      )}
      <button type="button" className="quiet small inspect" onClick={() => actions.inspect(run.id)}>
        Look inside
      </button>
      {usage !== null && <span className="usage">{figures(run, usage)}</span>}
    </>
  );
}

function figures(run: RunState, usage: NonNullable<RunEnd["usage"]>): string {
  const cost = Number(usage.cost?.amount);
  return [
    run.model === null ? null : brief(run.model, 80),
    `${number(usage.model_calls)} model ${usage.model_calls === 1 ? "call" : "calls"}`,
    `${usage.estimated === true ? "about " : ""}${number(usage.input_tokens)} tokens in, ${number(usage.output_tokens)} out`,
    usage.cost !== undefined && Number.isFinite(cost) ? `${usage.cost.currency === "USD" ? "$" : `${usage.cost.currency} `}${cost.toPrecision(2)}` : null,
  ]
    .filter((figure) => figure !== null)
    .join(" · ");
}

/** A button that is off while its action is under way. */
export function Button({ name, act, children }: { name: string; act: () => Promise<unknown>; children: ReactNode }) {
  const [isBusy, setBusy] = useState(false);
  const click = () => {
    setBusy(true);
    void act().finally(() => setBusy(false));
  };
  return (
    <button type="button" className={`small ${name}`} disabled={isBusy} onClick={click}>
      {children}
    </button>
  );
}
