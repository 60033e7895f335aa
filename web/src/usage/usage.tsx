// Usage: tokens, cost, runs and model calls by day or hour, for models, agents, conversations and users.

import { useQueries, useQuery } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";

import * as api from "../api/client";
import type { Conversation, PeriodUsage } from "../api/types";
import { AllUsers, Choice, Failure, Section } from "../setup/parts";
import { useMe } from "../shell/me";
import { useUsers } from "../shell/queries";
import { brief, spelled } from "../text/words";
import { Budgets, DayLimits, UserLimits } from "./budgets";
import { Chart } from "./chart";
import { MEASURES, entryOf, isCostUnknown, lastDays, lastHours, series, shown, sumOfDay, sums, type Entry, type Group, type Measure, type Series } from "./totals";

const GROUPS: Group[] = ["model", "agent", "conversation", "user"];
/** The time of the report in days; 1 for the last 24 hours, which are shown one by one. */
const SPANS = [1, 7, 30, 90, 366];
const USAGE_PAGES = 40;
/** Colours of the chart; smaller groups share the last one. */
const COLOURS = 6;

const NAMES: Record<Measure, string> = { tokens: "Tokens", cost: "Cost", runs: "Runs", calls: "Model calls" };
const TITLES: Record<Group, string> = { model: "Model", agent: "Agent", conversation: "Conversation", user: "User" };

async function read(group: Group, days: number, isOfAll: boolean): Promise<{ entries: Entry[]; isCut: boolean }> {
  // The last 24 hours belong to two days.
  const time = days === 1 ? "days=2&period=hour" : `days=${days}`;
  // The rows of each model have their user.
  const groups = group === "user" ? "model" : group;
  const rows = await api.all<PeriodUsage>(`/usage?${time}&group=${groups}${isOfAll ? "&owner=all" : ""}`, USAGE_PAGES);
  return { entries: rows.map((row) => entryOf(row, group)), isCut: rows.length === USAGE_PAGES * 100 };
}

/** Returns the titles of those groups that are conversations. A deleted one has none. */
function useTitles(ids: string[]): Map<string, string> {
  const found = useQueries({
    queries: ids.map((id) => ({ queryKey: ["title", id], queryFn: () => api.get<Conversation>(`/conversations/${id}`) })),
  });
  return new Map(found.flatMap(({ data }) => (data === undefined ? [] : [[data.id, data.title]])));
}

export default function UsagePage() {
  const { data: me } = useMe();
  const [group, setGroup] = useState<Group>("model");
  const [measure, setMeasure] = useState<Measure>("tokens");
  const [span, setSpan] = useState(30);
  const [isOfAll, setOfAll] = useState(false);
  const isAdmin = me?.role === "admin";
  const hasAll = group === "model" || group === "agent";
  const isAll = isAdmin && (group === "user" || (isOfAll && hasAll));
  const { data, error } = useQuery({ queryKey: ["usage", group, span, isAll], queryFn: () => read(group, span, isAll) });
  const { data: users } = useUsers(isAdmin && group === "user");
  const now = Date.now();
  const periods = span === 1 ? lastHours(now) : lastDays(span, now);
  const today = new Date(now).toISOString().slice(0, 10);
  const found = data === undefined ? [] : series(data.entries, periods, measure, COLOURS);
  const titles = useTitles(group === "conversation" ? found.map((line) => line.group).filter((id) => id.startsWith("conv_")) : []);
  const name = (id: string) => {
    if (id === me?.id) return `${brief(me.name, 40)} (you)`;
    const user = group === "user" ? users?.find((one) => one.id === id)?.name : undefined;
    return brief(spelled(user ?? titles.get(id) ?? id), 60);
  };
  const named = (all: Series[]) => all.map((line) => ({ ...line, group: name(line.group) }));
  const lines = named(found);
  const ofToday = periods.filter((period) => period.startsWith(today));
  return (
    <div className="scroll-page">
      <div className="setup usage">
        <div className="filters">
          <Choice label="By" value={group} choose={setGroup} options={GROUPS.filter((one) => one !== "user" || isAdmin).map((one) => [one, TITLES[one]])} />
          <Choice label="Show" value={measure} choose={setMeasure} options={MEASURES.map((one) => [one, NAMES[one]])} />
          <Choice label="Time" value={String(span)} choose={(value) => setSpan(Number(value))} options={SPANS.map((one) => [String(one), one === 1 ? "24 hours" : `${one} days`])} />
          {isAdmin && hasAll && <AllUsers isChosen={isOfAll} choose={setOfAll} />}
        </div>
        <Failure error={error} />
        {data === undefined && error === null && (
          <div className="skeleton" aria-hidden="true">
            <span />
            <span />
            <span />
          </div>
        )}
        {data !== undefined && <Report group={group} measure={measure} unit={span === 1 ? "hour" : "day"} periods={periods} today={today} lines={lines} isCut={data.isCut}>
            {group === "user" ? <UserLimits users={named(series(data.entries, ofToday, measure, Infinity))} /> : !isAll && <DayLimits today={sumOfDay(today, periods, sums(lines, periods).periods)} isAdmin={isAdmin} />}
          </Report>}
        <Budgets />
      </div>
    </div>
  );
}

interface ReportProps {
  group: Group;
  measure: Measure;
  unit: "day" | "hour";
  periods: string[];
  /** The present day in UTC. */
  today: string;
  lines: Series[];
  isCut: boolean;
  children: ReactNode;
}

function Report({ group, measure, unit, periods, today, lines, isCut, children }: ReportProps) {
  const all = sums(lines, periods);
  if (lines.length === 0) {
    return (
      <>
        {children}
        <p className="faint inbox-empty">Nothing was used in this time.</p>
      </>
    );
  }
  const ofToday = sumOfDay(today, periods, all.periods);
  const heading = `${NAMES[measure]} by ${unit} and ${group}`;
  return (
    <>
      <Section title={heading} hint={`${unit === "day" ? "Days" : "Hours"} are in UTC. Today: ${shown(measure, ofToday[measure])}.${measure === "cost" ? " Only calls with known prices count." : ""}${isCut ? " Older usage is left out." : ""}`}>
        <Chart periods={periods} series={lines} measure={measure} label={`${heading}: ${shown(measure, all.total[measure])} in ${periods.length} ${unit}s. The tables below have the numbers.`} />
        {children}
      </Section>
      <div className="table" role="region" aria-label={`Usage by ${group}`} tabIndex={0}>
        <Table first={TITLES[group]} rows={lines.map((line, at) => ({ name: line.group, look: `series-${at}`, values: line.total }))} total={all.total} />
      </div>
      <details className="usage-days">
        <summary>{`By ${unit}`}</summary>
        <div className="table" role="region" aria-label={`Usage by ${unit}`} tabIndex={0}>
          <Table first={unit === "day" ? "Day" : "Hour"} rows={periods.map((period, at) => ({ name: period, values: all.periods[at] ?? all.total })).filter(({ values }) => values.runs + values.calls + values.tokens > 0).reverse()} />
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
