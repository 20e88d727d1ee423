-- Set how many deliveries held entries are charged with.
-- KEYS     1 stream
-- ARGV     1 group   2 consumer   then for each entry: entry id, delivery count
-- RETURNS  the ids that are ours no more
-- SETTLES  a start that is not counted: the charge is confirmed before the handler begins.
local lost = {}
for i = 3, #ARGV, 2 do
  local held = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if #held == 0 then
    lost[#lost + 1] = ARGV[i]
  else
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
  end
end
return lost
