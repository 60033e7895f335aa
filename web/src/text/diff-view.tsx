// The difference of two texts, as lines with signs and colours.

import { changedLines, diffLines, type DiffLine } from "./diff";

/** Letters that are shown before and behind the changed part of a long line. */
const AROUND = 120;

interface Props {
  label: string;
  before: string;
  after: string;
  /** Whether unchanged lines, and unchanged parts of long lines, are left out. */
  isShort?: boolean;
}

export function Diff({ label, before, after, isShort = false }: Props) {
  const lines = diffLines(before, after);
  return (
    <pre className="diff" role="region" aria-label={label} tabIndex={0}>
      {(isShort ? changedLines(lines) : lines).map((line, at) =>
        line === null ? (
          <span key={at} className="faint">
            {"  …\n"}
          </span>
        ) : (
          <span key={at} data-sign={line.sign === " " ? undefined : line.sign}>
            {`${line.sign} `}
            <Line line={line} isShort={isShort} />
            {"\n"}
          </span>
        ),
      )}
    </pre>
  );
}

function Line({ line: { text, changed, sign }, isShort }: { line: DiffLine; isShort: boolean }) {
  if (changed === undefined) return isShort && sign === " " && text.length > 2 * AROUND ? `${text.slice(0, 2 * AROUND)}…` : text;
  const [from, to] = changed;
  const [head, tail] = [text.slice(0, from), text.slice(to)];
  return (
    <>
      {isShort && head.length > AROUND ? `…${head.slice(-AROUND)}` : head}
      {to > from && <mark>{text.slice(from, to)}</mark>}
      {isShort && tail.length > AROUND ? `${tail.slice(0, AROUND)}…` : tail}
    </>
  );
}
