"""Numbers that are none are refused in plain words, with the option they were given to."""

from __future__ import annotations

import pytest

REFUSED = {
    ("metrics", "--port", "abc"): "'--port': must be a whole number from 0 to 65535, got 'abc'",
    ("metrics", "--port", "70000"): "'--port': must be a whole number from 0 to 65535, got '70000'",
    ("server", "start", "--port", "0"): "must be a whole number from 1 to 65535, got '0'",
    ("dlq", "peek", "q", "--limit", "-1"): "must be a whole number of at least 0, got '-1'",
    ("dlq", "peek", "q", "--limit", "1.5"): "must be a whole number of at least 0, got '1.5'",
    ("watch", "q", "--count", "0"): "must be a whole number of at least 1, got '0'",
    ("watch", "q", "--count", "9" * 5_000): f"of at least 1, got '{'9' * 39}…",
    ("dlq", "replay", "q", "--max-rate", "nan"): "must be a number above 0, got 'nan'",
    ("dlq", "replay", "q", "--max-rate", "inf"): "must be a number above 0, got 'inf'",
    ("dlq", "replay", "q", "--max-rate", "fast"): "must be a number above 0, got 'fast'",
    ("workers", "q", "--lease", "5"): "'5' is no duration; write 250ms, 5s, 10m, 2h or 1d",
}
pytestmark = pytest.mark.takes_turns


@pytest.mark.parametrize(("words", "said"), REFUSED.items(), ids=lambda v: " ".join(v)[:40])
async def test_a_number_that_is_none_is_wrong_usage(bare_chasqui, words, said):
    answer = await bare_chasqui(*words)

    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err.splitlines()[0]
