from collections.abc import Callable, Iterable
from types import FrameType
from typing import TypeAlias

Answer: TypeAlias = Callable[[int, FrameType | None], object] | int | None

SIGALRM: int
SIGINT: int
SIG_BLOCK: int
SIG_IGN: int
SIG_UNBLOCK: int
ITIMER_REAL: int

def default_int_handler(number: int, frame: FrameType | None, /) -> object: ...
def getsignal(number: int, /) -> Answer: ...
def pthread_sigmask(how: int, mask: Iterable[int], /) -> set[int]: ...
def setitimer(which: int, seconds: float, interval: float = ..., /) -> tuple[float, float]: ...
def signal(number: int, answer: Answer, /) -> Answer: ...
