"""Which dead jobs a replay means, and what their data shall become."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from chasquimq.cli.dlq_patch import Patch, patched
from chasquimq.cli.dlq_peek import pages
from chasquimq.cli.progress import Advance
from chasquimq.errors import EditRefused, SettingsError
from chasquimq.model.json_value import json_value
from chasquimq.model.reason import DlqReason

if TYPE_CHECKING:
    from chasquimq.queue import Queue

LIMIT_DEFAULT = 100
EXAMPLES_MAX = 3


class Request(NamedTuple):
    """What was asked for; no `limit` means all of those that ids or a condition name."""

    queue: str
    limit: int | None
    ids: Sequence[str] | None
    filters: Mapping[str, Any]
    is_dry: bool
    is_sure: bool
    max_rate: float | None
    where: str | None = None
    patches: Sequence[Patch] = ()
    skips: bool = False

    def most(self, found: int) -> int:
        """How many entries are replayed at most."""
        if self.limit is not None:
            return self.limit
        return found if self.where or self.ids else LIMIT_DEFAULT


class Example(NamedTuple):
    """The data of one job, before and after its change."""

    before: Any
    after: Any


class Edits:
    """Makes the changes in each job, and remembers which did not fit and what a few became."""

    def __init__(self, patches: Sequence[Patch]) -> None:
        self._patches = patches
        self.reasons: Counter[str] = Counter()
        self.examples: list[Example] = []

    def __call__(self, data: Any) -> Any:
        try:
            changed = patched(data, self._patches)
        except EditRefused as refusal:
            self.reasons[str(refusal)] += 1
            raise
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(Example(json_value(data), json_value(changed)))
        return changed

    def refuse_misfits(self, refused: int) -> None:
        """Raise a sentence where a change does not fit that many jobs.

        Raises:
            SettingsError: there are any, with how many and why.
        """
        if not refused:
            return
        why = next(iter(self.reasons), "the changed data cannot be stored, or is too large")
        found = f"{refused:,} jobs that it does not fit ({why})"
        hint = "nothing was replayed; name fewer jobs with --where, or leave them: --on-error skip"
        text = " ".join(patch.text for patch in self._patches)
        raise SettingsError("set", f"{text} with {found}", "a change that fits each job", hint=hint)


def refuse_unknown_reason(filters: Mapping[str, Any]) -> None:
    """Raise a sentence about a reason that no dead job was found with and none can have.

    Raises:
        SettingsError: it is not among those that workers write.
    """
    reason = filters.get("reason")
    if reason is not None and reason not in set(DlqReason):
        hint = f"known are {', '.join(DlqReason)}"
        raise SettingsError("reason", reason, "one that a dead job has", hint=hint)


async def chosen_ids(queue: Queue, request: Request, advance: Advance) -> list[str] | None:
    """The entries that the condition names, oldest first; None where there is no condition."""
    if request.where is None:
        return None if request.ids is None else list(dict.fromkeys(request.ids))
    from chasquimq.cli.dlq_where import DeadTable

    table, seen = DeadTable(request.where), 0
    try:
        async for page in pages(queue, request.filters):
            table.add(page)
            seen += len(page)
            advance(seen, 0)
        matches = table.matches()
    finally:
        table.close()
    named = None if request.ids is None else set(request.ids)
    return [one for one in matches if named is None or one in named]
