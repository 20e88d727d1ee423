-- Remove a group that nobody uses, or any group by force. No entry leaves the stream: another
-- group delivers what this one held.
-- KEYS     1 stream
-- ARGV     1 group   2 parking consumer, which is nobody   3 silent_ms_max: a consumer that was
--          not heard of for longer is dead   4 1 by force
-- RETURNS  {1, consumers, pending} removed, {0, consumers, pending} in use and left alone, {-1}
--          no such group
-- SETTLES  a worker that joins the group between the look and the removal.
local groups = redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XINFO', 'GROUPS', KEYS[1]) or {}
for _, row in ipairs(groups) do
  local group = pairs_of(row)
  if group.name == ARGV[1] then
    local workers = workers_of(KEYS[1], group.name, ARGV[2], ARGV[3])
    local is_used = workers > 0 or group.pending > 0
    if is_used and ARGV[4] ~= '1' then return {0, workers, group.pending} end
    redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
    return {1, workers, group.pending}
  end
end
return {-1}
