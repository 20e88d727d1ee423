-- Remove a consumer that holds nothing.
-- KEYS     1 stream
-- ARGV     1 group   2 consumer   3 idle_ms_min (0: whatever its idle time)
-- RETURNS  1 removed, 0 it still holds entries or is not idle enough, -1 unknown or no group
-- SETTLES  removing a consumer with pending entries, which would lose them.
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if consumers.err then
  return string.find(consumers.err, '^NOGROUP') and -1 or consumers
end
for _, consumer in ipairs(consumers) do
  local facts = {}
  for i = 1, #consumer, 2 do facts[consumer[i]] = consumer[i + 1] end
  if facts['name'] == ARGV[2] then
    if facts['pending'] > 0 or facts['idle'] < tonumber(ARGV[3]) then return 0 end
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
    return 1
  end
end
return -1
