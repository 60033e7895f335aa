// A tool whose server changed its definition: both versions, whole, until a person accepts the new one.

import * as api from "../api/client";
import { print } from "../api/json";
import type { ToolReview } from "../api/types";
import { useMe } from "../shell/me";
import { mayAccept, queries, useServerName } from "../shell/queries";
import { Diff } from "../text/diff-view";
import { brief, clock, spelled } from "../text/words";
import { Action } from "./parts";

const indented = (value: object | undefined): string => (value === undefined ? "" : print(value, 2));

export function ReviewCard({ review }: { review: ToolReview }) {
  const { data: me } = useMe();
  const server = useServerName(review.server);
  const { before } = review;
  const hints = [before?.hints, review.hints].map(indented);
  return (
    <div className="card" data-review={review.tool}>
      <div className="card-head">
        <code>{brief(spelled(review.tool), 80)}</code>
        <span className="faint">{`of ${brief(spelled(server), 60)} · changed ${clock(review.seen_at)}`}</span>
        <span className="fill" />
        {mayAccept(review, me) ? (
          <Action
            act={async () => {
              await api.post(`/tool-pins/${review.id}/accept`);
              await queries.invalidateQueries({ queryKey: ["reviews"] });
            }}
          >
            Accept the change
          </Action>
        ) : (
          <span className="faint">An administrator decides about it.</span>
        )}
      </div>
      <DefinitionDiff label="Description" before={before?.description ?? ""} after={review.description} />
      <DefinitionDiff label="Parameters" before={indented(before?.parameters)} after={indented(review.parameters)} />
      {hints.some((one) => one !== "") && <DefinitionDiff label="Hints of the server" before={hints[0] ?? ""} after={hints[1] ?? ""} />}
    </div>
  );
}

/** Shows a text of both versions, with all its lines. */
function DefinitionDiff({ label, before, after }: { label: string; before: string; after: string }) {
  return (
    <>
      <div className="label">{before === after ? `${label}, unchanged` : label}</div>
      <Diff label={label} before={spelled(before)} after={spelled(after)} />
    </>
  );
}
