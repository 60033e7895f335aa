// The fields of an agent's profile, as the form shows them. Their rules are those of src/domain/agent.

export type FieldKind =
  | "long"
  | "number"
  | "seconds"
  | "choice"
  | "flag"
  | "lines"
  | "times"
  | "json"
  | "agent"
  | "model"
  | "models"
  | "tools"
  | "builtins"
  | "classes"
  | "toolChoice"
  | "approvals";

export interface AgentField {
  /** The place in the profile, with `/` between names. */
  path: string;
  label: string;
  hint: string;
  kind: FieldKind;
  min?: number;
  max?: number;
  step?: number | "any";
  options?: readonly Option[];
  /** The value without content, where the server tells it from an absent one. A form needs a second input to tell them apart. */
  nothing?: Nothing;
  /** The meaning of that value, where "nothing" could be taken for zero. */
  nothingWords?: string;
}

type Nothing = "" | null | readonly never[];

/** A value, and its words. */
export type Option = readonly [string, string];

export interface FieldGroup {
  title: string;
  fields: readonly AgentField[];
}

type Limits = Partial<Pick<AgentField, "min" | "max" | "step" | "nothing" | "nothingWords">>;

const NO_TEXT = { nothing: "" } as const;
const NO_VALUE = { nothing: null } as const;
const NO_LIMIT = { nothing: null, nothingWords: "No limit" } as const;
const NO_ENTRIES = { nothing: [] } as const;
/** The text of a choice that stands for no value. */
export const ABSENT = "null";
const NO_CHOICE: Option = [ABSENT, "nothing: the provider decides"];

/** A year, the longest time of a profile. */
const LONGEST_SECONDS = 366 * 24 * 3600;

const field = (kind: FieldKind, path: string, label: string, hint: string, more: Limits & Pick<AgentField, "options"> = {}): AgentField => ({ kind, path, label, hint, ...more });
const count = (path: string, label: string, hint: string, limits: Limits = {}) => field("number", path, label, hint, { min: 0, step: 1, ...limits });
const decimal = (path: string, label: string, hint: string, max: number) => field("number", path, label, hint, { min: 0, max, step: "any", ...NO_VALUE });
const dollars = (path: string, label: string, hint: string) => field("number", path, label, hint, { min: 0, step: "any", ...NO_LIMIT });
const seconds = (path: string, label: string, hint: string, min = 0) => field("seconds", path, label, hint, { min, max: LONGEST_SECONDS, step: "any" });
const choice = (path: string, label: string, hint: string, ...options: Option[]) => field("choice", path, label, hint, { options });

const sampling = (turn: string, when: string): AgentField[] => [
  decimal(`sampling/${turn}/temperature`, `Temperature ${when}`, `The temperature of calls ${when}, unless it is set above.`, 2),
  decimal(`sampling/${turn}/top_p`, `Top P ${when}`, `The nucleus sampling of calls ${when}, unless it is set above.`, 1),
  count(`sampling/${turn}/max_output_tokens`, `Most tokens ${when}`, `The longest answer of calls ${when}, unless it is set above.`, { min: 1, ...NO_LIMIT }),
];

