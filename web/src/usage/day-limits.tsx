// The limits of a day beside the use of today.

import { useQuery } from "@tanstack/react-query";

import * as api from "../api/client";
import type { Setting } from "../api/types";
import { useAgents, useDefaultAgent } from "../shell/queries";
import { brief, number } from "../text/words";
import { limitOfProfile, limitOfSettings, stricter, type DayLimit } from "./limits";
import { shown, type Values } from "./totals";

export function DayLimits({ today, isAdmin }: { today: Values; isAdmin: boolean }) {
  const { data: standard } = useDefaultAgent();
  const { data: settings } = useQuery({ queryKey: ["settings"], queryFn: () => api.get<{ data: Setting[] }>("/settings"), enabled: isAdmin });
  const { data: agents = [] } = useAgents();
  const limit = stricter(limitOfProfile(standard?.effective ?? standard?.profile), limitOfSettings(settings?.data ?? []));
  const others = agents.map((agent) => ({ name: agent.name, limit: limitOfProfile(agent.profile) })).filter((one) => one.name !== "default" && words(one.limit) !== "");
  return (
    <div className="day-limits">
      {limit.tokens !== undefined && <Line label="tokens" used={today.tokens} most={limit.tokens} words={`${number(today.tokens)} of ${number(limit.tokens)} tokens of today`} />}
      {limit.usd !== undefined && <Line label="cost" used={today.cost} most={limit.usd} words={`${shown("cost", today.cost)} of ${shown("cost", limit.usd)} of today`} />}
      {others.length > 0 && <p className="faint">{`Agents with a limit of their own a day: ${others.map((one) => `${brief(one.name, 40)} (${words(one.limit)})`).join(", ")}.`}</p>}
    </div>
  );
}

const words = ({ tokens, usd }: DayLimit): string => [tokens === undefined ? "" : `${number(tokens)} tokens`, usd === undefined ? "" : shown("cost", usd)].filter(Boolean).join(", ");

function Line({ label, used, most, words: text }: { label: string; used: number; most: number; words: string }) {
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
