-- Remove delayed jobs before they are due.
-- KEYS     1 delayed (zset)   2 dix (hash: job id -> due ms)   3 request token
--          then three for each job: didx, dlid, uniq
-- ARGV     1 token_ttl_s   then the job ids
-- RETURNS  one mark a job: 1 removed, it will never run; 0 nothing was there to remove
-- SETTLES  a resend after a lost reply: it answers what the first send did.
local known = redis.call('GET', KEYS[3])
if known then
  local marks = {}
  for i = 1, #known do marks[i] = tonumber(string.sub(known, i, i)) end
  return marks
end

local function is_of_job(member, id)
  if #member < 4 then return false end
  local a, b, c, d = string.byte(member, 1, 4)
  local from = 5 + a + b * 256 + c * 65536 + d * 16777216
  local head, size = string.byte(member, from, from + 1)
  if not size then return false end
  local skip = nil
  if size >= 0xa0 and size <= 0xbf then skip = 2
  elseif size == 0xd9 then skip = 3
  elseif size == 0xda then skip = 4 end
  if not skip then return false end
  local text = string.sub(member, from + skip, from + skip + #id - 1)
  -- The length in the header must be the id's own, or a longer id would match too.
  local length = size - 0xa0
  if skip == 3 then length = string.byte(member, from + 2) or -1 end
  if skip == 4 then
    local high, low = string.byte(member, from + 2, from + 3)
    length = (high or 0) * 256 + (low or 0)
  end
  return length == #id and text == id
end

local function remove(id, didx)
  local member = redis.call('GET', didx)
  if member and redis.call('ZREM', KEYS[1], member) == 1 then return 1 end
  local due = redis.call('HGET', KEYS[2], id)
  if not due then return 0 end
  for _, candidate in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], due, due)) do
    if is_of_job(candidate, id) then return redis.call('ZREM', KEYS[1], candidate) end
  end
  return 0
end

-- Keys of the wrong type must fail before the first write.
redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[2])
for at = 4, #KEYS, 3 do redis.call('GET', KEYS[at]) end
local marks = {}
for i = 2, #ARGV do
  local at = 4 + (i - 2) * 3
  marks[i - 1] = remove(ARGV[i], KEYS[at])
  if marks[i - 1] == 1 then
    redis.call('HDEL', KEYS[2], ARGV[i])
    redis.call('DEL', KEYS[at], KEYS[at + 1], KEYS[at + 2])
  end
end
redis.call('SET', KEYS[3], table.concat(marks), 'EX', ARGV[1])
return marks
