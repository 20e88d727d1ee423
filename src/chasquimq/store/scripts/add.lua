-- Add jobs to the stream: once per write token, once per unique id, never above the cap.
-- KEYS     1 stream   2 write token   3.. one marker for each job that has a unique id
--          then, optional, outcome and result of each of these jobs: what a former job left there
-- ARGV     1 stream_len_max (0: no cap)   2 token_ttl_s   3 unique_for_ms
--          then for each job: envelope, name, digest ("" when the job has no unique id)
-- RETURNS  "full" when the new jobs do not fit, else one mark a job:
--          1 added, 0 the same id was there, 2 the id is taken by another job
-- SETTLES  a resend after a lost reply: the token remembers what the first send answered.
local known = redis.call('GET', KEYS[2])
if known then
  local marks = {}
  for i = 1, #known do marks[i] = tonumber(string.sub(known, i, i)) end
  return marks
end
local count = (#ARGV - 3) / 3
if count < 1 or count ~= math.floor(count) then
  return redis.error_reply('ERR jobs come in threes')
end
local cap, unique_ms = tonumber(ARGV[1]), tonumber(ARGV[3])
if #KEYS > 2 and not (unique_ms and unique_ms >= 1) then
  return redis.error_reply('ERR unique_for_ms must be a time')
end
-- All is read before the first write, so that a key of the wrong type leaves no half of a bulk.
local backlog = redis.call('XLEN', KEYS[1])
local marks, markers, taken, fresh, next_key = {}, {}, {}, 0, 3
for i = 1, count do
  local digest = ARGV[3 + i * 3]
  marks[i] = 1
  if digest ~= '' then
    local key = KEYS[next_key]
    local first = taken[key] or redis.call('GET', key)
    if first then marks[i] = first == digest and 0 or 2 end
    markers[i], taken[key], next_key = key, first or digest, next_key + 1
  end
  if marks[i] == 1 then fresh = fresh + 1 end
end
if cap > 0 and fresh > 0 and backlog + fresh > cap then return 'full' end
-- A job that the stream refuses must leave no trace: its next try would be told that it is there.
-- So the jobs come before their markers, and the token, which a refused write never asks for again,
-- is taken back.
local left, added, added_count = next_key, {}, 0
if KEYS[left] then needs('DEL', KEYS[left]) end
redis.call('SET', KEYS[2], table.concat(marks), 'EX', ARGV[2])
for i = 1, count do
  if marks[i] == 1 then
    local at, entry = 1 + i * 3, nil
    local envelope, name = ARGV[at], ARGV[at + 1]
    if name == '' then
      entry = redis.pcall('XADD', KEYS[1], '*', 'd', envelope)
    else
      entry = redis.pcall('XADD', KEYS[1], '*', 'd', envelope, 'n', name)
    end
    -- An id has characters, an error has none.
    if #entry == 0 then
      if added_count > 0 then redis.pcall('XDEL', KEYS[1], unpack(added)) end
      redis.pcall('DEL', KEYS[2])
      return entry
    end
    added_count = added_count + 1
    added[added_count] = entry
  end
end
for i = 1, next_key > 3 and count or 0 do
  local marker = markers[i]
  if marker then
    if marks[i] == 1 then
      redis.call('SET', marker, ARGV[3 + i * 3], 'PX', ARGV[3])
      if KEYS[left] then redis.call('DEL', KEYS[left], KEYS[left + 1]) end
    end
    left = left + 2
  end
end
return marks
