// One run: its messages, questions, plan and notes, and its end.

import { useQuery } from "@tanstack/react-query";
import { memo, useState, type ReactNode } from "react";

import * as api from "../api/client";
import { earlierVersion } from "../conversation/earlier";
import { hasVersions, isOver, messagesOf, type Item, type RunEnd, type RunState, type State } from "../conversation/state";
import { Icon } from "../shell/icons";
import { brief, money, number } from "../text/words";
import { useActions } from "./actions";
import { QuestionView } from "./questions";
import { MessageView } from "./message";

const REASONS: Record<string, string> = { max_rounds: "the steps were used up", budget: "the budget was used up", length: "the answer was too long", refused: "the model refused" };

interface Props {
  run: RunState;
  rev: number;
  state: State;
  isNewest: boolean;
  /** Whether the end of the run is shown: a later run that replaces or continues it shows the end instead. */
  isEnd: boolean;
  /** The number of the earlier version that is shown in the place of the run and all later ones. */
  earlier?: number | null;
  /** Shows an earlier version of a run, or the current one. */
  showVersion?: (run: string, earlier: number | null) => void;
}

export const RunView = memo(
  function RunView({ run, state, isNewest, isEnd, earlier = null, showVersion }: Props) {
    const foot = isEnd && run.end !== null ? <End run={run} end={run.end} isNewest={isNewest && isOver(run)} /> : run.status === "queued" ? <Queued run={run} /> : null;
    return (
      <section className={`run${isNewest || earlier !== null ? " newest" : ""}`} data-status={run.status}>
        {showVersion !== undefined && hasVersions(run, isNewest) ? (
          <Versions run={run} state={state} at={earlier ?? run.earlier.length} showVersion={showVersion} foot={foot} />
        ) : (
          <>
            <Items items={run.items} state={state} isOver={isOver(run)} />
            {foot !== null && <footer className="end">{foot}</footer>}
          </>
        )}
      </section>
    );
  },
  (one, other) =>
    one.run === other.run && one.rev === other.rev && one.state === other.state && one.isNewest === other.isNewest && one.isEnd === other.isEnd && one.earlier === other.earlier && one.showVersion === other.showVersion,
);

function Items({ items, state, isOver }: { items: Item[]; state: State; isOver: boolean }) {
  return items.map((item) => <ItemView key={item.key} item={item} state={state} isOver={isOver} />);
}

interface VersionsProps {
  run: RunState;
  state: State;
  /** The number of the shown version. */
  at: number;
  showVersion: NonNullable<Props["showVersion"]>;
  foot: ReactNode;
}

/** A message or answer that replaced others. It shows one of them in its place, to read. */
function Versions({ run, state, at, showVersion, foot }: VersionsProps) {
  const actions = useActions();
  const version = run.earlier[at];
  const key = version === undefined ? [] : [version.from, version.until];
  const { data, error } = useQuery({ queryKey: ["earlier", ...key], queryFn: () => (version === undefined ? null : earlierVersion(version, state.messages)), enabled: version !== undefined, staleTime: Infinity });
  const isMessage = messagesOf(run)[0]?.role === "user";
  const replayed = data == null ? [] : [...data.runs.values()];
  const items = version === undefined ? run.items : replayed.flatMap((one) => one.items);
  const [source, hasEnded] = version === undefined || data == null ? [state, isOver(run)] : [data, false];
  const [lead, rest] = isMessage ? [items.slice(0, 1), items.slice(1)] : [[], items];
  const end = replayed.findLast((one) => one.end !== null);
  const choice = (
    <span className="version-switch" role="group" aria-label={isMessage ? "Versions of the message" : "Versions of the answer"}>
      <VersionButton icon="back" label="Earlier version" version={at > 0 ? at - 1 : null} show={(to) => showVersion(run.id, to)} />
      <span aria-live="polite">
        <span className="unseen">Version </span>
        {`${at + 1}/${run.earlier.length + 1}`}
      </span>
      <VersionButton icon="forth" label="Later version" version={version === undefined ? null : at + 1} show={(to) => showVersion(run.id, to === run.earlier.length ? null : to)} />
    </span>
  );
  return (
    <>
      <Items items={lead} state={source} isOver={hasEnded} />
      {isMessage && <div className="message-versions">{choice}</div>}
      {version !== undefined && error !== null && <p className="trouble">{api.words(error)}</p>}
      {version !== undefined && error === null && data == null && <p className="faint">Reading the version…</p>}
      <Items items={rest} state={source} isOver={hasEnded} />
      <footer className="end">
        {!isMessage && choice}
        {version === undefined ? (
          foot
        ) : (
          <>
            <Button name="fork-earlier" act={() => actions.forkEarlier(version.until)}>
              Continue in a copy
            </Button>
            {end?.end != null && <End run={end} end={end.end} isNewest={false} />}
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
    case "question":
      return <QuestionView question={item.question} rev={item.rev} />;
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
      {error?.code === "provider_auth" && (
        <a className="button small" href="#/setup/models">
          Check the key
        </a>
      )}
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
  return [
    run.model === null ? null : brief(run.model, 80),
    `${number(usage.model_calls)} model ${usage.model_calls === 1 ? "call" : "calls"}`,
    `${usage.estimated === true ? "about " : ""}${number(usage.input_tokens)} tokens in, ${number(usage.output_tokens)} out`,
    usage.cost === undefined ? null : money(usage.cost),
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