export const GROUPS: readonly FieldGroup[] = [
  {
    title: "Model and instructions",
    fields: [
      field("agent", "extends", "Based on", "Fields that stay empty have the values of this agent."),
      field("model", "model", "Model", "The model that answers, as provider/name."),
      field("long", "system_prompt", "Instructions", "The system prompt of each model call.", NO_TEXT),
      field("models", "fallbacks", "Fallback models", "They replace the model, in this order, when it fails for good."),
      choice("fallbacks_for", "Use of fallbacks", "The runs that use the fallback models.", ["unnamed", "only runs that name no model"], ["all", "all runs"]),
      field("long", "final_text", "Answer of last resort", "A run ends with this text when no model can be reached; without a text, it fails.", NO_VALUE),
      choice("final_text_for", "Use of that answer", "The failures that the answer of last resort stands in for.", ["outage", "outages"], ["all", "all failures"]),
      choice("prompt/conversation", "System prompt of a conversation", "The effect of a system prompt that a conversation has.", ["join", "it is added"], ["replace", "it replaces the instructions"], ["ignore", "it is ignored"]),
      choice("prompt/tool_notes", "Notes about tools", "The notes about tools in the system prompt.", ["unavailable", "tools that cannot be used"], ["all", "also the prefixes of servers"], ["off", "none"]),
      field("long", "prompt/server", "Server layer of the prompt", "The operator’s part of the system prompt, which members cannot change.", NO_TEXT),
      field("lines", "context_providers", "Context providers", "The configured services that add facts to a run, one name in each line.", NO_ENTRIES),
      field("lines", "groups", "Groups", "The groups whose users may use the agent, one in each line.", NO_ENTRIES),
    ],
  },
  {
    title: "Answers",
    fields: [
      decimal("options/temperature", "Temperature", "How freely the model chooses its words.", 2),
      decimal("options/top_p", "Top P", "The share of likely words that the model chooses from.", 1),
      count("options/max_output_tokens", "Most tokens of an answer", "A longer answer is cut.", { min: 1, ...NO_LIMIT }),
      field("number", "options/seed", "Seed", "A number with which some providers repeat an answer.", { step: 1, ...NO_VALUE }),
      field("lines", "options/stop", "Stop texts", "The model stops at one of these texts; one in each line, at most 16.", NO_ENTRIES),
      choice(
        "options/reasoning_effort",
        "Reasoning effort",
        "How long a reasoning model thinks before it answers.",
        ...["none", "minimal", "low", "medium", "high", "xhigh", "max"].map((effort): Option => [effort, effort]),
        NO_CHOICE,
      ),
      field("toolChoice", "options/tool_choice", "Tool choice", "The tools that the model may or must call in its first answer."),
      choice("output", "Form of answers", "Structured answers are for models that cannot call tools.", ["tools", "text and tool calls"], ["structured", "one JSON object for each step"]),
      field("json", "options/output_schema", "Schema of answers", "The name and JSON Schema of the answer, as JSON.", NO_VALUE),
      ...sampling("tool_turn", "with tools"),
      ...sampling("talk_turn", "without tools"),
    ],
  },
  {
    title: "Tools",
    fields: [
      field("tools", "tools", "Tools", "The tools that the model may call."),
      field("builtins", "builtin_tools", "Built-in tools", "The tools of this server, without those of MCP servers, that stay among them."),
      choice(
        "tools_policy",
        "Offer tools",
        "The model calls of a run in which tools are offered.",
        ["every_round", "in every call"],
        ["first_round_only", "in the first call"],
        ["one_round_then_text", "until tools have run once"],
        ["none", "never"],
      ),
      choice("tool_filter/mode", "Tool selection", "How the best tools for a message are found, if there are many.", ["off", "off: all tools"], ["semantic", "by meaning"], ["categories", "by server"]),
      count("tool_filter/k", "Selected tools", "The number of best matches that are offered.", { min: 1, max: 128 }),
      count("tool_filter/above", "Selection by server above", "Selection by server applies above this number of tools."),
      field("flag", "tool_filter/whole_servers", "Whole servers", "All tools of a server are offered when a message names it."),
      field("lines", "tool_filter/skip_models", "Models with all tools", "Models for which no tools are left out, one in each line; a * may end a name.", NO_ENTRIES),
      field("json", "tool_filter/servers", "Words of servers", "The words and description by which a server is selected, as JSON."),
      seconds("tool_timeout_ms", "Time limit of a call", "Seconds after which a tool call is given up.", 0.001),
      count("tool_result_chars", "Length of results", "Characters of a tool’s result that the model reads."),
      count("tool_parallelism", "Calls at the same time", "Calls of one answer that run at the same time.", { min: 1 }),
      count("max_parallel_calls", "Calls of one answer", "Further calls of the same answer are refused.", { min: 1 }),
      choice("repair/names", "Repair of names", "How a wrong tool name in a call is replaced.", ["off", "never"], ["unique", "if one tool fits"], ["similar", "also by the most similar tool"]),
      field("flag", "repair/arguments", "Repair of arguments", "Arguments that are nearly JSON are repaired."),
      field("json", "repair/aliases", "Other names of tools", "Other names that the model may use, as JSON: alias and tool."),
    ],
  },
  {
    title: "Permissions and questions",
    fields: [
      field("approvals", "approval/tools", "Permissions of tools", "Whether calls of a tool ask first; other tools follow their servers."),
      field("flag", "approval/ask_untrusted", "Ask for untrusted servers", "All calls of untrusted servers ask first."),
      field("flag", "approval/rationale", "Ask with a reason", "The model gives a reason before a call that asks."),
      choice("approval/on_deny", "After a refusal", "The effect of a declined call.", ["feed_back", "the model reads it"], ["end_turn", "the answer ends"]),
      seconds("approval/expires_ms", "Time to allow a call", "Seconds after which a call is declined; 0 for no limit."),
      seconds("ask_expires_ms", "Time to answer a question", "Seconds after which a run goes on without an answer; 0 for no limit."),
      choice(
        "on_unknown",
        "After an unknown outcome",
        "The effect of a call that may or may not have taken place.",
        ["tell_model", "the model reads it"],
        ["ask", "you are asked"],
        ["fail", "the run fails"],
        ["rerun", "the call runs again"],
      ),
    ],
  },
  {
    title: "Limits and budgets",
    fields: [
      count("max_rounds", "Most steps", "Model calls with tools in one run.", { min: 1 }),
      choice("on_limit", "After the last step", "The end of a run that has used its steps.", ["summarize", "an answer from what is known"], ["fail", "the run fails"], ["message", "a fixed text"]),
      seconds("max_run_ms", "Time of a run", "Seconds that a run may take, waits included; 0 for no limit."),
      count("max_run_tokens", "Tokens of a run", "Tokens that a run may use; 0 for no limit."),
      dollars("budget/run_usd", "Dollars of a run", "US dollars that a run may cost."),
      count("budget/conversation/tokens", "Tokens of a conversation", "Tokens that a conversation may use.", { min: 1, ...NO_LIMIT }),
      dollars("budget/conversation/usd", "Dollars of a conversation", "US dollars that a conversation may cost."),
      count("budget/day/tokens", "Tokens of a day", "Tokens that a user may use in a day.", { min: 1, ...NO_LIMIT }),
      dollars("budget/day/usd", "Dollars of a day", "US dollars that a user may spend in a day."),
      choice("budget/on_day_spent", "After the budget of a day", "The effect of a spent budget of the day.", ["wait", "runs wait for the next day"], ["fail", "runs fail"]),
      count("admission/max_message_chars", "Length of a message", "Characters of a message; 0 for the limit of the server."),
      count("admission/max_active_runs", "Runs at the same time", "Active runs of a user; 0 for the limit of the server."),
      count("admission/max_conversations", "Conversations", "Conversations of a user that are not archived; 0 for the limit of the server."),
    ],
  },
  {
    title: "Failures",
    fields: [
      field("times", "llm_retry/delays_ms", "Waits before retries", "Seconds before each retry of a model call, with spaces between them.", NO_ENTRIES),
      seconds("llm_retry/max_retry_after_ms", "Longest wait", "Seconds that a provider may ask to wait; a longer wait fails the run."),
      count("llm_retry/validation_retries", "Retries of malformed answers", "Further requests after an answer that does not match its format.", { max: 100 }),
      field("flag", "llm_retry/fallback_first", "Fallback before retry", "A fallback model is tried before the same model is asked again."),
      field("classes", "llm_retry/classes", "Failures to retry", "The failures after which a model is asked again."),
      field("lines", "llm_retry/messages", "Messages to retry", "Words of an error after which a model is asked again, one in each line.", NO_ENTRIES),
      choice("tool_error", "After a failed call", "The effect of a failed tool call.", ["feed_back", "the model reads it"], ["fail_run", "the run fails"]),
      count("breaker_failures", "Failures of a tool", "Failures after which the tool is taken away; 0 for never."),
      choice("breaker_action", "After these failures", "The effect of a tool that failed too often.", ["drop_tool", "the tool is not offered"], ["force_final", "the run ends with an answer"]),
      choice("breaker_scope", "Counted failures", "The failures of a tool that count.", ["run", "those of the run"], ["conversation", "also those of earlier runs"]),
      count("duplicate_calls", "Repeated calls", "Rounds with only repeated calls until the run ends with an answer; 0 for no limit."),
      count("empty_replies", "Empty answers", "Empty answers in a row until the run ends; 0 for no limit."),
      count("error_rounds", "Rounds of errors", "Rounds with only errors until the model gets a hint; 0 for no hint."),
      choice("on_interrupt", "After a crash", "The effect of a crash of the server on a run.", ["resume", "the run goes on"], ["fail", "the run fails"]),
      count("max_crashes", "Most crashes", "Crashes of a run after which it fails; 0 for no limit."),
      count("response_analysis/incomplete", "Nudges for unfinished answers", "How often in a row the model is told to go on; 0 for never.", { max: 10 }),
      count("response_analysis/deflection", "Nudges for questions back", "How often the model is told to act instead of asking; 0 for never.", { max: 10 }),
      count("response_analysis/deflection_calls", "Calls before a question back", "Tool calls after which a question back is accepted; 0 for never."),
      field("flag", "response_analysis/before_success", "Judge early answers", "Answers are judged before any call has succeeded, too."),
      field("flag", "response_analysis/claims", "Mark false claims", "An answer that claims a change without a call is marked."),
      field("json", "response_analysis/phrases", "Phrases", "The phrases by which answers are judged, as JSON."),
    ],
  },
  {
    title: "Plan and title",
    fields: [
      choice("strategy", "Strategy", "How a run reaches its answer.", ["loop", "step by step"], ["plan_execute", "with a plan first"]),
      field("model", "plan/planner", "Planning model", "The model that makes the plan and the summary.", NO_VALUE),
      field("model", "plan/router", "Model of steps", "The model that calls the tool of a step.", NO_VALUE),
      count("plan/max_steps", "Steps of a plan", "The longest plan.", { min: 1, max: 10 }),
      count("plan/k", "Tools of a step", "Tools that are offered to a step.", { min: 1, max: 128 }),
      choice("plan/without_vectors", "Without embeddings", "How the tools of a step are found without an embedding model.", ["words", "by words"], ["loop", "no plan is made"]),
      field("long", "plan/examples", "Examples of plans", "Examples for the model that plans, up to 10,000 characters.", NO_TEXT),
      choice("title", "Titles", "The source of a conversation’s title.", ["first_words", "the first words"], ["model", "a model"], ["none", "none"]),
      field("model", "title_model", "Model for titles", "The model that writes titles.", NO_VALUE),
    ],
  },
  {
    title: "Context window",
    fields: [
      count("context/limit", "Size of a request", "The most tokens or characters of a request.", { min: 1, nothing: null, nothingWords: "The model’s window" }),
      choice("context/unit", "Unit", "The unit of all sizes of this group.", ["tokens", "tokens"], ["chars", "characters"]),
      choice("context/strategy", "Long conversations", "The treatment of older messages when the window is full.", ["summarize", "they are summarized"], ["drop_oldest", "they are left out"], ["none", "the run fails"]),
      count("context/reserve_output", "Kept for the answer", "The part of the window that stays free for the answer."),
      count("context/safety", "Kept for errors", "The part of the window that stays free for errors of estimation."),
      count("context/evict_below", "Shorten below", "Older messages are shortened when less than this is free."),
      count("context/keep_last", "Newest messages", "Messages that are never shortened, if the request fits with them."),
      count("context/start_gate", "Last call below", "When less than this is free, the next call must answer."),
      count("context/summary_tokens", "Size of a summary", "The length of a summary of older messages."),
      field("flag", "context/compress_results", "Shorten old results", "Results of older calls are cut when the window gets full."),
    ],
  },
];

export const FIELDS: readonly AgentField[] = GROUPS.flatMap(({ fields }) => fields);

/** The failures of model calls that can be retried. */
export const RETRYABLE: readonly string[] = ["rate_limit", "overloaded", "unavailable", "timeout", "network", "bad_stream", "incomplete_stream", "empty_response"];
