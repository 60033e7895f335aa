// The effect of a call in the form that a person reads: a command, a change of a file, a mail. The arguments stay below it in full.

import { cut, spelled } from "../text/words";

const text = (value: unknown): string | null => (typeof value === "string" && value !== "" ? value : null);
const shown = (value: string): string => cut(spelled(value), 8_000);

interface Change {
  before: string;
  after: string;
}

function changeOf(holder: Record<string, unknown>): Change | null {
  for (const [before, after] of [["old_string", "new_string"], ["old_text", "new_text"], ["oldText", "newText"], ["old_str", "new_str"]] as const) {
    if (typeof holder[before] === "string" && typeof holder[after] === "string") return { before: holder[before], after: holder[after] };
  }
  return null;
}

function changesOf(holder: Record<string, unknown>): Change[] {
  const one = changeOf(holder);
  if (one !== null) return [one];
  const edits = Array.isArray(holder.edits) ? holder.edits : [];
  return edits.flatMap((edit: unknown) => (typeof edit === "object" && edit !== null ? (changeOf(edit as Record<string, unknown>) ?? []) : []));
}

export function Effect({ arguments: given }: { arguments: Record<string, unknown> }) {
  const command = text(given.command) ?? text(given.cmd);
  const path = text(given.path) ?? text(given.file_path);
  if (command !== null) return <pre className="effect command">{shown(command)}</pre>;
  const changes = changesOf(given);
  if (changes.length > 0) {
    return (
      <div className="effect">
        {path !== null && <div className="effect-path">{shown(path)}</div>}
        {changes.map(({ before, after }, at) => (
          <pre key={at} className="diff">
            {lines(before, "-")}
            {lines(after, "+")}
          </pre>
        ))}
      </div>
    );
  }
  const [to, subject, body] = [given.to, given.subject, given.body ?? given.text].map(text);
  if (to != null && subject != null) {
    return (
      <div className="effect mail">
        <div>
          <span className="faint">To </span>
          {shown(to)}
        </div>
        <strong>{shown(subject)}</strong>
        {body != null && <p>{shown(body)}</p>}
      </div>
    );
  }
  return null;
}

const lines = (value: string, sign: string) =>
  value === "" ? null : shown(value).split("\n").map((line, at) => <span key={sign + String(at)} data-sign={sign}>{`${sign} ${line}\n`}</span>);
