// Short names for the types of the API document.

import type { components } from "./schema";

type Schemas = components["schemas"];

export type AcceptedBody = Schemas["AcceptedBody"];
export type Agent = Schemas["Agent"];
export type ApiKey = Schemas["ApiKey"];
export type Approval = Schemas["Approval"];
export type ApprovalRequest = Schemas["ApprovalRequest"];
export type ApprovalScope = Schemas["ApprovalScope"];
export type AuditRecord = Schemas["AuditRecord"];
export type ContextBudget = Schemas["ContextBudgetEvent"]["data"];
export type Conversation = Schemas["Conversation"];
export type Feedback = Schemas["Feedback"];
export type FieldError = Schemas["FieldError"];
export type FoundMessage = Schemas["FoundMessage"];
export type InputRecord = Schemas["InputRecord"];
export type InputRequest = Schemas["InputRequest"];
export type McpServer = Schemas["McpServer"];
export type McpServerTool = Schemas["McpServerTool"];
export type Me = Schemas["Me"];
export type Message = Schemas["Message"];
export type Model = Schemas["Model"];
export type ModelOptions = Schemas["ModelOptions"];
export type OwnerEvent = Schemas["OwnerEvent"];
export type Part = Schemas["Part"];
export type PeriodUsage = Schemas["PeriodUsage"];
export type PlannedStep = Schemas["PlannedStep"];
export type ProblemBody = Schemas["ProblemBody"];
export type Provider = Schemas["Provider"];
export type ProviderModel = Schemas["ProviderModel"];
export type Question = Schemas["Question"];
export type RequestBudget = Schemas["RequestBudget"];
export type Run = Schemas["Run"];
export type RunExplanation = Schemas["RunExplanation"];
export type SentTool = Schemas["SentTool"];
export type Setting = Schemas["Setting"];
export type Share = Schemas["Share"];
export type SharedConversation = Schemas["SharedConversation"];
export type SharedMessage = Schemas["SharedMessage"];
export type Snapshot = Schemas["StreamSnapshotEvent"]["data"];
export type StepRequest = Schemas["StepRequest"];
export type StoredFile = Schemas["StoredFile"];
export type StreamEvent = Schemas["StreamEvent"];
export type TestedProvider = Schemas["TestedProvider"];
export type ToolContent = Schemas["ToolContent"];
export type TextLimit = Schemas["TextLimit"];
export type ToolDefinition = Schemas["ToolDefinition"];
export type ToolGrant = Schemas["ToolGrant"];
export type ToolList = Schemas["ToolList"];
export type ToolProgress = Schemas["ToolProgressEvent"]["data"];
export type ToolReview = Schemas["ToolReview"];
export type Usage = Schemas["Usage"];
export type User = Schemas["User"];

/** The part of an approval that its event and its record share. */
export type ApprovalData = ApprovalRequest & { id: string; call_id?: string };
/** The part of a question that its event and its record share. */
export type QuestionData = { id: string; kind: Schemas["InputKind"]; call_id?: string; question: Question };
