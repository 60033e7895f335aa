// All links of the user, of all conversations.

import { useInfiniteQuery } from "@tanstack/react-query";

import * as api from "../api/client";
import type { Share } from "../api/types";
import { Failure } from "../setup/parts";
import { Dialog } from "../shell/dialog";
import { Icon } from "../shell/icons";
import { useMe } from "../shell/me";
import { SHARES, ShareRows, useRevoking } from "./list";

export default function AllShares({ close }: { close: () => void }) {
  const { data: me } = useMe();
  const { data, error, hasNextPage, isFetchingNextPage, fetchNextPage } = useInfiniteQuery({
    queryKey: [SHARES, "all"],
    queryFn: ({ pageParam }) => api.get<api.Page<Share>>(`/shares?limit=50${pageParam === null ? "" : `&cursor=${encodeURIComponent(pageParam)}`}`),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next_cursor,
    staleTime: 0,
  });
  const { revoke, news, heading } = useRevoking();
  const shares = data?.pages.flatMap((page) => page.data);
  return (
    <Dialog label="Shared links" isOpen close={close} className="share">
      <div className="dialog-head">
        <h2 tabIndex={-1} ref={heading}>
          Shared links
        </h2>
        <button type="button" className="quiet icon" aria-label="Close" title="Close" onClick={close}>
          <Icon name="close" />
        </button>
      </div>
      <p>
        {me !== undefined && me.max_share_days === undefined
          ? "This server does not share conversations, so these links do not work now."
          : "Anyone who has one of these links can read the copy of its conversation, without a key."}
      </p>
      <span className="unseen" role="status">
        {news}
      </span>
      <Failure error={error} />
      {shares?.length === 0 && <p className="faint">There are no links. “Share…” in the menu of a conversation makes one.</p>}
      {shares !== undefined && (
        <div className="share-links">
          <ShareRows shares={shares} revoke={revoke} follow={close} />
        </div>
      )}
      {hasNextPage && (
        <button type="button" className="quiet small more" disabled={isFetchingNextPage} onClick={() => void fetchNextPage()}>
          More
        </button>
      )}
    </Dialog>
  );
}
