-- Remove delayed jobs by their members, before they are due.
-- KEYS     1 delayed (zset)   2 dix (hash: job id -> due ms)   3 request token
--          then three for each member: didx, dlid, uniq of its job
-- ARGV     1 token_ttl_s   then for each member: the member, its job id ("": cannot be read)
-- RETURNS  one mark a member: 1 removed, it will never run; 0 it was there no more
-- SETTLES  a promoter beside it: whoever removes a member has the job; a resend after a lost reply:
--          it answers what the first send did.
local known = redis.call('GET', KEYS[3])
if known then
  local marks = {}
  for i = 1, #known do marks[i] = tonumber(string.sub(known, i, i)) end
  return marks
end
local delayed, dix, count = KEYS[1], KEYS[2], (#ARGV - 1) / 2
if not string.match(ARGV[1], '^[1-9]%d*$') then
  return redis.error_reply('ERR token_ttl_s must be a time')
end
if count < 1 or #KEYS ~= 3 + count * 3 then
  return redis.error_reply('ERR each member needs a job id and three keys')
end
-- Keys of the wrong type must fail before the first write, and so must a right that is missing.
redis.call('ZCARD', delayed)
redis.call('HLEN', dix)
needs('HDEL', dix, '')
needs('DEL', KEYS[4])
needs('SET', KEYS[3], '')
local marks = {}
for i = 1, count do
  local at, id = 1 + i * 3, ARGV[1 + i * 2]
  marks[i] = redis.call('ZREM', delayed, ARGV[i * 2])
  if marks[i] == 1 and id ~= '' then
    redis.call('HDEL', dix, id)
    redis.call('DEL', KEYS[at], KEYS[at + 1], KEYS[at + 2])
  end
end
redis.call('SET', KEYS[3], table.concat(marks), 'EX', ARGV[1])
return marks
