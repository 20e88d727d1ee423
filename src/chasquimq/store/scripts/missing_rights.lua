-- Which of these commands may the user of this connection not run? Runs none of them.
-- KEYS     1 a key of the queue
-- ARGV     for each command: how many parts it has, then its parts
-- RETURNS  the places of those it may not run, counted from 1; nil: this server cannot tell
-- SETTLES  nothing; it reads the access list alone.
if not redis.acl_check_cmd then return false end
local missing, place, at = {}, 0, 1
while at <= #ARGV do
  local size = tonumber(ARGV[at])
  place = place + 1
  -- A command that the server does not know raises; whether it may be run is no question then.
  local is_known, is_allowed = pcall(redis.acl_check_cmd, unpack(ARGV, at + 1, at + size))
  if is_known and not is_allowed then missing[#missing + 1] = place end
  at = at + 1 + size
end
return missing
