// Shows the earlier versions of a conversation, and continues one of them in a copy.

import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";

import { RunView } from "../chat/run";
import { initial, reduce } from "../conversation/state";
import { Action, Failure, Section } from "../setup/parts";
import { clock } from "../text/words";
import { copy, read, type Log } from "./log";
import type { Version } from "./versions";

export default function Versions({ id, go }: { id: string; go: (to: string) => void }) {
  const { data, error } = useQuery({ queryKey: ["versions", id], queryFn: () => read(id), staleTime: 0 });
  const [seq, setSeq] = useState<number | null>(null);
  const shown = data?.found.find((version) => version.seq === seq) ?? data?.found[0];
  return (
    <div className="scroll-page">
      <div className="setup versions-page">
        <p>
          <a href={`#/${id}`}>Back to the conversation</a>
        </p>
        <Failure error={error} />
        {data === undefined && error === null && <p className="faint">Reading the log…</p>}
        {data !== undefined && shown === undefined && <p className="faint inbox-empty">Nothing was edited or answered again.</p>}
        {data !== undefined && shown !== undefined && (
          <>
            <div className="kinds" role="group" aria-label="Versions">
              {data.found.map((version, at) => (
                <button key={version.seq} type="button" className={`kind${version === shown ? " on" : ""}`} aria-pressed={version === shown} onClick={() => setSeq(version.seq)}>
                  {`${data.found.length - at} of ${data.found.length + 1}`}
                </button>
              ))}
            </div>
            <Replaced version={shown} data={data} go={go} />
          </>
        )}
      </div>
    </div>
  );
}

/** The runs with the replaced messages, as they were. */
function Replaced({ version, data, go }: { version: Version; data: Log; go: (to: string) => void }) {
  const { events } = data;
  const state = useMemo(() => {
    const replayed = initial();
    // The reducer changes the parts of messages: each replay has its own.
    for (const event of structuredClone(events.filter((one) => "seq" in one && one.seq < version.seq))) reduce(replayed, event);
    return replayed;
  }, [events, version.seq]);
  const replaced = new Set(version.replaced);
  const runs = [...state.runs.values()].filter((run) => run.items.some((item) => item.kind === "message" && item.id !== null && replaced.has(item.id)));
  return (
    <Section
      title={`Replaced ${clock(version.at)}`}
      hint={version.isWhole ? "These messages left the conversation. What tools did then was not undone." : "The log does not have all messages of this version."}
      actions={version.isWhole && <Action act={async () => go(await copy(data.conversation, version))}>Continue in a copy</Action>}
    >
      <div className="replay">
        {runs.map((run) => (
          <RunView key={run.id} run={run} rev={run.rev} state={state} isNewest={false} isEnd={run.end !== null} />
        ))}
      </div>
    </Section>
  );
}
