-- Add jobs that are not due yet: once per write token, once per own id.
-- KEYS     1 delayed (zset)   2 dix (hash: job id -> due ms)   3 stream   4 write token
--          then three for each job with an id of its own: uniq, dlid, didx
--          then, optional, outcome and result of each of these jobs: what a former job left there
-- ARGV     1 token_ttl_s   2 unique_for_ms
--          then for each job: envelope, name, digest ("": a fresh id), job id, ms, "at" or "in"
-- RETURNS  one mark a job: 1 added, 0 the same id was there, 2 the id is taken by another job
-- SETTLES  clocks that differ: the server's own time decides what is due.
local known = redis.call('GET', KEYS[4])
if known then
  local marks = {}
  for i = 1, #known do marks[i] = tonumber(string.sub(known, i, i)) end
  return marks
end
local count = (#ARGV - 2) / 6
if count < 1 or count ~= math.floor(count) then
  return redis.error_reply('ERR jobs come in sixes')
end
for i = 1, count do
  local ms = tonumber(ARGV[1 + i * 6])
  if not ms or not (ms >= 0 and ms < 2 ^ 53) then
    return redis.error_reply('ERR ms must be a time')
  end
end
local unique_ms = tonumber(ARGV[2])
if #KEYS > 4 and not (unique_ms and unique_ms >= 1) then
  return redis.error_reply('ERR unique_for_ms must be a time')
end
-- Keys of the wrong type must fail before the first write.
local own_count = 0
for i = 1, count do
  if ARGV[i * 6 - 1] ~= '' then own_count = own_count + 1 end
end
for at = 5, 4 + own_count * 3, 3 do redis.call('GET', KEYS[at]) end
redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[2])
redis.call('XLEN', KEYS[3])
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- The mark of a job with an id of its own; sets its markers when it is the first.
local function claim_id(at, digest, member, wait_ms)
  local taken = redis.call('GET', KEYS[at])
  if taken then return taken == digest and 0 or 2 end
  -- The other implementation knows only this marker, and not which job it stands for.
  if redis.call('EXISTS', KEYS[at + 1]) == 1 then return 0 end
  local wait_s = math.max(1, math.floor(wait_ms / 1000))
  local ttl_s = string.format('%.0f', wait_s + 3600)
  local unique_s = string.format('%.0f', wait_s + math.ceil(tonumber(ARGV[2]) / 1000))
  redis.call('SET', KEYS[at], digest, 'PX', ARGV[2])
  redis.call('SET', KEYS[at + 1], '1', 'EX', unique_s)
  redis.call('SET', KEYS[at + 2], member, 'EX', ttl_s)
  return 1
end

local marks, marker, left = {}, 5, 5 + own_count * 3
for i = 1, count do
  local at = i * 6 - 3
  local envelope, name, digest, id = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local due_ms = tonumber(ARGV[at + 4])
  if ARGV[at + 5] == 'in' then due_ms = now_ms + due_ms end
  local member = struct.pack('<I4', #name) .. name .. envelope
  local mark = 1
  if digest ~= '' then
    mark = claim_id(marker, digest, member, due_ms - now_ms)
    if mark == 1 and KEYS[left + 1] then redis.call('DEL', KEYS[left], KEYS[left + 1]) end
    marker, left = marker + 3, left + 2
  end
  if mark == 1 and due_ms <= now_ms then
    if name == '' then
      redis.call('XADD', KEYS[3], '*', 'd', envelope)
    else
      redis.call('XADD', KEYS[3], '*', 'd', envelope, 'n', name)
    end
  elseif mark == 1 then
    local due = string.format('%.0f', due_ms)
    redis.call('ZADD', KEYS[1], due, member)
    -- A job with an id of its own is found through didx.
    if digest == '' then redis.call('HSET', KEYS[2], id, due) end
  end
  marks[i] = mark
end
redis.call('SET', KEYS[4], table.concat(marks), 'EX', ARGV[1])
return marks
