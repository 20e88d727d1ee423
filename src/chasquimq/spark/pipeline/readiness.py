"""What must hold before Spark is started: half a minute is too long to wait for a no."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from chasquimq.errors import ServerRefused
from chasquimq.spark.lake.files import unwritable
from chasquimq.store.net.blocking import BlockingConnection

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings
    from chasquimq.spark.pipeline.settings import PipelineSettings


def refuse_early(settings: PipelineSettings) -> None:
    """Look whether a pipeline could begin; nothing is made on the way.

    Raises:
        StoreError: the server does not answer, or not to this user.
        SettingsError: the lake cannot be written to.
    """
    reach(settings.connection)
    refuse_unwritable(settings.lake)


def reach(settings: ConnectionSettings) -> None:
    """Say a word to the server, as those who read it will."""
    connection = BlockingConnection(settings, name="chasqui-pipeline")
    try:
        connection.call("PING")
    except ServerRefused as refusal:
        # A user that the server knows and that may not ask this may have all the rights that it takes.
        if refusal.code != "NOPERM":
            raise
    finally:
        connection.close()


def refuse_unwritable(lake: Path) -> None:
    """Refuse a folder that cannot be written to, or could not be made."""
    place = next(path for path in (lake.absolute(), *lake.absolute().parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise unwritable(lake) from error
