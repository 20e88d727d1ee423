-- Add jobs to the stream: once per write token, once per unique id, never above the cap.
-- KEYS     1 stream   2 write token   3.. one marker for each job that has a unique id
-- ARGV     1 stream_len_max (0: no cap)   2 token_ttl_s   3 unique_for_ms
--          then for each job: envelope, name, digest ("" when the job has no unique id)
-- RETURNS  "full" when the jobs do not fit, else one mark a job:
--          1 added, 0 the same id was there, 2 the id is taken by another job
-- SETTLES  a resend after a lost reply: the token remembers what the first send answered.
local known = redis.call('GET', KEYS[2])
if known then
  local marks = {}
  for i = 1, #known do marks[i] = tonumber(string.sub(known, i, i)) end
  return marks
end
local count = (#ARGV - 3) / 3
if count < 1 or count ~= math.floor(count) then return redis.error_reply('ERR jobs come in threes') end
local cap = tonumber(ARGV[1])
-- Asked even without a cap: a key of the wrong type must fail before the first write.
local backlog = redis.call('XLEN', KEYS[1])
if cap > 0 and backlog + count > cap then return 'full' end
local marks, marker = {}, 3
for i = 1, count do
  local at = 1 + i * 3
  local envelope, name, digest = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local mark = 1
  if digest ~= '' then
    if not redis.call('SET', KEYS[marker], digest, 'NX', 'PX', ARGV[3]) then
      mark = redis.call('GET', KEYS[marker]) == digest and 0 or 2
    end
    marker = marker + 1
  end
  if mark == 1 then
    if name == '' then
      redis.call('XADD', KEYS[1], '*', 'd', envelope)
    else
      redis.call('XADD', KEYS[1], '*', 'd', envelope, 'n', name)
    end
  end
  marks[i] = mark
end
redis.call('SET', KEYS[2], table.concat(marks), 'EX', ARGV[2])
return marks
