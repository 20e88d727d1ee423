"""Faults of every kind on a busy queue, from a seed, with the checker's word at the end.

    python -m tests.chaos --seed 7 --minutes 2 --server valkey --faults kill,stop,cut
    python -m tests.chaos --seed 7 --minutes 60 --faults kill --acts 2000 --jobs 1000000

The schedule is printed first; the same seed gives the same one. The exit code is 0 for PASS.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS.parent / "src"), str(_TESTS)]

from chaos.load import Load  # noqa: E402  the path is set above
from chaos.schedule import KINDS, schedule  # noqa: E402
from chaos.stage import Stage  # noqa: E402
from chasquimq.server.launch import SessionServer  # noqa: E402

_WORKERS = 3
_DRAIN_S = 60.0
_DRAIN_S_PER_JOB = 0.01


def main() -> int:
    options = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="chasqui-chaos-") as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        return asyncio.run(_run(options, folder))


async def _run(options: argparse.Namespace, folder: Path) -> int:
    acts = schedule(
        options.seed, seconds=options.minutes * 60, acts_max=options.acts, kinds=options.faults,
        workers=_WORKERS, lease_s=options.lease_ms / 1000,
    )  # fmt: skip
    print(f"seed {options.seed}, server {options.server}, {len(acts)} faults:", flush=True)
    print("\n".join(map(str, acts)), flush=True)
    server = _server(options.server, is_kept="restart" in options.faults)
    async with Stage(
        server, folder, workers=_WORKERS, lease_ms=options.lease_ms, seed=options.seed,
        is_cut="cut" in options.faults,
    ) as stage:  # fmt: skip
        load = Load(stage.trial, options.seed, options.jobs)
        loading = asyncio.create_task(load.run())
        await _perform(stage, acts)
        if options.jobs == sys.maxsize:
            load.stop()
        await loading
        backlog_s = len(stage.trial.acknowledged) * _DRAIN_S_PER_JOB
        verdict = await stage.settle(_DRAIN_S + min(600.0, backlog_s))
    verdict.write(folder / "verdict.json")
    for rule, found in verdict.broken.items():
        print(f"{rule}: {len(found)}, such as {found[:3]}")
    print(f"{load.error_count} adds were refused or without an answer")
    print(verdict.line)
    return 0 if verdict.is_pass else 1


async def _perform(stage: Stage, acts: list) -> None:
    begun_s = time.monotonic()
    for act in acts:
        await asyncio.sleep(max(0.0, begun_s + act.at_s - time.monotonic()))
        await stage.hurt(act)


def _server(name: str, *, is_kept: bool) -> SessionServer:
    binary = None if name == "valkey" else Path(name)
    return SessionServer(binary=binary, aof="always" if is_kept else "no")


def _faults(text: str) -> list[str]:
    kinds = text.split(",")
    if unknown := set(kinds) - set(KINDS):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}; choose from {', '.join(KINDS)}")
    return kinds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100_000)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--acts", type=int, default=sys.maxsize, help="at most so many faults")
    parser.add_argument("--jobs", type=int, default=sys.maxsize, help="add so many, then stop")
    parser.add_argument("--lease-ms", type=int, default=1_000, help="of the workers")
    parser.add_argument("--server", default="valkey", help="valkey, or the path of a binary")
    parser.add_argument("--faults", type=_faults, default=list(KINDS), help=",".join(KINDS))
    parser.add_argument("--folder", type=Path, default=None, help="where journals are kept")
    return parser


if __name__ == "__main__":
    sys.exit(main())
