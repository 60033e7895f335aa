// Shared pieces of the pages of the set up.

import { useState, type ReactNode, type SyntheticEvent } from "react";

import * as api from "../api/client";
import { useMe } from "../shell/me";
import type { Look } from "../shell/server-state";

/** A heading with its explanation, and the content below. */
export function Section({ title, hint, children, actions }: { title: string; hint?: ReactNode; children: ReactNode; actions?: ReactNode }) {
  return (
    <section className="setup-section">
      <div className="setup-head">
        <h2>{title}</h2>
        {actions}
      </div>
      {hint !== undefined && <p className="faint">{hint}</p>}
      {children}
    </section>
  );
}

export function Field({ label, hint, children }: { label: string; hint?: ReactNode; children: ReactNode }) {
  return (
    <label className="field-line">
      <span className="field-label">{label}</span>
      {children}
      {hint !== undefined && <small className="faint">{hint}</small>}
    </label>
  );
}

/** A list of options, with a label above. */
export function Choice<T extends string>({ label, value, options, choose }: { label: string; value: T; options: (readonly [T, string])[]; choose: (value: T) => void }) {
  return (
    <label>
      <span className="faint">{label}</span>
      <select value={value} onChange={(event) => choose(event.target.value as T)}>
        {options.map(([id, words]) => (
          <option key={id} value={id}>
            {words}
          </option>
        ))}
      </select>
    </label>
  );
}

/** Says why something could not be read. */
export function Failure({ error }: { error: Error | null }) {
  if (error === null) return null;
  return (
    <p className="trouble" role="alert">
      {api.words(error)}
    </p>
  );
}

/** Lets an administrator see the records of all users. */
export function AllUsers({ isChosen, choose }: { isChosen: boolean; choose: (isChosen: boolean) => void }) {
  return (
    <label className="check">
      <input type="checkbox" checked={isChosen} onChange={(event) => choose(event.target.checked)} />
      All users
    </label>
  );
}

/** A button whose action is under way at most once, and whose error is shown beside it. */
export function Action({ act, children, className = "small", title, label }: { act: () => Promise<unknown>; children: ReactNode; className?: string; title?: string; label?: string }) {
  const [isBusy, setBusy] = useState(false);
  const [trouble, setTrouble] = useState("");
  const click = () => {
    setBusy(true);
    setTrouble("");
    act()
      .catch((error: unknown) => setTrouble(api.words(error)))
      .finally(() => setBusy(false));
  };
  return (
    <>
      <button type="button" className={className} disabled={isBusy} title={title} aria-label={label} onClick={click}>
        {isBusy && <span className="spin" />} {children}
      </button>
      {trouble !== "" && (
        <span className="action-trouble" role="alert">
          {trouble}
        </span>
      )}
    </>
  );
}

/** A form that sends itself once, and shows its error. */
export function Form({ submit, children, label, cancel }: { submit: (values: FormData) => Promise<unknown>; children: ReactNode; label: string; cancel?: () => void }) {
  const [isBusy, setBusy] = useState(false);
  const [trouble, setTrouble] = useState("");
  const send = (event: SyntheticEvent<HTMLFormElement>) => {
    event.preventDefault();
    setBusy(true);
    setTrouble("");
    submit(new FormData(event.currentTarget))
      .catch((error: unknown) => setTrouble(error instanceof SyntaxError ? error.message : api.words(error)))
      .finally(() => setBusy(false));
  };
  return (
    <form className="setup-form" onSubmit={send}>
      {children}
      {trouble !== "" && (
        <p className="trouble" role="alert">
          {trouble}
        </p>
      )}
      <div className="buttons">
        <button type="submit" className="primary" disabled={isBusy}>
          {isBusy && <span className="spin" />} {label}
        </button>
        {cancel !== undefined && (
          <button type="button" onClick={cancel}>
            Cancel
          </button>
        )}
      </div>
    </form>
  );
}

export const textOf = (values: FormData, name: string): string => {
  const value = values.get(name);
  return typeof value === "string" ? value.trim() : "";
};

/** Lets an administrator make a record for all users. */
export function ForAllUsers() {
  const { data: me } = useMe();
  if (me?.role !== "admin") return null;
  return (
    <label className="check">
      <input type="checkbox" name="global" />
      For all users
    </label>
  );
}

/** Returns the scope that the form of a new record has. */
export const scopeOf = (values: FormData): { scope?: "global" } => (values.has("global") ? { scope: "global" } : {});

/** Returns whether this user may change a record of a scope: those of all users belong to the administrators. */
export function useMayChange(scope: string): boolean {
  const { data: me } = useMe();
  return scope === "own" || (scope === "global" && me?.role === "admin");
}

const SCOPES: Record<string, string> = { own: "yours", global: "for all users", config: "from the settings", preset: "built in" };

export const Scope = ({ scope }: { scope: string }) => <span className="tag">{SCOPES[scope] ?? scope}</span>;

export function State({ look, children }: { look: Look; children: ReactNode }) {
  return (
    <span className={`state ${look}`}>
      <span className="state-dot" aria-hidden="true" />
      {children}
    </span>
  );
}
