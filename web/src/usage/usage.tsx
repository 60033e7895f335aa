// Usage: tokens, cost, runs and model calls by day, for models, agents and users.

import { useQuery } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";

import * as api from "../api/client";
import type { DayUsage, Run } from "../api/types";
import { isOwn } from "../conversation/state";
import { AllUsers, Choice, Failure, Section } from "../setup/parts";
import { useMe } from "../shell/me";
import { useUsers } from "../shell/queries";
import { brief, spelled } from "../text/words";
import { Budgets, DayLimits, UserLimits } from "./budgets";
import { Chart } from "./chart";
import { MEASURES, entryOfDay, entryOfRun, isCostUnknown, lastDays, series, shown, sums, type Entry, type Measure, type Series, type Values } from "./totals";

const GROUPS = ["model", "agent", "user"] as const;
type Group = (typeof GROUPS)[number];

const NOTHING: Values = { tokens: 0, cost: 0, runs: 0, calls: 0, hasKnownCost: false };
const PERIODS = [7, 30, 90, 366];
/** The server lists runs, not usage, by agent: so many pages of 100 are read. */
const RUN_PAGES = 10;
const USAGE_PAGES = 40;
/** Colours of the chart; smaller groups share the last one. */
const COLOURS = 6;

const NAMES: Record<Measure, string> = { tokens: "Tokens", cost: "Cost", runs: "Runs", calls: "Model calls" };
const TITLES: Record<Group, string> = { model: "Model", agent: "Agent", user: "User" };

async function read(group: Group, days: number, isOfAll: boolean): Promise<{ entries: Entry[]; isCut: boolean }> {
  if (group === "agent") {
    const since = `${lastDays(days, Date.now())[0] ?? ""}T00:00:00Z`;
    const runs = await api.all<Run>(`/runs?created_after=${encodeURIComponent(since)}`, RUN_PAGES);
    return { entries: runs.filter(isOwn).map(entryOfRun), isCut: runs.length === RUN_PAGES * 100 };
  }
  const rows = await api.all<DayUsage>(`/usage?days=${days}${isOfAll ? "&owner=all" : ""}`, USAGE_PAGES);
  return { entries: rows.map((row) => entryOfDay(row, group === "user" ? "owner" : "model")), isCut: rows.length === USAGE_PAGES * 100 };
}

export default function UsagePage() {
  const { data: me } = useMe();
  const [group, setGroup] = useState<Group>("model");
  const [measure, setMeasure] = useState<Measure>("tokens");
  const [period, setPeriod] = useState(30);
  const [isOfAll, setOfAll] = useState(false);
  const isAdmin = me?.role === "admin";
  const isAll = isAdmin && (group === "user" || (isOfAll && group === "model"));
  const { data, error } = useQuery({ queryKey: ["usage", group, period, isAll], queryFn: () => read(group, period, isAll) });
  const { data: users } = useUsers(isAdmin && group === "user");
  const name = (id: string) => (group === "user" ? users?.find((user) => user.id === id)?.name : undefined) ?? id;
  const days = lastDays(period, Date.now());
  const lines = data === undefined ? [] : series(data.entries, days, measure, COLOURS).map((line) => ({ ...line, group: line.group === me?.id ? `${brief(me.name, 40)} (you)` : brief(spelled(name(line.group)), 60) }));
  return (
    <div className="scroll-page">
      <div className="setup usage">
        <div className="filters">
          <Choice label="By" value={group} choose={setGroup} options={GROUPS.filter((one) => one !== "user" || isAdmin).map((one) => [one, TITLES[one]])} />
          <Choice label="Show" value={measure} choose={setMeasure} options={MEASURES.map((one) => [one, NAMES[one]])} />
          <Choice label="Days" value={String(period)} choose={(value) => setPeriod(Number(value))} options={PERIODS.map((one) => [String(one), String(one)])} />
          {isAdmin && group === "model" && <AllUsers isChosen={isOfAll} choose={setOfAll} />}
        </div>
        <Failure error={error} />
        {data === undefined && error === null && (
          <div className="skeleton" aria-hidden="true">
            <span />
            <span />
            <span />
          </div>
        )}
        {data !== undefined && <Report group={group} measure={measure} days={days} lines={lines} isCut={data.isCut}>{group === "user" ? <UserLimits lines={lines} /> : !isAll && <DayLimits today={sums(lines, days).days.at(-1) ?? NOTHING} isAdmin={isAdmin} />}</Report>}
        <Budgets />
      </div>
    </div>
  );
}

function Report({ group, measure, days, lines, isCut, children }: { group: Group; measure: Measure; days: string[]; lines: Series[]; isCut: boolean; children: ReactNode }) {
  const all = sums(lines, days);
  if (lines.length === 0) {
    return (
      <>
        {children}
        <p className="faint inbox-empty">Nothing was used in this time.</p>
      </>
    );
  }
  const today = all.days.at(-1);
  const heading = `${NAMES[measure]} by day and ${group}`;
  return (
    <>
      <Section title={heading} hint={`Days are in UTC. Today: ${today === undefined ? "0" : shown(measure, today[measure])}.${measure === "cost" ? " Only calls with known prices count." : ""}${isCut ? " Older runs are left out." : ""}`}>
        <Chart days={days} series={lines} measure={measure} label={`${heading}: ${shown(measure, all.total[measure])} in ${days.length} days. The tables below have the numbers.`} />
        {children}
      </Section>
      <div className="table" role="region" aria-label={`Usage by ${group}`} tabIndex={0}>
        <Table first={TITLES[group]} rows={lines.map((line, at) => ({ name: line.group, look: `series-${at}`, values: line.total }))} total={all.total} />
      </div>
      <details className="usage-days">
        <summary>By day</summary>
        <div className="table" role="region" aria-label="Usage by day" tabIndex={0}>
          <Table first="Day" rows={days.map((day, at) => ({ name: day, values: all.days[at] ?? all.total })).filter(({ values }) => values.runs + values.calls + values.tokens > 0).reverse()} />
        </div>
      </details>
    </>
  );
}

/** The place of a cost that is unknown. */
const UnknownCost = () => (
  <span className="faint" title="No price of this use is known. The facts of a provider's models may have prices.">
    <span aria-hidden="true">–</span>
    <span className="unseen">unknown</span>
  </span>
);

interface Line {
  name: string;
  look?: string;
  values: Series["total"];
}

function Table({ first, rows, total }: { first: string; rows: Line[]; total?: Series["total"] }) {
  const cells = (values: Series["total"]) => MEASURES.map((measure) => <td key={measure}>{measure === "cost" && isCostUnknown(values) ? <UnknownCost /> : shown(measure, values[measure])}</td>);
  return (
    <table className="steps usage-table">
      <thead>
        <tr>
          <th scope="col">{first}</th>
          {MEASURES.map((measure) => (
            <th key={measure} scope="col">
              {NAMES[measure]}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map(({ name, look, values }) => (
          <tr key={name}>
            <th scope="row">
              {look !== undefined && (
                <svg className="swatch" viewBox="0 0 1 1" aria-hidden="true">
                  <rect className={look} width="1" height="1" />
                </svg>
              )}
              {name}
            </th>
            {cells(values)}
          </tr>
        ))}
      </tbody>
      {total !== undefined && rows.length > 1 && (
        <tfoot>
          <tr>
            <th scope="row">All</th>
            {cells(total)}
          </tr>
        </tfoot>
      )}
    </table>
  );
}
