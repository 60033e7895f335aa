// The limits beside the use of today, and the budgets of agents.

import { useQuery } from "@tanstack/react-query";

import * as api from "../api/client";
import type { Setting } from "../api/types";
import { Section } from "../setup/parts";
import { useAgents, useDefaultAgent } from "../shell/queries";
import { brief, number } from "../text/words";
import { budgetsOf, hasBudget, limitOfSettings, stricter, type Limit } from "./limits";
import { shown, type Series, type Values } from "./totals";

/** The limit of a day that the server sets for each user. Only administrators may read it. */
function useServerLimit(isAdmin: boolean): Limit {
  const { data } = useQuery({ queryKey: ["settings"], queryFn: () => api.get<{ data: Setting[] }>("/settings"), enabled: isAdmin });
  return limitOfSettings(data?.data ?? []);
}

/** The use of today beside the limit of the caller. */
export function DayLimits({ today, isAdmin }: { today: Values; isAdmin: boolean }) {
  const { data: standard } = useDefaultAgent();
  const limit = stricter(budgetsOf(standard?.effective ?? standard?.profile).day, useServerLimit(isAdmin));
  return (
    <div className="day-limits">
      <Meters values={today} limit={limit} />
    </div>
  );
}

/** The use of today of each user beside the server's limit. */
export function UserLimits({ users }: { users: readonly Series[] }) {
  const limit = useServerLimit(true);
  if (limit.tokens === undefined && limit.usd === undefined) return null;
  return (
    <div className="day-limits">
      {users.map(({ group, total }) => (
        <Meters key={group} user={group} values={total} limit={limit} />
      ))}
    </div>
  );
}

function Meters({ user = "", values, limit }: { user?: string; values: Values; limit: Limit }) {
  const before = user === "" ? "" : `${user}: `;
  return (
    <>
      {limit.tokens !== undefined && <Meter label={`${before}tokens`} used={values.tokens} most={limit.tokens} words={`${before}${number(values.tokens)} of ${number(limit.tokens)} tokens of today`} />}
      {limit.usd !== undefined && <Meter label={`${before}cost`} used={values.cost} most={limit.usd} words={`${before}${shown("cost", values.cost)} of ${shown("cost", limit.usd)} of today`} />}
    </>
  );
}

function Meter({ label, used, most, words: text }: { label: string; used: number; most: number; words: string }) {
  const percent = Math.min(100, Math.round((100 * used) / most));
  return (
    <p>
      <span className={`meter${percent >= 80 ? " high" : ""}`} role="meter" aria-label={`Used of the day's limit: ${label}`} aria-valuemin={0} aria-valuemax={100} aria-valuenow={percent}>
        <span style={{ width: `${percent}%` }} />
      </span>
      {text}
    </p>
  );
}

const words = ({ tokens, usd }: Limit): string => [tokens === undefined ? "" : `${number(tokens)} tokens`, usd === undefined ? "" : shown("cost", usd)].filter(Boolean).join(", ") || "none";

/** The budgets of the agents that have any. */
export function Budgets() {
  const { data: agents = [] } = useAgents();
  const { data: standard } = useDefaultAgent();
  const rows = agents
    .map((agent) => ({ id: agent.id, name: agent.name, budgets: budgetsOf(agent.id === standard?.id ? (standard.effective ?? agent.profile) : agent.profile) }))
    .filter(({ budgets }) => hasBudget(budgets));
  if (rows.length === 0) return null;
  return (
    <div className="budgets">
      <Section title="Budgets" hint="The limits of agents. A day's limit counts all runs of agents that have one.">
        <div className="table" role="region" aria-label="Budgets" tabIndex={0}>
          <table className="steps usage-table">
            <thead>
              <tr>
                {["Agent", "A run", "A conversation", "A day"].map((name) => (
                  <th key={name} scope="col">
                    {name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map(({ id, name, budgets }) => (
                <tr key={id}>
                  <th scope="row">{brief(name, 60)}</th>
                  <td>{words(budgets.run)}</td>
                  <td>{words(budgets.conversation)}</td>
                  <td>{words(budgets.day)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Section>
    </div>
  );
}
