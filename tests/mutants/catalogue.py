"""One-line breaks of the promises, each with the test that must turn red.

A text to be replaced stands once in its file; where it does not any more, the run says so.
"""

from __future__ import annotations

from dataclasses import dataclass

_LUA = "src/chasquimq/store/scripts"


@dataclass(frozen=True)
class Mutant:
    """What is broken, where, and who must notice."""

    name: str
    path: str
    before: str
    after: str
    test: str


_LEASES = "tests/behaviour/test_leases.py"
_REFUSED = (
    "tests/store/test_refused_commands.py::test_a_refused_command_leaves_every_job_in_one_place"
    "_and_a_later_try_succeeds"
)
_EXHAUSTED = (
    "tests/store/test_refused_commands.py::"
    "test_a_stream_at_the_end_of_its_ids_loses_doubles_and_strands_nothing"
)
_LOGGING = "tests/behaviour/test_hostile_logging.py"
_STALLS = "tests/behaviour/test_stalls.py"
_DEADLINES = "tests/store/test_add_deadlines.py"
_SUSPECTS = "tests/behaviour/test_suspects.py"
_TRACEBACKS = "tests/behaviour/test_tracebacks.py"
_EXTRAS = "tests/behaviour/test_extras.py"
_FORGED = (
    "tests/store/test_upkeep.py::"
    "test_a_forged_member_leaves_the_job_whose_id_it_carries_cancellable"
)
MUTANTS = (
    Mutant(
        "every worker walks the pending list", f"{_LUA}/claim.lua",
        "if wait_ms > 0 then return {{}, wait_ms} end\n", "",
        "tests/store/test_script_leases.py::test_one_look_serves_the_whole_fleet[valkey]",
    ),
    Mutant(
        "a hand-back calls nobody", f"{_LUA}/hand_back.lua",
        "if count > 0 then\n", "if false then\n",
        "tests/behaviour/test_idle.py::test_what_is_handed_back_wakes_an_idle_worker[valkey]",
    ),
    Mutant(
        "an earlier job does not ring", f"{_LUA}/schedule.lua",
        "if rest == 2 and first_ms < math.huge then", "if false then",
        "tests/behaviour/test_idle.py::"
        "test_a_job_that_is_added_to_an_empty_set_is_in_time[valkey]",
    ),
    Mutant(
        "the index is swept of jobs that still wait", f"{_LUA}/sweep_index.lua",
        "return due_ms < first_ms or try('ZCOUNT', delayed, due, due) == 0", "return true",
        "tests/store/test_script_sweep_index.py::"
        "test_an_entry_of_a_job_that_is_overdue_stays[valkey]",
    ),
    Mutant(
        "no heartbeat", "src/chasquimq/engine/lease.py",
        "lost = self._store.renew(self._held())", "lost = []",
        f"{_LEASES}::test_a_worker_alone_lets_no_lease_run_out[valkey]",
    ),
    Mutant(
        "a child process never learns that its lease was lost", "src/chasquimq/engine/lease.py",
        "        self._context.lease_lost(delivery)\n", "",
        f"{_LEASES}::"
        "test_a_handler_in_a_child_process_is_told_that_its_lease_was_taken[valkey]",
    ),
    Mutant(
        "entries of two streams are one", "src/chasquimq/model/delivery.py",
        "return LANE_MARKS[lane] + entry_id", "return entry_id",
        "tests/conformance/test_lanes.py::"
        "test_the_same_id_of_two_streams_is_held_twice_and_released_once"
        "[valkey-as probed-no results]",
    ),
    Mutant(
        "a retry leaves its lane", "src/chasquimq/store/consumer/settle.py",
        "keys = (lane.stream, lane.delayed, lane.dix)",
        "keys = (lane.stream, self._keys.delayed, self._keys.dix)",
        "tests/conformance/test_lanes.py::test_a_failed_run_is_retried_in_its_own_lane"
        "[valkey-as probed-no results]",
    ),
    Mutant(
        "heartbeat on the event loop", "src/chasquimq/worker/pipeline.py",
        "            self.lease.start()\n",
        "            async def beats() -> None:\n"
        "                while True:\n"
        "                    await asyncio.sleep(self._settings.lease.beat_ms / 1000)\n"
        "                    self.lease._beat()\n\n"
        "            self.supervisor.spawn(beats(), 'beats')\n",
        f"{_LEASES}::test_a_long_handler_in_a_process_of_its_own_starts_once[valkey-spin]",
    ),
    Mutant(
        "heartbeat for running jobs only", "src/chasquimq/engine/lease.py",
        "held = set(self._in_flight.keys())",
        "held = {i for i in self._in_flight.keys() if self._in_flight.get(i).started_ns}",
        f"{_LEASES}::test_prefetched_jobs_are_kept_as_long_as_running_ones[valkey]",
    ),
    Mutant(
        "renewals dial as often as they like", "src/chasquimq/store/net/blocking.py",
        "self._not_before_s = time.monotonic() + pause_ms / 1000", "self._not_before_s = 0.0",
        "tests/store/test_blocking_connection.py::"
        "test_a_server_that_is_away_is_dialled_ever_more_slowly[valkey]",
    ),
    Mutant(
        "trust in leases is decided without the lock", "src/chasquimq/engine/lease.py",
        "self._deciding = threading.Lock()", "self._deciding = __import__('contextlib').nullcontext()",
        f"{_LEASES}::test_a_renewal_between_a_lapse_and_its_hold_lets_runners_go_on[valkey]",
    ),
    Mutant(
        "suspects beside each other", "src/chasquimq/engine/delivery_count.py",
        "if self._on_trial is not None or not self.waiting:", "if not self.waiting:",
        f"{_SUSPECTS}::test_redelivered_jobs_run_one_at_a_time_beside_the_others[valkey]",
    ),
    Mutant(
        "company for a suspect on its last attempt", "src/chasquimq/engine/delivery_count.py",
        "return suspect.run_number >= self._max_attempts_of(suspect)", "return False",
        f"{_SUSPECTS}::test_a_job_on_its_last_attempt_runs_alone[valkey]",
    ),
    Mutant(
        "a suspect that is never proved", "src/chasquimq/engine/delivery_count.py",
        "left_s = self._trial_left_s(suspect)", "left_s = PROVED_S",
        f"{_SUSPECTS}::test_a_run_that_lasts_is_proved_and_holds_nobody_back_any_more[valkey]",
    ),
    Mutant(
        "suspects that wait in vain", "src/chasquimq/engine/delivery_count.py",
        "overdue = self._suspects.take_overdue()", "return",
        f"{_SUSPECTS}::"
        "test_suspects_that_wait_in_vain_are_taken_by_another_worker_uncharged[valkey]",
    ),
    Mutant(
        "a claim that charges suspects", f"{_LUA}/claim.lua",
        "if held[4] > 0 then", "if false then",
        "tests/store/test_script_leases.py::"
        "test_a_claim_charges_only_what_was_never_charged[valkey]",
    ),
    Mutant(
        "a job that leaves its batch while it runs", "src/chasquimq/worker/batching.py",
        "while not self.task.done():", "while False:",
        "tests/behaviour/test_batches.py::"
        "test_a_job_that_times_out_ends_its_batch_before_it_runs_again[valkey]",
    ),
    Mutant(
        "burial without the gate of the ack", f"{_LUA}/bury.lua",
        "if #held == 0 or seen[id] then\n    marks[i] = 0\n  elseif held", "if #held > 0 and held",
        "tests/store/test_script_bury.py::test_the_second_burial_finds_the_entry_gone[valkey]",
    ),
    Mutant(
        "burial by one who does not own it", f"{_LUA}/bury.lua",
        "elseif held[1][2] ~= ARGV[2] then", "elseif false then",
        "tests/store/test_script_bury.py::test_an_entry_of_another_owner_stays_where_it_is[valkey]",
    ),
    Mutant(
        "a burial acknowledges before the DLQ has the job", f"{_LUA}/bury.lua",
        "redis.call('XACK', KEYS[1], ARGV[1], '0-0')",
        "redis.call('XACK', KEYS[1], ARGV[1], unpack(ids))",
        f"{_EXHAUSTED}[valkey-bury-two-no room]",
    ),
    Mutant(
        "a burial needs memory that a full server does not give", f"{_LUA}/bury.lua",
        "redis.call('XACK', KEYS[1], ARGV[1], '0-0')\n", "",
        "tests/faults/test_out_of_memory.py::test_work_goes_on_without_memory_and_what_fell_due_"
        "runs_when_it_returns[valkey-plain]",
    ),
    Mutant(
        "half a burial leaves a second entry in the DLQ", f"{_LUA}/bury.lua",
        "if #dead > 0 then redis.pcall('XDEL', KEYS[2], unpack(dead)) end", "",
        f"{_EXHAUSTED}[valkey-bury-two-room for one]",
    ),
    Mutant(
        "rights are not checked before the first write", f"{_LUA}/shared/needs.lua",
        "if not is_allowed or is_allowed(command, key, ...) then return end",
        "if command then return end",
        f"{_REFUSED}[valkey-retry-later-zadd]",
    ),
    Mutant(
        "a retry acknowledges what it may not delay", f"{_LUA}/retry.lua",
        "needs('ZADD', delayed, 0, '')\n", "",
        f"{_REFUSED}[valkey-retry-later-zadd]",
    ),
    Mutant(
        "an ack leaves entries that it may not delete", f"{_LUA}/ack.lua",
        "needs('XDEL', KEYS[1], '0-0')\n", "",
        f"{_REFUSED}[valkey-ack-two-xdel]",
    ),
    Mutant(
        "a completion loses the result that it may not write", f"{_LUA}/complete.lua",
        "needs('SET', KEYS[2], '')\n", "",
        f"{_REFUSED}[valkey-complete-one by one-set]",
    ),
    Mutant(
        "an id is marked before its job is added", f"{_LUA}/add.lua",
        "local left, added, added_count = next_key, {}, 0\n",
        "local left, added, added_count = next_key, {}, 0\n"
        "for i = 1, count do if markers[i] then redis.call('SET', markers[i], 'x') end end\n",
        f"{_REFUSED}[valkey-add-own ids-xadd]",
    ),
    Mutant(
        "half a bulk stays when the stream refuses the rest", f"{_LUA}/add.lua",
        "if added_count > 0 then redis.pcall('XDEL', KEYS[1], unpack(added)) end", "",
        f"{_EXHAUSTED}[valkey-add-fresh ids-room for one]",
    ),
    Mutant(
        "a refused write is remembered as done", f"{_LUA}/add.lua",
        "redis.pcall('DEL', KEYS[2])\n", "",
        f"{_REFUSED}[valkey-add-fresh ids-xadd]",
    ),
    Mutant(
        "a delayed job is marked and may not be delayed", f"{_LUA}/schedule.lua",
        "needs('ZADD', KEYS[1], 0, '')\n", "",
        f"{_REFUSED}[valkey-schedule-waiting and passed-zadd]",
    ),
    Mutant(
        "rows are remembered that were never added", f"{_LUA}/add_run_rows.lua",
        "needs('PEXPIRE', KEYS[5], ARGV[3])\n", "",
        f"{_REFUSED}[valkey-add_run_rows-ready and later-pexpire]",
    ),
    Mutant(
        "a replayed job leaves the DLQ before the stream has it", f"{_LUA}/replay.lua",
        "redis.call('XDEL', KEYS[1], '0-0')",
        "for i = 2, #ARGV, 3 do redis.call('XDEL', KEYS[1], ARGV[i]) end",
        f"{_EXHAUSTED}[valkey-replay-two-no room]",
    ),
    Mutant(
        "promotion adds what it may not remove", f"{_LUA}/promote_due.lua",
        "    needs('ZREMRANGEBYRANK', delayed, 0, 0)\n", "",
        f"{_REFUSED}[valkey-promote_due-two and a broken one-zremrangebyrank]",
    ),
    Mutant(
        "fires that may not be counted exceed their limit", f"{_LUA}/fire.lua",
        "needs('HINCRBY', KEYS[3], '', 0)\n", "",
        f"{_REFUSED}[valkey-fire-again-hincrby]",
    ),
    Mutant(
        "a cancel that is refused half-way has removed the job", f"{_LUA}/cancel.lua",
        "needs('HDEL', dix, '')\n", "",
        f"{_REFUSED}[valkey-cancel-two of three-hdel]",
    ),
    Mutant(
        "a cancel reads every job of its time", f"{_LUA}/cancel.lua",
        "local PAGE_MAX = 32", "local PAGE_MAX = 2 ^ 40",
        "tests/store/test_cancel_among_many.py::"
        "test_a_cancel_takes_the_server_no_time_beside_a_crowd_of_the_same_time[valkey]",
    ),
    Mutant(
        "a cancel gives up behind many names", f"{_LUA}/cancel.lua",
        "if looks > LOOKS_MAX then return nil, member end",
        "if looks > LOOKS_MAX then return nil end",
        "tests/store/test_cancel_among_many.py::"
        "test_a_job_behind_thousands_of_names_and_broken_members_is_found[valkey]",
    ),
    Mutant(
        "failure by one who does not own it", f"{_LUA}/retry.lua",
        "return held[1][2] == consumer and 1 or -1", "return 1",
        "tests/store/test_script_retry.py::"
        "test_an_entry_of_another_owner_stays_where_it_is[valkey]",
    ),
    Mutant(
        "a job that the stream refuses after its ack", f"{_LUA}/retry.lua",
        "if added.err then delay(", "if false then delay(",
        "tests/store/test_script_retry.py::"
        "test_what_a_stream_at_the_end_of_its_ids_refuses_waits_in_the_delayed_set[valkey]",
    ),
    Mutant(
        "a handler that keeps asking for no time keeps its worker busy",
        "src/chasquimq/model/retry.py",
        "return verdict.after_ms == 0 and verdict.spent == delivery.run_number",
        "return verdict.after_ms == 0",
        "tests/behaviour/test_retries.py::"
        "test_a_handler_that_keeps_asking_for_no_time_waits_for_promotion[valkey]",
    ),
    Mutant(
        "a delivery is not counted", "src/chasquimq/store/consumer/decode.py",
        "            entry[3] if len(entry) > 3 else 0,\n",
        "            max(0, entry[3] - 1) if len(entry) > 3 else 0,\n",
        "tests/faults/test_crash_budget.py::"
        "test_a_job_never_starts_more_often_than_its_budget_however_its_workers_die[valkey]",
    ),
    Mutant(
        "ack before the handler has ended", "src/chasquimq/store/consumer/store.py",
        "        return self._decoder.read(reply[0][1], time.monotonic_ns(), lane) if reply else EMPTY",
        '        if reply:\n            await self._run(streams[0], "ack", self.group, '
        "*[row[0] for row in reply[0][1]])\n"
        "        return self._decoder.read(reply[0][1], time.monotonic_ns(), lane) if reply else EMPTY",
        "tests/faults/test_kills.py::test_kills_lose_nothing_and_double_next_to_nothing[valkey]",
    ),
    Mutant(
        "acks are dropped when they fail", "src/chasquimq/engine/settlement.py",
        "        except BaseException:\n            self._was_sent = True\n",
        "        except BaseException:\n            self._under_way = []\n",
        "tests/faults/test_servers_gone.py::"
        "test_an_outage_longer_than_the_lease_costs_no_finished_job_a_second_run[valkey]",
    ),
    Mutant(
        "the stream is trimmed", f"{_LUA}/add.lua",
        "redis.pcall('XADD', KEYS[1], '*', 'd', envelope, 'n', name)",
        "redis.pcall('XADD', KEYS[1], 'MAXLEN', 5, '*', 'd', envelope, 'n', name)",
        "tests/faults/test_refusing_server.py::"
        "test_a_full_queue_refuses_by_name_and_takes_more_as_it_drains[valkey]",
    ),
    Mutant(
        "promotion trims the stream", f"{_LUA}/promote_due.lua",
        "try('XADD', stream, '*', 'd', sub(member, from), 'n', name, 'due', due[i + 1])",
        "try('XADD', stream, 'MAXLEN', 3, '*', 'd', sub(member, from), 'n', name, 'due', due[i + 1])",
        "tests/store/test_script_promote.py::"
        "test_jobs_of_one_page_keep_their_own_names_ids_and_times[valkey]",
    ),
    Mutant(
        "a retry trims the stream", f"{_LUA}/retry.lua",
        "redis.pcall('XADD', stream, '*', 'd', envelope, 'n', name, 'due', now_text)",
        "redis.pcall('XADD', stream, 'MAXLEN', 1, '*', 'd', envelope, 'n', name, 'due', now_text)",
        "tests/store/test_script_retry.py::"
        "test_entries_that_wait_and_that_do_not_travel_together[valkey]",
    ),
    Mutant(
        "the producer's clock decides a delay", "src/chasquimq/store/producer/writes.py",
        "job.wait.ms, how)",
        "*((job.wait.ms, how) if how == 'at' else "
        "(int(__import__('time').time() * 1000) + job.wait.ms, 'at')))",
        "tests/faults/test_clocks.py::"
        "test_no_job_runs_early_or_late_when_every_clock_but_the_servers_is_wrong[valkey]",
    ),
    Mutant(
        "the worker's clock decides a retry", "src/chasquimq/store/consumer/store.py",
        '        return await settle(self._writes, "retry"',
        "        for move in moves:\n            skew = int(__import__('time').time() * 1000 - "
        "self.clock.now_ms())\n            __import__('msgspec').structs.force_setattr(move, 'after_ms', "
        "max(0, move.after_ms + skew))\n"
        '        return await settle(self._writes, "retry"',
        "tests/faults/test_clocks.py::"
        "test_no_job_runs_early_or_late_when_every_clock_but_the_servers_is_wrong[valkey]",
    ),
    Mutant(
        "a fire is not compared with its score", f"{_LUA}/fire.lua",
        "tonumber(score) ~= expected or expected > now_ms", "expected > now_ms",
        "tests/store/test_repeat_scripts.py::"
        "test_two_schedulers_with_one_window_give_one_job[valkey]",
    ),
    Mutant(
        "a fire before its time by the server's clock", f"{_LUA}/fire.lua",
        "tonumber(score) ~= expected or expected > now_ms", "tonumber(score) ~= expected",
        "tests/store/test_repeat_scripts.py::"
        "test_a_window_that_has_not_come_by_the_servers_clock_does_not_fire[valkey]",
    ),
    Mutant(
        "a loop stops at an error", "src/chasquimq/engine/supervisor.py",
        "                self._note(loop.name, error)\n            except BaseException",
        "                self._note(loop.name, error)\n                return\n"
        "            except BaseException",
        "tests/faults/test_poison.py::"
        "test_a_key_of_the_wrong_type_is_named_and_holds_up_only_what_needs_it[valkey-delayed]",
    ),
    Mutant(
        "a lost group stays lost", "src/chasquimq/store/consumer/store.py",
        'if error.code != "NOGROUP":', 'if error.code != "NEVER":',
        "tests/behaviour/test_recovery.py::"
        "test_new_jobs_run_after_an_operator_deleted_the_keys[valkey-delete_stream]",
    ),
    Mutant(
        "a consumer is removed with what it holds", f"{_LUA}/reap_consumer.lua",
        "if facts['pending'] > 0 or facts['idle']", "if facts['idle']",
        "tests/faults/test_stopping.py::"
        "test_handlers_that_ignore_their_cancel_do_not_delay_the_exit[valkey]",
    ),
    Mutant(
        "a hand-back is charged", f"{_LUA}/hand_back.lua",
        "'IDLE', ARGV[4], 'RETRYCOUNT', ARGV[i + 1], 'JUSTID')", "'IDLE', ARGV[4], 'JUSTID')",
        "tests/store/test_script_leases.py::"
        "test_a_handed_back_entry_is_parked_uncharged_and_claimable_at_once[valkey]",
    ),
    Mutant(
        "the deadline is counted from a later moment", "src/chasquimq/engine/shutdown.py",
        "        await self._wait_for_handlers(deadline_s)\n",
        "        begun_s = self._loop.time()\n"
        "        await self._wait_for_handlers(lambda: begun_s + 20)\n",
        "tests/faults/test_stopping.py::"
        "test_handlers_that_ignore_their_cancel_do_not_delay_the_exit[valkey]",
    ),
    Mutant(
        "no ceiling for the pause between dials", "src/chasquimq/store/net/connect.py",
        "return uniform(_LONG_MS_MIN, _LONG_MS_MAX)", "return uniform(40, 60)",
        "tests/faults/test_network.py::"
        "test_an_outage_is_no_storm_of_dials_and_its_end_is_noticed[valkey]",
    ),
    Mutant(
        "no jitter between dials", "src/chasquimq/store/net/connect.py",
        "return uniform(ceiling / 2, ceiling)", "return ceiling",
        "tests/unit/test_dialing.py::test_two_clients_do_not_dial_in_step",
    ),
    Mutant(
        "forgotten scripts are not sent again", "src/chasquimq/store/net/script.py",
        "return isinstance(reply, ServerRefused) and action_for(reply) is Action.RELOAD",
        "return False",
        "tests/faults/test_admin_acts.py::test_administration_costs_no_job[valkey]",
    ),
    Mutant(
        "unknown extensions are read", "src/chasquimq/wire/payload.py",
        "msgspec.msgpack.Decoder(ext_hook=_refuse_extension).decode",
        "msgspec.msgpack.Decoder().decode",
        "tests/wire/test_payload.py::test_unreadable_payloads_are_decode_errors",
    ),
    Mutant(
        "nesting without a bottom", "src/chasquimq/wire/payload.py",
        "except (ValueError, RecursionError) as error:", "except ValueError as error:",
        "tests/wire/test_payload.py::test_unreadable_payloads_are_decode_errors",
    ),
    Mutant(
        "the length of a name is not checked", f"{_LUA}/promote_due.lua",
        "if not cut or cut > #member then", "if not cut then",
        "tests/store/test_script_promote.py::test_script_and_python_agree_on_what_can_be_read",
    ),
    Mutant(
        "the marker of an id is not set with its job", f"{_LUA}/add.lua",
        "redis.call('SET', marker, ARGV[3 + i * 3], 'PX', ARGV[3])", "",
        "tests/faults/test_unique_race.py::"
        "test_racers_that_die_or_hear_nothing_add_each_id_once[valkey]",
    ),
    Mutant(
        "a resent write is not recognised", f"{_LUA}/add.lua",
        "local known = redis.call('GET', KEYS[2])\n", "local known = false\n",
        "tests/faults/test_network.py::test_with_a_quarter_of_all_replies_lost_"
        "every_job_is_added_and_run_once[valkey]",
    ),
    Mutant(
        "events before the commit", "src/chasquimq/engine/settlement.py",
        "                results = await self._pass(self._under_way)\n",
        "                self._confirm(\n                    self._under_way, [SettleResult.DONE] * len(self._under_way), was_resent=False\n                )\n"
        "                results = await self._pass(self._under_way)\n",
        "tests/faults/test_failpoints.py::"
        "test_a_death_at_any_point_of_an_act_loses_nothing_and_doubles_nothing[valkey-ack]",
    ),
    Mutant(
        "confirmations are not counted", "src/chasquimq/store/producer/durability.py",
        "if found < needed:", "if found < 0:",
        "tests/behaviour/test_durability.py::"
        "test_too_few_replicas_is_an_error_that_names_the_written_jobs[valkey]",
    ),
    Mutant(
        "an outcome is sent and forgotten", "src/chasquimq/engine/settlement.py",
        "                results = await self._pass(self._under_way)\n",
        "                results = [SettleResult.DONE] * len(self._under_way)\n",
        "tests/faults/test_small_budget.py::"
        "test_a_handler_of_eight_leases_completes_once_and_never_dies[valkey]",
    ),
    Mutant(
        "an add without an answer counts as done", "src/chasquimq/store/producer/sender.py",
        "            self._follow(unconfirmed, self._confirm(unconfirmed))\n",
        "            unconfirmed.confirmed([AddMark.ADDED] * len(write.jobs))\n",
        "tests/store/test_resending.py::"
        "test_a_write_that_reached_the_server_in_part_is_added_once[valkey]",
    ),
    Mutant(
        "a job whose caller gave up leaves with the others", "src/chasquimq/store/producer/sender.py",
        "            unconfirmed.leave_out_gone(self._encoder.encode_ready)\n", "            pass\n",
        f"{_DEADLINES}::test_of_adds_that_leave_together_those_that_gave_up_stay_behind"
        "[as probed-valkey]",
    ),
    Mutant(
        "a durable write on its way counts as not done", "src/chasquimq/store/producer/sender.py",
        "        was_done, write.may_be_done = write.may_be_done, True\n",
        "        was_done = write.may_be_done\n",
        f"{_DEADLINES}::test_a_durable_add_without_an_answer_may_be_added[valkey-add]",
    ),
    Mutant(
        "a write on its way counts as not done", "src/chasquimq/store/producer/sender.py",
        "        write.may_be_done = True\n", "",
        f"{_DEADLINES}::test_an_add_that_left_and_was_not_answered_is_unknown"
        "[as probed-valkey-add_unique]",
    ),
    Mutant(
        "dials before their time are not counted", "src/chasquimq/store/net/connect.py",
        "return (is_long or is_urgent) and self._leaves_enough(now_s)",
        "return is_long or is_urgent",
        "tests/unit/test_dialing.py::test_no_pattern_of_demand_costs_more_than_fifteen_dials_a_minute",
    ),
    Mutant(
        "a connection is used after a fork", "src/chasquimq/store/net/connection.py",
        "if self._owner_pid != this_process.pid:", "if self._owner_pid == 0:",
        "tests/faults/test_prefork.py::test_an_open_connection_sends_nothing_after_a_fork[valkey]",
    ),
    Mutant(
        "a counter that lies", "src/chasquimq/engine/settlement.py",
        "counters.completed += len(moves)\n        if listener is not None:\n            listener.completed(moves)",
        "counters.completed += len(moves) + 1\n        if listener is not None:\n            listener.completed(moves)",
        "tests/faults/test_small_budget.py::"
        "test_a_job_that_comes_to_us_again_while_we_run_it_is_neither_started_nor_buried[valkey-1]",
    ),
    Mutant(
        "promoted jobs stay in the index of delayed ones", f"{_LUA}/promote_due.lua",
        "  if #ids == 0 then return end\n", "  do return end\n",
        "tests/faults/test_clocks.py::"
        "test_no_job_runs_early_or_late_when_every_clock_but_the_servers_is_wrong[valkey]",
    ),
    Mutant(
        "a forged id takes another job out of the index", f"{_LUA}/promote_due.lua",
        "return ids_at[due][id]", "return false",
        f"{_FORGED}[valkey-a fresh id]",
    ),
    Mutant(
        "a forged id takes another job's index key", f"{_LUA}/unindex.lua",
        "if not is_waiting then", "if true then",
        f"{_FORGED}[valkey-an id of its caller]",
    ),
    Mutant(
        "a log call raises what a filter raises", "src/chasquimq/model/log.py",
        "        except BaseException as error:  # noqa: BLE001 - filters and handlers are the user's\n",
        "        except ZeroDivisionError as error:\n",
        f"{_LOGGING}::"
        "test_a_log_call_that_raises_stops_no_runner[valkey-fails_later-RaisingFilter]",
    ),
    Mutant(
        "keys of log records are not ours alone", "src/chasquimq/model/log.py",
        "{PREFIX + key: value", "{key: value",
        f"{_LOGGING}::test_what_a_record_carries_begins_with_our_name",
    ),
    Mutant(
        "an attempt that cannot be settled is kept for nobody", "src/chasquimq/engine/settlement.py",
        "            self.bury_unsettled(delivery, bug)\n", "            pass\n",
        f"{_LOGGING}::test_an_error_that_nobody_can_describe_ends_its_job_and_no_runner"
        "[valkey-never_suspended-of_no_class]",
    ),
    Mutant(
        "a runner that dies keeps the queue", "src/chasquimq/engine/runner.py",
        "self._drainer is not None and self._drainer.done()", "False",
        f"{_STALLS}::test_a_runner_that_somebody_cancels_is_replaced[valkey]",
    ),
    Mutant(
        "health does not tell a stall", "src/chasquimq/engine/runner.py",
        "self._note_stall(self.stalled_ms >= self._stall_after_ms)", "self._note_stall(False)",
        f"{_STALLS}::test_a_worker_that_starts_nothing_of_what_it_holds_is_not_well[valkey]",
    ),
    Mutant(
        "jobs that may not start yet are a stall", "src/chasquimq/engine/runner.py",
        "if not (may_start and has_room):", "if not in_flight.waiting:",
        f"{_STALLS}::test_jobs_that_wait_for_their_turn_are_no_stall[valkey]",
    ),
    Mutant(
        "a move that cannot be encoded blocks its batch", "src/chasquimq/engine/settlement.py",
        "                if not _is_about_a_move(error):\n                    raise\n"
        "                await self._pass_singly()\n",
        "                raise\n",
        f"{_EXTRAS}::"
        "test_a_retry_that_cannot_be_encoded_is_buried_and_the_others_are_retried[valkey]",
    ),
    Mutant(
        "what cannot be sent is kept for nobody", "src/chasquimq/engine/settlement.py",
        "            self.burier.put(burial)\n", "            pass\n",
        f"{_EXTRAS}::test_a_burial_that_cannot_be_encoded_is_tried_without_its_words[valkey-False]",
    ),
    Mutant(
        "what cannot be buried is renewed for ever", "src/chasquimq/engine/settlement.py",
        "            self.in_flight.release([move.key])\n", "            pass\n",
        f"{_EXTRAS}::test_what_cannot_even_be_buried_is_let_go_and_delivered_again[valkey]",
    ),
    Mutant(
        "refusals of the server's state bury jobs", "src/chasquimq/engine/settlement.py",
        "            if keeps_refusals and is_refusal(error):\n", "            if False:\n",
        "tests/unit/test_settle_loop.py::"
        "test_what_the_server_refuses_for_every_move_is_kept_and_lines_up_behind",
    ),
    Mutant(
        "a burial that is refused for its traceback is tried with it for ever",
        "src/chasquimq/engine/settlement.py",
        "            if len(moves) > 1 or not moves[0].traceback or not is_refusal(error):\n",
        "            if True:\n",
        f"{_TRACEBACKS}::test_a_burial_that_is_refused_for_its_traceback_goes_without_it[valkey]",
    ),
    Mutant(
        "a traceback shows lines of source where words are redacted", "src/chasquimq/engine/tracebacks.py",
        "        if part.more and redact is None:\n", "        if part.more:\n",
        f"{_TRACEBACKS}::test_what_is_redacted_is_in_no_traceback[valkey-literal]",
    ),
    Mutant(
        "a dead job whose outcome was left behind is dead for ever", "src/chasquimq/store/inspect/find_job.py",
        "        return self._matcher.in_dlq(entries[0]) if entries else None\n",
        "        return self._matcher.in_outcome(outcome)\n",
        "tests/behaviour/test_ended_jobs.py::"
        "test_a_job_that_the_other_implementation_sent_back_is_dead_no_more[valkey]",
    ),
    Mutant(
        "extras are as deep as they like", "src/chasquimq/wire/envelope.py",
        "    if len(raw) > EXTRAS_DEPTH_MAX and _is_deep(extras):\n", "    if False:\n",
        f"{_EXTRAS}::test_extras_over_the_cap_are_rejected_with_their_bytes_and_others_go_on"
        "[valkey-one level too deep]",
    ),
    Mutant(
        "extras are as long as they like", "src/chasquimq/wire/envelope.py",
        "    if len(raw) > EXTRAS_BYTES_MAX:\n", "    if False:\n",
        f"{_EXTRAS}::test_extras_over_the_cap_are_rejected_with_their_bytes_and_others_go_on"
        "[valkey-large]",
    ),
    Mutant(
        "extras are lost by a retry", "src/chasquimq/store/consumer/settle.py",
        'extras = raw_extras(delivery.envelope) if delivery.extras else b""', 'extras = b""',
        f"{_EXTRAS}::test_extras_that_a_retry_does_not_change_keep_every_byte[valkey-strange]",
    ),
    Mutant(
        "the checker ignores what is lost", "tests/support/rules.py",
        "        if life not in ended and not queued[life[0]]:\n", "        if life is None:\n",
        "tests/faults/test_journal_checker.py",
    ),
    Mutant(
        "the checker ignores second starts", "tests/support/rules.py",
        "            if is_again and not case.was_unsettled(earlier):\n",
        "            if is_again and earlier is None:\n",
        "tests/faults/test_journal_checker.py",
    ),
)  # fmt: skip
