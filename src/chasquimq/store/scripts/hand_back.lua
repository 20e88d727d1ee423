-- Give entries that never started to the parking consumer, claimable at once and uncharged.
-- KEYS     1 stream
-- ARGV     1 group   2 consumer   3 parking consumer   4 idle_ms
--          then for each entry: entry id, delivery count
-- RETURNS  how many were handed back
-- SETTLES  a leaver's leftovers: they wait for nobody's lease, and its consumer can be removed.
local count = 0
for i = 5, #ARGV, 2 do
  local held = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if #held == 1 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, ARGV[i],
      'IDLE', ARGV[4], 'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
    count = count + 1
  end
end
return count
