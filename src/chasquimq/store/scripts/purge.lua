-- Delete dead jobs for good.
-- KEYS     1 dlq   2 request token
-- ARGV     1 token_ttl_s   2.. dlq entry ids (at most 1,000)
-- RETURNS  how many were deleted
-- SETTLES  a resend after a lost reply: it answers what the first send did.
local known = redis.call('GET', KEYS[2])
if known then return tonumber(known) end
if not string.match(ARGV[1], '^[1-9]%d*$') then
  return redis.error_reply('ERR token_ttl_s must be a time')
end
if #ARGV < 2 or #ARGV > 1001 then return redis.error_reply('ERR purge 1 to 1000 entries a call') end
needs('SET', KEYS[2], '')
-- The server reads every id before it deletes the first.
local deleted = redis.call('XDEL', KEYS[1], unpack(ARGV, 2))
redis.call('SET', KEYS[2], deleted, 'EX', ARGV[1])
return deleted
