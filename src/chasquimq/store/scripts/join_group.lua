-- Join the one group that consumes a stream; stream and group are created where they are missing.
-- KEYS     1 stream
-- ARGV     1 group   2 consumer   3 parking consumer, which is nobody   4 silent_ms_max: a
--          consumer that was not heard of for longer is dead
-- RETURNS  {} joined, else name, count of live consumers and pending count of every other group in
--          use; nothing was written then
-- SETTLES  workers of two groups that start at once: who joins first has a consumer, which the
--          other one finds.
-- A group with neither a live consumer nor a pending entry is left over and delivers nothing.
local others, is_there = {}, false
local groups = redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XINFO', 'GROUPS', KEYS[1]) or {}
for _, row in ipairs(groups) do
  local group = pairs_of(row)
  if group.name == ARGV[1] then
    is_there = true
  elseif group.consumers > 0 then
    local workers = workers_of(KEYS[1], group.name, ARGV[3], ARGV[4])
    if workers > 0 or group.pending > 0 then
      others[#others + 1] = group.name
      others[#others + 1] = workers
      others[#others + 1] = group.pending
    end
  end
end
if #others > 0 then return others end
-- Any read makes the consumer known. This one is of what it holds behind the last id there can
-- be: nothing, because a second look at held entries would count as their delivery.
local look = {'GROUP', ARGV[1], ARGV[2], 'STREAMS', KEYS[1], '18446744073709551614-0'}
needs('XREADGROUP', unpack(look))
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
if type(made) == 'table' and made.err then
  -- Without memory nothing is created; with the group there, what runs can be acked all the same.
  local is_known = string.find(made.err, 'BUSYGROUP', 1, true)
  if not is_known and not (is_there and string.find(made.err, 'OOM', 1, true)) then return made end
end
redis.call('XREADGROUP', unpack(look))
return {}
