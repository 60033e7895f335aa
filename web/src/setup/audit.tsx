// The audit of tool calls: every call that ended, with its outcome and who decided about it.

import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useState } from "react";

import * as api from "../api/client";
import type { AuditRecord, Me, ToolDefinition, User } from "../api/types";
import { useMe } from "../shell/me";
import { useServerName, useUsers } from "../shell/queries";
import { brief, clock, duration, spelled } from "../text/words";
import { Action, AllUsers, Choice, Failure, Section, State } from "./parts";

type Outcome = AuditRecord["outcome"];

const OUTCOMES: Record<Outcome, { words: string; look: "good" | "bad" | "wait" | "off" }> = {
  success: { words: "done", look: "good" },
  error: { words: "failed", look: "bad" },
  denied: { words: "denied", look: "off" },
  skipped: { words: "skipped", look: "off" },
  unknown: { words: "outcome unknown", look: "wait" },
};

export function Audit() {
  const { data: me } = useMe();
  const [tool, setTool] = useState("");
  const [outcome, setOutcome] = useState<Outcome | "">("");
  const [isOfAll, setOfAll] = useState(false);
  const filter = new URLSearchParams({ limit: "50", ...(tool !== "" && { tool }), ...(outcome !== "" && { outcome }), ...(isOfAll && { owner: "all" }) }).toString();
  const { data, error, hasNextPage, fetchNextPage } = useInfiniteQuery({
    queryKey: ["audit", filter],
    queryFn: ({ pageParam }) => api.get<api.Page<AuditRecord>>(`/audit?${filter}${pageParam === null ? "" : `&cursor=${encodeURIComponent(pageParam)}`}`),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next_cursor,
    staleTime: 0,
  });
  const { data: users } = useUsers(isOfAll);
  const { data: tools } = useQuery({ queryKey: ["tools"], queryFn: () => api.get<{ data: ToolDefinition[] }>("/tools") });
  const records = data?.pages.flatMap((page) => page.data);
  // Records outlive their tools.
  const names = [...new Set([...(tools?.data ?? []), ...(records ?? []), ...(tool === "" ? [] : [{ name: tool }])].map(({ name }) => name))].sort();
  return (
    <Section title="Audit" hint="Every tool call that has ended, newest first. Records never change, and outlive their conversations.">
      <div className="filters">
        <Choice label="Tool" value={tool} choose={setTool} options={[["", "All tools"], ...names.map((name) => [name, brief(spelled(name), 60)] as const)]} />
        <Choice label="Outcome" value={outcome} choose={setOutcome} options={[["", "All outcomes"], ...Object.entries(OUTCOMES).map(([id, { words }]) => [id as Outcome, words] as const)]} />
        {me?.role === "admin" && <AllUsers isChosen={isOfAll} choose={setOfAll} />}
      </div>
      <Failure error={error} />
      {records?.length === 0 && <p className="faint">No such call has ended.</p>}
      {records !== undefined && records.length > 0 && (
        <div className="table" role="region" aria-label="Tool calls" tabIndex={0}>
          <table className="steps audit">
            <thead>
              <tr>
                <th scope="col">Ended</th>
                <th scope="col">Tool</th>
                <th scope="col">Outcome</th>
                <th scope="col">Time</th>
                <th scope="col">Decided by</th>
                {isOfAll && <th scope="col">User</th>}
                <th scope="col">Run</th>
              </tr>
            </thead>
            <tbody>
              {records.map((record) => (
                <Row key={`${record.run_id} ${record.call_id}`} record={record} me={me} users={isOfAll ? (users ?? []) : null} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {hasNextPage && (
        <p>
          <Action act={() => fetchNextPage({ throwOnError: true })}>Older calls</Action>
        </p>
      )}
    </Section>
  );
}

/** A call. `users` are the users of all calls in the list; `null` if all calls are those of the caller. */
function Row({ record, me, users }: { record: AuditRecord; me: Me | undefined; users: User[] | null }) {
  const { words, look } = OUTCOMES[record.outcome];
  const server = useServerName(record.server);
  const user = (id: string) => {
    if (id === me?.id) return "you";
    const name = users?.find((one) => one.id === id)?.name;
    return name === undefined ? <code>{id}</code> : brief(spelled(name), 60);
  };
  return (
    <tr>
      <td>
        <time dateTime={record.at} title={new Date(record.at).toLocaleString()}>
          {clock(record.at)}
        </time>
      </td>
      <th scope="row">
        <code>{brief(spelled(record.name), 80)}</code>
        {server !== "" && <span className="faint">{` of ${brief(spelled(server), 60)}`}</span>}
      </th>
      <td>
        <State look={look}>{words}</State>
      </td>
      <td>{duration(record.duration_ms)}</td>
      <td>
        {record.decided_by !== undefined && user(record.decided_by)}
        {record.grant_id !== undefined && <span className="faint"> with a permission</span>}
      </td>
      {users !== null && <td>{user(record.owner_id)}</td>}
      <td>{record.owner_id === me?.id && <a href={`#/run/${record.run_id}`}>Look inside</a>}</td>
    </tr>
  );
}
