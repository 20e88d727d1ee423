"""No line of ours runs foreign bytes, trusts a stranger, or makes secrets by chance."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
# Modules whose very import is a way to run what somebody else wrote.
BANNED_MODULES = {
    "pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "imp",
    "telnetlib", "ftplib", "xmlrpc", "yaml",
}  # fmt: skip
BANNED_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "tempfile.mktemp",
    "yaml.load", "ssl._create_unverified_context", "pandas.read_pickle", "input",
}  # fmt: skip
BANNED_OPTIONS = {
    ("shell", True), ("verify", False), ("check_hostname", False), ("allow_pickle", True),
    ("ssl_check_hostname", False),
}  # fmt: skip
BANNED_NAMES = {"CERT_NONE"}
# Weak where secrecy is meant; each use must say that it is not.
WEAK_HASHES = {"md5", "sha1"}
# Chance may spread things in time, never name or guard them.
CHANCE = {"random.uniform", "random.Random"}
CHANCE_MODULE = {
    "chasquimq/engine/settlement.py": "hands the module on to the jitter of retries",
}
EXCEPTIONS = {
    (
        "chasquimq/store/net/address.py",
        "CERT_NONE",
    ): "insecure_tls=True, which warns and is spelled out",
    ("chasquimq/store/net/address.py", "ssl_check_hostname=False"): "the same",
}


# Most files hold none of these words, and need not be parsed to know it.
SUSPECT = re.compile(
    r"\b(?:eval|exec|input|__import__|(?<!re\.)compile)\(|pickle|marshal|shelve|dill|telnetlib|ftplib"
    r"|xmlrpc|yaml|\bimp\b|system|popen|mktemp|unverified|shell|verify|check_hostname|CERT_NONE|md5"
    r"|sha1|random"
)


def sources() -> list[Path]:
    return [path for path in sorted(SRC.rglob("*.py")) if SUSPECT.search(path.read_text("utf-8"))]


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Every node of every file, with the place it stands in."""
    return [
        (path.relative_to(SRC).as_posix(), node)
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
    ]


def dangers(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return _banned([alias.name for alias in node.names])
        case ast.ImportFrom():
            return _banned([node.module or ""])
        case ast.Call():
            return [*_call(node), *_options(node)]
        case ast.Attribute(attr=name) if name in BANNED_NAMES:
            return [name]
        case ast.Dict():
            return _pairs(node)
        case _:
            return []


def _banned(modules: list[str]) -> list[str]:
    return [name for name in modules if name.split(".")[0] in BANNED_MODULES]


def _call(node: ast.Call) -> list[str]:
    name = _dotted(node.func)
    found = [name] if name in BANNED_CALLS else []
    is_weak = name.rpartition(".")[2] in WEAK_HASHES
    says_so = any(keyword.arg == "usedforsecurity" for keyword in node.keywords)
    return [*found, name] if is_weak and not says_so else found


def _options(node: ast.Call) -> list[str]:
    given = [(one.arg, one.value.value) for one in node.keywords if _is_plain(one.value)]
    return [f"{name}={value}" for name, value in given if (name, value) in BANNED_OPTIONS]


def _pairs(node: ast.Dict) -> list[str]:
    pairs = [
        (key.value, value.value)
        for key, value in zip(node.keys, node.values, strict=True)
        if _is_plain(key) and _is_plain(value)
    ]
    return [f"{name}={value}" for name, value in pairs if (name, value) in BANNED_OPTIONS]


def _dotted(node: ast.AST) -> str:
    """`os.system` and the like; nothing for what is no plain name."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def _is_plain(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bool)


def test_no_dangerous_call_stands_anywhere_without_a_reason():
    found = {(place, what) for place, node in nodes() for what in dangers(node)}

    assert found == EXCEPTIONS.keys()


def test_chance_only_spreads_things_in_time():
    used = {
        _dotted(node)
        for _, node in nodes()
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "random"
    }

    assert used <= CHANCE


def test_who_imports_chance_says_what_for():
    imported = {
        place
        for place, node in nodes()
        if isinstance(node, ast.ImportFrom) and node.module == "random"
    }
    handed_on = {
        place
        for place, node in nodes()
        if isinstance(node, ast.Call)
        and any(isinstance(arg, ast.Name) and arg.id == "random" for arg in node.args)
    }

    assert imported == set()
    assert handed_on == CHANCE_MODULE.keys()


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from marshal import loads",
        "eval('1')",
        "exec(text)",
        "os.system('ls')",
        "yaml.load(text)",
        "subprocess.run('ls', shell=True)",
        "requests.get(url, verify=False)",
        "context.verify_mode = ssl.CERT_NONE",
        "options = {'check_hostname': False}",
        "hashlib.md5(secret)",
    ],
)
def test_the_gate_sees_each_of_them(line):
    assert SUSPECT.search(line)
    assert [what for node in ast.walk(ast.parse(line)) for what in dangers(node)]


@pytest.mark.parametrize(
    "line",
    [
        "re.compile('a')",
        "subprocess.run(['ls'], shell=False)",
        "sha1(text, usedforsecurity=False)",
        "literal_eval('1')",
        "json.loads(text)",
    ],
)
def test_the_gate_lets_harmless_lines_pass(line):
    assert [what for node in ast.walk(ast.parse(line)) for what in dangers(node)] == []
