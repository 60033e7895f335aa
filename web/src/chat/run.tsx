// One run: its messages, questions, plan and notes, and its end.

import { memo, useState, type ReactNode } from "react";

import { isOver, type Item, type RunEnd, type RunState, type State } from "../conversation/state";
import { Icon } from "../shell/icons";
import { brief, number } from "../text/words";
import { useActions } from "./actions";
import { AskView } from "./asking";
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
    return (
      <section className={`run${isNewest ? " newest" : ""}`} data-status={run.status}>
        {run.items.map((item) => (
          <ItemView key={item.key} item={item} state={state} isOver={isOver(run)} />
        ))}
        {foot !== null && <footer className="end">{foot}</footer>}
      </section>
    );
  },
  (one, other) => one.run === other.run && one.rev === other.rev && one.state === other.state && one.isNewest === other.isNewest && one.isEnd === other.isEnd,
);

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
