"""Rows before they become jobs: values from Arrow, faults that are counted, columns that are found."""

from __future__ import annotations

from hashlib import blake2b

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812  Spark's own habit

from chasquimq.errors import SettingsError
from chasquimq.spark.queues.options import parse_options, refuse_for
from chasquimq.spark.queues.rows import RowReader, Rows, layout_of, values
from chasquimq.spark.queues.source import QueueSource
from chasquimq.wire.new_job import encode_envelopes, encode_values, job_digests, row_digests
from chasquimq.wire.payload import decode_payload, encode_payload

QUEUE = {"queue": "orders"}
NESTED = pa.struct(
    [
        ("n", pa.int64()),
        ("odd name", pa.string()),
        ("list", pa.list_(pa.struct([("a", pa.int32())]))),
        ("map", pa.map_(pa.string(), pa.list_(pa.float64()))),
        ("raw", pa.binary()),
        ("inner", pa.struct([("yes", pa.bool_())])),
    ]
)
PLAIN = [
    {"n": 1, "odd name": "é", "list": [{"a": 1}, None], "map": {"k": [0.5]}, "raw": b"\0", "inner": {"yes": True}},
    {"n": None, "odd name": None, "list": None, "map": None, "raw": None, "inner": None},
    None,
    {"n": -5, "odd name": "", "list": [], "map": {}, "raw": b"", "inner": {"yes": None}},
]  # fmt: skip


def schema(**columns: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(("first", "count"), [(0, 4), (1, 3), (2, 1), (3, 1)])
def test_nested_columns_become_the_values_they_stand_for_in_any_slice(first, count):
    column = pa.array(PLAIN, NESTED).slice(first, count)

    encoded = encode_values(values(column))

    assert encoded == [encode_payload(value) for value in PLAIN[first : first + count]]
    assert [decode_payload(one) for one in encoded] == PLAIN[first : first + count]


def read(rows: list[dict], columns: dict[str, T.DataType], **options: str) -> Rows:
    parsed = parse_options(QUEUE | options)
    reader = RowReader(layout_of(schema(**columns), parsed), parsed)
    return reader.read(pa.RecordBatch.from_pylist(rows))


def test_rows_without_a_payload_column_carry_the_rest():
    rows = read(
        [{"id": "a", "n": 1, "t": "x"}, {"id": "b", "n": None, "t": "y"}],
        {"id": T.StringType(), "n": T.LongType(), "t": T.StringType()}, idColumn="id",
    )  # fmt: skip

    assert rows.ids == ["a", "b"]
    assert list(map(decode_payload, rows.payloads)) == [{"n": 1, "t": "x"}, {"n": None, "t": "y"}]


def test_rows_of_nothing_but_an_id_have_an_empty_payload():
    rows = read([{"id": "a"}], {"id": T.StringType()}, idColumn="id")

    assert rows.payloads == [b"\x80"]


def test_bytes_stay_as_they_are_and_no_bytes_are_nil():
    columns = {"b": T.BinaryType()}

    rows = read([{"b": b"\x93\1\2\3"}, {"b": None}], columns, payloadColumn="b")

    assert rows.payloads == [b"\x93\1\2\3", b"\xc0"]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"id": None}, "no id"),
        ({"id": " \t"}, "a blank id"),
        ({"id": "é" * 129}, "an id over 256 bytes"),
        ({"name": None}, "no name"),
        ({"name": ""}, "a blank name"),
        ({"name": " \t"}, "a blank name"),
        ({"name": "n" * 257}, "a name over 256 bytes"),
        ({"text": "x" * 99}, "a payload over 50 bytes"),
        ({"wait": -1}, "a delay below 0"),
        ({"wait": 2_592_000_001}, "a delay over 30 days"),
        ({"most": 0}, "attempts that are not at least 1"),
    ],
)
def test_a_row_that_cannot_be_a_job_is_left_out_and_counted(row, fault):
    good = {"id": "good", "name": "n", "text": "x", "wait": 1, "most": 1}
    kinds = {"id": T.StringType(), "name": T.StringType(), "text": T.StringType(),
             "wait": T.LongType(), "most": T.IntegerType()}  # fmt: skip
    options = {"idColumn": "id", "nameColumn": "name", "delayColumn": "wait",
               "attemptsColumn": "most", "maxPayloadBytes": "50"}  # fmt: skip

    rows = read([good, good | row, good], kinds, **options)

    assert rows.faults == {fault: 1}
    assert rows.ids == ["good", "good"]
    assert rows.waits_ms == [1, 1]
    assert rows.attempts == [1, 1]


