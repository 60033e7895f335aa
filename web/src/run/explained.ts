// Rewrites the summary of a run for people. The server writes seconds, routes and ids for programs, in src/service/runs/explain.rs.

import { span } from "../text/words";

const ID = "_[0-9a-f]{32}";

/** Returns the summary without routes and ids, and with lengths of time that people read. */
export function explained(summary: string): string {
  return summary
    .replace(/ POST \/api\/v1\/\S+ answers:/g, " The question:")
    .replace(/ POST \.\.\.\/resume continues from/g, " “Resume” in the conversation continues from")
    .replace(/; POST \S+ [^.;]+(?=\.)/g, "")
    .replace(new RegExp(`\\bthe lease of worker node${ID}`, "gi"), "The lease of its worker")
    .replace(new RegExp(`\\bWorker node${ID}`, "g"), "A worker")
    .replace(new RegExp(`\\brun${ID}`, "g"), "an earlier run")
    .replace(/(?<![\w.])(\d+(?:\.\d+)?) s\b/g, (_, seconds: string) => span(Number(seconds) * 1000));
}
