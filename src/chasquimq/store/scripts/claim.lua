-- Take over entries whose holder has been silent for a lease, where reading cannot do it.
-- KEYS     1 stream
-- ARGV     1 group   2 consumer   3 lease_ms   4 count
-- RETURNS  {{entry id, fields, idle_ms, earlier deliveries}, ...} as a claiming read would
-- SETTLES  two claimers: the idle time is compared and reset in one step.
local idle = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[3], '-', '+', ARGV[4])
if #idle == 0 then return {} end
local ids, seen = {}, {}
for i, held in ipairs(idle) do
  ids[i] = held[1]
  seen[held[1]] = held
end
local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], unpack(ids))
local answer = {}
for _, entry in ipairs(claimed) do
  -- Redis 6.2 names a deleted entry without fields; it is left to the janitor.
  if entry and entry[2] then
    local held = seen[entry[1]]
    answer[#answer + 1] = {entry[1], entry[2], held[3], held[4]}
  end
end
return answer