def test_ids_and_names_of_exactly_256_bytes_are_good():
    kinds = {"id": T.StringType(), "name": T.StringType()}

    rows = read(
        [{"id": "é" * 128, "name": "é" * 128}, {"id": "b" * 256, "name": "n" * 256}], kinds,
        idColumn="id", nameColumn="name",
    )  # fmt: skip

    assert (len(rows), rows.faults) == (2, {})


def test_no_name_is_as_good_as_any_where_that_is_asked_for():
    rows = read(
        [{"name": None}, {"name": ""}, {"name": "n" * 257}], {"name": T.StringType()},
        nameColumn="name", allowUnnamed="true",
    )  # fmt: skip

    assert (rows.names, rows.faults) == (["", ""], {"a name over 256 bytes": 1})


def test_rows_that_all_wait_for_nothing_are_ready():
    rows = read([{"wait": 0}, {"wait": None}], {"wait": T.LongType()}, delayColumn="wait")

    assert rows.waits_ms is None


def test_rows_are_cut_by_bytes_and_none_is_lost():
    rows = Rows(["n"] * 5, [b"x" * 40, b"x" * 70, b"x" * 10, b"x" * 10, b"x" * 200])

    pieces = list(rows.pieces(100))

    assert [[len(one) for one in piece.payloads] for piece in pieces] == [
        [40], [70, 10, 10], [200],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "options", "words"),
    [
        ({"id": T.IntegerType()}, {"idColumn": "id"}, "must be a column of text, got 'int'; cast"),
        ({"id": T.StringType()}, {"idColumn": "idd"}, "got 'idd'; did you mean id?"),
        ({"id": T.StringType()}, {"delayColumn": "id"}, "must be a column of whole milliseconds"),
        ({"at": T.TimestampType()}, {}, "column at must be of a type that MessagePack has"),
        ({"b": schema(d=T.DecimalType())}, {"payloadColumn": "b"}, "column b.d must be of a type"),
        ({"a": T.ArrayType(T.DateType())}, {}, r"column a\[\] must be of a type"),
        ({"m": T.MapType(T.LongType(), T.LongType())}, {}, "column m must be a map with text as"),
        ({"a": T.StringType()}, {"payloadColumn": "c"}, "payloadColumn must be a column of the"),
    ],
)
def test_columns_that_cannot_be_used_are_refused_before_anything_is_read(kinds, options, words):
    with pytest.raises(SettingsError, match=words):
        QueueSource(QUEUE | {"name": "n"} | options).writer(schema(**kinds), overwrite=False)


def test_a_write_whose_jobs_would_have_no_name_is_refused():
    with pytest.raises(SettingsError, match="nameColumn or name must be given"):
        QueueSource(QUEUE).writer(schema(id=T.StringType()), overwrite=False)
    with pytest.raises(SettingsError, match="nameColumn or name must be given"):
        QueueSource(QUEUE).streamWriter(schema(id=T.StringType()), overwrite=False)

    QueueSource(QUEUE | {"allowUnnamed": "true"}).writer(schema(id=T.StringType()), overwrite=False)


def test_a_column_is_found_whatever_its_case_and_exactly_if_there_are_two():
    options = parse_options(QUEUE | {"idColumn": "ID"})

    assert layout_of(schema(x=T.StringType(), id=T.StringType()), options).id_at == 1
    assert layout_of(schema(id=T.StringType(), ID=T.StringType()), options).id_at == 1
    with pytest.raises(SettingsError, match="a column that is there once"):
        layout_of(schema(id=T.StringType(), Id=T.StringType()), options)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "queue must be given"),
        ({"queue": "a b"}, "queue name must be free of white space"),
        (QUEUE | {"idColum": "a"}, "did you mean idColumn?"),
        (QUEUE | {"pipelineSize": "0"}, "pipelineSize must be from 1 to 1000"),
        (QUEUE | {"pipelineSize": "many"}, "pipelineSize must be a whole number"),
        (QUEUE | {"maxRate": "0"}, "maxRate must be a number of rows a second above 0"),
        (QUEUE | {"maxRate": "nan"}, "maxRate must be a number"),
        (QUEUE | {"onError": "stop"}, "onError must be one of fail, skip"),
        (QUEUE | {"read": "events"}, "read must be one of stream, delayed, dlq, results"),
        (QUEUE | {"dryRun": "yes"}, "dryRun must be true or false"),
        (QUEUE | {"runId": " "}, "runId must be a text of 1 to 128 bytes"),
        (QUEUE | {"name": "n", "nameColumn": "c"}, "name and nameColumn must be given one at a"),
        (QUEUE | {"payloadSchema": "a int", "payload": "binary"}, "payloadSchema must be left out"),
    ],
)
def test_a_wrong_option_is_refused_by_name(given, words):
    with pytest.raises(SettingsError, match=words):
        parse_options(given)


