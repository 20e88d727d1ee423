-- Take over entries whose holder has been silent for a lease, where reading cannot do it.
-- KEYS     1 stream
-- ARGV     1 group   2 consumer   3 lease_ms   4 count
--          then, optional: 5 look_ms (the shortest pause)   6 quiet_ms (the longest; 0: look anyway)
--          7 gate (string: lease of the last look, until the next is due)   8 wake (stream)
-- RETURNS  {{entry id, fields, idle_ms, earlier deliveries, owner}, ...} as a claiming read would,
--          which does not name the owner; with a gate {those, ms until the next look is due}
-- SETTLES  two claimers: the idle time is compared and reset in one step. A fleet: a look walks the
--          whole pending list, so one look serves all whose lease is not shorter. A claimer that
--          dies before it starts anything: what was delivered before is charged by its next start,
--          not by the claim.
-- Gate and wake are no KEYS: whoever has no right to them claims without them.
local call, try = redis.call, redis.pcall
local stream, group, consumer, gate, wake = KEYS[1], ARGV[1], ARGV[2], ARGV[7], ARGV[8]
local lease_ms, count = tonumber(ARGV[3]), tonumber(ARGV[4])
local look_ms, quiet_ms = tonumber(ARGV[5] or 0), tonumber(ARGV[6] or 0)

-- How long others' last look holds for this worker, 0: not at all. A gate that never opens, or is
-- no string, is none.
local function closed_ms()
  if not gate or quiet_ms == 0 then return 0 end
  local looked_for_ms = try('GET', gate)
  if type(looked_for_ms) ~= 'string' or (tonumber(looked_for_ms) or 0) > lease_ms then return 0 end
  return math.max(0, tonumber(try('PTTL', gate)) or 0)
end

local function claim(idle)
  if #idle == 0 then return {} end
  local ids, seen = {}, {}
  for i, held in ipairs(idle) do
    ids[i] = held[1]
    seen[held[1]] = held
  end
  local answer = {}
  for _, entry in ipairs(call('XCLAIM', stream, group, consumer, lease_ms, unpack(ids))) do
    -- Redis 6.2 names a deleted entry without fields; it is left to the janitor.
    if entry and entry[2] then
      local held = seen[entry[1]]
      if held[4] > 0 then
        call('XCLAIM', stream, group, consumer, 0, entry[1], 'RETRYCOUNT', held[4], 'JUSTID')
      end
      answer[#answer + 1] = {entry[1], entry[2], held[3], held[4], held[2]}
    end
  end
  return answer
end

-- Nothing can be claimed before what is silent for longest has been so for a lease.
local function next_look_ms()
  local soon = call('XPENDING', stream, group, 'IDLE', lease_ms - quiet_ms, '-', '+', 100)
  local next_ms = #soon < 100 and quiet_ms or look_ms
  for _, held in ipairs(soon) do next_ms = math.min(next_ms, lease_ms - held[3]) end
  return math.max(next_ms, look_ms)
end

local wait_ms = closed_ms()
if wait_ms > 0 then return {{}, wait_ms} end
local idle = call('XPENDING', stream, group, 'IDLE', lease_ms, '-', '+', count)
local claimed = claim(idle)
if not gate then return claimed end
-- Nothing below may fail: what was claimed must arrive.
if #idle >= count then
  -- There may be more than this worker has room for: the next one looks at once.
  try('DEL', gate)
  try('XADD', wake, 'NOMKSTREAM', 'MAXLEN', 16, '*', 'for', 'claim')
  return {claimed, 0}
end
if quiet_ms == 0 then return {claimed, look_ms} end
wait_ms = next_look_ms()
try('SET', gate, ARGV[3], 'PX', string.format('%.0f', wait_ms))
return {claimed, wait_ms}
