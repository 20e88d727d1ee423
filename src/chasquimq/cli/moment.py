"""Moments as people and programs read them: ISO 8601, UTC, milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from chasquimq.cli.duration import DURATION


class Instant(click.ParamType[datetime]):
    """A moment: ISO 8601, UTC where no zone is given; or a duration from now."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = self._from_now(text, param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def _from_now(
        self, text: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        try:
            return datetime.now(UTC) + timedelta(milliseconds=DURATION.convert(text, None, None))
        except (click.BadParameter, OverflowError):
            self.fail(
                f"{text!r} is no time; write 2026-11-30, 2026-11-30T18:00+01:00, or 2h for two "
                "hours from now",
                param,
                ctx,
            )


INSTANT = Instant()
_MS_MAX = 253_402_300_799_999


def iso(ms: object) -> str:
    """The moment in text; what is no moment of our calendar is a dash."""
    if not isinstance(ms, int) or not 0 <= ms <= _MS_MAX:
        return "-"
    moment = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
