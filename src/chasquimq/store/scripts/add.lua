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
local left = next_key
for i = 1, count do
  local at = 1 + i * 3
  local envelope, name, digest = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if marks[i] == 1 then
    if markers[i] then redis.call('SET', markers[i], digest, 'PX', ARGV[3]) end
    if markers[i] and KEYS[left + 1] then redis.call('DEL', KEYS[left], KEYS[left + 1]) end
    if name == '' then
      redis.call('XADD', KEYS[1], '*', 'd', envelope)
    else
      redis.call('XADD', KEYS[1], '*', 'd', envelope, 'n', name)
    end
  end
  if markers[i] then left = left + 2 end
end
redis.call('SET', KEYS[2], table.concat(marks), 'EX', ARGV[2])
return marks