def test_an_option_for_the_other_act_is_refused():
    with pytest.raises(SettingsError, match="idColumn must be left out of a read"):
        refuse_for(parse_options(QUEUE | {"idColumn": "a"}), "read")
    with pytest.raises(SettingsError, match="read must be left out of a write"):
        refuse_for(parse_options(QUEUE | {"read": "dlq"}), "write")


def test_sparks_own_options_and_any_case_are_taken():
    options = parse_options({"QUEUE": "orders", "checkpointLocation": "x", "IDCOLUMN": "a"})

    assert (options.queue, options.id_column) == ("orders", "a")


def test_envelopes_are_spelled_as_single_adds_spell_them():
    with_attempts = encode_envelopes(["a", "b"], [b"\1", b"\2"], 5, [3, None])

    assert encode_envelopes(["a"], [b"\1"], 5) == [bytes.fromhex("94a161c401010500")]
    assert msgspec.msgpack.decode(with_attempts[0]) == ["a", b"\1", 5, 0, [3, None]]
    assert msgspec.msgpack.decode(with_attempts[1]) == ["b", b"\2", 5, 0]


def test_the_digest_of_a_row_is_its_run_name_payload_and_whatever_else_makes_it_differ():
    base = row_digests("r", ["n"], [b"p"])

    assert base == row_digests("r", ["n", "m"], [b"p", b"p"])[:1]
    others = [
        row_digests("s", ["n"], [b"p"]), row_digests("r", ["m"], [b"p"]),
        row_digests("r", ["n"], [b"q"]), row_digests("r", ["n"], [b"p"], [5]),
        row_digests("r", ["n"], [b"p"], None, [5]),
    ]  # fmt: skip
    assert all(one != base for one in others)
    assert others[-1] != others[-2]


def test_contents_that_spell_alike_when_joined_have_different_digests():
    wait = row_digests("r", ["n"], [b"p"], [5])
    attempts = row_digests("r", ["n"], [b"p"], None, [5])

    assert wait != row_digests("r", ["n"], [b"p\0wait 5"])
    assert attempts != row_digests("r", ["n"], [b"p\0attempts 5"])
    assert row_digests("r", ["n"], [b"m\0p"]) != row_digests("r", ["n\0m"], [b"p"])


def test_jobs_of_one_id_are_told_apart_though_a_name_holds_a_nul():
    digests = job_digests(["n", "n\0m", "n"], [b"m\0p", b"p", b"p"])

    assert len(set(digests)) == 3
    assert digests == [*job_digests(["n"], [b"m\0p"]), *job_digests(["n\0m", "n"], [b"p", b"p"])]
    assert digests[2] == blake2b(b"n\0p", digest_size=12).hexdigest()


EMPTY = T.StructType([])


@pytest.mark.parametrize(
    "kind", [EMPTY, T.ArrayType(EMPTY), T.MapType(T.StringType(), EMPTY), schema(inner=EMPTY)],
    ids=["itself", "in an array", "in a map", "in a struct"],
)  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"payloadColumn": "body"}], ids=["rest", "payload"])
def test_a_struct_without_fields_is_refused_wherever_it_is(kind, options):
    with pytest.raises(SettingsError, match="a struct with at least one field"):
        layout_of(schema(body=kind), parse_options(QUEUE | options))


def test_the_digest_of_a_row_does_not_depend_on_the_rows_beside_it():
    alone = row_digests("r", ["n"], [b"p"])

    beside = row_digests("r", ["n", "n"], [b"p", b"q"], [0, 5], [None, 3])

    assert beside[:1] == alone
