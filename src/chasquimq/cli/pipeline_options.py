"""Options that the pipeline's commands share, and the words they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click

from chasquimq.cli.duration import DURATION
from chasquimq.cli.options import possible_queue
from chasquimq.spark.pipeline_settings import CHANNEL_CHOICES, DEFAULT_LAKE

DEFAULT_MASTER = "local[*]"
DEFAULT_TRIGGER = "1s"
# What the library of the tables cannot have in a path, whatever the file system says.
_PATH_REFUSED = set("[]^|\\")


class LakePath(click.ParamType[Path]):
    """A folder of tables; it need not be there yet."""

    name = "folder"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        path = Path(str(value)).expanduser()
        odd = sorted({char for char in str(path.absolute()) if _is_refused(char)})
        if odd:
            self.fail(
                f"a path without {' '.join(map(repr, odd))} is needed, got {path}", param, ctx
            )
        if path.exists() and not path.is_dir():
            self.fail(f"a folder is needed, {path} is a file", param, ctx)
        return path


class Target(click.ParamType[tuple[str, int]]):
    """NAME=MS: jobs of that name should be done within so many milliseconds."""

    name = "NAME=MS"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return cast("tuple[str, int]", value)
        name, _, text = str(value).rpartition("=")
        if not name or not text:
            self.fail(f"{value!r} is no target; write NAME=MS, such as send-email=500", param, ctx)
        target_ms = _target_ms(text)
        if not 0 < target_ms < 10**12:
            self.fail(
                f"{text!r} is no target; write milliseconds above 0, such as 500, or a duration "
                "such as 2s",
                param,
                ctx,
            )
        return name, target_ms


class Setting(click.ParamType[tuple[str, str]]):
    """KEY=VALUE of Spark's own configuration."""

    name = "KEY=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return cast("tuple[str, str]", value)
        key, equals, text = str(value).partition("=")
        if not key.startswith("spark.") or not equals:
            self.fail(f"{value!r} is no setting; write spark.some.key=value", param, ctx)
        return key, text


def _target_ms(text: str) -> int:
    """Plain digits are milliseconds; 0: neither those nor a duration."""
    if text.isascii() and text.isdigit():
        return int(text[:15])
    try:
        return DURATION.convert(text, None, None)
    except click.BadParameter:
        return 0


def _is_refused(char: str) -> bool:
    return char in _PATH_REFUSED or not char.isprintable()


def _as_dict(_ctx: click.Context, _option: click.Parameter, pairs: Any) -> dict[str, Any]:
    return dict(pairs)


lake_option = click.option(
    "--lake",
    type=LakePath(),
    default=DEFAULT_LAKE,
    show_default=True,
    help="The folder of the tables.",
)
queues_option = click.option(
    "--queue",
    "queues",
    callback=possible_queue,
    multiple=True,
    help="Only this queue; may be given twice.  [default: every queue]",
)


def _no_connect(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value.startswith("sc://"):
        raise click.BadParameter(
            "a master is needed, as the pipeline commits from the driver, and a session of Spark "
            f"Connect has none; use local[*] or spark://host:port, got {value}"
        )
    return value


slo_option = click.option(
    "--slo",
    type=Target(),
    multiple=True,
    callback=_as_dict,
    help="A target: jobs of NAME done within MS; * is every name. May be given twice.",
)
master_option = click.option(
    "--master",
    default=DEFAULT_MASTER,
    show_default=True,
    callback=_no_connect,
    help="Spark's master: local[n], spark://…, yarn or k8s://…",
)
conf_option = click.option(
    "--conf",
    type=Setting(),
    multiple=True,
    callback=_as_dict,
    help="A setting of Spark; may be given twice.",
)
channel_option = click.option(
    "--channel",
    type=click.Choice(CHANNEL_CHOICES),
    default="auto",
    show_default=True,
    help="What to read: the history where there is one, or the events of any writer.",
)
trigger_option = click.option(
    "--trigger",
    "trigger_ms",
    type=DURATION,
    default=DEFAULT_TRIGGER,
    show_default=True,
    help="How often to read.",
)
