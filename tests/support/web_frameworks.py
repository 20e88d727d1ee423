"""Just enough of two web frameworks to serve the applications of a page where they are missing."""

from __future__ import annotations

import inspect
import json
import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from urllib.parse import parse_qsl


class _Routes:
    """What both have: functions by method and path, and handlers of errors by class."""

    def __init__(self, *_args, **options) -> None:
        self._lifespan = options.get("lifespan")
        self._routes, self._handlers = {}, {}

    def _at(self, method: str, path: str, code: int = 200):
        def keep(function):
            self._routes[method, path.partition("{")[0]] = (function, code)
            return function

        return keep

    def post(self, path: str, status_code: int = 200):
        return self._at("POST", path, status_code)

    def get(self, path: str):
        return self._at("GET", path)

    def exception_handler(self, kind: type):
        return lambda function: self._handlers.setdefault(kind, function)

    errorhandler = exception_handler

    def _found(self, method: str, path: str):
        for (known, start), (function, code) in self._routes.items():
            if known == method and path.startswith(start):
                return function, code, path.removeprefix(start)
        raise LookupError(path)

    def _handler(self, error: Exception):
        return next(self._handlers[kind] for kind in type(error).__mro__ if kind in self._handlers)


class _Asgi(_Routes):
    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            async with self._lifespan(self):
                await receive()
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        function, code, rest = self._found(scope["method"], scope["path"])
        given = [rest] if rest else list(dict(parse_qsl(scope["query_string"].decode())).values())
        try:
            answer = _JsonResponse(await function(*given), code)
        except Exception as error:  # noqa: BLE001 - that is what the handlers are for
            answer = await self._handler(error)(None, error)
        headers = [
            (name.lower().encode(), value.encode()) for name, value in answer.headers.items()
        ]
        start = {"type": "http.response.start", "status": answer.code, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": json.dumps(answer.data).encode()})


class _JsonResponse:
    def __init__(self, data, code: int, headers: dict[str, str] | None = None) -> None:
        self.data, self.code, self.headers = data, code, headers or {}


class _Wsgi(_Routes):
    request = SimpleNamespace(form={})

    def __call__(self, environ, start_response) -> list[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)).decode()
        self.request.form = dict(parse_qsl(body))
        function, _, _ = self._found(environ["REQUEST_METHOD"], environ["PATH_INFO"])
        try:
            answer = function()
        except Exception as error:  # noqa: BLE001 - that is what the handlers are for
            answer = self._handler(error)(error)
        text, code, headers = (*answer, {})[:3] if isinstance(answer, tuple) else (answer, 200, {})
        start_response(f"{code} said", list(headers.items()))
        return [text.encode()]


def stand_in(monkeypatch, name: str) -> None:
    """Let a page import the framework, whether it is installed or not."""
    if find_spec(name) is not None:
        return
    module = ModuleType(name)
    if name == "flask":
        vars(module).update(Flask=_Wsgi, request=_Wsgi.request)
    else:
        responses = ModuleType("fastapi.responses")
        vars(responses).update(JSONResponse=_JsonResponse)
        vars(module).update(FastAPI=_Asgi, HTTPException=LookupError, Request=object)
        monkeypatch.setitem(sys.modules, "fastapi.responses", responses)
    monkeypatch.setitem(sys.modules, name, module)


class AsgiClient:
    """Requests to an ASGI application, between its startup and its shutdown."""

    def __init__(self, app) -> None:
        self._app = app

    async def ask(self, method: str, path: str, query: str = "") -> tuple[int, dict, bytes]:
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": path, "raw_path": path.encode(), "headers": [],
            "query_string": query.encode(), "client": ("127.0.0.1", 1), "server": ("testserver", 80),
        }  # fmt: skip
        said = []

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            said.append(message)

        await self._app(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in said[0]["headers"]}
        return said[0]["status"], headers, b"".join(one.get("body", b"") for one in said[1:])


def ask_wsgi(app, method: str, path: str, form: bytes = b"") -> tuple[int, dict, bytes]:
    """One request to a WSGI application."""
    import io

    said = []
    environ = {
        "REQUEST_METHOD": method, "PATH_INFO": path, "SERVER_NAME": "testserver", "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1", "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(form),
        "wsgi.errors": sys.stderr, "wsgi.version": (1, 0), "wsgi.multithread": True,
        "wsgi.multiprocess": False, "wsgi.run_once": False, "CONTENT_LENGTH": str(len(form)),
        "CONTENT_TYPE": "application/x-www-form-urlencoded",
    }  # fmt: skip
    body = app(environ, lambda status, headers, *_: said.append((status, headers)))
    if inspect.isgenerator(body):
        body = list(body)
    (status, headers) = said[0]
    return int(status.split()[0]), {name.lower(): one for name, one in headers}, b"".join(body)
