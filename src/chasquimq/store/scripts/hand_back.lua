-- Give entries that never started to the parking consumer, claimable at once and uncharged.
-- KEYS     1 stream
-- ARGV     1 group   2 consumer   3 parking consumer   4 idle_ms   5 gate of claims   6 wake (stream)
--          then for each entry: entry id, delivery count
-- RETURNS  how many were handed back
-- SETTLES  a leaver's leftovers: they wait for nobody's lease, and its consumer can be removed.
local count = 0
for i = 7, #ARGV, 2 do
  local held = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if #held == 1 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, ARGV[i],
      'IDLE', ARGV[4], 'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
    count = count + 1
  end
end
-- Nobody expects them so soon, and no blocked read ends because of them. Who may not use these two
-- keys hands back all the same, so they are no KEYS.
if count > 0 then
  redis.pcall('DEL', ARGV[5])
  redis.pcall('XADD', ARGV[6], 'NOMKSTREAM', 'MAXLEN', 16, '*', 'for', 'returned')
end
return count
