// The events of a run, read in batches. A long run has more of them than a page should read at once.

import * as api from "../api/client";
import type { StreamEvent } from "../api/types";

/** The number of events of a batch. */
export const BATCH = 5_000;

export interface RunEvents {
  /** The first events of the run, in their order. */
  events: StreamEvent[];
  /** Whether the run has events after them. */
  hasMore: boolean;
}

export const NO_EVENTS: RunEvents = { events: [], hasMore: true };

/** Reads the events of a run that follow the known ones, until there are `most`. Returns the known ones themselves if nothing follows. */
export async function readEvents(run: string, known: RunEvents, most: number): Promise<RunEvents> {
  if (known.hasMore && known.events.length >= most) return known;
  const read: StreamEvent[] = [];
  let after = lastSeq(known.events);
  let hasMore: boolean;
  // Even a full batch reads on, to know whether more events follow.
  do {
    const page = await api.get<api.Page<StreamEvent>>(`/runs/${run}/events?limit=100${after === null ? "" : `&after=${after}`}`);
    read.push(...page.data);
    after = lastSeq(page.data) ?? after;
    hasMore = page.next_cursor !== null && page.data.length > 0;
  } while (hasMore && known.events.length + read.length < most);
  if (read.length === 0 && hasMore === known.hasMore) return known;
  return { events: [...known.events, ...read], hasMore };
}

function lastSeq(events: readonly StreamEvent[]): number | null {
  const last = events.at(-1);
  return last !== undefined && "seq" in last ? last.seq : null;
}
