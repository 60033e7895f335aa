"""Starts a run, follows its events until the model speaks, cancels it, and follows it to its end, through classes of
openapi-python-client. Prints what it has found as JSON."""

import datetime
import json
import sys
import time

from api import Client
from api.api.runs import cancel_run, get_run, run_events, start_run
from api.models import (
    AcceptedBody,
    EventPage,
    PartDeltaEvent,
    ProblemBody,
    ProblemCode,
    Run,
    RunCancelledEvent,
    RunQueuedEvent,
    StartRunBody,
)

DEADLINE = time.monotonic() + 60


def events(client, run):
    after = 0
    while time.monotonic() < DEADLINE:
        page = run_events.sync(run, client=client, after=after)
        assert isinstance(page, EventPage), page
        for event in page.data:
            after = event.seq
            yield event
            if event.type_ in ("run.completed", "run.failed", "run.cancelled"):
                return
        if not page.data:
            time.sleep(0.05)
    raise TimeoutError("the run has not ended")


def main():
    base_url, script = sys.argv[1:]
    found = {"types": [], "text": "", "by": "", "cancelled": None}
    with Client(base_url=base_url) as client:
        started = start_run.sync(client=client, body=StartRunBody(input_=script))
        assert isinstance(started, AcceptedBody), started
        assert isinstance(started.run.created_at, datetime.datetime)
        for event in events(client, started.run.id):
            found["types"].append(event.type_)
            match event:
                case RunQueuedEvent():
                    found["position"] = event.data.position
                case PartDeltaEvent():
                    found["text"] += event.data.delta
                    if found["cancelled"] is None:
                        cancelled = cancel_run.sync(started.run.id, client=client)
                        assert isinstance(cancelled, Run), cancelled
                        found["cancelled"] = cancelled.status.value
                case RunCancelledEvent():
                    found["by"] = event.data.by
        missing = get_run.sync(f"run_{'0' * 32}", client=client)
        assert isinstance(missing, ProblemBody) and isinstance(missing.code, ProblemCode), missing
        found["code"] = missing.code.value
        found["dated"] = started.run.created_at.timestamp() > 0
    print(json.dumps(found))


main()
