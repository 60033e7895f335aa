// Cached reads of the API that several views share.

import { QueryClient, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";

import { Problem, all, get } from "../api/client";
import type { Agent, Approval, InputRecord, McpServer, Me, Model, Run, ToolReview, User } from "../api/types";
import { tokens } from "../text/words";
import type { Option } from "../chat/picker";
import { usePolling } from "./live";
import { useNotifying } from "./notify";
import { mayLogIn, needsLogin } from "./server-state";

export const queries = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 30_000,
      // An error of the server with words of its own is not tried again.
      retry: (tries, error) => tries < 3 && !(error instanceof Problem && error.status < 500),
    },
  },
});

export const useModels = () => useQuery({ queryKey: ["models"], queryFn: () => all<Model>("/models"), staleTime: 60_000 });
// Shared structures would be copies, whose numbers have lost their digits.
export const useAgents = () => useQuery({ queryKey: ["agents"], queryFn: () => all<Agent>("/agents"), structuralSharing: false });

/** An agent by its id or name, with its profile in force, which lists omit. `null` reads none. */
export const useAgent = (agent: string | null) =>
  useQuery({ queryKey: ["agent", agent], queryFn: () => get<Agent>(`/agents/${encodeURIComponent(agent ?? "")}`), enabled: agent !== null, structuralSharing: false });

/** The agent of the settings as the list has it. Its name is a setting too, so another agent may be called "default". */
function useListedDefaultAgent(): Agent | undefined {
  const { data: agents } = useAgents();
  return agents?.find(({ scope }) => scope === "config");
}

/** The agent of the settings, with its profile in force. */
export const useDefaultAgent = () => useAgent(useListedDefaultAgent()?.id ?? null);

/** The name of the agent of the settings. */
export const useDefaultAgentName = (): string => useListedDefaultAgent()?.name ?? "default";

/** The users of the server. Only administrators may read them. */
export const useUsers = (isWanted: boolean) => useQuery({ queryKey: ["users"], queryFn: () => all<User>("/users", 40), enabled: isWanted });

export interface OpenQuestions {
  approvals: Approval[];
  inputs: InputRecord[];
}

/** The open questions of the caller in all conversations. */
export const useOpenQuestions = () =>
  useQuery({
    queryKey: ["questions"],
    queryFn: async (): Promise<OpenQuestions> => {
      const [approvals, inputs] = await Promise.all([all<Approval>("/approvals?status=pending"), all<InputRecord>("/input-requests?status=pending")]);
      return { approvals, inputs: inputs.filter((input) => input.kind !== "approval") };
    },
    refetchInterval: usePolling(10_000),
    // A hidden tab asks on only for the sake of notifications.
    refetchIntervalInBackground: useNotifying(),
  });

/** The runs whose client has to execute a tool call. The page cannot do that, and no feed tells of it. */
export const useClientWaits = () =>
  useQuery({
    queryKey: ["client-waits"],
    queryFn: async () => (await all<Run>("/runs?status=waiting", 3)).filter(({ reason }) => reason === "client_tool"),
    refetchInterval: 10_000,
  });

/** The tool reviews that wait for a decision. */
export const useReviews = () =>
  useQuery({
    queryKey: ["reviews"],
    queryFn: async () => (await get<{ data: ToolReview[] }>("/tool-pins?status=changed")).data,
    refetchInterval: usePolling(10_000),
    refetchIntervalInBackground: useNotifying(),
  });

/** Returns whether this user may accept a changed tool: administrators decide about the servers of all users. */
export const mayAccept = (review: Pick<ToolReview, "owner_id">, me: Pick<Me, "id" | "role"> | undefined): boolean =>
  me !== undefined && (review.owner_id === undefined ? me.role === "admin" : review.owner_id === me.id);

export const readServers = (): Promise<McpServer[]> => all<McpServer>("/mcp-servers");

/** The MCP servers with their states, which are read again in this interval in milliseconds. */
export const useServers = (isWanted = true, interval: number | false = false) =>
  useQuery({ queryKey: ["mcp-servers"], queryFn: readServers, enabled: isWanted, refetchInterval: interval });

/** The MCP servers at which this user has to log in. */
export function useLogins(me: Pick<Me, "role"> | undefined): McpServer[] | undefined {
  const { data } = useQuery({ queryKey: ["mcp-servers"], queryFn: readServers, refetchInterval: usePolling(30_000), refetchIntervalInBackground: useNotifying() });
  return useMemo(() => me && data?.filter((server) => needsLogin(server) && mayLogIn(server, me)), [data, me]);
}

/** Returns the name of an MCP server that records name by its id. A server that is gone, or of another user, keeps its id. */
export function useServerName(server: string | null | undefined): string {
  // The servers of the configuration are named by their names.
  const isId = /^mcp_[0-9a-f]{32}$/.test(server ?? "");
  const { data } = useServers(isId);
  return (isId ? data?.find(({ id }) => id === server)?.name : undefined) ?? server ?? "";
}

/** The number of steps that the agent of a run may take, once that is known. */
export function useMostSteps(agent: string | null): number | null {
  const { data } = useAgent(agent);
  const most = ((data?.effective ?? data?.profile) as { max_rounds?: unknown } | undefined)?.max_rounds;
  return typeof most === "number" && Number.isFinite(most) ? most : null;
}

/** Returns a model as an option of a picker: its name, abilities, window and price. */
export function modelOption(model: Model): Option {
  const { abilities, limits, price } = model;
  const facts = [
    limits.context === undefined ? null : `${tokens(limits.context)} context`,
    abilities.images === true ? "pictures" : null,
    abilities.tools === false ? "no tools" : null,
    price === undefined ? null : `$${price.input} in, $${price.output} out per M`,
    model.available ? null : "not listed now",
  ];
  return { value: model.id, label: model.id.replace(`${model.provider}/`, ""), group: model.provider, detail: facts.filter(Boolean).join(" · ") };
}
