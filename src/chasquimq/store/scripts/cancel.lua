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

-- The job id inside a member, or nil: the first element of the envelope behind the name.
local function id_of(member)
  if #member < 4 then return nil end
  local a, b, c, d = string.byte(member, 1, 4)
  local from = 5 + a + b * 256 + c * 65536 + d * 16777216
  local _, size = string.byte(member, from, from + 1)
  if not size then return nil end
  if size >= 0xa0 and size <= 0xbf then
    return string.sub(member, from + 2, from + 1 + size - 0xa0)
  end
  if size == 0xd9 then
    return string.sub(member, from + 3, from + 2 + (string.byte(member, from + 2) or 0))
  end
  if size == 0xda then
    local high, low = string.byte(member, from + 2, from + 3)
    return string.sub(member, from + 4, from + 3 + (high or 0) * 256 + (low or 0))
  end
  return nil
end

-- Jobs of one bulk often share their due time, so each is looked through once a call.
local members_at = {}
local function member_of(id, due)
  if not members_at[due] then
    local found = {}
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], due, due)) do
      local owner = id_of(member)
      if owner then found[owner] = member end
    end
    members_at[due] = found
  end
  return members_at[due][id]
end

local function remove(id, didx)
  local member = redis.call('GET', didx)
  if member and redis.call('ZREM', KEYS[1], member) == 1 then return 1 end
  local due = redis.call('HGET', KEYS[2], id)
  member = due and member_of(id, due)
  return member and redis.call('ZREM', KEYS[1], member) or 0
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
