"""Bad input is refused before any key is written, in words that say what to change."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import uuid
from dataclasses import dataclass

import msgspec
import pytest

from chasquimq import BackoffSpec, Producer, Queue
from chasquimq.errors import (
    ChasquiError,
    EncodeError,
    KindRefused,
    LimitExceeded,
    PayloadTooLarge,
    SettingsError,
)
from chasquimq.queue.inspector import Inspector


@pytest.fixture
async def untouched(raw):
    """Fails a test that left any key behind."""
    yield
    assert await raw("KEYS", "{chasqui:" + raw.keys.queue + "}:*") == []


@dataclass
class Point:
    x: int


class Mail(msgspec.Struct):
    to: str


class Model:
    """Says what it is as a model of pydantic does."""

    def model_dump(self, mode):
        return {}


class Colour(enum.Enum):
    RED = 1


BAD_NAMES = {
    "no text": (5, SettingsError, "job name must be a string, got 5"),
    "none": (None, SettingsError, "job name must be a string, got None"),
    "bytes": (b"n", SettingsError, "job name must be a string, got b'n'"),
    "too long": ("n" * 257, LimitExceeded, "job name must be at most 256 bytes of UTF-8, got 257"),
    "too long in UTF-8": ("ü" * 129, LimitExceeded, "at most 256 bytes of UTF-8, got 258"),
    "half a letter": ("\ud800", SettingsError, "job name must be valid Unicode"),
}

BAD_IDS = {
    "empty": ("", SettingsError, "job id must be a string that is not blank, got ''"),
    "blank": (" \t", SettingsError, "job id must be a string that is not blank"),
    "no text": (7, SettingsError, "job id must be a string, got 7"),
    "too long": ("x" * 257, LimitExceeded, "job id must be at most 256 bytes of UTF-8, got 257"),
    "half a letter": ("\udfff", SettingsError, "job id must be valid Unicode"),
}

BAD_OPTIONS = {
    "attempts 0": ({"attempts": 0}, "attempts must be between 1 and 4294967295, got 0"),
    "attempts -1": ({"attempts": -1}, "attempts must be between 1 and"),
    "attempts 2**32": ({"attempts": 2**32}, "attempts must be between 1 and 4294967295"),
    "attempts 1.5": ({"attempts": 1.5}, "attempts must be a whole number, got 1.5"),
    "attempts True": ({"attempts": True}, "attempts must be a whole number, got True"),
    "attempts text": ({"attempts": "3"}, "attempts must be a whole number, got '3'"),
    "backoff -1": ({"backoff": -1}, "backoff must be between 0 and"),
    "backoff nan": ({"backoff": float("nan")}, "backoff must be a whole number, got nan"),
    "backoff inf": ({"backoff": float("inf")}, "backoff must be a whole number, got inf"),
    "backoff kind": (
        {"backoff": {"kind": "odd", "delay_ms": 1}},
        'must be "fixed" or "exponential"',
    ),
    "backoff without delay": (
        {"backoff": {"kind": "fixed"}},
        "backoff must be given with delay_ms",
    ),
    "backoff with more": (
        {"backoff": {"kind": "fixed", "delay_ms": 1, "jiter_ms": 2}},
        "backoff must be made of kind, delay_ms, max_delay_ms, multiplier, jitter_ms, got",
    ),
    "multiplier": (
        {"backoff": BackoffSpec("exponential", 1, multiplier=float("nan"))},
        "backoff multiplier must be a finite number, got nan",
    ),
    "expires 0": ({"expires_ms": 0}, "expires_ms must be between 1 and"),
    "expires text": ({"expires_ms": "1"}, "expires_ms must be a whole number, got '1'"),
    "timeout -5": ({"timeout_ms": -5}, "timeout_ms must be between 1 and"),
    "timeout float": ({"timeout_ms": 1.5}, "timeout_ms must be a whole number, got 1.5"),
    "delay with a unit": ({"delay_ms": "5s"}, "got '5s'; five seconds are 5000"),
    "delay negative": ({"delay_ms": -1}, "delay_ms must be a finite number of at least 0, got -1"),
    "delay nan": ({"delay_ms": float("nan")}, "delay_ms must be a finite number of at least 0"),
    "delay too far": ({"delay_ms": 10**13}, "delay must be at most 2592000 s, got '10000000000 s'"),
    "delay beyond all clocks": ({"delay_ms": 2**70}, "delay must be at most 2592000 s"),
    "two delays": (
        {"delay_ms": 1, "delay": dt.timedelta(1)},
        "delay_ms and delay must be given one at a time",
    ),
}

BAD_SHARED_OPTIONS = {
    "window 0": ({"unique_for_ms": 0}, "unique_for_ms must be between 1 and"),
    "window text": ({"unique_for_ms": "1"}, "unique_for_ms must be a whole number, got '1'"),
    "window beyond all clocks": ({"unique_for_ms": 2**63}, "unique_for_ms must be between 1 and"),
    "on_conflict": (
        {"on_conflict": "shout"},
        'on_conflict must be "keep" or "raise", got \'shout\'',
    ),
}

BAD_DATA = {
    "set": ({"tags": {1}}, "data.tags is a set; convert it first, for example with sorted()"),
    "datetime": (
        [1, {"when": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}],
        "data[1].when is a datetime; convert it first, for example with .isoformat()",
    ),
    "decimal": ({"price": decimal.Decimal(1)}, "data.price is a Decimal; convert it first"),
    "uuid": (uuid.UUID(int=1), "data is a UUID; convert it first, for example with str()"),
    "dataclass": (
        {"a": [Point(1)]},
        "data.a[0] is a Point; convert it first, with dataclasses.asdict(data.a[0])",
    ),
    "struct": (Mail("ada"), "data is a Mail; convert it first, with msgspec.to_builtins(data)"),
    "pydantic model": (
        {"mail": Model()},
        'data.mail is a Model; convert it first, with data.mail.model_dump(mode="json")',
    ),
    "enum": ({"c": Colour.RED}, "data.c is a Colour; convert it first"),
    "object": (object(), "data is an object; convert it first"),
    "huge int": ({"n": 2**64}, "data.n must be an int of at most 64 bits; send it as a str"),
    "half a letter": ({"s": "\ud800"}, "data.s must be valid Unicode"),
    "key": ({"k": {(1, frozenset()): 1}}, "a key of data.k is a frozenset"),
}


@pytest.mark.usefixtures("untouched")
class TestSingleAdds:
    @pytest.mark.parametrize(("name", "error_type", "said"), BAD_NAMES.values(), ids=BAD_NAMES)
    async def test_a_bad_name_is_refused(self, queue, name, error_type, said):
        with pytest.raises(error_type) as caught:
            await queue.add(name, 1)

        assert said in str(caught.value)

    @pytest.mark.parametrize(("job_id", "error_type", "said"), BAD_IDS.values(), ids=BAD_IDS)
    async def test_a_bad_id_is_refused(self, queue, job_id, error_type, said):
        with pytest.raises(error_type) as caught:
            await queue.add("n", 1, job_id=job_id)

        assert said in str(caught.value)

    async def test_a_unique_add_without_an_id_is_refused(self, queue):
        with pytest.raises(SettingsError, match="job_id must be a string that is not blank"):
            await queue.add_unique("n", 1, job_id=None)

    @pytest.mark.parametrize(
        ("options", "said"),
        [*BAD_OPTIONS.values(), *BAD_SHARED_OPTIONS.values()],
        ids=[*BAD_OPTIONS, *BAD_SHARED_OPTIONS],
    )
    async def test_a_bad_option_is_refused(self, queue, options, said):
        with pytest.raises(SettingsError) as caught:
            await queue.add("n", 1, job_id="own", **options)

        assert said in str(caught.value)

    @pytest.mark.parametrize("backoff", ["soon", object(), True, [1]])
    async def test_a_backoff_of_no_known_shape_is_refused(self, queue, backoff):
        with pytest.raises(KindRefused, match="backoff must be a number of ms, a BackoffSpec"):
            await queue.add("n", 1, backoff=backoff)

    @pytest.mark.parametrize(("data", "said"), BAD_DATA.values(), ids=BAD_DATA)
    async def test_data_without_a_wire_form_is_refused_with_its_path(self, queue, data, said):
        with pytest.raises(EncodeError) as caught:
            await queue.add("n", data)

        assert said in str(caught.value)

    async def test_data_that_contains_itself_is_refused(self, queue):
        loop: list = []
        loop.append(loop)

        with pytest.raises(EncodeError, match="contains itself"):
            await queue.add("n", loop)

    async def test_a_payload_over_the_cap_is_refused_with_both_sizes(self, url, queue_name):
        async with Queue(queue_name, redis_url=url, max_payload_bytes=10) as queue:
            with pytest.raises(PayloadTooLarge, match="at most 10 bytes, got 22") as caught:
                await queue.add("n", "x" * 21)

        assert (caught.value.payload_bytes, caught.value.cap_bytes) == (22, 10)


GOOD = {"name": "n", "data": 1}


@pytest.mark.usefixtures("untouched")
class TestBulks:
    @pytest.mark.parametrize("at", [0, 1, 1_500])
    async def test_one_bad_job_refuses_the_whole_bulk_and_is_named(self, queue, at):
        jobs: list[dict] = [GOOD] * 2_000
        jobs[at] = {"name": "n", "data": {"when": {1}}}

        with pytest.raises(EncodeError) as caught:
            await queue.add_bulk(jobs)

        assert str(caught.value).startswith(f"jobs[{at}]: data.when is a set")

    @pytest.mark.parametrize(
        "bad",
        [
            *({"name": name, "data": 1} for name, *_ in BAD_NAMES.values()),
            *({**GOOD, "job_id": job_id} for job_id, *_ in BAD_IDS.values()),
            *({**GOOD, **options} for options, _ in BAD_OPTIONS.values()),
            *({"name": "n", "data": data} for data, _ in BAD_DATA.values()),
        ],
        ids=[*BAD_NAMES, *BAD_IDS, *BAD_OPTIONS, *BAD_DATA],
    )
    async def test_whatever_is_wrong_with_a_job_its_place_is_named(self, queue, bad):
        with pytest.raises(ChasquiError, match=r"^jobs\[1\]: "):
            await queue.add_bulk([GOOD, bad, GOOD])

    async def test_a_payload_over_the_cap_names_its_place(self, url, queue_name):
        async with Queue(queue_name, redis_url=url, max_payload_bytes=10) as queue:
            with pytest.raises(PayloadTooLarge, match=r"^jobs\[1\]: a payload must be at most 10"):
                await queue.add_bulk([GOOD, {"name": "n", "data": "x" * 21}])

    @pytest.mark.parametrize(
        ("bad", "said"),
        [
            ({"name": "n"}, "jobs[1] must be a mapping with 'data'"),
            ({"data": 1}, "jobs[1] must be a mapping with 'name'"),
            ({}, "jobs[1] must be a mapping with 'name'"),
            ({"name": "n", "payload": 1}, "jobs[1] must be a mapping with 'data'"),
            ({**GOOD, "retries": 3}, "jobs[1]: a job must be made of attempts, backoff, data,"),
            ("n", "jobs[1] must be a mapping with at least name and data, got 'n'"),
            (None, "jobs[1] must be a mapping with at least name and data, got None"),
            (("n", 1), "jobs[1] must be a mapping with at least name and data, got ('n', 1)"),
        ],
        ids=["no data", "no name", "empty", "another key", "one more key", "text", "none", "pair"],
    )
    async def test_a_job_of_the_wrong_shape_is_refused(self, queue, bad, said):
        with pytest.raises(SettingsError) as caught:
            await queue.add_bulk([GOOD, bad])

        assert said in str(caught.value)

    @pytest.mark.parametrize(
        "jobs",
        [None, 5, GOOD, "jobs", iter([GOOD])],
        ids=["none", "int", "dict", "str", "iterator"],
    )
    async def test_a_bulk_that_is_no_list_is_refused(self, queue, jobs):
        with pytest.raises(SettingsError, match="jobs must be a list of mappings, got"):
            await queue.add_bulk(jobs)

    @pytest.mark.parametrize(
        ("options", "said"), BAD_SHARED_OPTIONS.values(), ids=BAD_SHARED_OPTIONS
    )
    async def test_a_bad_option_of_the_bulk_is_refused(self, queue, options, said):
        with pytest.raises(SettingsError) as caught:
            await queue.add_bulk([{**GOOD, "job_id": "own"}], **options)

        assert said in str(caught.value)


# queues

BAD_QUEUE_NAMES = {
    "empty": "",
    "blank": " ",
    "space": "a b",
    "newline": "a\nb",
    "brace": "a{b}",
    "star": "a*",
    "question": "a?",
    "bracket": "[a]",
    "backslash": "a\\b",
    "control": "a\x00",
    "too long": "q" * 129,
    "half a letter": "\ud800",
    "no text": 5,
    "none": None,
    "bytes": b"q",
}

BAD_QUEUE_OPTIONS = {
    "cap 0": ({"max_stream_len": 0}, "max_stream_len must be"),
    "cap -1": ({"max_stream_len": -1}, "max_stream_len must be"),
    "cap text": ({"max_stream_len": "10"}, "max_stream_len must be a whole number, got '10'"),
    "cap float": ({"max_stream_len": 1.5}, "max_stream_len must be a whole number, got 1.5"),
    "cap True": ({"max_stream_len": True}, "max_stream_len must be a whole number, got True"),
    "payload 0": ({"max_payload_bytes": 0}, "max_payload_bytes must be"),
    "payload text": ({"max_payload_bytes": "1"}, "max_payload_bytes must be a whole number"),
    "delay -1": ({"max_delay_secs": -1}, "max_delay_secs must be"),
    "delay text": ({"max_delay_secs": "1"}, "max_delay_secs must be a whole number"),
    "window 0": ({"unique_for_ms": 0}, "unique_for_ms must be"),
    "window text": ({"unique_for_ms": "1"}, "unique_for_ms must be a whole number"),
    "window too long": ({"unique_for_ms": 2**63}, "unique_for_ms must be"),
    "timeout 0": ({"command_timeout_ms": 0}, "command_timeout_ms must be"),
    "timeout text": ({"command_timeout_ms": "1"}, "command_timeout_ms must be a whole number"),
}

BAD_URLS = {
    "empty": "",
    "blank": "  ",
    "bytes": b"redis://host",
    "scheme": "http://host",
    "no host": "redis://",
    "port": "redis://host:port",
    "port too large": "redis://host:99999",
    "port 0": "redis://host:0",
    "database": "redis://host/first",
    "no socket": "unix://",
    "half an address": "redis://[::1",
}


@pytest.mark.parametrize("name", BAD_QUEUE_NAMES.values(), ids=BAD_QUEUE_NAMES)
def test_a_bad_queue_name_is_refused(name):
    with pytest.raises(SettingsError, match="queue name must be"):
        Queue(name)


@pytest.mark.parametrize("name", ["q", "a-b_c.d:e", "ünïcödé", "q" * 128, "a/b"])
def test_a_good_queue_name_is_kept(name):
    assert Queue(name).name == name


@pytest.mark.parametrize(("options", "said"), BAD_QUEUE_OPTIONS.values(), ids=BAD_QUEUE_OPTIONS)
def test_a_bad_queue_option_is_refused_when_the_queue_is_made(options, said):
    with pytest.raises(SettingsError) as caught:
        Queue("q", **options)

    assert said in str(caught.value)


@pytest.mark.parametrize("url", BAD_URLS.values(), ids=BAD_URLS)
def test_a_bad_address_is_refused_when_the_queue_is_made(url):
    with pytest.raises(SettingsError, match="redis_url must be"):
        Queue("q", redis_url=url)


@pytest.mark.parametrize("option", ["no_such_option=1", "db=first"])
async def test_an_address_with_options_nobody_knows_is_refused_when_used(option):
    async with Queue("q", redis_url=f"redis://127.0.0.1:1?{option}") as queue:
        with pytest.raises(SettingsError, match="redis_url must be a URL whose options"):
            await queue.add("n", 1)


async def test_without_a_limit_a_delay_beyond_all_clocks_is_still_refused(url, queue_name, raw):
    async with Queue(queue_name, redis_url=url, max_delay_secs=0) as queue:
        with pytest.raises(LimitExceeded, match="delay must be at most"):
            await queue.add("n", 1, delay_ms=2**60)

    assert await raw("EXISTS", raw.keys.delayed) == 0


NOT_A_LIST = ["abc", b"abc", bytearray(b"abc"), 7, None]


@pytest.mark.parametrize("given", NOT_A_LIST)
@pytest.mark.parametrize("method", ["cancel_delayed_bulk", "get_job_result_bulk"])
async def test_a_bare_id_where_many_are_taken_is_refused_and_not_cut_into_letters(
    queue, untouched, method, given
):
    with pytest.raises(
        KindRefused, match=r"job_ids must be a list of job ids, got .*; .*\[job_id\]"
    ):
        await getattr(queue, method)(given)


@pytest.mark.parametrize("given", NOT_A_LIST)
@pytest.mark.parametrize("method", ["cancel_delayed_bulk", "get_result_bulk"])
async def test_the_low_level_producer_refuses_a_bare_id_as_well(
    url, queue_name, untouched, method, given
):
    producer = Producer(url, queue_name)

    with pytest.raises(KindRefused, match="must be a list of job ids"):
        await getattr(producer, method)(given)

    await producer.shutdown()


@pytest.mark.parametrize("given", NOT_A_LIST[:-1])
@pytest.mark.parametrize("method", ["replay_dlq", "purge_dlq"])
async def test_a_bare_dlq_id_where_many_are_taken_is_refused(queue, untouched, method, given):
    with pytest.raises(KindRefused, match="ids must be a list of dlq ids"):
        await getattr(queue, method)(ids=given)


@pytest.mark.parametrize("given", NOT_A_LIST)
async def test_a_survey_takes_a_list_of_queues_and_not_the_letters_of_one(url, given):
    async with Inspector(redis_url=url) as inspector:
        with pytest.raises(KindRefused, match="queues must be a list of queue names"):
            await inspector.survey(given)


async def test_many_ids_may_come_from_any_iterable(queue):
    ids = ("a", "b")

    assert await queue.cancel_delayed_bulk(iter(ids)) == [False, False]
    assert await queue.get_job_result_bulk(dict.fromkeys(ids)) == [None, None]
